package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/softcrum/carril/internal/db/streamdb"
	"github.com/softcrum/carril/internal/outbox"
)

// standing is what the log looks like beside a stored position.
type standing struct {
	topicID    [16]byte
	start, end int64
}

// stored is a position as the take-over found it, under our new epoch.
type stored struct {
	epoch    int64
	next     int64
	topicID  [16]byte
	stopped  *string
	inserted bool
}

// ruling says what a position means beside the log, and what is to be alarmed.
type ruling struct {
	next    int64
	stopped string // empty: it runs
	missed  int64
	alarm   string // empty: nothing happened
}

// rule classifies a position. A log with another id, or one that ends before
// the position, was lost: its beginning is applied again and the fences absorb
// the repeats. A log that begins after the position has dropped records that
// nobody applied: that is for an operator to accept.
func rule(p stored, log standing) ruling {
	switch {
	case p.inserted:
		return ruling{next: log.start}
	case p.topicID != log.topicID:
		return ruling{next: log.start, alarm: "recreated"}
	case p.next > log.end:
		return ruling{next: log.start, alarm: "truncated"}
	case p.next < log.start:
		return ruling{next: p.next, stopped: "log_start_passed", missed: log.start - p.next, alarm: "missed"}
	}
	return ruling{next: p.next}
}

// takeOver makes this process the owner of partitions: a new epoch on each
// position and its lanes, and where to start. Everything happens under the
// positions' row locks, so that the predecessor's last batch is either seen or
// fenced.
func (l *Loop) takeOver(ctx context.Context, tps []tp) (map[tp]claim, error) {
	slices.SortFunc(tps, func(a, b tp) int {
		if c := strings.Compare(a.topic, b.topic); c != 0 {
			return c
		}
		return int(a.partition - b.partition)
	})
	claims := make(map[tp]claim, len(tps))
	err := pgx.BeginFunc(ctx, l.deps.Pool, func(tx pgx.Tx) error {
		found := make(map[tp]stored, len(tps))
		for _, at := range tps {
			s, err := l.raiseEpoch(ctx, tx, at)
			if err != nil {
				return err
			}
			found[at] = s
		}
		logs, err := l.standings(ctx, tps)
		if err != nil {
			return err
		}
		for _, at := range tps {
			c, err := l.settleClaim(ctx, tx, at, found[at], logs[at])
			if err != nil {
				return err
			}
			claims[at] = c
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("take over %d partitions: %w", len(tps), err)
	}
	return claims, nil
}

func (l *Loop) raiseEpoch(ctx context.Context, tx pgx.Tx, at tp) (stored, error) {
	p, err := streamdb.New(tx).RaiseEpoch(ctx, streamdb.RaiseEpochParams{
		Stage: l.cfg.Stage, Topic: at.topic, Partition: at.partition, Owner: l.cfg.Owner})
	if err != nil {
		return stored{}, fmt.Errorf("raise the epoch of %s/%d: %w", at.topic, at.partition, err)
	}
	return stored{epoch: p.Epoch, next: p.NextOffset, topicID: p.TopicID, stopped: p.Stopped, inserted: p.Inserted}, nil
}

func (l *Loop) settleClaim(ctx context.Context, tx pgx.Tx, at tp, found stored, log standing) (claim, error) {
	r := rule(found, log)
	c := claim{epoch: found.epoch, topicID: log.topicID, next: r.next, stopped: r.stopped != ""}
	err := streamdb.New(tx).SettlePosition(ctx, streamdb.SettlePositionParams{
		Stage: l.cfg.Stage, Topic: at.topic, Partition: at.partition,
		NextOffset: r.next, TopicID: log.topicID, Stopped: r.stopped, Missed: r.missed})
	if err != nil {
		return c, fmt.Errorf("set the position of %s/%d: %w", at.topic, at.partition, err)
	}
	if r.alarm != "" {
		l.alarm(at, r, found, log)
	}
	l.setStopped(at, c.stopped)
	producer := fmt.Sprintf("stage:%s/%s/%d", l.cfg.Stage, at.topic, at.partition)
	if c.derived, err = outbox.Open(ctx, tx, producer, outbox.StoreOutbox, c.epoch); err != nil {
		return c, err
	}
	if l.deps.Events != nil {
		c.events, err = outbox.Open(ctx, tx, producer, outbox.StoreEvents, c.epoch)
	}
	return c, err
}

// standings asks the cluster for the ids, starts and ends of the partitions.
func (l *Loop) standings(ctx context.Context, tps []tp) (map[tp]standing, error) {
	var topics []string
	for _, at := range tps {
		if t := l.deps.Kafka.Topic(at.topic); !slices.Contains(topics, t) {
			topics = append(topics, t)
		}
	}
	details, err := l.adm.ListTopics(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("list topics: %w", err)
	}
	starts, err := l.adm.ListStartOffsets(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("list log starts: %w", err)
	}
	ends, err := l.adm.ListEndOffsets(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("list log ends: %w", err)
	}
	logs := make(map[tp]standing, len(tps))
	for _, at := range tps {
		s, err := standingOf(l.deps.Kafka.Topic(at.topic), at.partition, details, starts, ends)
		if err != nil {
			return nil, err
		}
		logs[at] = s
	}
	return logs, nil
}

// errNoAnswer says that the cluster left a partition out of its answer.
var errNoAnswer = errors.New("the cluster did not answer for it")

func standingOf(topic string, partition int32, details kadm.TopicDetails, starts, ends kadm.ListedOffsets) (standing, error) {
	d, ok := details[topic]
	if !ok || d.Err != nil {
		return standing{}, fmt.Errorf("describe topic %s: %w", topic, cmp.Or(d.Err, errNoAnswer))
	}
	start, ok1 := starts.Lookup(topic, partition)
	end, ok2 := ends.Lookup(topic, partition)
	if !ok1 || !ok2 || start.Err != nil || end.Err != nil {
		return standing{}, fmt.Errorf("offsets of %s/%d: %w", topic, partition, cmp.Or(errors.Join(start.Err, end.Err), errNoAnswer))
	}
	return standing{topicID: d.ID, start: start.Offset, end: end.Offset}, nil
}

func (l *Loop) alarm(at tp, r ruling, found stored, log standing) {
	l.log.Error("stream position does not fit its log", "stage", l.cfg.Stage, "topic", at.topic, "partition", at.partition,
		"alarm", r.alarm, "position", found.next, "log_start", log.start, "log_end", log.end, "missed", r.missed)
	if m := l.deps.Metrics; m != nil {
		m.alarms.WithLabelValues(l.cfg.Stage, r.alarm).Inc()
	}
}

// forgetGauges drops what this process said of partitions that are no longer its
// own: their new owner speaks for them, and a stale 1 would alarm for ever.
func (l *Loop) forgetGauges(ended map[tp]*worker) {
	m := l.deps.Metrics
	if m == nil {
		return
	}
	for at := range ended {
		m.stopped.DeleteLabelValues(l.cfg.Stage, at.topic, fmt.Sprint(at.partition))
		m.behind.DeleteLabelValues(l.cfg.Stage, at.topic, fmt.Sprint(at.partition))
	}
}

func (l *Loop) setStopped(at tp, stopped bool) {
	m := l.deps.Metrics
	if m == nil {
		return
	}
	v := 0.0
	if stopped {
		v = 1
	}
	m.stopped.WithLabelValues(l.cfg.Stage, at.topic, fmt.Sprint(at.partition)).Set(v)
}

package rail

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// errNoAnswer says that the cluster left something out of its answer.
var errNoAnswer = errors.New("the cluster did not answer for it")

// start is where a partition begins under a new epoch.
type start struct {
	next    int64
	epoch   int64
	topicID [16]byte
}

// takeOver raises the epochs of partitions and finds where each starts: the
// position in PostgreSQL, else the group's commit, else the log's start. A log
// with another id, or one that ends before the position, was lost: it is read
// from its start, and the rows of the jobs absorb the repeats. One that begins
// after the position has lost records; their jobs are found by the reconciler,
// since the rows, not the records, are what a rail owes.
func (w *Worker) takeOver(ctx context.Context, committed map[int32]int64) (map[int32]start, error) {
	topic := w.deps.Kafka.Topic(w.topic)
	details, err := w.adm.ListTopics(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("describe topic %s: %w", topic, err)
	}
	begins, err := w.adm.ListStartOffsets(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("list log starts: %w", err)
	}
	ends, err := w.adm.ListEndOffsets(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("list log ends: %w", err)
	}
	d, ok := details[topic]
	if !ok || d.Err != nil {
		return nil, fmt.Errorf("describe topic %s: %w", topic, cmp.Or(d.Err, errNoAnswer))
	}
	partitions := make([]int32, 0, len(committed))
	for p := range committed {
		partitions = append(partitions, p)
	}
	slices.Sort(partitions)
	starts := make(map[int32]start, len(partitions))
	err = pgx.BeginFunc(ctx, w.deps.Pool, func(tx pgx.Tx) error {
		for _, p := range partitions {
			begin, ok1 := begins.Lookup(topic, p)
			end, ok2 := ends.Lookup(topic, p)
			if !ok1 || !ok2 || begin.Err != nil || end.Err != nil {
				return fmt.Errorf("offsets of %s/%d: %w", topic, p, cmp.Or(errors.Join(begin.Err, end.Err), errNoAnswer))
			}
			s, err := w.takeOverOne(ctx, tx, p, committed[p], begin.Offset, end.Offset, d.ID)
			if err != nil {
				return err
			}
			starts[p] = s
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("take over %d partitions: %w", len(partitions), err)
	}
	return starts, nil
}

func (w *Worker) takeOverOne(ctx context.Context, tx pgx.Tx, p int32, committed, begin, end int64, id [16]byte) (start, error) {
	const raise = `INSERT INTO core.stream_positions AS p (stage, topic, partition, topic_id, epoch, owner, next_offset)
VALUES ($1, $2, $3, $4, 1, $5, 0)
ON CONFLICT (stage, topic, partition) DO UPDATE SET epoch = p.epoch + 1, owner = EXCLUDED.owner, updated_at = now()
RETURNING epoch, next_offset, topic_id, xmax = 0`
	var s start
	var next int64
	var found [16]byte
	var fresh bool
	if err := tx.QueryRow(ctx, raise, w.stage, w.topic, p, id, w.cfg.Owner).Scan(&s.epoch, &next, &found, &fresh); err != nil {
		return s, fmt.Errorf("raise the epoch of %s/%d: %w", w.topic, p, err)
	}
	s.topicID = id
	alarm := ""
	switch {
	case fresh && committed >= begin && committed <= end:
		s.next = committed
	case fresh:
		s.next = begin
	case found != id:
		s.next, alarm = begin, "recreated"
	case next > end:
		s.next, alarm = begin, "truncated"
	case next < begin:
		s.next, alarm = begin, "missed"
	default:
		s.next = next
	}
	if alarm != "" {
		w.log.Error("rail's position does not fit its log", "partition", p, "alarm", alarm, "position", next, "log_start", begin, "log_end", end)
		if m := w.deps.Metrics; m != nil {
			m.alarms.WithLabelValues(w.cfg.Channel, w.cfg.Rail, alarm).Inc()
		}
	}
	const set = `UPDATE core.stream_positions SET next_offset = $4, topic_id = $5 WHERE stage = $1 AND topic = $2 AND partition = $3`
	if _, err := tx.Exec(ctx, set, w.stage, w.topic, p, s.next, id); err != nil {
		return s, fmt.Errorf("set the position of %s/%d: %w", w.topic, p, err)
	}
	return s, nil
}

// keepPositions moves positions forward where the epoch is still ours.
func (w *Worker) keepPositions(ctx context.Context, marks []mark) error {
	n := len(marks)
	partitions, epochs, nexts := make([]int32, n), make([]int64, n), make([]int64, n)
	for i, m := range marks {
		partitions[i], epochs[i], nexts[i] = m.win.partition, m.win.epoch, m.next
	}
	const sql = `UPDATE core.stream_positions p SET next_offset = u.n, updated_at = now()
FROM unnest($3::int[], $4::bigint[], $5::bigint[]) AS u(p, e, n)
WHERE p.stage = $1 AND p.topic = $2 AND p.partition = u.p AND p.epoch = u.e AND p.next_offset < u.n`
	if _, err := w.deps.Pool.Exec(ctx, sql, w.stage, w.topic, partitions, epochs, nexts); err != nil {
		return fmt.Errorf("keep the positions of %s: %w", w.stage, err)
	}
	return nil
}

// jitter spreads a wait over [d/2, d].
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// fullJitter spreads a wait over [0, d].
func fullJitter(d time.Duration) time.Duration { return rand.N(d + 1) }

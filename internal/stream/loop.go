package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/softcrum/carril/internal/db/streamdb"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/pause"
)

// fetchBytes bounds one answer of a broker; the client holds one of each.
const fetchBytes = 8 << 20

// errRetake asks for a fresh take-over of a partition that is still ours.
var errRetake = errors.New("take the partition over again")

// Loop runs a stage over its topics. Make it with New, call Run once.
type Loop struct {
	cfg  Config
	deps Deps
	log  *slog.Logger
	cl   *kgo.Client
	adm  *kadm.Client

	ready     chan struct{}
	readyOnce sync.Once

	// Of the polling goroutine alone:
	size  int  // bytes of a record, the mean of late
	renew bool // the client is to be made anew

	mu       sync.Mutex
	workers  map[tp]*worker
	retakes  map[tp]time.Time // still assigned, to be taken over again at a time
	wakePoll context.CancelFunc
}

// New makes the loop and its Kafka client; it does not connect yet.
func New(cfg Config, deps Deps) (*Loop, error) {
	l := &Loop{cfg: cfg.withDefaults(), deps: deps, log: deps.Log,
		ready: make(chan struct{}), workers: map[tp]*worker{}, retakes: map[tp]time.Time{}, wakePoll: func() {}}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if err := l.connect(); err != nil {
		return nil, err
	}
	return l, nil
}

// connect makes a client of the group.
func (l *Loop) connect() error {
	cfg, deps := l.cfg, l.deps
	opts, err := deps.Kafka.Opts()
	if err != nil {
		return err
	}
	topics := make([]string, len(cfg.Topics))
	for i, t := range cfg.Topics {
		topics[i] = deps.Kafka.Topic(t)
	}
	opts = append(opts,
		kgo.ConsumerGroup(deps.Kafka.Group(cfg.Stage)),
		kgo.ConsumeTopics(topics...),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.SessionTimeout(l.cfg.Session),
		kgo.HeartbeatInterval(l.cfg.Heartbeat),
		kgo.RebalanceTimeout(60*time.Second),
		kgo.BlockRebalanceOnPoll(),
		kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(time.Second),
		kgo.FetchMaxBytes(fetchBytes), // what lies in the client, before any worker's bound
		kgo.AdjustFetchOffsetsFn(l.adjust),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) { l.markReady() }),
		kgo.OnPartitionsRevoked(l.revoked),
		kgo.OnPartitionsLost(l.lost),
	)
	if cfg.InstanceID != "" {
		opts = append(opts, kgo.InstanceID(cfg.InstanceID))
	}
	if deps.Hook != nil {
		opts = append(opts, kgo.WithHooks(deps.Hook))
	}
	opts = append(opts, kafka.Made(func(cl *kgo.Client) { l.cl, l.adm = cl, kadm.NewClient(cl) }))
	if _, err = kgo.NewClient(append(opts, deps.KgoExtra...)...); err != nil {
		return fmt.Errorf("make the consumer of stage %s: %w", cfg.Stage, err)
	}
	return nil
}

// Ready is closed when the loop has joined its group.
func (l *Loop) Ready() <-chan struct{} { return l.ready }

func (l *Loop) markReady() { l.readyOnce.Do(func() { close(l.ready) }) }

// Run consumes until ctx ends; then it finishes what is in hand, commits and
// leaves the group.
func (l *Loop) Run(ctx context.Context) error {
	for {
		l.consume(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err := l.connect(); err != nil {
			return err
		}
	}
}

// consume polls until ctx ends, or until the client is of no more use: it never
// believes in a topic that was made again under its name.
func (l *Loop) consume(ctx context.Context) {
	var commits sync.WaitGroup
	cctx, stopCommits := context.WithCancel(context.Background())
	commits.Go(func() { l.commitForLag(cctx) })
	l.renew = false
	for ctx.Err() == nil && !l.renew {
		l.pollOnce(ctx)
		if apart := l.cfg.pollsApart(); apart > 0 { // nothing is fetched meanwhile: the next answer holds what gathers
			pause.For(ctx, apart)
		}
	}
	l.end(l.all(), l.cfg.Drain, !l.renew)
	stopCommits()
	commits.Wait()
	l.cl.CloseAllowingRebalance()
}

// pollsApart is how long the loop rests between two polls where all of its topics'
// records may gather: a fetch for each of them would cost more than they do.
func (c Config) pollsApart() time.Duration {
	if len(c.Topics) == 0 {
		return 0
	}
	least := c.Gaps[c.Topics[0]]
	for _, t := range c.Topics {
		least = min(least, c.Gaps[t])
	}
	return least / 5
}

func (l *Loop) pollOnce(ctx context.Context) {
	pctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l.mu.Lock()
	l.wakePoll = cancel
	l.mu.Unlock()
	if l.retakeDue(ctx); l.renew {
		return
	}
	fetches := l.cl.PollRecords(pctx, l.deps.Memory.poll(l.size))
	defer l.cl.AllowRebalance()
	if !fetches.Empty() {
		l.deps.Hook.at(PointPolled)
	}
	fetches.EachError(func(topic string, partition int32, err error) { l.fetchFailed(topic, partition, err) })
	l.measure(fetches)
	fetches.EachPartition(func(f kgo.FetchTopicPartition) {
		if len(f.Records) == 0 {
			return
		}
		at := tp{l.deps.Kafka.Logical(f.Topic), f.Partition}
		if w := l.worker(at); w != nil && w.push(f.Records, f.HighWatermark) {
			l.pause(w)
		}
	})
}

// measure keeps the mean size of the records that came lately.
func (l *Loop) measure(fetches kgo.Fetches) {
	n, bytes := 0, 0
	fetches.EachRecord(func(r *kgo.Record) { n, bytes = n+1, bytes+recordBytes(r) })
	if n > 0 {
		l.size = (l.size + bytes/n) / 2
	}
}

// fetchFailed deals with a partition that cannot be fetched. An offset outside
// the log, and a log that is not the one we knew, are classified by a fresh
// take-over; run-time errors alone do not say which it is.
func (l *Loop) fetchFailed(topic string, partition int32, err error) {
	var loss *kgo.ErrDataLoss
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, kgo.ErrClientClosed):
	case errors.Is(err, kerr.OffsetOutOfRange), errors.As(err, &loss), errors.Is(err, kerr.UnknownTopicID),
		errors.Is(err, kerr.InconsistentTopicID), errors.Is(err, kerr.UnknownTopicOrPartition):
		at := tp{l.deps.Kafka.Logical(topic), partition}
		if w := l.worker(at); w != nil && !w.stopped && !w.ended() { // the error comes back thousands of times a second
			l.log.Warn("partition cannot be fetched", "stage", l.cfg.Stage, "topic", topic, "partition", partition, "error", err)
			l.cl.PauseFetchPartitions(map[string][]int32{topic: {partition}})
			w.kill()
			l.scheduleRetake(at, 500*time.Millisecond)
		}
	default:
		l.log.Warn("fetch failed", "stage", l.cfg.Stage, "topic", topic, "partition", partition, "error", err)
	}
}

func (l *Loop) worker(at tp) *worker {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.workers[at]
}

// adjust takes over the partitions that the group newly gave us and says where
// each starts. It waits while the database is away: an error from here would
// lose all of the member's partitions.
func (l *Loop) adjust(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	defer l.markReady()
	var tps []tp
	for topic, ps := range offsets {
		for p := range ps {
			tps = append(tps, tp{l.deps.Kafka.Logical(topic), p})
		}
	}
	if len(tps) == 0 {
		return offsets, nil
	}
	claims, err := l.takeOverPatiently(ctx, tps)
	if err != nil {
		return nil, err
	}
	for at, c := range claims {
		l.install(at, c)
		offsets[l.deps.Kafka.Topic(at.topic)][at.partition] = kgo.NewOffset().At(c.next)
	}
	return offsets, nil
}

func (l *Loop) takeOverPatiently(ctx context.Context, tps []tp) (map[tp]claim, error) {
	backoff := l.cfg.Backoff
	for {
		tctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		claims, err := l.takeOver(tctx, tps)
		cancel()
		if err == nil {
			return claims, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		l.log.Warn("take-over waits", "stage", l.cfg.Stage, "partitions", len(tps), "error", err, "backoff", backoff)
		if !pause.For(ctx, jitter(backoff)) {
			return nil, ctx.Err()
		}
		backoff = min(2*backoff, 2*time.Second)
	}
}

// install starts the worker of a claim, in place of an older one.
func (l *Loop) install(at tp, c claim) {
	if old := l.worker(at); old != nil {
		old.kill()
		old.wait(0)
	}
	part := map[string][]int32{l.deps.Kafka.Topic(at.topic): {at.partition}}
	if c.stopped {
		l.cl.PauseFetchPartitions(part)
	} else {
		l.cl.ResumeFetchPartitions(part)
	}
	w := newWorker(l, at, c)
	l.mu.Lock()
	l.workers[at] = w
	delete(l.retakes, at)
	l.mu.Unlock()
}

// worked hears of a worker that ended by itself: fenced while the group may
// still count us as owner, released by an operator, or refused even as dead
// letters. It is taken over again, with jitter, if it is still ours then.
func (l *Loop) worked(w *worker, err error) {
	after := 100*time.Millisecond + jitter(time.Second)
	switch {
	case errors.Is(err, errRetake):
		after = 0
	case errors.Is(err, errFenced):
		if m := l.deps.Metrics; m != nil {
			m.fenced.WithLabelValues(l.cfg.Stage).Inc()
		}
		l.log.Warn("partition was taken over by another", "stage", l.cfg.Stage, "topic", w.tp.topic, "partition", w.tp.partition)
	default:
		after = 5 * time.Second
		l.log.Error("partition stands still and is tried again", "stage", l.cfg.Stage, "topic", w.tp.topic, "partition", w.tp.partition, "error", err)
	}
	l.scheduleRetake(w.tp, after)
}

func (l *Loop) scheduleRetake(at tp, after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, owned := l.workers[at]; !owned {
		return
	}
	if _, planned := l.retakes[at]; planned {
		return
	}
	l.retakes[at] = time.Now().Add(after)
	time.AfterFunc(after, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.wakePoll()
	})
}

// retakeDue takes over again what is due. It runs in the polling goroutine, so
// that no record fetched for the old place can come after the new one.
func (l *Loop) retakeDue(ctx context.Context) {
	l.mu.Lock()
	var due []tp
	for at, when := range l.retakes {
		if !time.Now().Before(when) {
			due = append(due, at)
		}
	}
	l.mu.Unlock()
	for _, at := range due {
		tctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		claims, err := l.takeOver(tctx, []tp{at})
		cancel()
		if err != nil {
			l.log.Warn("take-over waits", "stage", l.cfg.Stage, "topic", at.topic, "partition", at.partition, "error", err)
			l.mu.Lock()
			delete(l.retakes, at)
			l.mu.Unlock()
			l.scheduleRetake(at, time.Second)
			continue
		}
		old := l.worker(at)
		if old == nil { // revoked meanwhile: the next owner raises the epoch again
			continue
		}
		c := claims[at]
		if c.topicID != old.topicID {
			l.renew = true
			return
		}
		l.install(at, c)
		l.cl.SetOffsets(map[string]map[int32]kgo.EpochOffset{
			l.deps.Kafka.Topic(at.topic): {at.partition: {Epoch: -1, Offset: c.next}},
		})
	}
}

func (l *Loop) all() []tp {
	l.mu.Lock()
	defer l.mu.Unlock()
	tps := make([]tp, 0, len(l.workers))
	for at := range l.workers {
		tps = append(tps, at)
	}
	return tps
}

func (l *Loop) revoked(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
	l.end(l.logical(parts), l.cfg.Drain, true)
}

// lost ends workers whose partitions somebody else may already own: the fences
// keep what they still try from having effect, and nothing is committed.
func (l *Loop) lost(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
	l.end(l.logical(parts), time.Second, false)
}

func (l *Loop) logical(parts map[string][]int32) []tp {
	var tps []tp
	for topic, ps := range parts {
		for _, p := range ps {
			tps = append(tps, tp{l.deps.Kafka.Logical(topic), p})
		}
	}
	return tps
}

// end stops the workers of partitions, waits for them, commits where the
// partitions are still ours, and forgets them. A pause outlives a rebalance, so
// it is lifted here.
func (l *Loop) end(tps []tp, drain time.Duration, commit bool) {
	l.mu.Lock()
	ending := make(map[tp]*worker, len(tps))
	for _, at := range tps {
		if w := l.workers[at]; w != nil {
			ending[at] = w
			w.stop()
		}
		delete(l.workers, at)
		delete(l.retakes, at)
	}
	l.mu.Unlock()
	if len(ending) == 0 {
		return
	}
	offsets := map[string]map[int32]kgo.EpochOffset{}
	deadline := time.Now().Add(drain)
	for at, w := range ending {
		w.wait(max(0, time.Until(deadline)))
		topic := l.deps.Kafka.Topic(at.topic)
		l.cl.ResumeFetchPartitions(map[string][]int32{topic: {at.partition}})
		addOffset(offsets, topic, at.partition, w.position())
	}
	l.forgetGauges(ending)
	l.deps.Hook.at(PointEnded)
	if commit {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		l.commit(ctx, offsets)
	}
}

func addOffset(offsets map[string]map[int32]kgo.EpochOffset, topic string, partition int32, next int64) {
	if offsets[topic] == nil {
		offsets[topic] = map[int32]kgo.EpochOffset{}
	}
	offsets[topic][partition] = kgo.EpochOffset{Epoch: -1, Offset: next}
}

// commitForLag commits to Kafka what has moved, once at assignment too, so that
// the group's lag can be read by anybody.
func (l *Loop) commitForLag(ctx context.Context) {
	tick := time.NewTicker(l.cfg.CommitEvery)
	defer tick.Stop()
	last := map[tp]int64{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		offsets, moved := map[string]map[int32]kgo.EpochOffset{}, map[tp]int64{}
		l.mu.Lock()
		for at, w := range l.workers {
			if next := w.position(); !w.stopped && last[at] != next+1 {
				moved[at] = next + 1
				addOffset(offsets, l.deps.Kafka.Topic(at.topic), at.partition, next)
			}
		}
		l.mu.Unlock()
		if len(moved) > 0 && l.commit(ctx, offsets) {
			for at, n := range moved {
				last[at] = n
			}
		}
	}
}

// commit is best effort: positions live in PostgreSQL.
func (l *Loop) commit(ctx context.Context, offsets map[string]map[int32]kgo.EpochOffset) bool {
	ok := true
	l.cl.CommitOffsetsSync(ctx, offsets, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		if err != nil {
			ok = false
			return
		}
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				ok = ok && p.ErrorCode == 0
			}
		}
	})
	return ok
}

// pause stops fetching a full worker's partition, unless the worker has made
// room (and resumed) in between.
func (l *Loop) pause(w *worker) {
	l.cl.PauseFetchPartitions(map[string][]int32{l.deps.Kafka.Topic(w.tp.topic): {w.tp.partition}})
	if !w.full() {
		l.resume(w.tp)
	}
}

func (l *Loop) resume(at tp) {
	l.cl.ResumeFetchPartitions(map[string][]int32{l.deps.Kafka.Topic(at.topic): {at.partition}})
}

// waitForOperator stands still until the partition's stop is lifted.
func (w *worker) waitForOperator(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.soft:
			return nil
		case <-tick.C:
		}
		stopped, err := streamdb.New(w.l.deps.Pool).PositionStopped(ctx, streamdb.PositionStoppedParams{
			Stage: w.l.cfg.Stage, Topic: w.tp.topic, Partition: w.tp.partition})
		if err == nil && !stopped {
			return errRetake
		}
	}
}

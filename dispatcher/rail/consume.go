package rail

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/pause"
)

func (w *Worker) connect() error {
	opts, err := w.deps.Kafka.Opts()
	if err != nil {
		return err
	}
	opts = append(opts,
		kgo.ConsumerGroup(w.group()),
		kgo.ConsumeTopics(w.deps.Kafka.Topic(w.topic)),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.SessionTimeout(w.cfg.Session),
		kgo.HeartbeatInterval(w.cfg.Heartbeat),
		kgo.RebalanceTimeout(time.Minute),
		kgo.BlockRebalanceOnPoll(),
		kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchMaxWait(500*time.Millisecond), // a resumed partition waits for the fetch in flight
		kgo.AdjustFetchOffsetsFn(w.adjust),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) { w.markReady() }),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
			w.release(parts[w.deps.Kafka.Topic(w.topic)], true)
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
			w.release(parts[w.deps.Kafka.Topic(w.topic)], false)
		}),
	)
	if w.cfg.InstanceID != "" {
		opts = append(opts, kgo.InstanceID(w.cfg.InstanceID))
	}
	opts = append(opts, kafka.Made(func(cl *kgo.Client) { w.cl, w.adm = cl, kadm.NewClient(cl) }))
	if _, err = kgo.NewClient(opts...); err != nil {
		return fmt.Errorf("make the consumer of rail %s: %w", w.stage, err)
	}
	return nil
}

// Group names a rail's consumer group, without the deployment's prefix.
func Group(channel, rail string) string { return "dispatch." + channel + "." + rail }

func (w *Worker) group() string { return w.deps.Kafka.Group(Group(w.cfg.Channel, w.cfg.Rail)) }

func (w *Worker) markReady() { w.readyOnce.Do(func() { close(w.ready) }) }

// pollOnce takes no more than there is room for; between the poll and the
// permission to rebalance it waits for nothing.
func (w *Worker) pollOnce(ctx context.Context) {
	room := w.room()
	if room == 0 { // every partition is full or there is none: only the group's life goes on
		pctx, cancel := context.WithTimeout(ctx, w.cfg.CommitEvery)
		defer cancel()
		fetches := w.cl.PollRecords(pctx, 1)
		defer w.cl.AllowRebalance()
		w.accept(fetches)
		return
	}
	fetches := w.cl.PollRecords(ctx, room)
	defer w.cl.AllowRebalance()
	w.accept(fetches)
}

// room is how many records any one open partition can still take.
func (w *Worker) room() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	room := 0
	for _, win := range w.windows {
		if n := w.cfg.Window - win.open; !win.paused && n > 0 && (room == 0 || n < room) {
			room = n
		}
	}
	return room
}

func (w *Worker) accept(fetches kgo.Fetches) {
	fetches.EachError(func(_ string, partition int32, err error) { w.fetchFailed(partition, err) })
	fetches.EachPartition(func(f kgo.FetchTopicPartition) {
		if len(f.Records) == 0 {
			return
		}
		w.mu.Lock()
		win := w.windows[f.Partition]
		if win == nil {
			w.mu.Unlock()
			return
		}
		for _, r := range f.Records {
			if r.Offset < win.next { // fetched before a take-over moved us
				continue
			}
			e := win.receive(r.Offset, len(r.Value)+len(r.Key))
			w.intake = append(w.intake, &arrival{record: r, entry: e})
		}
		full := !win.paused && (win.open >= w.cfg.Window || win.bytes >= w.cfg.WindowBytes)
		if full {
			win.paused = true
		}
		w.mu.Unlock()
		if full {
			w.pause(f.Partition)
		}
		signal(w.arrived)
	})
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (w *Worker) parts(partition int32) map[string][]int32 {
	return map[string][]int32{w.deps.Kafka.Topic(w.topic): {partition}}
}

func (w *Worker) pause(partition int32) {
	w.cl.PauseFetchPartitions(w.parts(partition))
	w.mu.Lock()
	win := w.windows[partition]
	still := win != nil && win.paused
	w.mu.Unlock()
	if !still { // completions made room in between
		w.cl.ResumeFetchPartitions(w.parts(partition))
	}
}

// finish takes a record out of its window, and lets the partition on when it is
// half empty.
func (w *Worker) finish(e *entry) {
	w.mu.Lock()
	win := e.w
	win.complete(e)
	resume := win.paused && !win.closed && win.open <= w.cfg.Window/2 && win.bytes <= w.cfg.WindowBytes/2
	if resume {
		win.paused = false
	}
	w.mu.Unlock()
	if resume {
		w.cl.ResumeFetchPartitions(w.parts(win.partition))
	}
}

// fetchFailed has a partition taken over anew where its log is not what we
// knew: the take-over classifies it by the log's start and end.
func (w *Worker) fetchFailed(partition int32, err error) {
	var loss *kgo.ErrDataLoss
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, kgo.ErrClientClosed):
	case errors.Is(err, kerr.OffsetOutOfRange), errors.As(err, &loss), errors.Is(err, kerr.UnknownTopicID),
		errors.Is(err, kerr.InconsistentTopicID), errors.Is(err, kerr.UnknownTopicOrPartition):
		w.log.Warn("partition cannot be fetched", "partition", partition, "error", err)
		w.retake(partition)
	default:
		w.log.Warn("fetch failed", "partition", partition, "error", err)
	}
}

// retake takes a partition over again in the polling goroutine, so that nothing
// fetched for the old place comes after the new one.
func (w *Worker) retake(partition int32) {
	w.mu.Lock()
	_, ours := w.windows[partition]
	w.mu.Unlock()
	if !ours {
		return
	}
	ctx, cancel := context.WithTimeout(w.work, 5*time.Second)
	defer cancel()
	starts, err := w.takeOver(ctx, map[int32]int64{partition: -1})
	if err != nil {
		w.log.Warn("take-over waits", "partition", partition, "error", err)
		return // the fetch fails again and brings us back here
	}
	w.close([]int32{partition})
	w.open(starts)
	w.cl.SetOffsets(map[string]map[int32]kgo.EpochOffset{w.deps.Kafka.Topic(w.topic): {partition: {Epoch: -1, Offset: starts[partition].next}}})
}

// adjust says where newly assigned partitions start. It waits while the
// database is away: an error from here would lose all of the member's
// partitions.
func (w *Worker) adjust(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	defer w.markReady()
	mine := offsets[w.deps.Kafka.Topic(w.topic)]
	if len(mine) == 0 {
		return offsets, nil
	}
	committed := make(map[int32]int64, len(mine))
	for p, o := range mine {
		committed[p] = o.EpochOffset().Offset // below 0 where the group never committed
	}
	backoff := 50 * time.Millisecond
	for {
		tctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		starts, err := w.takeOver(tctx, committed)
		cancel()
		if err == nil {
			w.open(starts)
			for p, s := range starts {
				mine[p] = kgo.NewOffset().At(s.next)
			}
			return offsets, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		w.log.Warn("take-over waits", "partitions", len(mine), "error", err, "backoff", backoff)
		if !pause.For(ctx, jitter(backoff)) {
			return nil, ctx.Err()
		}
		backoff = min(2*backoff, 2*time.Second)
	}
}

// open makes the windows of partitions that were taken over.
func (w *Worker) open(starts map[int32]start) {
	for p, s := range starts {
		win := newWindow(w.topic, p, s.next)
		win.epoch, win.topicID = s.epoch, s.topicID
		w.mu.Lock()
		w.windows[p] = win
		w.mu.Unlock()
		w.cl.ResumeFetchPartitions(w.parts(p)) // a pause outlives a rebalance
	}
}

func (w *Worker) all() []int32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	ps := make([]int32, 0, len(w.windows))
	for p := range w.windows {
		ps = append(ps, p)
	}
	return ps
}

// release gives partitions up: nothing more is handed out, what is in flight
// may finish, and where they are still ours the watermark is committed.
func (w *Worker) release(partitions []int32, ours bool) {
	if len(partitions) == 0 {
		return
	}
	w.mu.Lock()
	going := make(map[int32]*window, len(partitions))
	for _, p := range partitions {
		if win := w.windows[p]; win != nil {
			going[p] = win
		}
	}
	w.ring.takeIf(func(it *item) bool { return going[it.entry.w.partition] == it.entry.w })
	w.mu.Unlock()
	dctx, done := context.WithTimeout(context.Background(), w.cfg.Drain)
	for _, win := range going {
		w.drain(dctx, win)
	}
	done()
	if ours {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		w.commit(ctx, w.marks(going))
		cancel()
	}
	w.close(partitions)
}

// drain waits until nothing of a window is in a sender's hands, or ctx ends.
func (w *Worker) drain(ctx context.Context, win *window) {
	for {
		w.mu.Lock()
		flying := win.flying
		w.mu.Unlock()
		if flying == 0 {
			return
		}
		select {
		case <-win.idle:
		case <-ctx.Done():
			return
		}
	}
}

// close forgets the windows of partitions; completions that come later count
// for nothing.
func (w *Worker) close(partitions []int32) {
	w.mu.Lock()
	for _, p := range partitions {
		win := w.windows[p]
		if win == nil {
			continue
		}
		win.closed = true
		delete(w.windows, p)
		w.ring.takeIf(func(it *item) bool { return it.entry.w == win })
	}
	w.mu.Unlock()
	for _, p := range partitions {
		w.cl.ResumeFetchPartitions(w.parts(p))
	}
}

// commitLoop commits what moved, and once after an assignment: a group that
// never committed looks like one with an infinite backlog.
func (w *Worker) commitLoop(ctx context.Context) {
	tick := time.NewTicker(w.cfg.CommitEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		w.mu.Lock()
		windows := make(map[int32]*window, len(w.windows))
		for p, win := range w.windows {
			windows[p] = win
		}
		w.mu.Unlock()
		if marks := w.marks(windows); len(marks) > 0 {
			cctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			w.commit(cctx, marks)
			cancel()
		}
	}
}

// mark is a window's watermark at one moment.
type mark struct {
	win  *window
	next int64
}

// marks gives the watermarks that are not committed yet.
func (w *Worker) marks(windows map[int32]*window) []mark {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []mark
	for _, win := range windows {
		if next := win.watermark(); next != win.committed {
			out = append(out, mark{win, next})
		}
	}
	return out
}

// commit keeps watermarks: in PostgreSQL, where a restart begins, and in Kafka,
// where lag is read. Both are hints: the rows of the jobs are the truth.
func (w *Worker) commit(ctx context.Context, marks []mark) {
	if len(marks) == 0 {
		return
	}
	if err := w.keepPositions(ctx, marks); err != nil && ctx.Err() == nil {
		w.log.Warn("positions are not kept", "error", err)
	}
	offsets := map[int32]kgo.EpochOffset{}
	for _, m := range marks {
		offsets[m.win.partition] = kgo.EpochOffset{Epoch: -1, Offset: m.next}
	}
	ok := false
	w.cl.CommitOffsetsSync(ctx, map[string]map[int32]kgo.EpochOffset{w.deps.Kafka.Topic(w.topic): offsets},
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
			ok = err == nil && resp != nil
			if !ok {
				return
			}
			for _, t := range resp.Topics {
				for _, p := range t.Partitions {
					ok = ok && p.ErrorCode == 0
				}
			}
		})
	if !ok {
		return
	}
	w.mu.Lock()
	for _, m := range marks {
		m.win.committed = m.next
	}
	w.mu.Unlock()
}

package stream

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/outbox"
)

// tp names a partition, with the topic's logical name.
type tp struct {
	topic     string
	partition int32
}

// claim is what a take-over gives: who we are and where we stand.
type claim struct {
	epoch   int64
	topicID [16]byte
	next    int64
	stopped bool
	events  outbox.Lane
	derived outbox.Lane
}

// worker applies one partition's records while this process owns it.
type worker struct {
	l  *Loop
	tp tp
	claim

	pubs []*outbox.Publisher

	killed atomic.Bool
	cancel context.CancelFunc // ends everything, the transaction in hand included
	soft   chan struct{}      // closed: finish what is in hand, take no more
	once   sync.Once
	done   chan struct{}

	mu     sync.Mutex
	queue  []*kgo.Record
	bytes  int
	hwm    int64
	since  time.Time // when the queue's oldest record came
	began  time.Time // when the last batch was cut off the queue
	paused bool
	arrive chan struct{}
	held   held // of the process's memory: the queue, and what is in hand
}

func newWorker(l *Loop, at tp, c claim) *worker {
	ctx, cancel := context.WithCancel(context.Background())
	w := &worker{
		l: l, tp: at, claim: c, cancel: cancel,
		soft: make(chan struct{}), done: make(chan struct{}), arrive: make(chan struct{}, 1), held: l.deps.Memory.join(),
	}
	deps := outbox.PublisherDeps{Pool: l.deps.Pool, Sink: l.deps.Sink, Topic: l.deps.Kafka.Topic, Log: l.log}
	if l.deps.Events != nil {
		deps.Source = l.deps.Events
		w.pubs = append(w.pubs, outbox.NewPublisher(c.events, outbox.PublisherConfig{}, deps))
	}
	deps.Source = outbox.TableSource{Pool: l.deps.Pool}
	w.pubs = append(w.pubs, outbox.NewPublisher(c.derived, outbox.PublisherConfig{}, deps))
	go w.run(ctx)
	return w
}

// run is the worker's life: relays beside, batches in front.
func (w *worker) run(ctx context.Context) {
	defer close(w.done)
	defer w.held.leave()
	var relays sync.WaitGroup
	rctx, stopRelays := context.WithCancel(ctx)
	for _, p := range w.pubs {
		relays.Go(func() { _ = p.Run(rctx) }) // it ends by its context, or fenced as the batches will be
	}
	err := w.applyAll(ctx)
	if err == nil { // revoked in good order: what is committed should also be published
		dctx, done := context.WithTimeout(ctx, w.l.cfg.Drain/2)
		for _, p := range w.pubs {
			_ = p.Drain(dctx) // what is left the next owner publishes
		}
		done()
	}
	stopRelays()
	relays.Wait()
	if err != nil && ctx.Err() == nil {
		w.l.worked(w, err)
	}
}

// applyAll takes and applies batches until it is told to stop (nil), its
// context ends, or it is fenced.
func (w *worker) applyAll(ctx context.Context) error {
	if w.stopped {
		return w.waitForOperator(ctx)
	}
	actx, cancel := context.WithCancel(ctx)
	var next *ahead
	defer func() {
		cancel()
		if next != nil {
			next.take().front.rollback()
		}
	}()
	for {
		var p prepared
		if next == nil {
			records, err := w.take(ctx)
			if err != nil || records == nil {
				return err
			}
			p = w.prepare(ctx, records)
		} else {
			p, next = next.take(), nil
			if w.stopping() {
				p.front.rollback()
				return nil // the next owner reads them again
			}
		}
		if p.err != nil {
			return p.err
		}
		next = w.lookAhead(actx)
		if err := w.applyRange(ctx, p.good, lead{p.ready, p.front, next}, p.bad, p.last); err != nil {
			return err
		}
		w.held.give(p.bytes)
	}
}

func (w *worker) stopping() bool {
	select {
	case <-w.soft:
		return true
	default:
		return false
	}
}

// push hands records over from the poll; it reports whether the partition must
// be paused.
func (w *worker) push(records []*kgo.Record, hwm int64) (pause bool) {
	select {
	case <-w.done: // its successor fetches them again
		return false
	default:
	}
	w.mu.Lock()
	if len(w.queue) == 0 {
		w.since = time.Now()
	}
	w.queue = append(w.queue, records...)
	came := 0
	for _, r := range records {
		came += recordBytes(r)
	}
	w.bytes += came
	w.held.take(came)
	w.hwm = hwm
	pause = !w.paused && (w.bytes > w.l.cfg.BufferBytes || len(w.queue) > 4*w.l.cfg.CatchupRecords || w.held.tooMuch())
	w.paused = w.paused || pause
	w.mu.Unlock()
	select {
	case w.arrive <- struct{}{}:
	default:
	}
	return pause
}

// full says that the worker still wants its partition paused.
func (w *worker) full() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.paused
}

// take waits for a batch: at once when the log holds nothing more, else when
// it is full or has lingered. It gives nil when the worker is to stop.
func (w *worker) take(ctx context.Context) ([]*kgo.Record, error) {
	linger := time.NewTimer(time.Hour)
	defer linger.Stop()
	for {
		if w.stopping() {
			return nil, nil
		}
		records, wait := w.next(false)
		if records != nil {
			return records, nil
		}
		linger.Reset(wait)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-w.soft:
			return nil, nil
		case <-w.arrive:
		case <-linger.C:
		}
	}
}

// next cuts a batch off the queue if one is due (or only a full one), else says
// how long to wait.
func (w *worker) next(onlyFull bool) (batch []*kgo.Record, wait time.Duration) {
	cfg := w.l.cfg
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.unpause()
	for len(w.queue) > 0 && w.queue[0].Offset < w.claim.next { // fetched before a take-over moved us
		w.bytes -= recordBytes(w.queue[0])
		w.held.give(recordBytes(w.queue[0]))
		w.queue = w.queue[1:]
	}
	if len(w.queue) == 0 {
		return nil, time.Hour
	}
	limit := cfg.MaxRecords
	if w.hwm-w.queue[0].Offset > int64(cfg.MaxRecords) {
		limit = cfg.CatchupRecords
	}
	n, bytes := 0, 0
	for n < len(w.queue) && n < limit && (n == 0 || bytes+recordBytes(w.queue[n]) <= cfg.MaxBytes) {
		bytes += recordBytes(w.queue[n])
		n++
	}
	full := n == limit || n < len(w.queue)
	drained := w.queue[len(w.queue)-1].Offset+1 >= w.hwm
	if !full && onlyFull {
		return nil, time.Hour
	}
	if age := time.Since(w.since); !full && !drained && age < cfg.Linger {
		return nil, cfg.Linger - age
	}
	if apart := time.Since(w.began); !full && apart < cfg.Gaps[w.tp.topic] {
		return nil, cfg.Gaps[w.tp.topic] - apart
	}
	batch = w.queue[:n:n]
	w.queue = w.queue[n:]
	w.bytes -= bytes
	w.since = time.Now()
	w.began = w.since
	return batch, 0
}

// unpause fetches again where there is room. It is asked before every wait: what
// is in hand counts too, so that an empty queue alone is no reason.
func (w *worker) unpause() {
	if w.paused && w.bytes < w.l.cfg.BufferBytes/2 && len(w.queue) < 2*w.l.cfg.CatchupRecords && !w.held.stillMuch() {
		w.paused = false
		w.l.resume(w.tp)
	}
}

func recordBytes(r *kgo.Record) int { return len(r.Key) + len(r.Value) + 64 }

// stop asks the worker to end after the batch in hand; kill ends it now.
func (w *worker) stop() { w.once.Do(func() { close(w.soft) }) }

func (w *worker) kill() { w.killed.Store(true); w.stop(); w.cancel() }

// ended says that the worker was killed, or has ended by itself.
func (w *worker) ended() bool {
	select {
	case <-w.done:
		return true
	default:
		return w.killed.Load()
	}
}

// wait waits for the worker's end, killing it when drain has passed.
func (w *worker) wait(drain time.Duration) {
	t := time.NewTimer(drain)
	defer t.Stop()
	select {
	case <-w.done:
	case <-t.C:
		w.cancel()
		<-w.done
	}
	w.cancel()
}

// position is the next offset to apply, for the Kafka commit.
func (w *worker) position() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.claim.next
}

func (w *worker) moveTo(next int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.claim.next = next
	if m := w.l.deps.Metrics; m != nil {
		m.behind.WithLabelValues(w.l.cfg.Stage, w.tp.topic, fmt.Sprint(w.tp.partition)).Set(float64(max(0, w.hwm-next)))
	}
}

package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/db/streamdb"
	"github.com/softcrum/carril/internal/pause"
)

// Sink publishes records and gives an error for each that was not acknowledged.
type Sink interface {
	Publish(ctx context.Context, records []*kgo.Record) []error
}

// ClientSink publishes through a franz-go client.
type ClientSink struct{ Client *kgo.Client }

// Publish produces the records and waits for all of them.
func (s ClientSink) Publish(ctx context.Context, records []*kgo.Record) []error {
	errs := make([]error, len(records))
	var wg sync.WaitGroup
	wg.Add(len(records))
	for i, r := range records {
		s.Client.Produce(ctx, r, func(_ *kgo.Record, err error) {
			errs[i] = err
			wg.Done()
		})
	}
	wg.Wait()
	return errs
}

// PublisherConfig bounds a publisher; zero values take the defaults.
type PublisherConfig struct {
	Queue int // messages kept in memory after their commit; default 20,000. Beyond it they are read back
	// QueueBytes bounds the same in bytes of keys and values; default 4 MiB.
	QueueBytes int
	Page       int           // messages read and published at a time; default 1,000
	Poll       time.Duration // how often to look without being woken; default 5 s
	Backoff    time.Duration // after a failure, doubled up to 5 s; default 50 ms
	// Record is how far apart the cursor's moves are written: what a successor
	// publishes again is at most what went out in that time. Default 500 ms.
	Record time.Duration
}

func (c PublisherConfig) withDefaults() PublisherConfig {
	if c.Queue == 0 {
		c.Queue = 20_000
	}
	if c.QueueBytes == 0 {
		c.QueueBytes = 4 << 20
	}
	if c.Page == 0 {
		c.Page = 1_000
	}
	if c.Poll == 0 {
		c.Poll = 5 * time.Second
	}
	if c.Backoff == 0 {
		c.Backoff = 50 * time.Millisecond
	}
	if c.Record == 0 {
		c.Record = 500 * time.Millisecond
	}
	return c
}

// PublisherDeps is what a publisher works with.
type PublisherDeps struct {
	Pool   *pgxpool.Pool
	Sink   Sink
	Source Source
	Topic  func(name string) string // puts the deployment's prefix before a name
	Log    *slog.Logger
}

// Publisher is the relay of one lane. Its owner calls Run once, Offer or Wake
// after each commit, and ends Run through its context.
//
// Nobody waits for the cursor: messages go out one after the other, and the
// cursor follows in moves of its own. It serves a successor alone, who
// publishes again what lies between.
type Publisher struct {
	lane Lane
	cfg  PublisherConfig
	deps PublisherDeps

	wake chan struct{} // something was offered, or look
	sent chan struct{} // something was published that the cursor has not passed
	rush chan struct{} // the cursor is waited for

	mu       sync.Mutex
	queue    []Item
	bytes    int // of the queue
	overflow bool
	look     bool  // the table holds what was never offered
	last     int64 // highest sequence offered or published
	out      mark  // published
	cursor   int64 // recorded
	moved    chan struct{}

	moving sync.Mutex // one move of the cursor at a time
}

// mark is a place in a lane, with the partition predicate of what lies beyond.
type mark struct {
	seq int64
	at  time.Time
}

// NewPublisher makes the relay of a lane.
func NewPublisher(lane Lane, cfg PublisherConfig, deps PublisherDeps) *Publisher {
	return &Publisher{
		lane: lane, cfg: cfg.withDefaults(), deps: deps, wake: make(chan struct{}, 1), sent: make(chan struct{}, 1),
		rush: make(chan struct{}, 1), moved: make(chan struct{}),
	}
}

// Offer hands over what was just committed, in sequence order; it never blocks.
func (p *Publisher) Offer(items []Item) {
	if len(items) == 0 {
		return
	}
	p.mu.Lock()
	p.last = max(p.last, items[len(items)-1].Seq)
	size := itemsBytes(items)
	switch {
	case len(p.queue)+len(items) > p.cfg.Queue || len(p.queue) > 0 && p.bytes+size > p.cfg.QueueBytes:
		p.queue, p.bytes, p.overflow = nil, 0, true
	case !p.overflow:
		p.queue, p.bytes = append(p.queue, items...), p.bytes+size
	}
	p.mu.Unlock()
	signal(p.wake)
}

func itemsBytes(items []Item) (n int) {
	for _, it := range items {
		n += len(it.Key) + len(it.Value)
	}
	return n
}

// Wake says that something was committed which was not offered.
func (p *Publisher) Wake() {
	p.mu.Lock()
	p.look = true
	p.mu.Unlock()
	signal(p.wake)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Drain waits until everything offered so far is published and recorded.
func (p *Publisher) Drain(ctx context.Context) error {
	for {
		p.mu.Lock()
		done, moved := p.cursor >= p.last, p.moved
		p.mu.Unlock()
		if done {
			return nil
		}
		signal(p.rush)
		select {
		case <-ctx.Done():
			return fmt.Errorf("drain lane %d: %w", p.lane.ID, ctx.Err())
		case <-moved:
		}
	}
}

// Run first publishes what the predecessor left, then what is offered, until
// ctx ends or another owner takes the lane (ErrFenced).
func (p *Publisher) Run(ctx context.Context) error {
	backoff := p.cfg.Backoff
	for {
		err := p.run(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, ErrFenced):
			return err
		}
		p.deps.Log.Warn("outbox relay will try again", "lane", p.lane.ID, "error", err, "backoff", backoff)
		if !pause.For(ctx, backoff) {
			return ctx.Err()
		}
		backoff = min(2*backoff, 5*time.Second)
	}
}

// run relays until ctx ends or something fails; the cursor follows beside it.
func (p *Publisher) run(ctx context.Context) error {
	if err := p.load(ctx); err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(ctx)
	var keeper sync.WaitGroup
	keeper.Go(func() { fail(p.record(ctx)) })
	err := p.relay(ctx)
	fail(nil)
	keeper.Wait()
	if cause := context.Cause(ctx); errors.Is(cause, ErrFenced) {
		return cause
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = p.move(last) // saves the successor repeats, no more
	return err
}

// relay publishes what the table holds, then what is offered.
func (p *Publisher) relay(ctx context.Context) error {
	if err := p.recover(ctx); err != nil {
		return err
	}
	poll := time.NewTicker(p.cfg.Poll)
	defer poll.Stop()
	for {
		look := false
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.wake:
		case <-poll.C:
			look = true
		}
		items, asked := p.takeNext()
		if err := p.publish(ctx, items); err != nil {
			return err
		}
		if look || asked {
			if err := p.recover(ctx); err != nil {
				return err
			}
		}
	}
}

// takeNext gives what continues the published; look says that the table must
// be asked: somebody said so, the queue overflew, or it has a gap.
func (p *Publisher) takeNext() (items []Item, look bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	items, look = p.queue, p.look || p.overflow
	p.queue, p.bytes, p.overflow, p.look = nil, 0, false, false
	for len(items) > 0 && items[0].Seq <= p.out.seq {
		items = items[1:]
	}
	if len(items) > 0 && items[0].Seq != p.out.seq+1 {
		return nil, true
	}
	return items, look
}

// recover publishes page by page what the table holds beyond the published.
func (p *Publisher) recover(ctx context.Context) error {
	for {
		at := p.published()
		items, err := p.deps.Source.Page(ctx, p.lane, at.seq, at.at, p.cfg.Page)
		if err != nil || len(items) == 0 {
			return err
		}
		if err := p.publish(ctx, items); err != nil {
			return err
		}
	}
}

// publish sends items in order, and goes past what was acknowledged.
func (p *Publisher) publish(ctx context.Context, items []Item) error {
	at := p.published().seq
	for i, it := range items {
		if it.Seq != at+1+int64(i) {
			return fmt.Errorf("lane %d is not contiguous: %d follows %d", p.lane.ID, it.Seq, at+int64(i))
		}
	}
	for start := 0; start < len(items); {
		chunk := items[start:min(start+p.cfg.Page, len(items))]
		errs := p.deps.Sink.Publish(ctx, p.records(chunk))
		n := 0
		for n < len(chunk) && errs[n] == nil {
			n++
		}
		if n > 0 {
			p.passed(chunk[n-1])
		}
		if n < len(chunk) {
			if !refused(errs[n]) {
				return fmt.Errorf("publish lane %d at %d: %w", p.lane.ID, chunk[n].Seq, errs[n])
			}
			if err := p.deadLetter(ctx, chunk[n], errs[n]); err != nil {
				return err
			}
			n++
		}
		start += n
	}
	return nil
}

// passed says that a message, and all before it, is published.
func (p *Publisher) passed(it Item) {
	p.mu.Lock()
	p.out = mark{it.Seq, it.WrittenAt}
	p.last = max(p.last, it.Seq)
	p.mu.Unlock()
	signal(p.sent)
}

func (p *Publisher) published() mark {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out
}

// record makes the cursor follow what is published, until ctx ends or another
// owner has the lane (ErrFenced).
func (p *Publisher) record(ctx context.Context) error {
	backoff := p.cfg.Backoff
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.sent:
		}
		if err := p.move(ctx); errors.Is(err, ErrFenced) {
			return err
		} else if err != nil {
			p.deps.Log.Warn("outbox cursor will be moved again", "lane", p.lane.ID, "error", err, "backoff", backoff)
			signal(p.sent)
			if !pause.For(ctx, backoff) {
				return nil
			}
			backoff = min(2*backoff, 5*time.Second)
			continue
		}
		backoff = p.cfg.Backoff
		p.pause(ctx)
	}
}

// pause keeps moves apart, unless somebody waits for the next.
func (p *Publisher) pause(ctx context.Context) {
	t := time.NewTimer(p.cfg.Record)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-p.rush:
	case <-t.C:
	}
}

// move brings the cursor to the published. A move of unknown outcome is
// settled by reading the cursor back.
func (p *Publisher) move(ctx context.Context) error {
	p.moving.Lock()
	defer p.moving.Unlock()
	to := p.published()
	if to.seq <= p.at() {
		return nil
	}
	err := p.advance(ctx, p.deps.Pool, to)
	if err == nil {
		p.movedTo(to.seq)
		return nil
	}
	if errors.Is(err, ErrFenced) || ctx.Err() != nil {
		return err
	}
	if lerr := p.load(ctx); lerr != nil {
		return errors.Join(err, lerr)
	}
	return err
}

func (p *Publisher) records(items []Item) []*kgo.Record {
	const room = len("-2147483648:-9223372036854775808")
	n := 0
	for i := range items {
		n += len(items[i].Headers) + 1
	}
	// All in few pieces of memory: they come and go together.
	rs, made := make([]*kgo.Record, len(items)), make([]kgo.Record, len(items))
	headers, ids := make([]kgo.RecordHeader, 0, n), make([]byte, 0, room*len(items))
	var logical, topic string
	for i := range items {
		it := &items[i]
		if i == 0 || it.Topic != logical {
			logical, topic = it.Topic, p.deps.Topic(it.Topic)
		}
		id, hs := len(ids), len(headers)
		ids = strconv.AppendInt(ids, int64(p.lane.ID), 10)
		ids = strconv.AppendInt(append(ids, ':'), it.Seq, 10)
		headers = append(append(headers, it.Headers...), kgo.RecordHeader{Key: "outbox-id", Value: ids[id:len(ids):len(ids)]})
		made[i] = kgo.Record{Topic: topic, Key: it.Key, Value: it.Value, Headers: headers[hs:len(headers):len(headers)]}
		rs[i] = &made[i]
	}
	return rs
}

// refused says that the broker will never take this record, whoever asks.
func refused(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge) ||
		errors.Is(err, kerr.InvalidRecord) || errors.Is(err, kerr.InvalidTimestamp)
}

// advance moves the cursor from where this owner left it to a mark, if the
// lane is still this owner's.
func (p *Publisher) advance(ctx context.Context, db streamdb.DBTX, to mark) error {
	_, err := streamdb.New(db).AdvanceCursor(ctx, streamdb.AdvanceCursorParams{
		Lane: p.lane.ID, FromSeq: p.at(), ToSeq: to.seq, Since: to.at, Epoch: p.lane.Epoch})
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("move the cursor of lane %d: %w", p.lane.ID, ErrFenced)
	}
	if err != nil {
		return fmt.Errorf("move the cursor of lane %d: %w", p.lane.ID, err)
	}
	return nil
}

// load reads the cursor. What this owner has published beyond it stays so.
func (p *Publisher) load(ctx context.Context) error {
	at, err := streamdb.New(p.deps.Pool).LoadCursor(ctx, streamdb.LoadCursorParams{Lane: p.lane.ID, Epoch: p.lane.Epoch})
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("read the cursor of lane %d: %w", p.lane.ID, ErrFenced)
	}
	if err != nil {
		return fmt.Errorf("read the cursor of lane %d: %w", p.lane.ID, err)
	}
	p.mu.Lock()
	if at.Cursor >= p.out.seq {
		p.out = mark{at.Cursor, at.Since}
	}
	p.mu.Unlock()
	p.movedTo(at.Cursor)
	return nil
}

// deadLetter keeps a message that the broker refuses for itself, and moves the
// cursor past it in the same transaction: one record never stops a lane.
func (p *Publisher) deadLetter(ctx context.Context, bad Item, cause error) error {
	p.moving.Lock()
	defer p.moving.Unlock()
	err := pgx.BeginFunc(ctx, p.deps.Pool, func(tx pgx.Tx) error {
		if err := p.advance(ctx, tx, mark{bad.Seq, bad.WrittenAt}); err != nil {
			return err
		}
		return streamdb.New(tx).KeepRefusedMessage(ctx, streamdb.KeepRefusedMessageParams{
			Stage: fmt.Sprintf("outbox:%d:%d", p.lane.ID, bad.Seq), Reason: cause.Error(), Topic: bad.Topic,
			RecordKey: bad.Key, RecordValue: bad.Value, RecordHeaders: EncodeHeaders(bad.Headers)})
	})
	if err != nil {
		return fmt.Errorf("dead-letter message %d of lane %d: %w", bad.Seq, p.lane.ID, err)
	}
	p.passed(bad)
	p.movedTo(bad.Seq)
	return nil
}

func (p *Publisher) at() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cursor
}

func (p *Publisher) movedTo(cursor int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cursor = cursor
	close(p.moved)
	p.moved = make(chan struct{})
}

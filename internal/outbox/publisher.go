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
	Queue   int           // messages kept in memory after their commit; default 20,000. Beyond it they are read back
	Page    int           // messages read and published at a time; default 1,000
	Poll    time.Duration // how often to look without being woken; default 1 s
	Backoff time.Duration // after a failure, doubled up to 5 s; default 50 ms
}

func (c PublisherConfig) withDefaults() PublisherConfig {
	if c.Queue == 0 {
		c.Queue = 20_000
	}
	if c.Page == 0 {
		c.Page = 1_000
	}
	if c.Poll == 0 {
		c.Poll = time.Second
	}
	if c.Backoff == 0 {
		c.Backoff = 50 * time.Millisecond
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
type Publisher struct {
	lane Lane
	cfg  PublisherConfig
	deps PublisherDeps

	wake chan struct{}

	mu       sync.Mutex
	queue    []Item
	overflow bool
	last     int64 // highest sequence offered or published
	cursor   int64 // published and recorded
	moved    chan struct{}
}

// NewPublisher makes the relay of a lane.
func NewPublisher(lane Lane, cfg PublisherConfig, deps PublisherDeps) *Publisher {
	return &Publisher{
		lane: lane, cfg: cfg.withDefaults(), deps: deps,
		wake: make(chan struct{}, 1), moved: make(chan struct{}),
	}
}

// Offer hands over what was just committed, in sequence order; it never blocks.
func (p *Publisher) Offer(items []Item) {
	if len(items) == 0 {
		return
	}
	p.mu.Lock()
	p.last = max(p.last, items[len(items)-1].Seq)
	if len(p.queue)+len(items) > p.cfg.Queue {
		p.queue, p.overflow = nil, true
	} else if !p.overflow {
		p.queue = append(p.queue, items...)
	}
	p.mu.Unlock()
	p.Wake()
}

// Wake says that something was committed which was not offered.
func (p *Publisher) Wake() {
	select {
	case p.wake <- struct{}{}:
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
		if sleep(ctx, backoff) != nil {
			return ctx.Err()
		}
		backoff = min(2*backoff, 5*time.Second)
	}
}

func (p *Publisher) run(ctx context.Context) error {
	since, err := p.load(ctx)
	if err != nil {
		return err
	}
	since, err = p.recover(ctx, since)
	if err != nil {
		return err
	}
	poll := time.NewTicker(p.cfg.Poll)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.wake:
		case <-poll.C:
		}
		items := p.takeNext()
		if len(items) == 0 { // woken without an offer, overflown, or a gap: the table knows
			if since, err = p.recover(ctx, since); err != nil {
				return err
			}
			continue
		}
		if since, err = p.publish(ctx, items); err != nil {
			return err
		}
	}
}

// takeNext gives the queue if it continues the cursor; otherwise nothing.
func (p *Publisher) takeNext() []Item {
	p.mu.Lock()
	defer p.mu.Unlock()
	items := p.queue
	p.queue = nil
	if p.overflow {
		p.overflow = false
		return nil
	}
	for len(items) > 0 && items[0].Seq <= p.cursor {
		items = items[1:]
	}
	if len(items) > 0 && items[0].Seq != p.cursor+1 {
		return nil
	}
	return items
}

// recover publishes page by page what the table holds beyond the cursor.
func (p *Publisher) recover(ctx context.Context, since time.Time) (time.Time, error) {
	for {
		items, err := p.deps.Source.Page(ctx, p.lane, p.at(), since, p.cfg.Page)
		if err != nil || len(items) == 0 {
			return since, err
		}
		if since, err = p.publish(ctx, items); err != nil {
			return since, err
		}
	}
}

// publish sends items in order and moves the cursor over what was acknowledged.
func (p *Publisher) publish(ctx context.Context, items []Item) (since time.Time, err error) {
	at := p.at()
	for i, it := range items {
		if it.Seq != at+1+int64(i) {
			return since, fmt.Errorf("lane %d is not contiguous: %d follows %d", p.lane.ID, it.Seq, at+int64(i))
		}
	}
	for start := 0; start < len(items); {
		chunk := items[start:min(start+p.cfg.Page, len(items))]
		errs := p.deps.Sink.Publish(ctx, p.records(chunk))
		n := 0
		for n < len(chunk) && errs[n] == nil {
			n++
		}
		if n < len(chunk) && refused(errs[n]) {
			if err := p.deadLetter(ctx, chunk[:n+1], errs[n]); err != nil {
				return since, err
			}
			start, since = start+n+1, chunk[n].WrittenAt
			continue
		}
		if n > 0 {
			if err := p.advance(ctx, p.deps.Pool, chunk[n-1]); err != nil {
				return since, err
			}
			since = chunk[n-1].WrittenAt
			p.movedTo(chunk[n-1].Seq)
		}
		if n < len(chunk) {
			return since, fmt.Errorf("publish lane %d at %d: %w", p.lane.ID, chunk[n].Seq, errs[n])
		}
		start += n
	}
	return since, nil
}

func (p *Publisher) records(items []Item) []*kgo.Record {
	rs := make([]*kgo.Record, len(items))
	for i, it := range items {
		id := strconv.AppendInt(nil, int64(p.lane.ID), 10)
		id = strconv.AppendInt(append(id, ':'), it.Seq, 10)
		hs := append(it.Headers[:len(it.Headers):len(it.Headers)], kgo.RecordHeader{Key: "outbox-id", Value: id})
		rs[i] = &kgo.Record{Topic: p.deps.Topic(it.Topic), Key: it.Key, Value: it.Value, Headers: hs}
	}
	return rs
}

// refused says that the broker will never take this record, whoever asks.
func refused(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge) ||
		errors.Is(err, kerr.InvalidRecord) || errors.Is(err, kerr.InvalidTimestamp)
}

// advance moves the cursor from where this owner left it to an item, if the
// lane is still this owner's.
func (p *Publisher) advance(ctx context.Context, db streamdb.DBTX, to Item) error {
	_, err := streamdb.New(db).AdvanceCursor(ctx, streamdb.AdvanceCursorParams{
		Lane: p.lane.ID, FromSeq: p.at(), ToSeq: to.Seq, Since: to.WrittenAt, Epoch: p.lane.Epoch})
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("move the cursor of lane %d: %w", p.lane.ID, ErrFenced)
	}
	if err != nil {
		return fmt.Errorf("move the cursor of lane %d: %w", p.lane.ID, err)
	}
	return nil
}

func (p *Publisher) load(ctx context.Context) (since time.Time, err error) {
	at, err := streamdb.New(p.deps.Pool).LoadCursor(ctx, streamdb.LoadCursorParams{Lane: p.lane.ID, Epoch: p.lane.Epoch})
	if errors.Is(err, pgx.ErrNoRows) {
		return since, fmt.Errorf("read the cursor of lane %d: %w", p.lane.ID, ErrFenced)
	}
	if err != nil {
		return since, fmt.Errorf("read the cursor of lane %d: %w", p.lane.ID, err)
	}
	p.movedTo(at.Cursor)
	return at.Since, nil
}

// deadLetter keeps the last of the items, which the broker refuses for itself,
// and moves the cursor past it in the same transaction: one record never stops
// a lane.
func (p *Publisher) deadLetter(ctx context.Context, items []Item, cause error) error {
	bad := items[len(items)-1]
	err := pgx.BeginFunc(ctx, p.deps.Pool, func(tx pgx.Tx) error {
		if err := p.advance(ctx, tx, bad); err != nil {
			return err
		}
		return streamdb.New(tx).KeepRefusedMessage(ctx, streamdb.KeepRefusedMessageParams{
			Stage: fmt.Sprintf("outbox:%d:%d", p.lane.ID, bad.Seq), Reason: cause.Error(), Topic: bad.Topic,
			RecordKey: bad.Key, RecordValue: bad.Value, RecordHeaders: []byte(encodeHeaders(bad.Headers))})
	})
	if err != nil {
		return fmt.Errorf("dead-letter message %d of lane %d: %w", bad.Seq, p.lane.ID, err)
	}
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

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

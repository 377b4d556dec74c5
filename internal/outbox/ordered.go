package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/lease"
)

// OrderedConfig of a relay whose topic is compacted.
type OrderedConfig struct {
	Producer string // the lane's
	Holder   string // who this process is, for people
	Kafka    kafka.Config
	Wake     <-chan struct{} // something was committed; nil: it polls
}

// RunOrdered relays a lane that many processes write and whose topic keeps the
// last record a key, so that a late record of a paused owner must never come
// after its successor's: the owner holds a lease, and produces in transactions
// under the lane's own transactional id, which fence whatever its predecessor
// still has in hand. It works until ctx ends, whenever it has the lease.
func RunOrdered(ctx context.Context, cfg OrderedConfig, pool *pgxpool.Pool, log *slog.Logger) error {
	return lease.Run(ctx, pool, lease.Config{Name: "relay:" + cfg.Producer, Holder: cfg.Holder}, log, func(ctx context.Context, l *lease.Lease) error {
		lane, err := Open(ctx, pool, cfg.Producer, StoreOutbox, l.Epoch)
		if err != nil {
			return err
		}
		sink, err := newTxSink(ctx, cfg.Kafka, cfg.Producer)
		if err != nil {
			return err
		}
		defer sink.cl.Close()
		p := NewPublisher(lane, PublisherConfig{}, PublisherDeps{Pool: pool, Sink: sink, Source: TableSource{Pool: pool}, Topic: cfg.Kafka.Topic, Log: log})
		return runWoken(ctx, p, cfg.Wake)
	})
}

func runWoken(ctx context.Context, p *Publisher, wake <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	for {
		select {
		case err := <-done:
			return err
		case <-wake:
			p.Wake()
		}
	}
}

// txSink publishes each round in one transaction. After any failure it is
// spent: its owner takes the lane again, under a new epoch.
type txSink struct{ cl *kgo.Client }

// newTxSink takes the lane's transactional id at once, before the lane's cursor
// is read: from here on the predecessor's producer is fenced.
func newTxSink(ctx context.Context, kc kafka.Config, producer string) (*txSink, error) {
	cl, err := kc.NewProducer(kgo.TransactionalID(kc.Prefix + "carril." + producer))
	if err != nil {
		return nil, err
	}
	if _, _, err := cl.ProducerID(ctx); err != nil {
		cl.Close()
		return nil, fmt.Errorf("take the transactional id of %s: %w", producer, err)
	}
	return &txSink{cl}, nil
}

// Publish produces the records in one transaction, or none of them.
func (s *txSink) Publish(ctx context.Context, records []*kgo.Record) []error {
	errs := make([]error, len(records))
	fail := func(err error) []error {
		for i := range errs {
			errs[i] = fmt.Errorf("%w: %w", ErrFenced, err)
		}
		return errs
	}
	if err := s.cl.BeginTransaction(); err != nil {
		return fail(err)
	}
	produced := ClientSink{s.cl}.Publish(ctx, records)
	for i, err := range produced {
		if err == nil {
			continue
		}
		if e := s.cl.EndTransaction(context.WithoutCancel(ctx), kgo.TryAbort); e != nil || !refused(err) {
			return fail(errors.Join(err, e))
		}
		return s.without(ctx, records, i, err)
	}
	if err := s.cl.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return fail(err)
	}
	return errs
}

// without publishes what stands before a record that the broker refuses for
// itself, and blames that one: the transaction that held them all was aborted.
func (s *txSink) without(ctx context.Context, records []*kgo.Record, bad int, cause error) []error {
	errs := make([]error, len(records))
	if bad > 0 {
		again := make([]*kgo.Record, bad)
		for i, r := range records[:bad] {
			again[i] = &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: r.Headers}
		}
		copy(errs, s.Publish(ctx, again))
	}
	for i := bad; i < len(records); i++ {
		errs[i] = cause
	}
	return errs
}

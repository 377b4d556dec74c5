// Package stream is the one consumer loop of the platform. A stage (identity
// and append, rules, channels, statuses) gives it a Handler; the loop gives the
// stage batches of records, each in one PostgreSQL transaction that also
// advances the stage's position, so that a record is applied once whoever
// consumes it and however often it is delivered (FS-CORE-0006 §5). What the
// batch wants published goes through an outbox lane that the partition's owner
// also owns. The Kafka offset is committed last and serves lag only.
//
// One goroutine polls; one worker a partition applies. The position's
// compare-and-set on (epoch, next_offset) is the fence: a take-over raises the
// epoch, and a batch of an older owner changes no row and aborts.
package stream

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
)

// ErrPoison marks a record that is bad in itself; a Handler wraps it. The
// record becomes a dead letter and the partition goes on.
var ErrPoison = errors.New("poison record")

// ErrWait marks trouble outside the record (a registry or a database that is
// away); a Handler wraps it. The loop waits and tries again.
var ErrWait = errors.New("dependency unavailable")

// errFenced says that another owner has taken the partition over.
var errFenced = errors.New("partition is owned by another")

// Handler is a stage's own work. One handler serves all partitions at once.
type Handler interface {
	// Decode reads a record into the stage's form. An error that wraps ErrPoison
	// makes a dead letter; any other is waited for.
	Decode(ctx context.Context, r *kgo.Record) (any, error)
	// Apply does the batch's work inside tx: the stage's natural fence first,
	// then its rows, then Emit for what must be published. It may be called
	// again for the same records after a rollback and must keep nothing between.
	Apply(ctx context.Context, tx pgx.Tx, b *Batch) error
}

// Preparer is a Handler that does part of a batch's work ahead of its
// transaction, while the batch before is in the database: whatever needs no look
// at the database's state.
type Preparer interface {
	// Prepare gives what Apply will find in Batch.Prepared with the same records;
	// nil where it has nothing. It runs beside Apply of the batch before, and for
	// records that may never come to Apply.
	Prepare(ctx context.Context, records []Record) any
}

// Config of a stage's loop; zero values take the defaults.
type Config struct {
	Stage      string   // names positions, lanes and the group: carril.{stage}
	Topics     []string // without the deployment's prefix
	InstanceID string   // static membership; empty: a dynamic member
	Owner      string   // who this process is, for people; default the stage

	MaxRecords     int           // a batch, records; default 500
	CatchupRecords int           // while more than MaxRecords are behind; default 700: more bring 3 % and keep the front door waiting
	MaxBytes       int           // a batch, bytes of values; default 4 MiB
	Linger         time.Duration // longest a batch waits for more while the log holds more; default 20 ms
	// Gaps are, by topic, how far apart a partition's batches begin that are not full;
	// default none. What comes after a quiet while is applied at once, and what follows
	// it gathers: a stream of single records of which nobody waits for the next costs a
	// transaction a gap and not one each.
	Gaps        map[string]time.Duration
	BufferBytes int           // a partition's records in memory before it is paused; default 16 MiB
	Session     time.Duration // default 6 s
	Heartbeat   time.Duration // default 1 s
	Drain       time.Duration // longest a revoked partition may finish; default 5 s
	TxTimeout   time.Duration // one batch's transaction; default 60 s
	CommitEvery time.Duration // Kafka offsets, for lag; default 200 ms
	Backoff     time.Duration // first wait after trouble, doubled up to 5 s; default 50 ms
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	defInt := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	defInt(&c.MaxRecords, 500)
	defInt(&c.CatchupRecords, 700)
	defInt(&c.MaxBytes, 4<<20)
	defInt(&c.BufferBytes, 16<<20)
	def(&c.Linger, 20*time.Millisecond)
	def(&c.Session, 6*time.Second)
	def(&c.Heartbeat, time.Second)
	def(&c.Drain, 5*time.Second)
	def(&c.TxTimeout, 60*time.Second)
	def(&c.CommitEvery, 200*time.Millisecond)
	def(&c.Backoff, 50*time.Millisecond)
	if c.Owner == "" {
		c.Owner = c.Stage
	}
	return c
}

// Deps is what a loop works with.
type Deps struct {
	Kafka    kafka.Config
	Pool     *pgxpool.Pool
	Sink     outbox.Sink
	Events   outbox.Source // reads the events store; nil where the stage appends none
	Handler  Handler
	Log      *slog.Logger
	Metrics  *Metrics // nil: not measured
	Slots    *Slots   // shared by a process's loops; nil: every partition applies when it can
	Memory   *Memory  // shared by a process's loops; nil: each partition is bounded by itself alone
	Hook     Hook     // hears of every step; nil: nobody does. Tests end the process there
	KgoExtra []kgo.Opt
}

// Record is a record and what Decode made of it.
type Record struct {
	*kgo.Record
	Value any
}

// Batch is one transaction's share of a partition.
type Batch struct {
	Stage     string
	Topic     string // without the deployment's prefix
	Partition int32
	Records   []Record
	// Prepared is what a Preparer made of exactly these records; nil where they
	// were parted, or tried before: Apply, or Fence before it, may use it up.
	Prepared any
	// Ahead says that a Fencer is asked for the batch's keys while the batch before
	// is still in the database: what it reads now, that one may change.
	Ahead bool

	tx      pgx.Tx
	rejects []reject
	events  outbox.Lane
	derived outbox.Lane
	msgs    []outbox.Message
	pubEv   []outbox.Item
	after   []func()
}

type reject struct {
	record        *kgo.Record
	class, reason string
	ref           Ref
	bare          bool // without what the record brought
}

// Ref says what a dead letter is about, as far as it is known.
type Ref struct {
	TenantID, EventID, SendID uuid.UUID
}

// Reject makes record i a dead letter in the batch's transaction. The stage
// must have written nothing for it: a dead letter leaves no fence row, or its
// replay would be swallowed.
func (b *Batch) Reject(i int, class, reason string, ref Ref) {
	b.rejects = append(b.rejects, reject{record: b.Records[i].Record, class: class, reason: reason, ref: ref})
}

// Emit publishes messages after the commit, through the partition's lane.
func (b *Batch) Emit(msgs ...outbox.Message) { b.msgs = append(b.msgs, msgs...) }

// QueueEvents reserves sequences of the partition's events lane for rows that are
// about to be appended to core.tracked_events. Its statement travels with the
// transaction's next one, and taken gives them after that. The lane has a single
// writer, whom the position fences, so nobody waits for its row meanwhile.
func (b *Batch) QueueEvents(ctx context.Context, n int) (taken func() (lane int32, first int64, at time.Time), err error) {
	seqs, err := b.events.Queue(ctx, b.tx, n)
	if err != nil {
		return nil, err
	}
	return func() (int32, int64, time.Time) { return b.events.ID, seqs.First, seqs.At }, nil
}

// EmitEvents publishes appended events after the commit; items carry the
// sequences that QueueEvents gave.
func (b *Batch) EmitEvents(items []outbox.Item) { b.pubEv = append(b.pubEv, items...) }

// OnCommit calls f once the batch is known to be committed, and never
// otherwise. It must be quick.
func (b *Batch) OnCommit(f func()) { b.after = append(b.after, f) }

// Metrics of all loops of a process.
type Metrics struct {
	records     *prometheus.CounterVec
	batches     *prometheus.HistogramVec
	deadLetters *prometheus.CounterVec
	fenced      *prometheus.CounterVec
	retries     *prometheus.CounterVec
	alarms      *prometheus.CounterVec
	behind      *prometheus.GaugeVec
	stopped     *prometheus.GaugeVec
}

// NewMetrics registers the loops' metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		records:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_stream_records_total", Help: "Records applied."}, []string{"stage"}),
		batches:     prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "carril_stream_batch_seconds", Help: "From a batch's first statement to its commit.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 14)}, []string{"stage"}),
		deadLetters: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_stream_dead_letters_total", Help: "Records put aside."}, []string{"stage"}),
		fenced:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_stream_fenced_total", Help: "Batches aborted because another owner had taken over."}, []string{"stage"}),
		retries:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_stream_retries_total", Help: "Batches tried again, by cause."}, []string{"stage", "cause"}),
		alarms:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: "carril_stream_alarms_total", Help: "Lost, truncated or recreated logs, by kind."}, []string{"stage", "kind"}),
		behind:      prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_stream_lag_records", Help: "Consumer lag, as last seen by the owner."}, []string{"stage", "topic", "partition"}),
		stopped:     prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "carril_stream_stopped", Help: "1 while a partition waits for an operator."}, []string{"stage", "topic", "partition"}),
	}
	reg.MustRegister(m.records, m.batches, m.deadLetters, m.fenced, m.retries, m.alarms, m.behind, m.stopped)
	return m
}

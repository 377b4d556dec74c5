package ingestor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/schemas"
)

// The ce_type of an accepted event, and of a request for messages.
const (
	EventType   = "core.event.accepted"
	RequestType = "messaging.requested"
)

// ProducerConfig bounds what waits in the producer while Kafka is slow or away.
// The zero value of a field takes its default.
type ProducerConfig struct {
	Linger     time.Duration // wait for company before a request is sent; 0: none
	MaxRecords int           // 20,000
	MaxBytes   int           // 64 MiB
	// Forget is how long a record that was never sent is kept after its request
	// was answered with 503; 10 s.
	Forget time.Duration
}

// Opts are the options of the front door's producer, on top of acks from all
// in-sync replicas and idempotence.
func (c ProducerConfig) Opts() []kgo.Opt {
	fill(&c.MaxRecords, 20_000)
	fill(&c.MaxBytes, 64<<20)
	fill(&c.Forget, 10*time.Second)
	return []kgo.Opt{
		kgo.ProducerLinger(c.Linger),
		kgo.MaxBufferedRecords(c.MaxRecords),
		kgo.MaxBufferedBytes(c.MaxBytes),
		kgo.RecordDeliveryTimeout(c.Forget),
		kgo.ProduceRequestTimeout(5 * time.Second),
	}
}

// Kafka is the Enqueuer on a Kafka producer.
type Kafka struct {
	client  *kgo.Client
	codec   *schemas.Codec
	cfg     kafka.Config
	events  string // physical names
	imports string
	flights sync.Pool
}

// NewKafka puts events on the topics of a cluster through its producer; the
// codec must have the topics' schemas (Warm), or the first request asks for them.
func NewKafka(cfg kafka.Config, client *kgo.Client, codec *schemas.Codec) *Kafka {
	k := &Kafka{client: client, codec: codec, cfg: cfg, events: cfg.Topic(schemas.TopicEvents), imports: cfg.Topic(schemas.TopicEventsHistorical)}
	k.flights.New = func() any { return newFlight(&k.flights) }
	return k
}

// Enqueue implements Enqueuer: it returns nil once every record is on all
// in-sync replicas.
func (k *Kafka) Enqueue(ctx context.Context, records []Record) error {
	f := k.flights.Get().(*flight)
	if err := k.load(ctx, f, records); err != nil {
		f.abandon()
		return err
	}
	return k.fly(ctx, f)
}

// fly produces the flight's records and waits until all are there.
func (k *Kafka) fly(ctx context.Context, f *flight) error {
	f.board(len(f.records))
	for i := range f.records {
		// Not under ctx: when it ends, the client would fail all that waits for
		// the partition, other requests' records too.
		k.client.TryProduce(context.Background(), &f.records[i], f.promise)
	}
	defer f.leave()
	select {
	case <-f.landed:
		if err := f.failed.Load(); err != nil {
			return enqueueError(*err)
		}
		return nil
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return &EnqueueError{EnqueueDeadline, ctx.Err()}
		}
		return &EnqueueError{EnqueueGone, ctx.Err()}
	}
}

// load encodes the records; none is produced before all are encoded.
func (k *Kafka) load(ctx context.Context, f *flight, records []Record) error {
	f.expect(records)
	for i := range records {
		ev := records[i].Event
		logical, topic := schemas.TopicEvents, k.events
		if ev.Historical {
			logical, topic = schemas.TopicEventsHistorical, k.imports
		}
		from := len(f.bytes)
		b, err := k.codec.Encode(ctx, f.bytes, logical, ev)
		if err != nil {
			if errors.Is(err, schemas.ErrRegistryAway) {
				return &EnqueueError{EnqueueRegistry, err}
			}
			return &EnqueueError{EnqueueOther, err}
		}
		f.bytes = b
		f.add(topic, b[from:len(b):len(b)], &records[i])
	}
	return nil
}

// enqueueError classifies what the client said of a record.
func enqueueError(err error) *EnqueueError {
	class := EnqueueOther
	switch {
	case errors.Is(err, kgo.ErrMaxBuffered):
		class = EnqueueFull
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge):
		class = EnqueueTooLarge
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID):
		class = EnqueueTopic
	case errors.Is(err, kgo.ErrRecordTimeout), errors.Is(err, kgo.ErrRecordRetries), errors.Is(err, kgo.ErrClientClosed),
		errors.Is(err, context.DeadlineExceeded), kerr.IsRetriable(err), kgo.IsRetryableBrokerErr(err):
		class = EnqueueAway
	}
	return &EnqueueError{class, fmt.Errorf("produce: %w", err)}
}

// flight is the memory of one request's records until the client is done with
// them, which can be long after the request was answered. The request and each
// record hold it; the last to leave puts it back.
type flight struct {
	pool    *sync.Pool
	promise func(*kgo.Record, error)

	records []kgo.Record
	headers []kgo.RecordHeader
	bytes   []byte
	tenant  uuid.UUID // whose name is rendered
	key     []byte    // "/tenants/" and the tenant's id, of which the key is the latter

	pending atomic.Int64 // records without an answer
	holders atomic.Int64
	failed  atomic.Pointer[error] // the first failure
	landed  chan struct{}         // gets one value when nothing is pending
}

// keptFlight is how much of a flight's memory waits for the next: a batch of 500
// usual events, with what its doubling left over.
const keptFlight = 2 << 20

func newFlight(pool *sync.Pool) *flight {
	f := &flight{pool: pool, landed: make(chan struct{}, 1)}
	f.promise = func(_ *kgo.Record, err error) {
		if err != nil {
			f.failed.CompareAndSwap(nil, &err)
		}
		if f.pending.Add(-1) == 0 {
			f.landed <- struct{}{}
		}
		f.leave()
	}
	return f
}

func (f *flight) board(records int) {
	f.pending.Store(int64(records))
	f.holders.Store(int64(records) + 1)
}

func (f *flight) leave() {
	if f.holders.Add(-1) == 0 {
		f.abandon()
	}
}

// abandon puts the flight's memory back.
func (f *flight) abandon() {
	select {
	case <-f.landed: // the request did not wait for it
	default:
	}
	f.failed.Store(nil)
	if cap(f.bytes) > keptFlight {
		return
	}
	clear(f.records)
	clear(f.headers)
	f.records, f.headers, f.bytes, f.key = f.records[:0], f.headers[:0], f.bytes[:0], nil
	f.pool.Put(f)
}

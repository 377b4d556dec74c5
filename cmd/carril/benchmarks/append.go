package benchmarks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/ingestor"
	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/bench"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/processor/eventlog"
	"github.com/softcrum/carril/processor/partition"
	"github.com/softcrum/carril/processor/tenants"
	"github.com/softcrum/carril/schemas"
)

const (
	appendTenants = 10
	// catchUp is the stage's batch while it is behind, and so the baseline's too.
	catchUp = 2_000
	million = 1_000_000
	// appendTimeout bounds the append of all events.
	appendTimeout = time.Hour
)

// Append measures the append stage: accepted events that wait in one partition,
// through the fence, identity and the append, with their publication behind it,
// until none is left. The baseline is COPY of the same rows, without fence,
// identity or publication, into an identical partitioned table, in transactions
// of as many rows. Rates count rows; latencies are those of one transaction to
// the next.
func Append(ctx context.Context, cfg Config) (*bench.Report, error) {
	want := siteConfig{partitions: map[string]int32{schemas.TopicEvents: 1}}
	return measure(ctx, cfg, "append", want, func(ctx context.Context, r *run, rep *bench.Report) error {
		ts, err := r.tenants(ctx, appendTenants)
		if err != nil {
			return err
		}
		a := &appendRun{run: r, tenants: ts, at: time.Now().UTC()}
		if err := a.preload(ctx); err != nil {
			return err
		}
		rep.Unit, rep.Mode = "rows", fmt.Sprintf("%d events in one partition, %d people", r.Events, r.Contacts)
		rep.Baseline.What = fmt.Sprintf("COPY of the same rows without a fence into an identical table, %d a transaction", catchUp)
		rep.Settings = map[string]any{"events": r.Events, "contacts": r.Contacts, "payload_bytes": r.Payload, "batch": catchUp}
		rep.Details = map[string]any{}
		return a.measure(ctx, rep)
	})
}

type appendRun struct {
	*run
	tenants  []tenant
	at       time.Time // when the events are said to have happened
	seen     *statements
	backends map[int32]time.Duration // CPU by process, in the phase at hand
}

func (a *appendRun) measure(ctx context.Context, rep *bench.Report) error {
	// Half of the baseline before and half after: what the machine does beside
	// falls on both.
	half := a.Events / 2
	if err := a.makeCopies(ctx); err != nil {
		return err
	}
	before, err := a.phase(ctx, func(ctx context.Context) ([]point, error) { return a.copyRows(ctx, 0, half) })
	if err != nil {
		return err
	}
	stage, err := a.phase(ctx, func(ctx context.Context) ([]point, error) { return a.drain(ctx, rep) })
	if err != nil {
		return err
	}
	after, err := a.phase(ctx, func(ctx context.Context) ([]point, error) { return a.copyRows(ctx, half, a.Events) })
	if err != nil {
		return err
	}
	plain := before.then(after)
	rep.Result, rep.Baseline.Figures = stage.figures(), plain.figures()
	for name, p := range map[string]phase{"": stage, "baseline_": plain} {
		rep.Details[name+"first_fifth_rate"] = p.rate(0, a.Events/5)
		rep.Details[name+"last_fifth_rate"] = p.rate(a.Events-a.Events/5, a.Events)
		if a.Events >= 2*million {
			rep.Details[name+"first_million_rate"], rep.Details[name+"last_million_rate"] = p.rate(0, million), p.rate(a.Events-million, a.Events)
			rep.Details[name+"last_by_first_million"] = round3(p.rate(a.Events-million, a.Events) / p.rate(0, million))
		}
		if p.server > 0 {
			rep.Details[name+"backend_cpu_us"] = round1(float64(p.server.Microseconds()) / float64(a.Events))
		}
		if p.wal > 0 {
			rep.Details[name+"wal_bytes_per_row"] = p.wal / int64(a.Events)
		}
	}
	return rep.Compare(bench.RatioOfRate)
}

// event is the i-th one: its tenant and its number, from which all else follows.
func (a *appendRun) event(i int) (tenant, uint64) { return a.tenants[i%len(a.tenants)], uint64(i) }

// preload puts the events into core.events as the front door does.
func (a *appendRun) preload(ctx context.Context) error {
	codec, err := a.set.NewCodec()
	if err != nil {
		return err
	}
	producer, err := a.busyProducer()
	if err != nil {
		return err
	}
	defer producer.Close()
	body, err := eventBody(a.Payload, a.at)
	if err != nil {
		return err
	}
	st := newStencil(body)
	var done int
	defer a.progress.Phase("append: filling the topic", func() float64 { return float64(done) / float64(a.Events) })()
	var mu sync.Mutex
	var failed error
	for i := range a.Events {
		t, n := a.event(i)
		st.setOne(n, personOf(n, uint64(a.Contacts)))
		ev, value, err := record(ctx, codec, t, intake.Track, st.bytes, a.at)
		if err != nil {
			return err
		}
		producer.Produce(ctx, &kgo.Record{Topic: a.kafka.Topic(schemas.TopicEvents), Key: []byte(t.id.String()), Value: value,
			Headers: kafka.Event{ID: ev.EventID.String(), Type: ingestor.EventType, Source: kafka.Source(t.id), Subject: eventName, Time: a.at,
				CorrelationID: ev.CorrelationID}.Headers()}, func(_ *kgo.Record, err error) {
			mu.Lock()
			defer mu.Unlock()
			failed = errors.Join(failed, err)
		})
		done = i
	}
	if err := producer.Flush(ctx); err != nil {
		return fmt.Errorf("fill the topic: %w", err)
	}
	return failed
}

// busyProducer makes a client with the options of the process role's, which
// waits where it is full.
func (a *appendRun) busyProducer() (*kgo.Client, error) {
	return a.kafka.NewProducer(kgo.MaxBufferedRecords(100_000), kgo.RecordDeliveryTimeout(30*time.Second))
}

// drain runs the append stage until it has applied every event.
func (a *appendRun) drain(ctx context.Context, rep *bench.Report) (points []point, err error) {
	ctx, cancel := context.WithTimeout(ctx, appendTimeout)
	defer cancel()
	loop, closeLoop, err := a.stage(ctx)
	if err != nil {
		return nil, err
	}
	defer closeLoop()
	var running sync.WaitGroup
	lctx, stop := context.WithCancel(ctx)
	running.Go(func() { _ = loop.Run(lctx) }) // it ends by its context alone
	defer func() { stop(); running.Wait() }()

	var next int
	end := a.progress.Phase("append: the stage at work", func() float64 { return float64(next) / float64(a.Events) })
	defer end()
	var at time.Time
	for {
		const sql = `SELECT coalesce(max(next_offset), 0), clock_timestamp() FROM core.stream_positions WHERE stage = $1 AND topic = $2`
		if err := a.pool.QueryRow(ctx, sql, eventlog.Stage, schemas.TopicEvents).Scan(&next, &at); err != nil {
			return nil, fmt.Errorf("read the stage's position: %w", err)
		}
		if next >= a.Events {
			if points, err = a.batches(ctx, at); err != nil {
				return nil, err
			}
			rep.Steps = a.seen.steps(points[len(points)-1].at.Sub(points[0].at))
			return points, a.published(ctx, at, rep)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%d of %d events were appended: %w", next, a.Events, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stage is the append stage as the process role runs it.
func (a *appendRun) stage(ctx context.Context) (*stream.Loop, func(), error) {
	codec, err := a.set.NewCodec()
	if err != nil {
		return nil, nil, err
	}
	producer, err := a.busyProducer()
	if err != nil {
		return nil, nil, err
	}
	pool, seen, err := tracedPool(ctx, a.set.PostgresURL, 8)
	if err != nil {
		producer.Close()
		return nil, nil, err
	}
	a.seen = seen
	closeAll := func() { pool.Close(); producer.Close() }
	loop, err := a.loop(ctx, codec, producer, pool)
	if err != nil {
		closeAll()
		return nil, nil, err
	}
	return loop, closeAll, nil
}

func (a *appendRun) loop(ctx context.Context, codec *schemas.Codec, producer *kgo.Client, pool *pgxpool.Pool) (*stream.Loop, error) {
	lanes, err := eventlog.OpenContactLanes(ctx, pool, codec, nil)
	if err != nil {
		return nil, err
	}
	handler := eventlog.New(eventlog.Deps{Codec: codec, Tenants: tenants.NewCache(pool, 0), Partitions: partition.NewMaker(pool), Contacts: lanes, Log: a.Log})
	return stream.New(stream.Config{Stage: eventlog.Stage, Topics: []string{schemas.TopicEvents}, CatchupRecords: catchUp}, stream.Deps{
		Kafka: a.kafka, Pool: pool, Sink: outbox.ClientSink{Client: producer}, Events: eventlog.Source{Pool: pool, Codec: codec}, Handler: handler, Log: a.Log})
}

// batches reads when each transaction of the stage began; the last one ended at
// end.
func (a *appendRun) batches(ctx context.Context, end time.Time) ([]point, error) {
	const sql = `SELECT first_offset, id_time FROM core.processed_jobs WHERE id_time >= $1 AND id_time <= $2 AND worker = $3 ORDER BY first_offset`
	rows, err := a.pool.Query(ctx, sql, a.at.Add(-time.Hour), end, "stage:"+eventlog.Stage)
	if err != nil {
		return nil, fmt.Errorf("read the stage's batches: %w", err)
	}
	points, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p point, err error) { return p, row.Scan(&p.rows, &p.at) })
	if err != nil {
		return nil, fmt.Errorf("read the stage's batches: %w", err)
	}
	var appended int
	if err := a.pool.QueryRow(ctx, `SELECT count(*) FROM core.event_keys`).Scan(&appended); err != nil {
		return nil, fmt.Errorf("count what was appended: %w", err)
	}
	if appended != a.Events || len(points) == 0 {
		return nil, fmt.Errorf("%d of %d events were appended", appended, a.Events)
	}
	points = append(points, point{a.Events, end})
	return points, nil
}

// published waits until the relay has published all of it, and reports how far
// it was behind.
func (a *appendRun) published(ctx context.Context, appended time.Time, rep *bench.Report) error {
	const sql = `SELECT coalesce(sum(l.counter - c.cursor), 0), clock_timestamp() FROM core.outbox_lanes l
JOIN core.outbox_cursors c USING (lane) WHERE l.store = 'events' AND c.consumer = 'relay'`
	for {
		var behind int
		var at time.Time
		if err := a.pool.QueryRow(ctx, sql).Scan(&behind, &at); err != nil {
			return fmt.Errorf("read the relay's cursor: %w", err)
		}
		if behind == 0 {
			a.noteBackends(ctx)
			rep.Details["published_after_ms"] = bench.Millis(at.Sub(appended))
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d events were not published: %w", behind, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

package benchmarks

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/bench"
)

// maxBatchBytes is what the front door takes of one batch.
const maxBatchBytes = 5_000_000

// Batch measures batches of 500 events, from the request to the 202. The
// baseline is kgo's own synchronous produce of 500 records of the same bytes,
// with the same client options and as many callers. Rates count events.
func Batch(ctx context.Context, cfg Config) (*bench.Report, error) {
	return measure(ctx, cfg, "batch", siteConfig{}, func(ctx context.Context, r *run, rep *bench.Report) error {
		conns := r.connections(8)
		ts, err := r.tenants(ctx, trackTenants)
		if err != nil {
			return err
		}
		body, err := batchBody(r.Payload, time.Now())
		if err != nil {
			return err
		}
		roles, err := app.Start(ctx, r.set, app.Roles{Ingest: true}, r.Log)
		if err != nil {
			return err
		}
		defer roles.Stop() //nolint:errcheck // the figures stand; the site is removed whatever it says
		producer, err := r.newProducer()
		if err != nil {
			return err
		}
		defer producer.Close()
		baseline, err := r.produces(ctx, producer, ts, conns)
		if err != nil {
			return err
		}
		rep.Unit = "events"
		rep.Baseline.What = fmt.Sprintf("kgo's synchronous produce of %d records of the same bytes, with the same options", intake.MaxBatch)
		rep.Settings["batch"] = intake.MaxBatch
		result := allAccepted(posts(hostOf(roles.API), "/v1/core/batch", ts, conns, body))
		return r.compare(ctx, rep, conns, intake.MaxBatch, result, baseline)
	})
}

func batchBody(payload int, at time.Time) ([]byte, error) {
	one, err := eventBody(payload, at)
	if err != nil {
		return nil, err
	}
	one = append([]byte(`{"type":"track",`), one[1:]...)
	if n := len(one) * intake.MaxBatch; n > maxBatchBytes {
		return nil, fmt.Errorf("%w: payload-bytes make a batch of %d bytes, over the %d that are taken", app.ErrConfig, n, maxBatchBytes)
	}
	all := bytes.Repeat(append(one, ','), intake.MaxBatch)
	return append(append([]byte(`{"events":[`), all[:len(all)-1]...), "]}"...), nil
}

// produces makes ops that each produce a batch and wait for all of it.
func (r *run) produces(ctx context.Context, producer *kgo.Client, ts []tenant, conns int) (generator, error) {
	body, err := eventBody(r.Payload, time.Now())
	if err != nil {
		return generator{}, err
	}
	topic, records, err := r.bareRecords(ctx, ts, intake.Track, body)
	if err != nil {
		return generator{}, err
	}
	var g generator
	for i := range conns {
		rec := records["Bearer "+ts[i%len(ts)].key]
		next := uint64(i) << 40
		batch := make([]*kgo.Record, intake.MaxBatch)
		g.ops = append(g.ops, func(ctx context.Context) error {
			for j := range batch {
				next++
				batch[j] = rec.record(topic, next)
			}
			return producer.ProduceSync(ctx, batch...).FirstErr()
		})
	}
	return g, nil
}

// allAccepted turns a batch of which an event was refused into an error: its
// answer is a 202 all the same.
func allAccepted(g generator) generator {
	whole := []byte(`"rejected":0,`)
	for i, conn := range g.conns {
		op := g.ops[i]
		g.ops[i] = func(ctx context.Context) error {
			if err := op(ctx); err != nil {
				return err
			}
			if body := conn.Body(); !bytes.Contains(body[:min(len(body), 64)], whole) {
				return errPartial{}
			}
			return nil
		}
	}
	return g
}

// errPartial is a batch of which something was not taken.
type errPartial struct{}

func (errPartial) Error() string { return "not every event of the batch was accepted" }
func (errPartial) Class() string { return "rejected" }

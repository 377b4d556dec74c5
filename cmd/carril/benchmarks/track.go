package benchmarks

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/ingestor"
	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/bench"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/schemas"
)

const (
	trackTenants = 8 // events are keyed by tenant: one alone would measure one partition
	rounds       = 4 // a measurement's share and its baseline's, in turn
	opTimeout    = 10 * time.Second
)

// Track measures the front door: single events over keep-alive connections on
// loopback, from the request to the 202. The baseline is a bare net/http handler
// that produces a record of the same bytes with the same client options and
// answers when Kafka has it: what is left is what the platform costs. Without a
// rate it is a closed loop and the ratio is of requests a second; with one, an
// open loop and the ratio is of p95.
func Track(ctx context.Context, cfg Config) (*bench.Report, error) {
	return frontDoor(ctx, cfg, "track", intake.Track, eventBody)
}

// Identify is Track with identifies: traits in the place of properties.
func Identify(ctx context.Context, cfg Config) (*bench.Report, error) {
	return frontDoor(ctx, cfg, "identify", intake.Identify, identifyBody)
}

func frontDoor(ctx context.Context, cfg Config, name, kind string, bodyOf func(int, time.Time) ([]byte, error)) (*bench.Report, error) {
	return measure(ctx, cfg, name, siteConfig{}, func(ctx context.Context, r *run, rep *bench.Report) error {
		conns := r.connections(256)
		ts, err := r.tenants(ctx, trackTenants)
		if err != nil {
			return err
		}
		body, err := bodyOf(r.Payload, time.Now())
		if err != nil {
			return err
		}
		roles, err := app.Start(ctx, r.set, app.Roles{Ingest: true}, r.Log)
		if err != nil {
			return err
		}
		defer roles.Stop() //nolint:errcheck // the figures stand; the site is removed whatever it says
		bare, err := r.startBare(ctx, ts, kind, body)
		if err != nil {
			return err
		}
		defer bare.stop()
		rep.Unit = "requests"
		rep.Baseline.What = "a bare net/http handler that produces the same bytes to the same Kafka with the same options and waits for the ack"
		result := posts(hostOf(roles.API), "/v1/core/"+kind, ts, conns, body)
		baseline := posts(bare.addr, "/", ts, conns, body)
		if r.Ladder {
			return r.climb(ctx, rep, conns, result, baseline)
		}
		return r.compare(ctx, rep, conns, 1, result, baseline)
	})
}

func (r *run) connections(def int) int {
	if r.Connections > 0 {
		return r.Connections
	}
	return def
}

// compare loads both sides in turn, after a warm-up of each, and fills the
// report.
func (r *run) compare(ctx context.Context, rep *bench.Report, conns, units int, result, baseline generator) error {
	defer result.close()
	defer baseline.close()
	rep.Settings["connections"] = conns
	share := r.Duration / (2 * rounds)
	ratioOf := bench.RatioOfRate
	rep.Mode = fmt.Sprintf("closed loop, %d connections", conns)
	load := func(ops []bench.Op) func(context.Context) (*bench.Stats, error) {
		return func(ctx context.Context) (*bench.Stats, error) { return bench.Closed(ctx, ops, share), nil }
	}
	if r.Rate > 0 {
		ratioOf = bench.RatioOfP95
		rep.Mode = fmt.Sprintf("open loop at %g a second, %d connections", r.Rate, conns)
		rep.Settings["rate"] = r.Rate
		load = func(ops []bench.Op) func(context.Context) (*bench.Stats, error) {
			return func(ctx context.Context) (*bench.Stats, error) {
				return bench.OpenLoop{Rate: r.Rate / float64(units), Duration: share, Drain: opTimeout}.Run(ctx, ops), nil
			}
		}
	}
	warmUp := min(share, time.Second)
	end := r.progress.For(rep.Bench+": measuring, baseline beside", 2*warmUp+r.Duration)
	defer end()
	bench.Closed(ctx, baseline.ops, warmUp)
	bench.Closed(ctx, result.ops, warmUp)
	pair, err := bench.Interleave(ctx, rounds, load(result.ops), load(baseline.ops))
	if err != nil {
		return err
	}
	return pair.Fill(rep, units, ratioOf)
}

// generator is ops that hold connections.
type generator struct {
	ops   []bench.Op
	conns []*bench.Conn
	after func() // what else is to be closed; may be nil
}

func (g generator) close() {
	for _, c := range g.conns {
		c.Close()
	}
	if g.after != nil {
		g.after()
	}
}

// posts makes ops that each post the body, over and over under fresh keys, on a
// connection of their own and as a tenant of theirs.
func posts(addr, path string, ts []tenant, conns int, body []byte) generator {
	var g generator
	for i := range conns {
		conn := bench.NewConn(addr, opTimeout)
		req := newStencil(bench.Request(http.MethodPost, path, addr, body,
			"Authorization: Bearer "+ts[i%len(ts)].key, "Content-Type: application/json"))
		next := uint64(i) << 40
		g.conns = append(g.conns, conn)
		g.ops = append(g.ops, func(ctx context.Context) error {
			next = req.renew(next)
			_, err := conn.Do(ctx, req.bytes, http.StatusAccepted)
			return err
		})
	}
	return g
}

// bare is the baseline of the front door.
type bare struct {
	addr     string
	srv      *http.Server
	producer *kgo.Client
	topic    string
	serving  sync.WaitGroup
	keys     atomic.Uint64
	records  map[string]bareRecord // by Authorization header
}

// bareRecord is what a tenant's requests produce: records as the front door
// makes them, in turn. One record over and over would compress to next to
// nothing, and the bytes would not be the same.
type bareRecord struct {
	key     []byte
	values  [][]byte
	headers [][]kgo.RecordHeader
}

// bareVariants is how many a tenant has, of which no Kafka batch holds as many.
const bareVariants = 2_048

// newProducer makes a client with the front door's own options.
func (r *run) newProducer() (*kgo.Client, error) {
	return r.kafka.NewProducer(ingestor.ProducerConfig{}.Opts()...)
}

// bareRecords makes each tenant's record and a topic like the platform's.
func (r *run) bareRecords(ctx context.Context, ts []tenant, kind string, body []byte) (topic string, records map[string]bareRecord, err error) {
	if topic, err = r.makeTopic(ctx, "bench.baseline", schemas.TopicEvents); err != nil {
		return "", nil, err
	}
	codec, err := r.set.NewCodec()
	if err != nil {
		return "", nil, err
	}
	now := time.Now()
	records = map[string]bareRecord{}
	st := newStencil(body)
	for _, t := range ts {
		b := bareRecord{key: []byte(t.id.String())}
		for n := range uint64(bareVariants) {
			st.setOne(n, personOf(n, people))
			ev, value, err := record(ctx, codec, t, kind, st.bytes, now)
			if err != nil {
				return "", nil, err
			}
			b.values = append(b.values, value)
			b.headers = append(b.headers, kafka.Event{ID: ev.EventID.String(), Type: ingestor.EventType, Source: kafka.Source(t.id),
				Subject: ev.EventName, Time: ev.OccurredAt, CorrelationID: ev.CorrelationID}.Headers())
		}
		records["Bearer "+t.key] = b
	}
	return topic, records, nil
}

func (r *run) startBare(ctx context.Context, ts []tenant, kind string, body []byte) (*bare, error) {
	b := &bare{}
	var err error
	if b.topic, b.records, err = r.bareRecords(ctx, ts, kind, body); err != nil {
		return nil, err
	}
	if b.producer, err = r.newProducer(); err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		b.producer.Close()
		return nil, fmt.Errorf("listen for the baseline: %w", err)
	}
	b.addr, b.srv = l.Addr().String(), &http.Server{Handler: b, ReadHeaderTimeout: opTimeout}
	b.serving.Go(func() { _ = b.srv.Serve(l) }) // ends with stop
	return b, nil
}

func (b *bare) stop() {
	_ = b.srv.Close()
	b.serving.Wait()
	b.producer.Close()
}

// record is a tenant's n-th record.
func (r bareRecord) record(topic string, n uint64) *kgo.Record {
	n %= bareVariants
	return &kgo.Record{Topic: topic, Key: r.key, Value: r.values[n], Headers: r.headers[n]}
}

func (b *bare) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if _, err := io.Copy(io.Discard, req.Body); err != nil {
		http.Error(w, "body", http.StatusBadRequest)
		return
	}
	rec, ok := b.records[req.Header.Get("Authorization")]
	if !ok {
		http.Error(w, "key", http.StatusUnauthorized)
		return
	}
	acked := make(chan error, 1)
	b.producer.TryProduce(req.Context(), rec.record(b.topic, b.keys.Add(1)), func(_ *kgo.Record, err error) { acked <- err })
	if err := <-acked; err != nil {
		http.Error(w, "Kafka", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	_, _ = io.WriteString(w, `{"event_id":"00000000-0000-8000-8000-000000000000","correlation_id":"00000000-0000-8000-8000-000000000000"}`)
}

// hostOf is the host:port of a role's address.
func hostOf(url string) string {
	const scheme = "http://"
	return url[min(len(url), len(scheme)):]
}

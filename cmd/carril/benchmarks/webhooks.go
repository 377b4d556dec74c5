package benchmarks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/dispatcher/webhook"
	"github.com/softcrum/carril/dispatcher/webhook/guard"
	"github.com/softcrum/carril/dispatcher/webhook/seal"
	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/bench"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/signature"
	"github.com/softcrum/carril/processor/eventlog"
	"github.com/softcrum/carril/schemas"
)

const (
	hookTenants = 20  // an endpoint each: one endpoint's own rate is bounded
	hookQuiet   = 100 // events a second for the time from append to delivery
	hookCallers = 64  // of the baseline; connections to one host and port
	hookTimeout = 30 * time.Second
)

// Webhooks measures outbound webhooks: appended events in core.event.tracked,
// through the webhooks role, to a receiver on loopback that checks signatures;
// 20 tenants with an endpoint each. Latency runs from the appended event's
// record to its arrival. The baseline is bare signed POSTs of the same bytes to
// the same receiver. Without a rate it is a closed loop, for the most that it
// can do, followed by a quiet open loop for the time from append to delivery.
func Webhooks(ctx context.Context, cfg Config) (*bench.Report, error) {
	return measure(ctx, cfg, "webhooks", siteConfig{}, func(ctx context.Context, r *run, rep *bench.Report) error {
		h, err := r.startHooks(ctx)
		if err != nil {
			return err
		}
		defer h.recv.stop()
		defer h.producer.Close()
		roles, err := app.Start(ctx, h.set, app.Roles{Webhooks: true}, r.Log)
		if err != nil {
			return err
		}
		defer roles.Stop() //nolint:errcheck // the figures stand; the site is removed whatever it says
		return h.measure(ctx, rep)
	})
}

// hooks is the benchmark at work.
type hooks struct {
	*run
	set      app.Settings // with webhooks to this machine allowed
	tenants  []tenant
	secrets  []signature.Secret // of the tenants' endpoints
	codec    *schemas.Codec
	producer *kgo.Client
	recv     *receiver
	payload  string // of every event
}

func (r *run) startHooks(ctx context.Context) (h *hooks, err error) {
	h = &hooks{run: r, set: r.set}
	h.set.WebhookKey, h.set.WebhookHTTP, h.set.WebhookAnyPort = seal.NewKey(), true, true
	h.set.WebhookPrivate = []string{"127.0.0.0/8"} // the receiver is on this machine
	if h.tenants, err = r.tenants(ctx, hookTenants); err != nil {
		return nil, err
	}
	if h.codec, err = r.set.NewCodec(); err != nil {
		return nil, err
	}
	now := time.Now()
	body, err := eventBody(r.Payload, now)
	if err != nil {
		return nil, err
	}
	ev, err := parse(h.tenants[0], intake.Track, body, now)
	if err != nil {
		return nil, err
	}
	h.payload = strings.Clone(ev.Payload)
	if h.recv, err = startReceiver(ctx); err != nil {
		return nil, err
	}
	if err := h.subscribe(ctx); err != nil {
		h.recv.stop()
		return nil, err
	}
	if h.producer, err = r.newProducer(); err != nil {
		h.recv.stop()
		return nil, err
	}
	return h, nil
}

// subscribe gives every tenant an endpoint at the receiver.
func (h *hooks) subscribe(ctx context.Context) error {
	g, err := guard.New(guard.Config{AnyPort: true, AllowHTTP: true, Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, nil)
	if err != nil {
		return fmt.Errorf("allow webhooks to this machine: %w", err)
	}
	keys, err := seal.Parse(h.set.WebhookKey)
	if err != nil {
		return err
	}
	store := webhook.NewStore(webhook.StoreConfig{}, webhook.StoreDeps{Pool: h.pool, Guard: g, Keys: keys})
	for i, t := range h.tenants {
		_, secret, err := store.Create(ctx, t.id, webhook.Draft{URL: h.recv.url(i), EventTypes: []string{webhook.TypeTracked}})
		if err != nil {
			return fmt.Errorf("make an endpoint: %w", err)
		}
		h.secrets = append(h.secrets, secret)
	}
	h.recv.expect(h.secrets)
	return nil
}

func (h *hooks) measure(ctx context.Context, rep *bench.Report) error {
	rep.Unit = "deliveries"
	rep.Baseline.What = fmt.Sprintf("bare signed POSTs of the same bytes to the same receiver, %d callers", hookCallers)
	rep.Settings["endpoints"] = len(h.tenants)
	callers := h.connections(512)
	result := h.deliveries(callers)
	if err := result.ops[0](ctx); err != nil { // one event: that it works, and the bytes
		return fmt.Errorf("deliver the first event: %w", err)
	}
	if err := h.compare(ctx, rep, callers, 1, result, h.bare(hookCallers)); err != nil {
		return err
	}
	if h.Rate > 0 {
		rep.Mode = fmt.Sprintf("%g events a second in an open loop, %d endpoints, from the appended event's record to its arrival", h.Rate, len(h.tenants))
		return nil
	}
	rep.Mode = fmt.Sprintf("closed loop, %d events on their way at a time, %d endpoints", callers, len(h.tenants))
	d := h.Duration / 2
	end := h.progress.For("webhooks: from append to delivery", d)
	defer end()
	quiet := bench.OpenLoop{Rate: hookQuiet, Duration: d, Drain: hookTimeout}.Run(ctx, result.ops)
	rep.More = append(rep.More, bench.More{Name: fmt.Sprintf("at %d a second", hookQuiet), Figures: bench.FiguresOf(quiet, 1)})
	if n := h.recv.refused(); n > 0 {
		rep.Notes = append(rep.Notes, fmt.Sprintf("the receiver refused %d requests", n))
	}
	return ctx.Err()
}

// deliveries makes ops that each publish an appended event and wait until it
// has arrived.
func (h *hooks) deliveries(callers int) generator {
	var g generator
	for i := range callers {
		t := h.tenants[i%len(h.tenants)]
		next := uint64(i) << 40
		g.ops = append(g.ops, func(ctx context.Context) error {
			next++
			rec, id, err := h.appended(ctx, t, next)
			if err != nil {
				return err
			}
			arrived := h.recv.wait(id)
			defer h.recv.forget(id)
			if err := h.producer.ProduceSync(ctx, rec).FirstErr(); err != nil {
				return err
			}
			timeout := time.NewTimer(hookTimeout)
			defer timeout.Stop()
			select {
			case <-arrived:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			case <-timeout.C:
				return errNotDelivered{}
			}
		})
	}
	return g
}

// errNotDelivered is an event that did not arrive in time.
type errNotDelivered struct{}

func (errNotDelivered) Error() string { return "no delivery within " + hookTimeout.String() }
func (errNotDelivered) Class() string { return "not_delivered" }

// appended is the record of an event as the append publishes it, of a person of
// its own: those of one arrive one after the other.
func (h *hooks) appended(ctx context.Context, t tenant, n uint64) (*kgo.Record, uuid.UUID, error) {
	key, now := keyOf(n), time.Now().UTC().Truncate(time.Microsecond)
	id := ids.Event(t.id, key)
	m, err := eventlog.Message(ctx, h.codec, &schemas.EventTracked{EventID: id, TenantID: t.id, CellID: "cell-1", ContactID: ids.Request(t.id, key), Kind: "track",
		EventName: eventName, OccurredAt: now, ReceivedAt: now, CorrelationID: id.String(), IdempotencyKey: key, Payload: h.payload, Lane: 1, LaneSeq: int64(n)})
	if err != nil {
		return nil, id, err
	}
	return &kgo.Record{Topic: h.kafka.Topic(m.Topic), Key: m.Key, Value: m.Value, Headers: m.Headers}, id, nil
}

// bare makes ops that each post the first delivery's bytes, signed anew.
func (h *hooks) bare(callers int) generator {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers, MaxConnsPerHost: callers}, Timeout: opTimeout}
	body := h.recv.first()
	g := generator{after: client.CloseIdleConnections}
	for i := range callers {
		url, secret := h.recv.url(i%len(h.secrets)), h.secrets[i%len(h.secrets)]
		g.ops = append(g.ops, func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
			if err != nil {
				return err
			}
			now, id := time.Now(), uuid.NewString()
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set(signature.HeaderID, id)
			req.Header.Set(signature.HeaderTimestamp, strconv.FormatInt(now.Unix(), 10))
			req.Header.Set(signature.HeaderSignature, signature.Sign(secret, id, now, body))
			resp, err := client.Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				return err
			}
			if resp.StatusCode != http.StatusNoContent {
				return &bench.StatusError{Status: resp.StatusCode}
			}
			return nil
		})
	}
	return g
}

// receiver is the tenants' server: it checks the signature, and tells whoever
// waits for the event.
type receiver struct {
	addr    string
	srv     *http.Server
	serving sync.WaitGroup

	mu      sync.Mutex
	secrets []signature.Secret
	waiting map[uuid.UUID]chan struct{}
	body    []byte // of the first delivery
	no      int    // requests refused
}

func startReceiver(ctx context.Context) (*receiver, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for webhooks: %w", err)
	}
	r := &receiver{addr: l.Addr().String(), waiting: map[uuid.UUID]chan struct{}{}}
	r.srv = &http.Server{Handler: r, ReadHeaderTimeout: opTimeout}
	r.serving.Go(func() { _ = r.srv.Serve(l) }) // ends with stop
	return r, nil
}

func (r *receiver) stop() {
	_ = r.srv.Close()
	r.serving.Wait()
}

// url is where the endpoint of tenant i points.
func (r *receiver) url(i int) string { return fmt.Sprintf("http://%s/%d", r.addr, i) }

func (r *receiver) expect(secrets []signature.Secret) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.secrets = secrets
}

func (r *receiver) wait(id uuid.UUID) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := make(chan struct{})
	r.waiting[id] = c
	return c
}

func (r *receiver) forget(id uuid.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, id)
}

func (r *receiver) first() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.body
}

func (r *receiver) refused() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.no
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err == nil {
		err = r.check(req, body)
	}
	if err != nil {
		r.mu.Lock()
		r.no++
		r.mu.Unlock()
		http.Error(w, "refused", http.StatusUnauthorized)
		return
	}
	r.arrived(eventOf(body), body)
	w.WriteHeader(http.StatusNoContent)
}

func (r *receiver) check(req *http.Request, body []byte) error {
	i, err := strconv.Atoi(strings.TrimPrefix(req.URL.Path, "/"))
	r.mu.Lock()
	known := r.secrets
	r.mu.Unlock()
	if err != nil || i < 0 || i >= len(known) {
		return errors.New("no such endpoint")
	}
	_, err = signature.Verify(known[i:i+1], req.Header, body, time.Now())
	return err
}

func (r *receiver) arrived(id uuid.UUID, body []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.body == nil {
		r.body = body
	}
	if c, ok := r.waiting[id]; ok {
		close(c)
		delete(r.waiting, id) // a second delivery of it finds nobody
	}
}

// eventOf finds the event's id in a delivery.
func eventOf(body []byte) uuid.UUID {
	const before = `"event_id":"`
	i := bytes.Index(body, []byte(before))
	if i < 0 || len(body) < i+len(before)+36 {
		return uuid.Nil
	}
	id, _ := uuid.ParseBytes(body[i+len(before) : i+len(before)+36]) // uuid.Nil: nobody waits for it
	return id
}

package sandbox

import (
	"bytes"
	"container/heap"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/internal/signature"
)

// retryWaits is Resend's schedule: how long after an attempt failed the next one
// follows.
func retryWaits() []time.Duration {
	return []time.Duration{
		5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 10 * time.Hour,
	}
}

// event is one webhook on its way.
type event struct {
	id      string
	kind    string
	message *sent
	at      time.Time // its own time, the same at every attempt
	due     time.Time
	attempt int // how many failed

	callback *callback // of a text message; nil for an email
}

// hooks sends the webhooks: one goroutine waits for what is due, a few send.
type hooks struct {
	cfg    WebhookConfig
	log    *slog.Logger
	client *http.Client

	mu      sync.Mutex
	url     string
	secrets []signature.Secret
	front   string // where callbacks go instead of the host that they name
	queue   eventQueue
	open    int           // queued and being sent
	idle    chan struct{} // closed while open is 0
	wake    chan struct{}

	cancel context.CancelFunc
	wg     sync.WaitGroup

	delivered, failed, givenUp, dropped atomic.Uint64
}

func newHooks(cfg WebhookConfig, log *slog.Logger) *hooks {
	idle := make(chan struct{})
	close(idle)
	return &hooks{
		cfg: cfg, log: log, url: cfg.URL, secrets: cfg.Secrets, idle: idle, wake: make(chan struct{}, 1),
		client: &http.Client{
			Timeout:       cfg.Timeout,
			Transport:     &http.Transport{MaxIdleConnsPerHost: cfg.Workers, IdleConnTimeout: time.Minute},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

func (h *hooks) start() {
	ctx, cancel := context.WithCancel(context.Background())
	h.cancel = cancel
	ready := make(chan event)
	h.wg.Go(func() { h.dispatch(ctx, ready) })
	for range h.cfg.Workers {
		h.wg.Go(func() { h.work(ctx, ready) })
	}
}

func (h *hooks) stop() {
	if h.cancel != nil {
		h.cancel()
	}
	h.wg.Wait()
	h.client.CloseIdleConnections()
}

func (h *hooks) retarget(url string, secrets []signature.Secret) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.url, h.secrets = url, secrets
}

// follow queues a message's events, one delay apart.
func (h *hooks) follow(id string, m inbound, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.url == "" {
		return
	}
	message := newSent(id, m, at)
	now := time.Now()
	for i, kind := range story(localPart(m.To[0])) {
		after := time.Duration(i) * h.cfg.DeliveryDelay
		h.push(event{
			id: "msg_" + strings.ReplaceAll(uuid.NewString(), "-", ""), kind: kind, message: message,
			at: at.Add(after), due: now.Add(after),
		})
	}
}

// push wants the lock held.
func (h *hooks) push(e event) {
	if h.open >= h.cfg.MaxPending {
		h.dropped.Add(1)
		return
	}
	if h.open == 0 {
		h.idle = make(chan struct{})
	}
	h.open++
	heap.Push(&h.queue, e)
	h.signal()
}

func (h *hooks) signal() {
	select {
	case h.wake <- struct{}{}:
	default: // it wakes anyway
	}
}

// done ends an event, for better or worse.
func (h *hooks) done() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open--; h.open == 0 {
		close(h.idle)
	}
}

func (h *hooks) pending() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.open
}

func (h *hooks) wait(ctx context.Context) error {
	h.mu.Lock()
	idle := h.idle
	h.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the sandbox's webhooks: %w", ctx.Err())
	}
}

// dispatch hands on what is due until ctx ends.
func (h *hooks) dispatch(ctx context.Context, ready chan<- event) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		e, wait := h.next()
		if wait == 0 {
			select {
			case ready <- e:
			case <-ctx.Done():
				return
			}
			continue
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-h.wake:
		case <-ctx.Done():
			return
		}
	}
}

// next gives what is due, else how long nothing is.
func (h *hooks) next() (event, time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.queue) == 0 {
		return event{}, time.Hour
	}
	if wait := time.Until(h.queue[0].due); wait > 0 {
		return event{}, wait
	}
	e, _ := heap.Pop(&h.queue).(event)
	return e, 0
}

func (h *hooks) work(ctx context.Context, ready <-chan event) {
	for {
		select {
		case e := <-ready:
			h.attempt(ctx, e)
		case <-ctx.Done():
			return
		}
	}
}

// attempt sends once, and queues what failed for the next time.
func (h *hooks) attempt(ctx context.Context, e event) {
	err := h.post(ctx, e)
	if err == nil {
		h.delivered.Add(1)
		h.done()
		return
	}
	h.failed.Add(1)
	waits := retryWaits()
	if e.attempt >= len(waits) {
		h.givenUp.Add(1)
		h.log.Warn("sandbox gave a webhook up", "event_id", e.id, "type", e.kind, "error", err)
		h.done()
		return
	}
	e.due = time.Now().Add(time.Duration(float64(waits[e.attempt]) / h.cfg.Speed))
	e.attempt++
	h.mu.Lock()
	defer h.mu.Unlock()
	heap.Push(&h.queue, e)
	h.signal()
}

func (h *hooks) post(ctx context.Context, e event) error {
	if e.callback != nil {
		return h.call(ctx, *e.callback)
	}
	h.mu.Lock()
	url, secrets := h.url, h.secrets
	h.mu.Unlock()
	body, err := webhookFor(e.kind, e.message, e.at)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("make a webhook request: %w", err)
	}
	now := time.Now()
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "carril-sandbox")
	req.Header.Set(signature.HeaderSvixID, e.id)
	req.Header.Set(signature.HeaderSvixTimestamp, strconv.FormatInt(now.Unix(), 10))
	req.Header.Set(signature.HeaderSvixSignature, signature.SignAll(secrets, e.id, now, body))
	return h.deliver(req)
}

// deliver sends one report and wants a 2xx.
func (h *hooks) deliver(req *http.Request) error {
	resp, err := h.client.Do(req)
	if err != nil {
		return fmt.Errorf("post a webhook: %w", err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("post a webhook: status %d", resp.StatusCode)
	}
	return nil
}

// eventQueue is a heap of events, what is due first in front.
type eventQueue []event

func (q eventQueue) Len() int           { return len(q) }
func (q eventQueue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q eventQueue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }

// Push is heap.Interface's.
func (q *eventQueue) Push(x any) {
	e, _ := x.(event)
	*q = append(*q, e)
}

// Pop is heap.Interface's.
func (q *eventQueue) Pop() any {
	old := *q
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*q = old[:len(old)-1]
	return e
}

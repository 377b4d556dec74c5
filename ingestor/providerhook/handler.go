package providerhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
)

// Handler answers providers' webhooks. It is safe for concurrent use.
type Handler struct {
	cfg     Config
	queue   Queue
	now     func() time.Time
	log     *slog.Logger
	metrics *metrics
	sources map[string]*source
}

// source is a Source whose secrets may be replaced while it is in use.
type source struct {
	Source
	secrets atomic.Pointer[[]Secret]
}

func newSource(s Source) *source {
	out := &source{Source: s}
	out.setSecrets(s.Secrets)
	return out
}

func (s *source) setSecrets(secrets []Secret) {
	own := slices.Clone(secrets)
	s.secrets.Store(&own)
}

// New makes a handler. An error names the setting at fault, never a secret.
func New(cfg Config, deps Deps) (*Handler, error) {
	h := &Handler{cfg: cfg.withDefaults(), queue: deps.Queue, now: deps.Now, log: deps.Logger, sources: map[string]*source{}}
	if h.queue == nil {
		return nil, errors.New("make the provider webhook handler: there is no queue")
	}
	if h.now == nil {
		h.now = time.Now
	}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	if err := h.cfg.validate(h.now()); err != nil {
		return nil, fmt.Errorf("configure provider webhooks: %w", err)
	}
	names := make([]string, 0, len(h.cfg.Sources))
	for _, s := range h.cfg.Sources {
		h.sources[s.Provider] = newSource(s)
		names = append(names, s.Provider)
	}
	var err error
	if h.metrics, err = newMetrics(deps.Registerer, names); err != nil {
		return nil, err
	}
	return h, nil
}

// SetSecrets replaces a source's secrets from the next request on, as when their
// file changed. What New would refuse is refused, and the old ones stay.
func (h *Handler) SetSecrets(provider string, secrets []Secret) error {
	s, ok := h.sources[provider]
	if !ok {
		return fmt.Errorf("set provider webhook secrets: no source %q", provider)
	}
	if err := validateSecrets(secrets, h.now()); err != nil {
		return fmt.Errorf("set the webhook secrets of %q: %w", provider, err)
	}
	s.setSecrets(secrets)
	return nil
}

// ServeHTTP answers 200 once the event is in the queue. An event that was not
// verified reaches nothing (FS-MSG-0003 AC5).
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s, ok := h.sources[r.PathValue("provider")]
	if !ok {
		h.metrics.count(unknownProvider, outcomeUnknown)
		problem{Status: http.StatusNotFound, Code: "unknown_provider", Detail: "There is no such provider."}.write(w, r)
		return
	}
	if p, outcome := h.accept(w, r, s); p.Status != 0 {
		h.metrics.count(s.Provider, outcome)
		p.write(w, r)
		return
	}
	h.metrics.count(s.Provider, outcomeAccepted)
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"status":"accepted"}`)
}

// accept takes one webhook in; a problem with a status says why it did not.
func (h *Handler) accept(w http.ResponseWriter, r *http.Request, s *source) (problem, string) {
	received := h.now()
	body, p, outcome := h.read(w, r)
	if p.Status != 0 {
		return p, outcome
	}
	e, err := s.verify(r, body, received)
	if err != nil {
		// One answer for every reason; which it was is for the metrics.
		w.Header().Set("WWW-Authenticate", s.scheme())
		return problem{Status: http.StatusUnauthorized, Code: "invalid_signature", Detail: "The webhook's signature does not verify."}, reasonOf(err)
	}
	ctx, cancel := context.WithTimeout(r.Context(), h.cfg.Timeout)
	defer cancel()
	if err := h.queue.Enqueue(ctx, e); err != nil {
		h.log.Error("provider webhook not enqueued", "provider", s.Provider, "provider_event_id", e.ProviderEventID, "error", err)
		w.Header().Set("Retry-After", strconv.Itoa(int(h.cfg.RetryAfter/time.Second)))
		return problem{Status: http.StatusServiceUnavailable, Code: "queue_unavailable", Detail: "Send it again."}, outcomeQueue
	}
	return problem{}, ""
}

// read gives the bytes as they came over the wire: they are what was signed.
func (h *Handler) read(w http.ResponseWriter, r *http.Request) ([]byte, problem, string) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, problem{Status: http.StatusMethodNotAllowed, Code: "method_not_allowed", Detail: "Webhooks are posted."}, outcomeMethod
	}
	if coding := r.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		return nil, problem{Status: http.StatusUnsupportedMediaType, Code: "unsupported_encoding", Detail: "Webhooks are taken without a content coding."}, outcomeEncoding
	}
	tooLarge := problem{Status: http.StatusRequestEntityTooLarge, Code: "body_too_large", Detail: "The webhook is too large."}
	if r.ContentLength > h.cfg.MaxBody {
		w.Header().Set("Connection", "close") // what it announced stays unread
		return nil, tooLarge, outcomeTooLarge
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.cfg.MaxBody))
	if over := (*http.MaxBytesError)(nil); errors.As(err, &over) {
		return nil, tooLarge, outcomeTooLarge
	}
	if err != nil {
		return nil, problem{Status: http.StatusBadRequest, Code: "unreadable_body", Detail: "The body ended early."}, outcomeUnreadable
	}
	return body, problem{}, ""
}

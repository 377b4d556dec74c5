package ingestor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/internal/httpserver"
)

// EnqueueClass is why the queue did not take something; the set is closed and
// is the metric label.
type EnqueueClass string

const (
	// EnqueueFull is a client whose buffer is full: the queue is slower than its callers.
	EnqueueFull EnqueueClass = "buffer_full"
	// EnqueueDeadline is a queue that did not answer in time; the record may still land.
	EnqueueDeadline EnqueueClass = "deadline"
	// EnqueueGone is a caller who hung up before the queue answered.
	EnqueueGone EnqueueClass = "caller_gone"
	// EnqueueAway is a broker that cannot be reached, or has too few in-sync replicas.
	EnqueueAway EnqueueClass = "broker_away"
	// EnqueueTopic is a topic that is not there.
	EnqueueTopic EnqueueClass = "topic_missing"
	// EnqueueTooLarge is a record that the broker refuses for its size.
	EnqueueTooLarge EnqueueClass = "record_too_large"
	// EnqueueRegistry is a schema registry that is away before the schema was ever known.
	EnqueueRegistry EnqueueClass = "registry_away"
	// EnqueueOther is anything else.
	EnqueueOther EnqueueClass = "other"
)

// EnqueueClasses lists every class, for metrics that pre-initialise their labels.
func EnqueueClasses() []EnqueueClass {
	return []EnqueueClass{EnqueueFull, EnqueueDeadline, EnqueueGone, EnqueueAway, EnqueueTopic, EnqueueTooLarge, EnqueueRegistry, EnqueueOther}
}

// EnqueueError is a failure to put something in the queue. What it was may be
// there nevertheless; to send it again under the same idempotency key is safe.
type EnqueueError struct {
	Class EnqueueClass
	Err   error
}

func (e *EnqueueError) Error() string { return fmt.Sprintf("enqueue (%s): %v", e.Class, e.Err) }

func (e *EnqueueError) Unwrap() error { return e.Err }

func classOf(err error) EnqueueClass {
	var e *EnqueueError
	if errors.As(err, &e) {
		return e.Class
	}
	return EnqueueOther
}

// perEvent is about what an event takes beside its own text and the copy of it
// that goes into the queue: its record and headers, its place in the parser.
const perEvent = 2 << 10

// enqueue charges the visit's records and puts them in the queue.
func (a *API) enqueue(v *visit, p *apikey.Principal, w http.ResponseWriter, r *http.Request) *httpserver.Problem {
	if !a.hold(v, cap(v.body)+len(v.body)+perEvent*len(v.records)) {
		return overloaded()
	}
	if problem := a.charge(v, p, len(v.records), w, r); problem != nil {
		return problem
	}
	ctx, cancel := context.WithTimeout(r.Context(), a.cfg.EnqueueTimeout)
	defer cancel()
	err := a.deps.Queue.Enqueue(ctx, v.records)
	if err == nil {
		a.metrics.enqueued(v.records)
	}
	return a.queued(r.Context(), "event", err)
}

// charge takes n events or messages from the budgets of a tenant and its key.
func (a *API) charge(v *visit, p *apikey.Principal, n int, w http.ResponseWriter, r *http.Request) *httpserver.Problem {
	wait := a.deps.Limits.Take(r.Context(), p, n, w.Header())
	v.shown = true
	if wait <= 0 {
		return nil
	}
	return rateLimited(wait)
}

// rateLimited is the refusal of a limiter.
func rateLimited(wait time.Duration) *httpserver.Problem {
	return &httpserver.Problem{Status: http.StatusTooManyRequests, Code: "rate_limited", Title: "More than the plan allows",
		Detail: "Send it again after the time that Retry-After says.", RetryAfter: int((wait + time.Second - 1) / time.Second)}
}

// queued is the answer to how the queue took something; nil when it did.
func (a *API) queued(ctx context.Context, what string, err error) *httpserver.Problem {
	if err == nil {
		a.reachable(ctx, true, "", nil)
		return nil
	}
	class := classOf(err)
	a.metrics.failures.WithLabelValues(string(class)).Inc()
	if class == EnqueueTooLarge {
		return &httpserver.Problem{Status: http.StatusRequestEntityTooLarge, Code: what + "_too_large", Title: "The " + what + " is too large",
			Detail: "The queue takes none of this size."}
	}
	if class != EnqueueGone {
		a.reachable(ctx, false, class, err)
	}
	// A spread of seconds, or all callers come back at once.
	return &httpserver.Problem{Status: http.StatusServiceUnavailable, Code: "queue_unavailable", Title: "The " + what + " could not be put in the queue",
		Detail: "Send it again after the time that Retry-After says, with the same idempotency key.", RetryAfter: 1 + rand.N(3)}
}

// reachable logs when the queue goes away and when it comes back, and not the
// thousand requests between.
func (a *API) reachable(ctx context.Context, now bool, class EnqueueClass, err error) {
	if a.away.Load() != now || !a.away.CompareAndSwap(now, !now) {
		return
	}
	if now {
		a.deps.Log.Info("the queue takes events again")
	} else {
		a.deps.Log.Error("the queue takes no events", "request_id", httpserver.RequestID(ctx), "class", string(class), "error", err)
	}
}

package ingestor

import (
	"io"
	"net/http"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/httpserver"
)

// visit is the memory of one request, used again by the next. The events point
// into its body, so nobody may hold them longer.
type visit struct {
	parser  *intake.Parser
	caller  intake.Caller
	body    []byte
	records []Record
	answer  []byte
	held    int64 // bytes of the API's budget

	principal *apikey.Principal // who sends it, once that is known
	shown     bool              // the limiter has set its headers
}

// How much of a body's memory waits for the next request; more is rare and
// the collector's.
const keptEvent, keptBatch = 64 << 10, 512 << 10

// leave gives the visit's memory back.
func (a *API) leave(v *visit, batch bool) {
	a.held.Add(-v.held)
	v.held, v.principal, v.shown = 0, nil, false
	pool, kept := &a.events, keptEvent
	if batch {
		pool, kept = &a.batches, keptBatch
	}
	if cap(v.body) > kept {
		return
	}
	v.records, v.body, v.answer = v.records[:0], v.body[:0], v.answer[:0]
	pool.Put(v)
}

// admit sees who sends a request and reads its body, at most so many bytes.
func (a *API) admit(v *visit, w http.ResponseWriter, r *http.Request, scope string, most int) (*apikey.Principal, *httpserver.Problem) {
	p, problem := apikey.AuthorizeTenant(a.deps.Keys, r, scope)
	v.principal = p
	if problem != nil {
		return nil, problem
	}
	if wait := a.deps.Limits.Refused(p, w.Header()); wait > 0 {
		v.shown = true
		drain(r, most)
		return nil, rateLimited(wait)
	}
	if problem := checkType(r); problem != nil {
		return nil, problem
	}
	problem = a.readBody(v, r, most)
	if problem != nil && problem.Status == http.StatusServiceUnavailable {
		drain(r, most)
	}
	return p, problem
}

// drain reads a body that nobody wants any more: a caller who is told to come
// back later would else lose that answer with the connection, which net/http
// closes on more than 256 KiB that were not read.
func drain(r *http.Request, most int) {
	if r.ContentLength <= int64(most) {
		_, _ = io.CopyN(io.Discard, r.Body, int64(most)) // the caller may be gone
	}
}

// receive admits a request that brings events.
func (a *API) receive(v *visit, w http.ResponseWriter, r *http.Request, most int) (*apikey.Principal, *httpserver.Problem) {
	p, problem := a.admit(v, w, r, apikey.ScopeEventsWrite, most)
	if problem != nil {
		return nil, problem
	}
	now := a.deps.Now()
	earliest, latest := intake.Window(now, p.Tenant.RetentionMonths, a.cfg.Ahead)
	v.caller = intake.Caller{
		TenantID: p.TenantID, CellID: p.Tenant.CellID, ReceivedAt: now.UTC(),
		Earliest: earliest, Latest: latest, Clamp: p.Tenant.Clamp, RequestID: httpserver.RequestID(r.Context()),
	}
	return p, nil
}

// refuse answers with a problem, and with the caller's limits where it is known
// who that is.
func (a *API) refuse(v *visit, problem *httpserver.Problem, w http.ResponseWriter, r *http.Request) {
	if v.principal != nil && !v.shown {
		a.deps.Limits.Show(v.principal, w.Header())
	}
	problem.Write(w, r)
}

// one serves the endpoint of a kind of event.
func (a *API) one(kind string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v := a.events.Get().(*visit)
		defer a.leave(v, false)
		if problem := a.takeOne(v, kind, w, r); problem != nil {
			a.refuse(v, problem, w, r)
			return
		}
		accepted(w, v.answer)
	}
}

func (a *API) takeOne(v *visit, kind string, w http.ResponseWriter, r *http.Request) *httpserver.Problem {
	p, problem := a.receive(v, w, r, a.cfg.MaxEventBody)
	if problem != nil {
		return problem
	}
	if v.caller.IdempotencyKey, problem = keyHeader(r); problem != nil {
		return problem
	}
	ev, refusal := v.parser.One(kind, v.body, &v.caller)
	if refusal == nil {
		refusal = a.judge(ev, -1)
	}
	if refusal != nil {
		a.metrics.rejected(refusal.Code)
		return problemOf(refusal)
	}
	v.records = append(v.records, Record{Event: ev, Traceparent: httpserver.Traceparent(r.Context())})
	if problem := a.enqueue(v, p, w, r); problem != nil {
		return problem
	}
	v.answer = append(appendAccepted(append(v.answer, '{'), ev), '\n')
	return nil
}

// batch serves the endpoint of many events: 202 with one result each, in order.
func (a *API) batch(w http.ResponseWriter, r *http.Request) {
	v := a.batches.Get().(*visit)
	defer a.leave(v, true)
	if problem := a.takeBatch(v, w, r); problem != nil {
		a.refuse(v, problem, w, r)
		return
	}
	accepted(w, v.answer)
}

func (a *API) takeBatch(v *visit, w http.ResponseWriter, r *http.Request) *httpserver.Problem {
	p, problem := a.receive(v, w, r, a.cfg.MaxBatchBody)
	if problem != nil {
		return problem
	}
	items, refusal := v.parser.Batch(v.body, &v.caller)
	if refusal != nil {
		a.metrics.rejected(refusal.Code)
		return problemOf(refusal)
	}
	a.judgeAll(items)
	trace := httpserver.Traceparent(r.Context())
	for _, it := range items {
		if it.Err != nil {
			a.metrics.rejected(it.Err.Code)
			continue
		}
		v.records = append(v.records, Record{Event: it.Event, Traceparent: trace})
	}
	if len(v.records) == 0 {
		return noneAccepted(items)
	}
	if problem := a.enqueue(v, p, w, r); problem != nil {
		return problem
	}
	v.answer = appendResults(v.answer, items, len(v.records))
	return nil
}

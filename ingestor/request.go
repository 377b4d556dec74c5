package ingestor

import (
	"context"
	"errors"
	"net/http"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/ingestor/message"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/schemas"
)

// messages serves POST /v1/messaging/messages: 202 says that the request is in
// the queue of its rail, and nothing of whether a message may go.
func (a *API) messages(w http.ResponseWriter, r *http.Request) {
	v := a.batches.Get().(*visit)
	defer a.leave(v, true)
	if problem := a.takeMessages(v, w, r); problem != nil {
		a.refuse(v, problem, w, r)
		return
	}
	accepted(w, v.answer)
}

func (a *API) takeMessages(v *visit, w http.ResponseWriter, r *http.Request) *httpserver.Problem {
	p, problem := a.admit(v, w, r, apikey.ScopeMessagesWrite, a.cfg.MaxMessageBody)
	if problem != nil {
		return problem
	}
	key, problem := keyHeader(r)
	if problem != nil {
		return problem
	}
	req, problem := message.Parse(v.parser, v.body, &message.Caller{TenantID: p.TenantID, CellID: p.Tenant.CellID,
		ReceivedAt: a.deps.Now(), IdempotencyKey: key, Channels: a.deps.Channels})
	if problem != nil {
		a.metrics.refused.WithLabelValues(problem.Code).Inc()
		return problem
	}
	if !a.hold(v, cap(v.body)+2*len(v.body)) {
		return overloaded()
	}
	if problem := a.charge(v, p, req.Count, w, r); problem != nil {
		return problem
	}
	ctx, cancel := context.WithTimeout(r.Context(), a.cfg.EnqueueTimeout)
	defer cancel()
	if problem := a.queued(r.Context(), "message", a.deps.Requests.Request(ctx, &req.NotificationRequested, httpserver.Traceparent(r.Context()))); problem != nil {
		return problem
	}
	a.metrics.requests.WithLabelValues(req.Category).Inc()
	a.metrics.recipients.WithLabelValues(req.Category).Add(float64(req.Count))
	v.answer = ids.AppendText(append(v.answer, `{"request_id":"`...), req.RequestID)
	v.answer = appendText(append(v.answer, `","correlation_id":`...), req.CorrelationID)
	v.answer = append(v.answer, "}\n"...)
	return nil
}

// Request implements Requester. The rails part here, at the request: a million
// marketing requests never stand before a code (architecture §3).
func (k *Kafka) Request(ctx context.Context, n *schemas.NotificationRequested, traceparent string) error {
	topic := schemas.TopicRequestedTransactional
	if rail, _ := schemas.RailOf(n.Category); rail == schemas.RailMarketing {
		topic = schemas.TopicRequestedMarketing
	}
	f := k.flights.Get().(*flight)
	value, err := k.codec.Encode(ctx, f.bytes, topic, n)
	if err != nil {
		f.abandon()
		if errors.Is(err, schemas.ErrRegistryAway) {
			return &EnqueueError{EnqueueRegistry, err}
		}
		return &EnqueueError{EnqueueOther, err}
	}
	f.bytes = value
	h := kafka.Event{ID: n.RequestID.String(), Type: RequestType, Source: kafka.Source(n.TenantID), Subject: n.Category,
		Time: n.ReceivedAt, CorrelationID: n.CorrelationID, TraceParent: traceparent}
	f.records = append(f.records, kgo.Record{Topic: k.cfg.Topic(topic), Key: []byte(n.TenantID.String()), Value: value, Headers: h.Headers()})
	return k.fly(ctx, f)
}

package sandbox

import (
	"encoding/binary"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// taken is the outcome of a request that was taken, small enough to be kept for
// a day: the ids follow from the first one's number.
type taken struct {
	single  bool
	first   uint64
	count   int
	refused []itemRefusal
}

type itemRefusal struct {
	Index   int    `json:"index"`
	Message string `json:"message"`
}

type answerID struct {
	ID string `json:"id"`
}

type batchAnswer struct {
	Data   []answerID    `json:"data"`
	Errors []itemRefusal `json:"errors,omitempty"`
}

// maxContent is how much of a message's HTML and text is kept, in bytes.
const maxContent = 256 << 10

// messageID makes a UUID of a message's number, unlike those of other sandboxes.
func (s *Server) messageID(number uint64) string {
	var id uuid.UUID
	copy(id[:8], s.instance[:])
	binary.BigEndian.PutUint64(id[8:], number)
	id[6] = id[6]&0x0f | 0x80 // version 8: ours to define
	id[8] = id[8]&0x3f | 0x80
	return id.String()
}

// take takes the messages, all of them or, in a permissive batch, those that are
// in order.
func (x *exchange) take(messages []checked) (*taken, *apiError) {
	for _, m := range messages {
		if m.refusal == nil && slices.Contains(x.cfg.UnverifiedDomains, domainOf(m.email.From)) {
			return nil, refuse(http.StatusForbidden, nameValidation, "The domain is not verified.")
		}
	}
	refused, err := x.sort(messages)
	if err != nil {
		return nil, err
	}
	count := len(messages) - len(refused)
	if err := x.quota.take(x.record.At, count, x.w.Header()); err != nil {
		return nil, err
	}
	t := &taken{
		single: x.endpoint == endpointSingle, count: count, refused: refused,
		first: x.messages.Add(uint64(count)) - uint64(count) + 1,
	}
	x.ledger.accepted.Add(uint64(count))
	x.ledger.refused.Add(uint64(len(refused)))
	x.deliver(messages, t)
	return t, nil
}

// sort finds the messages that are refused; without a permissive batch, the
// first of them refuses the request.
func (x *exchange) sort(messages []checked) ([]itemRefusal, *apiError) {
	permissive := x.endpoint == endpointBatch && strings.EqualFold(x.r.Header.Get(headerValidation), "permissive")
	var refused []itemRefusal
	for i, m := range messages {
		err := m.refusal
		if err == nil && x.fault.Kind == FaultPartial && slices.Contains(x.fault.Items, i) {
			err = invalid(orString(x.fault.Message, "Injected."))
		}
		if err == nil {
			continue
		}
		if !permissive {
			return nil, err
		}
		refused = append(refused, itemRefusal{Index: i, Message: err.Message})
	}
	return refused, nil
}

// deliver puts what was taken into the ledger and sets its events going.
func (x *exchange) deliver(messages []checked, t *taken) {
	seq := x.noteTaken(t)
	x.eachTaken(messages, t, func(id string, m inbound) {
		x.receive(seq, id, m)
		x.ledger.contents.add(func(uint64) Content { return x.content(id, m) })
		x.hooks.follow(id, m, x.record.At)
	})
}

// repeat notes a request that is answered as before.
func (x *exchange) repeat(messages []checked, t *taken) {
	x.record.Replay = true
	x.ledger.replayed.Add(1)
	seq := x.noteTaken(t)
	x.eachTaken(messages, t, func(id string, m inbound) { x.receive(seq, id, m) })
}

func (x *exchange) noteTaken(t *taken) uint64 {
	x.record.Count = t.count
	return x.note(x.fault.outcome())
}

func (x *exchange) eachTaken(messages []checked, t *taken, visit func(id string, m inbound)) {
	number, next := t.first, 0
	for i, m := range messages {
		if next < len(t.refused) && t.refused[next].Index == i {
			next++
			continue
		}
		visit(x.messageID(number), m.email)
		number++
	}
}

func (x *exchange) receive(request uint64, id string, m inbound) {
	x.ledger.receipts.add(func(seq uint64) Receipt {
		return Receipt{
			Seq: seq, Request: request, At: x.record.At, Key: x.record.Key, TenantID: m.tag("tenant_id"), SendID: m.tag("send_id"),
			To: strings.Join(m.To, ","), BodySHA256: x.record.BodySHA256, MessageID: id, Replay: x.record.Replay, Answer: x.record.Answer,
		}
	})
}

func (x *exchange) content(id string, m inbound) Content {
	c := Content{
		MessageID: id, At: x.record.At, From: m.From, To: m.To, ReplyTo: m.ReplyTo, Subject: m.Subject,
		HTML: clip(m.HTML, maxContent), Text: clip(m.Text, maxContent), Headers: m.Headers, Tags: map[string]string{},
	}
	for _, t := range m.Tags {
		c.Tags[t.Name] = t.Value
	}
	return c
}

// render gives the answer's body. It is the same for a request and its repeats.
func (s *Server) render(t *taken) []byte {
	ids := make([]answerID, t.count)
	for i := range ids {
		ids[i].ID = s.messageID(t.first + uint64(i))
	}
	var v any = batchAnswer{Data: ids, Errors: t.refused}
	if t.single {
		v = answerID{}
		if len(ids) > 0 {
			v = ids[0]
		}
	}
	body, err := json.Marshal(v)
	if err != nil {
		s.log.Error("sandbox could not encode an answer", "error", err)
	}
	return body
}

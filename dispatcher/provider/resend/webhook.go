package resend

import (
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/dispatcher/provider"
)

// webhook is the envelope. What is not needed to know the event at all stays
// raw, so that one field of another shape than documented costs that field only.
type webhook struct {
	Type      string          `json:"type"`
	CreatedAt json.RawMessage `json:"created_at"`
	Data      json.RawMessage `json:"data"`
}

type webhookData struct {
	EmailID    json.RawMessage `json:"email_id"`
	CreatedAt  json.RawMessage `json:"created_at"`
	To         json.RawMessage `json:"to"`
	Tags       json.RawMessage `json:"tags"`
	Bounce     json.RawMessage `json:"bounce"`
	Failed     json.RawMessage `json:"failed"`
	Suppressed json.RawMessage `json:"suppressed"`
}

var errNotWebhook = errors.New("read a resend webhook: it is no JSON object with a type")

// ParseWebhook reads a webhook's body, which the caller has verified. An unknown
// type, or one that concerns no outbound email, is an event without a status;
// fields that are unknown, absent or of another shape are left out. Only what
// is no event at all is an error.
func ParseWebhook(body []byte) (provider.Event, error) {
	if ev, ok := quick(body); ok {
		return ev, nil
	}
	return parseWebhook(body)
}

func parseWebhook(body []byte) (provider.Event, error) {
	var w webhook
	if err := json.Unmarshal(body, &w); err != nil || w.Type == "" {
		return provider.Event{}, errNotWebhook
	}
	var d webhookData
	lenient(w.Data, &d)
	ev := provider.Event{Type: w.Type, OccurredAt: readTime(w.CreatedAt)}
	if ev.OccurredAt.IsZero() {
		ev.OccurredAt = readTime(d.CreatedAt)
	}
	if !strings.HasPrefix(w.Type, "email.") {
		return ev, nil
	}
	lenient(d.EmailID, &ev.ProviderMessageID)
	ev.Recipients = readList(d.To)
	tags := readTags(d.Tags)
	ev.SendID, ev.TenantID = readID(tags[tagSend]), readID(tags[tagTenant])
	ev.Status, ev.Reason = readStatus(w.Type, d)
	return ev, nil
}

// lenient leaves v as it is where raw is absent or of another shape.
func lenient(raw json.RawMessage, v any) bool {
	return len(raw) > 0 && json.Unmarshal(raw, v) == nil
}

// readStatus gives the empty status for what changes no send.
func readStatus(kind string, d webhookData) (provider.Status, string) {
	switch kind {
	case "email.sent":
		return provider.StatusSent, ""
	case "email.delivered":
		return provider.StatusDelivered, ""
	case "email.delivery_delayed":
		return provider.StatusDelayed, ""
	case "email.opened":
		return provider.StatusOpened, ""
	case "email.clicked":
		return provider.StatusClicked, ""
	case "email.complained":
		return provider.StatusComplained, ""
	case "email.bounced":
		return readBounce(d.Bounce)
	case "email.failed":
		var f struct{ Reason string }
		lenient(d.Failed, &f)
		return provider.StatusFailed, provider.Redact(f.Reason)
	case "email.suppressed":
		var s struct{ Reason, Message string }
		lenient(d.Suppressed, &s)
		return provider.StatusSuppressed, reason(s.Reason, s.Message)
	default:
		return "", ""
	}
}

// readBounce takes Permanent alone for hard: a hard bounce suppresses the
// address, and that must not rest on a type that nobody has seen yet.
func readBounce(raw json.RawMessage) (provider.Status, string) {
	var b struct{ Type, SubType, Message string }
	lenient(raw, &b)
	kind := b.Type
	if b.SubType != "" {
		kind += "/" + b.SubType
	}
	if b.Type == "Permanent" {
		return provider.StatusHardBounce, reason(kind, b.Message)
	}
	return provider.StatusSoftBounce, reason(kind, b.Message)
}

func reason(kind, message string) string {
	if kind != "" && message != "" {
		kind += ": "
	}
	return provider.Redact(kind + message)
}

// readTags reads the documented object and the array that Resend's own tools
// type it as.
func readTags(raw json.RawMessage) map[string]string {
	object := map[string]json.RawMessage{}
	if lenient(raw, &object) {
		tags := make(map[string]string, len(object))
		for name, value := range object {
			var s string
			lenient(value, &s)
			tags[name] = s
		}
		return tags
	}
	var array []json.RawMessage
	lenient(raw, &array)
	tags := make(map[string]string, len(array))
	for _, entry := range array {
		var t tag
		if lenient(entry, &t) {
			tags[t.Name] = t.Value
		}
	}
	return tags
}

// readID takes the form that Freeze writes and no other of uuid.Parse's.
func readID(s string) uuid.UUID {
	id, err := uuid.Parse(s)
	if err != nil || len(s) != len(uuid.Nil.String()) {
		return uuid.Nil
	}
	return id
}

func readList(raw json.RawMessage) []string {
	var list []string
	if lenient(raw, &list) {
		return list
	}
	var one string
	if lenient(raw, &one) && one != "" {
		return []string{one}
	}
	return nil
}

// readTime reads the forms that Resend has been seen to write: RFC 3339 with
// Z or an offset, and the one with a space and a short offset of its examples.
func readTime(raw json.RawMessage) time.Time {
	var s string
	lenient(raw, &s)
	return parseTime(s)
}

package sms

import (
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/dispatcher/provider"
)

var errNotCallback = errors.New("read an sms status callback: it names no message or no status")

// ParseCallback reads a status callback's body, which the caller has verified: a
// form, or the same names in JSON. The send's id is not in it but in the URL:
// see Refer. An unknown status is an event without one. Only what is no status
// callback at all is an error.
func ParseCallback(body []byte) (provider.Event, error) {
	fields := readFields(body)
	sid, status := first(fields, "MessageSid", "SmsSid"), first(fields, "MessageStatus", "SmsStatus")
	if sid == "" || status == "" {
		return provider.Event{}, errNotCallback
	}
	ev := provider.Event{Type: "message." + status, ProviderMessageID: sid, OccurredAt: readTime(fields["RawDlrDoneDate"])}
	ev.Status, ev.Reason = readStatus(status, fields["ErrorCode"], fields["ErrorMessage"])
	if to := fields["To"]; to != "" {
		ev.Recipients = []string{to}
	}
	return ev, nil
}

// Reference is what a callback is about, and the id to dedupe it by: the API
// gives its callbacks none, and a message has each status once.
type Reference struct {
	SendID, TenantID           uuid.UUID
	ProviderMessageID, EventID string
}

// Refer reads a verified callback's URL and body; it bears any input.
func Refer(query url.Values, body []byte) Reference {
	fields := readFields(body)
	ref := Reference{SendID: readID(query.Get(paramSend)), TenantID: readID(query.Get(paramTenant)), ProviderMessageID: first(fields, "MessageSid", "SmsSid")}
	if status := first(fields, "MessageStatus", "SmsStatus"); ref.ProviderMessageID != "" && status != "" {
		ref.EventID = ref.ProviderMessageID + ":" + status
	}
	return ref
}

// readFields reads either form of a body; what is no text in JSON is written as
// it stands there.
func readFields(body []byte) map[string]string {
	out := map[string]string{}
	var object map[string]json.RawMessage
	if json.Unmarshal(body, &object) == nil {
		for name, raw := range object {
			var s string
			if json.Unmarshal(raw, &s) != nil && string(raw) != "null" {
				s = string(raw)
			}
			out[name] = s
		}
		return out
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return out
	}
	for name := range form {
		out[name] = form.Get(name)
	}
	return out
}

func first(fields map[string]string, names ...string) string {
	for _, n := range names {
		if v := fields[n]; v != "" && len(v) <= 128 {
			return v
		}
	}
	return ""
}

// readStatus gives the empty status for what changes no send.
func readStatus(status, code, message string) (provider.Status, string) {
	switch status {
	case "sent":
		return provider.StatusSent, ""
	case "delivered":
		return provider.StatusDelivered, ""
	case "read":
		return provider.StatusOpened, ""
	case "undelivered", "failed", "canceled":
		return readFailure(code), reason(status, code, message)
	default: // accepted, scheduled, queued, sending: on its way
		return "", ""
	}
}

// readFailure takes two codes alone for a number that will never do: such a one
// is suppressed, and that must not rest on a carrier's bad day.
func readFailure(code string) provider.Status {
	switch code {
	case "30005", "30006": // no such handset; a landline
		return provider.StatusHardBounce
	case "21610": // its owner said stop
		return provider.StatusSuppressed
	default:
		return provider.StatusFailed
	}
}

func reason(status, code, message string) string {
	parts := []string{status}
	if code != "" && code != "0" {
		parts = append(parts, code)
	}
	if message != "" {
		parts = append(parts, message)
	}
	return provider.Redact(strings.Join(parts, ": "))
}

// readID takes the form that Freeze writes and no other of uuid.Parse's.
func readID(s string) uuid.UUID {
	id, err := uuid.Parse(s)
	if err != nil || len(s) != len(uuid.Nil.String()) {
		return uuid.Nil
	}
	return id
}

// readTime reads a carrier's time, to the minute and in UTC.
func readTime(s string) time.Time {
	t, err := time.Parse("0601021504", s)
	if err != nil {
		return time.Time{}
	}
	return t.UTC()
}

package sandbox

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

// sent is what a message's events say of it.
type sent struct {
	ID      string
	At      time.Time
	From    string
	To      []string
	Subject string
	Tags    map[string]string
	Headers []header
}

type header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func newSent(id string, m inbound, at time.Time) *sent {
	out := &sent{ID: id, At: at, From: m.From, To: m.To, Subject: m.Subject, Tags: map[string]string{}}
	for _, t := range m.Tags {
		out.Tags[t.Name] = t.Value
	}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		out.Headers = append(out.Headers, header{name, m.Headers[name]})
	}
	return out
}

// story is what becomes of a message, event by event: it stands in the local
// part of its first recipient, as in bounced@example.com or
// bounced+7@example.com.
func story(local string) []string {
	switch local {
	case "bounced":
		return []string{"email.sent", "email.bounced"}
	case "soft":
		return []string{"email.sent", kindSoftBounce}
	case "complained":
		return []string{"email.sent", "email.delivered", "email.complained"}
	case "opened":
		return []string{"email.sent", "email.delivered", "email.opened"}
	case "clicked":
		return []string{"email.sent", "email.delivered", "email.opened", "email.clicked"}
	case "delayed":
		return []string{"email.sent", "email.delivery_delayed", "email.delivered"}
	case "failed":
		return []string{"email.sent", "email.failed"}
	case "suppressed":
		return []string{"email.suppressed"}
	default:
		return []string{"email.sent", "email.delivered"}
	}
}

// kindSoftBounce goes out as email.bounced of another bounce type.
const kindSoftBounce = "email.bounced/soft"

type webhookBody struct {
	Type      string      `json:"type"`
	CreatedAt string      `json:"created_at"`
	Data      webhookData `json:"data"`
}

type webhookData struct {
	EmailID    string            `json:"email_id"`
	CreatedAt  string            `json:"created_at"`
	From       string            `json:"from"`
	To         []string          `json:"to"`
	Subject    string            `json:"subject"`
	Tags       map[string]string `json:"tags,omitempty"`
	Headers    []header          `json:"headers,omitempty"`
	Bounce     *bounce           `json:"bounce,omitempty"`
	Click      *click            `json:"click,omitempty"`
	Failed     *failed           `json:"failed,omitempty"`
	Suppressed *suppressed       `json:"suppressed,omitempty"`
}

type bounce struct {
	Type           string   `json:"type"`
	SubType        string   `json:"subType"`
	Message        string   `json:"message"`
	DiagnosticCode []string `json:"diagnosticCode"`
}

type click struct {
	IPAddress string `json:"ipAddress"`
	Link      string `json:"link"`
	Timestamp string `json:"timestamp"`
	UserAgent string `json:"userAgent"`
}

type failed struct {
	Reason string `json:"reason"`
}

type suppressed struct {
	Message        string   `json:"message"`
	Reason         string   `json:"reason"`
	Type           string   `json:"type"`
	DiagnosticCode []string `json:"diagnosticCode"`
}

// The two ways in which Resend writes a time.
const (
	outerTime = "2006-01-02T15:04:05.000Z"
	innerTime = "2006-01-02T15:04:05.000000-07:00"
)

// webhookFor gives an event's body: the same bytes at every attempt.
func webhookFor(kind string, m *sent, at time.Time) ([]byte, error) {
	b := webhookBody{
		Type:      kind,
		CreatedAt: at.UTC().Format(outerTime),
		Data: webhookData{
			EmailID: m.ID, CreatedAt: m.At.UTC().Format(innerTime), From: m.From, To: m.To, Subject: m.Subject,
			Tags: m.Tags, Headers: m.Headers,
		},
	}
	switch kind {
	case "email.bounced":
		b.Data.Bounce = &bounce{
			Type: "Permanent", SubType: "General", Message: "The recipient's mail server rejected the message.",
			DiagnosticCode: []string{"smtp; 550 5.1.1 user unknown"},
		}
	case kindSoftBounce:
		b.Type = "email.bounced"
		b.Data.Bounce = &bounce{
			Type: "Transient", SubType: "MailboxFull", Message: "The recipient's mailbox is full.",
			DiagnosticCode: []string{"smtp; 452 4.2.2 mailbox full"},
		}
	case "email.clicked":
		b.Data.Click = &click{
			IPAddress: "192.0.2.1", Link: "https://example.com/", Timestamp: at.UTC().Format(outerTime), UserAgent: "sandbox",
		}
	case "email.failed":
		b.Data.Failed = &failed{Reason: "reached_daily_quota"}
	case "email.suppressed":
		b.Data.Suppressed = &suppressed{
			Message: "The recipient is suppressed.", Reason: "previous_bounce", Type: "OnAccountSuppressionList",
			DiagnosticCode: []string{},
		}
	}
	body, err := json.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("encode the webhook %s: %w", kind, err)
	}
	return body, nil
}

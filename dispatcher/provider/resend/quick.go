package resend

import (
	"time"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/internal/jsonscan"
)

// A blast brings two reports a message, and the front door reads what the stage reads
// again. quick reads a report in the documented shape in one pass; whatever is
// different in any way, well-formed or not, is none of its business and goes through
// encoding/json (ParseWebhook). What it reads, it reads as that would; a test holds
// the two together.
func quick(body []byte) (ev provider.Event, ok bool) {
	var r report
	r.scan.Reset(body)
	end := r.object(r.scan.Space(0), func(key string, i int) int {
		switch key {
		case "type":
			return r.text(i, &r.kind)
		case "created_at":
			return r.text(i, &r.at)
		case "data":
			if r.data {
				return -1
			}
			r.data = true
			return r.object(i, r.field)
		}
		return r.scan.Value(i, 2)
	})
	if end < 0 || r.scan.Space(end) != len(body) || r.scan.Soft.Code != "" {
		return provider.Event{}, false
	}
	ev = provider.Event{Type: r.kind, Status: quickStatus(r.kind), ProviderMessageID: r.id, Recipients: r.to,
		SendID: readID(r.send), TenantID: readID(r.tenant), OccurredAt: parseTime(r.at)}
	return ev, ev.Status != "" && !ev.OccurredAt.IsZero()
}

// quickStatus knows those that say nothing of why.
func quickStatus(kind string) provider.Status {
	switch kind {
	case "email.sent", "email.delivered", "email.delivery_delayed", "email.opened", "email.clicked", "email.complained":
		status, _ := readStatus(kind, webhookData{})
		return status
	}
	return ""
}

// report is what stands in one; of each field there is one. Its methods walk what
// begins at i and give the offset behind it, or -1.
type report struct {
	scan                       jsonscan.Scanner
	data, tags                 bool // were there
	kind, at, id, send, tenant string
	to                         []string
}

func (r *report) field(key string, i int) int {
	switch key {
	case "email_id":
		return r.text(i, &r.id)
	case "to":
		return r.list(i)
	case "tags":
		if r.tags {
			return -1
		}
		r.tags = true
		return r.object(i, func(key string, i int) int {
			switch key {
			case tagSend:
				return r.text(i, &r.send)
			case tagTenant:
				return r.text(i, &r.tenant)
			}
			return r.scan.Value(i, 4)
		})
	}
	return r.scan.Value(i, 3)
}

// object hands each key over, whose value field walks. encoding/json knows other
// forms of a letter for the same, so there are none of them.
func (r *report) object(i int, field func(key string, i int) int) int {
	if r.scan.At(i) != '{' {
		return -1
	}
	if i = r.scan.Space(i + 1); r.scan.At(i) == '}' {
		return i + 1
	}
	for {
		name, kept, next := r.scan.Key(i)
		if next < 0 || !kept || !lower(name) {
			return -1
		}
		if i = field(string(name), next); i < 0 {
			return -1
		}
		switch i = r.scan.Space(i); r.scan.At(i) {
		case '}':
			return i + 1
		case ',':
			i = r.scan.Space(i + 1)
		default:
			return -1
		}
	}
}

func lower(key []byte) bool {
	for _, c := range key {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return true
}

// text takes a string that is not empty and was not there before.
func (r *report) text(i int, into *string) int {
	if *into != "" || r.scan.At(i) != '"' {
		return -1
	}
	ref, next := r.scan.String(i)
	if next < 0 {
		return -1
	}
	if *into = string(r.scan.Text(ref)); *into == "" {
		return -1
	}
	return next
}

// list takes strings, at least one.
func (r *report) list(i int) int {
	if r.to != nil || r.scan.At(i) != '[' {
		return -1
	}
	for {
		if i = r.scan.Space(i + 1); r.scan.At(i) != '"' {
			return -1
		}
		ref, next := r.scan.String(i)
		if next < 0 {
			return -1
		}
		r.to = append(r.to, string(r.scan.Text(ref)))
		switch i = r.scan.Space(next); r.scan.At(i) {
		case ']':
			return i + 1
		case ',':
		default:
			return -1
		}
	}
}

func parseTime(s string) time.Time {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999Z07", "2006-01-02 15:04:05.999999999Z07:00"} {
		if t, err := time.Parse(layout, s); err == nil {
			return t.UTC()
		}
	}
	return time.Time{}
}

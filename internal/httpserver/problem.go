package httpserver

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// ProblemType is the media type of every error body (RFC 9457).
const ProblemType = "application/problem+json"

// typePrefix makes a problem's type URI of its code.
const typePrefix = "urn:carril:problem:"

// Problem is an error as a client sees it. Code is what programs switch on and
// never changes its meaning; the texts are for people and may.
type Problem struct {
	Status     int
	Code       string
	Title      string         // one sentence for the code; empty: the status' phrase
	Detail     string         // this occurrence; never a secret, a recipient or a payload
	Pointer    string         // JSON pointer to the field at fault; empty: none
	ServerTime time.Time      // our clock, where the caller's may be at fault; zero: none
	Extra      map[string]any // further members; one that does not marshal is left out
	RetryAfter int            // seconds, for the header of that name; 0: none
	Challenge  string         // WWW-Authenticate; empty: none
}

// JSON renders the problem with instance, the request id, as its instance. It
// cannot fail: what does not marshal is left out.
func (p *Problem) JSON(instance string) []byte {
	title := p.Title
	if title == "" {
		title = http.StatusText(p.Status)
	}
	b := appendMember(nil, "type", typePrefix+p.Code)
	b = appendMember(b, "title", title)
	b = appendMember(b, "status", p.Status)
	b = appendMember(b, "code", p.Code)
	b = appendText(b, "detail", p.Detail)
	b = appendText(b, "pointer", p.Pointer)
	b = appendText(b, "instance", instance)
	if !p.ServerTime.IsZero() {
		b = appendMember(b, "server_time", p.ServerTime.UTC())
	}
	for _, k := range slices.Sorted(maps.Keys(p.Extra)) {
		b = appendMember(b, k, p.Extra[k])
	}
	return append(b, '}')
}

// Write answers r with the problem. After a body that was refused unread (408,
// 413) the connection is closed, or the rest of it would be read as a request.
func (p *Problem) Write(w http.ResponseWriter, r *http.Request) {
	body := p.JSON(RequestID(r.Context()))
	h := w.Header()
	h.Set("Content-Type", ProblemType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.RetryAfter))
	}
	if p.Challenge != "" {
		h.Set("WWW-Authenticate", p.Challenge)
	}
	if p.Status == http.StatusRequestTimeout || p.Status == http.StatusRequestEntityTooLarge {
		h.Set("Connection", "close")
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // the client that is gone needs no answer
}

func appendText(b []byte, key, value string) []byte {
	if value == "" {
		return b
	}
	return appendMember(b, key, value)
}

func appendMember(b []byte, key string, value any) []byte {
	v, err := json.Marshal(value)
	if err != nil {
		return b
	}
	k, err := json.Marshal(key)
	if err != nil {
		return b
	}
	sep := byte(',')
	if len(b) == 0 {
		sep = '{'
	}
	b = append(b, sep)
	b = append(b, k...)
	b = append(b, ':')
	return append(b, v...)
}

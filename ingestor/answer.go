package ingestor

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/schemas"
)

// jsonType is shared by all answers; net/http only reads it.
var jsonType = []string{"application/json"}

// accepted answers 202, never 200: what happens with the event is still to come
// (FS-CORE-0006 §2).
func accepted(w http.ResponseWriter, body []byte) {
	w.Header()["Content-Type"] = jsonType
	w.WriteHeader(http.StatusAccepted)
	_, _ = w.Write(body) // a caller that is gone sends it again
}

// appendAccepted writes the answer for one event, an object whose brace the
// caller has opened.
func appendAccepted(b []byte, ev *schemas.Event) []byte {
	b = append(b, `"event_id":"`...)
	b = ids.AppendText(b, ev.EventID)
	b = append(b, `","correlation_id":`...)
	b = appendText(b, ev.CorrelationID)
	return append(b, '}')
}

// appendText writes a text that intake let pass, so without control characters,
// as a JSON string.
func appendText(b []byte, s string) []byte {
	b = append(b, '"')
	for {
		i := strings.IndexAny(s, "\"\\")
		if i < 0 {
			return append(append(b, s...), '"')
		}
		b = append(b, s[:i]...)
		b = append(b, '\\', s[i])
		s = s[i+1:]
	}
}

// appendResults writes the answer for a batch.
func appendResults(b []byte, items []intake.Item, taken int) []byte {
	b = fmt.Appendf(b, `{"accepted":%d,"rejected":%d,"results":`, taken, len(items)-taken)
	b = appendItems(b, items)
	return append(b, "}\n"...)
}

func appendItems(b []byte, items []intake.Item) []byte {
	b = append(b, '[')
	for i := range items {
		if i > 0 {
			b = append(b, ',')
		}
		if it := &items[i]; it.Err != nil {
			b = append(b, `{"status":"rejected","error":`...)
			b = append(b, problemOf(it.Err).JSON("")...)
			b = append(b, '}')
		} else {
			b = appendAccepted(append(b, `{"status":"accepted",`...), it.Event)
		}
	}
	return append(b, ']')
}

// noneAccepted refuses a batch of which nothing is left, with the reasons.
func noneAccepted(items []intake.Item) *httpserver.Problem {
	return &httpserver.Problem{Status: http.StatusUnprocessableEntity, Code: "no_event_accepted", Title: "No event of the batch was accepted",
		Extra: map[string]any{"accepted": 0, "rejected": len(items), "results": json.RawMessage(appendItems(nil, items))}}
}

// problemOf is a refusal of package intake as a client sees it.
func problemOf(e *intake.Error) *httpserver.Problem {
	return &httpserver.Problem{Status: e.Code.Status(), Code: string(e.Code), Title: e.Code.Title(),
		Detail: e.Detail, Pointer: e.Pointer, ServerTime: e.ServerTime, Extra: e.Extra}
}

// keyHeader reads the Idempotency-Key header: the key itself, or a quoted
// string as in the IETF's draft. It may be absent.
func keyHeader(r *http.Request) (string, *httpserver.Problem) {
	values := r.Header["Idempotency-Key"]
	if len(values) == 0 {
		return "", nil
	}
	if len(values) > 1 || values[0] == "" || !utf8.ValidString(values[0]) {
		return "", problemOf(&intake.Error{Code: intake.InvalidIdempotencyKey, Detail: "One Idempotency-Key header with one key: 1 to " +
			strconv.Itoa(intake.MaxIdempotencyKey) + " bytes of text without control characters."})
	}
	return unquote(values[0]), nil
}

func unquote(s string) string {
	if len(s) < 2 || s[0] != '"' || s[len(s)-1] != '"' {
		return s
	}
	out := make([]byte, 0, len(s)-2)
	for i := 1; i < len(s)-1; i++ {
		if s[i] == '\\' && i+1 < len(s)-1 {
			i++
		}
		out = append(out, s[i])
	}
	return string(out)
}

package message

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/httpserver"
)

// envelope is a JSON object by key. Its text has passed intake: no key stands
// in it twice.
type envelope map[string]json.RawMessage

func envelopeOf(body []byte) (envelope, *httpserver.Problem) {
	return object(body, "", "idempotency_key", "channel", "category", "recipients", "template_id", "template_version", "content",
		"variables", "expires_at", "correlation_id")
}

// object reads an object that has some of these fields and no other. A key that
// differs only in case is the same field to many decoders (field report 15).
func object(raw json.RawMessage, pointer string, fields ...string) (envelope, *httpserver.Problem) {
	var e envelope
	if raw = bytes.TrimLeft(raw, " \t\r\n"); len(raw) == 0 || raw[0] != '{' {
		return nil, wrongType(pointer, "an object")
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		return nil, refuseAs(intake.InvalidJSON, pointer, "")
	}
	var foreign []string
	for name := range e {
		if !slices.Contains(fields, name) {
			foreign = append(foreign, name)
		}
	}
	if len(foreign) == 0 {
		return e, nil
	}
	name := slices.Min(foreign)
	at := pointer + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
	for _, f := range fields {
		if _, twice := e[f]; twice && strings.EqualFold(f, name) {
			return nil, refuseAs(intake.DuplicateKey, at, "")
		}
	}
	return nil, refuseAs(intake.UnknownField, at, "")
}

// has says that the field stands there with a value; null is absent.
func (e envelope) has(name string) bool {
	raw, ok := e[name]
	return ok && string(raw) != "null"
}

// text gives a field that is a string.
func (e envelope) text(name string) (s string, ok bool) {
	if raw := e[name]; len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		return "", false
	}
	return s, true
}

// compact renders the fields that have a value, in this order, as one object
// whose values keep their spelling.
func (e envelope) compact(names ...string) string {
	var b bytes.Buffer
	for _, name := range names {
		if e.has(name) {
			b.WriteString(`,"` + name + `":`)
			b.WriteString(compact(e[name]))
		}
	}
	if b.Len() == 0 {
		return "{}"
	}
	return "{" + b.String()[1:] + "}"
}

// compact takes the white space between tokens out of a text that is JSON.
func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return string(raw)
	}
	return b.String()
}

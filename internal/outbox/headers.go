package outbox

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/jsonscan"
)

// EncodeHeaders keeps headers as [[key, value], …]; a value that is no text goes
// as base64 and says so in a third place, so that no byte of it is lost.
func EncodeHeaders(hs []kgo.RecordHeader) []byte {
	size := 2
	for _, h := range hs {
		size += len(h.Key) + len(h.Value) + 8
	}
	out := append(make([]byte, 0, size), '[')
	for i, h := range hs {
		if i > 0 {
			out = append(out, ',')
		}
		out = appendText(append(out, '['), printable(h.Key))
		if v := string(h.Value); utf8.ValidString(v) && !strings.Contains(v, "\x00") {
			out = appendText(append(out, ','), v)
		} else {
			out = append(appendText(append(out, ','), base64.StdEncoding.EncodeToString(h.Value)), `,"base64"`...)
		}
		out = append(out, ']')
	}
	return append(out, ']')
}

// appendText appends a JSON string. Headers are nearly all ids, times and names,
// which stand in it as they are.
func appendText(out []byte, s string) []byte {
	for i := range len(s) {
		if !jsonscan.PlainByte(s[i]) {
			b, err := json.Marshal(s)
			if err != nil { // strings always marshal
				panic(err)
			}
			return append(out, b...)
		}
	}
	return append(append(append(out, '"'), s...), '"')
}

// printable makes text that PostgreSQL takes.
func printable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// DecodeHeaders reads what EncodeHeaders wrote. A process of an older version, whose
// table had jsonb, puts a 1 before it.
func DecodeHeaders(s []byte) ([]kgo.RecordHeader, error) {
	s = bytes.TrimPrefix(s, []byte{1})
	if hs, ok := plainHeaders(string(s)); ok {
		return hs, nil
	}
	var in [][]string
	if err := json.Unmarshal(s, &in); err != nil {
		return nil, fmt.Errorf("read headers: %w", err)
	}
	hs := make([]kgo.RecordHeader, len(in))
	for i, kv := range in {
		switch {
		case len(kv) == 2:
			hs[i] = kgo.RecordHeader{Key: kv[0], Value: []byte(kv[1])}
		case len(kv) == 3 && kv[2] == "base64":
			v, err := base64.StdEncoding.DecodeString(kv[1])
			if err != nil {
				return nil, fmt.Errorf("read headers: %w", err)
			}
			hs[i] = kgo.RecordHeader{Key: kv[0], Value: v}
		default:
			return nil, fmt.Errorf("read headers: no pair of key and value")
		}
	}
	return hs, nil
}

// plainHeaders reads the form that nearly all headers have: pairs of texts that
// need no escape. ok is false for any other, which encoding/json reads.
func plainHeaders(s string) (hs []kgo.RecordHeader, ok bool) {
	s, ok = strings.CutPrefix(s, "[[")
	if !ok {
		return nil, false
	}
	hs = make([]kgo.RecordHeader, 0, 10)
	for {
		var h kgo.RecordHeader
		if h.Key, s, ok = jsonscan.Plain(s); !ok || !strings.HasPrefix(s, ",") {
			return nil, false
		}
		var value string
		if value, s, ok = jsonscan.Plain(s[1:]); !ok {
			return nil, false
		}
		h.Value = []byte(value)
		hs = append(hs, h)
		if s == "]]" {
			return hs, true
		}
		if s, ok = strings.CutPrefix(s, "],["); !ok {
			return nil, false
		}
	}
}

package intake

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/schemas"
)

// FuzzOne holds the scanner against encoding/json: what is accepted is JSON
// whose values come out as they went in, and what is called broken is broken.
func FuzzOne(f *testing.F) {
	for _, tc := range refusals {
		if len(tc.body) < 2_000 {
			f.Add([]byte(tc.body), false)
		}
	}
	f.Add([]byte(track("correlation_id", `"a"`, "historical", "true")), false)
	f.Add([]byte(properties(`{"a":[1.5e3,"\ud83d\ude00",{"b":null}],"c":true}`)), false)
	f.Add([]byte(track("event_name", "", "properties", "", "traits", `{"a":"\\u0000"}`)), true)
	f.Fuzz(func(t *testing.T, body []byte, identify bool) {
		kind := Track
		if identify {
			kind = Identify
		}
		ev, err := NewParser().One(kind, body, caller())
		if err != nil {
			requireBlame(t, body, err.Code)
			return
		}
		requireFaithful(t, body, ev)
	})
}

// FuzzBatch asks the same of every event of a batch, and that each is judged as
// it would be alone.
func FuzzBatch(f *testing.F) {
	f.Add([]byte(batchOf(item(1), item(2, "event_name", "7"))))
	f.Add([]byte(batchOf(track("type", `"identify"`, "event_name", "", "properties", "", "traits", `{"a":1}`))))
	f.Add([]byte(`{"events":[1,{"a":"\u0000"},{}],"x":{"y":[]}}`))
	f.Add([]byte(batchOf(nested(40, "[", "]"), item(1, "historical", "true"))))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := NewParser().Batch(body, caller())
		if bytes.IndexByte(body, 0) >= 0 {
			return // a raw NUL costs one event, and the library the batch
		}
		if err != nil {
			if err.Code != BatchTooLarge {
				requireBlame(t, body, err.Code)
			}
			return
		}
		var b struct{ Events []json.RawMessage }
		require.NoError(t, json.Unmarshal(body, &b))
		require.Len(t, got, len(b.Events))
		for i, it := range got {
			if it.Err == nil {
				requireFaithful(t, b.Events[i], it.Event)
			}
			alone, err := NewParser().Batch(slices.Concat([]byte(`{"events":[`), b.Events[i], []byte(`]}`)), caller())
			require.Nil(t, err)
			require.Equal(t, alone[0].Err == nil, it.Err == nil)
			if it.Err != nil {
				require.Equal(t, alone[0].Err.Code, it.Err.Code)
			}
		}
	})
}

// requireBlame checks a refusal against the standard library's judgement.
func requireBlame(t *testing.T, body []byte, c Code) {
	valid := json.Valid(body)
	switch c {
	case InvalidJSON, EmptyBody, TrailingData:
		require.False(t, valid)
	case NotAnObject: // a stream of values
	default: // a raw NUL is called by its name, which the library does not know
		require.True(t, valid || bytes.IndexByte(body, 0) >= 0, "%s of what is no JSON", c)
	}
}

func requireFaithful(t *testing.T, body []byte, ev *schemas.Event) {
	require.True(t, utf8.Valid(body))
	require.LessOrEqual(t, len(bytes.TrimSpace(body)), MaxEventBytes)
	var whole any
	require.NoError(t, json.Unmarshal(body, &whole), "every number is a float64")
	requireText(t, whole, strings.Contains(string(body), "\ufffd") || bytes.Contains(bytes.ToLower(body), []byte(`\ufffd`)))

	fields := members(t, body)
	name := slotProperties
	if ev.Kind == Identify {
		name = slotTraits
	} else {
		require.Equal(t, str(t, fields["event_name"]), ev.EventName)
	}
	require.Equal(t, string(fields[name.String()]), ev.Payload)
	require.Equal(t, string(fields["identifiers"]), ev.Identifiers)
	require.Equal(t, str(t, fields["idempotency_key"]), ev.IdempotencyKey)
	if c, ok := fields["correlation_id"]; ok && string(c) != "null" {
		require.Equal(t, str(t, c), ev.CorrelationID)
	}
	require.False(t, ev.OccurredAt.Before(caller().Earliest) || ev.OccurredAt.After(caller().Latest))
}

// requireText looks for what PostgreSQL does not store, and, where the body has
// none of its own, for replacement characters: text that was lost.
func requireText(t *testing.T, v any, replaced bool) {
	switch v := v.(type) {
	case string:
		require.NotContains(t, v, "\x00")
		if !replaced {
			require.NotContains(t, v, "\ufffd")
		}
	case []any:
		for _, e := range v {
			requireText(t, e, replaced)
		}
	case map[string]any:
		for k, e := range v {
			requireText(t, k, replaced)
			requireText(t, e, replaced)
		}
	}
}

// members reads an object's fields and checks that no two are the same.
func members(t *testing.T, body []byte) map[string]json.RawMessage {
	d := json.NewDecoder(bytes.NewReader(body))
	_, err := d.Token()
	require.NoError(t, err)
	out := map[string]json.RawMessage{}
	for d.More() {
		k, err := d.Token()
		require.NoError(t, err)
		require.NotContains(t, out, k)
		var v json.RawMessage
		require.NoError(t, d.Decode(&v))
		out[k.(string)] = v
	}
	_, err = d.Token()
	require.NoError(t, err)
	_, err = d.Token()
	require.ErrorIs(t, err, io.EOF)
	return out
}

func str(t *testing.T, raw json.RawMessage) string {
	var s string
	require.NoError(t, json.Unmarshal(raw, &s))
	return s
}

package identity

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// An object that is read without encoding/json must be what encoding/json makes
// of it.
func TestPlainPairs(t *testing.T) {
	t.Parallel()
	pairs, ok := plainPairs(`{"external_id":"c-1","email":"ana@example.com"}`)
	require.True(t, ok)
	require.Equal(t, []pair{{"external_id", "c-1"}, {"email", "ana@example.com"}}, pairs)
	for _, raw := range []string{``, `{`, `{"a"`, `{"a":`, `{"a":"b"`, `{"a":"b",}`, `{"a":"b","a":"c"}`, `{"a":1}`, `{"a":"\u0061"}`, `{ "a":"b"}`, `{"a":"b"}x`, `["a"]`, `{"a":"ñ"}`} {
		_, ok := plainPairs(raw)
		require.False(t, ok, raw)
	}
	t.Run("AgreesWithEncodingJSON", rapid.MakeCheck(func(t *rapid.T) {
		raw := rapid.StringMatching(`\{("[a-c \\ñ]{0,2}":"[a-c \\,:{}]{0,3}"[,]?){0,3}\}`).Draw(t, "raw")
		pairs, ok := plainPairs(raw)
		if !ok {
			return // nothing is claimed of it
		}
		var want map[string]string
		require.NoError(t, json.Unmarshal([]byte(raw), &want))
		got := map[string]string{}
		for _, p := range pairs {
			got[p.kind] = p.value
		}
		require.Equal(t, want, got)
	}))
	require.Len(t, Read(`{"email":"a\u006ea@example.com", "phone":"anonymous"}`).ids, 1, "what is not plain is read all the same")
}

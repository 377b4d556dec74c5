package identity

import (
	"encoding/json"
	"net/mail"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/idna"
	"pgregory.net/rapid"
)

// An address that is taken without a parser must be what the parsers make of it.
func TestPlainEmail(t *testing.T) {
	t.Parallel()
	for _, v := range []string{"Ana@Example.com", "a_b-c.d@mail-1.example.com"} {
		require.True(t, plainEmail(v), v)
	}
	for _, v := range []string{"", "@example.com", "a@", "a@b", "a..b@example.com", ".a@example.com", "a.@example.com", "a@-x.com", "a@x-.com", "a@x..com",
		"a@xn--maana-pta.com", "a b@example.com", "a@example.com ", "a@b@example.com", "a@1.2.3.4", "ñ@example.com", "a@" + strings.Repeat("x", 64) + ".com"} {
		require.False(t, plainEmail(v), v)
	}
	t.Run("AgreesWithTheParsers", rapid.MakeCheck(func(t *rapid.T) {
		v := rapid.StringMatching(`[a-zA-Z0-9._+ -]{1,8}@[a-zA-Z0-9._-]{1,12}\.[a-z0-9]{1,3}`).Draw(t, "address")
		if !plainEmail(v) {
			return // nothing is claimed of it
		}
		a, err := mail.ParseAddress(v)
		require.NoError(t, err)
		require.Equal(t, v, a.Address)
		domain, err := idna.Lookup.ToASCII(v[strings.LastIndexByte(v, '@')+1:])
		require.NoError(t, err)
		got, err := Normalize(KindEmail, v)
		require.NoError(t, err)
		require.Equal(t, strings.ToLower(v[:strings.LastIndexByte(v, '@')+1]+domain), got)
	}))
}

// An object that is read without encoding/json must be what encoding/json makes
// of it.
func TestPlainPairs(t *testing.T) {
	t.Parallel()
	pairs, ok := plainPairs(`{"external_id":"c-1","email":"ana@example.com"}`)
	require.True(t, ok)
	require.Equal(t, []identifier{{"external_id", "c-1"}, {"email", "ana@example.com"}}, pairs)
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

package identifier

import (
	"crypto/sha256"
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
		got, err := Normalize(Email, v)
		require.NoError(t, err)
		require.Equal(t, strings.ToLower(v[:strings.LastIndexByte(v, '@')+1]+domain), got)
	}))
}

func TestNormalize(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ kind, given, want string }{
		{Email, " Ana@Example.COM ", "ana@example.com"},
		{Email, "Ana.Lopez+shop@Example.com", "ana.lopez+shop@example.com"}, // another mailbox, for all that we know
		{Email, "ana@mañana.example", "ana@xn--maana-pta.example"},
		{Email, "ana@XN--maana-pta.example", "ana@xn--maana-pta.example"},
		{Phone, "+58 (412) 555-0101", "+584125550101"},
		{ExternalID, " c-1 ", "c-1"},
		{ExternalID, "C-1", "C-1"}, // a tenant's own ids are told apart by case
		{Anonymous, "0f8a", "0f8a"},
		{"crm_id", "cafe\u0301", "caf\u00e9"},
	} {
		got, err := Normalize(c.kind, c.given)
		require.NoError(t, err, c.given)
		require.Equal(t, c.want, got)
	}
	for _, v := range []string{"", " ", "null", "NULL", "(null)", "undefined", "anonymous", "0", "0000", "-", "00000000-0000-0000-0000-000000000000", "[object Object]", "NaN",
		"N/A", "(not set)", strings.Repeat("x", MaxBytes+1), "a\x00b"} {
		_, err := Normalize(ExternalID, v)
		require.Error(t, err, v)
		require.NotContains(t, err.Error(), "object", "the value is not repeated")
	}
	for kind, v := range map[string]string{Email: "ana@localhost", Phone: "412 555 0101"} {
		_, err := Normalize(kind, v)
		require.Error(t, err, v)
	}
}

func TestHash(t *testing.T) {
	t.Parallel()
	key, other := []byte(strings.Repeat("k", KeyBytes)), []byte(strings.Repeat("o", KeyBytes))
	h := Hash(key, Email, "ana@example.com")
	require.Len(t, h, sha256.Size)
	require.Equal(t, h, Hash(key, Email, "ana@example.com"))
	for _, o := range [][]byte{Hash(other, Email, "ana@example.com"), Hash(key, Phone, "ana@example.com"), Hash(key, Email, "bo@example.com")} {
		require.NotEqual(t, h, o)
	}
}

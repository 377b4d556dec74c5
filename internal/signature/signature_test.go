package signature_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/softcrum/carril/internal/signature"
)

// The key of the vectors is the bytes 1 to 32; their signatures were made with
// the openssl command, not with this package.
const vectorSecret = "whsec_AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA="

var vectors = []struct {
	id        string
	timestamp int64
	body      string
	want      string
}{
	{"msg_0001", 1763855000, `{"type":"email.sent","n":1.10}`, "v1,IqFfOsvd6n35OXtFdVRLZzAoMiwt1Hd62+8mZHGsKXo="},
	{"msg_0002", 1763855001, "", "v1,DJW1COpMTdd+9HJQcNGxhZLFIypEuWqMCtJ9FGJByoE="},
}

func parse(t testing.TB, s string) signature.Secret {
	t.Helper()
	secret, err := signature.ParseSecret(s)
	require.NoError(t, err)
	return secret
}

func signed(secret signature.Secret, id string, ts time.Time, body string) http.Header {
	return headers(id, strconv.FormatInt(ts.Unix(), 10), signature.Sign(secret, id, ts, []byte(body)))
}

func headers(id, ts, sig string) http.Header {
	return http.Header{
		signature.HeaderID:        {id},
		signature.HeaderTimestamp: {ts},
		signature.HeaderSignature: {sig},
	}
}

// byHand is HMAC-SHA256 from its definition, so that Sign is not checked
// against the library that it calls.
func byHand(key []byte, message string) string {
	const block = 64
	inner, outer := make([]byte, block), make([]byte, block)
	for i := range block {
		var k byte
		if i < len(key) {
			k = key[i]
		}
		inner[i], outer[i] = k^0x36, k^0x5c
	}
	in := sha256.Sum256(slices.Concat(inner, []byte(message)))
	out := sha256.Sum256(slices.Concat(outer, in[:]))
	return "v1," + base64.StdEncoding.EncodeToString(out[:])
}

func TestSign(t *testing.T) {
	t.Parallel()

	t.Run("MatchesVectorsOfAnotherTool", func(t *testing.T) {
		t.Parallel()
		for _, v := range vectors {
			got := signature.Sign(parse(t, vectorSecret), v.id, time.Unix(v.timestamp, 0), []byte(v.body))
			require.Equal(t, v.want, got, v.id)
		}
	})

	t.Run("MatchesAnHMACComputedByHand", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			key := rapid.SliceOfN(rapid.Byte(), signature.MinSecretBytes, signature.MaxSecretBytes).Draw(t, "key")
			key[0], key[1] = 1, 2
			body := rapid.SliceOf(rapid.Byte()).Draw(t, "body")
			secret, err := signature.ParseSecret("whsec_" + base64.StdEncoding.EncodeToString(key))
			require.NoError(t, err)
			got := signature.Sign(secret, "msg_a", time.Unix(1763855000, 999), body)
			require.Equal(t, byHand(key, "msg_a.1763855000."+string(body)), got)
		})
	})

	t.Run("GivesOneEntryForEachSecret", func(t *testing.T) {
		t.Parallel()
		now := time.Unix(1763855000, 0)
		secrets := []signature.Secret{signature.NewSecret(), signature.NewSecret()}
		entries := strings.Split(signature.SignAll(secrets, "msg_a", now, []byte("x")), " ")
		require.Equal(t, []string{
			signature.Sign(secrets[0], "msg_a", now, []byte("x")),
			signature.Sign(secrets[1], "msg_a", now, []byte("x")),
		}, entries)
	})
}

func TestVerify(t *testing.T) {
	t.Parallel()
	now := time.Unix(1763855000, 0)
	secret := signature.NewSecret()
	const id, body = "msg_1", `{"type":"email.sent"}`
	good := signature.Sign(secret, id, now, []byte(body))

	t.Run("AcceptsBothHeaderFamilies", func(t *testing.T) {
		t.Parallel()
		svix := http.Header{}
		svix.Set("svix-id", id)
		svix.Set("svix-timestamp", "1763855000")
		svix.Set("svix-signature", good)
		for name, h := range map[string]http.Header{"webhook": signed(secret, id, now, body), "svix": svix} {
			got, err := signature.Verify([]signature.Secret{secret}, h, []byte(body), now)
			require.NoError(t, err, name)
			require.Equal(t, id, got, name)
		}
	})

	t.Run("NeverMixesTheFamilies", func(t *testing.T) {
		t.Parallel()
		h := signed(secret, id, now, body)
		h.Del(signature.HeaderSignature)
		h.Set(signature.HeaderSvixSignature, good)
		_, err := signature.Verify([]signature.Secret{secret}, h, []byte(body), now)
		require.ErrorIs(t, err, signature.ErrMissingHeader)
	})

	t.Run("AcceptsAnyOfSeveralSecretsAndSignatures", func(t *testing.T) {
		t.Parallel()
		old := signature.NewSecret()
		h := headers(id, "1763855000", strings.Join([]string{
			"v1a,something", signature.Sign(old, id, now, []byte(body)), "v2,later", good,
		}, " "))
		for _, secrets := range [][]signature.Secret{{secret}, {old}, {signature.NewSecret(), secret}} {
			_, err := signature.Verify(secrets, h, []byte(body), now)
			require.NoError(t, err)
		}
	})

	t.Run("AcceptsSignaturesInSeveralLines", func(t *testing.T) {
		t.Parallel()
		h := signed(secret, id, now, body)
		h[signature.HeaderSignature] = []string{signature.Sign(signature.NewSecret(), id, now, []byte(body)), good}
		_, err := signature.Verify([]signature.Secret{secret}, h, []byte(body), now)
		require.NoError(t, err)
	})

	t.Run("HoldsFiveMinutesBothWays", func(t *testing.T) {
		t.Parallel()
		for off, want := range map[time.Duration]error{
			0:                            nil,
			signature.Tolerance:          nil,
			-signature.Tolerance:         nil,
			5*time.Minute + time.Second:  signature.ErrTooOld,
			-5*time.Minute - time.Second: signature.ErrTooNew,
			24 * time.Hour:               signature.ErrTooOld,
		} {
			_, err := signature.Verify([]signature.Secret{secret}, signed(secret, id, now, body), []byte(body), now.Add(off))
			if want == nil {
				require.NoError(t, err, off)
				continue
			}
			require.ErrorIs(t, err, want, off)
		}
	})

	t.Run("VerifiesTheRawBytes", func(t *testing.T) {
		t.Parallel() // bad-inputs row 72: the same JSON written again is another text
		h := signed(secret, id, now, `{"a":1.0, "b":2}`)
		_, err := signature.Verify([]signature.Secret{secret}, h, []byte(`{"a":1.0,"b":2}`), now)
		require.ErrorIs(t, err, signature.ErrMismatch)
	})
}

func TestVerifyRefuses(t *testing.T) {
	t.Parallel()
	now := time.Unix(1763855000, 0)
	secret := signature.NewSecret()
	const id, ts, body = "msg_1", "1763855000", "{}"
	good := signature.Sign(secret, id, now, []byte(body))
	other := signature.Sign(signature.NewSecret(), id, now, []byte(body))
	without := func(name string) http.Header {
		h := headers(id, ts, good)
		h.Del(name)
		return h
	}
	repeated := func(name, second string) http.Header {
		h := headers(id, ts, good)
		h.Add(name, second)
		return h
	}

	// bad-inputs row 71, and the rest of its kind.
	for name, c := range map[string]struct {
		headers http.Header
		want    signature.Error
	}{
		"nothing":              {http.Header{}, signature.ErrMissingHeader},
		"no id":                {without(signature.HeaderID), signature.ErrMissingHeader},
		"no timestamp":         {without(signature.HeaderTimestamp), signature.ErrMissingHeader},
		"no signature":         {without(signature.HeaderSignature), signature.ErrMissingHeader},
		"two ids":              {repeated(signature.HeaderID, "msg_2"), signature.ErrRepeatedHeader},
		"two timestamps":       {repeated(signature.HeaderTimestamp, ts), signature.ErrRepeatedHeader},
		"empty id":             {headers("", ts, good), signature.ErrMalformedID},
		"id with a full stop":  {headers("msg.1", ts, good), signature.ErrMalformedID},
		"id with a line break": {headers("msg\n1", ts, good), signature.ErrMalformedID},
		"id beyond 256":        {headers(strings.Repeat("a", 257), ts, good), signature.ErrMalformedID},
		"empty timestamp":      {headers(id, "", good), signature.ErrMalformedTimestamp},
		"signed timestamp":     {headers(id, "+1763855000", good), signature.ErrMalformedTimestamp},
		"negative timestamp":   {headers(id, "-1", good), signature.ErrMalformedTimestamp},
		"fraction":             {headers(id, "1763855000.0", good), signature.ErrMalformedTimestamp},
		"date":                 {headers(id, "2025-11-22T23:43:20Z", good), signature.ErrMalformedTimestamp},
		"beyond int64":         {headers(id, strings.Repeat("9", 30), good), signature.ErrMalformedTimestamp},
		"milliseconds":         {headers(id, "176385500000", good), signature.ErrTooNew},
		"leading zero":         {headers(id, "01763855000", good), signature.ErrMismatch},
		"empty signature":      {headers(id, ts, ""), signature.ErrMalformedSignature},
		"spaces":               {headers(id, ts, "    "), signature.ErrMalformedSignature},
		"v1 alone":             {headers(id, ts, "v1,"), signature.ErrMalformedSignature},
		"no comma":             {headers(id, ts, "v1"), signature.ErrMalformedSignature},
		"no version":           {headers(id, ts, strings.TrimPrefix(good, "v1,")), signature.ErrMalformedSignature},
		"odd Base64":           {headers(id, ts, good[:len(good)-2]), signature.ErrMalformedSignature},
		"not Base64":           {headers(id, ts, "v1,"+strings.Repeat("?", 44)), signature.ErrMalformedSignature},
		"another version":      {headers(id, ts, "v2,"+good[3:]), signature.ErrMalformedSignature},
		"another secret":       {headers(id, ts, other), signature.ErrMismatch},
		"another id":           {headers("msg_2", ts, good), signature.ErrMismatch},
		"1,000 signatures":     {headers(id, ts, strings.Repeat(other+" ", 999)+good), signature.ErrTooManySignatures},
		"1,000 lines":          {http.Header{signature.HeaderID: {id}, signature.HeaderTimestamp: {ts}, signature.HeaderSignature: make([]string, 1000)}, signature.ErrTooManySignatures},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := signature.Verify([]signature.Secret{secret}, c.headers, []byte(body), now)
			require.ErrorIs(t, err, c.want)
			require.Empty(t, got)
			require.Contains(t, signature.Errors(), c.want)
		})
	}

	t.Run("a list without a usable secret", func(t *testing.T) {
		t.Parallel()
		// HMAC with an empty key is something that anybody can compute.
		forged := headers(id, ts, byHand(nil, id+"."+ts+"."+body))
		for _, secrets := range [][]signature.Secret{nil, {}, {{}}, {secret, {}}} {
			_, err := signature.Verify(secrets, forged, []byte(body), now)
			require.ErrorIs(t, err, signature.ErrNoSecrets)
		}
	})
}

func TestSecret(t *testing.T) {
	t.Parallel()

	t.Run("RefusesWhatIsTooWeak", func(t *testing.T) {
		t.Parallel() // bad-inputs row 82
		for name, s := range map[string]string{
			"empty":        "",
			"prefix alone": "whsec_",
			"8 characters": "whsec_c2hvcnQx",
			"23 bytes":     "whsec_" + base64.StdEncoding.EncodeToString([]byte("abcdefghijklmnopqrstuvw")),
			"65 bytes":     "whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("ab", 33))[:65]),
			"no prefix":    "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8G",
			"not Base64":   "whsec_" + strings.Repeat("?", 40),
			"zeros":        "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 32)),
		} {
			secret, err := signature.ParseSecret(s)
			require.ErrorIs(t, err, signature.ErrWeakSecret, name)
			require.True(t, secret.IsZero(), name)
			if len(s) > 10 {
				require.NotContains(t, err.Error(), s[8:], name)
			}
		}
	})

	t.Run("ReadsPaddedAndBareBase64", func(t *testing.T) {
		t.Parallel()
		padded := parse(t, vectorSecret)
		require.Equal(t, padded, parse(t, strings.TrimRight(vectorSecret, "=")+"\n"))
		require.Equal(t, vectorSecret, padded.Reveal())
	})

	t.Run("IsGeneratedWithAtLeast24RandomBytes", func(t *testing.T) {
		t.Parallel()
		one, two := signature.NewSecret(), signature.NewSecret()
		require.NotEqual(t, one, two)
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(one.Reveal(), "whsec_"))
		require.NoError(t, err)
		require.GreaterOrEqual(t, len(key), signature.MinSecretBytes)
		require.Equal(t, one, parse(t, one.Reveal()))
	})

	t.Run("NeverPrintsItself", func(t *testing.T) {
		t.Parallel()
		secret := parse(t, vectorSecret)
		var log strings.Builder
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "secret", secret, "in", struct{ S signature.Secret }{secret})
		inJSON, err := json.Marshal(map[string]any{"secret": secret, "list": []signature.Secret{secret}})
		require.NoError(t, err)
		out := log.String() + string(inJSON) + secret.String()
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			out += fmt.Sprintf(verb, secret) + fmt.Sprintf(verb, []any{secret, &secret, struct{ S signature.Secret }{secret}})
		}
		require.NotContains(t, out, "AQID")
		require.NotContains(t, out, "010203")
		require.NotContains(t, out, "[1 2 3")
		require.NotContains(t, out, "0x1, 0x2")
		require.Contains(t, out, "whsec_[redacted]")
	})

	t.Run("IsReadFromConfigurationText", func(t *testing.T) {
		t.Parallel()
		var cfg struct{ Secret signature.Secret }
		require.NoError(t, json.Unmarshal([]byte(`{"Secret":"`+vectorSecret+`"}`), &cfg))
		require.Equal(t, vectorSecret, cfg.Secret.Reveal())
		require.ErrorIs(t, json.Unmarshal([]byte(`{"Secret":"whsec_x"}`), &cfg), signature.ErrWeakSecret)
	})
}

func FuzzVerify(f *testing.F) {
	secret := parse(f, vectorSecret)
	now := time.Unix(1763855000, 0)
	for _, v := range vectors {
		f.Add(v.id, strconv.FormatInt(v.timestamp, 10), v.want, []byte(v.body))
	}
	f.Add("", "", "v1,", []byte(nil))
	f.Add("msg.1", "-1", "v1,AAAA v1,= ,v1 v1a,x", []byte("{"))
	f.Add("msg_1", "99999999999999999999", strings.Repeat("v1,x ", 1000), []byte{0})
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(vectorSecret, "whsec_"))
	require.NoError(f, err)

	f.Fuzz(func(t *testing.T, id, ts, sig string, body []byte) {
		got, err := signature.Verify([]signature.Secret{secret}, headers(id, ts, sig), body, now)
		if err == nil {
			require.Equal(t, id, got)
			require.Contains(t, strings.Split(sig, " "), byHand(key, id+"."+ts+"."+string(body)))
			return
		}
		var reason signature.Error
		require.ErrorAs(t, err, &reason)
		require.Contains(t, signature.Errors(), reason)
		require.Empty(t, got)
	})
}

func BenchmarkVerify(b *testing.B) {
	now := time.Unix(1763855000, 0)
	secret := signature.NewSecret()
	body := strings.Repeat("x", 1024)
	h := signed(secret, "msg_1", now, body)
	for b.Loop() {
		if _, err := signature.Verify([]signature.Secret{secret}, h, []byte(body), now); err != nil {
			b.Fatal(err)
		}
	}
}

package resend_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/softcrum/carril/dispatcher/provider/resend"
)

// documented is a report as Resend writes it, where nothing says why.
func documented(kind string) []byte {
	return bytes.Replace(webhook(kind, `,"broadcast_id":null,"template_id":"t","headers":[{"name":"a","value":"b \u00e9\n"}],"n":[0,17,true,{}],"note":"é \""`),
		[]byte(`"Shop <shop@example.com>"`), []byte(`"Shop \u003cshop@example.com\u003e"`), 1)
}

func TestQuick(t *testing.T) {
	t.Parallel()
	agree := func(t require.TestingT, body []byte) (ok bool) {
		got, ok := resend.Quick(body)
		if ok {
			want, err := resend.ParseSlowly(body)
			require.NoError(t, err, "%s", body)
			require.Empty(t, cmp.Diff(want, got), "%s", body)
		}
		return ok
	}

	t.Run("ReadsWhatABlastBrings", func(t *testing.T) {
		t.Parallel()
		for _, kind := range []string{"email.sent", "email.delivered", "email.delivery_delayed", "email.opened", "email.complained"} {
			require.True(t, agree(t, documented(kind)), kind)
		}
		clicked := webhook("email.clicked", `,"click":{"ipAddress":"192.0.2.1","link":"https://example.com","timestamp":"x","userAgent":"u"}`)
		require.True(t, agree(t, clicked))
	})

	t.Run("LeavesWhatIsDifferent", func(t *testing.T) {
		t.Parallel()
		const data, end = `{"type":"email.sent","created_at":"2026-11-22T23:41:12.126Z","data":{`, `}}`
		for _, body := range []string{``, `"a":1.5e3`, `"email_id":"\u0041é"`, `"email_\u0069d":"a"`, ` "to" : [ "a" , "b" ] `, `"a":[[],{"b":[null]}]`} {
			require.True(t, agree(t, []byte(data+body+end)), body)
		}
		for _, body := range []string{
			data + end + "x", data + `"a":1,` + end, data + `"a":1 "b":2` + end, data + `"a":01` + end, data + `"a":nul` + end,
			data + `"a":"\x"` + end, data + `"a":"\u12"` + end, data + `"a":"\u12g4"` + end, data + "\"a\":\"\n\"" + end, data + `"a":[1,]` + end, data + `"a":[1 2]` + end,
			data + `"a":{"b"}` + end, data + `"a":{"b":1,}` + end, data + `"a":` + end, data + `"a":"` + end, data + `"email_id":7` + end, data + `"email_id":null` + end,
			data + `"email_id":"a","email_id":"b"` + end, data + `"Email_ID":"a"` + end, data + `"\u212aey":"a"` + end, data + `"a":{"b":1,"b":2}` + end, data + `"a":1e999` + end, data + `"email_id":""` + end, data + `"email_id":"\ud800"` + end, data + "\"email_id\":\"\xff\"" + end,
			data + `"to":[]` + end, data + `"to":"a"` + end, data + `"to":[null]` + end, data + `"tags":[{"name":"send_id","value":"x"}]` + end, data + `"tags":{"send_id":1}` + end,
			data + `"tags":{"send_id":"a","send_id":"b"}` + end, data + `"a":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + end,
			`{"type":"email.sent","data":{}}`, `{"type":"email.sent","created_at":"yesterday","data":{}}`, `{"type":"email.sent","type":"email.sent","created_at":"2026-11-22T23:41:12.126Z"}`,
			`[]`, `null`, ``, `{}`, `{`, `{"type"`, string(webhook("email.bounced", "")), string(webhook("email.something_new", "")), string(webhook("contact.created", "")),
		} {
			require.False(t, agree(t, []byte(body)), body)
		}
	})

	t.Run("ReadsNothingOtherwise", rapid.MakeCheck(func(t *rapid.T) {
		body := documented(rapid.SampledFrom([]string{"email.sent", "email.clicked", "email.bounced"}).Draw(t, "kind"))
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			at := rapid.IntRange(0, len(body)-1).Draw(t, "at")
			piece := []byte(rapid.SampledFrom([]string{"", `"`, `\`, `\u`, "{", "}", "[", "]", ",", ":", "0", "1", "e", "-", ".", " ", "null", "A", "é", "\x00", "\xff", `"to":[`, `"type":"email.opened",`, `"tags":{},`, `"send_id":`}).Draw(t, "piece"))
			body = append(append(bytes.Clone(body[:at]), piece...), body[at+rapid.IntRange(0, min(2, len(body)-at)).Draw(t, "gone"):]...)
			if len(body) == 0 {
				return
			}
		}
		agree(t, body)
	}))
}

func BenchmarkParseWebhook(b *testing.B) {
	body := documented("email.delivered")
	b.Run("quick", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := resend.Quick(body); !ok {
				b.Fatal("not quick")
			}
		}
	})
	b.Run("slow", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := resend.ParseSlowly(body); err != nil {
				b.Fatal(err)
			}
		}
	})
}

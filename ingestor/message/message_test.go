package message

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/ids"
)

var (
	tenant = uuid.MustParse("0190aaaa-0000-7000-8000-000000000001")
	now    = time.Date(2026, 11, 1, 12, 0, 0, 123_456_789, time.UTC)
)

func caller() *Caller {
	return &Caller{TenantID: tenant, CellID: "c1", ReceivedAt: now, Channels: []string{"email"}}
}

// body is a good request with fields put in or, by an empty value, taken out.
func body(change ...string) []byte {
	fields := map[string]string{"idempotency_key": `"k-1"`, "channel": `"email"`, "category": `"transactional"`,
		"recipients": `[{"address":"ana@example.com"}]`, "template_id": `"code"`}
	for i := 0; i < len(change); i += 2 {
		if fields[change[i]] = change[i+1]; change[i+1] == "" {
			delete(fields, change[i])
		}
	}
	var parts []string
	for name, v := range fields {
		parts = append(parts, fmt.Sprintf("%q:%s", name, v))
	}
	return []byte("{" + strings.Join(parts, ",") + "}")
}

func parse(t *testing.T, b []byte) *Request {
	t.Helper()
	r, problem := Parse(intake.NewParser(), b, caller())
	require.Nil(t, problem, "%+v", problem)
	return r
}

func TestParse(t *testing.T) {
	t.Parallel()
	t.Run("MakesARequest", func(t *testing.T) {
		t.Parallel()
		r := parse(t, []byte(` { "idempotency_key":"k-1", "channel":"email", "category":"product", "template_id":"code", "template_version": 3,
			"recipients":[ {"external_id":"c-1", "address":null, "variables": {"n": 9007199254740993.10}}, {"contact_id":"0190AAAA-0000-7000-8000-000000000009","variables":null} ],
			"variables" : { "a" : [1, 2] } , "expires_at":"2026-11-01T07:10:00-05:00", "content": null, "correlation_id":"corr" } `))
		require.Equal(t, ids.Request(tenant, "k-1"), r.RequestID)
		require.Equal(t, tenant, r.TenantID)
		require.Equal(t, "c1", r.CellID)
		require.Equal(t, "api", r.Origin)
		require.Equal(t, "corr", r.CorrelationID)
		require.Equal(t, "k-1", *r.IdempotencyKey)
		require.Nil(t, r.OriginEventID)
		require.Nil(t, r.ContactID)
		require.Nil(t, r.Content)
		require.Equal(t, now.Truncate(time.Millisecond), r.ReceivedAt)
		require.Equal(t, "code", *r.TemplateID)
		require.EqualValues(t, 3, *r.TemplateVersion)
		require.Equal(t, 2, r.Count)
		require.Equal(t, `[{"external_id":"c-1","variables":{"n":9007199254740993.10}},{"contact_id":"0190AAAA-0000-7000-8000-000000000009"}]`, r.Recipients)
		require.Equal(t, `{"a":[1,2]}`, r.Variables)
		require.Equal(t, time.Date(2026, 11, 1, 12, 10, 0, 0, time.UTC), *r.ExpiresAt)
		require.Len(t, r.BodyHash, 32)
	})
	t.Run("TakesContentInsteadOfATemplate", func(t *testing.T) {
		t.Parallel()
		r := parse(t, body("template_id", "", "content", `{"text":"a\r\nb <i>","html":null,"subject":"hi\r\nBcc: x@example.com"}`))
		require.Nil(t, r.TemplateID)
		require.Equal(t, `{"subject":"hi\r\nBcc: x@example.com","text":"a\r\nb <i>"}`, *r.Content)
	})
	t.Run("CorrelatesByItselfWhenTheCallerDoesNot", func(t *testing.T) {
		t.Parallel()
		r := parse(t, body())
		require.Equal(t, r.RequestID.String(), r.CorrelationID)
		require.Equal(t, "{}", r.Variables)
	})
	t.Run("TakesFiveHundredRecipients", func(t *testing.T) {
		t.Parallel()
		r := parse(t, body("recipients", "["+strings.Repeat(`{"address":"a@example.com"},`, 499)+`{"address":"a@example.com"}]`))
		var back []map[string]string
		require.NoError(t, json.Unmarshal([]byte(r.Recipients), &back))
		require.Len(t, back, 500)
	})
	t.Run("LeavesWhatIsNoAddressToTheGates", func(t *testing.T) { // bad inputs 51
		t.Parallel()
		for _, a := range []string{"Name <a@example.com>", "a@[127.0.0.1]", "a@example.com ", "a", "a@exämple.com"} {
			parse(t, body("recipients", fmt.Sprintf(`[{"address":%q}]`, a)))
		}
	})
	t.Run("TakesTheKeyFromTheHeader", func(t *testing.T) {
		t.Parallel()
		c := caller()
		c.IdempotencyKey = "h-1"
		for _, b := range [][]byte{body("idempotency_key", ""), body("idempotency_key", "null"), body("idempotency_key", `"h-1"`)} {
			r, problem := Parse(intake.NewParser(), b, c)
			require.Nil(t, problem)
			require.Equal(t, ids.Request(tenant, "h-1"), r.RequestID)
		}
		_, problem := Parse(intake.NewParser(), body(), c)
		require.Equal(t, "idempotency_key_mismatch", problem.Code)
		require.Equal(t, 422, problem.Status)
	})
}

func TestBodyHash(t *testing.T) {
	t.Parallel()
	of := func(change ...string) string { return string(parse(t, body(change...)).BodyHash) }
	base := of()
	t.Run("IsTheSameForARetry", func(t *testing.T) {
		require.Equal(t, base, of("correlation_id", `"another"`))
		require.Equal(t, base, of("variables", "{ }"))
		require.Equal(t, base, of("recipients", ` [ { "address" : "ana@example.com" , "variables" : null } ] `))
		require.Equal(t, of("expires_at", `"2026-11-01T07:10:00-05:00"`), of("expires_at", `"2026-11-01T12:10:00.0000Z"`))
	})
	t.Run("DiffersForAnotherRequest", func(t *testing.T) {
		seen := map[string]bool{base: true}
		for _, change := range [][]string{{"category", `"product"`}, {"template_id", `"other"`}, {"template_version", "1"}, {"variables", `{"a":1}`},
			{"variables", `{"a":1.0}`}, {"recipients", `[{"address":"luis@example.com"}]`}, {"recipients", `[{"external_id":"ana@example.com"}]`},
			{"expires_at", `"2026-11-01T12:10:00Z"`}, {"template_id", "", "content", `{"subject":"s","text":"t"}`}} {
			h := of(change...)
			require.False(t, seen[h], change)
			seen[h] = true
		}
	})
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 40) + strings.Repeat("]", 40)
	for _, c := range []struct {
		body    string
		status  int
		code    string
		pointer string
	}{
		{"", 400, "empty_body", ""},
		{"[]", 400, "not_an_object", ""},
		{string(body()) + "x", 400, "trailing_data", ""},
		{string(body()[:20]), 400, "invalid_json", ""},
		{string(body("variables", `{"a":"\u0000"}`)), 400, "nul_character", "/variables/a"},
		{string(body("variables", `{"a":"\ud800"}`)), 400, "lone_surrogate", "/variables/a"},
		{string(body("variables", `{"a":1,"a":2}`)), 400, "duplicate_key", "/variables/a"},
		{string(body("variables", `{"a":`+deep+`}`)), 400, "too_deep", ""},
		{string(body("variables", `{"a":1e999}`)), 400, "number_out_of_range", "/variables/a"},
		{string(body("variables", "{\"a\":\"\xff\"}")), 400, "invalid_utf8", "/variables/a"},
		{string(body("Channel", `"email"`)), 400, "duplicate_key", "/Channel"},
		{string(body("Expires_at", `null`)), 400, "unknown_field", "/Expires_at"},
		{string(body("send_at", `"2026-11-01T12:10:00Z"`)), 400, "unknown_field", "/send_at"},
		{string(body("recipients", `[{"address":"a@example.com","name":"A"}]`)), 400, "unknown_field", "/recipients/0/name"},
		{string(body("recipients", `[{"address":"a@example.com","Address":"b@example.com"}]`)), 400, "duplicate_key", "/recipients/0/Address"},
		{string(body("expires_at", `"tomorrow"`)), 400, "invalid_time", "/expires_at"},
		{string(body("expires_at", `1793534400`)), 400, "invalid_time", "/expires_at"},
		// bad inputs 48
		{string(body("recipients", `[{"address":"a@b.c\r\nBcc: x@y.z"}]`)), 400, "invalid_recipient", "/recipients/0/address"},
		{string(body("recipients", `[{"address":"ok@b.c"},{"address":"a@b.c>\r\nDATA"}]`)), 400, "invalid_recipient", "/recipients/1/address"},
		{string(body("recipients", `[{"address":"a@b.c\u2028"}]`)), 400, "invalid_recipient", "/recipients/0/address"},
		{string(body("recipients", `[{"address":""}]`)), 400, "invalid_recipient", "/recipients/0/address"},
		{string(body("recipients", `[{"external_id":12}]`)), 400, "invalid_recipient", "/recipients/0/external_id"},
		{string(body("recipients", `[{"external_id":"`+strings.Repeat("x", 513)+`"}]`)), 400, "invalid_recipient", "/recipients/0/external_id"},
		{string(body("recipients", `[{"contact_id":"urn:uuid:0190aaaa-0000-7000-8000-000000000001"}]`)), 400, "invalid_recipient", "/recipients/0/contact_id"},
		{string(body("recipients", `[{"external_id":"c","address":"a@example.com"}]`)), 400, "invalid_recipient", "/recipients/0"},
		{string(body("recipients", `[{}]`)), 400, "invalid_recipient", "/recipients/0"},
		{string(body("recipients", `["a@example.com"]`)), 400, "invalid_recipient", "/recipients/0"},
		{string(body("recipients", `[{"address":"a@example.com","variables":[]}]`)), 422, "invalid_field", "/recipients/0/variables"},
		{string(body("recipients", `[]`)), 422, "no_recipient", "/recipients"},
		{string(body("recipients", `{}`)), 422, "invalid_field", "/recipients"},
		{string(body("recipients", "")), 422, "missing_field", "/recipients"},
		{string(body("recipients", "["+strings.Repeat(`{"address":"a@example.com"},`, 500)+`{"address":"a@example.com"}]`)), 413, "too_many_recipients", "/recipients"},
		{string(body("channel", "")), 422, "missing_field", "/channel"},
		{string(body("channel", "7")), 422, "invalid_field", "/channel"},
		{string(body("channel", `"pigeon"`)), 422, "unknown_channel", "/channel"},
		{string(body("category", "null")), 422, "missing_field", "/category"},
		{string(body("category", `"urgent"`)), 422, "invalid_category", "/category"},
		{string(body("idempotency_key", "")), 422, "missing_field", "/idempotency_key"},
		{string(body("idempotency_key", `" a"`)), 422, "invalid_idempotency_key", "/idempotency_key"},
		{string(body("idempotency_key", `7`)), 422, "invalid_idempotency_key", "/idempotency_key"},
		{string(body("correlation_id", `"a\nb"`)), 422, "invalid_correlation_id", "/correlation_id"},
		{string(body("template_id", "")), 422, "content_or_template", ""},
		{string(body("content", `{"subject":"s","text":"t"}`)), 422, "content_or_template", ""},
		{string(body("template_id", "", "template_version", "1", "content", `{"subject":"s","text":"t"}`)), 422, "content_or_template", "/template_version"},
		{string(body("template_id", `""`)), 422, "invalid_template", "/template_id"},
		{string(body("template_version", "0")), 422, "invalid_template", "/template_version"},
		{string(body("template_version", "1.5")), 422, "invalid_template", "/template_version"},
		{string(body("template_version", "99999999999")), 422, "invalid_template", "/template_version"},
		{string(body("template_id", "", "content", `{"subject":"s"}`)), 422, "invalid_content", "/content"},
		{string(body("template_id", "", "content", `{"text":"t"}`)), 422, "invalid_content", "/content/subject"},
		{string(body("template_id", "", "content", `{"subject":"s","text":7}`)), 422, "invalid_content", "/content/text"},
		{string(body("template_id", "", "content", `"t"`)), 422, "invalid_field", "/content"},
		{string(body("template_id", "", "content", `{"subject":"s","text":"t","amp":"x"}`)), 400, "unknown_field", "/content/amp"},
		{string(body("template_id", "", "content", `{"subject":"s","text":"`+strings.Repeat("x", MaxContent)+`"}`)), 413, "message_too_large", "/content"},
		{string(body("variables", `{"a":"`+strings.Repeat("x", MaxVariables)+`"}`)), 413, "message_too_large", "/variables"},
		{string(body("template_id", "", "content", `{"subject":"s","text":"`+strings.Repeat("x", 100<<10)+`"}`,
			"recipients", "["+strings.Repeat(`{"address":"a@example.com"},`, 499)+`{"address":"a@example.com"}]`)), 413, "message_too_large", ""},
		{string(body("variables", `[]`)), 422, "invalid_field", "/variables"},
	} {
		name := c.code + " " + c.pointer + " " + c.body[:min(len(c.body), 60)]
		_, problem := Parse(intake.NewParser(), []byte(c.body), caller())
		require.NotNil(t, problem, name)
		require.Equal(t, c.code, problem.Code, name)
		require.Equal(t, c.status, problem.Status, name)
		if c.pointer != "" {
			require.Equal(t, c.pointer, problem.Pointer, name)
		}
		require.NotEmpty(t, problem.Title, name)
		require.Contains(t, Codes(), problem.Code)
	}
}

// FuzzParse holds what is taken to what the stage behind the topic reads.
func FuzzParse(f *testing.F) {
	f.Add(body())
	f.Add(body("recipients", `[{"external_id":"c-1","variables":{"a":[1e3]}}]`, "expires_at", `"2026-11-01T12:10:00Z"`))
	f.Add(body("template_id", "", "content", `{"subject":"s","html":"<b>"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, problem := Parse(intake.NewParser(), b, caller())
		if problem != nil {
			require.Contains(t, Codes(), problem.Code)
			require.NotZero(t, problem.Status)
			return
		}
		var asked []struct {
			ContactID  *uuid.UUID      `json:"contact_id"`
			ExternalID string          `json:"external_id"`
			Address    string          `json:"address"`
			Variables  json.RawMessage `json:"variables"`
		}
		require.NoError(t, json.Unmarshal([]byte(r.Recipients), &asked))
		require.Len(t, asked, r.Count)
		for _, a := range asked {
			require.False(t, strings.ContainsAny(a.Address, "\r\n\x00"))
			require.True(t, len(a.Variables) == 0 || a.Variables[0] == '{')
		}
		var vars map[string]any
		require.NoError(t, json.Unmarshal([]byte(r.Variables), &vars))
	})
}

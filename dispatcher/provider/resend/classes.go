package resend

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/softcrum/carril/dispatcher/provider"
)

// failure is Resend's error envelope.
type failure struct {
	StatusCode int    `json:"statusCode"`
	Name       string `json:"name"`
	Message    string `json:"message"`
}

// readFailure gives the zero failure for a body that is none, as a proxy's page.
func readFailure(body []byte) failure {
	var f failure
	if json.Unmarshal(body, &f) != nil {
		return failure{}
	}
	return f
}

// status is the envelope's own, or the first that its name has in Resend's
// table; 0 where it is no error at all.
func (f failure) status() int {
	if f.StatusCode != 0 {
		return f.StatusCode
	}
	for _, row := range table() {
		if row.name == f.Name {
			return row.status
		}
	}
	return 0
}

type row struct {
	status int
	name   string
	class  provider.Class
}

// table is Resend's own, in its order.
//
// concurrent_idempotent_requests and every 5xx are uncertain: Resend says of
// both "try the same key again", and the same key and bytes are what the rail
// uses for an uncertain attempt and for no other. As retryable they would be
// frozen anew, under a new key, beside a request that may have been taken.
func table() []row {
	return []row{
		{400, "invalid_idempotency_key", provider.ClassPermanent},
		{400, "validation_error", provider.ClassPermanent},
		{401, "missing_api_key", provider.ClassConfiguration},
		{401, "restricted_api_key", provider.ClassConfiguration},
		{403, "validation_error", provider.ClassSender}, // the domain is not verified
		{403, "invalid_api_key", provider.ClassConfiguration},
		{403, "suspended_api_key", provider.ClassConfiguration},
		{404, "not_found", provider.ClassPermanent},
		{405, "method_not_allowed", provider.ClassPermanent},
		{409, "invalid_idempotent_request", provider.ClassPermanent},
		{409, "concurrent_idempotent_requests", provider.ClassUncertain},
		{422, "invalid_attachment", provider.ClassPermanent},
		{422, "invalid_from_address", provider.ClassPermanent},
		{422, "invalid_access", provider.ClassPermanent},
		{422, "invalid_parameter", provider.ClassPermanent},
		{422, "invalid_region", provider.ClassPermanent},
		{422, "missing_required_field", provider.ClassPermanent},
		{429, "rate_limit_exceeded", provider.ClassThrottled},
		{429, "daily_quota_exceeded", provider.ClassThrottled},
		{429, "monthly_quota_exceeded", provider.ClassThrottled},
		{451, "security_error", provider.ClassPermanent},
		{500, "application_error", provider.ClassUncertain},
		{500, "internal_server_error", provider.ClassUncertain},
	}
}

func classOf(status int, name string) provider.Class {
	for _, row := range table() {
		if row.status == status && row.name == name {
			return row.class
		}
	}
	return byStatus(status)
}

// byStatus is for the names that appear over time.
func byStatus(status int) provider.Class {
	switch {
	case status == http.StatusTooManyRequests:
		return provider.ClassThrottled
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusPaymentRequired,
		status == http.StatusProxyAuthRequired:
		// A refusal of us that we cannot read: what waits for a person is not lost.
		return provider.ClassConfiguration
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusConflict:
		return provider.ClassUncertain // not a word on whether an earlier attempt was taken
	case status >= 500:
		return provider.ClassUncertain
	case status >= 400:
		return provider.ClassPermanent
	default:
		return provider.ClassConfiguration // a redirect: this is not the API
	}
}

// classify turns a refusal into the rail's terms.
func (a *Adapter) classify(status int, f failure, sent provider.Frozen, retryAfter string) *provider.Error {
	class := classOf(status, f.Name)
	out := &provider.Error{
		Class:  class,
		Code:   codeOf(status, f.Name),
		Status: status,
		Detail: provider.Redact(f.Message, a.key.Load().value),
	}
	if class == provider.ClassThrottled {
		out.RetryAfter = provider.ParseRetryAfter(retryAfter, a.now())
		out.Quota = strings.Contains(f.Name, "quota")
	}
	out.Divisible = class == provider.ClassPermanent && sent.Count > 1 && oneMessagesFault(status, f.Name)
	return out
}

// oneMessagesFault tells a body's fault, which may be one message's, from a
// fault of the request around it.
func oneMessagesFault(status int, name string) bool {
	switch status {
	case http.StatusBadRequest:
		return name != "invalid_idempotency_key"
	case http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity, http.StatusUnavailableForLegalReasons:
		return true
	default:
		return false
	}
}

// codeOf keeps the provider's name where it has the form of one, as it goes into
// rows and logs.
func codeOf(status int, name string) string {
	if name == "" || len(name) > 64 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
		return "http_" + strconv.Itoa(status)
	}
	return name
}

package sms

import (
	"net/http"
	"strconv"

	"github.com/softcrum/carril/dispatcher/provider"
)

// row is one of the API's error codes, as far as its meaning for the rail is
// another than its HTTP status says.
type row struct {
	code  int
	name  string
	class provider.Class
}

func table() []row {
	return []row{
		{14107, "rate_limit_exceeded", provider.ClassThrottled},
		{20003, "authentication_failed", provider.ClassConfiguration},
		{20005, "account_not_active", provider.ClassConfiguration},
		{20006, "access_denied", provider.ClassConfiguration},
		{20404, "account_not_found", provider.ClassConfiguration},
		{20429, "rate_limit_exceeded", provider.ClassThrottled},
		{21205, "invalid_callback", provider.ClassConfiguration},
		{21211, "invalid_recipient", provider.ClassPermanent},
		{21212, "invalid_from", provider.ClassSender},
		{21265, "invalid_recipient", provider.ClassPermanent},
		{21408, "region_not_enabled", provider.ClassPermanent},
		{21602, "missing_content", provider.ClassPermanent},
		{21603, "missing_from", provider.ClassSender},
		{21604, "missing_recipient", provider.ClassPermanent},
		{21606, "from_not_owned", provider.ClassSender},
		{21608, "recipient_not_verified", provider.ClassPermanent},
		{21609, "invalid_callback", provider.ClassConfiguration},
		{21610, "recipient_opted_out", provider.ClassPermanent},
		{21611, "sender_queue_full", provider.ClassThrottled},
		{21612, "no_route", provider.ClassPermanent},
		{21614, "not_a_mobile_number", provider.ClassPermanent},
		{21617, "content_too_large", provider.ClassPermanent},
		{21659, "from_not_owned", provider.ClassSender},
		{21660, "from_not_owned", provider.ClassSender},
		{21703, "service_without_sender", provider.ClassSender},
		{30001, "queue_full", provider.ClassThrottled},
		{30002, "account_suspended", provider.ClassConfiguration},
		{63038, "daily_quota_exceeded", provider.ClassThrottled},
	}
}

func find(code int) (row, bool) {
	for _, r := range table() {
		if r.code == code {
			return r, true
		}
	}
	return row{}, false
}

// byStatus is for the codes that appear over time. A refusal of us that we
// cannot read is configuration: what waits for a person is not lost.
func byStatus(status int) provider.Class {
	switch {
	case status == http.StatusTooManyRequests:
		return provider.ClassThrottled
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusPaymentRequired,
		status == http.StatusProxyAuthRequired, status == http.StatusNotFound, status == http.StatusMethodNotAllowed:
		return provider.ClassConfiguration // there is one path, and it is right or it is not
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusConflict:
		return provider.ClassUncertain
	case status >= 500:
		return provider.ClassUncertain
	case status >= 400:
		return provider.ClassPermanent
	default:
		return provider.ClassConfiguration // a redirect: this is not the API
	}
}

// classify turns a refusal into the rail's terms. An error of the server is
// uncertain whatever its code says: it may have come after the message was taken.
func (a *Adapter) classify(status int, ans answer, retryAfter string, sent []byte) *provider.Error {
	out := &provider.Error{
		Class: byStatus(status), Code: codeOf(status, ans.Code), Status: status,
		Detail: provider.Redact(ans.Message, a.private(sent)...),
	}
	if r, ok := find(ans.Code); ok && status < 500 {
		out.Class = r.class
	}
	if out.Class == provider.ClassThrottled {
		out.RetryAfter = provider.ParseRetryAfter(retryAfter, a.now())
		out.Quota = out.Code == "daily_quota_exceeded"
	}
	return out
}

// codeOf names a code, by our own name where there is one.
func codeOf(status, code int) string {
	if r, ok := find(code); ok {
		return r.name
	}
	if code > 0 {
		return "sms_" + strconv.Itoa(code)
	}
	return "http_" + strconv.Itoa(status)
}

package guard

import (
	"fmt"
	"net/textproto"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Limits on a tenant's own headers.
const (
	MaxHeaders     = 20
	MaxHeaderValue = 4096 // bytes
)

// ours are the headers that the delivery itself sets, and those that would
// change what the request is on the wire.
var ours = map[string]bool{
	"Host": true, "Content-Length": true, "Content-Type": true, "Content-Encoding": true, "Transfer-Encoding": true,
	"Te": true, "Trailer": true, "Connection": true, "Keep-Alive": true, "Upgrade": true, "Expect": true, "Http2-Settings": true,
	"Accept-Encoding": true, "User-Agent": true, "Date": true, "Range": true, "Idempotency-Key": true, "X-Idempotency-Key": true,
}

// families of headers that are ours too, by their beginning.
var families = []string{"Webhook-", "Svix-", "Carril-", "Proxy-", "Sec-"}

// Headers checks a tenant's own headers and gives them by canonical name. The
// error is an *Error of CodeHeader or CodeTooManyHeaders; it never quotes a
// value.
func Headers(given map[string]string) (map[string]string, error) {
	if len(given) > MaxHeaders {
		return nil, &Error{Code: CodeTooManyHeaders, Pointer: "/headers", Detail: fmt.Sprintf("at most %d headers", MaxHeaders)}
	}
	out := make(map[string]string, len(given))
	for name, value := range given {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		if detail := refuseHeader(name, canonical, value); detail != "" {
			return nil, &Error{Code: CodeHeader, Pointer: "/headers/" + pointer(name), Detail: detail}
		}
		if _, twice := out[canonical]; twice {
			return nil, &Error{Code: CodeHeader, Pointer: "/headers/" + pointer(name), Detail: "the header is given twice"}
		}
		out[canonical] = value
	}
	return out, nil
}

func refuseHeader(name, canonical, value string) string {
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		return "the name is no header name"
	case ours[canonical]:
		return "the header is set by the delivery itself"
	case !httpguts.ValidHeaderFieldValue(value):
		return "the value holds a control character"
	case len(value) > MaxHeaderValue:
		return fmt.Sprintf("the value is longer than %d bytes", MaxHeaderValue)
	}
	for _, family := range families {
		if strings.HasPrefix(canonical, family) {
			return "headers that begin with " + family + " are reserved"
		}
	}
	return ""
}

// pointer escapes a member's name for a JSON pointer.
func pointer(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

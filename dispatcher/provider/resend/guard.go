package resend

import (
	"errors"
	"net/http"
	"net/url"
)

// Endpoints as they stand in provider.Frozen.
const (
	EndpointSingle = "emails"
	EndpointBatch  = "batch"
)

// pathOf is the whole of Resend's API as far as this program goes.
func pathOf(endpoint string) (string, bool) {
	switch endpoint {
	case EndpointSingle:
		return "/emails", true
	case EndpointBatch:
		return "/emails/batch", true
	default:
		return "", false
	}
}

// errForbidden is what the guard answers instead of a request.
var errForbidden = errors.New("resend: only the two sending endpoints may be called")

// guard lets nothing pass but a POST to the sending endpoints of the configured
// host, so that no later change can write contacts to Resend's audiences
// unnoticed (FS-MSG-0005 §6, AC8).
type guard struct {
	base *url.URL
	next http.RoundTripper
}

func (g guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if !g.allows(r) {
		if r.Body != nil {
			_ = r.Body.Close() // a transport must, whatever it answers
		}
		return nil, errForbidden
	}
	return g.next.RoundTrip(r)
}

func (g guard) allows(r *http.Request) bool {
	if r.Method != http.MethodPost || r.URL.Scheme != g.base.Scheme || r.URL.Host != g.base.Host {
		return false
	}
	if r.URL.RawQuery != "" || (r.Host != "" && r.Host != g.base.Host) {
		return false
	}
	for _, endpoint := range []string{EndpointSingle, EndpointBatch} {
		if path, _ := pathOf(endpoint); r.URL.EscapedPath() == g.base.EscapedPath()+path {
			return true
		}
	}
	return false
}

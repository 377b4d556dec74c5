package sms

import (
	"errors"
	"net/http"
	"net/url"
)

// sendingURL is the whole of the API as far as this program goes.
func sendingURL(base *url.URL, account string) *url.URL {
	rooted := *base
	if rooted.Path == "" {
		rooted.Path = "/" // without it the joined path would have no slash in front
	}
	return rooted.JoinPath("2010-04-01", "Accounts", account, "Messages.json")
}

// errForbidden is what the guard answers instead of a request.
var errForbidden = errors.New("sms: only the sending endpoint may be called")

// guard lets nothing pass but a POST to the sending endpoint, so that no later
// change can call, buy or read anything at the provider unnoticed.
type guard struct {
	endpoint *url.URL
	next     http.RoundTripper
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
	return r.Method == http.MethodPost && r.URL.Scheme == g.endpoint.Scheme && r.URL.Host == g.endpoint.Host &&
		r.URL.EscapedPath() == g.endpoint.EscapedPath() && r.URL.RawQuery == "" && (r.Host == "" || r.Host == g.endpoint.Host)
}

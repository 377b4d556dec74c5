package providerhook

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"time"

	"github.com/softcrum/carril/internal/signature"
)

// verify gives the event of a webhook whose signature holds.
func (s *source) verify(r *http.Request, body []byte, received time.Time) (Event, error) {
	secrets := holding(*s.secrets.Load(), received)
	e := Event{Provider: s.Provider, ReceivedAt: received, RawBody: body}
	if s.Verifier == SignedURL {
		return s.verifyURL(r, e, secrets)
	}
	id, err := signature.Verify(secrets, r.Header, body, received)
	if err != nil {
		return Event{}, err
	}
	e.ProviderEventID = id
	if s.Refer != nil {
		e.Reference = s.Refer(body)
	}
	return e, nil
}

// verifyURL takes the URL's front from the configuration: what a request says of
// its own host and scheme is the sender's to choose, and a proxy's.
func (s *source) verifyURL(r *http.Request, e Event, tokens []signature.Secret) (Event, error) {
	target := s.URL
	if r.URL.RawQuery != "" {
		target += "?" + r.URL.RawQuery
	}
	if err := signature.VerifyURL(tokens, target, r.Header, e.RawBody); err != nil {
		return Event{}, err
	}
	if s.ReferCallback != nil {
		e.Reference, e.ProviderEventID = s.ReferCallback(r.URL.Query(), e.RawBody)
	}
	if e.ProviderEventID == "" || len(e.ProviderEventID) > signature.MaxIDLength {
		sum := sha256.Sum256(append([]byte(r.URL.RawQuery+"\n"), e.RawBody...))
		e.ProviderEventID = hex.EncodeToString(sum[:])
	}
	return e, nil
}

// scheme names the way of signing to whoever was refused.
func (s *source) scheme() string {
	if s.Verifier == SignedURL {
		return "SignedURL"
	}
	return "StandardWebhooks"
}

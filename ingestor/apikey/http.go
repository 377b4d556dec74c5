package apikey

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/internal/httpserver"
)

// Verify is how a route asks who presents a key; *Verifier does it.
type Verify interface {
	Verify(ctx context.Context, text string) (*Principal, error)
}

// Authorize finds who sends a request and sees that the key has a scope, or
// gives the problem to answer with. Every reason why a key is not taken has the
// same 401, so that nobody can look for keys. Where it is known who it is, and
// only the scope is missing, the principal comes with the problem.
func Authorize(v Verify, r *http.Request, scope string) (*Principal, *httpserver.Problem) {
	if r.URL.RawQuery != "" && keyInQuery(r) {
		return nil, &httpserver.Problem{Status: http.StatusBadRequest, Code: "key_in_query", Title: "A key does not belong into a URL",
			Detail: "URLs end up in logs. Send it as Authorization: Bearer, and replace this one."}
	}
	p, err := v.Verify(r.Context(), bearer(r))
	var throttled *ThrottledError
	switch {
	case err == nil:
	case errors.Is(err, ErrTenantDisabled):
		return nil, &httpserver.Problem{Status: http.StatusForbidden, Code: "tenant_disabled", Title: "This tenant is disabled"}
	case errors.As(err, &throttled):
		return nil, &httpserver.Problem{Status: http.StatusTooManyRequests, Code: "too_many_failures", Title: "Too many requests without a valid key",
			Detail:     "They came from the same address. Correct the key, and send it again after the time that Retry-After says.",
			RetryAfter: int((throttled.Wait + time.Second - 1) / time.Second)}
	case errors.Is(err, ErrUnavailable):
		return nil, &httpserver.Problem{Status: http.StatusServiceUnavailable, Code: "key_store_unavailable", Title: "Keys cannot be verified right now",
			Detail: "Send it again after the time that Retry-After says.", RetryAfter: 2}
	default:
		return nil, &httpserver.Problem{Status: http.StatusUnauthorized, Code: "invalid_key", Title: "No valid API key was sent",
			Detail: "Send one as Authorization: Bearer ck_…", Challenge: `Bearer realm="carril"`}
	}
	if !p.Can(scope) {
		return p, &httpserver.Problem{Status: http.StatusForbidden, Code: "missing_permission", Title: "The key lacks a permission",
			Detail: fmt.Sprintf("This needs %s.", scope), Extra: map[string]any{"permission": scope}}
	}
	return p, nil
}

// AuthorizeTenant is Authorize for what only a tenant's key can do.
func AuthorizeTenant(v Verify, r *http.Request, scope string) (*Principal, *httpserver.Problem) {
	p, problem := Authorize(v, r, scope)
	if problem == nil && p.TenantID == uuid.Nil {
		return nil, &httpserver.Problem{Status: http.StatusForbidden, Code: "tenant_required", Title: "The key belongs to no tenant",
			Detail: "An operator's key cannot stand for one."}
	}
	return p, problem
}

// bearer is the key of the one Authorization header, or "".
func bearer(r *http.Request) string {
	values := r.Header["Authorization"]
	if len(values) != 1 {
		return ""
	}
	const scheme = "Bearer "
	if v := values[0]; len(v) > len(scheme) && strings.EqualFold(v[:len(scheme)], scheme) {
		return v[len(scheme):]
	}
	return ""
}

// keyInQuery looks for a key in the URL, whatever its parameter is called.
func keyInQuery(r *http.Request) bool {
	for name, values := range r.URL.Query() {
		switch strings.ToLower(name) {
		case "key", "api_key", "apikey", "api-key", "access_token", "token":
			return true
		}
		for _, v := range values {
			if strings.HasPrefix(v, prefix) {
				return true
			}
		}
	}
	return false
}

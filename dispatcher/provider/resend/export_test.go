package resend

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
)

// Guard is the transport guard alone.
func Guard(t testing.TB, base string, next http.RoundTripper) http.RoundTripper {
	t.Helper()
	u, err := url.Parse(base)
	require.NoError(t, err)
	return guard{base: u, next: next}
}

// Quick is what reads a report in the documented shape, and ParseSlowly what reads any.
var (
	Quick       = quick
	ParseSlowly = parseWebhook
)

package sms

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
)

// Guard is the transport guard alone.
func Guard(t testing.TB, base, account string, next http.RoundTripper) http.RoundTripper {
	t.Helper()
	u, err := url.Parse(base)
	require.NoError(t, err)
	return guard{endpoint: sendingURL(u, account), next: next}
}

package httpserver

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClientAddr(t *testing.T) { // bad inputs row 43
	t.Parallel()
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for name, tc := range map[string]struct {
		remote    string
		forwarded []string
		want      string
	}{
		"ThePeer":                    {"198.51.100.7:4321", nil, "198.51.100.7"},
		"ThePeerWhateverItClaims":    {"198.51.100.7:4321", []string{"203.0.113.9"}, "198.51.100.7"},
		"WhomATrustedProxyNames":     {"10.1.2.3:80", []string{"203.0.113.9"}, "203.0.113.9"},
		"ThroughTwoTrustedProxies":   {"10.1.2.3:80", []string{"203.0.113.9, 10.9.9.9"}, "203.0.113.9"},
		"NotWhatTheClientPutBefore":  {"10.1.2.3:80", []string{"1.2.3.4, 203.0.113.9"}, "203.0.113.9"},
		"NotAnEarlierLine":           {"10.1.2.3:80", []string{"1.2.3.4", "203.0.113.9"}, "203.0.113.9"},
		"TheProxyWhereItNamesNobody": {"10.1.2.3:80", nil, "10.1.2.3"},
		"TheProxyWhereItIsNoAddress": {"10.1.2.3:80", []string{"203.0.113.9, unknown"}, "10.1.2.3"},
		"TheProxyAfterAnEmptyEntry":  {"10.1.2.3:80", []string{"203.0.113.9,"}, "10.1.2.3"},
		"OneAddressInTwoForms":       {"[::ffff:198.51.100.7]:1", nil, "198.51.100.7"},
		"OverIPv6":                   {"[fd00::1]:80", []string{"2001:db8::5"}, "2001:db8::5"},
		"Nobody":                     {"@", nil, "invalid IP"},
	} {
		ctx := context.WithValue(t.Context(), requestKey{}, &request{remote: tc.remote, forwarded: tc.forwarded, proxies: proxies})
		require.Equal(t, tc.want, ClientAddr(ctx).String(), name)
	}
	require.False(t, ClientAddr(t.Context()).IsValid())
}

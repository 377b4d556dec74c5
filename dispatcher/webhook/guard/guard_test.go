package guard_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/softcrum/carril/dispatcher/webhook/guard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// names answers look-ups from a table.
type names struct {
	of    map[string][]netip.Addr
	asked atomic.Int64
}

func (n *names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	n.asked.Add(1)
	if addrs, ok := n.of[host]; ok {
		return append([]netip.Addr(nil), addrs...), nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

func ips(s ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range s {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func newGuard(t testing.TB, cfg guard.Config, r guard.Resolver) *guard.Guard {
	t.Helper()
	if r == nil {
		r = &names{}
	}
	g, err := guard.New(cfg, r)
	require.NoError(t, err)
	return g
}

func codeOf(err error) guard.Code {
	var e *guard.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestCheckRefuses(t *testing.T) {
	t.Parallel()
	g := newGuard(t, guard.Config{}, &names{of: map[string][]netip.Addr{
		"inside.example.com": ips("127.0.0.1"), "mixed.example.com": ips("93.184.215.14", "10.0.0.7"), "six.example.com": ips("2606:2800:21f::1", "::ffff:10.1.2.3"),
	}})
	rows := map[string][]string{
		"invalid_url": { // bad inputs, rows 59 and 68
			"http://example.com/", "file:///etc/passwd", "gopher://example.com/", "javascript:alert(1)", "//evil/x", "https:///p", "", "https://",
			"https:example.com", "example.com/x", "https://exa mple.com/", "https://example.com/a b", "https://example.com/a\r\nX: y", "https://example.com/\n",
			"https://example.com/#frag", "https://example.com/#", "https://example.com/" + strings.Repeat("a", 2029), "https://example.com\\@evil/",
			"https://2130706433/", "https://0x7f000001/", "https://0x7f.1/", "https://127.1/", "https://0177.0.0.1/", "https://1.2.3.4.5/",
			"https://a..b/", "https://.example.com/", "https://exa%6dple%00.com/", "https://[::1/", "https://" + strings.Repeat("a", 64) + ".com/", "https://\xff.com/",
			"https://" + strings.Repeat("a.", 130) + "com/", "https://exa$mple.com/", "https://example.com/" + strings.Repeat("é", 400),
		},
		"userinfo_not_allowed": {"https://user:pass@h/", "https://example.com:443@evil/", "https://@example.com/", "https://user@127.0.0.1/"}, // row 60
		"port_not_allowed":     {"https://example.com:22/", "https://example.com:0/", "https://example.com:80/", "https://example.com:99999/"},
		"address_not_allowed": { // rows 62, 63 and 65
			"https://127.0.0.1/", "https://127.9.9.9/", "https://0.0.0.0/", "https://169.254.169.254/latest", "https://10.0.0.1/", "https://10.255.255.255/", "https://172.16.0.1/",
			"https://192.168.1.1/", "https://100.64.0.1/", "https://192.0.0.192/", "https://192.0.2.1/", "https://198.18.0.1/", "https://198.51.100.1/", "https://203.0.113.1/",
			"https://224.0.0.1/", "https://240.0.0.1/", "https://255.255.255.255/", "https://168.63.129.16/", "https://100.100.100.200/",
			"https://[::1]/", "https://[::]/", "https://[::ffff:127.0.0.1]/", "https://[::ffff:a9fe:a9fe]/", "https://[64:ff9b::7f00:1]/", "https://[64:ff9b::a9fe:a9fe]/",
			"https://[64:ff9b::808:808]/", "https://[64:ff9b:1::1]/", "https://[2002:7f00:1::]/", "https://[2002:a9fe:a9fe::]/", "https://[2001:0:7f00:1::1]/", "https://[::127.0.0.1]/",
			"https://[fd00:ec2::254]/", "https://[fd20:ce::254]/", "https://[fe80::1%25lo]/", "https://[fe80::1]/", "https://[fc00::1]/", "https://[ff02::1]/", "https://[2001:db8::1]/",
			"https://[100::1]/", "https://[5f00::1]/", "https://[3fff::1]/", "https://[4000::1]/",
			"https://localhost/", "https://LOCALHOST./", "https://a.localhost/", "https://inside.example.com/", "https://mixed.example.com/", "https://six.example.com/",
		},
	}
	for code, urls := range rows {
		for _, u := range urls {
			_, err := g.Check(t.Context(), u)
			require.Equal(t, guard.Code(code), codeOf(err), "%s: %v", u, err)
			var e *guard.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, "/url", e.Pointer)
		}
	}
}

func TestNormalizeOnce(t *testing.T) {
	t.Parallel()
	g := newGuard(t, guard.Config{Ports: []uint16{443, 8443}}, nil)
	for raw, want := range map[string]string{ // row 68
		"https://EXAMPLE.com.":                   "https://example.com/",
		"HTTPS://example.com:443/a?b=c":          "https://example.com/a?b=c",
		"https://example.com:8443":               "https://example.com:8443/",
		"https://bücher.example/ü":               "https://xn--bcher-kva.example/%C3%BC",
		"https://example.com:/x":                 "https://example.com/x",
		"https://[2606:2800:021f:0:0::1]/":       "https://[2606:2800:21f::1]/",
		"https://[::ffff:93.184.215.14]/":        "https://93.184.215.14/",
		"https://a_b.example.com/%2F/x?y=%20":    "https://a_b.example.com/%2F/x?y=%20",
		"https://ｅｘａｍｐｌｅ.com/":                   "https://example.com/",
		"https://hooks.example.com/T0/B0/secret": "https://hooks.example.com/T0/B0/secret",
	} {
		got, err := g.Check(t.Context(), raw)
		require.NoError(t, err, raw)
		require.Equal(t, want, got)
		again, err := g.Normalize(got)
		require.NoError(t, err)
		require.Equal(t, got, again)
	}
}

func FuzzNormalize(f *testing.F) {
	for _, s := range []string{"https://example.com", "https://EXAMPLE.com.:443/%2f?x#", "https://[::1]:443", "https://a@b", "https://0x7f.1", "https://ⓔ.com/é"} {
		f.Add(s)
	}
	g := newGuard(f, guard.Config{AnyPort: true, AllowHTTP: true}, nil)
	f.Fuzz(func(t *testing.T, raw string) {
		once, err := g.Normalize(raw)
		if err != nil {
			require.NotEmpty(t, codeOf(err), "every refusal has a code")
			return
		}
		twice, err := g.Normalize(once)
		require.NoError(t, err, once)
		require.Equal(t, once, twice)
	})
}

func TestAddress(t *testing.T) {
	t.Parallel()

	t.Run("WhatIsRefusedIsRefusedInEveryWrapping", func(t *testing.T) { // field report 35
		open := newGuard(t, guard.Config{}, nil)
		translating := newGuard(t, guard.Config{Private: []netip.Prefix{netip.MustParsePrefix("64:ff9b::/96")}}, nil)
		rapid.Check(t, func(t *rapid.T) {
			private := rapid.SampledFrom([]string{"10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "0.0.0.0/8"}).Draw(t, "range")
			p := netip.MustParsePrefix(private)
			v4 := p.Addr().As4()
			tail := rapid.Uint32().Draw(t, "host") & (1<<(32-p.Bits()) - 1)
			for i := range 4 {
				v4[i] |= byte(tail >> (24 - 8*i))
			}
			for _, form := range wrappings(v4) {
				require.Equal(t, guard.CodeAddress, codeOf(open.Address(form)), form)
			}
			nat64 := netip.AddrFrom16([16]byte{0, 0x64, 0xff, 0x9b, 12: v4[0], v4[1], v4[2], v4[3]})
			require.Equal(t, guard.CodeAddress, codeOf(translating.Address(nat64)), nat64)
		})
		require.NoError(t, translating.Address(netip.MustParseAddr("64:ff9b::5db8:d70e")), "a public address behind one's own NAT64")
	})

	t.Run("ThePublicInternetIsAllowed", func(t *testing.T) {
		g := newGuard(t, guard.Config{}, nil)
		for _, a := range ips("93.184.215.14", "1.1.1.1", "2606:2800:21f::1", "::ffff:93.184.215.14", "2a00:1450:4001::200e") {
			require.NoError(t, g.Address(a), a)
		}
	})

	t.Run("NoSettingOpensMetadata", func(t *testing.T) {
		g := newGuard(t, guard.Config{Private: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}}, nil)
		for _, a := range ips("10.1.2.3", "127.0.0.1", "::1", "fd12::1", "192.168.0.1") {
			require.NoError(t, g.Address(a), a)
		}
		for _, a := range ips("169.254.169.254", "169.254.170.2", "::ffff:169.254.169.254", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:42::42",
			"100.100.100.200", "192.0.0.192", "168.63.129.16", "fe80::1", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::169.254.169.254", "2001:0:a9fe:a9fe::1",
			"2001::5601:5601") {
			require.Equal(t, guard.CodeAddress, codeOf(g.Address(a)), a)
		}
		require.Error(t, g.Address(netip.MustParseAddr("fe80::1%lo")))
		require.Error(t, g.Address(netip.Addr{}))
	})

	t.Run("APrivateRangeOpensItselfAndNothingElse", func(t *testing.T) {
		g := newGuard(t, guard.Config{Private: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}, nil)
		require.NoError(t, g.Address(netip.MustParseAddr("10.1.9.9")))
		require.NoError(t, g.Address(netip.MustParseAddr("::ffff:10.1.9.9")))
		require.Error(t, g.Address(netip.MustParseAddr("10.2.0.1")))
		require.Error(t, g.Address(netip.MustParseAddr("127.0.0.1")))
	})
}

// wrappings are the forms in which an IPv4 address travels.
func wrappings(v4 [4]byte) []netip.Addr {
	in := func(at int, head []byte) netip.Addr {
		var b [16]byte
		copy(b[:], head)
		copy(b[at:], v4[:])
		return netip.AddrFrom16(b)
	}
	return []netip.Addr{
		netip.AddrFrom4(v4), in(12, []byte{10: 0xff, 11: 0xff}), in(12, nil), in(12, []byte{0, 0x64, 0xff, 0x9b}), in(12, []byte{0, 0x64, 0xff, 0x9b, 0, 1}),
		in(2, []byte{0x20, 0x02}), in(4, []byte{0x20, 0x01}), in(12, []byte{8: 0xff, 9: 0xff}),
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Host", "content-length", "Webhook-Signature", "webhook-id", "WEBHOOK-anything", "svix-id", "Transfer-Encoding", "Connection",
		"Proxy-Authorization", "Content-Type", "Expect", "a b", "", "x:y", "User-Agent", "te"} { // row 70
		_, err := guard.Headers(map[string]string{name: "v"})
		require.Equal(t, guard.CodeHeader, codeOf(err), name)
	}
	for _, value := range []string{"a\r\nX: y", "a\nb", "a\x00", strings.Repeat("a", 4097)} {
		_, err := guard.Headers(map[string]string{"X-Tenant": value})
		require.Equal(t, guard.CodeHeader, codeOf(err))
		require.NotContains(t, err.Error(), "X: y")
	}
	_, err := guard.Headers(map[string]string{"x-a": "1", "X-A": "2"})
	require.Equal(t, guard.CodeHeader, codeOf(err))
	many := map[string]string{}
	for i := range 21 {
		many[fmt.Sprintf("X-%d", i)] = "v"
	}
	_, err = guard.Headers(many)
	require.Equal(t, guard.CodeTooManyHeaders, codeOf(err))
	_, err = guard.Headers(map[string]string{"a/~b": "v"})
	var e *guard.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "/headers/a~1~0b", e.Pointer)

	got, err := guard.Headers(map[string]string{"authorization": "Bearer x", "X-Env": "préprod"})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"Authorization": "Bearer x", "X-Env": "préprod"}, got)
}

func TestNewRefusesNonsense(t *testing.T) {
	t.Parallel()
	for _, cfg := range []guard.Config{{Ports: []uint16{0}}, {Deadline: -1}, {Private: []netip.Prefix{{}}}} {
		_, err := guard.New(cfg, nil)
		require.Error(t, err)
	}
}

package guard

import (
	"context"
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/idna"
)

// MaxURL is the longest URL that is taken, in bytes.
const MaxURL = 2048

// checkLookup bounds the look-up of a name while an endpoint is created.
const checkLookup = 2 * time.Second

// Normalize checks a webhook's URL and gives its one form: scheme and host in
// lower case, the host as it goes over the wire (punycode, no last dot, an IPv4
// address never in IPv6's clothes), no default port, a path. What is stored and
// compared is that form. It asks no name server; see Check.
func (g *Guard) Normalize(raw string) (string, error) {
	u, err := g.parse(raw)
	if err != nil {
		return "", err
	}
	return u.String(), nil
}

// Check is Normalize and a first look at the addresses behind the host, so that
// whoever creates an endpoint hears at once what is wrong. A name that does not
// resolve now is accepted: the dialer decides again at every connection.
func (g *Guard) Check(ctx context.Context, raw string) (string, error) {
	u, err := g.parse(raw)
	if err != nil {
		return "", err
	}
	lctx, cancel := context.WithTimeout(ctx, min(checkLookup, g.cfg.DialTimeout))
	defer cancel()
	var refused *Error
	if _, err := g.lookup(lctx, u.Hostname()); errors.As(err, &refused) {
		return "", refused
	}
	return u.String(), nil
}

func (g *Guard) parse(raw string) (*url.URL, error) {
	if len(raw) > MaxURL {
		return nil, refuseURL(CodeInvalidURL, "the URL is longer than 2,048 bytes")
	}
	if strings.ContainsFunc(raw, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '\\' || r == '\uFFFD' }) {
		return nil, refuseURL(CodeInvalidURL, "the URL holds a space, a backslash or a control character")
	}
	if strings.Contains(raw, "#") {
		return nil, refuseURL(CodeInvalidURL, "the URL has a fragment")
	}
	u, err := url.Parse(raw)
	if err != nil || u.Opaque != "" {
		return nil, refuseURL(CodeInvalidURL, "the URL cannot be read")
	}
	if u.Scheme != "https" && (u.Scheme != "http" || !g.cfg.AllowHTTP) {
		return nil, refuseURL(CodeInvalidURL, "the scheme must be https")
	}
	if u.User != nil {
		return nil, refuseURL(CodeUserinfo, "the URL carries a user name or password; use a header")
	}
	return u, g.settle(u)
}

// settle brings host, port and path to their one form.
func (g *Guard) settle(u *url.URL) error {
	host, err := normalHost(u.Hostname())
	if err != nil {
		return err
	}
	port, err := g.port(u)
	if err != nil {
		return err
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	u.Host = host
	if port != defaultPort(u.Scheme) {
		u.Host += ":" + strconv.Itoa(int(port))
	}
	if u.Path == "" {
		u.Path = "/"
	}
	if len(u.String()) > MaxURL {
		return refuseURL(CodeInvalidURL, "the URL is longer than 2,048 bytes once it is escaped")
	}
	return nil
}

func defaultPort(scheme string) uint16 {
	if scheme == "http" {
		return 80
	}
	return 443
}

func (g *Guard) port(u *url.URL) (uint16, error) {
	port := defaultPort(u.Scheme)
	if given := u.Port(); given != "" {
		n, err := strconv.ParseUint(given, 10, 16)
		if err != nil || n == 0 {
			return 0, refuseURL(CodePort, "the port is none")
		}
		port = uint16(n)
	}
	if !g.cfg.AnyPort && !slices.Contains(g.cfg.Ports, port) {
		return 0, refuseURL(CodePort, "webhooks may not go to this port")
	}
	return port, nil
}

// names allows underscores, which host names in use have, and nothing else that
// a strict profile refuses; see plainName.
func names() *idna.Profile {
	return idna.New(idna.MapForLookup(), idna.Transitional(false), idna.StrictDomainName(false), idna.VerifyDNSLength(true), idna.BidiRule())
}

// normalHost gives a name in ASCII and lower case, or an address. A zone stays,
// for Address to refuse.
func normalHost(host string) (string, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().String(), nil
	}
	ascii, err := names().ToASCII(strings.TrimSuffix(host, "."))
	if err != nil || !plainName(ascii) {
		return "", refuseURL(CodeInvalidURL, "the host is no name and no address")
	}
	if last := ascii[strings.LastIndexByte(ascii, '.')+1:]; numeric(last) {
		return "", refuseURL(CodeInvalidURL, "the host is an address in a form that readers disagree on")
	}
	return ascii, nil
}

func plainName(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == "" &&
		!strings.Contains(s, "..") && !strings.HasPrefix(s, ".") && !strings.HasSuffix(s, ".")
}

// numeric finds what some resolvers read as an IPv4 address: 2130706433,
// 0x7f.1, 127.1.
func numeric(label string) bool {
	if rest, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(rest, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// lookup gives every address of a host, or an *Error where one of them may not
// be connected to: a name that mixes public and private answers is a trap.
func (g *Guard) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	addrs, err := g.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	for i, ip := range addrs {
		addrs[i] = ip.Unmap()
		if err := g.Address(ip); err != nil {
			return nil, err
		}
	}
	return addrs, nil
}

func (g *Guard) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, nil
	}
	if host == "localhost" || strings.HasSuffix(host, ".localhost") { // RFC 6761, whatever a name server says
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}, nil
	}
	return g.resolver.LookupNetIP(ctx, "ip", host)
}

package guard

import (
	"net/netip"
	"slices"
)

// never are addresses that no setting opens: the services through which clouds
// hand credentials to whoever asks from inside, and the link-local ranges that
// most of them live in.
var never = []netip.Prefix{
	netip.MustParsePrefix("169.254.0.0/16"),     // link-local: AWS, Azure, Google, Oracle, Scaleway, ECS and EKS credentials
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure's wire server; a public address
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba
	netip.MustParsePrefix("192.0.0.192/32"),     // Oracle
	netip.MustParsePrefix("fe80::/10"),          // link-local
	netip.MustParsePrefix("fd00:ec2::/32"),      // AWS: metadata ::254, EKS credentials ::23, time and names
	netip.MustParsePrefix("fd20:ce::/32"),       // Google
	netip.MustParsePrefix("fd00:42::42/128"),    // Scaleway
}

// Ranges whose addresses carry an IPv4 address that somebody on the way may
// unwrap, and where it stands.
var carriers = []struct {
	in     netip.Prefix
	at     int  // first byte of the IPv4 address
	masked bool // its bits are inverted
}{
	{in: netip.MustParsePrefix("::/96"), at: 12},                   // IPv4-compatible (RFC 4291)
	{in: netip.MustParsePrefix("::ffff:0:0:0/96"), at: 12},         // IPv4-translated (RFC 2765)
	{in: netip.MustParsePrefix("64:ff9b::/96"), at: 12},            // NAT64 (RFC 6052)
	{in: netip.MustParsePrefix("64:ff9b:1::/48"), at: 12},          // NAT64 of one's own (RFC 8215), the /96 form
	{in: netip.MustParsePrefix("2002::/16"), at: 2},                // 6to4 (RFC 3056)
	{in: netip.MustParsePrefix("2001::/32"), at: 4},                // Teredo's server (RFC 4380)
	{in: netip.MustParsePrefix("2001::/32"), at: 12, masked: true}, // Teredo's client
}

// embedded gives the IPv4 addresses inside an IPv6 address.
func embedded(ip netip.Addr) []netip.Addr {
	if !ip.Is6() || ip.IsLoopback() || ip.IsUnspecified() {
		return nil
	}
	var out []netip.Addr
	bytes := ip.As16()
	for _, c := range carriers {
		if !c.in.Contains(ip) {
			continue
		}
		v4 := [4]byte(bytes[c.at : c.at+4])
		for i := range v4 {
			if c.masked {
				v4[i] = ^v4[i]
			}
		}
		out = append(out, netip.AddrFrom4(v4))
	}
	return out
}

// Address says whether ip may be connected to; the error is an *Error of
// CodeAddress. What is allowed is IANA's global unicast space without its
// special-purpose ranges, and what the Private setting opens. An address that
// carries another passes only if both do.
func (g *Guard) Address(ip netip.Addr) error {
	if !ip.IsValid() || ip.Zone() != "" {
		return refuseURL(CodeAddress, "the address is not one of the public internet")
	}
	ip = ip.Unmap()
	inner := embedded(ip)
	if contains(never, ip) || slices.ContainsFunc(inner, func(v4 netip.Addr) bool { return contains(never, v4) }) {
		return refuseURL(CodeAddress, "the address is one of a metadata service, or link-local")
	}
	if !contains(g.cfg.Private, ip) {
		if g.special.SafeAddr(ip) != nil {
			return refuseURL(CodeAddress, "the address is private, reserved or special")
		}
		return nil
	}
	for _, v4 := range inner {
		if err := g.Address(v4); err != nil {
			return err
		}
	}
	return nil
}

func contains(ranges []netip.Prefix, ip netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(ip) })
}

package httpserver

import (
	"context"
	"net/netip"
	"slices"
	"strings"
)

// ClientAddr gives the address that the request of ctx comes from: the
// connection's other end, or, where that is a trusted proxy, whom it names in
// X-Forwarded-For. The header is read from its end: each proxy appends whom it
// saw, so what stands before the first that is not trusted may be invented. It
// is the zero Addr where nothing is known.
func ClientAddr(ctx context.Context) netip.Addr {
	q, ok := ctx.Value(requestKey{}).(*request)
	if !ok {
		return netip.Addr{}
	}
	peer, err := netip.ParseAddrPort(q.remote)
	if err != nil {
		return netip.Addr{}
	}
	addr := peer.Addr().Unmap()
	for _, line := range slices.Backward(q.forwarded) {
		for line != "" && trusted(q.proxies, addr) {
			var last string
			if i := strings.LastIndexByte(line, ','); i >= 0 {
				line, last = line[:i], line[i+1:]
			} else {
				line, last = "", line
			}
			next, err := netip.ParseAddr(strings.TrimSpace(last))
			if err != nil {
				return addr // the proxy that wrote this answers for it
			}
			addr = next.Unmap().WithZone("")
		}
	}
	return addr
}

func trusted(proxies []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(proxies, func(p netip.Prefix) bool { return p.Contains(addr) })
}

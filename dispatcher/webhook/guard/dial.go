package guard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// maxTries bounds how many of a name's addresses one connection tries.
const maxTries = 4

// dial connects to host:port. Every address that the name has is judged before
// the first packet, and the one that is connected to once more by the socket's
// own control, so that nothing between the two can exchange it.
func (g *Guard) dial(ctx context.Context, network, hostport string) (net.Conn, error) {
	progressOf(ctx).begin()
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, fmt.Errorf("split the address of a webhook: %w", err)
	}
	lctx, cancel := context.WithTimeout(ctx, g.cfg.DialTimeout)
	defer cancel()
	addrs, err := g.lookup(lctx, host)
	if err != nil {
		return nil, err
	}
	if len(addrs) == 0 {
		return nil, &net.DNSError{Err: "no address", Name: host, IsNotFound: true}
	}
	return g.connect(ctx, network, port, addrs[:min(len(addrs), maxTries)])
}

// connect tries the addresses one after the other, each with its share of the
// time that is left.
func (g *Guard) connect(ctx context.Context, network, port string, addrs []netip.Addr) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.DialTimeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	d := net.Dialer{ControlContext: g.control}
	var first error
	for i, ip := range addrs {
		share := time.Until(deadline) / time.Duration(len(addrs)-i)
		actx, done := context.WithTimeout(ctx, share)
		conn, err := d.DialContext(actx, network, net.JoinHostPort(ip.String(), port))
		done()
		if err == nil {
			return conn, nil
		}
		if first == nil || errors.Is(first, context.DeadlineExceeded) {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}

// control is called with the socket's final address, before it connects.
func (g *Guard) control(_ context.Context, network, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil || (network != "tcp4" && network != "tcp6") {
		return refuseURL(CodeAddress, "the connection is not one to an address of the internet")
	}
	return g.Address(ap.Addr())
}

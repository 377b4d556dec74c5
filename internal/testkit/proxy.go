package testkit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// When says whether a cut comes before or after the bytes that trigger it
// have reached the target.
type When int

// The two sides of a pattern.
const (
	Before When = iota
	After
)

// ProxyCounts proves that a fault happened.
type ProxyCounts struct {
	Accepted int // connections taken
	Resets   int // connections ended by Refuse, Reset or a cut
	Cuts     int // cuts by CutAfter or CutOnPattern
}

// Proxy is a TCP proxy in front of one target that breaks connections on
// demand. It starts passing everything. Its methods may be called at any
// time; each one undoes the mode before it (an armed cut stays armed).
type Proxy struct {
	t      testing.TB
	addr   string
	target string

	mu       sync.Mutex
	listener net.Listener  // nil while refusing
	gate     chan struct{} // closed: bytes flow; open: they are held
	delay    time.Duration
	links    map[*link]struct{}
	armed    *cut
	counts   ProxyCounts
	closed   bool
	wait     sync.WaitGroup
}

// NewProxy starts a proxy in front of target ("host:port"), ended with the
// test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{t: t, target: target, gate: make(chan struct{}), links: map[*link]struct{}{}}
	close(p.gate)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("start a proxy: %v", err)
	}
	p.addr = listener.Addr().String()
	p.serve(listener)
	t.Cleanup(p.close)
	return p
}

// Addr is the proxy's own address, the same for its whole life.
func (p *Proxy) Addr() string { return p.addr }

// Dial connects to the proxy when addr is its target, else to addr itself.
// It fits kgo.Dialer, for brokers that advertise their own address.
func (p *Proxy) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	p.mu.Lock()
	if addr == p.target {
		addr = p.addr
	}
	p.mu.Unlock()
	return new(net.Dialer).DialContext(ctx, network, addr)
}

// Retarget sends new connections to another target, as after a failover.
func (p *Proxy) Retarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Counts says what happened so far.
func (p *Proxy) Counts() ProxyCounts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}

// Pass forwards everything. Bytes that a blackhole held are delivered now, as
// after a healed network.
func (p *Proxy) Pass() { p.mode(true, 0) }

// Delay holds every chunk of bytes for d, in both directions.
func (p *Proxy) Delay(d time.Duration) { p.mode(true, d) }

// Blackhole takes connections and bytes and delivers none, without closing
// anything.
func (p *Proxy) Blackhole() { p.mode(false, 0) }

// Refuse resets every connection and refuses new ones.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	listener := p.listener
	p.listener = nil
	p.mu.Unlock()
	if listener != nil {
		_ = listener.Close()
	}
	p.Reset()
}

// Reset ends every open connection with a reset. New ones are treated as the
// mode says.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		p.counts.Resets++
		l.reset()
	}
}

// CutAfter resets the connection that carries the n-th byte from client to
// target, counted over all connections from now on; n of 0 cuts at the next
// byte. The channel is closed when it happened. One cut can be armed.
func (p *Proxy) CutAfter(n int) <-chan struct{} {
	return p.arm(&cut{left: n, done: make(chan struct{})})
}

// CutOnPattern resets the connection in which a client next sends pattern:
// before the target has all of it, or after the target has it with what the
// client wrote along with it, and before the client sees another byte of the
// answer. The channel is closed when it happened. One cut can be armed.
func (p *Proxy) CutOnPattern(pattern []byte, when When) <-chan struct{} {
	return p.arm(&cut{pattern: bytes.Clone(pattern), when: when, done: make(chan struct{})})
}

func (p *Proxy) arm(c *cut) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = c
	return c.done
}

func (p *Proxy) mode(flow bool, delay time.Duration) {
	p.mu.Lock()
	open := isClosed(p.gate)
	if flow && !open {
		close(p.gate)
	}
	if !flow && open {
		p.gate = make(chan struct{})
	}
	p.delay = delay
	refusing := p.listener == nil && !p.closed
	p.mu.Unlock()
	if refusing {
		p.relisten()
	}
}

// relisten takes the address back after Refuse.
func (p *Proxy) relisten() {
	var err error
	for range 100 {
		var listener net.Listener
		if listener, err = net.Listen("tcp", p.addr); err == nil {
			p.serve(listener)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	p.t.Errorf("listen on the proxy's address again: %v", err)
}

func (p *Proxy) serve(listener net.Listener) {
	p.mu.Lock()
	p.listener = listener
	p.mu.Unlock()
	p.wait.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			p.wait.Go(func() { p.handle(conn.(*net.TCPConn)) })
		}
	})
}

// handle serves one connection until both directions ended.
func (p *Proxy) handle(client *net.TCPConn) {
	l := &link{client: client, ended: make(chan struct{}), answered: make(chan struct{})}
	if !p.add(l) {
		_ = client.Close()
		return
	}
	defer p.remove(l)
	if !p.pause(l, 0) {
		return
	}
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	conn, err := net.DialTimeout("tcp", target, 10*time.Second)
	if err != nil {
		l.reset()
		return
	}
	l.setTarget(conn.(*net.TCPConn))
	var both sync.WaitGroup
	both.Go(func() { p.pump(l, l.client, l.target, &scanner{}) })
	both.Go(func() { p.pump(l, l.target, l.client, nil) })
	both.Wait()
}

func (p *Proxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.listener == nil {
		return false
	}
	p.counts.Accepted++
	p.links[l] = struct{}{}
	return true
}

func (p *Proxy) remove(l *link) {
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
	l.close()
}

// pause holds the caller for as long as the mode says; false when the link
// ended meanwhile.
func (p *Proxy) pause(l *link, extra time.Duration) bool {
	p.mu.Lock()
	gate := p.gate
	p.mu.Unlock()
	select {
	case <-gate:
	case <-l.ended:
		return false
	}
	if extra == 0 {
		return true
	}
	select {
	case <-time.After(extra):
		return true
	case <-l.ended:
		return false
	}
}

func (p *Proxy) currentDelay() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.delay
}

// pump forwards one direction; s is set for client to target alone.
func (p *Proxy) pump(l *link, from, to *net.TCPConn, s *scanner) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if !p.pause(l, p.currentDelay()) || !p.forward(l, to, buf[:n], s) {
				return
			}
		}
		if err == nil {
			continue
		}
		if !p.pause(l, 0) {
			return
		}
		if !errors.Is(err, io.EOF) {
			l.reset()
			return
		}
		_ = to.CloseWrite()
		return
	}
}

// forward writes a chunk, up to where an armed cut says.
func (p *Proxy) forward(l *link, to *net.TCPConn, chunk []byte, s *scanner) bool {
	if s == nil {
		if l.muted.Load() {
			l.answer.Do(func() { close(l.answered) })
			return true
		}
		return write(to, chunk)
	}
	c, end := p.trigger(s, chunk)
	if c == nil {
		return write(to, chunk)
	}
	if c.when == After {
		l.muted.Store(true)
	}
	delivered := write(to, chunk[:end])
	p.cutLink(l, c, delivered)
	return false
}

func write(to *net.TCPConn, b []byte) bool {
	_, err := to.Write(b)
	return err == nil
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	listener := p.listener
	p.listener = nil
	for l := range p.links {
		l.close()
	}
	p.mu.Unlock()
	if listener != nil {
		_ = listener.Close()
	}
	p.wait.Wait()
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

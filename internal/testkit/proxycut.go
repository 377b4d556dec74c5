package testkit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// cut is one armed fault: after a number of bytes, or at a pattern.
type cut struct {
	left    int
	pattern []byte
	when    When
	done    chan struct{}
}

// scanner remembers the end of what a client sent, so that a pattern split
// over two reads is found.
type scanner struct{ tail []byte }

// trigger decides whether the armed cut falls into this chunk, and then
// disarms it and says how many of the chunk's bytes go out.
func (p *Proxy) trigger(s *scanner, chunk []byte) (c *cut, end int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c = p.armed
	if c == nil {
		s.tail = nil
		return nil, 0
	}
	if c.pattern == nil {
		if c.left > len(chunk) {
			c.left -= len(chunk)
			return nil, 0
		}
		end = c.left
	} else {
		var found bool
		if end, found = s.find(c, chunk); !found {
			return nil, 0
		}
	}
	p.armed = nil
	return c, end
}

// find looks for the pattern in the remembered tail and the chunk. Bytes of a
// pattern that began in an earlier chunk are gone already: Before then cuts
// in its middle, which is before the target has it. After lets the whole
// chunk out: a protocol's message ends some bytes behind its words.
func (s *scanner) find(c *cut, chunk []byte) (end int, found bool) {
	window := append(bytes.Clone(s.tail), chunk...)
	at := bytes.Index(window, c.pattern)
	if at < 0 {
		s.tail = window[max(0, len(window)-len(c.pattern)+1):]
		return 0, false
	}
	if c.when == After {
		return len(chunk), true
	}
	return max(0, at-len(s.tail)), true
}

// longestAnswer is how long a cut after a pattern waits for the target's answer.
const longestAnswer = 2 * time.Second

// cutLink resets the client. After a pattern that is when the target has begun to
// answer: a client that hears of the reset asks a server to cancel what it is still
// doing. And the target's side is closed in order, for a reset could take back bytes
// that it has not read yet.
func (p *Proxy) cutLink(l *link, c *cut, delivered bool) {
	p.mu.Lock()
	p.counts.Cuts++
	p.counts.Resets++
	p.mu.Unlock()
	if c.when == After && delivered {
		select {
		case <-l.answered:
		case <-l.ended:
		case <-time.After(longestAnswer):
		}
		l.resetClient()
		_ = l.target.CloseWrite()
		_ = l.target.SetReadDeadline(time.Now().Add(10 * time.Second))
	} else {
		l.reset()
	}
	close(c.done)
}

// link is one client's connection and the proxy's own to the target.
type link struct {
	client *net.TCPConn
	target *net.TCPConn

	muted    atomic.Bool   // answers are swallowed
	answered chan struct{} // closed when the first was
	answer   sync.Once
	ended    chan struct{} // closed by close

	mu   sync.Mutex
	once sync.Once
}

func (l *link) setTarget(conn *net.TCPConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.target = conn
	if isClosed(l.ended) {
		_ = conn.Close()
	}
}

func (l *link) resetClient() {
	_ = l.client.SetLinger(0)
	_ = l.client.Close()
}

// reset ends both sides with a reset.
func (l *link) reset() {
	l.mu.Lock()
	if l.target != nil {
		_ = l.target.SetLinger(0)
	}
	l.mu.Unlock()
	_ = l.client.SetLinger(0)
	l.close()
}

func (l *link) close() {
	l.once.Do(func() { close(l.ended) })
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range []io.Closer{l.client, l.target} {
		if conn != (*net.TCPConn)(nil) {
			_ = conn.Close()
		}
	}
}

// Prepared is the name under which a client of ours keeps a statement: what it
// sends of one, the first time on each connection aside. A stage's COMMIT is one,
// since it travels with the statements before it.
func Prepared(sql string) []byte {
	sum := sha256.Sum256([]byte(sql))
	return []byte("stmtcache_" + hex.EncodeToString(sum[:24]))
}

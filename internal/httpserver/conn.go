package httpserver

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softcrum/carril/internal/ids"
)

// listener bounds the open connections and dresses net/http's own answers.
type listener struct {
	net.Listener
	max  int64
	open atomic.Int64
}

// Accept refuses a connection above the bound with a 503 instead of leaving it
// in the backlog, where its client could not tell us from a dead host.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= l.max {
			return &conn{Conn: c, closed: sync.OnceFunc(func() { l.open.Add(-1) })}, nil
		}
		l.open.Add(-1)
		turnAway(c)
	}
}

func turnAway(c net.Conn) {
	p := Problem{Status: http.StatusServiceUnavailable, Code: "too_many_connections", Title: "Too many open connections",
		Detail: "Send it again in a second, over fewer connections."}
	// A fresh socket's buffer takes this without waiting; the deadline is for the one that does not.
	_ = c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	_, _ = c.Write(rawAnswer(&p, "Retry-After: 1\r\n"))
	_ = c.Close()
}

// conn rewrites what net/http writes past the handler: a plain-text 400, 417,
// 431, 501 or 505 broke a client's JSON parser (field report 13).
type conn struct {
	net.Conn
	closed func()
}

func (c *conn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// CloseWrite lets net/http half-close after a refusal, so that the client reads
// the answer before the reset.
func (c *conn) CloseWrite() error {
	if t, ok := c.Conn.(*net.TCPConn); ok {
		return t.CloseWrite()
	}
	return nil
}

func (c *conn) Write(b []byte) (int, error) {
	p := plainAnswer(b)
	if p == nil {
		return c.Conn.Write(b)
	}
	if _, err := c.Conn.Write(rawAnswer(p, "")); err != nil {
		return 0, err
	}
	return len(b), nil
}

var (
	answerStart      = []byte("HTTP/1.1 ")
	plainHeaders     = []byte("\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n")
	expectationStart = []byte("HTTP/1.1 417 Expectation Failed\r\n")
)

// plainAnswer recognises an answer that net/http wrote by itself: a status line
// with exactly these headers and nothing else, in one write. A handler's answer
// has a Date.
func plainAnswer(b []byte) *Problem {
	if !bytes.HasPrefix(b, answerStart) || len(b) < len("HTTP/1.1 400") {
		return nil
	}
	if bytes.HasPrefix(b, expectationStart) {
		return &Problem{Status: http.StatusExpectationFailed, Code: "expectation_failed", Detail: "Only Expect: 100-continue is understood."}
	}
	line, _, _ := bytes.Cut(b, []byte("\r\n"))
	if !bytes.HasPrefix(b[len(line):], plainHeaders) {
		return nil
	}
	status, err := strconv.Atoi(string(b[9:12]))
	if err != nil || status < 400 {
		return nil
	}
	return &Problem{Status: status, Code: transportCode(status), Detail: string(line[len("HTTP/1.1 400 "):])}
}

func transportCode(status int) string {
	switch status {
	case http.StatusRequestHeaderFieldsTooLarge:
		return "headers_too_large"
	case http.StatusNotImplemented:
		return "unsupported_transfer_encoding"
	case http.StatusHTTPVersionNotSupported:
		return "http_version_not_supported"
	}
	return "malformed_request"
}

// rawAnswer is a whole HTTP/1.1 answer that ends the connection.
func rawAnswer(p *Problem, headers string) []byte {
	id := ids.New().String()
	body := p.JSON(id)
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nCache-Control: no-store\r\n%s: %s\r\n%sConnection: close\r\n\r\n%s",
		p.Status, http.StatusText(p.Status), ProblemType, len(body), RequestIDHeader, id, headers, body)
}

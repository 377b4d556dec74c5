package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// Conn is an HTTP/1.1 client of one keep-alive connection that costs little
// more than its two system calls: the generator shares the cores with what it
// measures. It sends bytes that are ready (see Request) and reads the answer's
// status and body; it follows nothing and retries nothing. After an error it
// dials again. Not safe for concurrent use.
type Conn struct {
	addr    string
	timeout time.Duration

	c     net.Conn
	r     *bufio.Reader
	until time.Time // the deadline that stands on c
	body  []byte
}

// StatusError is an answer with another status than the one expected.
type StatusError struct {
	Status int
	Body   string // its beginning
}

func (e *StatusError) Error() string { return fmt.Sprintf("answered %d: %s", e.Status, e.Body) }

// Class names the status: "http_503".
func (e *StatusError) Class() string { return "http_" + strconv.Itoa(e.Status) }

// connError is a connection that broke.
type connError struct{ err error }

func (e *connError) Error() string { return e.err.Error() }
func (e *connError) Unwrap() error { return e.err }
func (e *connError) Class() string {
	var ne net.Error
	if errors.As(e.err, &ne) && ne.Timeout() {
		return "timeout"
	}
	return "connection"
}

// NewConn makes a client of addr (host:port); it dials when it first sends.
// timeout bounds one exchange, to within a second.
func NewConn(addr string, timeout time.Duration) *Conn {
	return &Conn{addr: addr, timeout: timeout}
}

// Request renders an HTTP/1.1 request; headers are whole lines ("Name: value").
func Request(method, path, host string, body []byte, headers ...string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n", method, path, host, len(body))
	for _, h := range headers {
		b.WriteString(h)
		b.WriteString("\r\n")
	}
	b.WriteString("\r\n")
	b.Write(body)
	return b.Bytes()
}

// Do sends a rendered request and gives the body of its answer, valid until the
// next call. Another status than want is a *StatusError.
func (c *Conn) Do(ctx context.Context, request []byte, want int) ([]byte, error) {
	status, err := c.exchange(ctx, request)
	if err != nil {
		c.Close()
		return nil, &connError{err}
	}
	if status != want {
		return nil, &StatusError{Status: status, Body: string(c.body[:min(len(c.body), 200)])}
	}
	return c.body, nil
}

// Body is the body of the last answer, valid until the next call of Do.
func (c *Conn) Body() []byte { return c.body }

// Close ends the connection; Do dials a new one.
func (c *Conn) Close() {
	if c.c != nil {
		_ = c.c.Close()
		c.c = nil
	}
}

func (c *Conn) exchange(ctx context.Context, request []byte) (status int, err error) {
	if c.c == nil {
		if err := c.dial(ctx); err != nil {
			return 0, err
		}
	}
	if now := time.Now(); c.until.Before(now.Add(c.timeout)) { // a second's slack spares a timer a request
		c.until = now.Add(c.timeout + time.Second)
		if err := c.c.SetDeadline(c.until); err != nil {
			return 0, fmt.Errorf("set a deadline: %w", err)
		}
	}
	if _, err := c.c.Write(request); err != nil {
		return 0, fmt.Errorf("send: %w", err)
	}
	return c.read()
}

func (c *Conn) dial(ctx context.Context) error {
	d := net.Dialer{Timeout: c.timeout}
	conn, err := d.DialContext(ctx, "tcp", c.addr)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	c.c, c.until = conn, time.Time{}
	if c.r == nil {
		c.r = bufio.NewReaderSize(conn, 4<<10)
	} else {
		c.r.Reset(conn)
	}
	return nil
}

var (
	errNotHTTP    = errors.New("the answer is not HTTP/1.1")
	contentLength = []byte("content-length:")
	chunked       = []byte("transfer-encoding: chunked")
	connClose     = []byte("connection: close")
)

// read reads one answer. Of its headers it looks at those that say where the
// body ends.
func (c *Conn) read() (status int, err error) {
	line, err := c.line()
	if err != nil {
		return 0, fmt.Errorf("read the status: %w", err)
	}
	if len(line) < 12 || string(line[:9]) != "HTTP/1.1 " {
		return 0, errNotHTTP
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, errNotHTTP
	}
	length, isChunked, closes := 0, false, false
	for {
		if line, err = c.line(); err != nil {
			return 0, fmt.Errorf("read the headers: %w", err)
		}
		switch {
		case len(line) == 0:
			err := c.readBody(length, isChunked)
			if closes {
				c.Close()
			}
			return status, err
		case hasFold(line, contentLength):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[len(contentLength):]))); err != nil {
				return 0, errNotHTTP
			}
		case hasFold(line, chunked):
			isChunked = true
		case hasFold(line, connClose):
			closes = true
		}
	}
}

func hasFold(line, prefix []byte) bool {
	return len(line) >= len(prefix) && line[0]|0x20 == prefix[0] && bytes.EqualFold(line[:len(prefix)], prefix)
}

func (c *Conn) readBody(length int, isChunked bool) error {
	c.body = c.body[:0]
	if !isChunked {
		return c.more(length)
	}
	for {
		line, err := c.line()
		if err != nil {
			return fmt.Errorf("read a chunk: %w", err)
		}
		n, err := strconv.ParseUint(string(line), 16, 31)
		if err != nil {
			return errNotHTTP
		}
		if err := c.more(int(n)); err != nil {
			return err
		}
		if _, err := c.line(); err != nil { // the end of a chunk, or of the last one's trailers
			return fmt.Errorf("read a chunk: %w", err)
		}
		if n == 0 {
			return nil
		}
	}
}

func (c *Conn) more(n int) error {
	have := len(c.body)
	if cap(c.body) < have+n {
		c.body = append(make([]byte, 0, 2*(have+n)), c.body...)
	}
	c.body = c.body[:have+n]
	if _, err := io.ReadFull(c.r, c.body[have:]); err != nil {
		return fmt.Errorf("read the body: %w", err)
	}
	return nil
}

// line gives a line without its end, valid until the next read.
func (c *Conn) line() ([]byte, error) {
	b, err := c.r.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	return bytes.TrimRight(b, "\r\n"), nil
}

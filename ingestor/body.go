package ingestor

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/softcrum/carril/internal/httpserver"
)

// checkType sees that the body is JSON in UTF-8 in an encoding that is known,
// before any of it is read.
func checkType(r *http.Request) *httpserver.Problem {
	types := r.Header["Content-Type"]
	if len(types) != 1 || types[0] != "application/json" && !jsonUTF8(types[0]) {
		return &httpserver.Problem{Status: http.StatusUnsupportedMediaType, Code: "unsupported_media_type", Title: "The body must be JSON",
			Detail: "Send Content-Type: application/json; UTF-8 is the only charset."}
	}
	if encodings := r.Header["Content-Encoding"]; len(encodings) > 1 || len(encodings) == 1 && decoderOf(encodings[0]) == unknownEncoding {
		return &httpserver.Problem{Status: http.StatusUnsupportedMediaType, Code: "unsupported_encoding", Title: "The body has an encoding that is not taken",
			Detail: "Send it with Content-Encoding gzip or zstd, or without one."}
	}
	return nil
}

func jsonUTF8(value string) bool {
	kind, params, err := mime.ParseMediaType(value)
	if err != nil || kind != "application/json" {
		return false
	}
	for name, v := range params {
		if name != "charset" || !strings.EqualFold(v, "utf-8") {
			return false
		}
	}
	return true
}

// encoding is a Content-Encoding.
type encoding int

const (
	plain encoding = iota
	gzipped
	zstandard
	unknownEncoding
)

func decoderOf(value string) encoding {
	switch strings.ToLower(strings.TrimSpace(value)) {
	case "", "identity":
		return plain
	case "gzip", "x-gzip":
		return gzipped
	case "zstd":
		return zstandard
	}
	return unknownEncoding
}

// readBody reads and inflates the body into v.body.
func (a *API) readBody(v *visit, r *http.Request, most int) *httpserver.Problem {
	if r.ContentLength > int64(most) { // said in the header: not one byte is waited for
		return bodyTooLarge("body_too_large", most)
	}
	wire := &counted{r: r.Body}
	enc := plain
	if values := r.Header["Content-Encoding"]; len(values) == 1 {
		enc = decoderOf(values[0])
	}
	if enc == plain {
		return a.fill(v, wire, wire, int(r.ContentLength), most, 0)
	}
	wire.most = int64(most)
	src, done, err := open(enc, wire)
	if err == nil {
		defer done()
		return a.fill(v, src, wire, 0, most, a.cfg.MaxRatio)
	}
	return a.unreadable(err, wire, true, most)
}

func bodyTooLarge(code string, most int) *httpserver.Problem {
	title := "The body is too large"
	if code == "inflated_too_large" {
		title = "The body inflates to more than is taken"
	}
	return &httpserver.Problem{Status: http.StatusRequestEntityTooLarge, Code: code, Title: title, Detail: fmt.Sprintf("At most %d bytes.", most)}
}

// firstBytes of memory for a body; ratioFrom is from where on a body's ratio
// counts: small ones may be as regular as they like.
const (
	firstBytes = 4 << 10
	ratioFrom  = 256 << 10
)

// fill reads src to its end into v.body, which grows within the API's budget.
// size is the length that was announced, 0 or less when none was.
func (a *API) fill(v *visit, src io.Reader, wire *counted, size, most, ratio int) *httpserver.Problem {
	b, need := v.body[:0], max(min(size, most)+1, firstBytes)
	if !a.hold(v, max(need, cap(b))) {
		return overloaded()
	}
	if cap(b) < need {
		b = make([]byte, 0, need)
	}
	for {
		if len(b) == cap(b) {
			grown := min(2*cap(b), most+1)
			if !a.hold(v, grown) {
				return overloaded()
			}
			b = append(make([]byte, 0, grown), b...)
		}
		n, err := src.Read(b[len(b):min(cap(b), most+1)])
		b = b[:len(b)+n]
		v.body = b
		switch {
		case len(b) > most && ratio == 0:
			return bodyTooLarge("body_too_large", most)
		case len(b) > most, ratio > 0 && len(b) > ratioFrom && int64(len(b)) > wire.n*int64(ratio):
			return bodyTooLarge("inflated_too_large", most)
		case err == io.EOF:
			return nil
		case err != nil:
			return a.unreadable(err, wire, ratio > 0, most)
		}
	}
}

// hold takes what the visit's body may grow to from the API's budget.
func (a *API) hold(v *visit, bytes int) bool {
	more := int64(bytes) - v.held
	if more <= 0 {
		return true
	}
	if a.held.Add(more) > a.cfg.MaxHeldBytes {
		a.held.Add(-more)
		return false
	}
	v.held += more
	return true
}

func overloaded() *httpserver.Problem {
	return &httpserver.Problem{Status: http.StatusServiceUnavailable, Code: "overloaded", Title: "Too many requests at once",
		Detail: "Send it again after the time that Retry-After says.", RetryAfter: 1}
}

// unreadable says whose fault it is that a body could not be read: the
// network's, the encoding's or the sender's.
func (a *API) unreadable(err error, wire *counted, encoded bool, most int) *httpserver.Problem {
	var timeout net.Error
	switch {
	case errors.Is(err, errWireTooLarge):
		return bodyTooLarge("body_too_large", most)
	case wire.err != nil && errors.As(wire.err, &timeout) && timeout.Timeout():
		return &httpserver.Problem{Status: http.StatusRequestTimeout, Code: "request_timeout", Title: "The body did not arrive in time"}
	case encoded && (wire.err == nil || errors.Is(wire.err, io.EOF)):
		return &httpserver.Problem{Status: http.StatusBadRequest, Code: "invalid_encoding", Title: "The body is not what its Content-Encoding says"}
	}
	return &httpserver.Problem{Status: http.StatusBadRequest, Code: "unreadable_body", Title: "The body could not be read to its end"}
}

var errWireTooLarge = errors.New("encoded body too large")

// counted reads a body off the wire and remembers how much came and how it ended.
type counted struct {
	r    io.Reader
	n    int64
	most int64 // 0: the reader's caller counts
	err  error
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if err != nil {
		c.err = err
	}
	if c.most > 0 && c.n > c.most {
		return n, errWireTooLarge
	}
	return n, err
}

// Decoders are large and made to be used again.
var (
	gzips = sync.Pool{New: func() any { return new(gzip.Reader) }}
	zstds = sync.Pool{New: func() any {
		// One goroutine, the caller's; a window above 8 MiB is not for interchange (RFC 8878 §3.1.1.1.2).
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(8<<20))
		if err != nil {
			panic(err) // the options are constants
		}
		return d
	}}
)

// open begins to inflate a body; done gives the decoder back.
func open(enc encoding, wire io.Reader) (src io.Reader, done func(), err error) {
	if enc == gzipped {
		z := gzips.Get().(*gzip.Reader)
		if err := z.Reset(wire); err != nil {
			gzips.Put(z)
			return nil, nil, err
		}
		return z, func() { gzips.Put(z) }, nil
	}
	z := zstds.Get().(*zstd.Decoder)
	release := func() {
		_ = z.Reset(nil)
		zstds.Put(z)
	}
	if err := z.Reset(wire); err != nil {
		release()
		return nil, nil, err
	}
	return z, release, nil
}

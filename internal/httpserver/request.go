package httpserver

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"runtime/debug"

	"github.com/softcrum/carril/internal/ids"
)

// RequestIDHeader stands on every answer; its value is the problem's instance
// and the request_id of the logs.
const RequestIDHeader = "Carril-Request-Id"

type requestKey struct{}

type request struct {
	id          string
	traceparent string
	remote      string   // the connection's other end
	forwarded   []string // X-Forwarded-For, believed as far as proxies says
	proxies     []netip.Prefix
}

// RequestID gives the id of the request that ctx belongs to, or "".
func RequestID(ctx context.Context) string {
	if q, ok := ctx.Value(requestKey{}).(*request); ok {
		return q.id
	}
	return ""
}

// Traceparent gives the caller's W3C traceparent, or "" where it sent none or
// an invalid one.
func Traceparent(ctx context.Context) string {
	if q, ok := ctx.Value(requestKey{}).(*request); ok {
		return q.traceparent
	}
	return ""
}

// Identify gives each request its id and carries the caller's traceparent, and
// turns a panic of next into a 500 problem. The id is always ours: one chosen
// by a caller could stand in the logs twice.
func Identify(next http.Handler, log *slog.Logger) http.Handler { return identify(next, log, nil) }

func identify(next http.Handler, log *slog.Logger, proxies []netip.Prefix) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := &request{id: ids.New().String(), traceparent: validTraceparent(r.Header["Traceparent"]),
			remote: r.RemoteAddr, forwarded: r.Header["X-Forwarded-For"], proxies: proxies}
		w.Header()[RequestIDHeader] = []string{q.id}
		r = r.WithContext(context.WithValue(r.Context(), requestKey{}, q))
		track := &started{ResponseWriter: w}
		defer answerPanic(track, r, log)
		next.ServeHTTP(track, r)
	})
}

// answerPanic answers 500 where nothing was written yet; where the answer had
// begun it cuts the connection, since half an answer must not look whole.
func answerPanic(w *started, r *http.Request, log *slog.Logger) {
	v := recover()
	if v == nil {
		return
	}
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(v)
	}
	log.Error("panic in a request", "request_id", RequestID(r.Context()), "method", r.Method,
		"panic", v, "stack", string(debug.Stack()))
	if w.status != 0 {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Connection", "close")
	(&Problem{Status: http.StatusInternalServerError, Code: "internal", Title: "Something broke on our side",
		Detail: "The request may have been taken. It is safe to send it again with the same idempotency key."}).Write(w, r)
}

// started remembers with which status the answer began; 0: it has not.
type started struct {
	http.ResponseWriter
	status int
}

func (s *started) WriteHeader(status int) {
	if s.status == 0 && status >= http.StatusOK {
		s.status = status
	}
	s.ResponseWriter.WriteHeader(status)
}

func (s *started) Write(b []byte) (int, error) {
	if s.status == 0 {
		s.status = http.StatusOK
	}
	return s.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (s *started) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// validTraceparent takes version-trace-parent-flags in lower-case hexadecimal,
// ids not all zero, version not ff (W3C Trace Context §3.2).
func validTraceparent(values []string) string {
	if len(values) != 1 {
		return ""
	}
	v := values[0]
	if len(v) < 55 || v[2] != '-' || v[35] != '-' || v[52] != '-' || v[:2] == "ff" {
		return ""
	}
	if len(v) > 55 && (v[:2] == "00" || v[55] != '-' || len(v) > 256) {
		return ""
	}
	if !lowerHex(v[:2]) || !lowerHex(v[3:35]) || !lowerHex(v[36:52]) || !lowerHex(v[53:55]) {
		return ""
	}
	if allZero(v[3:35]) || allZero(v[36:52]) {
		return ""
	}
	return v[:55]
}

func lowerHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func allZero(s string) bool {
	for i := range len(s) {
		if s[i] != '0' {
			return false
		}
	}
	return true
}

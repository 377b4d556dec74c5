package sandbox

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The endpoints, as Fault.Endpoint names them.
const (
	endpointSingle = "emails"
	endpointBatch  = "batch"
	endpointTexts  = "messages"
)

const (
	maxBody          = 40_000_000
	maxIdemKey       = 256
	headerIdem       = "Idempotency-Key"
	headerValidation = "X-Batch-Validation"
)

func (s *Server) routes() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("/emails", s.send(endpointSingle))
	mux.HandleFunc("/emails/batch", s.send(endpointBatch))
	mux.HandleFunc("/2010-04-01/Accounts/{account}/Messages.json", s.sendText)
	mux.HandleFunc("GET /sandbox/receipts", s.viewReceipts)
	mux.HandleFunc("GET /sandbox/requests", s.viewRequests)
	mux.HandleFunc("GET /sandbox/counters", s.viewCounters)
	mux.HandleFunc("GET /sandbox/messages/{id}", s.viewMessage)
	mux.HandleFunc("GET /sandbox/faults", s.viewFaults)
	mux.HandleFunc("POST /sandbox/faults", s.addFaults)
	mux.HandleFunc("DELETE /sandbox/faults", s.dropFaults)
	mux.HandleFunc("GET /{$}", s.viewIndex)
	mux.HandleFunc("/", s.unknown)
	return mux
}

// exchange is one request to a sending endpoint on its way through.
type exchange struct {
	*Server
	w        http.ResponseWriter
	r        *http.Request
	endpoint string
	body     []byte
	sum      [sha256.Size]byte // of the body
	record   Request
	fault    Fault // its kind is empty where none was met
	render   func(*taken) []byte
}

func (s *Server) newExchange(w http.ResponseWriter, r *http.Request, endpoint string) *exchange {
	return &exchange{
		Server: s, w: w, r: r, endpoint: endpoint, render: s.render,
		record: Request{
			At: s.now(), Method: r.Method, Path: clip(r.URL.Path, maxIdemKey), Key: clip(r.Header.Get(headerIdem), maxIdemKey),
		},
	}
}

// clip keeps what a client says at will from filling the memory.
func clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.Clone(s[:limit])
}

func (s *Server) send(endpoint string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		x := s.newExchange(w, r, endpoint)
		if err := x.run(); err != nil {
			x.refuse(err)
		}
	}
}

// unknown is every path that does not send: what a client that only sends never
// asks for.
func (s *Server) unknown(w http.ResponseWriter, r *http.Request) {
	s.ledger.unknown.Add(1)
	s.newExchange(w, r, "").refuse(refuse(http.StatusNotFound, nameNotFound, "The requested endpoint does not exist."))
}

// refuse records and answers an error.
func (x *exchange) refuse(err *apiError) {
	x.ledger.failed.Add(1)
	x.record.Name = err.Name
	x.note(strconv.Itoa(err.Status))
	err.write(x.w)
}

// note puts the request into the ledger; it comes before the answer, so that
// whoever has the answer finds it there.
func (x *exchange) note(answer string) uint64 {
	x.record.Answer = answer
	r := x.ledger.requests.add(func(seq uint64) Request {
		x.record.Seq = seq
		return x.record
	})
	return r.Seq
}

// run goes the way of a request through Resend: who asks, how often, what.
func (x *exchange) run() *apiError {
	if err := x.admit(); err != nil {
		return err
	}
	if err := x.read(); err != nil {
		return err
	}
	if x.meetFault(); x.fault.Kind.takesNothing() {
		return x.refuseByFault()
	}
	t, err := x.resolve()
	if err != nil {
		return err
	}
	x.answer(t)
	return nil
}

func (x *exchange) admit() *apiError {
	if x.r.UserAgent() == "" {
		// What stands before the API refuses it, and not in JSON.
		return &apiError{Status: http.StatusForbidden, Message: "error code: 1010", plain: true}
	}
	if err := x.authenticate(); err != nil {
		return err
	}
	x.quota.state(x.record.At, x.w.Header())
	if err := x.limit.take(x.record.At, x.w.Header()); err != nil {
		x.ledger.limited.Add(1)
		return err
	}
	if x.r.Method != http.MethodPost {
		return refuse(http.StatusMethodNotAllowed, nameMethod, "Method is not allowed for the requested path.")
	}
	return nil
}

func (x *exchange) authenticate() *apiError {
	key, ok := strings.CutPrefix(x.r.Header.Get("Authorization"), "Bearer ")
	switch {
	case !ok || key == "":
		return refuse(http.StatusUnauthorized, nameMissingKey, "Missing API key in the authorization header.")
	case strings.HasPrefix(key, "re_restricted"):
		return refuse(http.StatusUnauthorized, nameRestrictedKey, "This API key is restricted.")
	case strings.HasPrefix(key, "re_suspended"):
		return refuse(http.StatusForbidden, nameSuspendedKey, "This API key is suspended.")
	case len(x.cfg.APIKeys) > 0 && !slices.Contains(x.cfg.APIKeys, key), !strings.HasPrefix(key, "re_"):
		return refuse(http.StatusForbidden, nameInvalidKey, "API key is invalid.")
	}
	return nil
}

// read takes the body in, and the key that belongs to it.
func (x *exchange) read() *apiError {
	if values := x.r.Header.Values(headerIdem); len(values) > 1 || len(values) == 1 && (values[0] == "" || len(values[0]) > maxIdemKey) {
		return refuse(http.StatusBadRequest, nameBadIdemKey, "The idempotency key must be 1 to 256 characters.")
	}
	body, err := io.ReadAll(http.MaxBytesReader(x.w, x.r.Body, maxBody))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return refuse(http.StatusRequestEntityTooLarge, nameValidation, "The request is too large.")
	} else if err != nil {
		return refuse(http.StatusBadRequest, nameValidation, "The request body cannot be read.")
	}
	x.body = body
	x.sum = sha256.Sum256(body)
	x.record.BodySHA256 = hex.EncodeToString(x.sum[:])
	return nil
}

// resolve gives the outcome of the request: the original one where its key was
// taken before, else a new one.
func (x *exchange) resolve() (*taken, *apiError) {
	messages, err := parseBody(x.endpoint, x.body)
	if err != nil {
		return nil, err
	}
	if x.record.Key == "" {
		x.wait(x.cfg.Latency)
		return x.take(messages)
	}
	original, err := x.keys.begin(x.record.Key, x.sum, x.record.At)
	if err != nil {
		return nil, err
	}
	if original != nil {
		x.repeat(messages, original)
		return original, nil
	}
	x.wait(x.cfg.Latency)
	t, err := x.take(messages)
	x.keys.finish(x.record.Key, t)
	return t, err
}

// wait sleeps whether or not the client is still there: a provider goes on too.
func (x *exchange) wait(d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-x.closing:
	}
}

package resend

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/provider/payload"
)

// maxAnswer is how much of an answer's body is read, in bytes; a batch of 100
// refusals takes some 30 KB.
const maxAnswer = 1 << 20

// headerIdempotencyKey is written in lower case on purpose. Under its canonical
// spelling net/http takes the header for leave to send the request again by
// itself, after the body left, and one attempt would be two.
const headerIdempotencyKey = "idempotency-key"

// Send makes one attempt with the request's exact bytes under its key. The error
// is always a *provider.Error; it carries no recipient, content or key.
func (a *Adapter) Send(ctx context.Context, r provider.Request) (provider.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	body := payload.New(r.Body)
	req, perr := a.newRequest(ctx, r, body)
	if perr != nil {
		return provider.Result{Limits: provider.NoLimits()}, perr
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return provider.Result{Limits: provider.NoLimits()}, a.noAnswer(ctx, err, body.Settle())
	}
	defer resp.Body.Close()
	return a.read(ctx, r.Frozen, resp)
}

func (a *Adapter) newRequest(ctx context.Context, r provider.Request, body *payload.Payload) (*http.Request, *provider.Error) {
	path, ok := pathOf(r.Endpoint)
	switch {
	case !ok:
		return nil, refusal("unknown_endpoint", "the frozen request names no endpoint of this adapter")
	case r.Count < 1 || len(r.Body) == 0:
		return nil, refusal("empty_request", "the frozen request holds no message")
	case r.IdempotencyKey == "" || len(r.IdempotencyKey) > maxKeyLength || !printable(r.IdempotencyKey):
		return nil, refusal("invalid_idempotency_key", "want 1 to 256 printable characters")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.base.JoinPath(path).String(), body)
	if err != nil {
		return nil, refusal("invalid_request", "the request cannot be built")
	}
	req.ContentLength = int64(len(r.Body))
	req.GetBody = body.Again
	req.Header.Set("Authorization", "Bearer "+a.key.Load().value)
	req.Header.Set("User-Agent", a.cfg.UserAgent)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header[headerIdempotencyKey] = []string{r.IdempotencyKey}
	if r.Endpoint == EndpointBatch {
		req.Header.Set("X-Batch-Validation", "permissive") // one bad message must not cost the other 99
	}
	return req, nil
}

// noAnswer classifies an attempt that got none. Whether the body left decides:
// what never left may go again under a new key, the rest under this one only.
func (a *Adapter) noAnswer(ctx context.Context, err error, left bool) *provider.Error {
	out := &provider.Error{Class: provider.ClassRetryable, Code: transportCode(ctx, err), Err: a.scrub(err)}
	switch {
	case errors.Is(err, errForbidden):
		out.Class, out.Code = provider.ClassConfiguration, "forbidden_endpoint"
	case left:
		out.Class = provider.ClassUncertain
	}
	return out
}

// transportCode names a failure of the transport.
func transportCode(ctx context.Context, err error) string {
	var (
		netErr  net.Error
		dns     *net.DNSError
		op      *net.OpError
		cert    *tls.CertificateVerificationError
		refused tls.RecordHeaderError
	)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return "canceled"
	case errors.Is(ctx.Err(), context.DeadlineExceeded), errors.As(err, &netErr) && netErr.Timeout():
		return "timeout"
	case errors.As(err, &dns):
		return "dns"
	case errors.As(err, &cert), errors.As(err, &refused):
		return "tls"
	case errors.As(err, &op) && op.Op == "dial":
		return "connect"
	default:
		return "reset"
	}
}

// scrub drops what an error of the transport would say beyond its kind: Resend's
// host is fine, a key that some layer repeated is not.
func (a *Adapter) scrub(err error) error {
	key := a.key.Load().value
	if strings.Contains(err.Error(), key) {
		return errors.New(strings.ReplaceAll(err.Error(), key, redactedKey))
	}
	return err
}

// read turns an answer into a result or an error.
func (a *Adapter) read(ctx context.Context, f provider.Frozen, resp *http.Response) (provider.Result, error) {
	result := provider.Result{Limits: readLimits(resp.Header)}
	body, err := readCapped(resp.Body)
	if err != nil && resp.StatusCode/100 == 2 {
		// It said yes and we cannot tell to what.
		code := transportCode(ctx, err)
		if errors.Is(err, errTooLong) {
			code = "answer_too_large"
		}
		return result, &provider.Error{Class: provider.ClassUncertain, Code: code, Status: resp.StatusCode, Err: a.scrub(err)}
	}
	if resp.StatusCode/100 != 2 {
		failure := readFailure(body) // without a readable body the status alone decides
		return result, a.classify(resp.StatusCode, failure, f, resp.Header.Get("Retry-After"))
	}
	items, err := readItems(body, f)
	if err == nil {
		result.Items = a.redactItems(items)
		return result, nil
	}
	// A 200 may carry an error: then the error is the answer.
	if failure := readFailure(body); failure.status() >= 400 {
		return result, a.classify(failure.status(), failure, f, resp.Header.Get("Retry-After"))
	}
	return result, &provider.Error{
		Class: provider.ClassUncertain, Code: "unreadable_answer", Status: resp.StatusCode, Detail: err.Error(),
	}
}

func (a *Adapter) redactItems(items []provider.Item) []provider.Item {
	for _, it := range items {
		if it.Err != nil {
			it.Err.Detail = provider.Redact(it.Err.Detail, a.key.Load().value)
		}
	}
	return items
}

var errTooLong = fmt.Errorf("the answer is longer than %d bytes", maxAnswer)

func readCapped(r io.Reader) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if len(body) > maxAnswer {
		return nil, errTooLong
	}
	return body, nil
}

func readLimits(h http.Header) provider.Limits {
	l := provider.NoLimits()
	l.Limit = max(0, headerInt(h, "Ratelimit-Limit"))
	l.Remaining = headerInt(h, "Ratelimit-Remaining")
	l.Reset = time.Duration(max(0, headerInt(h, "Ratelimit-Reset"))) * time.Second
	l.DailyUsed = headerInt(h, "X-Resend-Daily-Quota")
	l.MonthlyUsed = headerInt(h, "X-Resend-Monthly-Quota")
	return l
}

// headerInt gives -1 for what is absent or no count.
func headerInt(h http.Header, name string) int {
	n, err := strconv.ParseInt(strings.TrimSpace(h.Get(name)), 10, 32) // 32 bits of seconds still fit a Duration
	if err != nil || n < 0 {
		return -1
	}
	return int(n)
}

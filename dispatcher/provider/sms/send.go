package sms

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/provider/payload"
)

// maxAnswer is how much of an answer's body is read, in bytes.
const maxAnswer = 256 << 10

// Send makes one attempt with the request's exact bytes. The error is always a
// *provider.Error; it carries no recipient, content or token. The key is the
// rail's alone: the API has none, so a repeat after an uncertain attempt may
// reach its recipient twice.
func (a *Adapter) Send(ctx context.Context, r provider.Request) (provider.Result, error) {
	none := provider.Result{Limits: provider.NoLimits()}
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	body := payload.New(r.Body)
	req, perr := a.newRequest(ctx, r, body)
	if perr != nil {
		return none, perr
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return none, noAnswer(ctx, err, body.Settle())
	}
	defer resp.Body.Close()
	item, perr := a.read(ctx, resp, r.Body)
	if perr != nil {
		return none, perr
	}
	return provider.Result{Items: []provider.Item{item}, Limits: provider.NoLimits()}, nil
}

func (a *Adapter) newRequest(ctx context.Context, r provider.Request, body *payload.Payload) (*http.Request, *provider.Error) {
	switch {
	case r.Endpoint != EndpointMessages:
		return nil, refusal("unknown_endpoint", "the frozen request names no endpoint of this adapter")
	case r.Count != 1 || len(r.Body) == 0:
		return nil, refusal("empty_request", "the frozen request holds no message, or more than one")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.endpoint.String(), body)
	if err != nil {
		return nil, refusal("invalid_request", "the request cannot be built")
	}
	req.ContentLength = int64(len(r.Body))
	req.GetBody = body.Again
	req.SetBasicAuth(a.cfg.KeyID, a.token.Load().value)
	req.Header.Set("User-Agent", "carril")
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	return req, nil
}

// noAnswer classifies an attempt that got none: what never left may go again,
// the rest may have been taken.
func noAnswer(ctx context.Context, err error, left bool) *provider.Error {
	out := &provider.Error{Class: provider.ClassRetryable, Code: transportCode(ctx, err), Err: ctx.Err()}
	switch {
	case errors.Is(err, errForbidden):
		out.Class, out.Code = provider.ClassConfiguration, "forbidden_endpoint"
	case left:
		out.Class = provider.ClassUncertain
	}
	return out
}

// transportCode names a failure of the transport. The error itself is not kept.
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
	case errors.Is(err, errTooLong):
		return "answer_too_large"
	case ctx.Err() != nil, errors.As(err, &netErr) && netErr.Timeout():
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

// answer is what the API says, of a message or of an error.
type answer struct {
	SID       string `json:"sid"`
	Status    any    `json:"status"` // of a message text, of an error its HTTP status
	ErrorCode *int   `json:"error_code"`
	Code      int    `json:"code"`
	Message   string `json:"message"`
}

// read turns an answer into the message's outcome or an error. sent is the
// request's body, whose content an error must not repeat.
func (a *Adapter) read(ctx context.Context, resp *http.Response, sent []byte) (provider.Item, *provider.Error) {
	body, err := readCapped(resp.Body)
	if err != nil && resp.StatusCode/100 == 2 {
		// It said yes and we cannot tell to what.
		return provider.Item{}, &provider.Error{Class: provider.ClassUncertain, Code: transportCode(ctx, err), Status: resp.StatusCode, Err: ctx.Err()}
	}
	var ans answer
	readable := json.Unmarshal(body, &ans) == nil
	retryAfter := resp.Header.Get("Retry-After")
	switch status, isError := ans.Status.(float64); {
	case resp.StatusCode/100 != 2:
		return provider.Item{}, a.classify(resp.StatusCode, ans, retryAfter, sent)
	case readable && isError && status >= 400: // a 200 may carry an error: then the error is the answer
		return provider.Item{}, a.classify(int(status), ans, retryAfter, sent)
	case !readable || ans.SID == "" || len(ans.SID) > 128:
		return provider.Item{}, &provider.Error{Class: provider.ClassUncertain, Code: "unreadable_answer", Status: resp.StatusCode,
			Detail: "the answer names no message"}
	case ans.ErrorCode != nil && *ans.ErrorCode != 0 && (ans.Status == "failed" || ans.Status == "undelivered"):
		return provider.Item{Err: refusal(codeOf(resp.StatusCode, *ans.ErrorCode), "")}, nil
	}
	return provider.Item{ProviderMessageID: ans.SID}, nil
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

// private lists what an answer could repeat: the token, and what was sent.
func (a *Adapter) private(sent []byte) []string {
	out := []string{a.token.Load().value}
	form, err := url.ParseQuery(string(sent))
	if err != nil {
		return out
	}
	for _, name := range []string{"Body", "To", "From"} {
		if v := form.Get(name); len(v) > 3 { // what is shorter would mask half of any sentence
			out = append(out, v)
		}
	}
	return out
}

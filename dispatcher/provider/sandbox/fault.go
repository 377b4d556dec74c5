package sandbox

import (
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"
)

// FaultKind is a way to misbehave; the set is closed.
type FaultKind string

// The kinds. Those that begin with "accept" take the messages, webhooks and all,
// and so do slow_drip, huge_body, unparsable and short: only the answer is bad.
const (
	// FaultStatus refuses with Status, Name, Message and RetryAfter; a 429 with a
	// quota's name is a quota.
	FaultStatus FaultKind = "status"
	// FaultErrorInSuccess is FaultStatus under HTTP status 200.
	FaultErrorInSuccess FaultKind = "error_in_success"
	// FaultReset resets the connection.
	FaultReset FaultKind = "reset"
	// FaultHang says nothing until the client leaves.
	FaultHang FaultKind = "hang"
	// FaultPartial refuses the messages at Items of a batch and takes the others.
	FaultPartial FaultKind = "partial"
	// FaultAcceptThenStatus answers as FaultStatus does.
	FaultAcceptThenStatus FaultKind = "accept_then_status"
	// FaultAcceptThenHang says nothing until the client leaves.
	FaultAcceptThenHang FaultKind = "accept_then_hang"
	// FaultAcceptThenReset resets the connection.
	FaultAcceptThenReset FaultKind = "accept_then_reset"
	// FaultAcceptThenClose closes the connection without a byte.
	FaultAcceptThenClose FaultKind = "accept_then_close"
	// FaultSlowDrip answers a byte every Delay.
	FaultSlowDrip FaultKind = "slow_drip"
	// FaultHugeBody answers behind 64 MB of white space.
	FaultHugeBody FaultKind = "huge_body"
	// FaultUnparsable answers 200 with a page.
	FaultUnparsable FaultKind = "unparsable"
	// FaultShort answers for one message less than it took.
	FaultShort FaultKind = "short"
)

func (k FaultKind) known() bool {
	switch k {
	case FaultStatus, FaultErrorInSuccess, FaultReset, FaultHang, FaultPartial, FaultAcceptThenStatus, FaultAcceptThenHang,
		FaultAcceptThenReset, FaultAcceptThenClose, FaultSlowDrip, FaultHugeBody, FaultUnparsable, FaultShort:
		return true
	default:
		return false
	}
}

// takesNothing says that the request ends where the fault is met.
func (k FaultKind) takesNothing() bool {
	return k == FaultStatus || k == FaultErrorInSuccess || k == FaultReset || k == FaultHang
}

// Fault is what a request meets. It is met behind the checks of key, user agent
// and rate, so a fault counts against the rate as the request that it is.
type Fault struct {
	// Endpoint is "emails", "batch" or "messages" (the text message API's); empty
	// is all.
	Endpoint string    `json:"endpoint,omitempty"`
	Kind     FaultKind `json:"kind"`
	// Times is how many requests meet it; 0 is 1.
	Times int `json:"times,omitempty"`
	// Status, Name and Message are the error's; 0 and empty are 500 and
	// application_error. Of the text message API, Name is the error's number, and
	// 20500 where it is none. RetryAfter is the header as it stands; absent sends none.
	Status     int     `json:"status,omitempty"`
	Name       string  `json:"name,omitempty"`
	Message    string  `json:"message,omitempty"`
	RetryAfter *string `json:"retry_after,omitempty"`
	// Items are places in a batch, for partial.
	Items []int `json:"items,omitempty"`
	// DelayMS is between two bytes of slow_drip, in milliseconds; 0 is 1000.
	DelayMS int `json:"delay_ms,omitempty"`
	// Reached, if any, is called by the hangs once nothing more will come, and by
	// slow_drip once its first byte is out.
	Reached func() `json:"-"`
}

func (f Fault) check() error {
	switch {
	case !f.Kind.known():
		return fmt.Errorf("unknown kind %q", f.Kind)
	case f.Endpoint != "" && f.Endpoint != endpointSingle && f.Endpoint != endpointBatch && f.Endpoint != endpointTexts:
		return fmt.Errorf("unknown endpoint %q", f.Endpoint)
	case f.Times < 0 || f.DelayMS < 0:
		return fmt.Errorf("times or delay_ms is negative")
	case f.Status != 0 && (f.Status < 300 || f.Status > 599):
		return fmt.Errorf("status is not within 300 to 599")
	}
	return nil
}

func (f Fault) delay() time.Duration {
	return or(time.Duration(f.DelayMS)*time.Millisecond, time.Second)
}

func (f Fault) reached() {
	if f.Reached != nil {
		f.Reached()
	}
}

// failure is the error that the fault answers with.
func (f Fault) failure() *apiError {
	e := refuse(or(f.Status, 500), orString(f.Name, nameApplication), orString(f.Message, "Injected."))
	if f.RetryAfter != nil {
		e.retryAfter = *f.RetryAfter
	}
	return e
}

// textFailure is the error in the text message API's own terms.
func (f Fault) textFailure() *apiError {
	code, err := strconv.Atoi(f.Name)
	if err != nil || code <= 0 {
		code = textServerError
	}
	e := refuseText(or(f.Status, 500), code, orString(f.Message, "Injected."))
	if f.RetryAfter != nil {
		e.retryAfter = *f.RetryAfter
	}
	return e
}

// faults is the queue of what is still to be met.
type faults struct {
	mu   sync.Mutex
	list []Fault
}

func (q *faults) add(list []Fault) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, f := range list {
		f.Times = or(f.Times, 1)
		q.list = append(q.list, f)
	}
}

func (q *faults) clear() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.list = nil
}

func (q *faults) all() []Fault {
	q.mu.Lock()
	defer q.mu.Unlock()
	return append([]Fault{}, q.list...)
}

// take gives the first fault that waits for a request to this endpoint.
func (q *faults) take(endpoint string) (Fault, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.list {
		f := q.list[i]
		if f.Endpoint != "" && f.Endpoint != endpoint {
			continue
		}
		if q.list[i].Times--; q.list[i].Times == 0 {
			q.list = append(q.list[:i], q.list[i+1:]...)
		}
		return f, true
	}
	return Fault{}, false
}

// parseFaults reads one fault or a list of them.
func parseFaults(body []byte) ([]Fault, error) {
	var list []Fault
	if err := json.Unmarshal(body, &list); err == nil {
		return list, nil
	}
	var one Fault
	if err := json.Unmarshal(body, &one); err != nil {
		return nil, fmt.Errorf("read the faults: %w", err)
	}
	return []Fault{one}, nil
}

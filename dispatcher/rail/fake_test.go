package rail_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/dispatcher/provider"
)

// fake is a provider in memory that keeps a ledger: what arrived, under which
// key, and what a person got. A key is one effect, as with a real one.
type fake struct {
	caps provider.Capabilities
	name string // default "fake"

	mu             sync.Mutex
	script         []func(provider.Request) (provider.Result, error) // answers for the next requests, before the rule
	rule           func(n int, r provider.Request) (provider.Result, error)
	latency        time.Duration
	requests       []receipt
	answers        map[string]provider.Result // by key
	bodies         map[string]string
	got            map[uuid.UUID]int // deliveries of a send
	order          []uuid.UUID
	keys           map[uuid.UUID]map[string]bool // keys a send went under
	inFlight, most int
}

type receipt struct {
	key   string
	sends []uuid.UUID
	at    time.Time
}

func newFake() *fake {
	return &fake{caps: provider.Capabilities{Channel: "email", IdempotencyKeys: true, KeyLife: 24 * time.Hour, Batch: true, MaxBatch: 100, MaxBodyBytes: 1 << 20, RatePerSecond: 1000},
		answers: map[string]provider.Result{}, bodies: map[string]string{}, got: map[uuid.UUID]int{}, keys: map[uuid.UUID]map[string]bool{}}
}

func (f *fake) Name() string                        { return def(f.name, "fake") }
func (f *fake) Capabilities() provider.Capabilities { return f.caps }

func (f *fake) Freeze(msgs []provider.Message, batch bool) (provider.Frozen, error) {
	if !batch && len(msgs) != 1 {
		return provider.Frozen{}, fmt.Errorf("%d messages for the single endpoint", len(msgs))
	}
	for i, m := range msgs {
		if m.Subject == "unfreezable" {
			return provider.Frozen{}, &provider.MessageError{Index: i, Reason: &provider.Error{Class: provider.ClassPermanent, Code: "bad_message"}}
		}
	}
	b, err := json.Marshal(msgs)
	end := "single"
	if batch {
		end = "batch"
	}
	return provider.Frozen{Endpoint: end, Body: b, Count: len(msgs)}, err
}

func (f *fake) Send(ctx context.Context, r provider.Request) (provider.Result, error) {
	var msgs []provider.Message
	if err := json.Unmarshal(r.Body, &msgs); err != nil {
		return provider.Result{}, err
	}
	f.mu.Lock()
	rc := receipt{key: r.IdempotencyKey, at: time.Now()}
	for _, m := range msgs {
		rc.sends = append(rc.sends, m.SendID)
		if f.keys[m.SendID] == nil {
			f.keys[m.SendID] = map[string]bool{}
		}
		f.keys[m.SendID][r.IdempotencyKey] = true
	}
	f.requests = append(f.requests, rc)
	f.inFlight++
	f.most = max(f.most, f.inFlight)
	n := len(f.requests)
	var answer func(provider.Request) (provider.Result, error)
	if len(f.script) > 0 {
		answer, f.script = f.script[0], f.script[1:]
	}
	rule, latency := f.rule, f.latency
	f.mu.Unlock()
	defer func() { f.mu.Lock(); f.inFlight--; f.mu.Unlock() }()
	if latency > 0 {
		select {
		case <-ctx.Done():
			return provider.Result{}, &provider.Error{Class: provider.ClassUncertain, Code: "timeout", Err: ctx.Err()}
		case <-time.After(latency):
		}
	}
	if answer != nil {
		return answer(r)
	}
	if rule != nil {
		return rule(n, r)
	}
	return f.take(r)
}

// take is the ordinary answer: once a key.
func (f *fake) take(r provider.Request) (provider.Result, error) {
	var msgs []provider.Message
	if err := json.Unmarshal(r.Body, &msgs); err != nil {
		return provider.Result{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if body, ok := f.bodies[r.IdempotencyKey]; ok && f.caps.IdempotencyKeys {
		if body != string(r.Body) {
			return provider.Result{}, &provider.Error{Class: provider.ClassPermanent, Status: 409, Code: "invalid_idempotent_request"}
		}
		return f.answers[r.IdempotencyKey], nil
	}
	res := provider.Result{Limits: provider.Limits{Remaining: -1, DailyUsed: -1, MonthlyUsed: -1}}
	for _, m := range msgs {
		if m.Subject == "refused" {
			res.Items = append(res.Items, provider.Item{Err: &provider.Error{Class: provider.ClassPermanent, Code: "invalid_to"}})
			continue
		}
		f.got[m.SendID]++
		f.order = append(f.order, m.SendID)
		res.Items = append(res.Items, provider.Item{ProviderMessageID: "m-" + m.SendID.String()})
	}
	f.bodies[r.IdempotencyKey], f.answers[r.IdempotencyKey] = string(r.Body), res
	return res, nil
}

// takenButLost takes the request and answers nothing.
func (f *fake) takenButLost(r provider.Request) (provider.Result, error) {
	_, _ = f.take(r)
	return provider.Result{}, &provider.Error{Class: provider.ClassUncertain, Code: "timeout"}
}

func fails(e provider.Error) func(provider.Request) (provider.Result, error) {
	return func(provider.Request) (provider.Result, error) { return provider.Result{}, &e }
}

func (f *fake) next(answers ...func(provider.Request) (provider.Result, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script = append(f.script, answers...)
}

func (f *fake) set(rule func(int, provider.Request) (provider.Result, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rule = rule
}

func (f *fake) delivered(send uuid.UUID) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.got[send]
}

func (f *fake) count() (requests, people int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.requests), len(f.got)
}

func (f *fake) keysOf(send uuid.UUID) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.keys[send])
}

// twice lists the sends that somebody got more than once.
func (f *fake) twice() (out []uuid.UUID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, n := range f.got {
		if n > 1 {
			out = append(out, id)
		}
	}
	return out
}

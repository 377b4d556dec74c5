package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/softcrum/carril/internal/pause"
)

// ledger is what the provider says that it was asked.
type ledger struct {
	url      string
	process  *process // nil: it was there before
	receipts uint64   // read so far
	requests uint64

	first   map[string]time.Time // by address: when it was first taken
	twice   int                  // taken once more under another key
	replays int                  // asked for again under the same key
	last    time.Time            // of the blast's
	seen    []request
}

type receipt struct {
	At     time.Time `json:"at"`
	To     string    `json:"to"`
	Replay bool      `json:"replay"`
}

type request struct {
	At     time.Time `json:"at"`
	Answer string    `json:"answer"`
	Count  int       `json:"count"`
}

type listing[T any] struct {
	Entries []T    `json:"entries"`
	Next    uint64 `json:"next"`
	Gone    uint64 `json:"gone"`
}

func newLedger(url string) *ledger { return &ledger{url: url, first: map[string]time.Time{}} }

// startProvider runs a sandbox for one system alone.
func (o options) startProvider(ctx context.Context, l *ledger, more ...string) error {
	p, err := o.start(ctx, "sandbox", nil, o.Carril, append([]string{"sandbox", "--json", "--rate", fmt.Sprint(int(o.Profile.ProviderRate))}, more...)...)
	if err != nil {
		return err
	}
	l.process, l.url = p, p.ready.Sandbox
	return nil
}

func (l *ledger) stop() { l.process.stop() }

// read takes in what is new.
func (l *ledger) read(ctx context.Context) error {
	for more := true; more; {
		var page listing[receipt]
		if err := l.get(ctx, "receipts", l.receipts, &page); err != nil {
			return err
		}
		for _, r := range page.Entries {
			l.take(r)
		}
		l.receipts, more = page.Next, len(page.Entries) > 0
	}
	for more := true; more; {
		var page listing[request]
		if err := l.get(ctx, "requests", l.requests, &page); err != nil {
			return err
		}
		l.seen = append(l.seen, page.Entries...)
		l.requests, more = page.Next, len(page.Entries) > 0
	}
	return nil
}

func (l *ledger) take(r receipt) {
	_, known := l.first[r.To]
	switch {
	case r.Replay:
		l.replays++
	case known:
		l.twice++
	default:
		l.first[r.To] = r.At
		if isPerson(r.To) {
			l.last = r.At
		}
	}
}

// people is to how many of the blast a message went.
func (l *ledger) people() (n int) {
	for to := range l.first {
		if isPerson(to) {
			n++
		}
	}
	return n
}

func isPerson(address string) bool { return strings.HasPrefix(address, "person-") }

func (l *ledger) get(ctx context.Context, what string, since uint64, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/sandbox/%s?since=%d", l.url, what, since), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ask the provider: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("ask the provider: status %d", resp.StatusCode)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

var errStalled = errors.New("nothing more comes")

// await reads until so many codes and people are there, or nothing more of what
// is awaited comes.
func (l *ledger) await(ctx context.Context, codes, people int, stall time.Duration) error {
	since, had := time.Now(), -1
	for {
		if err := l.read(ctx); err != nil {
			return err
		}
		have := l.people()
		got := len(l.first) - have
		if have >= people && got >= codes {
			return nil
		}
		if progress := min(have, people) + min(got, codes); progress > had {
			since, had = time.Now(), progress
		}
		if time.Since(since) > stall {
			return fmt.Errorf("%w: %d codes of %d, %d people of %d", errStalled, got, codes, have, people)
		}
		pause.For(ctx, 250*time.Millisecond)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

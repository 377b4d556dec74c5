// Package erasure forgets people: those whom a tenant or an operator asks to have
// erased (FS-MSG-0003 §8, "supresión"), and anonymous contacts that a tenant's
// clock has run out for. A Desk erases a contact in one transaction: its
// identifiers become keyed hashes, and from then on nothing is sent to it and
// nothing brings it back. The Job, of which one process of N is active, empties
// what lies about the person in every other store, page by page, and can be
// killed at any instruction: each page says how far it came. docs/erasure.md
// names every store, what is done there and by when.
//
// What a contact is belongs to processor/identity. The API (through cmd/carril/app)
// and `carril contact erase` call the Desk; the maintain role runs the Job and the
// Clock.
package erasure

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/processor/eventlog"
)

// ErrNotFound says that the tenant has no such contact.
var ErrNotFound = errors.New("no such contact")

// Exports are the files that retention wrote before it dropped a leaf. Erase
// rewrites those that hold events or sends of the contacts and verifies them; open
// is how many it could not yet, and it is called again for them. It must bear to
// be repeated.
type Exports interface {
	Erase(ctx context.Context, tenant uuid.UUID, contacts []uuid.UUID) (open int, err error)
}

// Why an erasure was made.
const (
	causeRequest   = "request"
	causeAnonymous = "anonymous" // the tenant's clock
)

// Stores of an erasure, as core.erasure_stores names them.
const (
	StoreContacts = "contacts" // done by the erasing transaction itself
	StoreJobs     = "jobs"
	StoreBlasts   = "blasts"
	StoreEvents   = "events"
	StoreSends    = "sends"
	StoreLetters  = "dead_letters"
	StoreExports  = "exports"
	StoreOutbox   = "outbox"
	StoreKafka    = "kafka"
	StoreTopic    = "contact_topic"
)

// Config of erasures; zero values take the defaults. The times count from the
// erasure.
type Config struct {
	// Settle is when all stores are gone through again, for what was on its way
	// through the stages. Default 1 h.
	Settle time.Duration
	// Kept is how long the topics keep records; when it is over, all stores are gone
	// through for the last time. It must exceed the longest retention of a topic.
	// Default 15 d (the topics keep 14).
	Kept time.Duration
	// Bury is when compacted topics get their tombstones. Default 30 d.
	Bury time.Duration
	// Quiet is how long the first pass waits at most for transactions that were open
	// at the erasure; a later pass meets what they write after it. Default 1 min.
	Quiet time.Duration
	// Retry is how long a store waits that could not be finished: a message in the
	// provider's hands, an export in use. Default 15 s.
	Retry time.Duration
	Every time.Duration // how often the Job looks for work; default 1 s
	Page  int           // rows of one transaction; default 500
}

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&c.Settle, time.Hour}, {&c.Kept, 15 * 24 * time.Hour}, {&c.Bury, 30 * 24 * time.Hour}, {&c.Quiet, time.Minute}, {&c.Retry, 15 * time.Second}, {&c.Every, time.Second}} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if c.Page == 0 {
		c.Page = 500
	}
	return c
}

// passes gives when all stores are gone through.
func (c Config) passes(cause string) []time.Duration {
	if cause == causeAnonymous {
		return []time.Duration{0, c.Settle}
	}
	return []time.Duration{0, c.Settle, c.Kept}
}

// stores gives the stores of an erasure with the time by which each is done.
func (c Config) stores(cause string) (names []string, within []time.Duration) {
	const day = 24 * time.Hour
	add := func(name string, d time.Duration) { names, within = append(names, name), append(within, d) }
	add(StoreContacts, 0)
	add(StoreJobs, day)
	add(StoreBlasts, day)
	add(StoreEvents, day)
	add(StoreSends, day)
	add(StoreLetters, day)
	if cause == causeRequest {
		add(StoreExports, 30*day)
		add(StoreOutbox, 7*day)
		add(StoreKafka, c.Kept+day)
		add(StoreTopic, c.Bury+day)
	}
	return names, within
}

// Deps of erasures.
type Deps struct {
	Pool    *pgxpool.Pool
	Lanes   *eventlog.ContactLanes
	Exports Exports // nil: no exports are stored
	Now     func() time.Time
	Log     *slog.Logger
	Metrics *Metrics // nil: not measured
}

func (d Deps) withDefaults() Deps {
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	return d
}

// Package sends owns what becomes of a message on a rail: the job's row and its
// transitions (core.processed_jobs), the send and its history, the frozen
// request and its generations, and the derived status (FS-MSG-0003). A rail
// worker (dispatcher/rail) decides when; this package decides whether, with
// what bytes, and what an outcome means. It also owns the status stage, which
// brings a provider's events to their sends.
//
// Every transition is one transaction and a compare-and-set on the row's state,
// turn and lease. `claimed` means: the bytes are frozen and may have left.
package sends

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/klauspost/compress/zstd"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/internal/content"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/schemas"
)

// States of a job, as core.processed_jobs keeps them.
const (
	StateWaiting     = "waiting"
	StateInTopic     = "in_topic"
	StateClaimed     = "claimed"
	StateParked      = "parked"
	StateHeld        = "held"
	StateSent        = "sent"
	StateFailed      = "failed"
	StateExpired     = "expired"
	StateBlocked     = "blocked"
	StateCancelled   = "cancelled"
	StateNeedsReview = "needs_review"
	StateDead        = "dead"
)

// ErrLeaseLost says that the job is another's by now; nothing was written.
var ErrLeaseLost = errors.New("job is leased by another")

// SlotPrefix names the process slots whose leases (internal/lease) say whether
// the holder of a job is alive.
const SlotPrefix = "dispatch"

// Horizon is how far back a job's own time may lie while it is open: what every
// scan of open jobs is bounded by. A job's day partition lives at least as long.
const Horizon = 40 * 24 * time.Hour

// Config of a rail's store; zero values take the defaults.
type Config struct {
	Channel  string
	Rail     string        // schemas.RailTransactional or RailMarketing
	Provider string        // name of the provider that new generations go to
	Others   []string      // further ones, in order, that a claim may name instead while the first is out of order
	Lease    time.Duration // how long a claim lives; above the provider's deadline; default 60 s
	Credits  int           // jobs of a tenant in the topic or claimed, transactional only; default CreditsFor the provider's stated rate
	// UncertainRepeats is how often a request of unknown outcome may reach a
	// provider without idempotency keys again, each time at the risk that somebody
	// gets two; default 0: it is for a person to look at.
	UncertainRepeats int
}

// Deps is what a store works with.
type Deps struct {
	Pool      *pgxpool.Pool
	Codec     *schemas.Codec
	Providers map[string]provider.Provider // by name; Config.Provider and those that older generations went to
}

// Store is one rail's jobs and sends. It is safe for concurrent use.
type Store struct {
	cfg     Config
	worker  string
	deps    Deps
	zenc    *zstd.Encoder
	zdec    *zstd.Decoder
	steps   *group[finished]
	claims  *group[*claiming]
	refills *group[refilling]

	mu        sync.Mutex
	templates map[templateKey]*content.Template
}

// New makes the store of one rail of one channel.
func New(cfg Config, deps Deps) (*Store, error) {
	if cfg.Lease == 0 {
		cfg.Lease = time.Minute
	}
	for i, name := range cfg.names() {
		if err := cfg.suits(name, deps.Providers[name]); err != nil {
			return nil, err
		}
		if slices.Contains(cfg.names()[:i], name) {
			return nil, fmt.Errorf("sends: provider %s is named twice", name)
		}
	}
	if cfg.Credits == 0 {
		cfg.Credits = CreditsFor(deps.Providers[cfg.Provider].Capabilities().RatePerSecond)
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("sends: make the compressor: %w", err)
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
	if err != nil {
		return nil, fmt.Errorf("sends: make the decompressor: %w", err)
	}
	s := &Store{cfg: cfg, worker: schemas.RailWorker(cfg.Channel, cfg.Rail), deps: deps, zenc: enc, zdec: dec,
		templates: map[templateKey]*content.Template{}}
	s.steps, s.claims, s.refills = newGroup(s.applyAll), newGroup(s.claimAll), newGroup(s.refillAll)
	return s, nil
}

// names lists the providers of new generations, the preferred one first.
func (c Config) names() []string { return append([]string{c.Provider}, c.Others...) }

func (c Config) suits(name string, p provider.Provider) error {
	if p == nil {
		return fmt.Errorf("sends: no provider %q", name)
	}
	caps := p.Capabilities()
	switch {
	case !MayCarry(c.Channel, c.Rail, caps):
		return fmt.Errorf("sends: provider %s has no batch endpoint and may not carry marketing email", name)
	case caps.Channel != c.Channel:
		return fmt.Errorf("sends: provider %s carries %s, not %s", name, caps.Channel, c.Channel)
	}
	return nil
}

// MayCarry says whether a provider may carry a rail at all. A blast of email sent
// one request a message would empty the provider's bucket for everybody
// (FS-MSG-0005 §5).
func MayCarry(channel, rail string, caps provider.Capabilities) bool {
	return channel != "email" || rail != schemas.RailMarketing || caps.Batch
}

// Providers lists the providers that a claim may name, the preferred one first.
func (s *Store) Providers() []string { return s.cfg.names() }

// Wait waits for what the store does for callers that are gone: nobody may call
// it any more.
func (s *Store) Wait() {
	s.claims.leads.Wait()
	s.steps.leads.Wait()
	s.refills.leads.Wait()
}

// CreditsFor is how many of a tenant's jobs may stand in a transactional topic
// whose provider takes so many requests a second: what a second passes, between
// 4 and 200. With 200 for everyone, the codes of a quiet tenant lie unread
// behind twenty backlogs for minutes; the rest waits where it can be overtaken.
func CreditsFor(ratePerSecond float64) int {
	return int(min(max(math.Ceil(ratePerSecond), 4), 200))
}

// Worker is the rail's name in core.processed_jobs.
func (s *Store) Worker() string { return s.worker }

// Topic is the rail's topic, without the deployment's prefix.
func (s *Store) Topic() string { return schemas.RailTopic(s.cfg.Channel, s.cfg.Rail) }

// Ref names one enqueue of a job.
type Ref struct {
	JobID    uuid.UUID
	Turn     int32
	TenantID uuid.UUID
}

// Slot is a process's place among the rail workers: the lease that says that it
// lives, and the outbox lane that it writes under the same epoch.
type Slot struct {
	N     int
	Epoch int64
	Lane  outbox.Lane
	Wake  func() // has the lane's relay look after a commit that its caller does not see; may be nil
}

// NewLease makes a job's lease, which names its slot: four bytes of slot, eight
// of epoch, four of chance.
func (sl Slot) NewLease() uuid.UUID {
	var id uuid.UUID
	binary.BigEndian.PutUint32(id[0:], uint32(sl.N))
	binary.BigEndian.PutUint64(id[4:], uint64(sl.Epoch))
	binary.BigEndian.PutUint32(id[12:], rand.Uint32())
	return id
}

// holderAlive is SQL that tells whether the process that holds the lease of row
// j still renews its slot.
const holderAlive = `EXISTS (SELECT FROM core.leases hl
    WHERE hl.name = '` + SlotPrefix + `:' || ('x' || left(j.lease::text, 8))::bit(32)::int
      AND hl.epoch = ('x' || substr(replace(j.lease::text, '-', ''), 9, 16))::bit(64)::bigint
      AND hl.until > clock_timestamp())`

// waitedSoFar is SQL for the new value of waited when a job leaves a state in
// which it stood still: the time since that began, or since its backoff ended.
// The windows of the retries count the rest (FS-MSG-0005 §4: a 429 burns nothing).
const waitedSoFar = `waited + CASE WHEN first_attempt IS NULL THEN interval '0'
    ELSE greatest(now() - greatest(updated_at, coalesce(not_before, updated_at)), interval '0') END`

// Peeked is a job's row as it stood when its record came.
type Peeked struct {
	State    string
	Turn     int32
	Alive    bool // claimed, and its holder lives
	Category string
	Expires  *time.Time
}

// Peek looks jobs up in bulk; one that has no row is absent. It decides
// nothing: it saves the tokens of records that are finished.
func (s *Store) Peek(ctx context.Context, refs []Ref) (map[uuid.UUID]Peeked, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	jobs, times := make([]uuid.UUID, len(refs)), make([]time.Time, len(refs))
	for i, r := range refs {
		jobs[i], times[i] = r.JobID, ids.Time(r.JobID)
	}
	const sql = `SELECT j.job_id, j.state, j.turn, coalesce(j.category, ''), j.expires_at,
    j.state = 'claimed' AND j.lease_until > clock_timestamp() AND ` + holderAlive + `
FROM unnest($1::uuid[], $2::timestamptz[]) AS u(job_id, id_time)
JOIN core.processed_jobs j ON j.id_time = u.id_time AND j.job_id = u.job_id
WHERE j.id_time = ANY($2) AND j.worker = $3`
	rows, err := s.deps.Pool.Query(ctx, sql, jobs, times, s.worker)
	if err != nil {
		return nil, fmt.Errorf("look up %d jobs: %w", len(refs), err)
	}
	out := make(map[uuid.UUID]Peeked, len(refs))
	var id uuid.UUID
	var p Peeked
	_, err = pgx.ForEachRow(rows, []any{&id, &p.State, &p.Turn, &p.Category, &p.Expires, &p.Alive}, func() error {
		out[id] = p
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look up %d jobs: %w", len(refs), err)
	}
	return out, nil
}

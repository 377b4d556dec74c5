// Package blast owns marketing campaigns: their life (draft, scheduled,
// preparing, running, paused, done, cancelled), who they go to, and what has
// become of them. The feeder (dispatcher/feeder) feeds running ones to the rail
// and calls the jobs in this package under its lease; the management API and
// `carril blast` call the rest. Whether a message may go and what became of it
// is dispatcher/sends'.
//
// Counts are exact at every commit: each change of a recipient's outcome writes
// what it adds and takes in its own transaction (messaging.blast_counts), so
// that sent + failed + expired + blocked + cancelled + needs_review + dead +
// pending is the number of recipients, always, and no reader counts a million
// rows.
package blast

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// States of a blast.
const (
	Draft     = "draft"
	Scheduled = "scheduled"
	Preparing = "preparing" // its audience is being frozen
	Running   = "running"
	Paused    = "paused"
	Cancelled = "cancelled"
	Done      = "done"
)

// States lists them, for filters.
func States() []string {
	return []string{Draft, Scheduled, Preparing, Running, Paused, Cancelled, Done}
}

// Kinds of audiences.
const (
	FromUpload   = "upload"   // files of recipients
	FromContacts = "contacts" // everybody with a consent
)

// Limits.
const (
	MaxRecipients = 5_000_000
	maxName       = 200
	maxVariables  = 64 << 10 // bytes of JSON
	maxTraits     = 4 << 10
)

// ErrNone says that the tenant has no such blast, or upload.
var ErrNone = errors.New("blast: there is none")

// Refusal is a no to what was asked, and why; it names nothing personal.
type Refusal struct {
	Code    string // of a closed set, documented with the API
	Pointer string // JSON pointer to the field at fault; empty: none
	Detail  string // for people
	State   bool   // it is the blast's state that stands in the way, not the request
}

func (r *Refusal) Error() string { return "blast: " + r.Code + ": " + r.Detail }

// Problem gives the refusal's parts to whoever answers over HTTP.
func (r *Refusal) Problem() (code, pointer, detail string) { return r.Code, r.Pointer, r.Detail }

// Conflict says that the same request can be taken once the blast is elsewhere.
func (r *Refusal) Conflict() bool { return r.State }

func refuse(code, pointer, detail string) error {
	return &Refusal{Code: code, Pointer: pointer, Detail: detail}
}

func refuseState(code, detail string) error {
	return &Refusal{Code: code, Detail: detail, State: true}
}

// Audience is whom a blast goes to.
type Audience struct {
	Type   string          `json:"type"`
	Traits json.RawMessage `json:"traits,omitempty"` // FromContacts: each must be as given
}

// Blast is a campaign. Its variables hold for every recipient unless the
// recipient's own say otherwise.
type Blast struct {
	ID              uuid.UUID       `json:"blast_id"`
	Name            string          `json:"name"`
	Channel         string          `json:"channel"`
	TemplateID      string          `json:"template_id"`
	TemplateVersion int             `json:"template_version"`
	Variables       json.RawMessage `json:"variables"`
	Audience        Audience        `json:"audience"`
	AudienceReport  json.RawMessage `json:"audience_report,omitempty"` // of the freeze, FromContacts
	State           string          `json:"state"`
	StateReason     *string         `json:"state_reason,omitempty"`
	StartAt         *time.Time      `json:"start_at,omitempty"`
	Recipients      int64           `json:"recipients"`
	OriginEventID   uuid.UUID       `json:"origin_event_id"`
	CreatedAt       time.Time       `json:"created_at"`
	UpdatedAt       time.Time       `json:"updated_at"`
	StartedAt       *time.Time      `json:"started_at,omitempty"`
	FinishedAt      *time.Time      `json:"finished_at,omitempty"`
	Progress        *Progress       `json:"progress,omitempty"` // of a single blast
	Quota           *Fit            `json:"quota,omitempty"`    // of the answer to a start

	tenant uuid.UUID
	fed    int64
}

// CreatedTime is the blast's place in a list.
func (b *Blast) CreatedTime() (time.Time, uuid.UUID) { return b.CreatedAt, b.ID }

// Change is a blast to be, or what becomes different of a draft: nil leaves a
// field as it is.
type Change struct {
	Name            *string
	Channel         *string // of a blast to be; default email
	TemplateID      *string
	TemplateVersion *int // nil with a TemplateID: its newest
	Variables       json.RawMessage
	Audience        *Audience
}

// Config of a Store; zero values take the defaults.
type Config struct {
	Breaker Breaker
	First   First
	// RequestsPerSecond is what a tenant's marketing on a channel may ask of its
	// provider; 0 is unknown. nil: always unknown.
	RequestsPerSecond func(ctx context.Context, tenant uuid.UUID, channel string) float64
	// Quotas are those of the provider that carries a channel's marketing, as they
	// stand; nil where it has none. An error says that they cannot be seen. A nil
	// function: there are none.
	Quotas func(ctx context.Context, channel string) (*Quotas, error)
	// Now is the clock of the quotas' days; nil: time.Now.
	Now func() time.Time
}

// Breaker says when a blast's outcomes pause it.
type Breaker struct {
	Bounces    float64       // share of the sends with an outcome above which it pauses; default 0.04
	Complaints float64       // likewise; default 0.001
	Few        int           // outcomes below which a share says nothing; default 50
	Window     time.Duration // outcomes that count; default 1 h, and at most that
	Trips      int           // of a tenant's blasts within 7 days that pause its marketing; default 3, negative: never
}

// Batch is the most messages of one request of a blast (FS-MSG-0005 §5).
const Batch = 100

// Store keeps blasts. It is safe for concurrent use.
type Store struct {
	cfg  Config
	pool *pgxpool.Pool
}

// New makes a store over a pool.
func New(cfg Config, pool *pgxpool.Pool) *Store {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.First = cfg.First.filled()
	b := &cfg.Breaker
	if b.Bounces == 0 {
		b.Bounces = 0.04
	}
	if b.Complaints == 0 {
		b.Complaints = 0.001
	}
	if b.Few == 0 {
		b.Few = 50
	}
	if b.Window == 0 || b.Window > time.Hour {
		b.Window = time.Hour
	}
	if b.Trips == 0 {
		b.Trips = 3
	}
	return &Store{cfg, pool}
}

const columns = `b.blast_id, b.tenant_id, b.name, b.channel, b.template_id, b.template_version, b.variables, b.audience, b.audience_report, b.state, b.state_reason,
    b.start_at, b.recipients, b.fed, b.origin_event_id, b.created_at, b.updated_at, b.started_at, b.finished_at`

func (b *Blast) fields() []any {
	return []any{&b.ID, &b.tenant, &b.Name, &b.Channel, &b.TemplateID, &b.TemplateVersion, &b.Variables, &b.Audience, &b.AudienceReport, &b.State, &b.StateReason,
		&b.StartAt, &b.Recipients, &b.fed, &b.OriginEventID, &b.CreatedAt, &b.UpdatedAt, &b.StartedAt, &b.FinishedAt}
}

// shown brings what was read to the form in which it is shown.
func (b *Blast) shown() *Blast {
	b.CreatedAt, b.UpdatedAt = b.CreatedAt.UTC(), b.UpdatedAt.UTC()
	for _, t := range []**time.Time{&b.StartAt, &b.StartedAt, &b.FinishedAt} {
		if *t != nil {
			*t = new((*t).UTC())
		}
	}
	if b.Audience.Type != FromContacts {
		b.AudienceReport = nil
	}
	return b
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func read(ctx context.Context, db querier, tenant, id uuid.UUID, lock string) (*Blast, error) {
	var b Blast
	err := db.QueryRow(ctx, `SELECT `+columns+` FROM messaging.blasts b WHERE b.blast_id = $1 AND b.tenant_id = $2 `+lock, id, tenant).Scan(b.fields()...)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("read a blast: %w", err)
	}
	return b.shown(), nil
}

// Get reads a blast with its progress, both of one moment.
func (s *Store) Get(ctx context.Context, tenant, id uuid.UUID) (*Blast, error) {
	var b Blast
	var p Progress
	sql := `SELECT ` + columns + `, ` + progressColumns + ` FROM messaging.blasts b LEFT JOIN LATERAL (` + progressSums + `) c ON true WHERE b.blast_id = $1 AND b.tenant_id = $2`
	err := s.pool.QueryRow(ctx, sql, id, tenant).Scan(append(b.fields(), p.fields()...)...)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("read a blast: %w", err)
	}
	b.Progress = s.complete(&p, &b)
	return b.shown(), nil
}

// List gives up to limit blasts of a tenant behind a position, the newest
// first; state empty: all.
func (s *Store) List(ctx context.Context, tenant uuid.UUID, state string, before time.Time, beforeID uuid.UUID, limit int) ([]*Blast, error) {
	const sql = `SELECT ` + columns + ` FROM messaging.blasts b
WHERE b.tenant_id = $1 AND ($2 = '' OR b.state = $2) AND (b.created_at, b.blast_id) < ($3, $4) ORDER BY b.created_at DESC, b.blast_id DESC LIMIT $5`
	rows, err := s.pool.Query(ctx, sql, tenant, state, before, beforeID, limit)
	if err != nil {
		return nil, fmt.Errorf("list blasts: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*Blast, error) {
		var b Blast
		err := row.Scan(b.fields()...)
		return b.shown(), err
	})
	if err != nil {
		return nil, fmt.Errorf("list blasts: %w", err)
	}
	return list, nil
}

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
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/internal/content"
	"github.com/softcrum/carril/internal/ids"
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
	// RequestsPerSecond is what a tenant's marketing on a channel may ask of its
	// provider; 0 is unknown. nil: always unknown.
	RequestsPerSecond func(ctx context.Context, tenant uuid.UUID, channel string) float64
	// QuotaLeft is how many messages the provider's quota of the day still takes of
	// marketing; false: none is known. nil: always unknown.
	QuotaLeft func(ctx context.Context, channel string) (int64, bool)
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

// Create makes a draft. key is the caller's idempotency key, with which the
// same draft is made once, or empty.
func (s *Store) Create(ctx context.Context, tenant uuid.UUID, key string, c Change) (*Blast, error) {
	id := ids.New()
	if key != "" {
		id = ids.Blast(tenant, key)
	}
	hash, err := c.hash()
	if err != nil {
		return nil, err
	}
	if key != "" { // before the checks: what was taken once is not refused because its template has gone on
		if b, err := s.repeated(ctx, tenant, id, hash); !errors.Is(err, ErrNone) {
			return b, err
		}
	}
	b := &Blast{ID: id, Channel: "email", Variables: json.RawMessage(`{}`), Audience: Audience{Type: FromUpload}, State: Draft, tenant: tenant}
	if c.TemplateID == nil {
		return nil, refuse("missing_field", "/template_id", "template_id is required.")
	}
	if c.Name == nil {
		return nil, refuse("missing_field", "/name", "name is required.")
	}
	if c.Channel != nil {
		b.Channel = *c.Channel
	}
	if err := s.apply(ctx, s.pool, b, c); err != nil {
		return nil, err
	}
	// The message ids of a blast carry its time in milliseconds.
	const sql = `INSERT INTO messaging.blasts (blast_id, tenant_id, channel, name, template_id, template_version, variables, audience, state, origin_event_id, correlation_id, body_hash, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'draft', $9, $10, $11, date_trunc('milliseconds', now())) ON CONFLICT (blast_id) DO NOTHING`
	if _, err := s.pool.Exec(ctx, sql, b.ID, tenant, b.Channel, b.Name, b.TemplateID, b.TemplateVersion, b.Variables, b.Audience,
		ids.PlatformEvent(b.ID), "blast:"+b.ID.String(), hash); err != nil {
		return nil, fmt.Errorf("write a blast: %w", err)
	}
	return s.repeated(ctx, tenant, id, hash)
}

// repeated gives the blast that a key has made already, if it is the same.
func (s *Store) repeated(ctx context.Context, tenant, id uuid.UUID, hash []byte) (*Blast, error) {
	var same bool
	err := s.pool.QueryRow(ctx, `SELECT coalesce(body_hash = $3, false) FROM messaging.blasts WHERE blast_id = $1 AND tenant_id = $2`, id, tenant, hash).Scan(&same)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, ErrNone
	case err != nil:
		return nil, fmt.Errorf("read a blast: %w", err)
	case !same:
		return nil, refuse("idempotency_key_mismatch", "", "The key has made another blast already.")
	}
	return s.Get(ctx, tenant, id)
}

func (c Change) hash() ([]byte, error) {
	raw, err := json.Marshal(c)
	if err != nil {
		return nil, refuse("invalid_field", "/variables", "This is no JSON.")
	}
	sum := sha256.Sum256(raw)
	return sum[:], nil
}

// Update changes a draft.
func (s *Store) Update(ctx context.Context, tenant, id uuid.UUID, c Change) (*Blast, error) {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		b, err := read(ctx, tx, tenant, id, "FOR UPDATE")
		if err != nil {
			return err
		}
		if b.State != Draft {
			return refuseState("not_a_draft", "Only a draft can be changed; this blast is "+b.State+".")
		}
		if c.Audience != nil && c.Audience.Type != b.Audience.Type && b.Recipients > 0 {
			return refuseState("has_recipients", "Recipients were uploaded; make another blast for another audience.")
		}
		if err := s.apply(ctx, tx, b, c); err != nil {
			return err
		}
		const sql = `UPDATE messaging.blasts SET name = $2, template_id = $3, template_version = $4, variables = $5, audience = $6, updated_at = now() WHERE blast_id = $1`
		_, err = tx.Exec(ctx, sql, b.ID, b.Name, b.TemplateID, b.TemplateVersion, b.Variables, b.Audience)
		return err
	})
	if err != nil {
		return nil, said("change a blast", err)
	}
	return s.Get(ctx, tenant, id)
}

// said wraps what is no answer to the caller.
func said(what string, err error) error {
	var r *Refusal
	var render *content.Error
	if err == nil || errors.As(err, &r) || errors.As(err, &render) || errors.Is(err, ErrNone) {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}

// apply lays a change over a blast and checks the outcome.
func (s *Store) apply(ctx context.Context, db querier, b *Blast, c Change) error {
	if c.Name != nil {
		if b.Name = strings.TrimSpace(*c.Name); b.Name == "" || len(b.Name) > maxName || !plain(b.Name) {
			return refuse("invalid_field", "/name", fmt.Sprintf("A name is text of 1 to %d bytes.", maxName))
		}
	}
	if c.Variables != nil {
		var object map[string]json.RawMessage
		if len(c.Variables) > maxVariables || json.Unmarshal(c.Variables, &object) != nil || object == nil || strings.Contains(string(c.Variables), `\u0000`) {
			return refuse("invalid_field", "/variables", fmt.Sprintf("variables is an object of at most %d bytes, without NUL.", maxVariables))
		}
		b.Variables = c.Variables
	}
	if c.Audience != nil {
		if err := c.Audience.check(); err != nil {
			return err
		}
		b.Audience = *c.Audience
	}
	if c.TemplateID == nil && c.TemplateVersion == nil {
		return nil
	}
	version := 0
	if c.TemplateVersion != nil {
		if version = *c.TemplateVersion; version < 1 || version > 1<<31-1 {
			return refuse("invalid_field", "/template_version", "template_version is 1 or more.")
		}
	}
	if c.TemplateID != nil {
		b.TemplateID = *c.TemplateID
	}
	var channel string
	err := db.QueryRow(ctx, `SELECT version, channel FROM messaging.templates
WHERE tenant_id = $1 AND template_id = $2 AND ($3 = 0 OR version = $3) ORDER BY version DESC LIMIT 1`, b.tenant, b.TemplateID, version).Scan(&b.TemplateVersion, &channel)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return refuse("unknown_template", "/template_id", "There is no such template, or not in this version.")
	case err != nil:
		return fmt.Errorf("read a template: %w", err)
	case channel != b.Channel:
		return refuse("wrong_channel", "/template_id", "The template is of the channel "+channel+".")
	}
	return nil
}

func plain(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

func (a *Audience) check() error {
	switch {
	case a.Type != FromUpload && a.Type != FromContacts:
		return refuse("invalid_field", "/audience/type", "The type is upload or contacts.")
	case a.Type == FromUpload && a.Traits != nil:
		return refuse("invalid_field", "/audience/traits", "Traits filter the audience contacts.")
	case a.Traits == nil:
		return nil
	}
	var object map[string]any
	if len(a.Traits) > maxTraits || json.Unmarshal(a.Traits, &object) != nil || object == nil || strings.Contains(string(a.Traits), `\u0000`) {
		return refuse("invalid_field", "/audience/traits", fmt.Sprintf("traits is an object of at most %d bytes; each trait must be as given.", maxTraits))
	}
	return nil
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
	b.Progress = p.of(&b)
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

package content

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Limits of what a tenant keeps.
const (
	MaxTemplates = 1_000
	MaxID        = 100     // bytes of a template's id
	MaxSubject   = 2 << 10 // bytes
	MaxBody      = 512 << 10
)

// ValidID says whether a template may have the id: letters, digits, dots, - and _.
func ValidID(id string) bool {
	return id != "" && len(id) <= MaxID && strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == ""
}

// Errors of a Store.
var (
	ErrNone    = errors.New("content: there is no such template")
	ErrTooMany = fmt.Errorf("content: a tenant has at most %d templates", MaxTemplates)
)

// Version is one version of a template; it never changes.
type Version struct {
	TemplateID string `json:"template_id"`
	Version    int    `json:"version"`
	Channel    string `json:"channel"`
	*Parts
	CreatedAt time.Time `json:"created_at"`
}

// Invalid says which part of a template is at fault and why.
type Invalid struct{ Part, Reason, Detail string }

func (e *Invalid) Error() string { return e.Part + ": " + e.Detail }

// Check says what is wrong with a template's parts; the error is an *Invalid.
func Check(p Parts) error {
	for _, part := range []struct {
		name, text string
		most       int
	}{{"subject", p.Subject, MaxSubject}, {"html", p.HTML, MaxBody}, {"text", p.Text, MaxBody}} {
		if len(part.text) > part.most || !utf8.ValidString(part.text) {
			return &Invalid{part.name, ReasonTooLarge, fmt.Sprintf("at most %d bytes of UTF-8", part.most)}
		}
		only := Parts{}
		switch part.name {
		case "subject":
			only.Subject = part.text
		case "html":
			only.HTML = part.text
		default:
			only.Text = part.text
		}
		if _, err := Compile(only); err != nil {
			return &Invalid{part.name, ReasonTemplateInvalid, "This is no Liquid that is understood."}
		}
		if name, unknown := unknownFilter(part.text); unknown {
			return &Invalid{part.name, ReasonTemplateInvalid, fmt.Sprintf("There is no filter %s.", name)}
		}
	}
	if p.HTML == "" && p.Text == "" {
		return &Invalid{"text", ReasonTemplateInvalid, "A template has a text or an html part."}
	}
	return nil
}

// Store keeps templates in messaging.templates.
type Store struct{ pool *pgxpool.Pool }

// NewStore makes a store over a pool.
func NewStore(pool *pgxpool.Pool) *Store { return &Store{pool} }

// Put writes the next version of a template, the first where there is none;
// what the newest says already is not written again. The errors are *Invalid
// and ErrTooMany.
func (s *Store) Put(ctx context.Context, tenant uuid.UUID, id, channel string, p Parts) (*Version, error) {
	if err := Check(p); err != nil {
		return nil, err
	}
	v := &Version{TemplateID: id, Channel: channel, Parts: &p}
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('templates ' || $1::text, 0))`, tenant.String()); err != nil {
			return err
		}
		before, err := newest(ctx, tx, tenant, id, 0)
		switch {
		case errors.Is(err, ErrNone):
			var n int
			if err := tx.QueryRow(ctx, `SELECT count(DISTINCT template_id) FROM messaging.templates WHERE tenant_id = $1`, tenant).Scan(&n); err != nil {
				return err
			}
			if n >= MaxTemplates {
				return ErrTooMany
			}
		case err != nil:
			return err
		case before.Channel == channel && *before.Parts == p:
			v = before
			return nil
		default:
			v.Version = before.Version
		}
		v.Version++
		return tx.QueryRow(ctx, `INSERT INTO messaging.templates (tenant_id, template_id, version, channel, subject, html, text)
VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING created_at`, tenant, id, v.Version, channel, p.Subject, p.HTML, p.Text).Scan(&v.CreatedAt)
	})
	v.CreatedAt = v.CreatedAt.UTC()
	if err != nil && !errors.Is(err, ErrTooMany) {
		return nil, fmt.Errorf("write a template: %w", err)
	}
	return v, err
}

// Get gives a version of a template, the newest where version is 0; ErrNone
// where there is none.
func (s *Store) Get(ctx context.Context, tenant uuid.UUID, id string, version int) (*Version, error) {
	return newest(ctx, s.pool, tenant, id, version)
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func newest(ctx context.Context, db querier, tenant uuid.UUID, id string, version int) (*Version, error) {
	v := &Version{TemplateID: id, Parts: &Parts{}}
	err := db.QueryRow(ctx, `SELECT version, channel, subject, html, text, created_at FROM messaging.templates
WHERE tenant_id = $1 AND template_id = $2 AND ($3 = 0 OR version = $3) ORDER BY version DESC LIMIT 1`, tenant, id, version).
		Scan(&v.Version, &v.Channel, &v.Subject, &v.HTML, &v.Text, &v.CreatedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("read a template: %w", err)
	}
	v.CreatedAt = v.CreatedAt.UTC()
	return v, nil
}

// List gives the newest version of each template without its parts, by id.
func (s *Store) List(ctx context.Context, tenant uuid.UUID) ([]*Version, error) {
	rows, err := s.pool.Query(ctx, `SELECT DISTINCT ON (template_id) template_id, version, channel, created_at FROM messaging.templates
WHERE tenant_id = $1 ORDER BY template_id, version DESC`, tenant)
	if err != nil {
		return nil, fmt.Errorf("list templates: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*Version, error) {
		var v Version
		err := row.Scan(&v.TemplateID, &v.Version, &v.Channel, &v.CreatedAt)
		v.CreatedAt = v.CreatedAt.UTC()
		return &v, err
	})
	if err != nil {
		return nil, fmt.Errorf("list templates: %w", err)
	}
	return list, nil
}

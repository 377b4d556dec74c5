package blast

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/content"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/jsonscan"
	"github.com/softcrum/carril/internal/oneline"
)

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
	if err := c.check(); err != nil {
		return nil, err
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
	if err := c.check(); err != nil {
		return nil, err
	}
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

// check refuses a change that no blast could have.
func (c Change) check() error {
	if c.Name != nil {
		if name := strings.TrimSpace(*c.Name); name == "" || !oneline.Fits(name, maxName) {
			return refuse("invalid_field", "/name", fmt.Sprintf("A name is one line of 1 to %d bytes.", maxName))
		}
	}
	if c.Variables != nil {
		var object map[string]json.RawMessage
		if len(c.Variables) > maxVariables || json.Unmarshal(c.Variables, &object) != nil || object == nil || unstorable(new(jsonscan.Scanner), c.Variables) != "" {
			return refuse("invalid_field", "/variables", fmt.Sprintf("variables is an object of at most %d bytes, without NUL and halves of characters, and of numbers that are stored exactly.", maxVariables))
		}
	}
	if c.Audience != nil {
		if err := c.Audience.check(); err != nil {
			return err
		}
	}
	if id := c.TemplateID; id != nil && !content.ValidID(*id) {
		return refuse("invalid_field", "/template_id", fmt.Sprintf("template_id is 1 to %d of the letters, digits and ._-.", content.MaxID))
	}
	if v := c.TemplateVersion; v != nil && (*v < 1 || *v > 1<<31-1) {
		return refuse("invalid_field", "/template_version", "template_version is 1 or more.")
	}
	return nil
}

// apply lays a change that was checked over a blast.
func (s *Store) apply(ctx context.Context, db querier, b *Blast, c Change) error {
	if c.Name != nil {
		b.Name = strings.TrimSpace(*c.Name)
	}
	if c.Variables != nil {
		b.Variables = c.Variables
	}
	if c.Audience != nil {
		b.Audience = *c.Audience
	}
	if c.TemplateID == nil && c.TemplateVersion == nil {
		return nil
	}
	version := 0
	if c.TemplateVersion != nil {
		version = *c.TemplateVersion
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
	if len(a.Traits) > maxTraits || json.Unmarshal(a.Traits, &object) != nil || object == nil || unstorable(new(jsonscan.Scanner), a.Traits) != "" {
		return refuse("invalid_field", "/audience/traits", fmt.Sprintf("traits is an object of at most %d bytes; each trait must be as given.", maxTraits))
	}
	return nil
}

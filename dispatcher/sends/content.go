package sends

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/internal/content"
	"github.com/softcrum/carril/schemas"
)

// templateKey names a version of a template, which never changes.
type templateKey struct {
	tenant  uuid.UUID
	id      string
	version int
}

// maxTemplates bounds the cache of compiled templates.
const maxTemplates = 1_000

// renderAll renders the messages of one tenant. What cannot be rendered has
// failed, with its reason; the others go on.
func (s *Store) renderAll(ctx context.Context, tx pgx.Tx, from sender, tenant uuid.UUID, ms []schemas.JobMessage) (out []provider.Message, kept []schemas.JobMessage, failed []Outcome, err error) {
	for _, m := range ms {
		parts, err := s.content(ctx, tx, tenant, m)
		var re *content.Error
		if errors.As(err, &re) {
			failed = append(failed, Outcome{SendID: m.SendID, Failed: re.Reason})
			continue
		}
		if err != nil {
			return nil, nil, nil, err
		}
		out, kept = append(out, provider.Message{SendID: m.SendID, TenantID: tenant, From: from.from, ReplyTo: from.replyTo, To: m.Address,
			Subject: parts.Subject, HTML: parts.HTML, Text: parts.Text}), append(kept, m)
	}
	return out, kept, failed, nil
}

func (s *Store) content(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, m schemas.JobMessage) (content.Parts, error) {
	if len(m.Content) > 0 {
		return content.Inline(m.Content)
	}
	t, err := s.template(ctx, tx, templateKey{tenant, m.TemplateID, m.TemplateVersion})
	if err != nil {
		return content.Parts{}, err
	}
	return t.Render(m.Variables)
}

func (s *Store) template(ctx context.Context, tx pgx.Tx, k templateKey) (*content.Template, error) {
	s.mu.Lock()
	t := s.templates[k]
	s.mu.Unlock()
	if t != nil {
		return t, nil
	}
	var c content.Parts
	const sql = `SELECT subject, html, text FROM messaging.templates WHERE tenant_id = $1 AND template_id = $2 AND version = $3 AND channel = $4`
	err := tx.QueryRow(ctx, sql, k.tenant, k.id, k.version, s.cfg.Channel).Scan(&c.Subject, &c.HTML, &c.Text)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, &content.Error{Reason: content.ReasonTemplateMissing}
	}
	if err != nil {
		return nil, fmt.Errorf("read a template: %w", err)
	}
	if t, err = content.Compile(c); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.templates) >= maxTemplates {
		clear(s.templates)
	}
	s.templates[k] = t
	return t, nil
}

// storedContent is what messaging.sends keeps of a message: enough to render it
// again, nulled with the person (FS-MSG-0003 §8).
type storedContent struct {
	TemplateID      string          `json:"template_id,omitempty"`
	TemplateVersion int             `json:"template_version,omitempty"`
	Variables       json.RawMessage `json:"variables,omitempty"`
	Content         json.RawMessage `json:"content,omitempty"`
}

// queueSends writes the send rows and their first status. A refrozen
// generation finds them there, with the provider that the first one went to: the
// history says who had the later ones. It is queued anew only after it was given up.
func (s *Store) queueSends(b *pgx.Batch, fs []*fresh) {
	var (
		tenants, sendIDs, requests, contacts, origins []uuid.UUID
		rules, blasts                                 []*uuid.UUID
		requested                                     []time.Time
		class                                         []int16
		indexes, generations                          []int32
		cells, categories, addresses, contents, vias  []string
		correlations                                  []string
	)
	for _, f := range fs {
		for _, m := range f.open {
			tenants, cells, generations = append(tenants, f.TenantID), append(cells, f.job.payload.CellID), append(generations, int32(f.job.generation+1))
			vias = append(vias, f.via)
			requested, class, sendIDs = append(requested, m.RequestedAt), append(class, m.RetentionMonths), append(sendIDs, m.SendID)
			requests, indexes, contacts = append(requests, m.RequestID), append(indexes, int32(m.RecipientIndex)), append(contacts, m.ContactID)
			categories, addresses, correlations = append(categories, m.Category), append(addresses, m.Address), append(correlations, m.CorrelationID)
			origins, rules, blasts = append(origins, m.OriginEventID), append(rules, m.RuleID), append(blasts, m.BlastID)
			raw, err := json.Marshal(storedContent{m.TemplateID, m.TemplateVersion, m.Variables, m.Content})
			if err != nil { // raw JSON that came out of jsonb
				raw = []byte(`{}`)
			}
			contents = append(contents, string(raw))
		}
	}
	if len(sendIDs) == 0 {
		return
	}
	const insert = `INSERT INTO messaging.sends (requested_at, retention_months, tenant_id, send_id, cell_id, request_id, recipient_index,
    contact_id, channel, category, provider, address, content, correlation_id, origin_event_id, rule_id, blast_id)
SELECT r, k, t, i, l, q, n, c, $1, g, p, a, j::jsonb, x, o, u, b
FROM unnest($2::text[], $3::timestamptz[], $4::smallint[], $5::uuid[], $6::uuid[], $7::text[], $8::uuid[], $9::int[], $10::uuid[], $11::text[],
    $12::text[], $13::text[], $14::text[], $15::uuid[], $16::uuid[], $17::uuid[]) AS v(p, r, k, t, i, l, q, n, c, g, a, j, x, o, u, b)
ON CONFLICT DO NOTHING`
	b.Queue(insert, s.cfg.Channel, vias, requested, class, tenants, sendIDs, cells, requests, indexes, contacts,
		categories, addresses, contents, correlations, origins, rules, blasts)
	// One `queued` a send, and another when it starts over after it was given up.
	const queued = `INSERT INTO messaging.send_status_history (requested_at, retention_months, tenant_id, send_id, status, provider, provider_event_id, generation, occurred_at)
SELECT r, k, t, i, 'queued', p, '` + eventQueued + `' || g, g, now()
FROM unnest($1::text[], $2::timestamptz[], $3::smallint[], $4::uuid[], $5::uuid[], $6::int[]) AS v(p, r, k, t, i, g)
WHERE g = 1 OR EXISTS (SELECT FROM messaging.send_status_history h WHERE h.requested_at = ANY($2) AND h.requested_at = r AND h.send_id = i AND starts_with(h.provider_event_id, '` + eventGaveUp + `'))
ON CONFLICT DO NOTHING`
	b.Queue(queued, vias, requested, class, tenants, sendIDs, generations)
}

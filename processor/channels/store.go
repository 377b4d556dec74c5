package channels

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/gates"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/processor/eventlog"
	"github.com/softcrum/carril/processor/identity"
	"github.com/softcrum/carril/schemas"
)

func insertKeys(ctx context.Context, tx pgx.Tx, reqs []request) (map[uuid.UUID]bool, error) {
	sorted := slices.Clone(reqs)
	slices.SortFunc(sorted, func(a, b request) int { return bytes.Compare(a.RequestID[:], b.RequestID[:]) })
	n := len(sorted)
	tenantIDs, requests, hashes, received := make([]uuid.UUID, n), make([]uuid.UUID, n), make([][]byte, n), make([]time.Time, n)
	for i, q := range sorted {
		tenantIDs[i], requests[i], hashes[i], received[i] = q.TenantID, q.RequestID, q.BodyHash, q.first
	}
	const sql = `INSERT INTO messaging.request_keys (tenant_id, request_id, body_hash, received_at)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::timestamptz[]) ON CONFLICT DO NOTHING RETURNING request_id`
	rows, err := tx.Query(ctx, sql, tenantIDs, requests, hashes, received)
	if err != nil {
		return nil, fmt.Errorf("take %d request keys: %w", n, err)
	}
	won, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("take %d request keys: %w", n, err)
	}
	set := map[uuid.UUID]bool{}
	for _, id := range won {
		set[id] = true
	}
	return set, nil
}

// findContacts gives every recipient its contact, as merges left it; a
// recipient of the API that nobody knows becomes one. A request that no event
// caused gets the platform's own event.
func (h *Handler) findContacts(ctx context.Context, tx pgx.Tx, b *stream.Batch, rs []*recipient) error {
	if err := resolveMerges(ctx, tx, rs); err != nil {
		return err
	}
	var in []identity.Input
	var who []*recipient
	for _, r := range rs {
		if r.contact != uuid.Nil {
			continue
		}
		m := map[string]string{}
		if r.asked.ExternalID != "" {
			m[identity.KindExternalID] = r.asked.ExternalID
		}
		if kind := addressKind(r.req.Channel); r.asked.Address != "" && kind != "" {
			m[kind] = r.asked.Address
		}
		raw, err := json.Marshal(m)
		if err != nil {
			return fmt.Errorf("name a recipient: %w", err)
		}
		in = append(in, identity.Input{TenantID: r.req.TenantID, CellID: r.req.CellID, EventID: r.origin, CorrelationID: r.req.CorrelationID,
			Identifiers: string(raw), OccurredAt: r.first})
		who = append(who, r)
	}
	if len(in) > 0 {
		out, err := identity.Resolve(ctx, tx, in)
		if err != nil {
			return err
		}
		for i, r := range who {
			r.contact = out.Contacts[i]
		}
		if err := h.deps.Contacts.Emit(ctx, tx, b, out.Changes); err != nil {
			return err
		}
	}
	return h.platformEvents(ctx, tx, b, rs)
}

// resolveMerges follows each named contact to the one that it became.
func resolveMerges(ctx context.Context, tx pgx.Tx, rs []*recipient) error {
	var tenantIDs, contacts []uuid.UUID
	for _, r := range rs {
		if r.asked.ContactID != nil {
			tenantIDs, contacts = append(tenantIDs, r.req.TenantID), append(contacts, *r.asked.ContactID)
		}
	}
	if len(contacts) == 0 {
		return nil
	}
	const sql = `WITH RECURSIVE w AS (
    SELECT u.tenant_id, u.contact_id AS asked, u.contact_id AS at, 0 AS depth FROM unnest($1::uuid[], $2::uuid[]) AS u(tenant_id, contact_id)
    UNION
    SELECT w.tenant_id, w.asked, m.into_contact, depth + 1 FROM w
    JOIN core.contact_merges m ON m.tenant_id = w.tenant_id AND m.from_contact = w.at AND m.undone_at IS NULL WHERE depth < 32
)
SELECT DISTINCT ON (w.tenant_id, asked) w.tenant_id, asked, at FROM w
JOIN core.contacts c ON c.tenant_id = w.tenant_id AND c.contact_id = w.at
ORDER BY w.tenant_id, asked, depth DESC`
	rows, err := tx.Query(ctx, sql, tenantIDs, contacts)
	if err != nil {
		return fmt.Errorf("resolve merged contacts: %w", err)
	}
	type named struct{ tenant, contact uuid.UUID }
	at := map[named]uuid.UUID{}
	var k named
	var now uuid.UUID
	if _, err := pgx.ForEachRow(rows, []any{&k.tenant, &k.contact, &now}, func() error { at[k] = now; return nil }); err != nil {
		return fmt.Errorf("resolve merged contacts: %w", err)
	}
	for _, r := range rs {
		if r.asked.ContactID == nil {
			continue
		}
		if c, ok := at[named{r.req.TenantID, *r.asked.ContactID}]; ok {
			r.contact = c
		} else {
			r.contact = *r.asked.ContactID
			r.block(gateRequest, unknownContact)
		}
	}
	return nil
}

func (h *Handler) platformEvents(ctx context.Context, tx pgx.Tx, b *stream.Batch, rs []*recipient) error {
	var events []eventlog.Platform
	for _, r := range rs {
		if r.req.OriginEventID == nil && r.index == 0 {
			events = append(events, eventlog.Platform{EventID: r.origin, TenantID: r.req.TenantID, CellID: r.req.CellID, ContactID: r.contact,
				Name: "messaging.message.requested", At: r.first, CorrelationID: r.req.CorrelationID, Class: r.class,
				Properties: fmt.Sprintf(`{"request_id":%q,"channel":%q,"category":%q}`, r.req.RequestID, r.req.Channel, r.req.Category)})
		}
	}
	if len(events) == 0 {
		return nil
	}
	for _, e := range events {
		if err := h.deps.Partitions.Ensure(ctx, "core.tracked_events", e.At, e.Class); err != nil {
			return err
		}
	}
	return eventlog.AppendPlatform(ctx, tx, b, h.deps.Codec, events)
}

// addressKind is the identifier that a channel delivers to.
func addressKind(channel string) string {
	switch channel {
	case "email":
		return identity.KindEmail
	case "sms":
		return identity.KindPhone
	}
	return ""
}

// findAddresses gives each recipient the address named for it, else its
// contact's newest of the channel's kind.
func (h *Handler) findAddresses(ctx context.Context, tx pgx.Tx, rs []*recipient) error {
	var tenantIDs, contacts []uuid.UUID
	var kinds []string
	for _, r := range rs {
		kind := addressKind(r.req.Channel)
		switch {
		case r.reason != "":
		case kind == "":
			r.block(gateRequest, unknownChannel)
		case r.asked.Address != "":
			r.address, _ = gates.Normalize(r.req.Channel, r.asked.Address) // the address gate refuses what is none
		default:
			tenantIDs, contacts, kinds = append(tenantIDs, r.req.TenantID), append(contacts, r.contact), append(kinds, kind)
		}
	}
	if len(contacts) == 0 {
		return nil
	}
	const sql = `SELECT DISTINCT ON (i.tenant_id, i.contact_id, i.kind) i.contact_id, i.kind, i.value
FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS u(tenant_id, contact_id, kind)
JOIN core.contact_identifiers i ON i.tenant_id = u.tenant_id AND i.contact_id = u.contact_id AND i.kind = u.kind
ORDER BY i.tenant_id, i.contact_id, i.kind, i.created_at DESC, i.value`
	rows, err := tx.Query(ctx, sql, tenantIDs, contacts, kinds)
	if err != nil {
		return fmt.Errorf("find addresses: %w", err)
	}
	type owner struct {
		contact uuid.UUID
		kind    string
	}
	found := map[owner]string{}
	var o owner
	var value string
	if _, err := pgx.ForEachRow(rows, []any{&o.contact, &o.kind, &value}, func() error { found[o] = value; return nil }); err != nil {
		return fmt.Errorf("find addresses: %w", err)
	}
	for _, r := range rs {
		if r.reason == "" && r.address == "" {
			r.address = found[owner{r.contact, addressKind(r.req.Channel)}]
		}
	}
	return nil
}

// findTemplates fixes the version of each request's template: what is sent is
// what stood when it was asked for.
func (h *Handler) findTemplates(ctx context.Context, tx pgx.Tx, rs []*recipient) error {
	type name struct {
		tenant uuid.UUID
		id     string
		fixed  int32
	}
	have := map[name]int{}
	for _, r := range rs {
		if r.req.TemplateID == nil {
			continue
		}
		n := name{r.req.TenantID, *r.req.TemplateID, 0}
		if r.req.TemplateVersion != nil {
			n.fixed = *r.req.TemplateVersion
		}
		version, ok := have[n]
		if !ok {
			const sql = `SELECT coalesce(max(version), 0) FROM messaging.templates WHERE tenant_id = $1 AND template_id = $2 AND ($3 = 0 OR version = $3)`
			if err := tx.QueryRow(ctx, sql, n.tenant, n.id, n.fixed).Scan(&version); err != nil {
				return fmt.Errorf("find a template: %w", err)
			}
			have[n] = version
		}
		if r.template = version; version == 0 {
			r.block(gateRequest, templateMissing)
		}
	}
	return nil
}

// decide records what became of every recipient.
func (h *Handler) decide(ctx context.Context, tx pgx.Tx, rs []*recipient) error {
	n := len(rs)
	received, tenantIDs, requests, contacts := make([]time.Time, n), make([]uuid.UUID, n), make([]uuid.UUID, n), make([]uuid.UUID, n)
	indexes, channels, origins, rules := make([]int32, n), make([]string, n), make([]uuid.UUID, n), make([]*uuid.UUID, n)
	correlations, outcomes, sends := make([]string, n), make([]string, n), make([]*uuid.UUID, n)
	shut, reasons := make([]*string, n), make([]*string, n)
	for i, r := range rs {
		received[i], tenantIDs[i], requests[i], contacts[i] = r.first, r.req.TenantID, r.req.RequestID, r.contact
		indexes[i], channels[i], origins[i], rules[i], correlations[i] = int32(r.index), r.req.Channel, r.origin, r.rule, r.req.CorrelationID
		if r.reason != "" {
			outcomes[i], shut[i], reasons[i] = "blocked", new(string(r.gate)), new(string(r.reason))
		} else {
			outcomes[i], sends[i] = "queued", new(r.sendID())
		}
	}
	const sql = `INSERT INTO messaging.decisions (received_at, tenant_id, request_id, recipient_index, channel, contact_id, origin_event_id,
    rule_id, correlation_id, outcome, gate, reason, send_id)
SELECT r, t, q, i, c, k, o, u, x, d, g, w, s
FROM unnest($1::timestamptz[], $2::uuid[], $3::uuid[], $4::int[], $5::text[], $6::uuid[], $7::uuid[], $8::uuid[], $9::text[], $10::text[],
    $11::text[], $12::text[], $13::uuid[]) AS v(r, t, q, i, c, k, o, u, x, d, g, w, s)`
	_, err := tx.Exec(ctx, sql, received, tenantIDs, requests, indexes, channels, contacts, origins, rules, correlations, outcomes, shut, reasons, sends)
	if err != nil {
		return fmt.Errorf("record %d decisions: %w", n, err)
	}
	return nil
}

func (r *recipient) job() schemas.JobMessage {
	m := schemas.JobMessage{SendID: r.sendID(), RequestID: r.req.RequestID, RecipientIndex: r.index, RequestedAt: r.first, ContactID: r.contact,
		Address: r.address, Category: r.req.Category, RetentionMonths: r.class, TemplateVersion: r.template, Variables: r.variables,
		CorrelationID: r.req.CorrelationID, OriginEventID: r.origin, RuleID: r.rule, ExpiresAt: r.req.ExpiresAt}
	if r.req.TemplateID != nil {
		m.TemplateID = *r.req.TemplateID
	}
	if r.req.Content != nil {
		m.Content = json.RawMessage(*r.req.Content)
	}
	return m
}

// enqueue hands the messages that may go to their rail: a job and its record
// on the transactional one, a row for the feeder on the marketing one.
func (h *Handler) enqueue(ctx context.Context, tx pgx.Tx, b *stream.Batch, rs []*recipient) error {
	going := rs[:0:0]
	for _, r := range rs {
		if r.reason == "" {
			going = append(going, r)
		}
	}
	if len(going) == 0 {
		return nil
	}
	if h.rail == schemas.RailMarketing {
		return h.queueMarketing(ctx, tx, going)
	}
	states, err := h.credit(ctx, tx, going)
	if err != nil {
		return err
	}
	if err := h.insertJobs(ctx, tx, going, states); err != nil {
		return err
	}
	for i, r := range going {
		if states[i] != "in_topic" {
			continue
		}
		m, err := h.sendJob(ctx, r)
		if err != nil {
			return err
		}
		b.Emit(m)
	}
	return nil
}

func (h *Handler) queueMarketing(ctx context.Context, tx pgx.Tx, rs []*recipient) error {
	n := len(rs)
	tenantIDs, channels, sends, payloads := make([]uuid.UUID, n), make([]string, n), make([]uuid.UUID, n), make([]string, n)
	for i, r := range rs {
		p, err := json.Marshal(r.job())
		if err != nil {
			return fmt.Errorf("queue a marketing message: %w", err)
		}
		tenantIDs[i], channels[i], sends[i], payloads[i] = r.req.TenantID, r.req.Channel, r.sendID(), string(p)
	}
	const sql = `INSERT INTO messaging.marketing_queue (tenant_id, channel, send_id, payload)
SELECT t, c, s, p::jsonb FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::text[]) AS u(t, c, s, p) ON CONFLICT DO NOTHING`
	if _, err := tx.Exec(ctx, sql, tenantIDs, channels, sends, payloads); err != nil {
		return fmt.Errorf("queue %d marketing messages: %w", n, err)
	}
	return nil
}

func (h *Handler) insertJobs(ctx context.Context, tx pgx.Tx, rs []*recipient, states []string) error {
	n := len(rs)
	times, workers, jobs, tenantIDs := make([]time.Time, n), make([]string, n), make([]uuid.UUID, n), make([]uuid.UUID, n)
	categories, payloads, expires := make([]string, n), make([]string, n), make([]*time.Time, n)
	for i, r := range rs {
		p, err := json.Marshal(schemas.JobPayload{Channel: r.req.Channel, CellID: r.req.CellID, Messages: []schemas.JobMessage{r.job()}})
		if err != nil {
			return fmt.Errorf("write a job: %w", err)
		}
		jobs[i] = r.sendID()
		times[i], workers[i], tenantIDs[i] = ids.Time(jobs[i]), schemas.RailWorker(r.req.Channel, h.rail), r.req.TenantID
		categories[i], payloads[i], expires[i] = r.req.Category, string(p), r.req.ExpiresAt
	}
	const sql = `INSERT INTO core.processed_jobs (id_time, worker, job_id, state, tenant_id, category, payload, expires_at)
SELECT t, w, j, s, n, c, p::jsonb, e
FROM unnest($1::timestamptz[], $2::text[], $3::uuid[], $4::text[], $5::uuid[], $6::text[], $7::text[], $8::timestamptz[]) AS u(t, w, j, s, n, c, p, e)`
	if _, err := tx.Exec(ctx, sql, times, workers, jobs, states, tenantIDs, categories, payloads, expires); err != nil {
		return fmt.Errorf("write %d jobs: %w", n, err)
	}
	return nil
}

// credit says which jobs go into the topic now. Enqueue and release lock the
// tenant's row of the rail, and while anything waits, new jobs wait: a release
// between our count and our commit would otherwise wake nobody.
func (h *Handler) credit(ctx context.Context, tx pgx.Tx, rs []*recipient) ([]string, error) {
	type lane struct {
		tenant  uuid.UUID
		channel string
	}
	counts := map[lane]int{}
	var lanes []lane
	for _, r := range rs {
		l := lane{r.req.TenantID, r.req.Channel}
		if counts[l] == 0 {
			lanes = append(lanes, l)
		}
		counts[l]++
	}
	slices.SortFunc(lanes, func(a, b lane) int {
		if c := bytes.Compare(a.tenant[:], b.tenant[:]); c != 0 {
			return c
		}
		return slices.Compare([]byte(a.channel), []byte(b.channel))
	})
	free := map[lane]int{}
	for _, l := range lanes {
		n, err := h.freeCredits(ctx, tx, l.tenant, l.channel)
		if err != nil {
			return nil, err
		}
		free[l] = n
	}
	states := make([]string, len(rs))
	for i, r := range rs {
		l := lane{r.req.TenantID, r.req.Channel}
		if states[i] = "waiting"; free[l] > 0 {
			states[i] = "in_topic"
			free[l]--
		}
	}
	return states, nil
}

func (h *Handler) freeCredits(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, channel string) (int, error) {
	const lock = `INSERT INTO messaging.tenant_rails (tenant_id, channel, rail) VALUES ($1, $2, $3)
ON CONFLICT (tenant_id, channel, rail) DO UPDATE SET rail = EXCLUDED.rail`
	if _, err := tx.Exec(ctx, lock, tenant, channel, h.rail); err != nil {
		return 0, fmt.Errorf("lock a tenant's rail: %w", err)
	}
	const sql = `SELECT count(*) FILTER (WHERE state IN ('in_topic', 'claimed')), count(*) FILTER (WHERE state = 'waiting')
FROM core.processed_jobs WHERE id_time > now() - interval '8 days' AND worker = $1 AND tenant_id = $2 AND state IN ('in_topic', 'claimed', 'waiting')`
	var taken, waiting int
	if err := tx.QueryRow(ctx, sql, schemas.RailWorker(channel, h.rail), tenant).Scan(&taken, &waiting); err != nil {
		return 0, fmt.Errorf("count a tenant's credits: %w", err)
	}
	if waiting > 0 {
		return 0, nil
	}
	return max(0, h.deps.Credits-taken), nil
}

func (h *Handler) sendJob(ctx context.Context, r *recipient) (outbox.Message, error) {
	now := h.deps.Now().UTC()
	rec := schemas.SendJob{JobID: r.sendID(), TenantID: r.req.TenantID, CellID: r.req.CellID, Channel: r.req.Channel, Category: r.req.Category,
		Turn: 1, CorrelationID: r.req.CorrelationID, OriginEventID: r.origin, EnqueuedAt: now, ExpiresAt: r.req.ExpiresAt}
	topic := schemas.RailTopic(r.req.Channel, h.rail)
	value, err := h.deps.Codec.Encode(ctx, nil, topic, &rec)
	if err != nil {
		return outbox.Message{}, fmt.Errorf("%w: %w", stream.ErrWait, err)
	}
	return outbox.Message{Topic: topic, Key: []byte(r.req.TenantID.String() + "/" + r.contact.String()), Value: value,
		Headers: kafka.Event{ID: rec.JobID.String() + "/1", Type: "notif.job", Source: kafka.Source(r.req.TenantID), Subject: r.req.Category,
			Time: now, CorrelationID: r.req.CorrelationID}.Headers()}, nil
}

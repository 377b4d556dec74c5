package sends

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/internal/gates"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/outbox"
)

// statusOf brings a provider's word to ours. What the provider's own list
// refused never left: it failed.
func statusOf(s provider.Status) (status string, ok bool) {
	switch s {
	case provider.StatusSent:
		return "sent", true
	case provider.StatusDelayed:
		return "delayed", true
	case provider.StatusSoftBounce:
		return "soft_bounced", true
	case provider.StatusFailed, provider.StatusSuppressed:
		return "failed", true
	case provider.StatusDelivered:
		return "delivered", true
	case provider.StatusOpened:
		return "opened", true
	case provider.StatusClicked:
		return "clicked", true
	case provider.StatusHardBounce:
		return "bounced", true
	case provider.StatusComplained:
		return "complained", true
	}
	return "", false
}

// matched is what became of some reports.
type matched struct {
	unmatched                   []*report
	changes                     []outbox.Message
	recorded, repeated, ignored int
	suppressed                  map[string]int
}

// found is the send of a report.
type found struct {
	requested   time.Time
	class       int16
	tenant      uuid.UUID
	send        uuid.UUID
	cell        string
	contact     uuid.UUID
	channel     string
	category    string
	address     *string
	correlation string
	origin      uuid.UUID
	generation  int
	blast       *uuid.UUID
	position    int64
}

// hit is a report whose send was found.
type hit struct {
	r *report
	f found
}

// match writes reports to their sends' histories, each once.
func (h *Statuses) match(ctx context.Context, tx pgx.Tx, reports []*report) (res matched, err error) {
	res.suppressed = map[string]int{}
	seen := map[[2]string]bool{}
	var live []*report
	for _, r := range reports {
		key := [2]string{r.provider, r.id}
		switch _, ok := statusOf(r.event.Status); {
		case !ok:
			res.ignored++
		case seen[key]:
			res.repeated++
		default:
			seen[key] = true
			live = append(live, r)
		}
	}
	if len(live) == 0 {
		return res, nil
	}
	by, err := findSends(ctx, tx, live)
	if err != nil {
		return res, err
	}
	var hits []hit
	for _, r := range live {
		if f, ok := by[r]; ok {
			hits = append(hits, hit{r, f})
		} else {
			res.unmatched = append(res.unmatched, r)
		}
	}
	if len(hits) == 0 {
		return res, nil
	}
	if err := h.record(ctx, tx, hits, &res); err != nil {
		return res, err
	}
	marks := blastMarks{}
	for _, x := range hits {
		marks.add(x.r, x.f)
	}
	if err := marks.write(ctx, tx); err != nil {
		return res, err
	}
	// Locks in one order, whatever the order of arrival; the history keeps the
	// order of arrival by itself.
	order := slices.Clone(hits)
	slices.SortStableFunc(order, func(a, b hit) int { return bytes.Compare(a.f.send[:], b.f.send[:]) })
	for _, x := range order {
		if err := suppress(ctx, tx, x.r, x.f, &res); err != nil {
			return res, err
		}
	}
	return res, settleByEvents(ctx, tx, order)
}

// findSends finds each report's send by its tag, else by the provider's id of
// the message. Both belong to this provider's account, so neither is a guess.
func findSends(ctx context.Context, tx pgx.Tx, reports []*report) (map[*report]found, error) {
	n := len(reports)
	idx, tags, times := make([]int32, 0, n), make([]uuid.UUID, 0, n), make([]time.Time, 0, n)
	providers, messages := make([]string, n), make([]string, n)
	for i, r := range reports {
		providers[i], messages[i] = r.provider, r.event.ProviderMessageID
	}
	const known = `SELECT u.n::int - 1, p.send_id, p.generation FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u(p, m, n)
JOIN messaging.provider_messages p ON p.provider_message_id = u.m AND p.provider = u.p`
	rows, err := tx.Query(ctx, known, providers, messages)
	if err != nil {
		return nil, fmt.Errorf("find sends by the provider's ids: %w", err)
	}
	type hint struct {
		send       uuid.UUID
		generation int
	}
	hints := map[int32]hint{}
	var i int32
	var hn hint
	if _, err := pgx.ForEachRow(rows, []any{&i, &hn.send, &hn.generation}, func() error { hints[i] = hn; return nil }); err != nil {
		return nil, fmt.Errorf("find sends by the provider's ids: %w", err)
	}
	for i, r := range reports {
		send := r.event.SendID
		if hn, ok := hints[int32(i)]; ok {
			send = hn.send
		}
		if send != uuid.Nil {
			idx, tags, times = append(idx, int32(i)), append(tags, send), append(times, ids.Time(send))
		}
	}
	if len(tags) == 0 {
		return nil, nil
	}
	// A send's own time is its request's; the id keeps it to the millisecond.
	const sql = `SELECT u.i, s.requested_at, s.retention_months, s.tenant_id, s.send_id, s.cell_id, s.contact_id, s.channel, s.category, s.address, s.correlation_id, s.origin_event_id, s.blast_id, s.recipient_index
FROM unnest($1::int[], $2::uuid[], $3::timestamptz[]) AS u(i, id, t)
CROSS JOIN LATERAL (SELECT * FROM messaging.sends f WHERE f.requested_at >= $4 AND f.requested_at < $5
    AND f.requested_at >= u.t AND f.requested_at < u.t + interval '1 millisecond' AND f.send_id = u.id LIMIT 1) s`
	rows, err = tx.Query(ctx, sql, idx, tags, times, slices.MinFunc(times, time.Time.Compare), slices.MaxFunc(times, time.Time.Compare).Add(time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("find %d sends: %w", len(tags), err)
	}
	out := make(map[*report]found, len(tags))
	var f found
	_, err = pgx.ForEachRow(rows, []any{&i, &f.requested, &f.class, &f.tenant, &f.send, &f.cell, &f.contact, &f.channel, &f.category, &f.address, &f.correlation, &f.origin, &f.blast, &f.position}, func() error {
		r := reports[i]
		if r.event.TenantID != uuid.Nil && r.event.TenantID != f.tenant {
			return nil // a tag of one tenant on a send of another is nobody's
		}
		f.generation = max(1, hints[i].generation)
		out[r] = f
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find %d sends: %w", len(tags), err)
	}
	return out, nil
}

// suppress writes what a hard bounce or a complaint asks for (FS-MSG-0003 §6).
// It runs for a repeated event too: the first may have come before an erasure
// of the suppression by hand, and writing it again changes nothing otherwise.
func suppress(ctx context.Context, tx pgx.Tx, r *report, f found, res *matched) error {
	why := suppressionOf(r.event.Status)
	if why == "" {
		return nil
	}
	address := ""
	switch {
	case f.address != nil:
		address = *f.address
	case len(r.event.Recipients) == 1: // the person was erased; the address must still get nothing
		address = r.event.Recipients[0]
	}
	if address == "" {
		return nil
	}
	n, err := writeSuppression(ctx, tx, f.tenant, f.channel, address, why, &f.send)
	res.suppressed[why] += n
	return err
}

func suppressionOf(s provider.Status) string {
	switch s {
	case provider.StatusHardBounce:
		return "hard_bounce"
	case provider.StatusComplained:
		return "complaint"
	}
	return ""
}

func writeSuppression(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, channel, address, why string, send *uuid.UUID) (int, error) {
	address, _ = gates.Normalize(channel, address)
	// A complaint says more than a bounce, and either more than an unsubscribe:
	// the strongest stays.
	const sql = `INSERT INTO messaging.suppressions AS s (tenant_id, channel, address, reason, send_id) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (tenant_id, channel, address) DO UPDATE SET reason = EXCLUDED.reason, send_id = EXCLUDED.send_id
WHERE s.reason = 'unsubscribe' OR s.reason = 'hard_bounce' AND EXCLUDED.reason = 'complaint'`
	tag, err := tx.Exec(ctx, sql, tenant, channel, address, why, send)
	if err != nil {
		return 0, fmt.Errorf("suppress an address: %w", err)
	}
	return int(tag.RowsAffected()), nil
}

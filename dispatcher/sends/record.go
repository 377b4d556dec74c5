package sends

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/internal/ids"
)

// The history of each send is looked into by its index: a plan that joined it with
// the reports would be kept from when both were small.
const recordSQL = `INSERT INTO messaging.send_status_history (requested_at, retention_months, tenant_id, send_id, status, provider, provider_event_id, generation, occurred_at, reason)
SELECT r, k, t, i, s, p, e, g, o, nullif(w, '')
FROM unnest($1::timestamptz[], $2::smallint[], $3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::int[], $9::timestamptz[], $10::text[])
    WITH ORDINALITY AS v(r, k, t, i, s, p, e, g, o, w, n)
WHERE (SELECT true FROM messaging.send_status_history h WHERE h.requested_at = ANY($1) AND h.requested_at = v.r AND h.retention_months = ANY($2) AND h.send_id = v.i AND h.provider = v.p
    AND h.status = v.s AND h.occurred_at = v.o AND NOT starts_with(h.provider_event_id, 'carril:') LIMIT 1) IS NULL
ORDER BY n
ON CONFLICT DO NOTHING RETURNING provider, provider_event_id, recorded_at`

// stepKey is what happened to a send at a provider, whatever id it is reported under.
type stepKey struct {
	send             uuid.UUID
	provider, status string
	occurred         int64
}

// record appends reports to their sends' histories, in one statement. One that is
// there already, by its id or, from providers that change it between retries, as the
// same step at the provider's same moment (F34), is repeated.
func (h *Statuses) record(ctx context.Context, tx pgx.Tx, hits []hit, res *matched) error {
	var (
		requested, occurred = make([]time.Time, 0, len(hits)), make([]time.Time, 0, len(hits))
		class               []int16
		tenants, sends      []uuid.UUID
		names, events       []string
		states, reasons     []string
		generations         []int32
		seen                = make(map[stepKey]bool, len(hits))
		byEvent             = make(map[[2]string]hit, len(hits))
	)
	for _, x := range hits {
		status, _ := statusOf(x.r.event.Status)
		key := stepKey{x.f.send, x.r.provider, status, x.r.event.OccurredAt.UnixMicro()}
		if seen[key] {
			continue
		}
		seen[key], byEvent[[2]string{x.r.provider, x.r.id}] = true, x
		requested, class, tenants, sends = append(requested, x.f.requested), append(class, x.f.class), append(tenants, x.f.tenant), append(sends, x.f.send)
		states, names, events = append(states, status), append(names, x.r.provider), append(events, x.r.id)
		generations, occurred, reasons = append(generations, int32(x.f.generation)), append(occurred, x.r.event.OccurredAt), append(reasons, x.r.why())
	}
	rows, err := tx.Query(ctx, recordSQL, requested, class, tenants, sends, states, names, events, generations, occurred, reasons)
	if err != nil {
		return fmt.Errorf("record %d statuses: %w", len(hits), err)
	}
	var name, event string
	var at time.Time
	recorded := 0
	_, err = pgx.ForEachRow(rows, []any{&name, &event, &at}, func() error {
		recorded++
		return h.announce(ctx, byEvent[[2]string{name, event}], at, res)
	})
	if err != nil {
		return fmt.Errorf("record %d statuses: %w", len(hits), err)
	}
	res.recorded += recorded
	res.repeated += len(hits) - recorded
	return nil
}

// why is a report's reason as the history keeps it.
func (r *report) why() string {
	if r.event.Status == provider.StatusSuppressed {
		return strings.TrimSpace("suppressed_by_provider " + r.event.Reason)
	}
	return r.event.Reason
}

// announce publishes a status that was recorded, where anybody is told of it.
func (h *Statuses) announce(ctx context.Context, x hit, at time.Time, res *matched) error {
	status, _ := statusOf(x.r.event.Status)
	if statuses[status].event == "" {
		return nil
	}
	m, err := statusChange(ctx, h.codec, change{
		id: ids.StatusChange(x.f.send, status, x.r.provider, x.r.id), send: x.f.send, tenant: x.f.tenant, cell: x.f.cell, contact: x.f.contact, channel: x.f.channel,
		category: x.f.category, status: status, occurred: x.r.event.OccurredAt, recorded: at, correlation: x.f.correlation, origin: x.f.origin, reason: x.r.why(),
	})
	if err != nil {
		return err
	}
	res.changes = append(res.changes, m)
	return nil
}

const settleSQL = `UPDATE core.processed_jobs j SET state = 'sent', reason = 'settled_by_event', not_before = NULL, updated_at = now()
WHERE j.id_time = ANY($1) AND j.worker LIKE 'rail:%' AND j.job_id = ANY($2) AND j.state IN ('parked', 'needs_review')
    AND EXISTS (SELECT FROM messaging.send_requests q WHERE q.created_at > now() - interval '4 days' AND q.job_id = j.job_id
        AND q.generation = j.generation AND q.uncertain AND q.settled IS NULL)`

// settleByEvents ends jobs of one message whose outcome was unknown: the
// provider's event says that the request was taken, so it is not sent again.
// A batch's members are settled by the answer under its key.
func settleByEvents(ctx context.Context, tx pgx.Tx, hits []hit) error {
	var times []time.Time
	var jobs []uuid.UUID
	for _, x := range hits {
		switch {
		case x.f.category == "marketing": // in a batch, whose job has another id
		case x.r.event.Status == provider.StatusSuppressed, x.r.event.Status == provider.StatusFailed: // not sent is known by our own answer, or will be
		default:
			times, jobs = append(times, ids.Time(x.f.send)), append(jobs, x.f.send)
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, settleSQL, times, jobs); err != nil {
		return fmt.Errorf("settle jobs by events: %w", err)
	}
	return nil
}

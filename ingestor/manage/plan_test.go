package manage

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/ids"
)

// explainer notes which partitions the plan of each statement touches.
type explainer struct {
	t  *testing.T
	db Querier

	touched map[string][]string // by parent table, of the statement with the most
	asked   int
}

var leafName = regexp.MustCompile(`^(tracked_events|sends|send_status_history)_(\d{6}|default)`)

func (e *explainer) note(ctx context.Context, sql string, args []any) {
	e.t.Helper()
	var raw []byte
	require.NoError(e.t, e.db.QueryRow(ctx, "EXPLAIN (FORMAT JSON) "+sql, args...).Scan(&raw))
	var plan any
	require.NoError(e.t, json.Unmarshal(raw, &plan))
	seen := map[string]map[string]bool{}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, x := range v {
				walk(x)
			}
		case map[string]any:
			if name, ok := v["Relation Name"].(string); ok {
				if m := leafName.FindStringSubmatch(name); m != nil {
					if seen[m[1]] == nil {
						seen[m[1]] = map[string]bool{}
					}
					seen[m[1]][name] = true
				}
			}
			for _, x := range v {
				walk(x)
			}
		}
	}
	walk(plan)
	for parent, names := range seen {
		e.asked++
		if len(names) > len(e.touched[parent]) {
			e.touched[parent] = nil
			for n := range names {
				e.touched[parent] = append(e.touched[parent], n)
			}
		}
	}
}

func (e *explainer) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	e.note(ctx, sql, args)
	return e.db.Query(ctx, sql, args...)
}

func (e *explainer) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	e.note(ctx, sql, args)
	return e.db.QueryRow(ctx, sql, args...)
}

// Over 37 months of three classes a look-up touches the leaves of its own month,
// and a list those of the months that it spans.
func TestPlansOver37MonthsTouchTheLeavesOfTheirOwnMonth(t *testing.T) { // FS-CORE-0006 AC8
	t.Parallel()
	d := newDesk(t)
	at := time.Now().UTC().Truncate(time.Millisecond).AddDate(0, 0, -1)
	d.exec(`SELECT core.ensure_partition(parent, date_trunc('month', $1::timestamptz, 'UTC') - i * interval '1 month') FROM generate_series(0, 36) i,
    unnest(ARRAY['core.tracked_events', 'messaging.sends', 'messaging.send_status_history']) parent`, at)
	require.GreaterOrEqual(t, leaves(d, "core.tracked_events"), 37*3)
	contact := ids.New()
	event := d.addEvent(d.acme, "k", at, contact, "invoice.paid", `{}`)
	send := ids.Send(d.acme, ids.New(), at, 0, "email")
	d.exec(`INSERT INTO messaging.decisions (received_at, tenant_id, request_id, recipient_index, channel, contact_id, origin_event_id, correlation_id, outcome, send_id)
VALUES ($1, $2, $3, 0, 'email', $4, $5, 'c', 'queued', $6)`, at, d.acme, ids.New(), contact, event, send)
	d.exec(`INSERT INTO messaging.sends (requested_at, retention_months, tenant_id, send_id, cell_id, request_id, recipient_index, contact_id, channel, category, provider, correlation_id, origin_event_id)
VALUES ($1, 13, $2, $3, 'c', $3, 0, $4, 'email', 'product', 'resend', 'c', $5)`, ids.Time(send), d.acme, send, contact, event)

	for name, ask := range map[string]func(db Querier) error{
		"an event by its id": func(db Querier) error { _, err := FindEvent(t.Context(), db, d.acme, event); return err },
		"a trace":            func(db Querier) error { _, err := TraceEvent(t.Context(), db, uuid.Nil, event); return err },
		"a send by its id":   func(db Querier) error { _, err := FindSend(t.Context(), db, d.acme, send); return err },
	} {
		e := &explainer{t: t, db: d.pool, touched: map[string][]string{}}
		require.NoError(t, ask(e), name)
		require.Positive(t, e.asked, name)
		for parent, names := range e.touched {
			require.LessOrEqual(t, len(names), 3, "%s, %s: %v", name, parent, names)
		}
	}
	from := time.Date(at.Year(), at.Month(), 1, 0, 0, 0, 0, time.UTC)
	for _, list := range []func(db Querier, q *listQuery) error{
		func(db Querier, q *listQuery) error {
			_, err := listEvents(t.Context(), db, d.acme, q, position{at: q.to, id: uuid.Max})
			return err
		},
		func(db Querier, q *listQuery) error {
			_, err := listSends(t.Context(), db, d.acme, q, position{at: q.to, id: uuid.Max})
			return err
		},
	} {
		q := &listQuery{from: from, to: from.AddDate(0, 1, 0), limit: 10, values: url.Values{}}
		e := &explainer{t: t, db: d.pool, touched: map[string][]string{}}
		require.NoError(t, list(e, q))
		require.Positive(t, e.asked)
		for parent, names := range e.touched {
			require.LessOrEqual(t, len(names), 3, "%s: %v", parent, names)
		}
	}
}

func leaves(d *desk, parent string) (n int) {
	d.t.Helper()
	require.NoError(d.t, d.pool.QueryRow(context.Background(), fmt.Sprintf(`SELECT count(*) FROM core.partition_tree('%s') WHERE is_leaf AND NOT is_default`, parent)).Scan(&n))
	return n
}

// An event is found while retention has its leaf detached, and in its trace.
func TestEventOfADetachedLeafIsFound(t *testing.T) { // I34
	t.Parallel()
	d := newDesk(t)
	at := month()
	id := d.addEvent(d.acme, "k", at, ids.New(), "invoice.paid", `{"total":1}`)
	d.exec(`SELECT core.detach_leaf('core.tracked_events', (SELECT tableoid::regclass FROM core.tracked_events WHERE occurred_at = $1), gen_random_uuid())`, at)
	f, err := FindEvent(t.Context(), d.pool, d.acme, id)
	require.NoError(t, err)
	require.Equal(t, stored, f.Status)
	require.True(t, f.Has("appended"))
	require.Equal(t, "k", f.Event.IdempotencyKey)
	_, err = FindEvent(t.Context(), d.pool, d.other, id)
	require.ErrorIs(t, err, ErrNotFound)
}

package manage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/httpserver"
)

// What a request for counts may ask for at most.
const maxCountMonths, maxCountDays, maxCounts = 120, 92, 10_000

// Count is how many events of a name a period has.
type Count struct {
	Period    string `json:"period"` // 2026-11, or 2026-11-03
	EventName string `json:"event_name"`
	Count     int64  `json:"count"`
	// Archived counts are of events that left with the plan's retention; they are
	// kept by the month alone.
	Archived bool `json:"archived"`
}

// CountsPage is the answer of GET /v1/core/counts.
type CountsPage struct {
	Granularity string   `json:"granularity"`
	Counts      []*Count `json:"counts"`
	Total       int64    `json:"total"`
}

// counts answers GET /v1/core/counts: what there is by month or day and name,
// to reconcile a mirror against (architecture: outbound webhooks). It reads the
// tenant's index entries and rows of the range, about a million a second.
func (m *Routes) counts(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	v, problem := parseParams(r, maxFilter, "from", "to", "granularity", "event_name")
	if problem != nil {
		return nil, problem, nil
	}
	q := &listQuery{values: v}
	if problem = q.times(); problem != nil {
		return nil, problem, nil
	}
	page := &CountsPage{Granularity: v.Get("granularity")}
	if page.Granularity == "" {
		page.Granularity = "month"
	}
	if problem = countable(q, page.Granularity); problem != nil {
		return nil, problem, nil
	}
	err := m.snapshot(ctx, func(tx pgx.Tx) (err error) {
		page.Counts, err = readCounts(ctx, tx, tenant, q, page.Granularity)
		return err
	})
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded) || len(page.Counts) > maxCounts:
		return nil, &httpserver.Problem{Status: http.StatusUnprocessableEntity, Code: "range_too_large", Title: "The range is too large to be counted at once",
			Detail: fmt.Sprintf("Ask for a shorter one, or for one event_name: an answer has at most %d counts and takes at most %s.", maxCounts, readTimeout)}, nil
	case err != nil:
		return nil, nil, fmt.Errorf("count events: %w", err)
	}
	for _, c := range page.Counts {
		page.Total += c.Count
	}
	return page, nil, nil
}

// countable holds a range to whole periods, and to so many of them.
func countable(q *listQuery, granularity string) *httpserver.Problem {
	switch granularity {
	case "month":
		if !wholeMonths(q.from) || !wholeMonths(q.to) || q.from.AddDate(0, maxCountMonths, 0).Before(q.to) {
			return badParameter(fmt.Sprintf("Months are counted from the first of one to the first of another (UTC), at most %d.", maxCountMonths))
		}
	case "day":
		if !wholeDays(q.from) || !wholeDays(q.to) || q.from.AddDate(0, 0, maxCountDays).Before(q.to) {
			return badParameter(fmt.Sprintf("Days are counted from midnight to midnight (UTC), at most %d.", maxCountDays))
		}
	default:
		return badParameter("granularity is month or day.")
	}
	return nil
}

func wholeDays(t time.Time) bool   { return t.Equal(t.Truncate(24 * time.Hour)) }
func wholeMonths(t time.Time) bool { return wholeDays(t) && t.Day() == 1 }

// readCounts counts what stands, and adds what is kept of the months that went.
// A month of which one retention class went and another stands has both.
func readCounts(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, q *listQuery, granularity string) ([]*Count, error) {
	leaves, err := eventLeaves(ctx, tx, q.from, q.to)
	if err != nil {
		return nil, err
	}
	form := map[string]string{"month": "YYYY-MM", "day": "YYYY-MM-DD"}[granularity]
	parts := []string{`SELECT to_char(month, 'YYYY-MM') AS period, name, sum(count)::bigint AS n, true AS archived FROM core.monthly_counts
WHERE tenant_id = $3 AND source = 'events' AND month >= date_trunc('month', $1::timestamptz AT TIME ZONE 'UTC')::date AND month < ($2::timestamptz AT TIME ZONE 'UTC')::date
    AND ($4 = '' OR name = $4) AND $5 <> '' GROUP BY 1, 2`}
	for _, leaf := range leaves {
		parts = append(parts, `SELECT to_char(occurred_at AT TIME ZONE 'UTC', $5), event_name, count(*), false FROM `+leaf+`
WHERE occurred_at >= $1 AND occurred_at < $2 AND tenant_id = $3 AND ($4 = '' OR event_name = $4) GROUP BY 1, 2`)
	}
	rows, err := tx.Query(ctx, `SELECT period, name, sum(n)::bigint, archived FROM (`+strings.Join(parts, ` UNION ALL `)+`) c
GROUP BY period, name, archived ORDER BY period, name, archived LIMIT $6`, q.from, q.to, tenant, q.get("event_name"), form, maxCounts+1)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[Count])
}

package manage

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/httpserver"
)

// How many events a page of the feed has, and how many transactions of the
// append it looks through for them: a page costs about the same for a tenant of
// whom there is nothing.
const feedLimit, maxFeedLimit, maxSpans = 100, 1000, 4000

// maxFeedCursor is how long a cursor may be: a lane has about ten bytes in it.
const maxFeedCursor = 8192

// FeedPage is a page of a tenant's feed.
type FeedPage struct {
	Events     []*Event `json:"events"`
	NextCursor string   `json:"next_cursor"` // always: the feed has no end
	HasMore    bool     `json:"has_more"`    // ask again at once; the next page may be empty all the same
	Gaps       []Gap    `json:"gaps,omitempty"`
}

// Gap says that events left with the plan's retention before they were read.
type Gap struct {
	Months   []GoneMonth `json:"months"`             // all of the tenant's that are gone, those that it has read among them
	Archives []string    `json:"archives,omitempty"` // manifests of what was exported before it went; the operator has them
}

// GoneMonth is a month of which events are gone.
type GoneMonth struct {
	Month  string `json:"month"`
	Events int64  `json:"events"`
}

// feedLane is a lane as a page finds it.
type feedLane struct {
	id          int32
	counter     int64 // of all that is committed: rows and counter are of one snapshot
	incarnation int32
	restored    *int64
	seq         int64 // how far the reader is, and will be
}

// feed answers GET /v1/core/events/feed: every event of the tenant once it is
// stored, in the order of its lane, at least once. All of a page is read in one
// snapshot, and the cursor goes no further than the counters in it.
func (m *Routes) feed(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	v, problem := parseParams(r, maxFeedCursor, "cursor", "limit", "start")
	if problem != nil {
		return nil, problem, nil
	}
	limit, problem := parseLimit(v, feedLimit, maxFeedLimit)
	if problem != nil {
		return nil, problem, nil
	}
	start, text := v.Get("start"), v.Get("cursor")
	if v.Has("start") && (text != "" || start != "now" && start != "beginning") {
		return nil, badParameter("start is now or beginning, and stands in the place of a cursor."), nil
	}
	seals := newSealer(m.deps.CursorKey)
	cursor := feedCursor{}
	if text != "" {
		var ok bool
		if cursor, ok = seals.open(text, tenant); !ok {
			return nil, &httpserver.Problem{Status: http.StatusBadRequest, Code: "invalid_cursor", Title: "The cursor does not belong to this feed"}, nil
		}
	}
	page, reset := &FeedPage{Events: []*Event{}}, false
	err := m.snapshot(ctx, func(tx pgx.Tx) error {
		lanes, err := readLanes(ctx, tx, cursor)
		if err != nil {
			return err
		}
		f := feedRead{ctx: ctx, tx: tx, tenant: tenant, limit: limit, spans: maxSpans, page: page, turn: cursor.turn}
		if reset = stale(lanes, cursor); !reset && start != "now" {
			page.Events, page.Gaps = page.Events[:0], nil // another try begins anew
			if err := f.read(lanes); err != nil {
				return err
			}
		}
		for i := range lanes {
			if start == "now" {
				lanes[i].seq = lanes[i].counter
			}
			page.HasMore = page.HasMore || lanes[i].seq < lanes[i].counter
		}
		page.NextCursor = seals.seal(cursorOf(lanes, f.turn), tenant)
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read the feed: %w", err)
	}
	if reset {
		return nil, &httpserver.Problem{Status: http.StatusConflict, Code: "cursor_reset", Title: "The database was restored behind the cursor",
			Detail: "Go on with the member cursor: it is before all that may have changed; events that you have come again.",
			Extra:  map[string]any{"cursor": page.NextCursor}}, nil
	}
	return page, nil, nil
}

// readLanes reads the lanes with the reader's place in each: 0 in one that it
// does not know.
func readLanes(ctx context.Context, tx pgx.Tx, c feedCursor) ([]feedLane, error) {
	rows, err := tx.Query(ctx, `SELECT lane, counter, incarnation, restored_counter FROM core.outbox_lanes WHERE store = 'events' ORDER BY lane`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (l feedLane, err error) {
		err = row.Scan(&l.id, &l.counter, &l.incarnation, &l.restored)
		l.seq = c.lanes[l.id].seq
		return l, err
	})
}

// stale says whether the cursor is of a life of the database that is over, and
// then sets every lane to where nothing can have changed: in a lane that was
// restored no further than it stood then, in a lane that is younger than the
// restore at its beginning, for its number may have been another's.
func stale(lanes []feedLane, c feedCursor) bool {
	known, newest, reset := 0, int32(0), false
	for _, l := range lanes {
		newest = max(newest, l.incarnation)
		if p, ok := c.lanes[l.id]; ok {
			known++
			reset = reset || p.incarnation != l.incarnation || p.seq > l.counter
		}
	}
	if reset = reset || known < len(c.lanes); !reset {
		return false
	}
	for i := range lanes {
		l := &lanes[i]
		switch p := c.lanes[l.id]; {
		case p.incarnation == l.incarnation && l.incarnation == newest && p.seq <= l.counter:
		case p.incarnation < l.incarnation && l.restored != nil:
			l.seq = min(p.seq, *l.restored)
		default:
			l.seq = 0
		}
	}
	return true
}

func cursorOf(lanes []feedLane, turn int32) feedCursor {
	c := feedCursor{turn: turn, lanes: map[int32]lanePosition{}}
	for _, l := range lanes {
		if l.seq > 0 {
			c.lanes[l.id] = lanePosition{l.incarnation, l.seq}
		}
	}
	return c
}

// feedRead fills a page.
type feedRead struct {
	ctx    context.Context //nolint:containedctx // the life of one page
	tx     pgx.Tx
	tenant uuid.UUID
	limit  int // of events
	spans  int // that may still be looked through
	page   *FeedPage
	turn   int32
}

// read takes the lanes in turn, beginning behind the one that filled the page
// before: a busy lane does not hold up a quiet one.
func (f *feedRead) read(lanes []feedLane) error {
	first := 0
	for i, l := range lanes {
		if l.id <= f.turn {
			first = (i + 1) % len(lanes)
		}
	}
	hole := false
	for i := range lanes {
		l := &lanes[(first+i)%len(lanes)]
		if l.seq >= l.counter || len(f.page.Events) == f.limit || f.spans == 0 {
			continue
		}
		missing, err := f.lane(l)
		if err != nil {
			return err
		}
		hole, f.turn = hole || missing, l.id
	}
	if !hole {
		return nil
	}
	gap, err := f.gap()
	if err == nil && len(gap.Months) > 0 {
		f.page.Gaps = []Gap{gap}
	}
	return err
}

// lane reads on in a lane. missing says that a transaction of it is gone, with
// the leaves that held its events.
func (f *feedRead) lane(l *feedLane) (missing bool, err error) {
	rows, err := f.tx.Query(f.ctx, `SELECT first_seq, last_seq, min_occurred, max_occurred, $4 = ANY(tenant_ids) FROM core.event_spans
WHERE lane = $1 AND first_seq <= $3
    AND first_seq >= coalesce((SELECT max(b.first_seq) FROM core.event_spans b WHERE b.lane = $1 AND b.first_seq <= $2 + 1), 0)
ORDER BY first_seq LIMIT $5`, l.id, l.seq, l.counter, f.tenant, f.spans)
	if err != nil {
		return false, err
	}
	var first, last int64
	var from, to, least, most time.Time
	var mine, found bool
	seen, reached := 0, l.seq
	_, err = pgx.ForEachRow(rows, []any{&first, &last, &from, &to, &mine}, func() error {
		seen++
		if last <= l.seq {
			return nil
		}
		missing = missing || first > reached+1
		reached = last
		if !mine {
			return nil
		}
		if !found || from.Before(least) {
			least = from
		}
		if !found || to.After(most) {
			most = to
		}
		found = true
		return nil
	})
	if err != nil {
		return false, err
	}
	if seen < f.spans { // all there is
		missing, reached = missing || reached < l.counter, l.counter
	}
	f.spans -= seen
	if found {
		if reached, err = f.events(l, reached, least, most); err != nil {
			return false, err
		}
	}
	l.seq = reached
	return missing, nil
}

// events reads the tenant's events of a lane up to a sequence, and says how far
// the page goes.
func (f *feedRead) events(l *feedLane, upTo int64, least, most time.Time) (int64, error) {
	leaves, err := eventLeaves(f.ctx, f.tx, least, most.Add(time.Microsecond))
	if err != nil || len(leaves) == 0 {
		return upTo, err
	}
	parts := make([]string, len(leaves))
	for i, leaf := range leaves {
		parts[i] = `SELECT * FROM ` + leaf + ` WHERE occurred_at >= $1 AND occurred_at <= $2 AND tenant_id = $3 AND lane = $4 AND lane_seq > $5 AND lane_seq <= $6`
	}
	room := f.limit - len(f.page.Events)
	rows, err := f.tx.Query(f.ctx, `SELECT e.lane_seq, `+eventColumns+` FROM (`+strings.Join(parts, ` UNION ALL `)+`) e ORDER BY e.lane_seq LIMIT $7`,
		least, most, f.tenant, l.id, l.seq, upTo, room)
	if err != nil {
		return 0, err
	}
	var seq int64
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*Event, error) {
		var e Event
		return &e, e.scan(numbered{row, &seq})
	})
	if err != nil {
		return 0, err
	}
	f.page.Events = append(f.page.Events, found...)
	if len(found) == room {
		return seq, nil
	}
	return upTo, nil
}

// numbered is a row whose first column is a sequence.
type numbered struct {
	row pgx.CollectableRow
	seq *int64
}

func (n numbered) Scan(dest ...any) error { return n.row.Scan(append([]any{n.seq}, dest...)...) }

// gap says which months of the tenant are gone.
func (f *feedRead) gap() (g Gap, err error) {
	rows, err := f.tx.Query(f.ctx, `SELECT to_char(month, 'YYYY-MM'), sum(count)::bigint FROM core.monthly_counts WHERE tenant_id = $1 AND source = 'events'
GROUP BY month ORDER BY month`, f.tenant)
	if err != nil {
		return g, err
	}
	if g.Months, err = pgx.CollectRows(rows, pgx.RowToStructByPos[GoneMonth]); err != nil || len(g.Months) == 0 {
		return g, err
	}
	rows, err = f.tx.Query(f.ctx, `SELECT DISTINCT l.object FROM core.retention_ledger l JOIN core.monthly_counts c
    ON c.tenant_id = $1 AND c.source = 'events' AND c.month = (l.lower_bound AT TIME ZONE 'UTC')::date
WHERE l.parent = 'core.tracked_events' AND l.state = 'dropped' AND l.object IS NOT NULL ORDER BY 1`, f.tenant)
	if err != nil {
		return g, err
	}
	g.Archives, err = pgx.CollectRows(rows, pgx.RowTo[string])
	return g, err
}

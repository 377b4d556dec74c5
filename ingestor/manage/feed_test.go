package manage

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/softcrum/carril/internal/ids"
)

// lane makes a lane of events.
func (d *desk) lane() (id int32) {
	d.t.Helper()
	require.NoError(d.t, d.pool.QueryRow(d.t.Context(), `INSERT INTO core.outbox_lanes (producer, store) VALUES (gen_random_uuid()::text, 'events') RETURNING lane`).Scan(&id))
	return id
}

// append stores events of tenants in a lane, in one transaction with its span, as
// the append stage does, and gives their ids.
func (d *desk) append(lane int32, at time.Time, tenants ...uuid.UUID) []uuid.UUID {
	d.t.Helper()
	tx, err := d.pool.Begin(d.t.Context())
	require.NoError(d.t, err)
	var last int64
	require.NoError(d.t, tx.QueryRow(d.t.Context(), `UPDATE core.outbox_lanes SET counter = counter + $2 WHERE lane = $1 RETURNING counter`, lane, len(tenants)).Scan(&last))
	first := last - int64(len(tenants)) + 1
	var all []uuid.UUID
	for i, tenant := range tenants {
		all = append(all, ids.New())
		_, err = tx.Exec(d.t.Context(), `INSERT INTO core.tracked_events (tenant_id, event_id, cell_id, contact_id, kind, event_name, properties, occurred_at, occurred_offset,
			received_at, idempotency_key, correlation_id, retention_months, lane, lane_seq)
			VALUES ($1, $2, 'c1', gen_random_uuid(), 'track', 'invoice.paid', '{"n":1.10}', $3, 0, $3, 'k', 'c', 13, $4, $5)`,
			tenant, all[i], at.Add(time.Duration(i)*time.Second), lane, first+int64(i))
		require.NoError(d.t, err)
	}
	_, err = tx.Exec(d.t.Context(), `INSERT INTO core.event_spans (lane, first_seq, last_seq, min_occurred, max_occurred, tenant_ids) VALUES ($1, $2, $3, $4, $5, $6)`,
		lane, first, last, at, at.Add(time.Duration(len(tenants)-1)*time.Second), tenants)
	require.NoError(d.t, err)
	require.NoError(d.t, tx.Commit(d.t.Context()))
	return all
}

type feedAnswer struct {
	Events []struct {
		EventID uuid.UUID `json:"event_id"`
	} `json:"events"`
	NextCursor string `json:"next_cursor"`
	HasMore    bool   `json:"has_more"`
	Gaps       []Gap  `json:"gaps"`
}

func (d *desk) feedPage(key, cursor string, limit int) feedAnswer {
	d.t.Helper()
	v := url.Values{"limit": {fmt.Sprint(limit)}}
	if cursor != "" {
		v.Set("cursor", cursor)
	}
	status, body := d.get(key, "/v1/core/events/feed", "/v1/core/events/feed?"+v.Encode())
	require.Equal(d.t, http.StatusOK, status, body)
	var a feedAnswer
	require.NoError(d.t, json.Unmarshal([]byte(body), &a))
	return a
}

// follow reads on until there is no more, in pages.
func (d *desk) follow(key, cursor string, limit int) (read []uuid.UUID, next string) {
	d.t.Helper()
	for range 1000 {
		a := d.feedPage(key, cursor, limit)
		for _, e := range a.Events {
			read = append(read, e.EventID)
		}
		if cursor = a.NextCursor; !a.HasMore {
			return read, cursor
		}
	}
	d.t.Fatal("the feed has no end")
	return nil, ""
}

func TestFeed(t *testing.T) {
	t.Parallel()
	t.Run("HasEveryEventInTheOrderOfItsLane", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		a, b := d.lane(), d.lane()
		var want [2][]uuid.UUID
		for i := range 7 {
			got := d.append(a, month().Add(time.Duration(-i)*time.Hour), d.acme, d.other, d.acme)
			want[0] = append(want[0], got[0], got[2])
			want[1] = append(want[1], d.append(b, month(), d.acme)...)
			d.append(b, month(), d.other)
		}
		for _, limit := range []int{1, 2, 5, 1000} {
			read, _ := d.follow("acme", "", limit)
			var of [2][]uuid.UUID
			for _, id := range read {
				k := 1
				for _, w := range want[0] {
					if w == id {
						k = 0
					}
				}
				of[k] = append(of[k], id)
			}
			require.Equal(t, want, of, "limit %d", limit)
		}
	})
	t.Run("GoesOnFromACursor", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		a := d.lane()
		d.append(a, month(), d.acme, d.acme)
		_, cursor := d.follow("acme", "", 100)
		page := d.feedPage("acme", cursor, 100)
		require.Empty(t, page.Events)
		require.False(t, page.HasMore)
		// one that occurred long before it arrived, and one of a lane that is new
		late := d.append(a, month().AddDate(0, -1, 0), d.acme)
		fresh := d.append(d.lane(), month(), d.acme)
		read, _ := d.follow("acme", cursor, 100)
		require.ElementsMatch(t, append(late, fresh...), read)
	})
	t.Run("BeginsBehindTheNewestWhereItIsAsked", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		a := d.lane()
		d.append(a, month(), d.acme, d.acme)
		status, body := d.ask("acme", "/v1/core/events/feed", "start", "now")
		require.Equal(t, http.StatusOK, status, body)
		var now feedAnswer
		require.NoError(t, json.Unmarshal([]byte(body), &now))
		require.Empty(t, now.Events)
		require.False(t, now.HasMore)
		next := d.append(a, month(), d.other, d.acme)
		read, _ := d.follow("acme", now.NextCursor, 100)
		require.Equal(t, next[1:], read)
	})
	t.Run("LetsABusyLaneHoldUpNoOther", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		busy, quiet := d.lane(), d.lane()
		for range 10 {
			d.append(busy, month(), d.acme)
		}
		want := d.append(quiet, month(), d.acme)
		first := d.feedPage("acme", "", 3)
		second := d.feedPage("acme", first.NextCursor, 3)
		require.Equal(t, want[0], second.Events[0].EventID)
	})
	// I34, I41: what retention has detached and not dropped is read; what is gone
	// is said.
	t.Run("ReadsDetachedLeavesAndTellsOfDroppedOnes", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		a, at := d.lane(), time.Date(2023, 3, 5, 0, 0, 0, 0, time.UTC)
		d.exec(`SELECT core.ensure_partition('core.tracked_events', $1)`, at)
		old := d.append(a, at, d.acme, d.other, d.acme)
		young := d.append(a, month(), d.acme)
		d.exec(`INSERT INTO core.retention_ledger (run_id, parent, leaf, leaf_oid, lower_bound, upper_bound, retention_months, state)
			SELECT gen_random_uuid(), 'core.tracked_events', 'core.tracked_events_202303_r13', 'core.tracked_events_202303_r13'::regclass, '2023-03-01Z', '2023-04-01Z', 13, 'detached'`)
		d.exec(`ALTER TABLE core.tracked_events_202303 DETACH PARTITION core.tracked_events_202303_r13`)
		read, _ := d.follow("acme", "", 100)
		require.Equal(t, []uuid.UUID{old[0], old[2], young[0]}, read)
		d.exec(`DROP TABLE core.tracked_events_202303_r13`)
		d.exec(`UPDATE core.retention_ledger SET state = 'dropped', object = 'retention/m.json'`)
		d.exec(`DELETE FROM core.event_spans WHERE first_seq = 1`)
		d.exec(`INSERT INTO core.monthly_counts (tenant_id, month, source, name, count) VALUES ($1, '2023-03-01', 'events', 'invoice.paid', 2)`, d.acme)
		page := d.feedPage("acme", "", 100)
		require.Len(t, page.Events, 1)
		require.Equal(t, []Gap{{Months: []GoneMonth{{"2023-03", 2}}, Archives: []string{"retention/m.json"}}}, page.Gaps)
		page = d.feedPage("acme", page.NextCursor, 100)
		require.Empty(t, page.Gaps, "once")
		require.Empty(t, d.feedPage("other", "", 100).Gaps, "a tenant that lost nothing has no gap")
	})
	// I40
	t.Run("IsResetToASafePlaceAfterARestore", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		a, b := d.lane(), d.lane()
		kept := d.append(a, month(), d.acme, d.acme)
		d.append(b, month(), d.acme)
		lost := d.append(a, month(), d.acme)
		gone := d.lane()
		d.append(gone, month(), d.acme)
		_, cursor := d.follow("acme", "", 100)
		// the restore: the last event of a and the lane that was made after it are gone
		d.exec(`ALTER TABLE core.tracked_events DISABLE TRIGGER append_only`)
		d.exec(`DELETE FROM core.tracked_events WHERE occurred_at > '2000-01-01' AND event_id = $1`, lost[0])
		d.exec(`DELETE FROM core.event_spans WHERE lane = $1 AND first_seq = 3 OR lane = $2`, a, gone)
		d.exec(`DELETE FROM core.outbox_lanes WHERE lane = $1`, gone)
		d.exec(`UPDATE core.outbox_lanes SET counter = 2 WHERE lane = $1`, a)
		d.exec(`UPDATE core.outbox_lanes SET incarnation = incarnation + 1`)
		again := d.append(a, month(), d.acme)
		d.exec(`ALTER SEQUENCE core.outbox_lanes_lane_seq RESTART WITH ` + fmt.Sprint(gone))
		reused := d.append(d.lane(), month(), d.acme)

		status, body := d.ask("acme", "/v1/core/events/feed", "cursor", cursor)
		require.Equal(t, http.StatusConflict, status, body)
		var p struct {
			Code   string `json:"code"`
			Cursor string `json:"cursor"`
		}
		require.NoError(t, json.Unmarshal([]byte(body), &p))
		require.Equal(t, "cursor_reset", p.Code)
		read, _ := d.follow("acme", p.Cursor, 100)
		require.ElementsMatch(t, append(again, reused...), read, "nothing is missed, and what cannot have changed does not come again")
		require.NotContains(t, read, kept[0])
	})
	t.Run("MissesNothingBesideItsWriters", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		lanes := []int32{d.lane(), d.lane(), d.lane()}
		var mu sync.Mutex
		var want []uuid.UUID
		var writing sync.WaitGroup
		for _, lane := range lanes {
			writing.Go(func() {
				for i := range 25 {
					got := d.append(lane, month().AddDate(0, -(i%2), 0), d.acme, d.other)
					mu.Lock()
					want = append(want, got[0])
					mu.Unlock()
				}
			})
		}
		done := make(chan struct{})
		go func() { writing.Wait(); close(done) }()
		var read []uuid.UUID
		cursor := ""
		for ended := false; !ended; {
			select {
			case <-done:
				ended = true // and once more
			default:
			}
			var some []uuid.UUID
			some, cursor = d.follow("acme", cursor, 4)
			read = append(read, some...)
		}
		require.ElementsMatch(t, want, read)
	})
	t.Run("TakesItsOwnCursorsAlone", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		d.append(d.lane(), month(), d.acme)
		cursor := d.feedPage("acme", "", 10).NextCursor
		require.NotContains(t, cursor, "=")
		for _, bad := range []string{"x", "!", cursor[1:], cursor[:len(cursor)-2] + "AA", strings.Repeat("A", 100)} {
			status, body := d.ask("acme", "/v1/core/events/feed", "cursor", bad)
			require.Equal(t, http.StatusBadRequest, status)
			require.Contains(t, body, "invalid_cursor")
		}
		status, _ := d.ask("other", "/v1/core/events/feed", "cursor", cursor)
		require.Equal(t, http.StatusBadRequest, status, "another tenant's")
		for _, params := range [][]string{{"limit", "0"}, {"limit", "1001"}, {"from", "x"}, {"start", "then"}, {"start", "now", "cursor", cursor}} {
			status, body := d.ask("acme", "/v1/core/events/feed", params...)
			require.Equal(t, http.StatusBadRequest, status, "%v", params)
			require.Contains(t, body, "invalid_parameter")
		}
		status, _ = d.ask("writer", "/v1/core/events/feed")
		require.Equal(t, http.StatusForbidden, status)
		status, _ = d.ask("operator", "/v1/core/events/feed")
		require.Equal(t, http.StatusForbidden, status, "a feed is a tenant's")
	})
}

func TestFeedCursor(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s, tenant := newSealer(rapid.SliceOf(rapid.Byte()).Draw(t, "key")), uuid.New()
		c := feedCursor{turn: rapid.Int32Min(0).Draw(t, "turn"), lanes: map[int32]lanePosition{}}
		for _, lane := range rapid.SliceOf(rapid.Int32Min(1)).Draw(t, "lanes") {
			c.lanes[lane] = lanePosition{rapid.Int32Min(1).Draw(t, "incarnation"), rapid.Int64Min(0).Draw(t, "seq")}
		}
		text := s.seal(c, tenant)
		got, ok := s.open(text, tenant)
		require.True(t, ok)
		require.Equal(t, c, got)
		_, ok = s.open(text, uuid.New())
		require.False(t, ok)
		_, ok = newSealer([]byte("another")).open(text, tenant)
		require.False(t, ok)
	})
}

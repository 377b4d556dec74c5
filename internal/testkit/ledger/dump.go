package ledger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Dump is part D: what the database holds at the end, and what was published.
type Dump struct {
	Rows        []Row
	Fences      []string // event ids
	DeadLetters []DeadLetter
	Lanes       []Lane
	Sends       []Send
	OpenJobs    []Job
	// Published counts the records of core.event.tracked by event id; nil where
	// the run did not read it.
	Published map[string]int
}

// Row is an event of core.tracked_events.
type Row struct {
	Tenant, Event, Kind, Key, Body string
	Lane                           int32
	LaneSeq                        int64
}

// DeadLetter is a record that was put aside.
type DeadLetter struct{ ID, Tenant, Event, Stage, Class, Status, Bytes string }

// Lane is an outbox lane beside what its store holds of it.
type Lane struct {
	Lane                                int32
	Store                               string
	Counter, Cursor, Count, First, Last int64
}

// Send is a message with its derived status.
type Send struct {
	Tenant, Send, Event, Recipient, Status string
	Terminal                               bool
}

// Job is a rail's job that has not ended.
type Job struct{ Worker, Job, State, Why string }

// Read dumps the database, in one snapshot. It is what a run is judged by after
// its faults are healed and everything is quiet.
func Read(ctx context.Context, conn *pgx.Conn) (d Dump, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		for _, part := range []func() error{
			func() (err error) { d.Rows, err = rows[Row](ctx, tx, eventsSQL); return },
			func() (err error) {
				found, err := tx.Query(ctx, `SELECT event_id::text FROM core.event_keys ORDER BY 1`)
				if err == nil {
					d.Fences, err = pgx.CollectRows(found, pgx.RowTo[string])
				}
				return err
			},
			func() (err error) { d.DeadLetters, err = rows[DeadLetter](ctx, tx, deadSQL); return },
			func() (err error) { d.Lanes, err = rows[Lane](ctx, tx, lanesSQL); return },
			func() (err error) { d.Sends, err = rows[Send](ctx, tx, sendsSQL); return },
			func() (err error) { d.OpenJobs, err = rows[Job](ctx, tx, jobsSQL); return },
		} {
			if err := part(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return d, fmt.Errorf("dump the database: %w", err)
	}
	return d, nil
}

func rows[T any](ctx context.Context, tx pgx.Tx, sql string) ([]T, error) {
	found, err := tx.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(found, pgx.RowToStructByPos[T])
}

const eventsSQL = `SELECT tenant_id::text, event_id::text, kind, idempotency_key,
    encode(sha256(convert_to(event_name || E'\n' || properties::text, 'UTF8')), 'hex'), lane, lane_seq
FROM core.tracked_events WHERE occurred_at > '-infinity'`

const deadSQL = `SELECT dead_letter_id::text, coalesce(tenant_id::text, ''), coalesce(event_id::text, ''), stage, class, status,
    coalesce(encode(sha256(record_value), 'hex'), '')
FROM core.dead_letters`

// Lanes whose writers are many are relayed by whoever holds their lease; they
// are judged like the others.
const lanesSQL = `SELECT l.lane, l.store, l.counter, coalesce(c.cursor, 0), coalesce(h.n, 0), coalesce(h.lo, 0), coalesce(h.hi, 0)
FROM core.outbox_lanes l LEFT JOIN core.outbox_cursors c ON c.lane = l.lane AND c.consumer = 'relay'
LEFT JOIN (
    SELECT lane, 'outbox' AS store, count(*) AS n, min(lane_seq) AS lo, max(lane_seq) AS hi FROM core.outbox WHERE written_at > '-infinity' GROUP BY lane
    UNION ALL
    SELECT lane, 'events', count(*), min(lane_seq), max(lane_seq) FROM core.tracked_events WHERE occurred_at > '-infinity' GROUP BY lane
) h ON h.lane = l.lane AND h.store = l.store`

const sendsSQL = `SELECT s.tenant_id::text, s.send_id::text, s.origin_event_id::text, coalesce(s.address, ''), coalesce(t.status, ''), coalesce(t.terminal OR t.status = 'sent', false)
FROM messaging.sends s LEFT JOIN LATERAL (
    SELECT h.status, st.terminal FROM messaging.send_status_history h JOIN messaging.send_statuses st USING (status)
    WHERE h.requested_at = s.requested_at AND h.requested_at > '-infinity' AND h.send_id = s.send_id ORDER BY st.rank DESC LIMIT 1) t ON true
WHERE s.requested_at > '-infinity'`

const jobsSQL = `SELECT worker, job_id::text, state, CASE WHEN lease_until < now() - interval '2 minutes' THEN 'its lease is long over'
    WHEN state IN ('parked', 'waiting') AND not_before IS NULL AND state = 'parked' THEN 'it has no next time' ELSE 'not ended' END
FROM core.processed_jobs WHERE id_time > '-infinity' AND worker LIKE 'rail:%' AND state IN ('waiting', 'in_topic', 'claimed', 'parked')`

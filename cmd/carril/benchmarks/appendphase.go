package benchmarks

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/bench"
	"github.com/softcrum/carril/internal/ids"
)

// phase is a measured append: how many rows stood there at which time.
type phase struct {
	points []point       // in order; the first has no rows
	wal    int64         // bytes written to the log meanwhile; 0: PostgreSQL did not say
	cpu    time.Duration // of this process; PostgreSQL's own is not in it
	server time.Duration // of PostgreSQL's backends, where they run on this machine; else 0
}

type point struct {
	rows int
	at   time.Time
}

// phase runs one side after a checkpoint, so that neither pays for what the
// other wrote.
func (a *appendRun) phase(ctx context.Context, f func(context.Context) ([]point, error)) (p phase, err error) {
	_, _ = a.pool.Exec(ctx, "CHECKPOINT") // a right that not every user has
	a.backends = map[int32]time.Duration{}
	a.noteBackends(ctx)
	before, cpu, server := a.walPosition(ctx), bench.CPUTime(), a.backendCPU()
	if p.points, err = f(ctx); err != nil {
		return p, err
	}
	p.cpu = bench.CPUTime() - cpu
	a.noteBackends(ctx)
	p.server = a.backendCPU() - server
	if after := a.walPosition(ctx); before > 0 {
		p.wal = after - before
	}
	return p, nil
}

func (a *appendRun) walPosition(ctx context.Context) (at int64) {
	_ = a.pool.QueryRow(ctx, "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint").Scan(&at) // 0 where it is not allowed
	return at
}

// noteBackends reads what each backend of the benchmark's database has spent;
// before connections are closed, or theirs is lost.
func (a *appendRun) noteBackends(ctx context.Context) {
	rows, err := a.pool.Query(ctx, "SELECT pid FROM pg_stat_activity WHERE datname = current_database()")
	if err != nil {
		return
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if err != nil {
		return
	}
	for _, pid := range pids {
		// The server's number means another process here where it runs elsewhere.
		if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err != nil || !strings.HasPrefix(string(name), "postgres") {
			continue
		}
		if spent := bench.CPUOf(int(pid)); spent > 0 { // one that ended meanwhile keeps what it had
			a.backends[pid] = spent
		}
	}
}

func (a *appendRun) backendCPU() (sum time.Duration) {
	for _, d := range a.backends {
		sum += d
	}
	return sum
}

// then joins a later phase that goes on where this one ended.
func (p phase) then(later phase) phase {
	gap := later.points[0].at.Sub(p.points[len(p.points)-1].at)
	joined := phase{points: slices.Clone(p.points), wal: p.wal + later.wal, cpu: p.cpu + later.cpu, server: p.server + later.server}
	for _, pt := range later.points[1:] {
		joined.points = append(joined.points, point{pt.rows, pt.at.Add(-gap)})
	}
	return joined
}

// rate is rows a second from one row to another, between points as if rows came
// evenly.
func (p phase) rate(from, to int) float64 {
	d := p.when(to).Sub(p.when(from)).Seconds()
	if d <= 0 {
		return 0
	}
	return round1(float64(to-from) / d)
}

func round1(f float64) float64 { return math.Round(f*10) / 10 }
func round3(f float64) float64 { return math.Round(f*1000) / 1000 }

func (p phase) when(rows int) time.Time {
	for i := 1; i < len(p.points); i++ {
		a, b := p.points[i-1], p.points[i]
		if rows <= b.rows {
			share := float64(rows-a.rows) / float64(max(1, b.rows-a.rows))
			return a.at.Add(time.Duration(share * float64(b.at.Sub(a.at))))
		}
	}
	return p.points[len(p.points)-1].at
}

func (p phase) figures() bench.Figures {
	var batches bench.Stats
	for i := 1; i < len(p.points); i++ {
		batches.Latency.Record(p.points[i].at.Sub(p.points[i-1].at))
	}
	f := bench.FiguresOf(&batches, 1)
	last := p.points[len(p.points)-1]
	f.Count, f.Rate = uint64(last.rows), p.rate(0, last.rows)
	f.CPU = round3(float64(p.cpu.Microseconds()) / float64(max(1, last.rows)))
	return f
}

// copyColumns are the columns of core.tracked_events.
var copyColumns = []string{"tenant_id", "event_id", "cell_id", "contact_id", "kind", "event_name", "properties", "occurred_at", "occurred_offset",
	"received_at", "idempotency_key", "correlation_id", "retention_months", "historical", "lane", "lane_seq"}

// makeCopies makes the baseline's table: partitioned, indexed and checked as the
// events' own.
func (a *appendRun) makeCopies(ctx context.Context) error {
	const like = `CREATE TABLE core.bench_copies (LIKE core.tracked_events INCLUDING ALL) PARTITION BY RANGE (occurred_at);
INSERT INTO core.partitioned_tables VALUES ('core.bench_copies', 'month', 1, 1, true);
SELECT core.ensure_partitions(now())`
	if _, err := a.pool.Exec(ctx, like); err != nil {
		return fmt.Errorf("make the baseline's table: %w", err)
	}
	return nil
}

// copyRows is the baseline.
func (a *appendRun) copyRows(ctx context.Context, first, end int) ([]point, error) {
	body, err := eventBody(a.Payload, a.at)
	if err != nil {
		return nil, err
	}
	ev, err := parse(a.tenants[0], intake.Track, body, a.at)
	if err != nil {
		return nil, err
	}
	points := []point{{first, time.Now()}}
	shown := a.progress.Phase("append: COPY for comparison", func() float64 { return float64(points[len(points)-1].rows) / float64(a.Events) })
	defer shown()
	for from := first; from < end; from += catchUp {
		to := min(from+catchUp, end)
		if _, err := a.pool.CopyFrom(ctx, pgx.Identifier{"core", "bench_copies"}, copyColumns, a.source(from, to, ev.Payload)); err != nil {
			return nil, fmt.Errorf("copy rows: %w", err)
		}
		points = append(points, point{to, time.Now()})
	}
	return points, nil
}

func (a *appendRun) source(from, to int, properties string) pgx.CopyFromSource {
	i := from
	return pgx.CopyFromFunc(func() ([]any, error) {
		if i == to {
			return nil, nil
		}
		t, n := a.event(i)
		i++
		key := keyOf(n)
		id := ids.Event(t.id, key)
		person := ids.Request(t.id, keyOf(personOf(n, uint64(a.Contacts)))) // as random as a contact's id
		return []any{t.id, id, "cell-1", person, "track", eventName, properties, a.at, int32(0), a.at, key, id.String(), int16(13), false, int32(1), int64(i)}, nil
	})
}

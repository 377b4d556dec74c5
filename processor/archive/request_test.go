package archive_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"path"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/parquet-go/parquet-go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/storage"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/processor/archive"
)

func TestRequest(t *testing.T) {
	t.Parallel()
	ask := func(tenant uuid.UUID) archive.Request {
		return archive.Request{TenantID: tenant, From: month, To: month.AddDate(0, 3, 0), Format: archive.FormatNDJSON, Compression: archive.Zstd}
	}
	// two months of a tenant and of its neighbour, the first detached by retention
	filled := func(t *testing.T) *shop {
		s := newShop(t)
		s.exec(`SELECT core.ensure_partition('core.tracked_events', $1)`, month.AddDate(0, 1, 0))
		for _, tenant := range s.tenants[:2] {
			s.fill(tenant, month, 12)
			s.fill(tenant, month.AddDate(0, 1, 0), 8)
		}
		s.detach()
		return s
	}
	t.Run("GivesATenantItsEventsInOrderOfTime", func(t *testing.T) {
		t.Parallel()
		s := filled(t)
		a := s.archive(archive.Config{})
		done, err := a.Run(t.Context(), ask(s.tenants[0]), false)
		require.NoError(t, err)
		require.Equal(t, int64(20), done.Rows, "what is detached and not dropped is still read")
		require.Equal(t, 2, done.Objects, "a month without an event has no object")
		_, err = a.Verify(t.Context(), done.Manifest)
		require.NoError(t, err)
		var last string
		for _, o := range s.manifest(done.Manifest).Objects {
			for _, l := range s.lines(path.Join(path.Dir(done.Manifest), o.Name)) {
				var e map[string]any
				require.NoError(t, json.Unmarshal([]byte(l), &e))
				require.LessOrEqual(t, last, e["occurred_at"].(string))
				last = e["occurred_at"].(string)
				require.NotContains(t, e, "lane_seq")
				require.NotContains(t, e, "cell_id")
				require.Contains(t, e, "idempotency_key")
			}
		}
	})
	t.Run("KeepsToItsRange", func(t *testing.T) {
		t.Parallel()
		s := filled(t)
		r := ask(s.tenants[0])
		r.From, r.To = month.Add(3*time.Second+time.Microsecond), month.AddDate(0, 1, 0).Add(2*time.Second+time.Microsecond)
		done, err := s.archive(archive.Config{}).Run(t.Context(), r, false)
		require.NoError(t, err)
		require.Equal(t, int64(12-2+1), done.Rows)
	})
	t.Run("IsMadeOnceUnlessItIsToBeFresh", func(t *testing.T) {
		t.Parallel()
		s := filled(t)
		a := s.archive(archive.Config{})
		first, err := a.Run(t.Context(), ask(s.tenants[0]), false)
		require.NoError(t, err)
		again, err := a.Run(t.Context(), ask(s.tenants[0]), false)
		require.NoError(t, err)
		require.True(t, again.AlreadyDone)
		require.Equal(t, first.Manifest, again.Manifest)
		s.fill(s.tenants[0], month.AddDate(0, 1, 5), 1)
		fresh, err := a.Run(t.Context(), ask(s.tenants[0]), true)
		require.NoError(t, err)
		require.NotEqual(t, first.Manifest, fresh.Manifest)
		require.Equal(t, first.Rows+1, fresh.Rows)
		again, err = a.Run(t.Context(), ask(s.tenants[0]), false)
		require.NoError(t, err)
		require.Equal(t, fresh.Manifest, again.Manifest)
	})
	t.Run("IsMadeAnewOnceItExpired", func(t *testing.T) {
		t.Parallel()
		s := filled(t)
		a := s.archive(archive.Config{})
		first, err := a.Run(t.Context(), ask(s.tenants[0]), false)
		require.NoError(t, err)
		elsewhere := ask(s.tenants[1])
		elsewhere.Elsewhere = true
		lasting, err := a.Run(t.Context(), elsewhere, false)
		require.NoError(t, err)
		s.exec(`UPDATE core.exports SET expires_at = now() WHERE expires_at IS NOT NULL`)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- archive.NewJob(archive.JobConfig{Every: 10 * time.Millisecond}, a, prometheus.NewRegistry()).Run(ctx)
		}()
		require.Eventually(t, func() bool { state, _, _ := s.state(first.ExportID); return state == "expired" }, time.Minute, 20*time.Millisecond)
		cancel()
		require.NoError(t, <-ended)
		again, err := a.Run(t.Context(), ask(s.tenants[0]), false)
		require.NoError(t, err)
		require.False(t, again.AlreadyDone)
		require.NotEqual(t, first.Manifest, again.Manifest)
		_, err = a.Verify(t.Context(), again.Manifest)
		require.NoError(t, err)
		_, err = a.Verify(t.Context(), lasting.Manifest)
		require.NoError(t, err, "what lies elsewhere is the operator's")
	})
	t.Run("IsNoOnesElseWhileItIsMade", func(t *testing.T) {
		t.Parallel()
		s := filled(t)
		a := s.archive(archive.Config{})
		_, err := a.Run(t.Context(), ask(s.tenants[0]), false) // makes the row, to find its key
		require.NoError(t, err)
		var key string
		require.NoError(t, s.pool.QueryRow(t.Context(), `SELECT request_key FROM core.exports`).Scan(&key))
		require.NoError(t, pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock(hashtextextended('carril.export:' || $1, 0))`, key); err != nil {
				return err
			}
			_, err := a.Run(t.Context(), ask(s.tenants[0]), true)
			require.ErrorIs(t, err, archive.ErrBusy)
			return nil
		}))
	})
	t.Run("OfParquetHasTypedColumns", func(t *testing.T) {
		t.Parallel()
		s := filled(t)
		r := ask(s.tenants[0])
		r.Format = archive.FormatParquet
		a := s.archive(archive.Config{})
		done, err := a.Run(t.Context(), r, false)
		require.NoError(t, err)
		require.Equal(t, int64(20), done.Rows)
		_, err = a.Verify(t.Context(), done.Manifest)
		require.NoError(t, err)
		type row struct {
			EventID         uuid.UUID  `parquet:"event_id,uuid"`
			EventName       string     `parquet:"event_name"`
			OccurredAt      time.Time  `parquet:"occurred_at,timestamp(microsecond)"`
			OccurredOffset  int32      `parquet:"occurred_offset"`
			OccurredClaimed *time.Time `parquet:"occurred_claimed,optional,timestamp(microsecond)"`
			Historical      bool       `parquet:"historical"`
			Properties      string     `parquet:"properties"`
		}
		var got []row
		for _, o := range s.manifest(done.Manifest).Objects {
			b := s.raw(path.Join(path.Dir(done.Manifest), o.Name))
			rows, err := parquet.Read[row](bytes.NewReader(b), int64(len(b)))
			require.NoError(t, err)
			require.Len(t, rows, int(o.Rows))
			got = append(got, rows...)
		}
		require.True(t, month.Add(time.Second+time.Microsecond).Equal(got[0].OccurredAt), got[0].OccurredAt)
		require.Nil(t, got[0].OccurredClaimed)
		require.True(t, month.Equal(*got[1].OccurredClaimed))
		require.Equal(t, int32(-18000), got[0].OccurredOffset)
		require.Equal(t, `{"n": 12345678901234567890.123456789, "s": "plain"}`, got[3].Properties)
	})
	t.Run("IsRefusedWhereItCannotBe", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		for _, change := range []func(*archive.Request){
			func(r *archive.Request) { r.To = r.From }, func(r *archive.Request) { r.Format = "csv" }, func(r *archive.Request) { r.Compression = "lz4" },
		} {
			r := ask(s.tenants[0])
			change(&r)
			_, err := s.archive(archive.Config{}).Run(t.Context(), r, false)
			require.Error(t, err)
		}
		require.Empty(t, s.objects(""))
	})
	// A tenant's plan grew while its leaf was detached: its rows move in one
	// transaction, and are read once whatever the moment.
	t.Run("SeesEveryRowOnceWhileRowsMoveBetweenLeaves", func(t *testing.T) {
		t.Parallel()
		s := filled(t)
		stop := make(chan struct{})
		moved := make(chan error, 1)
		var moves atomic.Int32
		go func() {
			for {
				select {
				case <-stop:
					moved <- nil
					return
				default:
				}
				for _, sql := range []string{
					`WITH m AS (DELETE FROM core.tracked_events_202303_r13 RETURNING *) INSERT INTO core.tracked_events_202303_r25
						SELECT (jsonb_populate_record(NULL::core.tracked_events, to_jsonb(m) || '{"retention_months": 25}')).* FROM m`,
					`ALTER TABLE core.tracked_events_202303_r25 DISABLE TRIGGER append_only`,
					`WITH m AS (DELETE FROM core.tracked_events_202303_r25 RETURNING *) INSERT INTO core.tracked_events_202303_r13 SELECT * FROM m`,
				} {
					if _, err := s.pool.Exec(context.WithoutCancel(t.Context()), sql); err != nil {
						moved <- err
						return
					}
				}
				moves.Add(1)
			}
		}()
		for range 15 {
			done, err := s.archive(archive.Config{}).Run(t.Context(), ask(s.tenants[0]), true)
			if err != nil {
				close(stop)
				require.NoError(t, errors.Join(err, <-moved))
			}
			require.Equal(t, int64(20), done.Rows)
		}
		close(stop)
		require.NoError(t, <-moved)
		require.Positive(t, moves.Load())
	})
}

// queue adds an export as the API does.
func (s *shop) queue(tenant uuid.UUID, months int) uuid.UUID {
	id := uuid.New()
	s.exec(`INSERT INTO core.exports (export_id, tenant_id, origin, request_key, request_hash, from_time, to_time, format, compression)
		VALUES ($1, $2, 'api', $3, 'x', $4, $5, 'ndjson', 'zstd')`, id, tenant, id.String(), month, month.AddDate(0, months, 0))
	return id
}

func (s *shop) state(id uuid.UUID) (state string, progress float32, fault *string) {
	s.t.Helper()
	require.NoError(s.t, s.pool.QueryRow(s.t.Context(), `SELECT state, progress, error FROM core.exports WHERE export_id = $1`, id).Scan(&state, &progress, &fault))
	return state, progress, fault
}

func TestJob(t *testing.T) {
	t.Parallel()
	job := func(s *shop, store storage.Store, cfg archive.JobConfig) *archive.Job {
		a, err := archive.New(archive.Config{}, archive.Deps{Pool: s.pool, Storage: store, Log: testkit.Logger(s.t)})
		require.NoError(s.t, err)
		return archive.NewJob(cfg, a, prometheus.NewRegistry())
	}
	t.Run("GivesEachExportAPartInTurn", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		s.fill(s.tenants[0], month, 3)
		s.fill(s.tenants[1], month, 3)
		large, small := s.queue(s.tenants[0], 24), s.queue(s.tenants[1], 1)
		j := job(s, s.storage, archive.JobConfig{})
		for range 4 { // a part and a manifest of the small one, and as many of the large one
			worked, err := j.RunOnce(t.Context())
			require.NoError(t, err)
			require.True(t, worked)
		}
		state, _, _ := s.state(small)
		require.Equal(t, "done", state)
		state, progress, _ := s.state(large)
		require.Equal(t, "running", state)
		require.InDelta(t, 2.0/24, progress, 0.001)
	})
	t.Run("RunsUntilNothingIsLeftAndDeletesWhatExpires", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		s.fill(s.tenants[0], month, 3)
		id := s.queue(s.tenants[0], 2)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		j := job(s, s.storage, archive.JobConfig{Every: 20 * time.Millisecond, Clean: 20 * time.Millisecond})
		go func() { ended <- j.Run(ctx) }()
		require.Eventually(t, func() bool { state, _, _ := s.state(id); return state == "done" }, time.Minute, 20*time.Millisecond)
		require.Len(t, s.objects("exports/"), 2)
		s.exec(`UPDATE core.exports SET expires_at = now()`)
		require.Eventually(t, func() bool { state, _, _ := s.state(id); return state == "expired" }, time.Minute, 20*time.Millisecond)
		require.Empty(t, s.objects("exports/"))
		cancel()
		require.NoError(t, <-ended)
	})
	t.Run("PutsAFailureOffAndGivesUpInTheEnd", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		s.fill(s.tenants[0], month, 3)
		id, other := s.queue(s.tenants[0], 1), s.queue(s.tenants[1], 1)
		broken := job(s, full{s.storage}, archive.JobConfig{Failures: 2})
		for range 2 {
			_, err := broken.RunOnce(t.Context())
			require.NoError(t, err)
		}
		state, _, fault := s.state(id)
		require.Equal(t, "running", state)
		require.Equal(t, "store_unavailable", *fault)
		_, err := broken.RunOnce(t.Context())
		require.NoError(t, err)
		state, _, _ = s.state(other)
		require.NotEqual(t, "failed", state, "one that fails does not hold up another")
		s.exec(`UPDATE core.exports SET not_before = now(), updated_at = 'epoch' WHERE export_id = $1`, id)
		_, err = broken.RunOnce(t.Context())
		require.NoError(t, err)
		state, _, fault = s.state(id)
		require.Equal(t, "failed", state)
		require.Equal(t, "store_unavailable", *fault)
	})
	t.Run("GoesOnWhereTheStorageComesBack", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		s.fill(s.tenants[0], month, 3)
		id := s.queue(s.tenants[0], 1)
		_, err := job(s, full{s.storage}, archive.JobConfig{}).RunOnce(t.Context())
		require.NoError(t, err)
		s.exec(`UPDATE core.exports SET not_before = now()`)
		for range 2 {
			_, err = job(s, s.storage, archive.JobConfig{}).RunOnce(t.Context())
			require.NoError(t, err)
		}
		state, progress, fault := s.state(id)
		require.Equal(t, "done", state)
		require.InDelta(t, 1, progress, 0)
		require.Nil(t, fault)
	})
}

// full is a storage that takes nothing any more.
type full struct{ storage.Store }

func (full) Create(context.Context, string) (storage.Writer, error) {
	return nil, errors.New("no space left on device")
}

func TestProgressIsSaid(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.exec(`SELECT core.ensure_partition('core.tracked_events', $1)`, month)
	s.exec(`INSERT INTO core.tracked_events (tenant_id, event_id, cell_id, contact_id, kind, event_name, properties, occurred_at, occurred_offset,
		received_at, idempotency_key, correlation_id, retention_months, lane, lane_seq)
		SELECT $1, gen_random_uuid(), 'c1', gen_random_uuid(), 'track', 'x', '{}', $2::timestamptz + i * interval '1 minute', 0, now(), 'k', 'c', 13, 1, i
		FROM generate_series(1, 5000) i`, s.tenants[0], month)
	var said []archive.Progress
	a, err := archive.New(archive.Config{}, archive.Deps{Pool: s.pool, Storage: s.storage, Report: func(p archive.Progress) { said = append(said, p) }})
	require.NoError(t, err)
	_, err = a.Run(t.Context(), archive.Request{TenantID: s.tenants[0], From: month, To: month.AddDate(0, 1, 0), Format: archive.FormatParquet, Compression: archive.Zstd}, false)
	require.NoError(t, err)
	require.Len(t, said, 5)
	for i := 1; i < len(said); i++ {
		require.Greater(t, said[i].Fraction, said[i-1].Fraction)
	}
	require.Equal(t, int64(5000), said[4].Rows)
}

package migrations_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/testkit"
)

// TestReferences: what is looked at once a statement is kept as a foreign key
// keeps it.
func TestReferences(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t)
	tenant, contact, nobody := uuid.New(), uuid.New(), uuid.New()
	exec := func(sql string, args ...any) error {
		_, err := pool.Exec(t.Context(), sql, args...)
		return err
	}
	refused := func(t *testing.T, code string, err error) {
		t.Helper()
		var pe *pgconn.PgError
		require.ErrorAs(t, err, &pe)
		require.Equal(t, code, pe.Code)
	}
	const (
		foreignKey = "23503"
		restrict   = "23001"
		person     = `INSERT INTO core.contacts (tenant_id, contact_id, cell_id, known) VALUES ($1, $2, 'cell-1', true)`
		identifier = `INSERT INTO core.contact_identifiers (tenant_id, kind, value, contact_id) VALUES ($1, 'email', $3, $2)`
	)
	require.NoError(t, exec(`INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, 'acme', 'Acme', 'starter')`, tenant))
	require.NoError(t, exec(person, tenant, contact))
	require.NoError(t, exec(identifier, tenant, contact, "ana@example.com"))

	t.Run("NobodyRefersToWhatIsNotThere", func(t *testing.T) {
		refused(t, foreignKey, exec(person, nobody, uuid.New()))
		refused(t, foreignKey, exec(identifier, tenant, nobody, "eva@example.com"))
		refused(t, foreignKey, exec(identifier, nobody, contact, "eva@example.com"))
		refused(t, foreignKey, exec(`UPDATE core.contact_identifiers SET contact_id = $1 WHERE contact_id = $2`, nobody, contact))
		refused(t, foreignKey, exec(`INSERT INTO core.contact_identifiers (tenant_id, kind, value, contact_id)
			SELECT $1, 'email', n || '@example.com', CASE n WHEN 77 THEN $3 ELSE $2::uuid END FROM generate_series(1, 100) n`, tenant, contact, nobody))
	})

	t.Run("WhatOthersReferToStays", func(t *testing.T) {
		refused(t, foreignKey, exec(`DELETE FROM core.contacts WHERE contact_id = $1`, contact))
		refused(t, foreignKey, exec(`DELETE FROM core.tenants WHERE tenant_id = $1`, tenant))
		refused(t, restrict, exec(`UPDATE core.contacts SET contact_id = $1 WHERE contact_id = $2`, nobody, contact))
		refused(t, restrict, exec(`UPDATE core.tenants SET tenant_id = $1 WHERE tenant_id = $2`, nobody, tenant))
	})

	t.Run("WhoDeletesWaitsForWhoRefers", func(t *testing.T) {
		late := uuid.New()
		require.NoError(t, exec(person, tenant, late))
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		defer tx.Rollback(context.Background()) //nolint:errcheck // after a commit it is none
		_, err = tx.Exec(t.Context(), identifier, tenant, late, "late@example.com")
		require.NoError(t, err)
		deleted := make(chan error, 1)
		go func() { deleted <- exec(`DELETE FROM core.contacts WHERE contact_id = $1`, late) }()
		waits := func() (n int) {
			require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'core.contact_identifiers'::regclass`).Scan(&n))
			return n
		}
		for deadline := time.Now().Add(30 * time.Second); waits() == 0; time.Sleep(5 * time.Millisecond) {
			require.True(t, time.Now().Before(deadline), "the delete did not wait")
		}
		require.NoError(t, tx.Commit(t.Context()))
		refused(t, foreignKey, <-deleted)
	})

	t.Run("WhatNobodyRefersToGoes", func(t *testing.T) {
		alone := uuid.New()
		require.NoError(t, exec(person, tenant, alone))
		require.NoError(t, exec(`DELETE FROM core.contacts WHERE contact_id = $1`, alone))
	})
}

// TestStatusesAreKnown: a history has the statuses of messaging.send_statuses and no
// other, in whatever leaf, and none of them goes.
func TestStatusesAreKnown(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t)
	code := func(sql string, args ...any) string {
		_, err := pool.Exec(t.Context(), sql, args...)
		var pe *pgconn.PgError
		if errors.As(err, &pe) {
			return pe.Code
		}
		require.NoError(t, err)
		return ""
	}
	var months []time.Time // one that stood when the check came, one that is made, and one without
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT ARRAY[now(), date_trunc('month', now()) - interval '30 months', now() - interval '50 months']`).Scan(&months))
	require.Empty(t, code(`SELECT core.ensure_partition('messaging.send_status_history', $1, 31::smallint)`, months[0]))
	require.Empty(t, code(`SELECT core.ensure_partition('messaging.send_status_history', $1, 31::smallint)`, months[1]))
	rows, err := pool.Query(t.Context(), `SELECT status FROM messaging.send_statuses`)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Len(t, all, 10)
	const write = `INSERT INTO messaging.send_status_history (requested_at, retention_months, tenant_id, send_id, status, provider, provider_event_id, occurred_at)
		VALUES ($1, $2, gen_random_uuid(), gen_random_uuid(), $3, 'fake', gen_random_uuid(), now())`
	for _, month := range months {
		for _, class := range []int{13, 31} {
			for _, status := range all {
				require.Empty(t, code(write, month, class, status), status)
			}
			require.Equal(t, "23514", code(write, month, class, "lost"), "%v, %d months", month, class)
		}
	}
	require.Equal(t, "23001", code(`DELETE FROM messaging.send_statuses WHERE status = 'opened'`))
	require.Equal(t, "23001", code(`UPDATE messaging.send_statuses SET status = 'seen' WHERE status = 'opened'`))
	require.Equal(t, "23001", code(`TRUNCATE messaging.send_statuses`))
	require.Empty(t, code(`UPDATE messaging.send_statuses SET event = event`))
}

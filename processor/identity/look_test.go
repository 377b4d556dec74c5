package identity

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/pg"
)

// TestLookAhead: identifiers are looked up while the batch before is still in the
// database, and what that one does to their people is seen all the same.
func TestLookAhead(t *testing.T) {
	t.Parallel()
	// ahead looks inputs up, lets meanwhile happen, and resolves them in the same
	// transaction.
	ahead := func(b *bundle, in []Input, meanwhile func()) []uuid.UUID {
		b.Helper()
		p := Prepare(in)
		tx, err := pg.Begin(b.Context(), b.other())
		require.NoError(b, err)
		defer tx.Rollback(b.Context()) //nolint:errcheck // after a commit it is none
		require.NoError(b, b.memory.Look(b.Context(), tx, p))
		meanwhile()
		out, err := b.memory.ResolvePrepared(b.Context(), tx, p)
		require.NoError(b, err)
		require.NoError(b, tx.Commit(b.Context()))
		return out.Contacts
	}
	event := func(b *bundle, identifiers string) []Input {
		return []Input{{TenantID: b.tenant, CellID: "cell-1", EventID: ids.New(), Identifiers: identifiers, OccurredAt: time.Now()}}
	}

	t.Run("SparesTheLookUp", func(t *testing.T) {
		b := setup(t)
		in := b.crowd(150)
		first := b.resolveAll(b.pool, in)
		require.Equal(t, first, ahead(b, b.crowd(150), func() { b.exec(`UPDATE core.contact_identifiers SET kind = 'old-' || kind`) }),
			"whoever was found is not looked up again")
	})

	t.Run("SeesWhoWasMadeMeanwhile", func(t *testing.T) {
		for name, n := range map[string]int{"ByInsert": 3, "ByCopy": 150} {
			t.Run(name, func(t *testing.T) {
				b := setup(t)
				var made []uuid.UUID
				got := ahead(b, b.crowd(n), func() { made = b.resolveAll(b.pool, b.crowd(n)) })
				require.Equal(t, made, got)
				require.Equal(t, n, b.count(`SELECT count(*) FROM core.contacts`))
			})
		}
	})

	t.Run("SeesAnIdentifierThatWasAttachedMeanwhile", func(t *testing.T) {
		b := setup(t)
		owner := b.resolve(`{"external_id":"c-1"}`)
		got := ahead(b, event(b, `{"email":"ana@example.com"}`), func() {
			require.Equal(t, owner, b.resolve(`{"external_id":"c-1","email":"ana@example.com"}`))
		})
		require.Equal(t, owner, got[0])
		require.Equal(t, 1, b.count(`SELECT count(*) FROM core.contacts`))
	})

	t.Run("SeesAMergeMadeMeanwhile", func(t *testing.T) {
		b := setup(t)
		phone, owner := b.resolve(`{"anonymous_id":"phone"}`), b.resolve(`{"external_id":"c-1"}`)
		got := ahead(b, event(b, `{"anonymous_id":"phone"}`), func() {
			require.Equal(t, owner, b.resolve(`{"external_id":"c-1","anonymous_id":"phone"}`))
			b.memory.Merged()
		})
		require.NotEqual(t, phone, owner)
		require.Equal(t, owner, got[0])
	})
}

// other is a pool beside the bundle's own, which has one connection.
func (b *bundle) other() *pgxpool.Pool {
	b.Helper()
	pool, err := pg.Open(b.Context(), pg.Config{URL: b.pool.Config().ConnString(), MaxConns: 1})
	require.NoError(b, err)
	b.Cleanup(pool.Close)
	return pool
}

func (b *bundle) count(sql string) (n int) {
	b.Helper()
	require.NoError(b, b.pool.QueryRow(b.Context(), sql).Scan(&n))
	return n
}

package identity

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/pg"
	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

type bundle struct {
	*testing.T
	pool   *pgxpool.Pool
	tenant uuid.UUID
	asked  *asked
	memory *Resolver
}

// asked counts the look-ups by key, alone or with others.
type asked struct{ byKey int }

func (*asked) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (a *asked) TraceBatchQuery(_ context.Context, _ *pgx.Conn, q pgx.TraceBatchQueryData) {
	if q.SQL == ownersByKey {
		a.byKey++
	}
}

func (*asked) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (a *asked) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if q.SQL == ownersByKey {
		a.byKey++
	}
	return ctx
}

func (*asked) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func setup(t *testing.T) *bundle {
	t.Parallel()
	b := &bundle{T: t, tenant: ids.New(), asked: &asked{}, memory: NewResolver(NewPlaces(0))}
	var err error
	b.pool, err = pg.Open(t.Context(), pg.Config{URL: testkit.Postgres(t), MaxConns: 1, Tracer: b.asked})
	require.NoError(t, err)
	t.Cleanup(b.pool.Close)
	b.exec(`INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, 'acme', 'Acme', 'starter')`, b.tenant)
	return b
}

func (b *bundle) exec(sql string, args ...any) {
	b.Helper()
	_, err := b.pool.Exec(b.Context(), sql, args...)
	require.NoError(b, err)
}

// resolve gives the contact of an event with the identifiers.
func (b *bundle) resolve(identifiers string) (contact uuid.UUID) {
	b.Helper()
	err := pgx.BeginFunc(b.Context(), b.pool, func(tx pgx.Tx) error {
		out, err := b.memory.Resolve(b.Context(), tx, []Input{{TenantID: b.tenant, CellID: "cell-1", EventID: ids.New(), Identifiers: identifiers, OccurredAt: time.Now()}})
		if err == nil {
			contact = out.Contacts[0]
		}
		return err
	})
	require.NoError(b, err)
	return contact
}

// crowd are events of n people.
func (b *bundle) crowd(n int) []Input {
	in := make([]Input, n)
	for i := range in {
		in[i] = Input{TenantID: b.tenant, CellID: "cell-1", EventID: ids.New(), OccurredAt: time.Now(),
			Identifiers: fmt.Sprintf(`{"external_id":"u-%d","email":"u-%d@example.com"}`, i, i)}
	}
	return in
}

// resolveAll resolves events in one transaction that saves round trips.
func (b *bundle) resolveAll(pool *pgxpool.Pool, in []Input) []uuid.UUID {
	b.Helper()
	tx, err := pg.Begin(b.Context(), pool)
	require.NoError(b, err)
	out, err := b.memory.Resolve(b.Context(), tx, in)
	require.NoError(b, err)
	require.NoError(b, tx.Commit(b.Context()))
	return out.Contacts
}

func TestPlaces(t *testing.T) {
	t.Parallel()
	const ana, both = `{"email":"ana@example.com"}`, `{"email":"ana@example.com","external_id":"c-1"}`

	t.Run("SpareTheIndexOnceAnIdentifierIsKnown", func(t *testing.T) {
		b := setup(t)
		first := b.resolve(both)
		require.Equal(t, 1, b.asked.byKey)
		require.Equal(t, first, b.resolve(both))
		require.Equal(t, first, b.resolve(ana))
		require.Equal(t, 1, b.asked.byKey, "found where the first transaction wrote them")
	})

	t.Run("ShowWhatAnotherWriterMoved", func(t *testing.T) {
		b := setup(t)
		first := b.resolve(ana)
		other := ids.New()
		b.exec(`INSERT INTO core.contacts (tenant_id, contact_id, cell_id, known) VALUES ($1, $2, 'cell-1', true)`, b.tenant, other)
		b.exec(`UPDATE core.contact_identifiers SET contact_id = $1 WHERE contact_id = $2`, other, first)
		require.Equal(t, other, b.resolve(ana), "the row at the old place is not seen any more")
		require.Equal(t, 2, b.asked.byKey)
		require.Equal(t, other, b.resolve(ana))
		require.Equal(t, 2, b.asked.byKey, "and the new place is known")
	})

	t.Run("ForgetWhomAnErasureDeletedEvenWhenAnotherTakesThePlace", func(t *testing.T) {
		b := setup(t)
		first := b.resolve(ana)
		known := b.memory.places.known([]*ident{{key: key{b.tenant, KindEmail, "ana@example.com"}}})
		var at pgtype.TID
		for end := time.Now().Add(time.Minute); known[0].tid() != at && time.Now().Before(end); { // a session that just begins holds vacuum back
			b.exec(`DELETE FROM core.contact_identifiers`)
			b.exec(`VACUUM (TRUNCATE false) core.contact_identifiers`)
			b.exec(`INSERT INTO core.contact_identifiers (tenant_id, kind, value, contact_id) VALUES ($1, 'email', 'beto@example.com', $2)`, b.tenant, first)
			require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT ctid FROM core.contact_identifiers`).Scan(&at))
		}
		require.Equal(t, at, known[0].tid(), "beto stands where ana stood")
		require.NotEqual(t, first, b.resolve(ana))
	})

	t.Run("ForgetWhatWasRolledBack", func(t *testing.T) {
		b := setup(t)
		tx, err := b.pool.Begin(t.Context())
		require.NoError(t, err)
		out, err := b.memory.Resolve(t.Context(), tx, []Input{{TenantID: b.tenant, CellID: "cell-1", EventID: ids.New(), Identifiers: ana}})
		require.NoError(t, err)
		require.NoError(t, tx.Rollback(t.Context()))
		require.NotEqual(t, out.Contacts[0], b.resolve(ana))
	})

	t.Run("AreLearntOfManyWhoComeAtOnce", func(t *testing.T) {
		b := setup(t)
		crowd := b.crowd(150)
		made := b.resolveAll(b.pool, crowd)
		require.Equal(t, 1, b.asked.byKey)
		require.Equal(t, made, b.resolveAll(b.pool, crowd))
		require.Equal(t, 1, b.asked.byKey, "none was looked up by key")
	})

	t.Run("WaitWhereAnotherWriterTakesOneOfMany", func(t *testing.T) {
		b := setup(t)
		other, err := pg.Open(t.Context(), pg.Config{URL: b.pool.Config().ConnString(), MaxConns: 1})
		require.NoError(t, err)
		t.Cleanup(other.Close)
		crowd := b.crowd(150)
		first, err := b.pool.Begin(t.Context())
		require.NoError(t, err)
		defer first.Rollback(t.Context()) //nolint:errcheck // after a commit it is none
		out, err := b.memory.Resolve(t.Context(), first, crowd)
		require.NoError(t, err)
		refused := make(chan error, 1)
		go func() {
			refused <- pgx.BeginFunc(t.Context(), other, func(tx pgx.Tx) error {
				_, err := Resolve(t.Context(), tx, crowd)
				return err
			})
		}()
		require.Eventually(t, func() bool {
			var waits bool
			err := first.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND transactionid = pg_current_xact_id()::xid)`).Scan(&waits)
			return err == nil && waits
		}, time.Minute, 10*time.Millisecond, "the second writer waits for the first")
		require.NoError(t, first.Commit(t.Context()))
		require.ErrorIs(t, <-refused, stream.ErrWait)
		require.Equal(t, out.Contacts, b.resolveAll(other, crowd), "and finds them then")
		var people int
		require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT count(*) FROM core.contacts`).Scan(&people))
		require.Equal(t, 150, people)
	})

	t.Run("StayWithinTheirBound", func(t *testing.T) {
		t.Parallel()
		p := NewPlaces(10)
		keep := key{kind: "k", value: "keep"}
		there := pgtype.TID{BlockNumber: 1<<32 - 7, OffsetNumber: 1<<16 - 1, Valid: true}
		p.remember(keep, there)
		_, tag := p.pair(keep)
		for i := range 1_000 {
			other := key{kind: "k", value: fmt.Sprint(i)}
			if _, same := p.pair(other); same == tag { // one in 65,536
				continue
			}
			p.remember(other, pgtype.TID{OffsetNumber: 1, Valid: true})
			at := p.known([]*ident{{key: keep}})
			require.Len(t, at, 1)
			require.Equal(t, there, at[0].tid(), "what is asked for stays")
		}
		require.Len(t, p.slots, 16)
	})

	t.Run("AreHardlyLostWhereThereIsRoom", func(t *testing.T) {
		t.Parallel()
		const n = 10_000
		p := NewPlaces(4 * n)
		var ids []*ident
		for i := range n {
			ids = append(ids, &ident{key: key{kind: "k", value: fmt.Sprint(i)}})
			p.remember(ids[i].key, pgtype.TID{BlockNumber: uint32(i), OffsetNumber: 1, Valid: true})
		}
		known := p.known(ids)
		require.True(t, slices.IsSortedFunc(known, func(x, y placed) int { return cmp.Compare(x.spot, y.spot) }))
		right := 0
		for _, k := range known {
			if ids[k.tid().BlockNumber] == k.id {
				right++
			}
		}
		require.Greater(t, right, n*9/10)
	})
}

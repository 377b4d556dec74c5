package identity

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/pg"
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

// asked counts the look-ups by key.
type asked struct{ byKey int }

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
		b.exec(`DELETE FROM core.contact_identifiers`)
		b.exec(`VACUUM (TRUNCATE false) core.contact_identifiers`)
		b.exec(`INSERT INTO core.contact_identifiers (tenant_id, kind, value, contact_id) VALUES ($1, 'email', 'beto@example.com', $2)`, b.tenant, first)
		var at pgtype.TID
		require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT ctid FROM core.contact_identifiers`).Scan(&at))
		known, _ := b.memory.places.known([]*ident{{key: key{b.tenant, KindEmail, "ana@example.com"}}})
		require.Equal(t, []pgtype.TID{at}, known, "beto stands where ana stood")
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

	t.Run("StayWithinTheirBound", func(t *testing.T) {
		t.Parallel()
		p := NewPlaces(10)
		keep := key{kind: "k", value: "keep"}
		p.remember(keep, pgtype.TID{BlockNumber: 7, OffsetNumber: 1, Valid: true})
		for i := range 1_000 {
			p.remember(key{kind: "k", value: fmt.Sprint(i)}, pgtype.TID{Valid: true})
			at, _ := p.known([]*ident{{key: keep}})
			require.Equal(t, []pgtype.TID{{BlockNumber: 7, OffsetNumber: 1, Valid: true}}, at, "what is asked for stays")
			require.LessOrEqual(t, len(p.now)+len(p.old), 10)
		}
		gone, _ := p.known([]*ident{{key: key{kind: "k", value: "3"}}})
		require.Empty(t, gone)
	})
}

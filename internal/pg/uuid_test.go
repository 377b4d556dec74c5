package pg

import (
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestUUIDs(t *testing.T) {
	t.Parallel()
	pool, err := Open(t.Context(), Config{URL: testkit.Postgres(t)})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	a, b := uuid.New(), uuid.New()
	keep := uuid.New()

	t.Run("ComeBackAsTheyWent", func(t *testing.T) {
		var one, null = uuid.UUID{}, keep
		var pointer, none *uuid.UUID
		var list []uuid.UUID
		var gaps []*uuid.UUID
		var text string
		err := pool.QueryRow(t.Context(), `SELECT $1::uuid, $1::uuid::text, $2::uuid, $3::uuid, NULL::uuid, $4::uuid[], $5::uuid[]`,
			a, &b, (*uuid.UUID)(nil), []uuid.UUID{a, b}, []*uuid.UUID{&a, nil, &b}).Scan(&one, &text, &pointer, &none, &null, &list, &gaps)
		require.NoError(t, err)
		require.Equal(t, a, one)
		require.Equal(t, a.String(), text)
		require.Equal(t, &b, pointer)
		require.Nil(t, none)
		require.Equal(t, keep, null, "NULL changes nothing, as ever")
		require.Equal(t, []uuid.UUID{a, b}, list)
		require.Equal(t, []*uuid.UUID{&a, nil, &b}, gaps)
	})

	t.Run("OfOtherTypesGoTheirOldWay", func(t *testing.T) {
		var raw [16]byte
		var text string
		var id uuid.UUID
		err := pool.QueryRow(t.Context(), `SELECT $1::uuid, $2::uuid, $3::text::uuid`, [16]byte(a), b.String(), a.String()).Scan(&raw, &text, &id)
		require.NoError(t, err)
		require.Equal(t, [16]byte(a), raw)
		require.Equal(t, b.String(), text)
		require.Equal(t, a, id)
	})
}

func BenchmarkUUIDArray(b *testing.B) {
	ids := make([]uuid.UUID, 2000)
	for i := range ids {
		ids[i] = uuid.New()
	}
	registered := pgtype.NewMap()
	registerUUID(registered)
	for name, m := range map[string]*pgtype.Map{"Registered": registered, "Plain": pgtype.NewMap()} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := m.Encode(pgtype.UUIDArrayOID, pgtype.BinaryFormatCode, ids, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

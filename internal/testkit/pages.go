package testkit

import (
	"encoding/json"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// Pages is how many pages a statement touches: what its plan costs, whatever else
// the machine does.
func Pages(t testing.TB, tx pgx.Tx, sql string, args ...any) int {
	t.Helper()
	var out []byte
	require.NoError(t, tx.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) "+sql, args...).Scan(&out))
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	require.NoError(t, json.Unmarshal(out, &plans))
	return plans[0].Plan.Hit + plans[0].Plan.Read
}

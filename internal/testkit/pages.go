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

// Handled gives how many rows the nodes of a statement's plan gave or threw away:
// what it does for each of its arguments, and what it does for each pair of them.
func Handled(t testing.TB, tx pgx.Tx, sql string, args ...any) int {
	t.Helper()
	var out []byte
	require.NoError(t, tx.QueryRow(t.Context(), "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) "+sql, args...).Scan(&out))
	var plans []struct{ Plan planNode }
	require.NoError(t, json.Unmarshal(out, &plans))
	return plans[0].Plan.handled()
}

type planNode struct {
	Rows     float64    `json:"Actual Rows"`
	Filtered float64    `json:"Rows Removed by Filter"`
	Unjoined float64    `json:"Rows Removed by Join Filter"`
	Loops    float64    `json:"Actual Loops"`
	Plans    []planNode `json:"Plans"`
}

func (n planNode) handled() int {
	all := int((n.Rows + n.Filtered + n.Unjoined) * n.Loops)
	for _, p := range n.Plans {
		all += p.handled()
	}
	return all
}

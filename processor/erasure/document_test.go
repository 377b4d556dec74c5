package erasure_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/testkit"
)

var quoted = regexp.MustCompile("`([^`]+)`")

func names(cell string) (out []string) {
	for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
		out = append(out, m[1])
	}
	return out
}

// documented reads the table of docs/erasure.md: what of each table goes, and what
// stays.
func documented(t *testing.T, text string) (goes, stays map[string][]string) {
	t.Helper()
	goes, stays = map[string][]string{}, map[string][]string{}
	for _, line := range strings.Split(text, "\n") {
		cells := strings.Split(line, " | ")
		if !regexp.MustCompile("^\\| `(core|messaging)\\.").MatchString(line) {
			continue
		}
		require.Len(t, cells, 5, line)
		table := names(cells[0])[0]
		require.NotContains(t, goes, table, "twice")
		goes[table], stays[table] = names(cells[1]), names(cells[2])
	}
	return goes, stays
}

// TestDocumentNamesEveryColumn fails when a store is made that docs/erasure.md does
// not know: whoever makes one says what of it is a person's, and how it goes.
func TestDocumentNamesEveryColumn(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/erasure.md")
	require.NoError(t, err)
	goes, stays := documented(t, string(text))
	rows, err := testkit.Pool(t).Query(t.Context(), `SELECT c.table_schema || '.' || c.table_name AS tab, array_agg(c.column_name::text ORDER BY c.ordinal_position) AS cols
		FROM information_schema.columns c JOIN pg_class p ON p.oid = format('%I.%I', c.table_schema, c.table_name)::regclass
		WHERE c.table_schema IN ('core', 'messaging') AND NOT p.relispartition AND p.relkind IN ('r', 'p', 'm') GROUP BY 1 ORDER BY 1`)
	require.NoError(t, err)
	type table struct {
		Name    string
		Columns []string
	}
	have, err := pgx.CollectRows(rows, pgx.RowToStructByPos[table])
	require.NoError(t, err)
	require.NotEmpty(t, have)
	for _, h := range have {
		require.Contains(t, goes, h.Name, "docs/erasure.md does not say what becomes of %s", h.Name)
		require.ElementsMatch(t, h.Columns, append(goes[h.Name], stays[h.Name]...), "columns of %s in docs/erasure.md", h.Name)
		delete(goes, h.Name)
	}
	require.Empty(t, goes, "tables that are not there")
}

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	pg "github.com/pganalyze/pg_query_go/v6"
)

// table is one that is partitioned by time, or a view over one.
type table struct {
	schema, name string
	key          string // the partition key's column
}

type linter struct {
	tables   []table
	mention  *regexp.Regexp // any of the tables, by its qualified name
	findings []finding
	checked  int
}

// finding is a query that would read every partition; one with an excuse may.
type finding struct {
	at, what, excuse string
}

// newLinter reads the tables from the migrations.
func newLinter(dir, migrations string) (*linter, error) {
	files, err := filepath.Glob(filepath.Join(dir, migrations, "*.sql"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no migrations in %s", filepath.Join(dir, migrations))
	}
	l := &linter{}
	slices.Sort(files)
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		if err := l.learn(string(raw)); err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
	}
	if len(l.tables) == 0 {
		return nil, fmt.Errorf("the migrations in %s make no table that is partitioned by time", migrations)
	}
	var names []string
	for _, t := range l.tables {
		names = append(names, regexp.QuoteMeta(t.schema+"."+t.name))
	}
	l.mention = regexp.MustCompile(`(?i)\b(` + strings.Join(names, "|") + `)\b`)
	return l, nil
}

// learn takes the partitioned tables out of a migration, and the views over
// them that show the partition key.
func (l *linter) learn(sql string) error {
	up, _, _ := strings.Cut(sql, "-- +goose Down")
	tree, err := pg.Parse(up)
	if err != nil {
		return fmt.Errorf("parse: %w", err)
	}
	for _, s := range tree.GetStmts() {
		if c := s.GetStmt().GetCreateStmt(); c != nil {
			if key, ok := timeKey(c); ok {
				l.tables = append(l.tables, table{schemaOf(c.GetRelation()), c.GetRelation().GetRelname(), key})
			}
		}
		if v := s.GetStmt().GetViewStmt(); v != nil {
			l.learnView(v)
		}
	}
	return nil
}

// timeKey gives the column that a table is partitioned by; hash partitions hold
// no time and are found by their key.
func timeKey(c *pg.CreateStmt) (string, bool) {
	spec := c.GetPartspec()
	if spec == nil || spec.GetStrategy() == pg.PartitionStrategy_PARTITION_STRATEGY_HASH || len(spec.GetPartParams()) == 0 {
		return "", false
	}
	return spec.GetPartParams()[0].GetPartitionElem().GetName(), true
}

// learnView makes a view that shows a partition key a table like those below it.
func (l *linter) learnView(v *pg.ViewStmt) {
	sel := v.GetQuery().GetSelectStmt()
	for _, from := range ranges(sel.GetFromClause()) {
		t, ok := l.lookup(from.rel, nil)
		if !ok {
			continue
		}
		for _, target := range sel.GetTargetList() {
			r := target.GetResTarget()
			if col := r.GetVal().GetColumnRef(); col != nil && lastName(col) == t.key {
				name := t.key
				if r.GetName() != "" {
					name = r.GetName()
				}
				l.tables = append(l.tables, table{schemaOf(v.GetView()), v.GetView().GetRelname(), name})
			}
		}
	}
}

func schemaOf(r *pg.RangeVar) string {
	if r.GetSchemaname() == "" {
		return "public"
	}
	return r.GetSchemaname()
}

// lookup finds a table by the name that a query gives it; the names of CTEs
// hide tables.
func (l *linter) lookup(r *pg.RangeVar, ctes map[string]bool) (table, bool) {
	if r.GetSchemaname() == "" && ctes[r.GetRelname()] {
		return table{}, false
	}
	for _, t := range l.tables {
		if t.name == r.GetRelname() && (r.GetSchemaname() == "" || r.GetSchemaname() == t.schema) {
			return t, true
		}
	}
	return table{}, false
}

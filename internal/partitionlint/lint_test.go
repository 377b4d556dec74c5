package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	pg "github.com/pganalyze/pg_query_go/v6"
)

func corpus(t *testing.T, file string) (*linter, map[string]string) {
	t.Helper()
	l, err := newLinter("testdata", "migrations")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{} // by the line on which the statement begins
	name := ""
	for i, line := range strings.Split(string(raw), "\n") {
		switch {
		case strings.HasPrefix(line, "-- all partitions"):
		case strings.HasPrefix(line, "--"):
			name = strings.TrimPrefix(line, "-- ")
		case line != "":
			names[fmt.Sprintf("%s:%d", file, i+1)] = name
		}
	}
	if err := l.sqlFile(file, string(raw)); err != nil {
		t.Fatal(err)
	}
	return l, names
}

// FS-CORE-0006 AC8: a query without a time predicate fails.
func TestCorpusFails(t *testing.T) {
	l, names := corpus(t, "fail.sql")
	found := map[string]bool{}
	for _, f := range l.findings {
		found[f.at] = f.excuse == ""
	}
	for at, name := range names {
		if !found[at] {
			t.Errorf("%s passes: %s", at, name)
		}
	}
	if len(names) < 20 {
		t.Errorf("only %d queries", len(names))
	}
}

func TestCorpusPasses(t *testing.T) {
	l, names := corpus(t, "pass.sql")
	excused := 0
	for _, f := range l.findings {
		if f.excuse == "" {
			t.Errorf("%s fails: %s: %s", f.at, names[f.at], f.what)
		}
		excused++
	}
	if excused != 1 || len(names) < 15 {
		t.Errorf("%d excused of %d queries", excused, len(names))
	}
}

func TestGoCode(t *testing.T) {
	l, err := newLinter("testdata", "migrations")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.goFiles("testdata"); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range l.findings {
		_, line, _ := strings.Cut(f.at, ":")
		got = append(got, fmt.Sprintf("%s %t", line, f.excuse != ""))
	}
	slices.Sort(got)
	want := []string{"12 false", "15 true", "22 false", "29 false"} // Bad, Excused, Fragment, Local
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestTablesComeFromTheMigrations(t *testing.T) {
	l, err := newLinter("testdata", "migrations")
	if err != nil {
		t.Fatal(err)
	}
	want := []table{{"core", "tracked_events", "occurred_at"}, {"core", "purchases", "at"}}
	if !slices.Equal(l.tables, want) {
		t.Errorf("got %v, want %v", l.tables, want)
	}
	if _, err := newLinter("testdata", "code"); err == nil {
		t.Error("a folder without migrations passes")
	}
}

// The corpus is SQL that PostgreSQL reads.
func TestCorpusParses(t *testing.T) {
	for _, f := range []string{"pass.sql", "fail.sql"} {
		raw, err := os.ReadFile("testdata/" + f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pg.Parse(string(raw)); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
}

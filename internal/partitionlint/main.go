// Command partitionlint refuses queries that would read every partition: each
// query over a table that is partitioned by time must hold its partition key,
// bare, to a range or a value that the planner knows (FS-CORE-0006 §7, AC8).
// A join alone does not count: partitions are then pruned row by row, if at all.
//
// It reads the tables and their keys from the migrations, and checks the .sql
// files and the string constants of the Go code on PostgreSQL's own parser,
// through CTEs, joins, subqueries and views. A query that must read everything
// says so in a comment with its reason, and is listed:
//
//	-- all partitions: the id is all that an operator has
//
// It stands in a module of its own, so that its parser is no part of the product.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	dir := flag.String("dir", ".", "the module to check")
	migrations := flag.String("migrations", "migrations/sql", "where its tables are made, below dir")
	quiet := flag.Bool("quiet", false, "do not list the queries that may read all partitions")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "partitionlint refuses queries over partitioned tables without a bare predicate on the partition key.\nusage: partitionlint [flags]\nexit codes: 0 nothing found, 1 findings, 2 it could not look")
		flag.PrintDefaults()
	}
	flag.Parse()
	found, err := run(*dir, *migrations, *quiet)
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "partitionlint:", err)
		os.Exit(2)
	case found > 0:
		fmt.Fprintf(os.Stderr, "partitionlint: %d queries would read every partition\n", found)
		os.Exit(1)
	}
}

// run checks everything and prints what it finds; it gives the number of
// findings that nothing excuses.
func run(dir, migrations string, quiet bool) (found int, err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return 0, err
	}
	l, err := newLinter(dir, migrations)
	if err != nil {
		return 0, err
	}
	if err := l.sqlFiles(dir); err != nil {
		return 0, err
	}
	if err := l.goFiles(dir); err != nil {
		return 0, err
	}
	for _, f := range l.findings {
		switch {
		case f.excuse == "":
			found++
			fmt.Printf("%s: %s\n", f.at, f.what)
		case !quiet:
			fmt.Printf("%s: allowed: %s\n", f.at, f.excuse)
		}
	}
	if l.checked == 0 {
		return 0, fmt.Errorf("no query over a partitioned table below %s: looked in the wrong place", dir)
	}
	fmt.Fprintf(os.Stderr, "partitionlint: %d statements over %d partitioned tables\n", l.checked, len(l.tables))
	return found, nil
}

package main

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	pg "github.com/pganalyze/pg_query_go/v6"
	"golang.org/x/tools/go/packages"
)

// sqlFiles checks every .sql file below dir but the migrations' own statements
// that make and change tables; test data is not the product's.
func (l *linter) sqlFiles(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != dir || d.Name() == "testdata" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".sql" {
			return nil
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return l.sqlFile(relative(dir, path), string(raw))
	})
}

func relative(dir, path string) string {
	if rel, err := filepath.Rel(dir, path); err == nil {
		return rel
	}
	return path
}

// sqlFile checks a file statement by statement, each with the comments that
// stand before it.
func (l *linter) sqlFile(name, sql string) error {
	parts, err := pg.SplitWithParser(sql, false)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	at := 0
	for _, part := range parts { // each begins with the comments that stand before it
		i := strings.Index(sql[at:], part)
		if i < 0 {
			return fmt.Errorf("%s: a statement is not where it should be", name)
		}
		at += i
		l.check(fmt.Sprintf("%s:%d", name, 1+strings.Count(sql[:at+len(blank.FindString(part))], "\n")), part)
		at += len(part)
	}
	return nil
}

// blank is what stands before a statement's first word.
var blank = regexp.MustCompile(`^(\s|--[^\n]*\n)*`)

// query is text that may be a statement.
var query = regexp.MustCompile(`(?i)\b(select|update|delete|copy|merge)\b`)

// goFiles checks the string constants of the product's code: what a constant
// expression comes to, however it is put together.
func (l *linter) goFiles(dir string) error {
	pkgs, err := packages.Load(&packages.Config{Dir: dir, Mode: packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes |
		packages.NeedTypesInfo | packages.NeedImports | packages.NeedDeps}, "./...")
	if err != nil {
		return fmt.Errorf("load the code: %w", err)
	}
	for _, p := range pkgs {
		if len(p.Errors) > 0 {
			return fmt.Errorf("load the code: %w", p.Errors[0])
		}
		for _, f := range p.Syntax {
			l.goFile(dir, p.Fset, p.TypesInfo, f)
		}
	}
	return nil
}

func (l *linter) goFile(dir string, fset *token.FileSet, info *types.Info, f *ast.File) {
	ast.Inspect(f, func(n ast.Node) bool {
		e, ok := n.(ast.Expr)
		if !ok {
			return true
		}
		switch e.(type) {
		case *ast.Ident, *ast.SelectorExpr: // a constant is checked where it is written
			return true
		}
		v := info.Types[e].Value
		if v == nil || v.Kind() != constant.String {
			return true
		}
		if sql := constant.StringVal(v); l.mention.MatchString(sql) && query.MatchString(sql) {
			at := fset.Position(e.Pos())
			l.check(fmt.Sprintf("%s:%d", relative(dir, at.Filename), at.Line), sql)
		}
		return false
	})
}

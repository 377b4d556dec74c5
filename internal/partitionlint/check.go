package main

import (
	"fmt"
	"regexp"
	"strings"

	pg "github.com/pganalyze/pg_query_go/v6"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// excuse is the comment that allows a query to read all partitions.
var excuse = regexp.MustCompile(`(?m)(?:--|/\*)\s*all partitions:[ \t]*([^\n*]+)`)

// check looks at every statement of a text.
func (l *linter) check(at, sql string) {
	reason := ""
	if m := excuse.FindStringSubmatch(sql); m != nil {
		reason = strings.TrimSpace(m[1])
	}
	tree, err := pg.Parse(sql)
	if err != nil {
		l.found(at, "is no whole statement, so its plan cannot be known: "+err.Error(), reason)
		return
	}
	for _, s := range tree.GetStmts() {
		l.statement(at, s.GetStmt(), reason)
	}
}

func (l *linter) found(at, what, reason string) {
	l.findings = append(l.findings, finding{at, what, reason})
}

// statement looks at a statement and every query inside it.
func (l *linter) statement(at string, n *pg.Node, reason string) {
	ctes := map[string]bool{}
	walk(n, func(m proto.Message) {
		if c, ok := m.(*pg.CommonTableExpr); ok {
			ctes[c.GetCtename()] = true
		}
	})
	touched := false
	walk(n, func(m proto.Message) {
		for _, f := range l.scan(m, ctes) {
			touched = true
			if f != "" {
				l.found(at, f, reason)
			}
		}
	})
	if touched {
		l.checked++
	}
}

// walk visits a message and all below it.
func walk(m proto.Message, visit func(proto.Message)) {
	if m == nil || !m.ProtoReflect().IsValid() {
		return
	}
	visit(m)
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Kind() != protoreflect.MessageKind {
			return true
		}
		if f.IsList() {
			for i := range v.List().Len() {
				walk(v.List().Get(i).Message().Interface(), visit)
			}
			return true
		}
		walk(v.Message().Interface(), visit)
		return true
	})
}

// scan looks at one query level. It gives a line for each partitioned table
// that it reads: empty where the predicate is there.
func (l *linter) scan(m proto.Message, ctes map[string]bool) (out []string) {
	var from []source
	var where *pg.Node
	switch s := m.(type) {
	case *pg.SelectStmt:
		from, where = ranges(s.GetFromClause()), s.GetWhereClause()
	case *pg.UpdateStmt:
		from, where = append(ranges(s.GetFromClause()), source{rel: s.GetRelation()}), s.GetWhereClause()
	case *pg.DeleteStmt:
		from, where = append(ranges(s.GetUsingClause()), source{rel: s.GetRelation()}), s.GetWhereClause()
	case *pg.MergeStmt:
		if t, ok := l.lookup(s.GetRelation(), ctes); ok {
			return []string{fmt.Sprintf("MERGE reads every partition of %s.%s", t.schema, t.name)}
		}
	case *pg.CopyStmt:
		if t, ok := l.lookup(s.GetRelation(), ctes); ok && !s.GetIsFrom() {
			return []string{fmt.Sprintf("COPY reads every partition of %s.%s", t.schema, t.name)}
		}
	}
	for _, src := range from {
		t, ok := l.lookup(src.rel, ctes)
		if !ok {
			continue
		}
		k := key{alias: src.alias(), column: t.key, alone: len(from) == 1}
		bound := k.bound(where)
		for _, on := range src.on {
			bound = bound || k.bound(on)
		}
		if bound {
			out = append(out, "")
			continue
		}
		out = append(out, fmt.Sprintf("reads every partition of %s.%s: it holds %s.%s to no range and no value", t.schema, t.name, k.alias, t.key))
	}
	return out
}

// source is a table in a FROM, with the join conditions that bound it.
type source struct {
	rel *pg.RangeVar
	on  []*pg.Node
}

func (s source) alias() string {
	if a := s.rel.GetAlias().GetAliasname(); a != "" {
		return a
	}
	return s.rel.GetRelname()
}

// ranges lists the tables of a FROM. An outer join's condition bounds the side
// that it may leave empty, and an inner one's both.
func ranges(nodes []*pg.Node) (out []source) {
	for _, n := range nodes {
		out = append(out, rangesOf(n)...)
	}
	return out
}

func rangesOf(n *pg.Node) (out []source) {
	if r := n.GetRangeVar(); r != nil {
		return []source{{rel: r}}
	}
	j := n.GetJoinExpr()
	if j == nil {
		return nil
	}
	left, right := rangesOf(j.GetLarg()), rangesOf(j.GetRarg())
	kind := j.GetJointype()
	if kind == pg.JoinType_JOIN_INNER || kind == pg.JoinType_JOIN_RIGHT {
		bind(left, j.GetQuals())
	}
	if kind == pg.JoinType_JOIN_INNER || kind == pg.JoinType_JOIN_LEFT {
		bind(right, j.GetQuals())
	}
	return append(left, right...)
}

func bind(sources []source, on *pg.Node) {
	if on == nil {
		return
	}
	for i := range sources {
		sources[i].on = append(sources[i].on, on)
	}
}

// key is a partition key as a query level knows it.
type key struct {
	alias, column string
	alone         bool // the only table: its columns need no qualifier
}

// bound says that a condition holds the key to a range or a value.
func (k key) bound(n *pg.Node) bool {
	if n == nil {
		return false
	}
	if b := n.GetBoolExpr(); b != nil {
		return k.boundAll(b)
	}
	e := n.GetAExpr()
	if e == nil {
		return false
	}
	op := operator(e)
	switch e.GetKind() {
	case pg.A_Expr_Kind_AEXPR_OP:
		switch op {
		case "=", "<", "<=", ">", ">=":
			return k.is(e.GetLexpr()) && known(e.GetRexpr()) || k.is(e.GetRexpr()) && known(e.GetLexpr())
		}
	case pg.A_Expr_Kind_AEXPR_OP_ANY, pg.A_Expr_Kind_AEXPR_IN:
		return op == "=" && k.is(e.GetLexpr()) && known(e.GetRexpr())
	case pg.A_Expr_Kind_AEXPR_BETWEEN:
		return k.is(e.GetLexpr()) && known(e.GetRexpr())
	}
	return false
}

func (k key) boundAll(b *pg.BoolExpr) bool {
	switch b.GetBoolop() {
	case pg.BoolExprType_AND_EXPR:
		for _, a := range b.GetArgs() {
			if k.bound(a) {
				return true
			}
		}
	case pg.BoolExprType_OR_EXPR:
		for _, a := range b.GetArgs() {
			if !k.bound(a) {
				return false
			}
		}
		return true
	}
	return false
}

func operator(e *pg.A_Expr) string {
	if len(e.GetName()) == 0 {
		return ""
	}
	return e.GetName()[len(e.GetName())-1].GetString_().GetSval()
}

// is says that an expression is the key itself, or a row that begins with it:
// under a function or a cast no partition is ruled out.
func (k key) is(n *pg.Node) bool {
	if row := n.GetRowExpr(); row != nil && len(row.GetArgs()) > 0 {
		return k.is(row.GetArgs()[0])
	}
	c := n.GetColumnRef()
	if c == nil || lastName(c) != k.column {
		return false
	}
	fields := c.GetFields()
	if len(fields) == 1 {
		return k.alone
	}
	return fields[len(fields)-2].GetString_().GetSval() == k.alias
}

func lastName(c *pg.ColumnRef) string {
	if len(c.GetFields()) == 0 {
		return ""
	}
	return c.GetFields()[len(c.GetFields())-1].GetString_().GetSval()
}

// known says that the planner knows an expression before it reads a row: it
// names no column, but in a subquery of its own.
func known(n *pg.Node) bool {
	if n == nil {
		return false
	}
	if row := n.GetRowExpr(); row != nil && len(row.GetArgs()) > 0 {
		return known(row.GetArgs()[0])
	}
	ok := true
	var look func(m proto.Message, own map[string]bool)
	look = func(m proto.Message, own map[string]bool) {
		switch e := m.(type) {
		case *pg.A_Expr:
			if operator(e) == "@" && e.GetLexpr() == nil { // sqlc's @name
				return
			}
		case *pg.FuncCall:
			if len(e.GetFuncname()) == 2 && e.GetFuncname()[0].GetString_().GetSval() == "sqlc" {
				return
			}
		case *pg.SelectStmt:
			own = with(own, ranges(e.GetFromClause()), e.GetFromClause())
		case *pg.ColumnRef:
			if own == nil || len(e.GetFields()) > 1 && !own[e.GetFields()[0].GetString_().GetSval()] {
				ok = false
			}
			return
		}
		children(m, func(c proto.Message) { look(c, own) })
	}
	look(n, nil)
	return ok
}

// with adds the names that a subquery's FROM gives.
func with(own map[string]bool, tables []source, from []*pg.Node) map[string]bool {
	out := map[string]bool{}
	for name := range own {
		out[name] = true
	}
	for _, s := range tables {
		out[s.alias()] = true
	}
	for _, n := range from {
		for _, a := range []*pg.Alias{n.GetRangeFunction().GetAlias(), n.GetRangeSubselect().GetAlias()} {
			if a != nil {
				out[a.GetAliasname()] = true
			}
		}
	}
	return out
}

func children(m proto.Message, visit func(proto.Message)) {
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Kind() != protoreflect.MessageKind {
			return true
		}
		if f.IsList() {
			for i := range v.List().Len() {
				visit(v.List().Get(i).Message().Interface())
			}
			return true
		}
		visit(v.Message().Interface())
		return true
	})
}

package benchmarks

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/internal/bench"
	"github.com/softcrum/carril/internal/pg"
)

// statements keeps the time of every statement of a pool, by what it does to
// which table: where a stage's time goes.
type statements struct {
	mu   sync.Mutex
	seen map[string]*timing
}

type timing struct {
	each  bench.Histogram
	total time.Duration
}

// tracedPool opens a pool whose statements are timed.
func tracedPool(ctx context.Context, url string, conns int32) (*pgxpool.Pool, *statements, error) {
	s := &statements{seen: map[string]*timing{}}
	pool, err := pg.Open(ctx, pg.Config{URL: url, MaxConns: conns, Tracer: s, ByKey: true})
	if err != nil {
		return nil, nil, err
	}
	return pool, s, nil
}

type statementKey struct{}

type statement struct {
	name string
	from time.Time
}

// TraceQueryStart implements pgx.QueryTracer.
func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, statementKey{}, statement{nameOf(q.SQL), time.Now()})
}

// TraceQueryEnd implements pgx.QueryTracer.
func (s *statements) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	st, ok := ctx.Value(statementKey{}).(statement)
	if !ok {
		return
	}
	s.note(st)
}

// TraceBatchStart implements pgx.BatchTracer: statements that travel together
// are one step.
func (s *statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	names := make([]string, len(b.Batch.QueuedQueries))
	for i, q := range b.Batch.QueuedQueries {
		names[i] = nameOf(q.SQL)
	}
	return context.WithValue(ctx, statementKey{}, statement{strings.Join(names, " + "), time.Now()})
}

// TraceBatchQuery implements pgx.BatchTracer.
func (*statements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer.
func (s *statements) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchEndData) {
	if st, ok := ctx.Value(statementKey{}).(statement); ok {
		s.note(st)
	}
}

func (s *statements) note(st statement) {
	took := time.Since(st.from)
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.seen[st.name]
	if t == nil {
		t = &timing{}
		s.seen[st.name] = t
	}
	t.each.Record(took)
	t.total += took
}

var tableOf = regexp.MustCompile(`(?i)\b(insert into|update|copy|from|join)\s+((?:core|messaging)\.\w+)`)

// nameOf shortens a statement to what it does: "insert core.event_keys".
func nameOf(sql string) string {
	verb, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(sql)), " ")
	m := tableOf.FindStringSubmatch(sql)
	if m == nil {
		return verb
	}
	switch how := strings.ToLower(m[1]); how {
	case "insert into":
		return "insert " + m[2]
	case "update", "copy":
		return how + " " + m[2]
	}
	return "select " + m[2]
}

// steps gives the statements that took most of a whole, longest first, down to
// one per cent of it.
func (s *statements) steps(whole time.Duration) []bench.Step {
	s.mu.Lock()
	defer s.mu.Unlock()
	byName := map[string]*timing{}
	for name, t := range s.seen {
		sum := byName[name]
		if sum == nil {
			sum = &timing{}
			byName[name] = sum
		}
		sum.each.Merge(&t.each)
		sum.total += t.total
	}
	var steps []bench.Step
	for name, t := range byName {
		step := bench.StepOf(name, &t.each)
		if step.Share = bench.Share(t.total, whole); step.Share >= 0.01 {
			steps = append(steps, step)
		}
	}
	slices.SortFunc(steps, func(a, b bench.Step) int { return cmp.Or(-cmp.Compare(a.Share, b.Share), cmp.Compare(a.Name, b.Name)) })
	return steps
}

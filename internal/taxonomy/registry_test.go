package taxonomy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/pg"
	"github.com/softcrum/carril/internal/testkit"
)

func addTenant(t *testing.T, pool *pgxpool.Pool, slug string) uuid.UUID {
	t.Helper()
	id := ids.New()
	_, err := pool.Exec(t.Context(), `INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, $2, $2, 'starter')`, id, slug)
	require.NoError(t, err)
	return id
}

func newRegistry(t *testing.T, cfg Config, deps Deps) *Registry {
	t.Helper()
	deps.Metrics, deps.Log = prometheus.NewRegistry(), testkit.Logger(t)
	r, err := NewRegistry(cfg, deps)
	require.NoError(t, err)
	require.NoError(t, r.Start(t.Context()))
	t.Cleanup(r.Stop)
	return r
}

const needsA, needsB = `{"required":["a"]}`, `{"required":["b"]}`

func TestStore(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t)
	s := NewStore(pool)
	acme, other := addTenant(t, pool, "acme"), addTenant(t, pool, "other")
	put := func(tenant uuid.UUID, event string, mode Mode, text string) Installed {
		t.Helper()
		i, err := s.Put(t.Context(), tenant, event, mode, text)
		require.NoError(t, err)
		return i
	}
	t.Run("InstallsVersionAfterVersion", func(t *testing.T) {
		require.Equal(t, 1, put(acme, "a.b", Observe, needsA).Version)
		require.Equal(t, 1, put(acme, "a.b", Observe, needsA).Version, "what is in force already")
		require.Equal(t, 2, put(acme, "a.b", Enforce, needsA).Version, "another mode is another version")
		require.Equal(t, 3, put(acme, "a.b", Enforce, needsB).Version)
		got, err := s.Get(t.Context(), acme, "a.b")
		require.NoError(t, err)
		require.Equal(t, needsB, string(got.Schema))
		_, err = s.Get(t.Context(), other, "a.b")
		require.ErrorIs(t, err, ErrNone)
	})
	t.Run("GoesOnCountingAfterADelete", func(t *testing.T) {
		require.ErrorIs(t, s.Delete(t.Context(), other, "a.b"), ErrNone)
		require.NoError(t, s.Delete(t.Context(), acme, "a.b"))
		require.ErrorIs(t, s.Delete(t.Context(), acme, "a.b"), ErrNone)
		require.Equal(t, 4, put(acme, "a.b", Enforce, needsB).Version)
		list, err := s.List(t.Context(), acme)
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.Empty(t, list[0].Schema)
	})
	t.Run("KeepsOneVersionInForceWhoeverInstallsAtOnce", func(t *testing.T) {
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() { put(acme, "race", Enforce, fmt.Sprintf(`{"minProperties":%d}`, i)) })
		}
		wg.Wait()
		got, err := s.Get(t.Context(), acme, "race")
		require.NoError(t, err)
		require.Equal(t, 8, got.Version)
	})
	t.Run("KeepsTheLastVersionsAlone", func(t *testing.T) {
		for i := range keptVersions + 5 {
			put(acme, "many", Observe, fmt.Sprintf(`{"minProperties":%d}`, i))
		}
		var n int
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM core.taxonomy_schemas WHERE tenant_id = $1 AND event_name = 'many'`, acme).Scan(&n))
		require.Equal(t, keptVersions, n)
	})
	t.Run("HasNoRoomForEver", func(t *testing.T) {
		_, err := pool.Exec(t.Context(), `INSERT INTO core.taxonomy_schemas (tenant_id, event_name, version, mode, schema)
			SELECT $1, 'e' || i, 1, 'observe', '{}' FROM generate_series(1, $2::int) i`, other, MaxSchemas)
		require.NoError(t, err)
		_, err = s.Put(t.Context(), other, "one.more", Observe, needsA)
		require.ErrorIs(t, err, ErrTooMany)
		require.Equal(t, 2, put(other, "e1", Observe, needsA).Version, "another version needs none")
	})
}

func TestRegistryHearsOfChanges(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t)
	s := NewStore(pool)
	acme, other := addTenant(t, pool, "acme"), addTenant(t, pool, "other")
	_, err := s.Put(t.Context(), other, "a.b", Observe, needsA)
	require.NoError(t, err)
	r := newRegistry(t, Config{Refresh: time.Hour}, Deps{Source: s, Notifier: pg.Listener{URL: pool.Config().ConnString(), Channel: Channel}})
	require.NotNil(t, r.Find(other, "a.b"), "what stood before the start")
	require.Nil(t, r.Find(acme, "a.b"))
	until := func(ok func() bool) {
		t.Helper()
		require.Eventually(t, ok, 20*time.Second, 5*time.Millisecond)
	}
	for version, mode := range []Mode{Observe, Enforce} {
		_, err = s.Put(t.Context(), acme, "a.b", mode, needsA)
		require.NoError(t, err)
		until(func() bool { f := r.Find(acme, "a.b"); return f != nil && f.Mode == mode && f.Version == version+1 })
	}
	kept := r.Find(other, "a.b")
	require.NoError(t, s.Delete(t.Context(), acme, "a.b"))
	until(func() bool { return r.Find(acme, "a.b") == nil })
	require.Same(t, kept, r.Find(other, "a.b"), "compiled once: another tenant's change makes nothing anew")
	require.InDelta(t, 1, testutil.ToFloat64(r.count), 0)
}

// scripted is a source that can be away.
type scripted struct {
	mu    sync.Mutex
	heads []Head
	away  bool
	texts int // how many were read
}

func (s *scripted) set(away bool, heads ...Head) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heads, s.away = heads, away
}

func (s *scripted) Heads(_ context.Context, tenant uuid.UUID) ([]Head, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return nil, errors.New("away")
	}
	return slices.DeleteFunc(slices.Clone(s.heads), func(h Head) bool { return tenant != uuid.Nil && h.Tenant != tenant }), nil
}

func (s *scripted) Texts(_ context.Context, heads []Head) (map[Key]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[Key]string{}
	for _, h := range heads {
		s.texts++
		out[h.Key] = needsA
	}
	return out, nil
}

// hanging is a source that never answers.
type hanging struct {
	scripted
	asked chan struct{}
}

func (h *hanging) Heads(ctx context.Context, _ uuid.UUID) ([]Head, error) {
	close(h.asked)
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestRegistryWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	acme, other := ids.New(), ids.New()
	head := func(tenant uuid.UUID, version int) Head {
		return Head{Key{tenant, "a.b", version}, Enforce, time.Time{}}
	}
	t.Run("StartsWithoutSchemasAndReadsThemLater", func(t *testing.T) {
		t.Parallel()
		src := &scripted{away: true}
		r := newRegistry(t, Config{Refresh: 5 * time.Millisecond}, Deps{Source: src})
		require.Nil(t, r.Find(acme, "a.b"))
		src.set(false, head(acme, 1))
		require.Eventually(t, func() bool { return r.Find(acme, "a.b") != nil }, 20*time.Second, time.Millisecond)
	})
	t.Run("KeepsWhatItKnew", func(t *testing.T) {
		t.Parallel()
		src := &scripted{heads: []Head{head(acme, 1), head(other, 1)}}
		r := newRegistry(t, Config{Refresh: time.Hour}, Deps{Source: src})
		known := r.Find(acme, "a.b")
		src.set(true)
		require.Error(t, r.Refresh(t.Context(), uuid.Nil))
		require.Error(t, r.Refresh(t.Context(), acme))
		require.Same(t, known, r.Find(acme, "a.b"))
		require.Len(t, known.Judge(`{}`), 1)
		require.InDelta(t, 2, testutil.ToFloat64(r.failures), 0)
	})
	t.Run("FindsWithoutWaitingForARead", func(t *testing.T) {
		t.Parallel()
		src := &hanging{scripted: scripted{heads: []Head{head(acme, 1)}}, asked: make(chan struct{})}
		r := newRegistry(t, Config{Refresh: time.Hour, Query: time.Hour}, Deps{Source: &src.scripted})
		r.deps.Source = src
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Refresh(ctx, acme) }()
		<-src.asked // the read is under way, and will not end
		require.NotNil(t, r.Find(acme, "a.b"))
		require.Nil(t, r.Find(other, "a.b"))
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		require.NotNil(t, r.Find(acme, "a.b"))
	})
	t.Run("ReadsOnlyWhatIsNew", func(t *testing.T) {
		t.Parallel()
		src := &scripted{heads: []Head{head(acme, 1), head(other, 1)}}
		r := newRegistry(t, Config{Refresh: time.Hour}, Deps{Source: src})
		src.set(false, head(acme, 2), head(other, 1))
		require.NoError(t, r.Refresh(t.Context(), uuid.Nil))
		require.Equal(t, 3, src.texts)
		require.Equal(t, 2, r.Find(acme, "a.b").Version)
		src.set(false, head(other, 1))
		require.NoError(t, r.Refresh(t.Context(), acme))
		require.Nil(t, r.Find(acme, "a.b"))
		require.NotNil(t, r.Find(other, "a.b"))
	})
}

// BenchmarkFind is what a tenant pays: one without schemas among a thousand that
// have some.
func BenchmarkFind(b *testing.B) {
	var heads []Head
	for range 1000 {
		heads = append(heads, Head{Key{ids.New(), "a.b", 1}, Enforce, time.Time{}})
	}
	r, err := NewRegistry(Config{}, Deps{Source: &scripted{heads: heads}, Metrics: prometheus.NewRegistry()})
	require.NoError(b, err)
	require.NoError(b, r.Refresh(b.Context(), uuid.Nil))
	with, without := heads[500].Tenant, ids.New()
	b.Run("without", func(b *testing.B) {
		for b.Loop() {
			if r.Find(without, "a.b") != nil {
				b.Fatal("found")
			}
		}
	})
	payload := `{"a":"889","total":182500.50,"lines":[{"sku":"x","n":1},{"sku":"y","n":2}]}`
	b.Run("judge", func(b *testing.B) {
		for b.Loop() {
			if r.Find(with, "a.b").Judge(payload) != nil {
				b.Fatal("violated")
			}
		}
	})
}

package apikey

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/softcrum/carril/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Main(m, func() error { return goleak.Find() })
}

// memory is a Store that does as the test says.
type memory struct {
	mu      sync.Mutex
	records map[string]Record
	err     error
	touched map[string]time.Time

	lookups atomic.Int64
	during  func(ctx context.Context) // runs inside Lookup, after the record was read
}

func (m *memory) Lookup(ctx context.Context, id string) (Record, error) {
	m.lookups.Add(1)
	m.mu.Lock()
	r, found := m.records[id]
	err, during := m.err, m.during
	m.mu.Unlock()
	if during != nil {
		during(ctx)
		if ctx.Err() != nil {
			return Record{}, ctx.Err()
		}
	}
	if err != nil {
		return Record{}, err
	}
	if !found {
		return Record{}, ErrNoKey
	}
	return r, nil
}

func (m *memory) Touch(_ context.Context, used map[string]time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.touched = used
	return m.err
}

// set changes the store under its lock.
func (m *memory) set(f func(*memory)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(m)
}

// bundle is a verifier over a memory with one good key, and a clock to turn.
type bundle struct {
	*Verifier
	store *memory
	text  string
	id    string
	now   atomic.Int64
}

func (b *bundle) pass(d time.Duration) { b.now.Add(int64(d)) }

func (b *bundle) time() time.Time { return time.Unix(0, b.now.Load()) }

var tenantID = uuid.MustParse("0190aaaa-0000-7000-8000-000000000001")

func newBundle(t *testing.T, cfg Config) *bundle {
	t.Helper()
	text, k, err := Generate("live")
	require.NoError(t, err)
	b := &bundle{text: text, id: k.ID, store: &memory{records: map[string]Record{k.ID: {
		Principal: Principal{KeyID: k.ID, Env: "live", TenantID: tenantID, Scopes: []string{ScopeEventsWrite}, Tenant: Tenant{CellID: "c1", RetentionMonths: 13}},
		Hash:      k.Hash,
	}}}}
	b.now.Store(time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC).UnixNano())
	b.Verifier, err = NewVerifier(cfg, Deps{Store: b.store, Log: testkit.Logger(t), Metrics: prometheus.NewRegistry(), Now: b.time})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Stop(context.Background())) })
	return b
}

// edit changes the stored key, as another process would.
func (b *bundle) edit(f func(*Record)) {
	b.store.set(func(m *memory) {
		r := m.records[b.id]
		f(&r)
		m.records[b.id] = r
	})
}

func (b *bundle) requireErr(t *testing.T, want error) {
	t.Helper()
	p, err := b.Verify(t.Context(), b.text)
	require.ErrorIs(t, err, want)
	require.Nil(t, p)
}

func (b *bundle) requireOK(t *testing.T) *Principal {
	t.Helper()
	p, err := b.Verify(t.Context(), b.text)
	require.NoError(t, err)
	return p
}

var errDown = errors.New("connection refused")

func TestVerify(t *testing.T) {
	t.Parallel()
	t.Run("FindsThePrincipal", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, Config{})
		p := b.requireOK(t)
		require.Equal(t, tenantID, p.TenantID)
		require.Equal(t, 13, p.Tenant.RetentionMonths)
		require.True(t, p.Can(ScopeEventsWrite))
		require.False(t, p.Can("core.events.read"))
	})
	t.Run("RefusesWhatIsNotTheKey", func(t *testing.T) { // bad inputs row 45
		t.Parallel()
		b := newBundle(t, Config{})
		unknown, _, err := Generate("live")
		require.NoError(t, err)
		// The right id with another secret and a checksum to match.
		body := b.text[:len(b.text)-crcLen-1] + string(digits[(b.text[len(b.text)-crcLen-1]+1)%10])
		sum := checksum(body)
		for name, text := range map[string]string{"unknown": unknown, "secret": body + string(sum[:]), "garbage": "x", "empty": ""} {
			p, err := b.Verify(t.Context(), text)
			require.Equal(t, ErrInvalid, err, name)
			require.Nil(t, p, name)
		}
		b.requireOK(t)
	})
	t.Run("RefusesTheRevokedTheExpiredAndTheDisabled", func(t *testing.T) {
		t.Parallel()
		for _, tc := range []struct {
			edit func(*Record, time.Time)
			want error
		}{
			{func(r *Record, now time.Time) { r.RevokedAt = now }, ErrInvalid},
			{func(r *Record, now time.Time) { r.ExpiresAt = now }, ErrInvalid},
			{func(r *Record, _ time.Time) { r.Tenant.Disabled = true }, ErrTenantDisabled},
		} {
			b := newBundle(t, Config{})
			b.edit(func(r *Record) { tc.edit(r, b.time()) })
			b.requireErr(t, tc.want)
		}
	})
	t.Run("LetsACachedKeyExpire", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, Config{})
		b.edit(func(r *Record) { r.ExpiresAt = b.time().Add(time.Second) })
		b.requireOK(t)
		b.pass(time.Second)
		b.requireErr(t, ErrInvalid)
	})
	t.Run("AsksNothingForABadChecksum", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, Config{})
		_, err := b.Verify(t.Context(), b.text[:len(b.text)-1]+"_")
		require.ErrorIs(t, err, ErrInvalid)
		require.Zero(t, b.store.lookups.Load())
	})
}

func TestCache(t *testing.T) {
	t.Parallel()
	t.Run("AsksOnceWhileFresh", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, Config{})
		for range 20 {
			b.requireOK(t)
			b.pass(time.Second)
		}
		require.EqualValues(t, 1, b.store.lookups.Load())
	})
	t.Run("RenewsInTheBackgroundBeforeItIsOld", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, Config{})
		b.requireOK(t)
		b.pass(21 * time.Second)
		gate := make(chan struct{})
		b.store.set(func(m *memory) { m.during = func(context.Context) { <-gate } })
		for range 50 {
			b.requireOK(t) // nobody waits for the look-up
		}
		close(gate)
		b.wg.Wait()
		require.EqualValues(t, 2, b.store.lookups.Load(), "and there is one of it")
		b.pass(15 * time.Second)
		b.requireOK(t)
		require.EqualValues(t, 2, b.store.lookups.Load(), "36 s after the first, 15 s after the second")
	})
	t.Run("SeesAChangeWithoutAnyNotice", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, Config{})
		b.requireOK(t)
		b.edit(func(r *Record) { r.RevokedAt = b.time() })
		b.pass(30 * time.Second)
		b.requireErr(t, ErrInvalid)
	})
	t.Run("LastsSixtySecondsMoreWithoutTheStore", func(t *testing.T) { // faults P8
		t.Parallel()
		b := newBundle(t, Config{})
		b.requireOK(t)
		b.store.set(func(m *memory) { m.err = errDown })
		for range 89 {
			b.pass(time.Second)
			b.requireOK(t)
		}
		b.pass(time.Second)
		b.requireErr(t, ErrUnavailable)
		b.store.set(func(m *memory) { m.err = nil })
		b.requireOK(t)
	})
	t.Run("DoesNotFallBackOnAKeyThatIsGone", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, Config{})
		b.requireOK(t)
		b.store.set(func(m *memory) { delete(m.records, b.id) })
		b.pass(30 * time.Second)
		b.requireErr(t, ErrInvalid)
		b.store.set(func(m *memory) { m.err = errDown })
		b.pass(5 * time.Second)
		b.requireErr(t, ErrUnavailable)
	})
	t.Run("AsksAnAbsentStoreOnceASecond", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, Config{})
		b.requireOK(t)
		b.store.set(func(m *memory) { m.err = errDown })
		b.pass(31 * time.Second)
		for range 100 {
			b.requireOK(t)
		}
		require.EqualValues(t, 2, b.store.lookups.Load())
		b.pass(time.Second)
		b.requireOK(t)
		require.EqualValues(t, 3, b.store.lookups.Load())
	})
	t.Run("NeverOpensWithoutTheStore", func(t *testing.T) { // faults P8
		t.Parallel()
		b := newBundle(t, Config{})
		b.store.set(func(m *memory) { m.err = errDown })
		b.requireErr(t, ErrUnavailable)
		require.InDelta(t, 1, testutil.ToFloat64(b.answers.WithLabelValues("unavailable")), 0)
	})
	t.Run("RemembersUnknownKeysBriefly", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, Config{})
		unknown, k, err := Generate("live")
		require.NoError(t, err)
		for range 5 {
			_, err = b.Verify(t.Context(), unknown)
			require.ErrorIs(t, err, ErrInvalid)
		}
		require.EqualValues(t, 1, b.store.lookups.Load())
		b.store.set(func(m *memory) { m.records[k.ID] = Record{Hash: k.Hash} })
		b.pass(5 * time.Second)
		_, err = b.Verify(t.Context(), unknown)
		require.NoError(t, err)
	})
	t.Run("DoesNotLoseKnownKeysToInventedOnes", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, Config{MaxNegative: 10})
		b.requireOK(t)
		for range 100 {
			text, _, err := Generate("live")
			require.NoError(t, err)
			_, err = b.Verify(t.Context(), text)
			require.ErrorIs(t, err, ErrInvalid)
		}
		before := b.store.lookups.Load()
		b.requireOK(t)
		require.Equal(t, before, b.store.lookups.Load())
		require.Len(t, b.cache.unknown.entries, 10)
	})
	t.Run("IsBounded", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, Config{MaxKeys: 3})
		for range 10 {
			text, k, err := Generate("live")
			require.NoError(t, err)
			b.store.set(func(m *memory) { m.records[k.ID] = Record{Hash: k.Hash} })
			_, err = b.Verify(t.Context(), text)
			require.NoError(t, err)
		}
		require.Len(t, b.cache.known.entries, 3)
	})
}

func TestLookups(t *testing.T) {
	t.Parallel()
	t.Run("AreSharedByAllWhoWantTheSameKey", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, Config{})
		gate := make(chan struct{})
		b.store.set(func(m *memory) { m.during = func(context.Context) { <-gate } })
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if _, err := b.Verify(context.Background(), b.text); err != nil {
					t.Error(err)
				}
			})
		}
		require.Eventually(t, func() bool { return b.store.lookups.Load() == 1 }, 10*time.Second, time.Millisecond)
		close(gate)
		wg.Wait()
		// Whoever came after the first look-up had ended found it in the cache.
		require.EqualValues(t, 1, b.store.lookups.Load())
	})
	t.Run("AreBoundedInTimeAndNumber", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, Config{Lookups: 2, Lookup: 50 * time.Millisecond})
		var now, most atomic.Int64
		b.store.set(func(m *memory) {
			m.during = func(ctx context.Context) {
				n := now.Add(1)
				for top := most.Load(); n > top && !most.CompareAndSwap(top, n); top = most.Load() {
				}
				<-ctx.Done()
				now.Add(-1)
			}
		})
		var wg sync.WaitGroup
		for range 10 {
			text, _, err := Generate("live")
			require.NoError(t, err)
			wg.Go(func() {
				if _, err := b.Verify(context.Background(), text); !errors.Is(err, ErrUnavailable) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.LessOrEqual(t, most.Load(), int64(2))
	})
	t.Run("DoNotOutliveTheRequestThatWaits", func(t *testing.T) {
		t.Parallel()
		b := newBundle(t, Config{})
		gate := make(chan struct{})
		defer close(gate)
		b.store.set(func(m *memory) { m.during = func(context.Context) { <-gate } })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := b.Verify(ctx, b.text)
		require.ErrorIs(t, err, ErrUnavailable)
	})
}

// ears is a Notifier that the test speaks to.
type ears struct {
	on   chan struct{} // closed or sent to: a connection is made
	says chan string   // ids; "" loses the connection
}

func (e *ears) Listen(ctx context.Context, listening func(), changed func(string)) error {
	select {
	case <-e.on:
		listening()
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		select {
		case id := <-e.says:
			if id == "" {
				return errDown
			}
			changed(id)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func TestNotices(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T) (*bundle, *ears) {
		b := newBundle(t, Config{})
		e := &ears{on: make(chan struct{}), says: make(chan string)}
		b.deps.Notifier = e
		require.NoError(t, b.Start(t.Context()))
		e.on <- struct{}{}
		return b, e
	}
	t.Run("DropAKeyAtOnce", func(t *testing.T) {
		t.Parallel()
		b, e := start(t)
		b.requireOK(t)
		b.edit(func(r *Record) { r.RevokedAt = b.time() })
		e.says <- b.id
		e.says <- "other" // received: the first was dealt with
		b.requireErr(t, ErrInvalid)
	})
	t.Run("AreNotOverwrittenByALookUpThatBeganBefore", func(t *testing.T) {
		t.Parallel()
		b, e := start(t)
		b.store.set(func(m *memory) {
			m.during = func(context.Context) { // the row was read; now it is revoked
				m.set(func(m *memory) { m.during = nil })
				b.edit(func(r *Record) { r.RevokedAt = b.time() })
				e.says <- b.id
				e.says <- "other"
			}
		})
		b.requireOK(t) // it came before
		b.requireErr(t, ErrInvalid)
	})
	t.Run("ThatMayHaveBeenMissedAreAskedFor", func(t *testing.T) {
		t.Parallel()
		b, e := start(t)
		b.requireOK(t)
		b.edit(func(r *Record) { r.RevokedAt = b.time() })
		e.says <- ""
		b.requireOK(t) // not known yet
		e.on <- struct{}{}
		e.says <- "other"
		b.requireErr(t, ErrInvalid)
	})
	t.Run("ThatMayHaveBeenMissedCostNobodyTheKeyWithoutTheStore", func(t *testing.T) {
		t.Parallel()
		b, e := start(t)
		b.requireOK(t)
		b.store.set(func(m *memory) { m.err = errDown })
		e.says <- ""
		e.on <- struct{}{}
		e.says <- "other"
		b.requireOK(t)
		b.pass(45 * time.Second)
		b.requireOK(t)
		e.says <- ""
		e.on <- struct{}{} // makes nothing younger
		e.says <- "other"
		b.pass(15 * time.Second)
		b.requireErr(t, ErrUnavailable)
	})
}

func TestStopWritesTheLastUse(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	require.NoError(t, b.Start(t.Context()))
	b.requireOK(t)
	require.NoError(t, b.Stop(t.Context()))
	require.Equal(t, map[string]time.Time{b.id: b.time().UTC()}, b.store.touched)
	b.store.touched = nil
	require.NoError(t, b.Stop(t.Context()))
	require.Nil(t, b.store.touched, "harmless twice")
}

func TestNewVerifierRefusesImpossibleSettings(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{{Fresh: -1}, {Lookups: -1}, {MaxKeys: -1}} {
		_, err := NewVerifier(cfg, Deps{Store: &memory{}})
		require.Error(t, err)
	}
	_, err := NewVerifier(Config{}, Deps{})
	require.Error(t, err)
}

func BenchmarkVerify(b *testing.B) {
	text, k, err := Generate("live")
	require.NoError(b, err)
	v, err := NewVerifier(Config{Fresh: time.Hour}, Deps{Store: &memory{records: map[string]Record{k.ID: {Hash: k.Hash}}}})
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := v.Verify(context.Background(), text); err != nil {
			b.Fatal(err)
		}
	}
}

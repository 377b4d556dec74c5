package apikey

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/pg"
	"github.com/softcrum/carril/internal/testkit"
)

// database is a database with one tenant that clamps.
func database(t *testing.T) (string, *pgxpool.Pool, *Postgres) {
	t.Helper()
	dsn := testkit.Postgres(t)
	pool, err := pgxpool.New(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(t.Context(), `INSERT INTO core.tenants (tenant_id, slug, name, cell_id, plan_id, clock_policy) VALUES ($1, 'acme', 'Acme', 'cell-7', 'growth', 'clamp')`, tenantID)
	require.NoError(t, err)
	return dsn, pool, NewPostgres(pool)
}

func verifier(t *testing.T, store Store, n Notifier) *Verifier {
	t.Helper()
	v, err := NewVerifier(Config{}, Deps{Store: store, Notifier: n, Log: testkit.Logger(t)})
	require.NoError(t, err)
	require.NoError(t, v.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, v.Stop(context.Background())) })
	return v
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	dsn, pool, store := database(t)
	ctx := t.Context()

	t.Run("GivesTheTenantsSettings", func(t *testing.T) {
		text, k, err := store.Create(ctx, New{TenantID: tenantID, Env: "live", Scopes: []string{ScopeEventsWrite, "core.events.read"}, Name: "till"})
		require.NoError(t, err)
		p, err := verifier(t, store, nil).Verify(ctx, text)
		require.NoError(t, err)
		require.Equal(t, &Principal{KeyID: k.ID, Env: "live", TenantID: tenantID, Scopes: []string{ScopeEventsWrite, "core.events.read"},
			Tenant: Tenant{Slug: "acme", CellID: "cell-7", PlanID: "growth", RetentionMonths: 25, EventsPerSecond: 1000, EventsBurst: 2000, Clamp: true}}, p)
	})
	t.Run("GivesAnOperatorWithoutTenant", func(t *testing.T) {
		text, _, err := store.Create(ctx, New{Env: "live", Scopes: []string{"admin"}, ExpiresAt: time.Now().Add(time.Hour)})
		require.NoError(t, err)
		p, err := verifier(t, store, nil).Verify(ctx, text)
		require.NoError(t, err)
		require.Zero(t, p.TenantID)
	})
	t.Run("GivesAKeysOwnLimit", func(t *testing.T) {
		text, _, err := store.Create(ctx, New{TenantID: tenantID, Env: "live", Scopes: []string{"a"}, Rate: Rate{PerSecond: 40}})
		require.NoError(t, err)
		p, err := verifier(t, store, nil).Verify(ctx, text)
		require.NoError(t, err)
		require.Equal(t, Rate{PerSecond: 40, Burst: 80}, p.Rate)
		for _, r := range []Rate{{PerSecond: -1}, {Burst: 5}, {PerSecond: 1, Burst: -1}} {
			_, _, err = store.Create(ctx, New{TenantID: tenantID, Env: "live", Scopes: []string{"a"}, Rate: r})
			require.Error(t, err)
		}
	})
	t.Run("RotatesAKeyWithoutAGap", func(t *testing.T) {
		text, old, err := store.Create(ctx, New{TenantID: tenantID, Env: "live", Scopes: []string{"a", "b"}, Name: "till", Rate: Rate{9, 18},
			ExpiresAt: time.Now().Add(90 * 24 * time.Hour)})
		require.NoError(t, err)
		v := verifier(t, store, nil)
		before, err := v.Verify(ctx, text)
		require.NoError(t, err)
		next, k, err := store.Rotate(ctx, old.ID, time.Hour)
		require.NoError(t, err)
		p, err := v.Verify(ctx, next)
		require.NoError(t, err)
		want := *before
		want.KeyID = k.ID
		require.Equal(t, &want, p, "it can do the same")
		was, err := store.Lookup(ctx, old.ID)
		require.NoError(t, err)
		require.WithinDuration(t, time.Now().Add(time.Hour), was.ExpiresAt, time.Minute, "and both work for the overlap")
		is, err := store.Lookup(ctx, k.ID)
		require.NoError(t, err)
		require.WithinDuration(t, time.Now().Add(90*24*time.Hour), is.ExpiresAt, time.Minute, "the new one has as long a life")
		_, _, err = store.Rotate(ctx, old.ID, 2*time.Hour)
		require.NoError(t, err)
		again, err := store.Lookup(ctx, old.ID)
		require.NoError(t, err)
		require.Equal(t, was.ExpiresAt, again.ExpiresAt, "rotated again, it ends no later")
		require.NoError(t, store.Revoke(ctx, old.ID))
		_, _, err = store.Rotate(ctx, old.ID, time.Hour)
		require.ErrorIs(t, err, ErrNoKey)
		_, _, err = store.Rotate(ctx, "nobody", time.Hour)
		require.ErrorIs(t, err, ErrNoKey)
	})
	t.Run("EndsARotatedKeyOnEveryReplicaAtOnce", func(t *testing.T) {
		text, old, err := store.Create(ctx, New{TenantID: tenantID, Env: "live", Scopes: []string{"a"}})
		require.NoError(t, err)
		on := make(chan struct{}, 10)
		v := verifier(t, store, tap{pg.Listener{Channel: Channel, URL: dsn}, on})
		<-on
		_, err = v.Verify(ctx, text)
		require.NoError(t, err)
		_, _, err = store.Rotate(ctx, old.ID, 0)
		require.NoError(t, err)
		requireInvalidSoon(t, v, text)
	})
	t.Run("TellsListenersOfAChangedLimit", func(t *testing.T) {
		text, k, err := store.Create(ctx, New{TenantID: tenantID, Env: "live", Scopes: []string{"a"}})
		require.NoError(t, err)
		on := make(chan struct{}, 10)
		v := verifier(t, store, tap{pg.Listener{Channel: Channel, URL: dsn}, on})
		<-on
		_, err = v.Verify(ctx, text)
		require.NoError(t, err)
		_, err = pool.Exec(ctx, `UPDATE core.api_keys SET events_per_second = 3, events_burst = 6 WHERE key_id = $1`, k.ID)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			p, err := v.Verify(ctx, text)
			return err == nil && p.Rate == Rate{3, 6}
		}, 10*time.Second, 2*time.Millisecond)
	})
	t.Run("KeepsNoSecret", func(t *testing.T) {
		text, _, err := store.Create(ctx, New{TenantID: tenantID, Env: "live", Scopes: []string{"a"}})
		require.NoError(t, err)
		var found int
		require.NoError(t, pool.QueryRow(ctx, `SELECT count(*) FROM core.api_keys k WHERE k::text LIKE '%' || $1 || '%'`, text[len(text)-secretLen-crcLen:len(text)-crcLen]).Scan(&found))
		require.Zero(t, found)
	})
	t.Run("RefusesAKeyThatIsGoodForNothing", func(t *testing.T) {
		_, _, err := store.Create(ctx, New{TenantID: tenantID, Env: "live"})
		require.Error(t, err)
	})
	t.Run("RefusesTheDisabledTenant", func(t *testing.T) {
		text, _, err := store.Create(ctx, New{TenantID: tenantID, Env: "live", Scopes: []string{"a"}})
		require.NoError(t, err)
		_, err = pool.Exec(ctx, `UPDATE core.tenants SET disabled_at = now()`)
		require.NoError(t, err)
		_, err = verifier(t, store, nil).Verify(ctx, text)
		require.ErrorIs(t, err, ErrTenantDisabled)
		_, err = pool.Exec(ctx, `UPDATE core.tenants SET disabled_at = NULL`)
		require.NoError(t, err)
	})
	t.Run("RevokesForGoodAndOnce", func(t *testing.T) {
		_, k, err := store.Create(ctx, New{TenantID: tenantID, Env: "live", Scopes: []string{"a"}})
		require.NoError(t, err)
		require.NoError(t, store.Revoke(ctx, k.ID))
		first, err := store.Lookup(ctx, k.ID)
		require.NoError(t, err)
		require.False(t, first.RevokedAt.IsZero())
		require.NoError(t, store.Revoke(ctx, k.ID))
		again, err := store.Lookup(ctx, k.ID)
		require.NoError(t, err)
		require.Equal(t, first.RevokedAt, again.RevokedAt)
		require.ErrorIs(t, store.Revoke(ctx, "nobody"), ErrNoKey)
	})
	t.Run("ListsWhatWorksAndWhatHasEnded", func(t *testing.T) {
		other := ids.New()
		_, err := pool.Exec(ctx, `INSERT INTO core.tenants (tenant_id, slug, name, plan_id) VALUES ($1, 'other', 'Other', 'starter')`, other)
		require.NoError(t, err)
		made := map[string]Key{}
		var secrets []string
		for name, n := range map[string]New{
			"till":  {Scopes: []string{"a", "b"}, Rate: Rate{PerSecond: 5}},
			"past":  {Scopes: []string{"a"}, ExpiresAt: time.Now().Add(-time.Hour)},
			"ended": {Scopes: []string{"a"}, ExpiresAt: time.Now().Add(time.Hour)},
		} {
			n.TenantID, n.Env, n.Name = other, "test", name
			text, k, err := store.Create(ctx, n)
			require.NoError(t, err)
			made[name], secrets = k, append(secrets, text)
		}
		require.NoError(t, store.Revoke(ctx, made["ended"].ID))
		_, operator, err := store.Create(ctx, New{Env: "live", Scopes: []string{"ops"}})
		require.NoError(t, err)

		live, err := store.List(ctx, other, false)
		require.NoError(t, err)
		require.Len(t, live, 1)
		require.Equal(t, made["till"].ID, live[0].ID)
		require.Equal(t, []string{"a", "b"}, live[0].Scopes)
		require.Equal(t, [2]int{5, 10}, [2]int{*live[0].PerSecond, *live[0].Burst})
		require.Equal(t, "live", live[0].State(time.Now()))
		require.Nil(t, live[0].Ends())

		all, err := store.List(ctx, other, true)
		require.NoError(t, err)
		states := map[string]string{}
		for _, k := range all {
			states[k.Name] = k.State(time.Now())
			require.Equal(t, k.Name == "till", k.Ends() == nil)
		}
		require.Equal(t, map[string]string{"till": "live", "past": "expired", "ended": "revoked"}, states)
		shown, err := json.Marshal(all)
		require.NoError(t, err)
		for _, text := range secrets {
			require.NotContains(t, string(shown), text[len(text)-secretLen-crcLen:len(text)-crcLen])
		}

		operators, err := store.List(ctx, uuid.Nil, false)
		require.NoError(t, err)
		var found []string
		for _, k := range operators {
			found = append(found, k.ID)
		}
		require.Contains(t, found, operator.ID)
		require.NotContains(t, found, made["till"].ID)
	})
	t.Run("NotesTheLastUse", func(t *testing.T) {
		text, k, err := store.Create(ctx, New{TenantID: tenantID, Env: "live", Scopes: []string{"a"}})
		require.NoError(t, err)
		v := verifier(t, store, nil)
		_, err = v.Verify(ctx, text)
		require.NoError(t, err)
		require.NoError(t, v.Stop(ctx))
		var at *time.Time
		require.NoError(t, pool.QueryRow(ctx, `SELECT last_used_at FROM core.api_keys WHERE key_id = $1`, k.ID).Scan(&at))
		require.WithinDuration(t, time.Now(), *at, time.Minute)
		require.NoError(t, store.Touch(ctx, map[string]time.Time{k.ID: time.Unix(1, 0)}))
		var later *time.Time
		require.NoError(t, pool.QueryRow(ctx, `SELECT last_used_at FROM core.api_keys WHERE key_id = $1`, k.ID).Scan(&later))
		require.Equal(t, at, later, "time does not run backwards")
	})
	t.Run("TellsListenersOfARevocation", func(t *testing.T) {
		text, k, err := store.Create(ctx, New{TenantID: tenantID, Env: "live", Scopes: []string{"a"}})
		require.NoError(t, err)
		on := make(chan struct{}, 10)
		v := verifier(t, store, tap{pg.Listener{Channel: Channel, URL: dsn, Ping: 3 * time.Second}, on})
		<-on
		_, err = v.Verify(ctx, text)
		require.NoError(t, err)
		requirePinged(t, pool) // and the connection survives it
		require.NoError(t, store.Revoke(ctx, k.ID))
		requireInvalidSoon(t, v, text)
		require.Empty(t, on, "over the first connection")
	})
	t.Run("TellsListenersOfAChangedTenant", func(t *testing.T) {
		text, _, err := store.Create(ctx, New{TenantID: tenantID, Env: "live", Scopes: []string{"a"}})
		require.NoError(t, err)
		on := make(chan struct{}, 10)
		v := verifier(t, store, tap{pg.Listener{Channel: Channel, URL: dsn}, on}) // whose keys are fresh for 30 s
		<-on
		for _, change := range []struct {
			sql   string
			heard func(p *Principal, err error) bool
		}{
			{`UPDATE core.tenants SET plan_id = 'scale'`, func(p *Principal, err error) bool { return err == nil && p.Tenant.RetentionMonths == 37 }},
			{`UPDATE core.plans SET events_per_second = 7 WHERE plan_id = 'scale'`, func(p *Principal, err error) bool { return err == nil && p.Tenant.EventsPerSecond == 7 }},
			{`UPDATE core.tenants SET clock_policy = 'reject'`, func(p *Principal, err error) bool { return err == nil && !p.Tenant.Clamp }},
			{`UPDATE core.tenants SET disabled_at = now()`, func(_ *Principal, err error) bool { return errors.Is(err, ErrTenantDisabled) }},
			{`UPDATE core.tenants SET disabled_at = NULL`, func(_ *Principal, err error) bool { return err == nil }},
		} {
			before, err := v.Verify(ctx, text)
			require.False(t, change.heard(before, err), change.sql)
			_, err = pool.Exec(ctx, change.sql)
			require.NoError(t, err)
			require.Eventually(t, func() bool { return change.heard(v.Verify(ctx, text)) }, 10*time.Second, 2*time.Millisecond, change.sql)
		}
	})
	t.Run("ListensAgainAfterTheConnectionWasLost", func(t *testing.T) {
		text, k, err := store.Create(ctx, New{TenantID: tenantID, Env: "live", Scopes: []string{"a"}})
		require.NoError(t, err)
		u, err := url.Parse(dsn)
		require.NoError(t, err)
		proxy := testkit.NewProxy(t, u.Host)
		u.Host = proxy.Addr()
		on := make(chan struct{}, 10)
		v := verifier(t, store, tap{pg.Listener{Channel: Channel, URL: u.String(), Ping: 100 * time.Millisecond}, on})
		<-on
		_, err = v.Verify(ctx, text)
		require.NoError(t, err)
		proxy.Blackhole() // no reset, no word
		require.NoError(t, store.Revoke(ctx, k.ID))
		_, err = v.Verify(ctx, text)
		require.NoError(t, err, "unheard, for now")
		proxy.Reset()
		proxy.Pass()
		requireInvalidSoon(t, v, text)
	})
}

// tap reports when a listener hears.
type tap struct {
	pg.Listener
	on chan struct{}
}

func (n tap) Listen(ctx context.Context, listening func(), changed func(string)) error {
	return n.Listener.Listen(ctx, func() { listening(); n.on <- struct{}{} }, changed)
}

// requirePinged waits until a quiet listener has been asked whether it is alive.
func requirePinged(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	require.Eventually(t, func() bool {
		var n int
		err := pool.QueryRow(context.Background(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query = '-- ping'`).Scan(&n)
		return err == nil && n > 0
	}, 15*time.Second, 2*time.Millisecond)
}

// requireInvalidSoon waits much less than a cached key is fresh.
func requireInvalidSoon(t *testing.T, v *Verifier, text string) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := v.Verify(context.Background(), text)
		return errors.Is(err, ErrInvalid)
	}, 15*time.Second, 2*time.Millisecond)
}

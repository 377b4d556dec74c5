package webhook_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/webhook"
)

func draft(url string, types ...string) webhook.Draft {
	if len(types) == 0 {
		types = []string{"*"}
	}
	return webhook.Draft{URL: url, EventTypes: types}
}

// refusal gives the code and pointer of a typed refusal.
func refusal(t *testing.T, err error) string {
	t.Helper()
	var typed interface {
		Problem() (code, pointer, detail string)
	}
	require.ErrorAs(t, err, &typed)
	code, pointer, detail := typed.Problem()
	require.NotEmpty(t, detail)
	return code + " " + pointer
}

func TestStore(t *testing.T) {
	t.Parallel()

	t.Run("CreatesWhatItGivesBack", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		d := draft("https://HOOKS.example.com", "messaging.message.*", "core.event.tracked", "core.event.tracked")
		d.Headers, d.Description = map[string]string{"authorization": "Bearer t0ken"}, "warehouse"
		e, secret, err := b.store.Create(t.Context(), b.tenant, d)
		require.NoError(t, err)
		require.Equal(t, "https://hooks.example.com/", e.URL)
		require.Equal(t, []string{"core.event.tracked", "messaging.message.*"}, e.EventTypes)
		require.Equal(t, []string{"Authorization"}, e.HeaderNames)
		require.Equal(t, webhook.DeliverySingle, e.Delivery)
		require.Nil(t, e.DisabledAt)
		require.GreaterOrEqual(t, len(secret.Reveal()), len("whsec_")+32)
		got, err := b.store.Get(t.Context(), b.tenant, e.ID)
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(e, got))

		all := value[string](b, `SELECT to_jsonb(e)::text || encode(headers, 'escape') FROM core.webhook_endpoints e`)
		for _, plain := range []string{"t0ken", "whsec_", strings.TrimPrefix(secret.Reveal(), "whsec_"), "Bearer"} {
			require.NotContains(t, all, plain, "secrets are sealed at rest")
		}
		shown, err := json.Marshal(e)
		require.NoError(t, err)
		require.NotContains(t, string(shown), "t0ken")
	})

	t.Run("RefusesWithATypeAndAPointer", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		for want, change := range map[string]func(*webhook.Draft){
			"invalid_url /url":                       func(d *webhook.Draft) { d.URL = "ftp://example.com/" },
			"userinfo_not_allowed /url":              func(d *webhook.Draft) { d.URL = "https://u:p@example.com/" },
			"address_not_allowed /url":               func(d *webhook.Draft) { d.URL = "https://169.254.169.254/" },
			"header_not_allowed /headers/Webhook-Id": func(d *webhook.Draft) { d.Headers = map[string]string{"Webhook-Id": "1"} },
			"event_types_required /event_types":      func(d *webhook.Draft) { d.EventTypes = nil },
			"unknown_event_type /event_types":        func(d *webhook.Draft) { d.EventTypes = []string{"core.event.trackd"} },
			"delivery_not_supported /delivery":       func(d *webhook.Draft) { d.Delivery = "batch" },
			"invalid_delivery /delivery":             func(d *webhook.Draft) { d.Delivery = "carrier pigeon" },
			"invalid_description /description":       func(d *webhook.Draft) { d.Description = "two\nlines" },
			"too_many_headers /headers":              func(d *webhook.Draft) { d.Headers = manyHeaders() },
		} {
			d := draft("https://example.com/")
			change(&d)
			_, _, err := b.store.Create(t.Context(), b.tenant, d)
			require.Equal(t, want, refusal(t, err))
		}
		require.Zero(t, b.count(`SELECT count(*) FROM core.webhook_endpoints`))
	})

	t.Run("WhatBelongsToAnotherIsNotFound", func(t *testing.T) { // P6
		t.Parallel()
		b := newBench(t)
		other := b.addTenant("other")
		e, _, err := b.store.Create(t.Context(), b.tenant, draft("https://example.com/"))
		require.NoError(t, err)
		for _, who := range []struct{ tenant, id uuid.UUID }{{other, e.ID}, {b.tenant, uuid.New()}} {
			url := "https://evil.example.com/"
			for what, call := range map[string]func() error{
				"get": func() error { _, err := b.store.Get(t.Context(), who.tenant, who.id); return err },
				"update": func() error {
					_, err := b.store.Update(t.Context(), who.tenant, who.id, webhook.Change{URL: &url})
					return err
				},
				"disable": func() error { _, err := b.store.Disable(t.Context(), who.tenant, who.id); return err },
				"enable":  func() error { _, err := b.store.Enable(t.Context(), who.tenant, who.id); return err },
				"rotate":  func() error { _, _, err := b.store.Rotate(t.Context(), who.tenant, who.id); return err },
				"delete":  func() error { return b.store.Delete(t.Context(), who.tenant, who.id) },
			} {
				require.ErrorIs(t, call(), webhook.ErrNotFound, what)
			}
		}
		list, err := b.store.List(t.Context(), other, uuid.Nil, 10)
		require.NoError(t, err)
		require.Empty(t, list)
		got, err := b.store.Get(t.Context(), b.tenant, e.ID)
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(e, got), "nothing of it changed")
		_, _, err = b.store.Create(t.Context(), uuid.New(), draft("https://example.com/"))
		require.ErrorIs(t, err, webhook.ErrNotFound)
	})

	t.Run("ChangesWhatIsNamedAndNothingElse", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		d := draft("https://example.com/a")
		d.Headers, d.Description = map[string]string{"X-A": "1"}, "before"
		e, _, err := b.store.Create(t.Context(), b.tenant, d)
		require.NoError(t, err)
		url := "https://example.com/b"
		got, err := b.store.Update(t.Context(), b.tenant, e.ID, webhook.Change{URL: &url})
		require.NoError(t, err)
		require.Equal(t, url, got.URL)
		require.Equal(t, []string{"X-A"}, got.HeaderNames)
		require.Equal(t, "before", got.Description)
		require.Equal(t, e.EventTypes, got.EventTypes)
		got, err = b.store.Update(t.Context(), b.tenant, e.ID, webhook.Change{EventTypes: []string{"messaging.*"}, Headers: map[string]string{}})
		require.NoError(t, err)
		require.Equal(t, []string{"messaging.*"}, got.EventTypes)
		require.Empty(t, got.HeaderNames)
		_, err = b.store.Update(t.Context(), b.tenant, e.ID, webhook.Change{EventTypes: []string{}})
		require.Equal(t, "event_types_required /event_types", refusal(t, err))

		got, err = b.store.Disable(t.Context(), b.tenant, e.ID)
		require.NoError(t, err)
		require.NotNil(t, got.DisabledAt)
		require.Equal(t, webhook.DisabledByTenant, got.DisabledReason)
		got, err = b.store.Enable(t.Context(), b.tenant, e.ID)
		require.NoError(t, err)
		require.Nil(t, got.DisabledAt)
		require.Empty(t, got.DisabledReason)
		require.NoError(t, b.store.Delete(t.Context(), b.tenant, e.ID))
		_, err = b.store.Get(t.Context(), b.tenant, e.ID)
		require.ErrorIs(t, err, webhook.ErrNotFound)
	})

	t.Run("ListsByPages", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		var made []uuid.UUID
		for i := range 5 {
			e, _, err := b.store.Create(t.Context(), b.tenant, draft(fmt.Sprintf("https://example.com/%d", i)))
			require.NoError(t, err)
			made = append(made, e.ID)
		}
		var got []uuid.UUID
		for after := uuid.Nil; ; after = got[len(got)-1] {
			page, err := b.store.List(t.Context(), b.tenant, after, 2)
			require.NoError(t, err)
			for _, e := range page {
				got = append(got, e.ID)
			}
			if len(page) < 2 {
				break
			}
		}
		require.Equal(t, made, got)
	})

	t.Run("ATenantHasSoManyAndNotMore", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		few := webhook.NewStore(webhook.StoreConfig{MaxPerTenant: 2}, webhook.StoreDeps{Pool: b.pool, Guard: b.guard, Keys: b.keys})
		results := make(chan error, 6)
		for range cap(results) {
			go func() {
				_, _, err := few.Create(t.Context(), b.tenant, draft("https://example.com/"))
				results <- err
			}()
		}
		refused := 0
		for range cap(results) {
			if err := <-results; err != nil {
				require.Equal(t, "too_many_endpoints ", refusal(t, err))
				refused++
			}
		}
		require.Equal(t, 4, refused)
	})

	t.Run("RotationOverlapsHoldTheSecondAndThirdTime", func(t *testing.T) { // P12
		t.Parallel()
		b := newBench(t)
		e, _, err := b.store.Create(t.Context(), b.tenant, draft("https://example.com/"))
		require.NoError(t, err)
		seen := map[string]bool{}
		for range 4 {
			secret, until, err := b.store.Rotate(t.Context(), b.tenant, e.ID)
			require.NoError(t, err)
			require.False(t, seen[secret.Reveal()])
			seen[secret.Reveal()] = true
			require.WithinDuration(t, time.Now().Add(24*time.Hour), until, time.Hour)
		}
		const live = `SELECT count(*) FROM core.webhook_endpoints, jsonb_array_elements(secrets) s WHERE (s->>'until') IS NULL OR (s->>'until')::timestamptz > now()`
		require.Equal(t, 5, b.count(live))
		_, _, err = b.store.Rotate(t.Context(), b.tenant, e.ID)
		require.Equal(t, "too_many_rotations ", refusal(t, err))
		b.exec(`UPDATE core.webhook_endpoints SET secrets = jsonb_set(secrets, '{4,until}', '"2020-01-01T00:00:00Z"')`)
		_, _, err = b.store.Rotate(t.Context(), b.tenant, e.ID)
		require.NoError(t, err, "one is over")
		require.Equal(t, 5, b.count(`SELECT jsonb_array_length(secrets) FROM core.webhook_endpoints`))
		require.Equal(t, 1, b.count(`SELECT count(*) FROM core.webhook_endpoints, jsonb_array_elements(secrets) s WHERE (s->>'until') IS NULL`))
	})
}

func manyHeaders() map[string]string {
	h := map[string]string{}
	for i := range 21 {
		h[fmt.Sprintf("X-%d", i)] = "v"
	}
	return h
}

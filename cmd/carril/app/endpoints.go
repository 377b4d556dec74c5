package app

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/dispatcher/webhook"
	"github.com/softcrum/carril/ingestor/manage"
)

// endpoints shows the webhook store to the management API. A store that can
// seal no secret has no routes.
func (a *App) endpoints() (manage.Endpoints, error) {
	if a.set.WebhookKey == "" {
		a.log.Warn("without webhook-key tenants cannot manage their webhook endpoints")
		return nil, nil //nolint:nilnil // no key, no routes
	}
	g, err := a.set.webhookGuard()
	if err != nil {
		return nil, err
	}
	keys, err := a.set.webhookKeys()
	if err != nil {
		return nil, err
	}
	return endpoints{webhook.NewStore(webhook.StoreConfig{}, webhook.StoreDeps{Pool: a.side, Guard: g, Keys: keys})}, nil
}

type endpoints struct{ store *webhook.Store }

func found[T any](v T, err error) (T, error) {
	if errors.Is(err, webhook.ErrNotFound) {
		err = manage.ErrNotFound
	}
	return v, err
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func (e endpoints) Create(ctx context.Context, tenant uuid.UUID, d manage.EndpointDraft) (manage.Endpoint, string, error) {
	made, secret, err := e.store.Create(ctx, tenant, webhook.Draft{URL: value(d.URL), Description: value(d.Description),
		EventTypes: d.EventTypes, Delivery: value(d.Delivery), Headers: d.Headers})
	if err != nil {
		_, err = found(made, err)
		return nil, "", err
	}
	return made, secret.Reveal(), nil
}

func (e endpoints) Update(ctx context.Context, tenant, id uuid.UUID, d manage.EndpointDraft) (manage.Endpoint, error) {
	return found(e.store.Update(ctx, tenant, id, webhook.Change{URL: d.URL, Description: d.Description, EventTypes: d.EventTypes, Headers: d.Headers}))
}

func (e endpoints) Get(ctx context.Context, tenant, id uuid.UUID) (manage.Endpoint, error) {
	return found(e.store.Get(ctx, tenant, id))
}

// List gives all of a tenant's endpoints: there are at most fifty.
func (e endpoints) List(ctx context.Context, tenant uuid.UUID) ([]manage.Endpoint, error) {
	list, err := e.store.List(ctx, tenant, uuid.Nil, 100)
	out := make([]manage.Endpoint, len(list))
	for i := range list {
		out[i] = list[i]
	}
	return out, err
}

func (e endpoints) Delete(ctx context.Context, tenant, id uuid.UUID) error {
	_, err := found(struct{}{}, e.store.Delete(ctx, tenant, id))
	return err
}

func (e endpoints) Enable(ctx context.Context, tenant, id uuid.UUID) (manage.Endpoint, error) {
	return found(e.store.Enable(ctx, tenant, id))
}

func (e endpoints) Disable(ctx context.Context, tenant, id uuid.UUID) (manage.Endpoint, error) {
	return found(e.store.Disable(ctx, tenant, id))
}

func (e endpoints) Rotate(ctx context.Context, tenant, id uuid.UUID) (manage.NewSecret, error) {
	secret, until, err := e.store.Rotate(ctx, tenant, id)
	if err != nil {
		_, err = found(secret, err)
		return manage.NewSecret{}, err
	}
	return manage.NewSecret{Secret: secret.Reveal(), PreviousUntil: until.UTC().Format(time.RFC3339)}, nil
}

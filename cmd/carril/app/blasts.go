package app

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/dispatcher/blast"
	"github.com/softcrum/carril/ingestor/manage"
	"github.com/softcrum/carril/internal/content"
	"github.com/softcrum/carril/schemas"
)

// blasts shows the blast store to the management API.
func (a *App) blasts() (manage.Blasts, error) {
	levels, err := a.levels()
	if err != nil {
		return nil, err
	}
	cfg := blast.Config{First: a.set.First(), Quotas: BlastQuotas(a.set, levels)}
	if a.set.unset() == "" { // this process knows the providers
		d, err := a.dispatching()
		if err != nil {
			return nil, err
		}
		cfg.RequestsPerSecond = func(ctx context.Context, tenant uuid.UUID, channel string) float64 {
			p := d.preferred(channel, schemas.RailMarketing)
			if p == "" {
				return 0
			}
			global, own := levels.Rates(p, tenant, schemas.RailMarketing)
			rate := global.Rate
			if l, err := levels.Levels(ctx, p); err == nil && l.Current > 0 {
				rate = l.Current
			}
			if own.Rate > 0 {
				rate = min(rate, own.Rate)
			}
			return rate
		}
	}
	return blasts{blast.New(cfg, a.side)}, nil
}

type blasts struct{ store *blast.Store }

func shown[T any](v T, err error) (T, error) {
	if errors.Is(err, blast.ErrNone) {
		err = manage.ErrNotFound
	}
	return v, err
}

// shownBlast does the same without a blast that is nil inside its interface.
func shownBlast(b *blast.Blast, err error) (manage.Blast, error) {
	if err != nil {
		_, err = shown(b, err)
		return nil, err
	}
	return b, nil
}

func changed(d manage.BlastDraft) blast.Change {
	c := blast.Change{Name: d.Name, Channel: d.Channel, TemplateID: d.TemplateID, TemplateVersion: d.TemplateVersion, Variables: d.Variables}
	if d.AudienceType != nil {
		c.Audience = &blast.Audience{Type: *d.AudienceType, Traits: d.Traits}
	}
	return c
}

func (b blasts) Create(ctx context.Context, tenant uuid.UUID, key string, d manage.BlastDraft) (manage.Blast, error) {
	return shownBlast(b.store.Create(ctx, tenant, key, changed(d)))
}

func (b blasts) Update(ctx context.Context, tenant, id uuid.UUID, d manage.BlastDraft) (manage.Blast, error) {
	return shownBlast(b.store.Update(ctx, tenant, id, changed(d)))
}

func (b blasts) Get(ctx context.Context, tenant, id uuid.UUID) (manage.Blast, error) {
	return shownBlast(b.store.Get(ctx, tenant, id))
}

func (b blasts) List(ctx context.Context, tenant uuid.UUID, state string, before time.Time, beforeID uuid.UUID, limit int) ([]manage.ListedBlast, error) {
	list, err := b.store.List(ctx, tenant, state, before, beforeID, limit)
	out := make([]manage.ListedBlast, len(list))
	for i, l := range list {
		out[i] = manage.ListedBlast{Blast: l, CreatedAt: l.CreatedAt, ID: l.ID}
	}
	return out, err
}

func (b blasts) Start(ctx context.Context, tenant, id uuid.UUID, how manage.BlastStart) (manage.Blast, error) {
	return shownBlast(b.store.Start(ctx, tenant, id, blast.Start(how)))
}

func (b blasts) Pause(ctx context.Context, tenant, id uuid.UUID) (manage.Blast, error) {
	return shownBlast(b.store.Pause(ctx, tenant, id))
}

func (b blasts) Resume(ctx context.Context, tenant, id uuid.UUID) (manage.Blast, error) {
	return shownBlast(b.store.Resume(ctx, tenant, id))
}

func (b blasts) Cancel(ctx context.Context, tenant, id uuid.UUID) (manage.Blast, error) {
	return shownBlast(b.store.Cancel(ctx, tenant, id))
}

func (b blasts) Upload(ctx context.Context, tenant, id, upload uuid.UUID, f manage.BlastFile) (manage.BlastUpload, error) {
	u, err := b.store.Upload(ctx, tenant, id, upload, blast.File{Format: f.Format, Delimiter: f.Delimiter, Columns: f.Columns}, f.Body, nil)
	if err != nil {
		_, err = shown(u, err)
		return manage.BlastUpload{}, err
	}
	out := manage.BlastUpload{Upload: u, Detail: u.Detail}
	if u.State == blast.UploadFailed {
		out.Failed = *u.Error
		out.Row = *u.ErrorRow
	}
	return out, nil
}

func (b blasts) Uploaded(ctx context.Context, tenant, id, upload uuid.UUID, behind int64, limit int) (any, []manage.BlastBadRow, error) {
	u, bad, err := b.store.Uploaded(ctx, tenant, id, upload, behind, limit)
	rows := make([]manage.BlastBadRow, len(bad))
	for i, r := range bad {
		rows[i] = manage.BlastBadRow(r)
	}
	_, err = shown(u, err)
	return u, rows, err
}

func (b blasts) Preview(ctx context.Context, tenant, id uuid.UUID, address string, variables json.RawMessage) (content.Parts, error) {
	return shown(b.store.Preview(ctx, tenant, id, blast.Sample{Address: address, Variables: variables}))
}

func (b blasts) Test(ctx context.Context, tenant, id uuid.UUID, to manage.BlastRecipient, variables json.RawMessage) (uuid.UUID, error) {
	return shown(b.store.Test(ctx, tenant, id, blast.Recipient(to), variables))
}

func (b blasts) DryRun(ctx context.Context, tenant, id uuid.UUID) (any, error) {
	return shown[any](b.store.DryRun(ctx, tenant, id))
}

func (b blasts) Report(ctx context.Context, tenant, id uuid.UUID) (any, error) {
	return shown[any](b.store.Report(ctx, tenant, id))
}

func (blasts) States() []string { return blast.States() }

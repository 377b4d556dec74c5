package app

import (
	"context"
	"errors"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/internal/lease"
	"github.com/softcrum/carril/internal/storage"
	"github.com/softcrum/carril/processor/archive"
	"github.com/softcrum/carril/processor/retention"
)

// storage is where exports go, as the settings say.
func (s *Settings) storage() storage.Config {
	return storage.Config{URL: s.StorageURL, AccessKey: s.StorageAccessKey, SecretKey: s.StorageSecretKey}
}

// OpenStorage opens the settings' storage, or another by the URL of --out; what is
// wrong with it is a fault of the configuration.
func (s *Settings) OpenStorage(url string) (storage.Store, error) {
	c, name := s.storage(), "storage-url"
	if url != "" {
		c.URL, name = url, "--out"
	}
	if c.URL == "" {
		return nil, configError("CARRIL_STORAGE_URL", "is not set")
	}
	store, err := storage.Open(c)
	if err != nil {
		return nil, configError(name, "does not serve: %v", err)
	}
	return store, nil
}

// files gives the storage of exports, one for all roles of the process; nil
// where the settings name none.
func (a *App) files() (storage.Store, error) {
	if a.store != nil || a.set.StorageURL == "" {
		return a.store, nil
	}
	s, err := a.set.OpenStorage("")
	if err != nil {
		return nil, err
	}
	a.stack.OnStop("storage", func() { _ = s.Close() }) // only connections and handles
	a.store = s
	return s, nil
}

// archive makes exports in the settings' storage, over a pool of its own: a
// transaction lasts as long as an export. nil where there is no storage.
func (a *App) archive(ctx context.Context) (*archive.Archive, error) {
	if a.archived != nil {
		return a.archived, nil
	}
	s, err := a.files()
	if err != nil || s == nil {
		return nil, err
	}
	pool, err := a.wholePool(ctx, "exports", a.set.direct(), 6)
	if err != nil {
		return nil, err
	}
	a.archived, err = archive.New(archive.Config{Compression: archive.Compression(a.set.ExportCompression)}, archive.Deps{Pool: pool, Storage: s, Log: a.log})
	return a.archived, err
}

// leaves is the archive as retention knows it; nil: there is no storage, and no
// leaf is exported or dropped.
func (a *App) leaves(ctx context.Context) (retention.Exporter, error) {
	arch, err := a.archive(ctx)
	if err != nil || arch == nil {
		return nil, err
	}
	return leaves{arch}, nil
}

// LeafExporter makes what a command exports leaves with; nil where the settings
// name no storage. done ends it.
func LeafExporter(set Settings, pool *pgxpool.Pool, log *slog.Logger) (e retention.Exporter, done func(), err error) {
	if set.StorageURL == "" {
		return nil, func() {}, nil
	}
	store, err := set.OpenStorage("")
	if err != nil {
		return nil, nil, err
	}
	arch, err := archive.New(archive.Config{Compression: archive.Compression(set.ExportCompression)}, archive.Deps{Pool: pool, Storage: store, Log: log})
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	return leaves{arch}, func() { _ = store.Close() }, nil // only connections and handles
}

type leaves struct{ *archive.Archive }

func (l leaves) Export(ctx context.Context, leaf retention.Leaf) (string, retention.Digest, error) {
	manifest, d, err := l.Archive.Export(ctx, archive.Leaf(leaf))
	return manifest, retention.Digest(d), err
}

func (l leaves) Verify(ctx context.Context, manifest string) (retention.Digest, error) {
	d, err := l.Archive.Verify(ctx, manifest)
	return retention.Digest(d), err
}

func (l leaves) DigestTable(ctx context.Context, tx pgx.Tx, table string) (retention.Digest, error) {
	d, err := l.Archive.DigestTable(ctx, tx, table)
	return retention.Digest(d), err
}

// startExports makes what tenants asked to be exported.
func (a *App) startExports(ctx context.Context) error {
	arch, err := a.archive(ctx)
	if err != nil {
		return err
	}
	if arch == nil {
		a.log.Warn("without storage-url nothing is exported")
		return nil
	}
	job := archive.NewJob(archive.JobConfig{}, arch, a.reg)
	a.stack.Go(lifecyclePart("exports", func(ctx context.Context) error {
		return lease.Run(ctx, a.direct, lease.Config{Name: "maintain:exports", Holder: owner()}, a.log, func(ctx context.Context, _ *lease.Lease) error {
			return job.Run(ctx)
		})
	}))
	return nil
}

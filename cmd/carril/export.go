package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/internal/bench"
	"github.com/softcrum/carril/processor/archive"
)

type exportCmd struct {
	Tenant   string `required:"" help:"Slug or id of the tenant."`
	From     string `required:"" help:"First moment, as 2026-11-01 or 2026-11-01T00:00:00Z."`
	To       string `required:"" help:"Moment after the last, in the same form."`
	Format   string `enum:"ndjson,parquet" default:"ndjson" help:"ndjson or parquet."`
	Compress string `enum:",zstd,gzip" default:"" help:"zstd or gzip; --export-compression when empty."`
	Out      string `help:"Folder, or s3://bucket/prefix?…; CARRIL_STORAGE_URL when empty, where exports are deleted after seven days." placeholder:"WHERE"`
	Fresh    bool   `help:"Begin anew where the same export was made before."`
	JSON     bool   `name:"json" help:"Print one JSON object."`
}

func (c exportCmd) Run(e *environment) error {
	from, err := parseWhen("--from", c.From)
	if err != nil {
		return err
	}
	to, err := parseWhen("--to", c.To)
	if err != nil {
		return err
	}
	if !from.Before(to) {
		return fmt.Errorf("%w: --from is not before --to", app.ErrConfig)
	}
	ctx, stop := signals()
	defer stop()
	r := archive.Request{From: from, To: to, Format: c.Format, Compression: archive.Compression(c.Compress), Elsewhere: c.Out != ""}
	if c.Compress == "" {
		r.Compression = archive.Compression(e.set.ExportCompression)
	}
	done, err := c.export(ctx, e, r)
	switch {
	case ctx.Err() != nil:
		return errors.New("the export was interrupted: the same command goes on where it stopped")
	case errors.Is(err, archive.ErrBusy):
		return fmt.Errorf("%w; wait for it, or stop it", err)
	case err != nil:
		return err
	}
	if done.AlreadyDone {
		fmt.Fprintln(e.err, "this export was made before; --fresh makes another")
	}
	if c.JSON {
		return json.NewEncoder(e.out).Encode(done)
	}
	fmt.Fprintln(e.out, strings.TrimPrefix(done.Storage, "file://")+"/"+done.Manifest)
	return nil
}

func (c exportCmd) export(ctx context.Context, e *environment, r archive.Request) (*archive.Finished, error) {
	// Its lock, the copy and what is recorded beside it.
	pool, err := e.databaseOf(ctx, 4)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	if r.TenantID, err = app.FindTenant(ctx, pool, c.Tenant); err != nil {
		return nil, err
	}
	out, err := outURL(c.Out)
	if err != nil {
		return nil, err
	}
	store, err := e.set.OpenStorage(out)
	if err != nil {
		return nil, err
	}
	defer func() { _ = store.Close() }()
	var fraction atomic.Uint64
	a, err := archive.New(archive.Config{}, archive.Deps{Pool: pool, Storage: store, Log: e.log,
		Report: func(p archive.Progress) { fraction.Store(math.Float64bits(p.Fraction)) }})
	if err != nil {
		return nil, err
	}
	end := bench.NewProgress(e.err).Phase("exporting "+c.Tenant, func() float64 { return math.Float64frombits(fraction.Load()) })
	defer end()
	return a.Run(ctx, r, c.Fresh)
}

// outURL makes a URL of a folder's path.
func outURL(out string) (string, error) {
	if out == "" || strings.Contains(out, "://") {
		return out, nil
	}
	dir, err := filepath.Abs(out)
	if err != nil {
		return "", fmt.Errorf("find the folder: %w", err)
	}
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(dir)}).String(), nil
}

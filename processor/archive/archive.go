// Package archive turns tables into objects that are read without us: NDJSON
// whose lines are PostgreSQL's own to_jsonb of a row in UTC (numbers keep their
// digits), or Parquet, with a manifest beside them that says what there is and
// how to check it. It owns the objects, their names, their digests and their
// verification, for whole leaves that retention is about to drop (FS-CORE-0006
// §9) and for what a tenant asks for. When a leaf goes, and that it goes only
// once it is verified, is processor/retention's business; who may ask is the
// management API's.
//
// An object is written under a name that no other attempt uses, and a manifest
// last: objects without a manifest are what a killed run left, and the next run
// removes them.
package archive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/internal/storage"
)

// Errors that callers tell apart with errors.Is.
var (
	// ErrCorrupt says that what is stored is not what was written, or not what the
	// manifest says.
	ErrCorrupt = errors.New("stored export is not what was written")
	// ErrMismatch says that a table is not the one that was meant.
	ErrMismatch = errors.New("table is not the one that was meant")
)

// Leaf is a table that is exported as a whole: one month of one retention class,
// detached from its parent.
type Leaf struct {
	Run             uuid.UUID // of the retention job; names the export
	Parent          string    // schema.table, with a column tenant_id
	Table           string    // schema.table as it stands
	OID             uint32    // of Table: a name can be another table's tomorrow
	From, To        time.Time // its bounds, To excluded
	RetentionMonths int
}

// Compression of NDJSON.
type Compression string

// The compressions.
const (
	Zstd Compression = "zstd"
	Gzip Compression = "gzip"
)

// Config of an Archive; zero values take the defaults.
type Config struct {
	Compression Compression // of leaves; default zstd
	// ObjectBytes is how many bytes of lines an object has before the next is begun;
	// default 1 GiB. A tenant's rows are in one object or more, never with another's.
	ObjectBytes int64
}

// Point is a step at which a test kills the process.
type Point string

// The points.
const (
	PointObject   Point = "object"   // an object is written
	PointObjects  Point = "objects"  // all are written, the manifest is not
	PointManifest Point = "manifest" // the manifest is written, leftovers are not removed
	PointRewrite  Point = "rewrite"  // a rewritten object is there, the manifest names the old one
	PointReplaced Point = "replaced" // the manifest names the new one, the old one is not deleted
	PointRecorded Point = "recorded" // a part of a request is recorded as done
)

// Progress is how far a long step is.
type Progress struct {
	Step     string  // export, verify, rewrite
	Rows     int64   // done
	Fraction float64 // 0 to 1; an estimate
}

func fraction(done, total int64) float64 {
	if total <= 0 {
		return 0
	}
	return min(float64(done)/float64(total), 1)
}

// Deps of an Archive.
type Deps struct {
	Pool    *pgxpool.Pool // for transactions that last as long as an export
	Storage storage.Store
	Log     *slog.Logger   // nil discards
	Report  func(Progress) // called now and then, by one goroutine; nil: nobody asks
	At      func(Point)    // tests only; nil in production
}

// Archive exports, verifies and rewrites.
type Archive struct {
	cfg  Config
	deps Deps
}

// New makes an Archive.
func New(cfg Config, deps Deps) (*Archive, error) {
	if cfg.Compression == "" {
		cfg.Compression = Zstd
	}
	if cfg.ObjectBytes == 0 {
		cfg.ObjectBytes = 1 << 30
	}
	if !cfg.Compression.known() || cfg.ObjectBytes < 0 {
		return nil, fmt.Errorf("archive: compression is %s or %s, objects have a positive size", Zstd, Gzip)
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Report == nil {
		deps.Report = func(Progress) {}
	}
	if deps.At == nil {
		deps.At = func(Point) {}
	}
	return &Archive{cfg, deps}, nil
}

// sweep removes every object below dir that the manifest does not name: what
// killed attempts left, and what a rewrite replaced.
func (a *Archive) sweep(ctx context.Context, dir string, named map[string]bool) error {
	var stray []string
	for o, err := range a.deps.Storage.List(ctx, dir+"/") {
		if err != nil {
			return fmt.Errorf("look for leftovers of %s: %w", dir, err)
		}
		if !named[o.Name] {
			stray = append(stray, o.Name)
		}
	}
	for _, name := range stray {
		if err := a.deps.Storage.Delete(ctx, name); err != nil {
			return fmt.Errorf("remove a leftover of %s: %w", dir, err)
		}
	}
	if len(stray) > 0 {
		a.deps.Log.Info("leftovers of an export removed", "export", dir, "objects", len(stray))
	}
	return nil
}

package erasure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/db/processordb"
)

// Job brings erasures through their stores.
type Job struct {
	cfg  Config
	deps Deps
}

// NewJob makes the job.
func NewJob(cfg Config, deps Deps) *Job { return &Job{cfg.withDefaults(), deps.withDefaults()} }

// Result of one run.
type Result struct {
	Worked int // erasures that something was done for
	Rows   int // emptied or deleted
	Done   int // erasures that are through
	Failed int
}

// maxErasures bounds those of one run; each is worked on page by page.
const maxErasures = 100

// Run works until ctx ends.
func (j *Job) Run(ctx context.Context) error {
	tick := time.NewTicker(j.cfg.Every)
	defer tick.Stop()
	for {
		res, err := j.RunOnce(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			j.deps.Log.Warn("erasures could not be read", "error", err)
		case res.Rows > 0 || res.Done > 0 || res.Failed > 0:
			j.deps.Log.Info("erasures went on", "worked", res.Worked, "rows", res.Rows, "done", res.Done, "failed", res.Failed)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// RunOnce does what is due. An erasure that fails is tried again later and holds
// up no other.
func (j *Job) RunOnce(ctx context.Context) (res Result, err error) {
	db := processordb.New(j.deps.Pool)
	due, err := db.DueErasures(ctx, processordb.DueErasuresParams{At: j.deps.Now(), MaxRows: maxErasures})
	if err != nil {
		return res, fmt.Errorf("find erasures: %w", err)
	}
	for _, row := range due {
		if ctx.Err() != nil {
			return res, ctx.Err()
		}
		e := &erasure{id: row.ErasureID, tenant: row.TenantID, contacts: row.Contacts, cause: row.Cause, at: row.ErasedAt, passes: int(row.Passes)}
		if e.passes == 0 && !row.Quiet && j.deps.Now().Before(e.at.Add(j.cfg.Quiet)) {
			continue
		}
		res.Worked++
		done, err := j.advance(ctx, e)
		res.Rows += e.rows
		switch {
		case ctx.Err() != nil:
			return res, ctx.Err()
		case err != nil:
			res.Failed++
			j.deps.Metrics.failed()
			j.fail(ctx, e, int(row.Failures), err)
		case done:
			res.Done++
		}
	}
	if m := j.deps.Metrics; m != nil {
		o, err := db.OpenErasures(ctx)
		if err != nil {
			return res, fmt.Errorf("count open erasures: %w", err)
		}
		m.open.Set(float64(o.Open))
		m.oldest.Set(o.OldestSeconds)
	}
	return res, nil
}

// fail notes why an erasure stands; the error's text is ours and the database's,
// without values.
func (j *Job) fail(ctx context.Context, e *erasure, failures int, why error) {
	j.deps.Log.Error("an erasure failed and is tried again", "erasure_id", e.id, "error", why)
	next := j.deps.Now().Add(min(j.cfg.Retry<<min(failures, 6), 10*time.Minute))
	err := processordb.New(j.deps.Pool).FailErasure(ctx, processordb.FailErasureParams{ErasureID: e.id, Why: class(why), NextAt: &next})
	if err != nil && ctx.Err() == nil {
		j.deps.Log.Error("a failed erasure could not be noted", "erasure_id", e.id, "error", err)
	}
}

// class is the store that failed: all that an error may say beside the log.
func class(err error) string {
	var se *storeError
	if errors.As(err, &se) {
		return se.store
	}
	return "unknown"
}

type storeError struct {
	store string
	err   error
}

func (e *storeError) Error() string { return fmt.Sprintf("erase from %s: %v", e.store, e.err) }
func (e *storeError) Unwrap() error { return e.err }

// erasure is one under way.
type erasure struct {
	id       uuid.UUID
	tenant   uuid.UUID
	contacts []uuid.UUID
	cause    string
	at       time.Time
	passes   int // all stores were gone through so often

	rows int
	last bool     // the pass under way is the last
	seek *seeking // of the dead letters' and jobs' search; nil until it is asked for
}

// page is what one transaction did to a store.
type page struct {
	rows  int
	next  any  // where the next page begins; nil: the store is through
	later bool // something could not be done now
}

// store is one that is gone through in every pass.
type store struct {
	name string
	page func(ctx context.Context, tx pgx.Tx, e *erasure, at json.RawMessage) (page, error)
}

func (j *Job) sweeps() []store {
	return []store{{StoreJobs, j.jobs}, {StoreBlasts, j.blasts}, {StoreEvents, j.events}, {StoreSends, j.sends}, {StoreLetters, j.letters}}
}

// advance brings an erasure as far as it can go now.
func (j *Job) advance(ctx context.Context, e *erasure) (done bool, err error) {
	times, open := j.cfg.passes(e.cause), false
	for e.passes < len(times) && !j.deps.Now().Before(e.at.Add(times[e.passes])) && !open {
		e.last = e.passes == len(times)-1
		if open, err = j.pass(ctx, e); err != nil {
			return false, err
		}
		if !open {
			e.passes++
		}
	}
	waits, err := j.timed(ctx, e)
	if err != nil {
		return false, err
	}
	p := processordb.PassErasureParams{ErasureID: e.id, Passes: int32(e.passes)}
	switch {
	case open:
		p.NextAt = new(j.deps.Now().Add(j.cfg.Retry))
	case e.passes < len(times):
		p.NextAt = new(e.at.Add(times[e.passes]))
	case waits != nil:
		p.NextAt = waits
	default:
		p.DoneAt, done = new(j.deps.Now()), true
	}
	if waits != nil && p.NextAt != nil && waits.Before(*p.NextAt) {
		p.NextAt = waits
	}
	if err := processordb.New(j.deps.Pool).PassErasure(ctx, p); err != nil {
		return false, fmt.Errorf("note an erasure's pass: %w", err)
	}
	return done, nil
}

// pass goes through every store that this pass has not been through; open says
// that one could not be finished.
func (j *Job) pass(ctx context.Context, e *erasure) (open bool, err error) {
	for _, s := range j.sweeps() {
		later, err := j.sweep(ctx, e, s)
		if err != nil {
			return false, &storeError{s.name, err}
		}
		open = open || later
	}
	later, err := j.exports(ctx, e)
	if err != nil {
		return false, &storeError{StoreExports, err}
	}
	return open || later, nil
}

// sweep goes through one store, a transaction a page. Another process that does
// the same waits for ours and goes on behind it.
func (j *Job) sweep(ctx context.Context, e *erasure, s store) (later bool, err error) {
	for more := true; more; {
		var p page
		err := pgx.BeginFunc(ctx, j.deps.Pool, func(tx pgx.Tx) error {
			db := processordb.New(tx)
			if _, err := db.HoldErasure(ctx, e.id); err != nil {
				return fmt.Errorf("hold the erasure: %w", err)
			}
			at, through, err := j.position(ctx, db, e, s.name)
			if err != nil || through {
				more = false
				return err
			}
			if p, err = s.page(ctx, tx, e, at); err != nil {
				return err
			}
			later = later || p.later
			more = p.next != nil
			return j.step(ctx, db, e, s.name, p, !more && !later)
		})
		if err != nil {
			return false, err
		}
		e.rows += p.rows
		j.deps.Metrics.did(s.name, p.rows)
	}
	return later, nil
}

// position gives where a store stands in the pass under way; through: it has been
// gone through, or is none of this erasure's.
func (j *Job) position(ctx context.Context, db *processordb.Queries, e *erasure, name string) (at json.RawMessage, through bool, err error) {
	stores, err := db.ErasureStores(ctx, e.id)
	if err != nil {
		return nil, false, fmt.Errorf("read how far the erasure is: %w", err)
	}
	i := slices.IndexFunc(stores, func(s processordb.ErasureStoresRow) bool { return s.Store == name })
	if i < 0 || int(stores[i].Passes) > e.passes {
		return nil, true, nil
	}
	return stores[i].Cursor, false, nil
}

// step notes a page. A store that is through counts the pass; one that was left
// open begins again.
func (j *Job) step(ctx context.Context, db *processordb.Queries, e *erasure, name string, p page, through bool) error {
	s := processordb.StepErasureStoreParams{ErasureID: e.id, Store: name, More: int64(p.rows), Passes: int32(e.passes)}
	if p.next != nil {
		at, err := json.Marshal(p.next)
		if err != nil {
			return fmt.Errorf("note a page: %w", err)
		}
		s.At = at
	}
	if through {
		s.Passes, s.DoneAt = int32(e.passes+1), new(j.deps.Now())
	}
	if err := db.StepErasureStore(ctx, s); err != nil {
		return fmt.Errorf("note a page: %w", err)
	}
	return nil
}

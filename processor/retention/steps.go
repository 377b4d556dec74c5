package retention

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/processor/partition"
)

// States of a ledger row.
const (
	stateDetached = "detached"
	stateExported = "exported"
	stateVerified = "verified"
	stateDropped  = "dropped"
)

// Points at which a run may die; a test dies at each.
const (
	pointDetaching = "detaching" // before the commit
	pointDetached  = "detached"
	pointGrown     = "grown"
	pointStored    = "stored" // the objects are there, the ledger does not know
	pointExported  = "exported"
	pointRead      = "read back" // the ledger does not know
	pointVerified  = "verified"
	pointDropping  = "dropping" // before the commit
	pointDropped   = "dropped"
)

// errChanged says that a table's rows are not those that were exported.
var errChanged = errors.New("rows changed after the export")

// lockTries of a lock that readers and writers of a month are in the way of. A
// try waits a second at most, so that nobody queues behind it for longer.
const lockTries = 10

// rounds is how often a run exports a table anew whose rows keep changing.
const rounds = 3

// detach takes the leaf out and puts an empty one in its place. Never
// CONCURRENTLY: while that waits, a late record of the month finds no leaf, and
// none can be attached.
func (j *Job) detach(ctx context.Context, d due, run uuid.UUID) error {
	err := partition.Retry(ctx, lockTries, func() error {
		return pgx.BeginFunc(ctx, j.deps.Pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT core.detach_leaf($1, $2::oid::regclass, $3)`, d.Parent, d.OID, run); err != nil {
				return err
			}
			return j.probe(pointDetaching)
		})
	})
	if err != nil {
		return fmt.Errorf("detach %s: %w", d.Name, err)
	}
	j.deps.Log.Info("leaf detached", "table", d.Name, "run", run, "parent", d.Parent)
	return j.probe(pointDetached)
}

// finish brings a detached table to its end, from wherever the ledger says that
// it stands.
func (j *Job) finish(ctx context.Context, run uuid.UUID, res *Result) error {
	for changed := 0; ; {
		l, err := processordb.New(j.deps.Pool).OpenLeaf(ctx, run)
		if err != nil {
			return fmt.Errorf("read retention run %s: %w", run, err)
		}
		if l.State == stateDropped {
			res.Dropped = append(res.Dropped, l.Leaf)
			return nil
		}
		reason, err := j.step(ctx, l, res)
		switch {
		case errors.Is(err, errChanged) && changed < rounds:
			changed++
			continue
		case err != nil:
			return j.trouble(ctx, l, err)
		case reason != "":
			res.Held = append(res.Held, Held{l.Leaf, reason})
			return nil
		}
	}
}

// trouble keeps the reason where operators look.
func (j *Job) trouble(ctx context.Context, l processordb.CoreRetentionLedger, cause error) error {
	wctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	text := cause.Error()
	if err := processordb.New(j.deps.Pool).LeafTrouble(wctx, processordb.LeafTroubleParams{RunID: l.RunID, Trouble: &text}); err != nil {
		cause = errors.Join(cause, fmt.Errorf("note the trouble: %w", err))
	}
	return fmt.Errorf("retention of %s, %s: %w", l.Leaf, l.State, cause)
}

// step takes the next step; reason says what it waits for instead.
func (j *Job) step(ctx context.Context, l processordb.CoreRetentionLedger, res *Result) (reason string, err error) {
	if j.deps.Exporter == nil {
		return ErrNoStorage.Error(), nil
	}
	switch l.State {
	case stateDetached:
		if err := j.grow(ctx, l, res); err != nil {
			return "", err
		}
		return "", j.export(ctx, l.RunID)
	case stateExported:
		return "", j.verify(ctx, l)
	case stateVerified:
		return j.drop(ctx, l, res)
	}
	return "", fmt.Errorf("unknown state %q", l.State)
}

// grow moves the rows of tenants whose plan keeps them for longer now.
func (j *Job) grow(ctx context.Context, l processordb.CoreRetentionLedger, res *Result) error {
	var moved int64
	err := partition.Retry(ctx, lockTries, func() (err error) {
		moved, err = processordb.New(j.deps.Pool).MoveGrown(ctx, processordb.MoveGrownParams{RunID: l.RunID, At: j.now()})
		return err
	})
	if err != nil {
		return fmt.Errorf("move what grown plans keep: %w", err)
	}
	res.Moved += moved
	return j.probe(pointGrown)
}

func (j *Job) export(ctx context.Context, run uuid.UUID) error {
	l, err := processordb.New(j.deps.Pool).OpenLeaf(ctx, run) // a move has named another export
	if err != nil {
		return fmt.Errorf("read retention run %s: %w", run, err)
	}
	manifest, d, err := j.deps.Exporter.Export(ctx, Leaf{Run: *l.ExportRun, Parent: l.Parent, Table: l.Leaf, OID: l.LeafOid.Uint32,
		From: l.LowerBound.UTC(), To: l.UpperBound.UTC(), RetentionMonths: int(l.RetentionMonths)})
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	if err := j.probe(pointStored); err != nil {
		return err
	}
	n, err := processordb.New(j.deps.Pool).LeafExported(ctx, processordb.LeafExportedParams{RunID: run, ExportRun: l.ExportRun,
		Object: &manifest, Rows: &d.Rows, Sha256: d.SHA256[:], At: new(j.now())})
	if err := advanced(n, err); err != nil {
		return err
	}
	j.deps.Log.Info("leaf exported", "table", l.Leaf, "run", run, "rows", d.Rows, "manifest", manifest)
	return j.probe(pointExported)
}

// verify reads the stored objects back. What does not hold what was exported is
// exported anew, and so is what could not be read by two runs: the first time
// storage may just have been away.
func (j *Job) verify(ctx context.Context, l processordb.CoreRetentionLedger) error {
	d, err := j.deps.Exporter.Verify(ctx, *l.Object)
	if err != nil {
		err = fmt.Errorf("read %s back: %w", *l.Object, err)
		if l.Trouble != nil {
			return j.again(ctx, l, err)
		}
		return err
	}
	if d != recorded(l) {
		return j.again(ctx, l, fmt.Errorf("%s holds %d rows, %d were exported, or their digests differ", *l.Object, d.Rows, *l.Rows))
	}
	if err := j.probe(pointRead); err != nil {
		return err
	}
	n, err := processordb.New(j.deps.Pool).LeafVerified(ctx, processordb.LeafVerifiedParams{RunID: l.RunID, ExportRun: l.ExportRun})
	if err := advanced(n, err); err != nil {
		return err
	}
	return j.probe(pointVerified)
}

// again makes an export void, and gives its cause back.
func (j *Job) again(ctx context.Context, l processordb.CoreRetentionLedger, cause error) error {
	if ctx.Err() != nil { // that says nothing of the export
		return cause
	}
	text := cause.Error()
	n, err := processordb.New(j.deps.Pool).ExportAgain(ctx, processordb.ExportAgainParams{RunID: l.RunID, ExportRun: l.ExportRun, Trouble: &text})
	return errors.Join(cause, advanced(n, err))
}

// advanced: a row that is not where this run left it is another run's.
func advanced(n int64, err error) error {
	if err != nil {
		return fmt.Errorf("write the retention ledger: %w", err)
	}
	if n == 0 {
		return errors.New("another run has taken this leaf over")
	}
	return nil
}

func recorded(l processordb.CoreRetentionLedger) Digest {
	return Digest{Rows: *l.Rows, SHA256: [32]byte(l.Sha256)}
}

// drop ends a verified table: under a lock that keeps everybody away it must be
// what was exported, published, and nobody's who keeps it for longer.
func (j *Job) drop(ctx context.Context, l processordb.CoreRetentionLedger, res *Result) (reason string, err error) {
	if l.Parent == History {
		if reason, err = j.sendsFirst(ctx, l.LowerBound, l.RetentionMonths); reason != "" || err != nil {
			return reason, err
		}
	}
	err = partition.Retry(ctx, lockTries, func() error {
		return pgx.BeginFunc(ctx, j.deps.Pool, func(tx pgx.Tx) error {
			reason, err := j.dropIn(ctx, tx, l)
			switch {
			case err != nil:
				return err
			case reason != "":
				return errHeldBack(reason)
			}
			return j.probe(pointDropping)
		})
	})
	var held errHeldBack
	switch {
	case errors.As(err, &held):
		return string(held), nil
	case errors.Is(err, errChanged):
		return "", j.again(ctx, l, err)
	case err != nil:
		return "", fmt.Errorf("drop: %w", err)
	}
	if m := j.deps.Metrics; m != nil {
		m.dropped.WithLabelValues(l.Parent).Inc()
	}
	j.deps.Log.Info("leaf dropped", "table", l.Leaf, "run", l.RunID, "rows", *l.Rows, "manifest", *l.Object)
	return "", j.probe(pointDropped)
}

// errHeldBack rolls a transaction back that has to wait for something.
type errHeldBack string

func (e errHeldBack) Error() string { return "has to wait: " + string(e) }

func (j *Job) dropIn(ctx context.Context, tx pgx.Tx, l processordb.CoreRetentionLedger) (reason string, err error) {
	db := processordb.New(tx)
	if err := db.LockDetached(ctx, l.RunID); err != nil {
		return "", err
	}
	n, err := db.DetachedUnpublished(ctx, l.RunID)
	if err != nil || n > 0 {
		return fmt.Sprintf("%d of its events are not published yet", n), err
	}
	grown, err := db.HasGrown(ctx, processordb.HasGrownParams{RunID: l.RunID, At: j.now()})
	if err != nil {
		return "", err
	}
	if grown { // the next round moves them
		return "", fmt.Errorf("%w: a plan has grown", errChanged)
	}
	d, err := j.deps.Exporter.DigestTable(ctx, tx, l.Leaf)
	if err != nil {
		return "", fmt.Errorf("digest the table: %w", err)
	}
	if d != recorded(l) {
		return "", errChanged
	}
	return "", db.DropDetached(ctx, processordb.DropDetachedParams{RunID: l.RunID, TopicRetention: j.cfg.TopicRetention, At: j.now()})
}

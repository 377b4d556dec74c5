package stream

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/internal/ids"
)

// Place names a stage's partition.
type Place struct {
	Stage, Topic string // the topic without the deployment's prefix
	Partition    int32
}

// ErrNoPosition says that a stage has never stood in a partition.
var ErrNoPosition = errors.New("the stage has no position there: it begins at the log's start by itself")

// Translate says where a stage goes on in the log that has taken the place of the
// one its position is of. Its owner, should one run, is fenced and starts there.
func Translate(ctx context.Context, pool *pgxpool.Pool, p Place, topicID [16]byte, next int64) error {
	const sql = `UPDATE core.stream_positions SET topic_id = $4, next_offset = $5, epoch = epoch + 1, stopped = NULL, updated_at = now()
WHERE stage = $1 AND topic = $2 AND partition = $3`
	tag, err := pool.Exec(ctx, sql, p.Stage, p.Topic, p.Partition, uuid.UUID(topicID), next)
	if err != nil {
		return fmt.Errorf("translate a position: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("partition %d of %s in stage %s: %w", p.Partition, p.Topic, p.Stage, ErrNoPosition)
	}
	return nil
}

// Restore is what Restored did.
type Restore struct {
	ID               uuid.UUID
	Positions, Lanes int64
}

// restoreEpochs is more than any database has take-overs between two backups: the
// epochs after a restore must be above those that were given out before it.
const restoreEpochs = 1_000_000

// A lane that nobody has owned yet stays so: its first owner comes with the epoch
// of a fresh lease.
const raiseLanes = `UPDATE core.outbox_lanes SET epoch = CASE WHEN epoch > 0 THEN epoch + $1 ELSE 0 END, incarnation = incarnation + 1`

// Restored says that the database was restored to an earlier time while Kafka was
// not. Every owner of before is fenced, for positions, lanes and leases have
// fallen back to epochs that were given out already; and each lane begins a new
// incarnation, for its sequences will be given out a second time; the lane itself
// notes up to where they mean the same (restored_counter).
func Restored(ctx context.Context, pool *pgxpool.Pool, by string) (done Restore, err error) {
	done.ID = ids.New()
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE core.stream_positions SET epoch = epoch + $1, updated_at = now()`, restoreEpochs)
		if err != nil {
			return err
		}
		done.Positions = tag.RowsAffected()
		if _, err := tx.Exec(ctx, `UPDATE core.leases SET epoch = epoch + $1, until = clock_timestamp() - interval '1 second'`, restoreEpochs); err != nil {
			return err
		}
		if tag, err = tx.Exec(ctx, raiseLanes, restoreEpochs); err != nil {
			return err
		}
		done.Lanes = tag.RowsAffected()
		const restore = `INSERT INTO core.database_restores (restore_id, restored_by, positions, lanes) VALUES ($1, $2, $3, $4)`
		_, err = tx.Exec(ctx, restore, done.ID, by, done.Positions, done.Lanes)
		return err
	})
	if err != nil {
		return done, fmt.Errorf("begin anew after a restore: %w", err)
	}
	return done, nil
}

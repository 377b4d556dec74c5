package sends

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/deadletter"
	"github.com/softcrum/carril/internal/ids"
)

// reasonReplayed is of a job that a person has let go again.
const reasonReplayed = "replayed"

// Replays gives messages that were given up another chance, of every rail; it
// needs no rail of its own.
type Replays struct{}

var _ deadletter.Sends = Replays{}

// Replay lets the job of a send go again inside tx, with all its tries, for those
// of its messages whose dead letters are replayed: as a new generation where the
// last one is known not to have been taken, under its own key where that is not
// known and the provider still remembers it. The error wraps deadletter.ErrSend
// where only a person can know what became of the message.
func (Replays) Replay(ctx context.Context, tx pgx.Tx, send uuid.UUID, _ string) error {
	at, worker, job, state, err := jobOf(ctx, tx, send)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("%w (its job is not kept any longer)", deadletter.ErrSend)
	}
	if err != nil {
		return fmt.Errorf("find the job of send %s: %w", send, err)
	}
	switch state {
	case StateDead, StateSent, StateFailed: // a batch may have sent the others, or a replay before this one
	case StateHeld: // another message of the same batch was replayed just now
		return ReopenBlast(ctx, tx, worker, job, send)
	default:
		return fmt.Errorf("%w (its job is %s)", deadletter.ErrSend, state)
	}
	// The sweep takes it from there as what a paused sender held.
	const free = `UPDATE core.processed_jobs SET state = 'held', reason = '` + reasonReplayed + `', attempts = 0, first_attempt = NULL, waited = '0',
    lease = NULL, lease_until = NULL, not_before = NULL, updated_at = now() WHERE id_time = $1 AND worker = $2 AND job_id = $3`
	if _, err := tx.Exec(ctx, free, at, worker, job); err != nil {
		return fmt.Errorf("let job %s go again: %w", job, err)
	}
	return ReopenBlast(ctx, tx, worker, job, send)
}

// jobOf finds and locks the job that carries a send. A single's job has the
// send's id; a batch's began no earlier than its messages were asked for.
func jobOf(ctx context.Context, tx pgx.Tx, send uuid.UUID) (at time.Time, worker string, job uuid.UUID, state string, err error) {
	const single = `SELECT id_time, worker, job_id, state FROM core.processed_jobs
WHERE id_time = $1 AND job_id = $2 AND starts_with(worker, 'rail:') FOR UPDATE`
	err = tx.QueryRow(ctx, single, ids.Time(send), send).Scan(&at, &worker, &job, &state)
	if !errors.Is(err, pgx.ErrNoRows) {
		return at, worker, job, state, err
	}
	const batch = `SELECT id_time, worker, job_id, state FROM core.processed_jobs
WHERE id_time >= $1 AND id_time > now() - interval '40 days' AND starts_with(worker, 'rail:') AND state IN ('dead', 'sent', 'failed', 'held', 'needs_review')
    AND payload @> jsonb_build_object('messages', jsonb_build_array(jsonb_build_object('send_id', $2::text)))
ORDER BY id_time LIMIT 1 FOR UPDATE`
	err = tx.QueryRow(ctx, batch, ids.Time(send), send.String()).Scan(&at, &worker, &job, &state)
	return at, worker, job, state, err
}

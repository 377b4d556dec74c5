package blast

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Start is how a draft begins.
type Start struct {
	At *time.Time // nil or past: now
	// WithOpenUploads starts although a file of recipients has not come to its end.
	WithOpenUploads bool
	// OverQuota starts although the provider's quota does not take it all: the rest
	// waits for the next day's.
	OverQuota bool
}

// maxAhead is how far ahead a start may lie.
const maxAhead = 365 * 24 * time.Hour

// Start begins a draft, now or later. It is refused where nothing could be sent:
// without recipients, without a sender whose domain is verified, with a
// recipients' file that broke off; and where the provider's quota has no room for
// it, unless that is said to be meant. A quota that cannot be seen refuses
// nothing: the answer's Quota says so. Starting what has started changes nothing;
// for another time it is refused.
func (s *Store) Start(ctx context.Context, tenant, id uuid.UUID, how Start) (*Blast, error) {
	if how.At != nil && how.At.After(time.Now().Add(maxAhead)) {
		return nil, refuse("invalid_field", "/start_at", "A blast starts within a year.")
	}
	fit, over := s.fitting(ctx, tenant, id, how)
	var refused *Refusal
	if over != nil && !errors.As(over, &refused) {
		return nil, over
	}
	b, err := s.move(ctx, tenant, id, "start a blast", func(tx pgx.Tx, b *Blast) error {
		switch b.State {
		case Draft:
		case Scheduled, Preparing, Running:
			return sameStart(b, how.At)
		default:
			return refuseState("cannot_start", "Only a draft starts; this blast is "+b.State+".")
		}
		if err := startable(ctx, tx, b, how); err != nil {
			return err
		}
		if over != nil {
			return over
		}
		const sql = `UPDATE messaging.blasts SET start_at = coalesce($2, now()), updated_at = now(), state_reason = NULL,
    state = CASE WHEN $2 > now() THEN 'scheduled' ELSE $3 END, started_at = CASE WHEN $2 > now() THEN NULL ELSE date_trunc('milliseconds', now()) END WHERE blast_id = $1`
		_, err := tx.Exec(ctx, sql, id, how.At, b.begins(false))
		return err
	})
	if err == nil {
		b.Quota = fit
	}
	return b, err
}

// sameStart refuses to take another time for one that is set: an answer of
// success would be believed.
func sameStart(b *Blast, at *time.Time) error {
	if at == nil || b.StartAt == nil || at.Truncate(time.Microsecond).Equal(*b.StartAt) { // as PostgreSQL keeps it
		return nil
	}
	return refuseState("already_started", "The blast is "+b.State+", with its start at "+b.StartAt.UTC().Format(time.RFC3339Nano)+"; for another time cancel it and make another.")
}

// begins is the state in which a blast begins to go out.
func (b *Blast) begins(prepared bool) string {
	if b.Audience.Type == FromContacts && !prepared {
		return Preparing
	}
	return Running
}

func startable(ctx context.Context, tx pgx.Tx, b *Blast, how Start) error {
	var open int
	var sender *bool
	const sql = `SELECT (SELECT count(*) FROM messaging.blast_uploads WHERE blast_id = $1 AND state = 'open'),
    (SELECT verified FROM messaging.senders WHERE tenant_id = $2 AND channel = $3)`
	if err := tx.QueryRow(ctx, sql, b.ID, b.tenant, b.Channel).Scan(&open, &sender); err != nil {
		return fmt.Errorf("look at what a blast needs: %w", err)
	}
	switch {
	case b.Audience.Type == FromUpload && b.Recipients == 0:
		return refuseState("no_recipients", "Upload recipients first.")
	case open > 0 && !how.WithOpenUploads:
		return refuseState("upload_open", "A file of recipients has not come to its end: send it again under the same upload_id, or start with with_open_uploads.")
	case sender == nil && b.Channel == "email":
		return refuseState("sender_missing", "The tenant has no sender for this channel.")
	case sender != nil && !*sender:
		return refuseState("sender_unverified", "The sender's domain is not verified yet.")
	}
	return nil
}

// Pause stops a blast at once: what stands in the rail's topic is taken back,
// and no more than the requests in hand still leaves.
func (s *Store) Pause(ctx context.Context, tenant, id uuid.UUID) (*Blast, error) {
	return s.move(ctx, tenant, id, "pause a blast", func(tx pgx.Tx, b *Blast) error {
		switch b.State {
		case Paused:
			return nil
		case Scheduled, Preparing, Running:
		default:
			return refuseState("cannot_pause", "Only what is scheduled or under way is paused; this blast is "+b.State+".")
		}
		_, err := tx.Exec(ctx, `UPDATE messaging.blasts SET state = 'paused', state_reason = 'by_hand', updated_at = now() WHERE blast_id = $1`, id)
		return err
	})
}

// Resume lets a paused blast go on where it was. What its outcomes were until
// now no longer pauses it.
func (s *Store) Resume(ctx context.Context, tenant, id uuid.UUID) (*Blast, error) {
	return s.move(ctx, tenant, id, "resume a blast", func(tx pgx.Tx, b *Blast) error {
		switch b.State {
		case Paused:
		case Scheduled, Preparing, Running:
			return nil
		default:
			return refuseState("cannot_resume", "Only a paused blast is resumed; this blast is "+b.State+".")
		}
		const sql = `UPDATE messaging.blasts SET state_reason = NULL, updated_at = now(), judged_from = now(),
    state = CASE WHEN started_at IS NULL AND start_at > now() THEN 'scheduled' WHEN prepared_at IS NULL AND audience ->> 'type' = 'contacts' THEN 'preparing' ELSE 'running' END,
    started_at = CASE WHEN started_at IS NULL AND start_at > now() THEN NULL ELSE coalesce(started_at, date_trunc('milliseconds', now())) END
WHERE blast_id = $1`
		_, err := tx.Exec(ctx, sql, id)
		return err
	})
}

// Cancel ends a blast for good. Recipients that wait are cancelled with it;
// batches that stand in the rail's topic at their claim. What was sent stays so.
func (s *Store) Cancel(ctx context.Context, tenant, id uuid.UUID) (*Blast, error) {
	return s.move(ctx, tenant, id, "cancel a blast", func(tx pgx.Tx, b *Blast) error {
		switch b.State {
		case Cancelled:
			return nil
		case Done:
			return refuseState("cannot_cancel", "This blast is done.")
		}
		// A million rows are not written for this: their place says it.
		const sql = `UPDATE messaging.blasts SET state = 'cancelled', state_reason = 'by_hand', cancelled_from = fed, finished_at = now(), updated_at = now() WHERE blast_id = $1`
		if _, err := tx.Exec(ctx, sql, id); err != nil {
			return err
		}
		const count = `INSERT INTO messaging.blast_counts (blast_id, at, what, reason, n)
SELECT $1, date_bin('10 seconds', now(), 'epoch'), w, r, n FROM (VALUES ('pending', '', -$2::bigint), ('cancelled', 'by_hand', $2::bigint)) AS v(w, r, n) WHERE n <> 0`
		_, err := tx.Exec(ctx, count, id, b.Recipients-b.fed)
		return err
	})
}

// move changes a blast under its row's lock and gives what it has become.
func (s *Store) move(ctx context.Context, tenant, id uuid.UUID, what string, f func(tx pgx.Tx, b *Blast) error) (*Blast, error) {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		b, err := read(ctx, tx, tenant, id, "FOR UPDATE")
		if err != nil {
			return err
		}
		return f(tx, b)
	})
	if err != nil {
		return nil, said(what, err)
	}
	return s.Get(ctx, tenant, id)
}

// Allow lets a tenant's marketing on a channel go on that its blasts' outcomes
// have stopped, and forgets them. ErrNone where it is not stopped.
func (s *Store) Allow(ctx context.Context, tenant uuid.UUID, channel string) error {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		const sql = `UPDATE messaging.tenant_rails SET paused_at = NULL, paused_by = NULL WHERE tenant_id = $1 AND channel = $2 AND rail = 'marketing' AND paused_at IS NOT NULL`
		tag, err := tx.Exec(ctx, sql, tenant, channel)
		if err == nil && tag.RowsAffected() == 0 {
			return ErrNone
		}
		if err == nil {
			_, err = tx.Exec(ctx, `UPDATE messaging.blasts SET tripped_at = NULL WHERE tenant_id = $1 AND channel = $2 AND tripped_at IS NOT NULL`, tenant, channel)
		}
		return err
	})
	if err != nil && !errors.Is(err, ErrNone) {
		return fmt.Errorf("let a tenant's marketing go on: %w", err)
	}
	return err
}

// Over says that a state is an end.
func Over(state string) bool { return slices.Contains([]string{Done, Cancelled}, state) }

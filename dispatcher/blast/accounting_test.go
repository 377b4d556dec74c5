package blast

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/softcrum/carril/internal/testkit"
)

// Whatever happens to a blast, in whatever order, its counts are those of its
// recipients, row by row, and add up to them (architecture §9).
func TestAccountingAddsUpWhateverHappens(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ctx := context.Background()
	outcomes := []any{nil, "sent", "failed", "expired", "blocked", "cancelled", "needs_review", "dead"}
	rapid.Check(t, func(r *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(r, "recipients")
		b := d.filled(n)
		_, err := d.Start(ctx, d.tenant, b.ID, Start{})
		require.NoError(r, err)
		fed := 0
		for range rapid.IntRange(1, 12).Draw(r, "steps") {
			switch rapid.SampledFrom([]string{"feed", "outcomes", "outcomes", "marks", "pause", "resume", "cancel", "fold", "finish"}).Draw(r, "step") {
			case "feed":
				k := rapid.IntRange(0, n-fed).Draw(r, "feed")
				tag, err := d.pool.Exec(ctx, `UPDATE messaging.blasts SET fed = fed + $2 WHERE blast_id = $1 AND state = 'running'`, b.ID, k)
				require.NoError(r, err)
				fed += k * int(tag.RowsAffected())
			case "outcomes":
				if fed > 0 {
					from := rapid.IntRange(0, fed-1).Draw(r, "from")
					o := rapid.SampledFrom(outcomes).Draw(r, "outcome")
					d.exec(`UPDATE messaging.blast_recipients SET outcome = $4, reason = $5 WHERE blast_id = $1 AND position >= $2 AND position < $3`,
						b.ID, from, min(fed, from+rapid.IntRange(1, 10).Draw(r, "many")), o, map[bool]any{true: "why", false: nil}[rapid.Bool().Draw(r, "reason") && o != nil])
					if o == nil { // a replay, which opens an ended blast again
						d.exec(`UPDATE messaging.blasts SET state = 'running', finished_at = NULL WHERE blast_id = $1 AND state = 'done'`, b.ID)
					}
				}
			case "marks":
				if fed > 0 {
					d.exec(`UPDATE messaging.blast_recipients SET marks = marks | $3 WHERE blast_id = $1 AND position = $2`, b.ID, rapid.IntRange(0, fed-1).Draw(r, "position"), rapid.SampledFrom([]int16{65, 66, 72, 80}).Draw(r, "mark"))
				}
			case "pause":
				_, _ = d.Pause(ctx, d.tenant, b.ID)
			case "resume":
				_, _ = d.Resume(ctx, d.tenant, b.ID)
			case "cancel":
				_, _ = d.Cancel(ctx, d.tenant, b.ID)
			case "fold":
				_, err := d.pool.Exec(ctx, foldSQL, b.ID, time.Duration(rapid.IntRange(0, 1).Draw(r, "kept"))*time.Hour)
				require.NoError(r, err)
			case "finish":
				_, err := d.Finish(ctx, "email")
				require.NoError(r, err)
			}
			got := d.exact(b.ID)
			if got.State == Done {
				require.Zero(r, got.Progress.Pending)
			}
		}
		marked := map[string]int64{}
		rep, err := d.Report(ctx, d.tenant, b.ID)
		require.NoError(r, err)
		for name, bit := range map[string]int{"delivered": 1, "opened": 2, "bounced": 8, "complained": 16} {
			marked[name] = d.count(`SELECT count(*) FROM messaging.blast_recipients WHERE blast_id = $1 AND marks & $2::int <> 0`, b.ID, bit)
		}
		require.Equal(r, [4]int64{marked["delivered"], marked["opened"], marked["bounced"], marked["complained"]}, [4]int64{rep.Delivered, rep.Opened, rep.Bounced, rep.Complained})
	})
}

func TestBreaker(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ctx := context.Background()
	mark := func(id uuid.UUID, from, to int, marks int16) {
		d.exec(`UPDATE messaging.blast_recipients SET outcome = 'sent', marks = $4 WHERE blast_id = $1 AND position >= $2 AND position < $3`, id, from, to, marks)
	}
	running := func(n int) uuid.UUID {
		b := d.filled(n)
		_, err := d.Start(ctx, d.tenant, b.ID, Start{})
		require.NoError(t, err)
		d.exec(`UPDATE messaging.blasts SET fed = recipients WHERE blast_id = $1`, b.ID)
		return b.ID
	}
	state := func(id uuid.UUID) string {
		b, err := d.Get(ctx, d.tenant, id)
		require.NoError(t, err)
		if b.StateReason != nil {
			return b.State + " " + *b.StateReason
		}
		return b.State
	}
	watch := func() {
		_, err := d.Watch(ctx, "email")
		require.NoError(t, err)
	}
	id := running(2_000)
	mark(id, 0, 30, 72) // all bounce, but 30 say nothing
	watch()
	require.Equal(t, "running", state(id))
	mark(id, 30, 1_000, 65)
	watch()
	require.Equal(t, "running", state(id), "3 % bounce")
	mark(id, 1_000, 1_020, 72)
	watch()
	require.Equal(t, "paused bounces", state(id), "50 of 1,020")
	d.exec(`UPDATE messaging.blast_counts SET at = at - interval '20 seconds'`) // the ten seconds of before are over
	_, err := d.Resume(ctx, d.tenant, id)
	require.NoError(t, err)
	watch()
	require.Equal(t, "running", state(id), "who resumes it knows what was")
	mark(id, 1_020, 1_100, 72)
	d.exec(`UPDATE messaging.blasts SET judged_from = now() - interval '10 seconds' WHERE blast_id = $1`, id)
	watch()
	require.Equal(t, "paused bounces", state(id), "and what comes afterwards counts")

	// Complaints: above 0.1 %, but never one alone.
	other := running(1_000)
	mark(other, 0, 500, 65)
	mark(other, 500, 501, 81)
	watch()
	require.Equal(t, "running", state(other))
	require.Zero(t, d.count(`SELECT count(*) FROM messaging.tenant_rails WHERE paused_at IS NOT NULL`))
	mark(other, 501, 502, 81)
	watch()
	require.Equal(t, "paused complaints", state(other))

	// The third time stops the tenant's marketing, until a person lets it go on.
	require.Equal(t, int64(1), d.count(`SELECT count(*) FROM messaging.tenant_rails WHERE tenant_id = $1 AND rail = 'marketing' AND paused_by = 'breaker' AND paused_at IS NOT NULL`, d.tenant))
	require.NoError(t, d.Allow(ctx, d.tenant, "email"))
	require.ErrorIs(t, d.Allow(ctx, d.tenant, "email"), ErrNone)
	third := running(200)
	mark(third, 0, 200, 72)
	watch()
	require.Equal(t, "paused bounces", state(third))
	require.Zero(t, d.count(`SELECT count(*) FROM messaging.tenant_rails WHERE paused_at IS NOT NULL`), "what was forgiven does not count again")
}

// Readers see exact sums while writers add and the feeder folds.
func TestFoldingChangesNoSum(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ctx := context.Background()
	b := d.filled(2_000)
	_, err := d.Start(ctx, d.tenant, b.ID, Start{})
	require.NoError(t, err)
	d.exec(`UPDATE messaging.blasts SET fed = recipients WHERE blast_id = $1`, b.ID)
	var wg sync.WaitGroup
	failed := make(chan error, 4)
	for w := range 2 {
		wg.Go(func() {
			for i := w; i < 1_000; i += 2 {
				if _, err := d.pool.Exec(ctx, `UPDATE messaging.blast_recipients SET outcome = 'sent' WHERE blast_id = $1 AND position IN ($2::bigint, $2::bigint + 1)`, b.ID, 2*i); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	folded := 0
	for over := false; !over; {
		select {
		case <-done:
			over = true
		default:
		}
		got, err := d.Get(ctx, d.tenant, b.ID)
		require.NoError(t, err)
		require.Equal(t, got.Recipients, got.Progress.Sum())
		n, err := d.Fold(ctx)
		require.NoError(t, err)
		folded += n
	}
	close(failed)
	require.NoError(t, <-failed)
	require.Positive(t, folded)
	require.Equal(t, int64(2_000), d.exact(b.ID).Progress.Sent)
	_, err = d.Fold(ctx)
	require.NoError(t, err)
	require.Less(t, d.count(`SELECT count(*) FROM messaging.blast_counts WHERE blast_id = $1`, b.ID), int64(foldAbove+50), "a blast's counts stay few")
}

func TestReportCountsWhoLeft(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ctx := context.Background()
	d.contacts(20)
	d.exec(`INSERT INTO messaging.suppressions (tenant_id, channel, address, reason, created_at) VALUES ($1, 'email', 'p9@example.com', 'unsubscribe', now() - interval '1 day')`, d.tenant)
	b := d.draft(Audience{Type: FromUpload})
	_, err := d.Upload(ctx, d.tenant, b.ID, uuid.New(), File{Format: CSV}, strings.NewReader(file(1, 10)), nil)
	require.NoError(t, err)
	_, err = d.Start(ctx, d.tenant, b.ID, Start{})
	require.NoError(t, err)
	for _, address := range []string{"p1@example.com", "p2@example.com", "p15@example.com"} { // the last is no recipient
		d.exec(`INSERT INTO messaging.suppressions (tenant_id, channel, address, reason) VALUES ($1, 'email', $2, 'unsubscribe')`, d.tenant, address)
	}
	for _, i := range []int{2, 3, 16} { // the first has left in both ways
		d.exec(`INSERT INTO messaging.consents (tenant_id, contact_id, channel, granted, source) VALUES ($1, $2, 'email', false, 'test')`, d.tenant, d.contact(i))
	}
	rep, err := d.Report(ctx, d.tenant, b.ID)
	require.NoError(t, err)
	require.Equal(t, int64(3), rep.Unsubscribed)
}

func TestTrip(t *testing.T) {
	t.Parallel()
	c := New(Config{}, nil).cfg.Breaker
	for want, o := range map[string]Outcomes{"": {1_000, 40, 1}, "bounces": {1_000, 41, 0}, "complaints": {1_000, 0, 2}} {
		require.Equal(t, want, c.Trip(o))
	}
	require.Empty(t, c.Trip(Outcomes{49, 49, 49}), "too few to say")
}

// A blast of a million recipients is looked at every two seconds, and whenever
// somebody asks: neither may read its recipients. Pages read are compared, not
// times; CARRIL_TEST_BLAST sets the larger size.
func TestLookingAtABlastCostsTheSameAtAnySize(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	pages := map[string]map[int]int{}
	for _, n := range []int{1_000, largeBlast()} {
		b := d.filled(n)
		_, err := d.Start(context.Background(), d.tenant, b.ID, Start{})
		require.NoError(t, err)
		d.exec(`UPDATE messaging.blasts SET fed = recipients WHERE blast_id = $1`, b.ID)
		d.exec(`UPDATE messaging.blast_recipients SET outcome = 'sent', marks = 65 WHERE blast_id = $1 AND position < $2`, b.ID, n/2)
		batch := make([]int64, 100)
		for i := range batch {
			batch[i] = int64(n/2 + i)
		}
		for name, q := range map[string]struct {
			sql  string
			args []any
		}{
			"progress": {`SELECT ` + columns + `, ` + progressColumns + ` FROM messaging.blasts b LEFT JOIN LATERAL (` + progressSums + `) c ON true WHERE b.blast_id = $1 AND b.tenant_id = $2`, []any{b.ID, d.tenant}},
			"judge":    {outcomesSQL, []any{b.ID, time.Hour}},
			"outcomes": {`UPDATE messaging.blast_recipients r SET outcome = u.o, reason = nullif(u.w, '')
FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[]) AS u(b, p, o, w) WHERE r.blast_id = ANY($1) AND r.position = ANY($2) AND r.blast_id = u.b AND r.position = u.p`,
				[]any{repeat(b.ID, 100), batch, repeat("sent", 100), repeat("", 100)}},
		} {
			if pages[name] == nil {
				pages[name] = map[int]int{}
			}
			require.NoError(t, pgx.BeginFunc(context.Background(), d.pool, func(tx pgx.Tx) error {
				pages[name][n] = testkit.Pages(t, tx, q.sql, q.args...)
				return nil
			}))
		}
	}
	for name, by := range pages {
		t.Logf("%s: pages by recipients: %v", name, by)
		require.Less(t, by[largeBlast()], 3*by[1_000]+200, name)
	}
}

func largeBlast() int {
	n := 30_000
	if _, err := fmt.Sscan(os.Getenv("CARRIL_TEST_BLAST"), &n); err != nil {
		return 30_000
	}
	return n
}

func repeat[T any](v T, n int) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = v
	}
	return out
}

package blast

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What a blast says of its end rests on its pace alone, so that it must say
// nothing where the pace is not what decides.
func TestAnEstimateIsGivenWhereThePaceDecides(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for name, c := range map[string]struct {
		first                                  First
		recipients, fed, sent, failed, reports int
		idle                                   string
		heldUp                                 string
		estimate                               bool
	}{
		"WithoutAWait":            {First{After: -1}, 2_000, 100, 90, 0, 0, "0", "", true},
		"BeforeTheWait":           {First{}, 2_000, 400, 400, 0, 390, "0", "", false},
		"Waiting":                 {First{}, 2_000, 500, 500, 0, 400, "30 s", ForOutcomes, false},
		"WaitingForTheSlow":       {First{}, 2_000, 500, 500, 0, 390, "150 s", ForOutcomes, false},
		"EnoughForTheSlow":        {First{}, 2_000, 500, 500, 0, 400, "150 s", "", true},
		"NearlyAll":               {First{}, 2_000, 500, 500, 0, 490, "0", "", true},
		"SomeNeverGetAny":         {First{}, 2_000, 500, 390, 110, 385, "0", "", true},
		"HasWaitedAsLongAsItMay":  {First{}, 2_000, 500, 500, 0, 0, "16 min", "", true},
		"BehindTheWait":           {First{}, 2_000, 900, 880, 0, 490, "0", "", true},
		"SmallerThanTheFirstOnes": {First{}, 300, 100, 90, 0, 0, "0", "", true},
		"AllOfItAreTheFirstOnes":  {First{}, 500, 500, 480, 0, 0, "30 s", "", true},
		"ByOtherSettings":         {First{After: 100, Share: 0.5, Least: time.Second}, 2_000, 100, 100, 0, 49, "2 s", ForOutcomes, false},
		"EnoughByOtherSettings":   {First{After: 100, Share: 0.5, Least: time.Second}, 2_000, 100, 100, 0, 50, "2 s", "", true},
	} {
		d := &desk{New(Config{First: c.first}, d.pool), t, d.pool, d.tenant}
		b := d.filled(c.recipients)
		_, err := d.Start(t.Context(), d.tenant, b.ID, Start{})
		require.NoError(t, err)
		d.exec(`UPDATE messaging.blasts SET state = 'running', fed = $2, started_at = now() - interval '20 min', updated_at = now() - $3::interval WHERE blast_id = $1`, b.ID, c.fed, c.idle)
		d.exec(`INSERT INTO messaging.blast_counts (blast_id, at, what, n) VALUES ($1, now(), 'sent', $2), ($1, now(), 'failed', $3), ($1, now(), 'reported', $4), ($1, now(), 'pending', -$2::bigint - $3::bigint)`,
			b.ID, c.sent, c.failed, c.reports)
		got, err := d.Get(t.Context(), d.tenant, b.ID)
		require.NoError(t, err)
		require.Equal(t, c.heldUp, got.Progress.HeldUp, name)
		require.Equal(t, c.estimate, got.Progress.EstimatedEnd != nil, name)
		require.Positive(t, got.Progress.PerSecond, name)
	}

	t.Run("NotWhileItsTenantOrItsSenderIsPaused", func(t *testing.T) {
		b := d.filled(300)
		_, err := d.Start(t.Context(), d.tenant, b.ID, Start{})
		require.NoError(t, err)
		d.exec(`UPDATE messaging.blasts SET state = 'running', fed = 100, started_at = now() WHERE blast_id = $1`, b.ID)
		d.exec(`INSERT INTO messaging.blast_counts (blast_id, at, what, n) VALUES ($1, now(), 'sent', 100), ($1, now(), 'pending', -100)`, b.ID)
		look := func() *Progress {
			got, err := d.Get(t.Context(), d.tenant, b.ID)
			require.NoError(t, err)
			return got.Progress
		}
		require.NotNil(t, look().EstimatedEnd)
		d.exec(`INSERT INTO messaging.tenant_rails (tenant_id, channel, rail, paused_at) VALUES ($1, 'email', 'marketing', now())`, d.tenant)
		require.Nil(t, look().EstimatedEnd)
		require.Equal(t, Held, look().HeldUp)
		d.exec(`UPDATE messaging.tenant_rails SET paused_at = NULL`)
		require.NotNil(t, look().EstimatedEnd)
		d.exec(`UPDATE messaging.senders SET paused_at = now()`)
		require.Nil(t, look().EstimatedEnd)
	})
}

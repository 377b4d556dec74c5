package blast

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFit(t *testing.T) {
	t.Parallel()
	quota := func(limit, used int64) *Quota { // a fifth is kept
		share := limit * 4 / 5
		return &Quota{Limit: limit, Used: used, Reserve: 0.2, Left: max(0, share-used), Share: share}
	}
	noon := time.Date(2026, 12, 29, 12, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		q    Quotas
		n    int64
		at   time.Time
		fits bool
		days int
	}{
		"IntoTheDay":            {Quotas{Day: quota(1_000, 300)}, 500, noon, true, 1},
		"OneTooMany":            {Quotas{Day: quota(1_000, 300)}, 501, noon, false, 2},
		"IntoALaterDay":         {Quotas{Day: quota(1_000, 1_000)}, 800, noon.Add(12 * time.Hour), true, 1},
		"NotLaterThatDay":       {Quotas{Day: quota(1_000, 1_000)}, 800, noon.Add(11 * time.Hour), false, 2},
		"WholeBatchesOnly":      {Quotas{Day: quota(1_000, 750)}, 900, noon, false, 3}, // none of the 50, then 800, then 100
		"ASmallAccount":         {Quotas{Day: quota(100, 0)}, 200, noon, false, 3},     // batches of 80
		"TheMonthEndsFirst":     {Quotas{Day: quota(1_000, 0), Month: quota(10_000, 7_000)}, 2_000, noon, false, 5},
		"IntoTheNextMonth":      {Quotas{Month: quota(10_000, 9_000)}, 8_000, noon.AddDate(0, 0, 3), true, 1},
		"NotIntoAWholeMonth":    {Quotas{Month: quota(10_000, 0)}, 8_001, noon, false, 4},
		"NoQuotaOfTheDay":       {Quotas{Month: quota(10_000, 0)}, 8_000, noon, true, 1},
		"NeverWithNoShareAtAll": {Quotas{Day: quota(1, 0)}, 1, noon, false, 0},
		"Nobody":                {Quotas{Day: quota(10, 10)}, 0, noon, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := tc.q.at(noon, tc.at).fit(tc.n, tc.at)
			require.Equal(t, tc.fits, *f.Fits)
			if tc.days == 0 {
				require.Nil(t, f.DaysNeeded)
				return
			}
			require.Equal(t, tc.days, *f.DaysNeeded)
		})
	}
}

// A blast of contacts is counted before it starts: it has no recipients yet.
func TestStartCountsAnAudienceOfContacts(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.contacts(40)
	left := int64(19)
	d.cfg.Quotas = func(context.Context, string) (*Quotas, error) {
		return &Quotas{Day: &Quota{Limit: 100, Reserve: 0.5, Used: 50 - left, Left: left, Share: 50}}, nil
	}
	b := d.draft(Audience{Type: FromContacts, Traits: []byte(`{"tier":"gold"}`)})
	_, err := d.Start(t.Context(), d.tenant, b.ID, Start{})
	require.Equal(t, CodeQuota, code(err))
	left = 20
	b, err = d.Start(t.Context(), d.tenant, b.ID, Start{})
	require.NoError(t, err)
	require.Equal(t, Preparing, b.State)
	require.True(t, *b.Quota.Fits)
}

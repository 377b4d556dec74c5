package manage

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCounts(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	at := time.Date(2023, 3, 5, 12, 0, 0, 0, time.UTC)
	for i := range 3 {
		d.exec(`SELECT core.ensure_partition('core.tracked_events', $1)`, at.AddDate(0, i-1, 0))
	}
	contact := d.acme
	d.addEvent(d.acme, "a", at, contact, "invoice.paid", `{}`)
	d.addEvent(d.acme, "b", at.Add(12*time.Hour), contact, "invoice.paid", `{}`)
	d.addEvent(d.acme, "c", at, contact, "cart.left", `{}`)
	d.addEvent(d.acme, "d", time.Date(2023, 4, 1, 0, 0, 0, 0, time.UTC), contact, "invoice.paid", `{}`)
	d.addEvent(d.other, "e", at, contact, "invoice.paid", `{}`)
	// February is gone, and of March the leaf of another class; March's own leaf is detached.
	for _, month := range []string{"2023-02-01", "2023-03-01"} {
		d.exec(`INSERT INTO core.monthly_counts (tenant_id, month, source, name, count) VALUES ($1, $2::date, 'events', 'invoice.paid', 40)`, d.acme, month)
	}
	d.exec(`INSERT INTO core.monthly_counts (tenant_id, month, source, name, status, count) VALUES ($1, '2023-02-01', 'sends', 'email', 'sent', 7)`, d.acme)
	d.exec(`INSERT INTO core.retention_ledger (run_id, parent, leaf, leaf_oid, lower_bound, upper_bound, retention_months, state)
		SELECT gen_random_uuid(), 'core.tracked_events', 'core.tracked_events_202303_r13', 'core.tracked_events_202303_r13'::regclass, '2023-03-01Z', '2023-04-01Z', 13, 'exported'`)
	d.exec(`ALTER TABLE core.tracked_events_202303 DETACH PARTITION core.tracked_events_202303_r13`)
	ask := func(params ...string) CountsPage {
		status, body := d.ask("acme", "/v1/core/counts", params...)
		require.Equal(t, http.StatusOK, status, body)
		var p CountsPage
		require.NoError(t, json.Unmarshal([]byte(body), &p))
		return p
	}
	t.Run("ByMonth", func(t *testing.T) {
		p := ask("from", "2023-02-01T00:00:00Z", "to", "2023-05-01T00:00:00Z")
		require.Equal(t, CountsPage{Granularity: "month", Total: 84, Counts: []*Count{
			{"2023-02", "invoice.paid", 40, true}, {"2023-03", "cart.left", 1, false}, {"2023-03", "invoice.paid", 2, false}, {"2023-03", "invoice.paid", 40, true},
			{"2023-04", "invoice.paid", 1, false}}}, p)
	})
	t.Run("ByDay", func(t *testing.T) {
		p := ask("from", "2023-03-05T00:00:00Z", "to", "2023-04-02T00:00:00Z", "granularity", "day", "event_name", "invoice.paid")
		require.Equal(t, []*Count{{"2023-03", "invoice.paid", 40, true}, {"2023-03-05", "invoice.paid", 1, false}, {"2023-03-06", "invoice.paid", 1, false},
			{"2023-04-01", "invoice.paid", 1, false}}, p.Counts)
	})
	t.Run("OfNothingIsNothing", func(t *testing.T) {
		p := ask("from", "2022-01-01T00:00:00Z", "to", "2022-02-01T00:00:00Z")
		require.Equal(t, CountsPage{Granularity: "month", Counts: []*Count{}}, p)
	})
	t.Run("OfWholePeriodsAlone", func(t *testing.T) {
		for _, params := range [][]string{
			{"from", "2023-02-02T00:00:00Z", "to", "2023-05-01T00:00:00Z"}, {"from", "2023-02-01T00:00:00Z", "to", "2023-05-01T00:00:01Z"},
			{"from", "2003-02-01T00:00:00Z", "to", "2023-05-01T00:00:00Z"}, {"from", "2023-03-05T00:00:01Z", "to", "2023-03-06T00:00:00Z", "granularity", "day"},
			{"from", "2023-01-01T00:00:00Z", "to", "2023-12-01T00:00:00Z", "granularity", "day"}, {"from", "2023-01-01T00:00:00Z", "to", "2023-02-01T00:00:00Z", "granularity", "year"},
			{"from", "2023-01-01T00:00:00Z", "to", "2023-02-01T00:00:00Z", "limit", "5"}, {"from", "2023-02-01T00:00:00Z", "to", "2023-01-01T00:00:00Z"},
		} {
			status, body := d.ask("acme", "/v1/core/counts", params...)
			require.Equal(t, http.StatusBadRequest, status, "%v", params)
			require.Contains(t, body, "invalid_parameter")
		}
		status, body := d.ask("acme", "/v1/core/counts")
		require.Equal(t, http.StatusBadRequest, status)
		require.Contains(t, body, "missing_time_range")
		status, _ = d.ask("writer", "/v1/core/counts", "from", "2023-01-01T00:00:00Z", "to", "2023-02-01T00:00:00Z")
		require.Equal(t, http.StatusForbidden, status)
	})
}

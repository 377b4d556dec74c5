package rail_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/provider"
)

// A history has the class that its send was given, whatever the plan says by
// then: the same report in another class would be another row.
func TestPlanChangesBetweenTwoDeliveries(t *testing.T) { // I25
	t.Parallel()
	b := newBench(t)
	b.statuses()
	b.start(setup{})
	id := b.enqueue(job{subject: "Your code"})[0]
	b.await(1, "sent")
	const rows = `SELECT count(*) FROM messaging.send_status_history WHERE requested_at > now() - interval '1 day' AND send_id = $1 AND status = $2`
	delivered := event{id: "ev-1", status: provider.StatusDelivered, message: "m-" + id.String(), at: time.Now()}
	b.report(delivered)
	b.eventually("the first delivery is recorded", func() bool { return b.count(rows, id, "delivered") == 1 })
	class := b.count(`SELECT retention_months FROM messaging.sends WHERE requested_at > now() - interval '1 day' AND send_id = $1`, id)
	b.exec(`UPDATE core.tenants SET plan_id = (SELECT plan_id FROM core.plans WHERE retention_months > $1 ORDER BY retention_months LIMIT 1)`, class)
	b.report(delivered)
	delivered.send, delivered.tenant = id, b.tenant // found by its tags this time
	b.report(delivered)
	b.report(event{id: "ev-2", status: provider.StatusHardBounce, send: id, tenant: b.tenant, at: time.Now()})
	b.eventually("what came after them is recorded", func() bool { return b.count(rows, id, "bounced") == 1 })
	require.Equal(t, 1, b.count(rows, id, "delivered"))
	require.Zero(t, b.count(`SELECT count(*) FROM messaging.send_status_history WHERE requested_at > now() - interval '1 day' AND send_id = $1 AND retention_months <> $2`, id, class))
}

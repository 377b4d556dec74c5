package rail_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/provider"
)

func TestFirstSend(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.enqueue(job{subject: "Your code"})[0]
	b.start(setup{})
	b.await(1, "sent")
	require.Equal(t, 1, b.fake.delivered(id))
	require.Equal(t, map[string]int{"queued": 1, "sent": 1}, b.history(id))
	require.Equal(t, []string{"messaging.message.sent"}, b.changes(1)[id])
	require.Equal(t, 1, b.count(`SELECT count(*) FROM messaging.sends WHERE requested_at > now() - interval '1 day' AND send_id = $1 AND correlation_id <> '' AND origin_event_id IS NOT NULL`, id))
	require.Equal(t, 1, b.count(`SELECT count(*) FROM messaging.provider_messages WHERE send_id = $1`, id))
}

// A code goes from its topic to the provider, and its status comes back.
func TestStatusComesBack(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.statuses()
	b.start(setup{})
	id := b.enqueue(job{subject: "Your code"})[0]
	b.await(1, "sent")
	b.report(event{id: "ev-1", status: provider.StatusDelivered, message: "m-" + id.String()})
	b.report(event{id: "ev-1", status: provider.StatusDelivered, message: "m-" + id.String()}) // FS-MSG-0003 AC4
	b.report(event{id: "ev-2", status: provider.StatusHardBounce, send: id, tenant: b.tenant})
	b.eventually("both events are recorded", func() bool { return len(b.history(id)) == 4 })
	require.Equal(t, map[string]int{"queued": 1, "sent": 1, "delivered": 1, "bounced": 1}, b.history(id))
	require.ElementsMatch(t, []string{"messaging.message.sent", "messaging.message.delivered", "messaging.message.bounced"}, b.changes(3)[id])
	// FS-MSG-0003 AC6
	require.Equal(t, 1, b.count(`SELECT count(*) FROM messaging.suppressions WHERE tenant_id = $1 AND reason = 'hard_bounce' AND send_id = $2`, b.tenant, id))
}

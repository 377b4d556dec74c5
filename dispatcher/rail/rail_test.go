package rail_test

import (
	"testing"

	"github.com/stretchr/testify/require"
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

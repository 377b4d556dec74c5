package kafka_test

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/kafka"
)

// connects records whether the client was handed out before it first reached
// for a broker.
type connects struct {
	made  *atomic.Bool
	first chan bool
}

func (c connects) OnBrokerConnect(kgo.BrokerMetadata, time.Duration, net.Conn, error) {
	select {
	case c.first <- c.made.Load():
	default:
	}
}

// A group's callbacks run in goroutines that NewClient starts: whoever sets the
// client from its return value may be called with none.
func TestMade(t *testing.T) {
	t.Parallel()
	var made atomic.Bool
	seen := connects{&made, make(chan bool, 1)}
	var inside *kgo.Client
	cl, err := kgo.NewClient(kgo.SeedBrokers("127.0.0.1:1"), kgo.WithHooks(seen),
		kgo.ConsumerGroup("g"), kgo.ConsumeTopics("t"),
		kafka.Made(func(cl *kgo.Client) {
			time.Sleep(20 * time.Millisecond) // a descheduled thread
			inside = cl
			made.Store(true)
		}))
	require.NoError(t, err)
	defer cl.Close()
	require.Same(t, cl, inside)
	select {
	case before := <-seen.first:
		require.True(t, before)
	case <-time.After(time.Minute):
		t.Fatal("the client never reached for its broker")
	}
}

package stream

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Point is a step of the loop at which a process can end; what was done before
// it stands, what comes after does not.
type Point string

// The points of a batch, in their order; a COMMIT that is sent and not answered
// lies between two of them, and is cut in the network.
const (
	PointPolled     Point = "polled"     // records were fetched
	PointAhead      Point = "ahead"      // a batch's keys are taken, in a transaction that waits for the batch before
	PointApplied    Point = "applied"    // the stage's rows are written, its outbox is not
	PointCommitting Point = "committing" // everything is written, COMMIT is not sent
	PointCommitted  Point = "committed"  // COMMIT was answered, nothing is published
	PointOffsets    Point = "offsets"    // the commit of Kafka's offsets is written, and not answered
	PointEnded      Point = "ended"      // workers of revoked partitions have ended, their offsets are not committed
)

// Hook hears of the points that a loop passes. nil is a Hook that nobody hears.
type Hook func(Point)

// OnBrokerWrite implements kgo.HookBrokerWrite.
func (h Hook) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	const offsetCommit = 8
	if key == offsetCommit && err == nil {
		h.at(PointOffsets)
	}
}

func (h Hook) at(p Point) {
	if h != nil {
		h(p)
	}
}

package eventlog

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/db/streamdb"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/processor/identity"
	"github.com/softcrum/carril/schemas"
)

// ContactLaneCount is how many lanes contact changes are spread over. All of a
// tenant's take one, whoever writes them: in a compacted topic the last record
// of a contact wins, so they must be published in the order of their commits.
const ContactLaneCount = 4

// ContactProducer names the producer of contact lane n.
func ContactProducer(n int) string { return fmt.Sprintf("contact/%d", n) }

// ContactLanes writes ContactChanged records. Its relays run elsewhere, one
// owner a lane.
type ContactLanes struct {
	Codec *schemas.Codec
	Lanes []outbox.Lane // ContactLaneCount of them
	Wake  func(n int)   // tells a relay in this process; nil: it polls
}

// OpenContactLanes finds or makes the lanes.
func OpenContactLanes(ctx context.Context, db streamdb.DBTX, codec *schemas.Codec, wake func(n int)) (*ContactLanes, error) {
	c := &ContactLanes{Codec: codec, Wake: wake}
	for n := range ContactLaneCount {
		l, err := outbox.Open(ctx, db, ContactProducer(n), outbox.StoreOutbox, outbox.AnyEpoch)
		if err != nil {
			return nil, err
		}
		c.Lanes = append(c.Lanes, l)
	}
	return c, nil
}

func laneOf(tenant uuid.UUID) int {
	h := fnv.New32a()
	h.Write(tenant[:])
	return int(h.Sum32() % ContactLaneCount)
}

// Emit writes the changes to their lanes inside tx. It takes the lanes' locks,
// in one order, and so comes last before the commit. b may be nil where nobody
// is to be woken.
func (c *ContactLanes) Emit(ctx context.Context, tx pgx.Tx, b *stream.Batch, changes []identity.Change) error {
	made, err := c.make(ctx, changes)
	if err != nil {
		return err
	}
	return c.append(ctx, tx, b, made)
}

// make makes the messages of changes, by lane. It needs no database.
func (c *ContactLanes) make(ctx context.Context, changes []identity.Change) (byLane map[int][]outbox.Message, err error) {
	byLane = map[int][]outbox.Message{}
	for _, ch := range changes {
		m, err := c.message(ctx, ch)
		if err != nil {
			return nil, err
		}
		n := laneOf(ch.TenantID)
		byLane[n] = append(byLane[n], m)
	}
	return byLane, nil
}

// Bury writes tombstones for erased contacts, after which compaction keeps
// nothing of them. Like Emit, it comes last before the commit.
func (c *ContactLanes) Bury(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, contacts []uuid.UUID) error {
	now := time.Now().UTC()
	msgs := make([]outbox.Message, len(contacts))
	for i, id := range contacts {
		msgs[i] = outbox.Message{Topic: schemas.TopicContact, Key: contactKey(tenant, id), Value: outbox.Tombstone,
			Headers: kafka.Event{ID: ids.New().String(), Type: "core.contact.buried", Source: kafka.Source(tenant), Subject: id.String(), Time: now,
				CorrelationID: id.String()}.Headers()}
	}
	return c.append(ctx, tx, nil, map[int][]outbox.Message{laneOf(tenant): msgs})
}

func (c *ContactLanes) append(ctx context.Context, tx pgx.Tx, b *stream.Batch, byLane map[int][]outbox.Message) error {
	if len(byLane) == 0 {
		return nil
	}
	lanes := make([]int, 0, len(byLane))
	for n := range byLane {
		lanes = append(lanes, n)
	}
	slices.Sort(lanes)
	shares := make([]outbox.Share, len(lanes))
	for i, n := range lanes {
		shares[i] = outbox.Share{Lane: c.Lanes[n], Messages: byLane[n]}
	}
	if err := outbox.AppendShares(ctx, tx, shares); err != nil {
		return err
	}
	if c.Wake != nil && b != nil {
		b.OnCommit(func() {
			for _, n := range lanes {
				c.Wake(n)
			}
		})
	}
	return nil
}

func (c *ContactLanes) message(ctx context.Context, ch identity.Change) (outbox.Message, error) {
	now := time.Now().UTC()
	rec := schemas.ContactChanged{TenantID: ch.TenantID, CellID: ch.CellID, ContactID: ch.ContactID, Change: ch.Kind,
		IntoContactID: ch.Into, Traits: string(ch.Traits), ChangedAt: now, CorrelationID: ch.CorrelationID}
	if ch.CauseEventID != uuid.Nil {
		rec.CauseEventID = &ch.CauseEventID
	}
	value, err := c.Codec.Encode(ctx, nil, schemas.TopicContact, &rec)
	if err != nil {
		return outbox.Message{}, waitFor(err)
	}
	return outbox.Message{
		Topic: schemas.TopicContact, Key: contactKey(ch.TenantID, ch.ContactID), Value: value,
		Headers: kafka.Event{ID: ids.New().String(), Type: "core.contact." + ch.Kind, Source: kafka.Source(ch.TenantID),
			Subject: ch.ContactID.String(), Time: now, CorrelationID: ch.CorrelationID}.Headers(),
	}, nil
}

func contactKey(tenant, contact uuid.UUID) []byte {
	return []byte(tenant.String() + "/" + contact.String())
}

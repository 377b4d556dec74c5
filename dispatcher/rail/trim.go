package rail

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/softcrum/carril/dispatcher/sends"
)

// trim deletes a rail's records that were finished long ago. The rails keep
// their records until they are done, however long that takes; the margin is for
// a database that is restored to an earlier time and goes over them again.
func (s *Sweeper) trim(ctx context.Context, store *sends.Store) error {
	tctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	topic := s.deps.Kafka.Topic(store.Topic())
	old, err := s.deps.Admin.ListOffsetsAfterMilli(tctx, time.Now().Add(-s.cfg.TrimAfter).UnixMilli(), topic)
	if err != nil {
		return fmt.Errorf("list offsets of %s: %w", topic, err)
	}
	next, err := s.positions(tctx, store)
	if err != nil {
		return err
	}
	starts, err := s.deps.Admin.ListStartOffsets(tctx, topic)
	if err != nil {
		return fmt.Errorf("list log starts of %s: %w", topic, err)
	}
	var upTo kadm.Offsets
	old.Each(func(o kadm.ListedOffset) {
		start, ok := starts.Lookup(topic, o.Partition)
		at := min(o.Offset, next[o.Partition])
		if o.Err == nil && ok && start.Err == nil && at > start.Offset {
			upTo.AddOffset(topic, o.Partition, at, -1)
		}
	})
	if len(upTo) == 0 {
		return nil
	}
	deleted, err := s.deps.Admin.DeleteRecords(tctx, upTo)
	if err == nil {
		err = deleted.Error()
	}
	if err != nil {
		return fmt.Errorf("trim %s: %w", topic, err)
	}
	return nil
}

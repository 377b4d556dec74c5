package app

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/ingestor/manage"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/schemas"
)

// What the narrator follows at once and how long; the rest is counted.
const (
	narrateAtOnce = 3
	narrateFor    = 15 * time.Second
	narrateEvery  = 50 * time.Millisecond
)

// Narrate writes the timeline of the demo tenant's events to w as they happen,
// until ctx ends. Under load it follows a few and counts the others.
func (d *Dev) Narrate(ctx context.Context, w io.Writer) error {
	opts, err := d.kafka.Opts()
	if err != nil {
		return err
	}
	cl, err := kgo.NewClient(append(opts, kgo.ConsumeTopics(d.kafka.Topic(schemas.TopicEventTracked)),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()))...)
	if err != nil {
		return fmt.Errorf("follow events: %w", err)
	}
	defer cl.Close()
	n := narrator{dev: d, w: w, slots: make(chan struct{}, narrateAtOnce)}
	defer n.wg.Wait()
	for ctx.Err() == nil {
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			if string(r.Key) == d.Demo.TenantID.String() && kafka.Header(r, "ce_subject") != "messaging.message.requested" {
				n.follow(ctx, kafka.Header(r, "ce_id"))
			}
		})
		n.others()
	}
	return nil
}

type narrator struct {
	dev    *Dev
	w      io.Writer
	slots  chan struct{}
	wg     sync.WaitGroup
	mu     sync.Mutex
	unseen atomic.Int64
}

// others says how many events were not followed.
func (n *narrator) others() {
	if len(n.slots) == 0 {
		if missed := n.unseen.Swap(0); missed > 0 {
			n.print([]byte(fmt.Sprintf("  … and %d more events\n", missed)))
		}
	}
}

func (n *narrator) print(b []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, _ = n.w.Write(b) // a terminal that is gone
}

func (n *narrator) follow(ctx context.Context, id string) {
	event, err := uuid.Parse(id)
	if err != nil {
		return
	}
	select {
	case n.slots <- struct{}{}:
	default:
		n.unseen.Add(1)
		return
	}
	n.wg.Go(func() {
		defer func() { <-n.slots }()
		n.tell(ctx, event)
	})
}

// tell writes each step once, as soon as it can be read.
func (n *narrator) tell(ctx context.Context, event uuid.UUID) {
	ctx, cancel := context.WithTimeout(ctx, narrateFor)
	defer cancel()
	said := map[string]int{}
	tick := time.NewTicker(narrateEvery)
	defer tick.Stop()
	for first := true; ; {
		t, err := manage.TraceEvent(ctx, n.dev.side, uuid.Nil, event)
		if err == nil {
			var out bytes.Buffer
			if first {
				fmt.Fprintf(&out, "event %s %s\n", t.EventID, t.EventName)
				first = false
			}
			now := map[string]int{}
			for _, s := range t.Steps {
				if now[s.Step]++; now[s.Step] > said[s.Step] {
					PrintStep(&out, t, s)
				}
			}
			said = now
			n.print(out.Bytes())
			if t.Has("blocked") || t.Has("dead_letter") || t.Has("delivered") && now["webhook_delivered"] >= 3 {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

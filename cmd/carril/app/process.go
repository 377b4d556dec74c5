package app

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/internal/deadletter"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/processor/channels"
	"github.com/softcrum/carril/processor/eventlog"
	"github.com/softcrum/carril/processor/partition"
	"github.com/softcrum/carril/processor/rules"
	"github.com/softcrum/carril/processor/tenants"
	"github.com/softcrum/carril/schemas"
)

// startProcess runs the stream stages: identity and append, rules, channels,
// statuses.
func (a *App) startProcess(ctx context.Context) error {
	lanes, err := eventlog.OpenContactLanes(ctx, a.side, a.codec, nil)
	if err != nil {
		return err
	}
	tcache, parts := tenants.NewCache(a.side, 0), partition.NewMaker(a.side)
	events := eventlog.Source{Pool: a.side, Codec: a.codec}
	rcache := rules.NewCache(a.side, 0, a.log)
	a.onChange("core.rules", rcache.Forget)
	inForce, err := a.taxonomy(ctx)
	if err != nil {
		return err
	}
	appender := eventlog.New(eventlog.Deps{Codec: a.codec, Tenants: tcache, Partitions: parts, Contacts: lanes, Log: a.log,
		Metrics: eventlog.NewMetrics(a.reg), Taxonomy: inForce})
	stages := []stage{
		{eventlog.Stage, []string{schemas.TopicEvents}, appender, events, 8},
		{eventlog.StageHistorical, []string{schemas.TopicEventsHistorical}, appender, events, 2},
		{rules.Stage, []string{schemas.TopicEventTracked}, rules.New(rules.Deps{Codec: a.codec, Rules: rcache, Metrics: a.reg, Now: time.Now}), nil, 6},
	}
	for _, rail := range []string{schemas.RailTransactional, schemas.RailMarketing} {
		stages = append(stages, stage{channels.StageFor(rail), []string{channels.TopicFor(rail)}, channels.New(rail, channels.Deps{
			Codec: a.codec, Tenants: tcache, Partitions: parts, Contacts: lanes, Metrics: a.reg, Now: time.Now, Channels: a.set.Channels,
			Credits: sends.CreditsFor(a.set.ResendRate)}), events, 4}) // as many as the rail refills to
	}
	stages = append(stages, a.statusStage())
	for _, s := range stages {
		if err := a.startStage(ctx, s); err != nil {
			return err
		}
	}
	a.startContactRelays()
	a.watchMonths()
	a.startReplays()
	return nil
}

// startReplays offers this process as the one that publishes replayed dead letters.
func (a *App) startReplays() {
	a.stack.Go(lifecyclePart("relay of replays", func(ctx context.Context) error {
		return deadletter.Relay(ctx, deadletter.RelayDeps{Pool: a.direct, Sink: a.sink(), Topic: a.kafka.Topic, Holder: owner(), Log: a.log})
	}))
}

type stage struct {
	name    string
	topics  []string
	handler stream.Handler
	events  outbox.Source
	conns   int32
}

// statusGap is how far apart providers' reports are written, and how far apart the
// deliveries of status changes. A blast brings one report a message, each by itself,
// and nobody waits for it as for a code.
const statusGap = 250 * time.Millisecond

// gaps are those topics whose records may gather.
func gaps() map[string]time.Duration {
	return map[string]time.Duration{schemas.TopicProviderEvents: statusGap, schemas.TopicMessage: statusGap}
}

func (a *App) startStage(ctx context.Context, s stage) error {
	pool, err := a.pool(ctx, s.name, a.set.PostgresURL, s.conns)
	if err != nil {
		return err
	}
	sink := a.sink()
	if s.name == channels.StageFor(schemas.RailTransactional) {
		if sink, err = a.codeSink(); err != nil {
			return err
		}
	}
	l, err := stream.New(stream.Config{Stage: s.name, Topics: s.topics, InstanceID: a.instance(s.name), Owner: owner(), Gaps: gaps()}, stream.Deps{
		Kafka: a.kafka, Pool: pool, Sink: sink, Events: s.events, Handler: s.handler, Log: a.log, Metrics: a.streams, Slots: a.slots,
		Memory: a.memory, Hook: failpoint(s.name)})
	if err != nil {
		return err
	}
	a.stack.Go(lifecyclePart("stage "+s.name, l.Run))
	a.readies = append(a.readies, joined("stage "+s.name, l.Ready()))
	return nil
}

// codeSink has a producer of its own: a broker answers one connection's requests one
// after the other, and a code's job must not wait for a blast's status changes.
func (a *App) codeSink() (outbox.Sink, error) {
	p, err := a.kafka.NewProducer(kgo.MaxBufferedRecords(100_000), kgo.RecordDeliveryTimeout(30*time.Second))
	if err != nil {
		return nil, err
	}
	a.stack.OnStop("kafka producer of transactional jobs", p.Close)
	return outbox.ClientSink{Client: p}, nil
}

// joined is ready once a consumer has joined its group.
func joined(name string, ready <-chan struct{}) readiness {
	return readiness{name: name,
		wait: func(ctx context.Context) error {
			select {
			case <-ready:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
		now: func() error {
			select {
			case <-ready:
				return nil
			default:
				return fmt.Errorf("has not joined its group")
			}
		}}
}

// owner names this process for people.
func owner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

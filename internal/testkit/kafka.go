package testkit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Broker is a test's share of the Kafka cluster: topics and groups whose
// names begin with Prefix are the test's, and are deleted when it is over.
type Broker struct {
	Brokers []string
	Prefix  string // ends with a dot

	t testing.TB
}

// Kafka returns the test's share of the cluster.
func Kafka(t testing.TB) Broker {
	t.Helper()
	b := Broker{Brokers: kafkaBrokers(t), Prefix: unique("t-") + ".", t: t}
	cleanup(t, "delete the topics", b.clean)
	return b
}

// Registry returns the URL of a schema registry. Subjects are shared with
// other tests: name yours after Kafka's Prefix.
func Registry(t testing.TB) string {
	t.Helper()
	return registryURL(t)
}

// CreateTopic makes the topic Prefix+name and returns that name.
func (b Broker) CreateTopic(name string, partitions int32) string {
	b.t.Helper()
	return b.CreateTopicWith(name, partitions, nil)
}

// CreateTopicWith makes the topic Prefix+name with topic settings
// ("cleanup.policy": "compact") and returns its name.
func (b Broker) CreateTopicWith(name string, partitions int32, settings map[string]string) string {
	b.t.Helper()
	configs := make(map[string]*string, len(settings))
	for k, v := range settings {
		configs[k] = &v
	}
	topic := b.Prefix + name
	err := b.admin(func(admin *kadm.Client) error {
		if _, err := admin.CreateTopic(b.t.Context(), partitions, -1, configs, topic); err != nil {
			return err
		}
		return b.awaitTopic(admin, topic, int(partitions))
	})
	if err != nil {
		b.t.Fatalf("create topic %s: %v", topic, err)
	}
	return topic
}

// awaitTopic waits until the brokers serve every partition: a real cluster
// answers that it created a topic before its brokers know of it.
func (b Broker) awaitTopic(admin *kadm.Client, topic string, partitions int) error {
	ctx, cancel := context.WithTimeout(b.t.Context(), 30*time.Second)
	defer cancel()
	for {
		listed, err := admin.ListEndOffsets(ctx, topic)
		if err == nil {
			err = listed.Error()
		}
		if err == nil && len(listed[topic]) == partitions {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the brokers to serve it: %w", errors.Join(ctx.Err(), err))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Client returns a client of the cluster, closed when the test is over.
func (b Broker) Client(opts ...kgo.Opt) *kgo.Client {
	b.t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(b.Brokers...)}, opts...)...)
	if err != nil {
		b.t.Fatalf("make a Kafka client: %v", err)
	}
	b.t.Cleanup(client.Close)
	return client
}

func (b Broker) admin(f func(*kadm.Client) error) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Brokers...))
	if err != nil {
		return err
	}
	defer client.Close()
	return f(kadm.NewClient(client))
}

// clean deletes the topics and groups of the prefix. A group that a member
// has not left yet stays: it holds nothing once its topics are gone.
func (b Broker) clean(ctx context.Context) error {
	return b.admin(func(admin *kadm.Client) error {
		topics, err := admin.ListTopics(ctx)
		if err != nil {
			return fmt.Errorf("list the topics: %w", err)
		}
		groups, err := admin.ListGroups(ctx)
		if err != nil {
			return fmt.Errorf("list the groups: %w", err)
		}
		if own := b.own(groups.Groups()); len(own) > 0 {
			_, _ = admin.DeleteGroups(ctx, own...)
		}
		own := b.own(topics.Names())
		if len(own) == 0 {
			return nil
		}
		deleted, err := admin.DeleteTopics(ctx, own...)
		if err != nil {
			return fmt.Errorf("delete the topics: %w", err)
		}
		if err := deleted.Error(); err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
			return fmt.Errorf("delete the topics: %w", err)
		}
		return nil
	})
}

func (b Broker) own(names []string) []string {
	var own []string
	for _, name := range names {
		if strings.HasPrefix(name, b.Prefix) {
			own = append(own, name)
		}
	}
	return own
}

package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/softcrum/carril/schemas"
)

// Replication of a production topic, and what is refused below it.
const (
	replicas          = 3
	minInsyncReplicas = 2
)

// Spec is a topic as it is created: its physical name, counts and settings.
type Spec struct {
	Name       string
	Partitions int32
	Replicas   int16
	Configs    map[string]string
}

// Specs lists the topics of the platform for the channels. embedded takes the
// small partition counts of the embedded broker, which also cannot keep time
// retention safely.
func (c Config) Specs(channels []string, embedded bool) []Spec {
	var specs []Spec
	for _, t := range schemas.Topics(channels) {
		s := Spec{Name: c.Topic(t.Name), Partitions: int32(t.Partitions), Replicas: replicas, Configs: map[string]string{
			"retention.ms":                   "-1",
			"min.insync.replicas":            strconv.Itoa(minInsyncReplicas),
			"unclean.leader.election.enable": "false",
		}}
		if c.SingleNode {
			s.Replicas, s.Configs["min.insync.replicas"] = 1, "1"
		}
		if embedded {
			s.Partitions = int32(t.Embedded)
		} else if t.Retention > 0 {
			s.Configs["retention.ms"] = strconv.FormatInt(t.Retention.Milliseconds(), 10)
		}
		if t.Compacted {
			s.Configs["cleanup.policy"] = "compact"
		}
		if t.AppendTime {
			s.Configs["message.timestamp.type"] = "LogAppendTime"
		}
		specs = append(specs, s)
	}
	return specs
}

// CreateTopics makes every topic that the cluster lacks, and waits until the
// cluster serves them; it changes none that exists. It gives the names it made.
func CreateTopics(ctx context.Context, adm *kadm.Client, specs []Spec) ([]string, error) {
	var made []string
	for _, s := range specs {
		configs := map[string]*string{}
		for k, v := range s.Configs {
			configs[k] = &v
		}
		r, err := adm.CreateTopic(ctx, s.Partitions, s.Replicas, configs, s.Name)
		switch {
		case err == nil && r.Err == nil:
			made = append(made, s.Name)
		case errors.Is(err, kerr.TopicAlreadyExists) || errors.Is(r.Err, kerr.TopicAlreadyExists):
		case err != nil:
			return made, fmt.Errorf("create topic %s: %w", s.Name, err)
		default:
			return made, fmt.Errorf("create topic %s: %w", s.Name, r.Err)
		}
	}
	if len(made) == 0 {
		return nil, nil
	}
	return made, WaitForTopics(ctx, adm, made...)
}

// VerifyTopics checks that every topic is there, with the replication that a
// 202 promises; the error names each topic that is not as it must be.
func VerifyTopics(ctx context.Context, adm *kadm.Client, specs []Spec) error {
	names := make([]string, len(specs))
	for i, s := range specs {
		names[i] = s.Name
	}
	details, err := adm.ListTopics(ctx, names...)
	if err != nil {
		return fmt.Errorf("list topics: %w", err)
	}
	var errs []error
	for _, s := range specs {
		d, ok := details[s.Name]
		if !ok || d.Err != nil || len(d.Partitions) == 0 {
			errs = append(errs, fmt.Errorf("topic %s is missing: run `carril migrate topics`", s.Name))
			continue
		}
		if n := d.Partitions.NumReplicas(); n < int(s.Replicas) {
			errs = append(errs, fmt.Errorf("topic %s has replication factor %d, below %d", s.Name, n, s.Replicas))
		}
	}
	configs, err := adm.DescribeTopicConfigs(ctx, names...)
	if err != nil {
		return fmt.Errorf("describe topics: %w", err)
	}
	for _, s := range specs {
		rc, err := configs.On(s.Name, nil)
		if err != nil || rc.Err != nil {
			continue // reported as missing above
		}
		for _, kv := range rc.Configs {
			if kv.Key == "min.insync.replicas" && kv.Value != nil {
				have, _ := strconv.Atoi(*kv.Value)
				want, _ := strconv.Atoi(s.Configs[kv.Key])
				if have < want {
					errs = append(errs, fmt.Errorf("topic %s has min.insync.replicas %d, below %d", s.Name, have, want))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// WaitForTopics returns when every topic has a leader for each partition and the
// leaders serve it: a create is acknowledged earlier than either.
func WaitForTopics(ctx context.Context, adm *kadm.Client, names ...string) error {
	for {
		details, err := adm.ListTopics(ctx, names...)
		if err == nil && allLed(details, names) {
			ends, err := adm.ListEndOffsets(ctx, names...)
			if err == nil && ends.Error() == nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for topics %v: %w", names, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func allLed(details kadm.TopicDetails, names []string) bool {
	for _, n := range names {
		d, ok := details[n]
		if !ok || d.Err != nil || len(d.Partitions) == 0 {
			return false
		}
		for _, p := range d.Partitions {
			if p.Err != nil || p.Leader < 0 {
				return false
			}
		}
	}
	return true
}

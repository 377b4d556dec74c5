// Package kafka owns how the platform reaches a Kafka cluster: the connection
// settings, the deployment's topic prefix, the creation and verification of
// topics, and the headers that every record carries. What is consumed and
// produced is the business of its callers.
package kafka

import (
	"crypto/tls"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Config says where the cluster is. The zero value of each optional field
// means that the feature is off.
type Config struct {
	Brokers []string // host:port; at least one
	Prefix  string   // before every topic and group name, e.g. "prod."
	TLS     *tls.Config
	SASL    SASL
	// SingleNode allows replication factor 1 and min.insync.replicas 1: this is
	// one machine, and the loss of its disk loses events.
	SingleNode bool
	ClientID   string // default "carril"
}

// SASL is how a client authenticates to the brokers.
type SASL struct {
	Mechanism string // "", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"
	User      string
	Password  string
}

// Topic gives the physical name of a topic.
func (c Config) Topic(name string) string { return c.Prefix + name }

// Logical takes the prefix off a physical topic name.
func (c Config) Logical(topic string) string { return strings.TrimPrefix(topic, c.Prefix) }

// Group gives the physical name of a consumer group.
func (c Config) Group(stage string) string { return c.Prefix + "carril." + stage }

// Opts are the client options that every client of the cluster shares.
func (c Config) Opts() ([]kgo.Opt, error) {
	if len(c.Brokers) == 0 {
		return nil, fmt.Errorf("no Kafka brokers given")
	}
	id := c.ClientID
	if id == "" {
		id = "carril"
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...),
		kgo.ClientID(id),
		kgo.MetadataMinAge(250 * time.Millisecond),
		kgo.DialTimeout(5 * time.Second),
	}
	if c.TLS != nil {
		opts = append(opts, kgo.DialTLSConfig(c.TLS))
	}
	switch c.SASL.Mechanism {
	case "":
	case "PLAIN":
		opts = append(opts, kgo.SASL(plain.Auth{User: c.SASL.User, Pass: c.SASL.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		opts = append(opts, kgo.SASL(scram.Auth{User: c.SASL.User, Pass: c.SASL.Password}.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		opts = append(opts, kgo.SASL(scram.Auth{User: c.SASL.User, Pass: c.SASL.Password}.AsSha512Mechanism()))
	default:
		return nil, fmt.Errorf("unknown SASL mechanism %q", c.SASL.Mechanism)
	}
	return opts, nil
}

// Made calls f with a client before anything of the client runs: callbacks of a
// group may come before kgo.NewClient has returned, and use what f sets.
func Made(f func(*kgo.Client)) kgo.Opt { return kgo.WithHooks(made(f)) }

type made func(*kgo.Client)

// OnNewClient implements kgo.HookNewClient.
func (f made) OnNewClient(cl *kgo.Client) { f(cl) }

// NewProducer makes a client that produces with acks from all in-sync replicas
// and idempotence, and never creates a topic.
func (c Config) NewProducer(extra ...kgo.Opt) (*kgo.Client, error) {
	opts, err := c.Opts()
	if err != nil {
		return nil, err
	}
	opts = append(opts,
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerBatchCompression(kgo.Lz4Compression(), kgo.NoCompression()),
		kgo.ProducerLinger(0),
		kgo.UnknownTopicRetries(3),
	)
	cl, err := kgo.NewClient(append(opts, extra...)...)
	if err != nil {
		return nil, fmt.Errorf("make the Kafka producer: %w", err)
	}
	return cl, nil
}

// Event is what the CloudEvents headers of a record say, in binary mode.
type Event struct {
	ID            string
	Type          string
	Source        string // e.g. "/tenants/UUID"
	Subject       string
	Time          time.Time
	CorrelationID string
	TraceParent   string // W3C; empty: none
}

// Source names a tenant as the source of an event.
func Source(tenant uuid.UUID) string { return "/tenants/" + tenant.String() }

// Headers renders the event as record headers.
func (e Event) Headers() []kgo.RecordHeader {
	// All values in one piece of memory: a stage makes headers for every record.
	const room = len("1.0") + len(time.RFC3339Nano) + len("application/avro")
	b := make([]byte, 0, room+len(e.ID)+len(e.Type)+len(e.Source)+len(e.CorrelationID)+len(e.Subject)+len(e.TraceParent))
	hs := make([]kgo.RecordHeader, 0, 9)
	cut := func(key string, grown []byte) {
		hs = append(hs, kgo.RecordHeader{Key: key, Value: grown[len(b):len(grown):len(grown)]})
		b = grown
	}
	cut("ce_specversion", append(b, "1.0"...))
	cut("ce_id", append(b, e.ID...))
	cut("ce_type", append(b, e.Type...))
	cut("ce_source", append(b, e.Source...))
	cut("ce_time", e.Time.UTC().AppendFormat(b, time.RFC3339Nano))
	cut("content-type", append(b, "application/avro"...))
	cut("correlation_id", append(b, e.CorrelationID...))
	if e.Subject != "" {
		cut("ce_subject", append(b, e.Subject...))
	}
	if e.TraceParent != "" {
		cut("traceparent", append(b, e.TraceParent...))
	}
	return hs
}

// Traced adds the traceparent of the record that caused something to its headers;
// a record without one adds none, and so does nil.
func Traced(headers []kgo.RecordHeader, cause *kgo.Record) []kgo.RecordHeader {
	if cause == nil {
		return headers
	}
	if trace := Header(cause, "traceparent"); trace != "" {
		return append(headers, kgo.RecordHeader{Key: "traceparent", Value: []byte(trace)})
	}
	return headers
}

// Header reads one header of a record; empty where it has none.
func Header(r *kgo.Record, key string) string {
	for _, h := range r.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

package schemas

import (
	"strings"
	"time"
)

// Topics of the platform, without the deployment's prefix.
const (
	TopicEvents                 = "core.events"
	TopicEventsHistorical       = "core.events.historical"
	TopicEventTracked           = "core.event.tracked"
	TopicContact                = "core.contact"
	TopicRequestedTransactional = "messaging.requested.transactional"
	TopicRequestedMarketing     = "messaging.requested.marketing"
	TopicProviderEvents         = "messaging.provider_events"
	TopicMessage                = "messaging.message"
)

// The two rails of a channel (FS-MSG-0005 §1): there are exactly two.
const (
	RailTransactional = "transactional"
	RailMarketing     = "marketing"
)

// RailTopic names a channel's rail.
func RailTopic(channel, rail string) string { return "notif." + channel + "." + rail }

// RailOf maps a message's category to its rail: transactional and product ride
// the transactional one, marketing the other (FS-MSG-0005 §1). ok is false for
// an unknown category.
func RailOf(category string) (rail string, ok bool) {
	switch category {
	case "transactional", "product":
		return RailTransactional, true
	case "marketing":
		return RailMarketing, true
	}
	return "", false
}

// Topic describes a topic as `carril migrate topics` creates it.
type Topic struct {
	Name       string
	Schema     string        // file name in avro/, without the ending
	Key        string        // what the record key is, for people
	Partitions int           // default
	Embedded   int           // partitions on the embedded broker
	Retention  time.Duration // 0: until trimmed behind the watermark
	Compacted  bool
	AppendTime bool // LogAppendTime: the rails' age is the broker's
}

// Topics lists every topic for the given channels.
func Topics(channels []string) []Topic {
	const fortnight = 14 * 24 * time.Hour
	ts := []Topic{
		{Name: TopicEvents, Schema: "event", Key: "tenant_id", Partitions: 12, Embedded: 4, Retention: fortnight},
		{Name: TopicEventsHistorical, Schema: "event", Key: "tenant_id", Partitions: 6, Embedded: 2, Retention: fortnight},
		{Name: TopicEventTracked, Schema: "event_tracked", Key: "tenant_id", Partitions: 12, Embedded: 4, Retention: fortnight},
		{Name: TopicContact, Schema: "contact_changed", Key: "tenant_id/contact_id", Partitions: 6, Embedded: 2, Compacted: true},
		{Name: TopicRequestedTransactional, Schema: "notification_requested", Key: "tenant_id", Partitions: 6, Embedded: 2},
		{Name: TopicRequestedMarketing, Schema: "notification_requested", Key: "tenant_id", Partitions: 6, Embedded: 2},
		{Name: TopicProviderEvents, Schema: "provider_event", Key: "send_id or provider message id", Partitions: 6, Embedded: 2, Retention: fortnight},
		{Name: TopicMessage, Schema: "message_status_changed", Key: "tenant_id", Partitions: 12, Embedded: 4, Retention: fortnight},
	}
	for _, c := range channels {
		ts = append(ts,
			Topic{Name: RailTopic(c, RailTransactional), Schema: "send_job", Key: "tenant_id/contact_id", Partitions: 6, Embedded: 2, AppendTime: true},
			Topic{Name: RailTopic(c, RailMarketing), Schema: "send_batch", Key: "tenant_id/shard", Partitions: 6, Embedded: 2, AppendTime: true})
	}
	return ts
}

// Subject names a topic's value subject in the registry.
func Subject(topic string) string { return topic + "-value" }

// schemaOf finds the schema of a topic's records; prefix-free names only.
func schemaOf(topic string) (string, bool) {
	if rest, ok := strings.CutPrefix(topic, "notif."); ok {
		switch {
		case strings.HasSuffix(rest, "."+RailTransactional):
			return "send_job", true
		case strings.HasSuffix(rest, "."+RailMarketing):
			return "send_batch", true
		}
	}
	name, ok := schemaNames[topic]
	return name, ok
}

// schemaNames are asked for every record.
var schemaNames = func() map[string]string {
	names := map[string]string{}
	for _, t := range Topics(nil) {
		names[t.Name] = t.Schema
	}
	return names
}()

package provider

import (
	"time"

	"github.com/google/uuid"
)

// Status is what a provider's webhook says of a send, in our words; the set is
// closed. All but StatusSuppressed are codes of messaging.send_statuses.
type Status string

// The statuses.
const (
	StatusSent       Status = "sent"
	StatusDelayed    Status = "delayed"
	StatusSoftBounce Status = "soft_bounced" // may be delivered yet, suppresses nothing
	StatusFailed     Status = "failed"
	StatusDelivered  Status = "delivered"
	StatusOpened     Status = "opened"
	StatusClicked    Status = "clicked"
	StatusHardBounce Status = "bounced"    // suppresses the address (FS-MSG-0003 §6)
	StatusComplained Status = "complained" // suppresses the address (FS-MSG-0003 §6)
	StatusSuppressed Status = "suppressed" // the provider's own list refused it, so it never left; no row of send_statuses: a failure, with this as its reason
)

// Statuses lists every status, for metrics that pre-initialise their labels.
func Statuses() []Status {
	return []Status{
		StatusSent, StatusDelayed, StatusSoftBounce, StatusFailed, StatusDelivered, StatusOpened,
		StatusClicked, StatusHardBounce, StatusComplained, StatusSuppressed,
	}
}

// Event is one webhook of a provider, read. Its id is not here: it stands in
// the headers, which were verified before anything was read.
type Event struct {
	// Type is the provider's own name, as "email.bounced".
	Type string
	// Status is empty for what changes no send: acknowledge, count, ignore.
	Status Status
	// ProviderMessageID is what Item.ProviderMessageID was; empty when absent.
	ProviderMessageID string
	// SendID and TenantID are the tags that Freeze put on the message; uuid.Nil
	// when absent or unreadable.
	SendID, TenantID uuid.UUID
	// OccurredAt is the provider's own time of the event, in UTC; zero when
	// unreadable. Never order by it.
	OccurredAt time.Time
	// Reason says why, for the statuses that have a why; redacted by Redact.
	Reason string
	// Recipients are the addresses that the event names. Never log them.
	Recipients []string
}

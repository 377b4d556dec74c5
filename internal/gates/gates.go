// Package gates answers one question: may this person get this message now? It
// owns the closed set of reasons for a no, and the form in which addresses are
// compared. The channels stage asks before there is a send; the rail worker
// asks again in the claim, because an answer ages (FS-MSG-0003 §1). What is
// done about a no is theirs.
package gates

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Gate names who said no.
type Gate string

// The gates, in the order in which they are asked: the first no counts.
const (
	GateTenant      Gate = "tenant"
	GateExpiry      Gate = "expiry"
	GateContact     Gate = "contact"
	GateAddress     Gate = "address"
	GateSuppression Gate = "suppression"
	GateConsent     Gate = "consent"
	GateSender      Gate = "sender"
)

// Reason says why; the set is closed and fit for a label and an API.
type Reason string

// The reasons.
const (
	TenantDisabled        Reason = "tenant_disabled"
	Expired               Reason = "expired"
	AddressMissing        Reason = "address_missing"
	AddressInvalid        Reason = "address_invalid"
	ContactErased         Reason = "contact_erased"
	SuppressedHardBounce  Reason = "suppressed_hard_bounce"
	SuppressedComplaint   Reason = "suppressed_complaint"
	SuppressedUnsubscribe Reason = "suppressed_unsubscribe" // marketing alone: an unsubscribe must not lock anybody out
	SuppressedManual      Reason = "suppressed_manual"
	ConsentMissing        Reason = "consent_missing"
	ConsentWithdrawn      Reason = "consent_withdrawn"
	SenderMissing         Reason = "sender_missing"
	SenderUnverified      Reason = "sender_unverified" // nobody has seen that the domain is the tenant's: all share one account at the provider
	SenderPaused          Reason = "sender_paused"
)

// Reasons lists every reason, for metrics that pre-initialise their labels.
func Reasons() []Reason {
	return []Reason{TenantDisabled, Expired, AddressMissing, AddressInvalid, ContactErased, SuppressedHardBounce,
		SuppressedComplaint, SuppressedUnsubscribe, SuppressedManual, ConsentMissing, ConsentWithdrawn, SenderMissing, SenderUnverified, SenderPaused}
}

// Waits says that a no of this reason ends by itself or by a person's hand: the
// message is held, not given up.
func (r Reason) Waits() bool { return r == SenderPaused || r == SenderUnverified }

// Subject is a message that somebody wants sent.
type Subject struct {
	TenantID  uuid.UUID
	ContactID uuid.UUID // uuid.Nil: nobody known; then marketing has no consent
	Channel   string
	Category  string // transactional, product or marketing
	Address   string
	ExpiresAt *time.Time
}

// Verdict is open, or the first gate that is shut and why.
type Verdict struct {
	Open   bool
	Gate   Gate
	Reason Reason
}

func shut(g Gate, r Reason) Verdict { return Verdict{Gate: g, Reason: r} }

// Querier is a pool or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Ask asks every gate for every subject, with one query and the database's
// clock. Verdicts come in the subjects' order.
func Ask(ctx context.Context, q Querier, subjects []Subject) ([]Verdict, error) {
	if len(subjects) == 0 {
		return nil, nil
	}
	n := len(subjects)
	tenants, contacts := make([]uuid.UUID, n), make([]uuid.UUID, n)
	channels, addresses := make([]string, n), make([]string, n)
	marketing, expires := make([]bool, n), make([]*time.Time, n)
	valid := make([]bool, n)
	for i, s := range subjects {
		tenants[i], contacts[i], channels[i] = s.TenantID, s.ContactID, s.Channel
		marketing[i], expires[i] = s.Category == "marketing", s.ExpiresAt
		addresses[i], valid[i] = Normalize(s.Channel, s.Address)
	}
	// An erased person's suppressions stand under a hash and hold for whoever comes
	// back with the address. A merged contact's consents count for whom it became, and the other way
	// round: the newest of all of them is the person's word.
	//
	// Message by message, each table by its whole key (LATERAL … OFFSET 0 keeps it so):
	// as one join it cost the square of the messages, and without statistics a reading
	// of all of a tenant's rows for each.
	const sql = `
SELECT t.tenant_id IS NULL OR t.disabled_at IS NOT NULL,
    coalesce(a.expires_at <= clock_timestamp(), false),
    EXISTS (SELECT FROM unnest(p.became) AS w(id) CROSS JOIN LATERAL (
        SELECT c.erased_at FROM core.contacts c WHERE c.tenant_id = a.tenant_id AND c.contact_id = w.id OFFSET 0) c WHERE c.erased_at IS NOT NULL),
    coalesce((SELECT s.reason FROM messaging.suppressions s
        WHERE s.tenant_id = a.tenant_id AND s.channel = a.channel AND s.address IN (a.address, core.erased_address(a.tenant_id, a.channel, a.address))
        ORDER BY s.reason = 'unsubscribe' LIMIT 1), ''),
    CASE WHEN NOT a.marketing THEN NULL ELSE (
        SELECT k.granted FROM (
            SELECT unnest(p.became) UNION SELECT m.from_contact FROM unnest(p.became) AS w(id) CROSS JOIN LATERAL (
                SELECT m.from_contact FROM core.contact_merges m WHERE m.tenant_id = a.tenant_id AND m.into_contact = w.id AND m.undone_at IS NULL OFFSET 0) m
        ) AS w(id) CROSS JOIN LATERAL (
            SELECT k.granted, k.changed_at FROM messaging.consents k
            WHERE k.tenant_id = a.tenant_id AND k.channel = a.channel AND k.purpose = 'marketing' AND k.contact_id = w.id ORDER BY k.changed_at DESC LIMIT 1) k
        ORDER BY k.changed_at DESC LIMIT 1) END,
    s.sender IS NULL, s.paused_at IS NOT NULL, coalesce(s.verified, false)
FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::bool[], $6::timestamptz[]) WITH ORDINALITY
    AS a(tenant_id, contact_id, channel, address, marketing, expires_at, n)
CROSS JOIN LATERAL (
    WITH RECURSIVE person AS (
        SELECT a.contact_id, 0 AS depth
        UNION
        SELECT m.into_contact, p.depth + 1 FROM person p CROSS JOIN LATERAL (
            SELECT m.into_contact FROM core.contact_merges m WHERE m.tenant_id = a.tenant_id AND m.from_contact = p.contact_id AND m.undone_at IS NULL OFFSET 0) m
        WHERE p.depth < 16
    )
    SELECT array_agg(contact_id) AS became FROM person
) p
LEFT JOIN core.tenants t ON t.tenant_id = a.tenant_id
LEFT JOIN messaging.senders s ON s.tenant_id = a.tenant_id AND s.channel = a.channel
ORDER BY a.n`
	rows, err := q.Query(ctx, sql, tenants, contacts, channels, addresses, marketing, expires)
	if err != nil {
		return nil, fmt.Errorf("ask the gates for %d messages: %w", n, err)
	}
	var f facts
	verdicts := make([]Verdict, 0, n)
	_, err = pgx.ForEachRow(rows, []any{&f.disabled, &f.expired, &f.erased, &f.suppressed, &f.consent, &f.noSender, &f.paused, &f.verified}, func() error {
		i := len(verdicts)
		verdicts = append(verdicts, f.verdict(marketing[i], addresses[i] != "", valid[i]))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("ask the gates for %d messages: %w", n, err)
	}
	return verdicts, nil
}

// facts is what the database knows about a subject.
type facts struct {
	disabled, expired, erased, noSender, paused, verified bool
	suppressed                                            string
	consent                                               *bool
}

func (f facts) verdict(marketing, given, valid bool) Verdict {
	switch {
	case f.disabled:
		return shut(GateTenant, TenantDisabled)
	case f.expired:
		return shut(GateExpiry, Expired)
	case f.erased: // before the address, which went with the person
		return shut(GateContact, ContactErased)
	case !given:
		return shut(GateAddress, AddressMissing)
	case !valid:
		return shut(GateAddress, AddressInvalid)
	}
	if r, no := suppression(f.suppressed, marketing); no {
		return shut(GateSuppression, r)
	}
	switch {
	case marketing && f.consent == nil:
		return shut(GateConsent, ConsentMissing)
	case marketing && !*f.consent:
		return shut(GateConsent, ConsentWithdrawn)
	case f.noSender:
		return shut(GateSender, SenderMissing)
	case !f.verified:
		return shut(GateSender, SenderUnverified)
	case f.paused:
		return shut(GateSender, SenderPaused)
	}
	return Verdict{Open: true}
}

func suppression(why string, marketing bool) (Reason, bool) {
	switch why {
	case "":
		return "", false
	case "hard_bounce":
		return SuppressedHardBounce, true
	case "complaint":
		return SuppressedComplaint, true
	case "unsubscribe":
		return SuppressedUnsubscribe, marketing
	}
	return SuppressedManual, true
}

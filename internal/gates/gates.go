// Package gates answers one question: may this person get this message now? It
// is asked by the channels stage when a message is asked for and again by the
// rail worker when it claims the job, inside their transactions. It owns the
// closed set of reasons; recording them is its callers' work
// (FS-MSG-0003 §1).
package gates

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Reason is why a message may not go; empty means that it may.
type Reason string

// The reasons. The first group is known before the gates are asked.
const (
	ReasonUnknownContact  Reason = "unknown_contact"
	ReasonUnknownChannel  Reason = "unknown_channel"
	ReasonNoAddress       Reason = "no_address"
	ReasonTemplateMissing Reason = "template_missing"

	ReasonExpired      Reason = "expired"
	ReasonTooOld       Reason = "too_old" // the origin event is older than the action's max_age
	ReasonSuppressed   Reason = "suppressed"
	ReasonNoConsent    Reason = "no_consent" // marketing needs one
	ReasonErased       Reason = "contact_erased"
	ReasonSenderPaused Reason = "sender_paused" // only at the claim: the message waits, it is not lost
)

// Subject is one message that is asked about.
type Subject struct {
	TenantID  uuid.UUID
	ContactID uuid.UUID
	Channel   string
	Category  string // transactional, product or marketing
	Address   string // normalised
	ExpiresAt *time.Time
	// OriginAt and MaxAge bound the age of the event that caused the message; a
	// MaxAge of 0 is no bound.
	OriginAt time.Time
	MaxAge   time.Duration
}

// Ask gives a reason for each subject, in order; "" where every gate is open.
// now is the caller's clock, by which messages expire.
func Ask(ctx context.Context, tx pgx.Tx, now time.Time, subjects []Subject) ([]Reason, error) {
	reasons := make([]Reason, len(subjects))
	n := len(subjects)
	if n == 0 {
		return reasons, nil
	}
	tenants, contacts := make([]uuid.UUID, n), make([]uuid.UUID, n)
	channels, addresses, marketing := make([]string, n), make([]string, n), make([]bool, n)
	for i, s := range subjects {
		tenants[i], contacts[i], channels[i], addresses[i] = s.TenantID, s.ContactID, s.Channel, s.Address
		marketing[i] = s.Category == "marketing"
		reasons[i] = s.timely(now)
	}
	const sql = `SELECT o,
    EXISTS (SELECT FROM messaging.suppressions s WHERE s.tenant_id = u.t AND s.channel = u.c AND s.address = u.a),
    EXISTS (SELECT FROM core.contacts k WHERE k.tenant_id = u.t AND k.contact_id = u.k AND k.erased_at IS NOT NULL),
    NOT u.m OR coalesce((SELECT granted FROM messaging.consents g WHERE g.tenant_id = u.t AND g.contact_id = u.k AND g.channel = u.c
        AND g.purpose = 'marketing' ORDER BY g.changed_at DESC LIMIT 1), false)
FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::bool[]) WITH ORDINALITY AS u(t, k, c, a, m, o)`
	rows, err := tx.Query(ctx, sql, tenants, contacts, channels, addresses, marketing)
	if err != nil {
		return nil, fmt.Errorf("ask the gates: %w", err)
	}
	var o int
	var suppressed, erased, consents bool
	_, err = pgx.ForEachRow(rows, []any{&o, &suppressed, &erased, &consents}, func() error {
		r := &reasons[o-1]
		switch {
		case *r != "":
		case erased:
			*r = ReasonErased
		case suppressed:
			*r = ReasonSuppressed
		case !consents:
			*r = ReasonNoConsent
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("ask the gates: %w", err)
	}
	return reasons, nil
}

func (s Subject) timely(now time.Time) Reason {
	switch {
	case s.ExpiresAt != nil && !now.Before(*s.ExpiresAt):
		return ReasonExpired
	case s.MaxAge > 0 && now.Sub(s.OriginAt) > s.MaxAge:
		return ReasonTooOld
	}
	return ""
}

// Package identity finds out who an event is about: it turns identifiers into
// contacts, makes anonymous ones, attaches new identifiers, merges contacts
// that turn out to be one person, and keeps traits. It writes contacts and
// merges inside its caller's transaction; it never touches events. The append
// stage calls it for every event, the channels stage for recipients of the API.
package identity

import (
	"bytes"
	"cmp"
	"encoding/json"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/internal/identifier"
)

// Kinds of identifiers that the platform knows; a tenant may use its own
// beside them.
const (
	KindExternalID = identifier.ExternalID
	KindEmail      = identifier.Email
	KindPhone      = identifier.Phone
	KindAnonymous  = identifier.Anonymous
)

// Input is one event's share of identity, in the order of its stream.
type Input struct {
	TenantID      uuid.UUID
	CellID        string
	EventID       uuid.UUID
	CorrelationID string
	Identifiers   string       // JSON object of strings, raw as sent
	Read          *Identifiers // what Read made of Identifiers, where the caller has it already
	Traits        string       // JSON object; empty: the event carries none
	OccurredAt    time.Time
	// ReceivedAt is when the platform took it in: what came before a person was
	// erased never brings the person back. Zero: now.
	ReceivedAt time.Time
}

// Outcome is what identity found for each input and what it changed.
type Outcome struct {
	Contacts []uuid.UUID // by input
	// Erased says which inputs were received before somebody whom they name was
	// erased: each got an anonymous contact of its own, without its identifiers and
	// traits, and the rest of what it carries is the erased person's too. Nil: none.
	Erased   []bool
	Changes  []Change
	Warnings []Warning
	Created  int
	Merged   int
}

// Change is a contact that the batch left different, as it now stands.
type Change struct {
	TenantID      uuid.UUID
	CellID        string
	ContactID     uuid.UUID
	Kind          string     // identified, merged, unmerged or erased
	Into          *uuid.UUID // merged: the survivor
	Traits        json.RawMessage
	CauseEventID  uuid.UUID // uuid.Nil: no event
	CorrelationID string
}

// Warning is something that the tenant should know about an accepted event.
type Warning struct {
	TenantID uuid.UUID
	EventID  uuid.UUID
	Kind     string // refused_identifier, refused_traits, identity_conflict, traits_capped, identifiers_capped; the append stage has its own
	Detail   any    // an object, without values that were sent
}

// Limits of a contact's traits: more makes a record that no broker takes.
const (
	MaxTraitBytes = 64 << 10
	MaxTraitKeys  = 500
)

// MaxIdentifiers is how many a contact may have: a till that sends a constant as
// anybody's device would gather the whole world in one. The external_id is never
// refused for it, nor does a merge lose any.
const MaxIdentifiers = 200

// key is an identifier within the platform.
type key struct {
	tenant uuid.UUID
	kind   string
	value  string
}

// compare orders keys as they are locked.
func (k key) compare(o key) int {
	return cmp.Or(bytes.Compare(k.tenant[:], o.tenant[:]), strings.Compare(k.kind, o.kind), strings.Compare(k.value, o.value))
}

// person is a contact while a batch is worked on.
type person struct {
	tenant   uuid.UUID
	cell     string
	id       uuid.UUID
	known    bool
	created  time.Time
	external map[string]bool
	attached int     // identifiers
	into     *person // merged
	isNew    bool
	wasKnown bool
}

// root follows merges to the survivor.
func (p *person) root() *person {
	for p.into != nil {
		p = p.into
	}
	return p
}

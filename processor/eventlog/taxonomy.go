package eventlog

import (
	"github.com/google/uuid"

	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/internal/taxonomy"
	"github.com/softcrum/carril/processor/identity"
)

// Taxonomy knows the schemas that tenants have installed, without waiting.
type Taxonomy interface {
	// Find gives the schema of a tenant's event name; nil: there is none.
	Find(tenant uuid.UUID, event string) *taxonomy.Schema
}

// violated is what a warning says of an event that does not match.
type violated struct {
	EventName  string               `json:"event_name"`
	Version    int                  `json:"version"`
	Mode       taxonomy.Mode        `json:"mode"`
	Violations []taxonomy.Violation `json:"violations"`
}

// judge warns of events that do not match the schema of their name. Those of an
// enforced one were refused at the front door, unless it did not know the schema
// yet: then the tenant hears of them here, and they stay.
func (h *Handler) judge(b *stream.Batch, rows []row) []identity.Warning {
	if h.deps.Taxonomy == nil {
		return nil
	}
	var warnings []identity.Warning
	for _, r := range rows {
		s := h.deps.Taxonomy.Find(r.TenantID, r.name())
		if s == nil {
			continue
		}
		if vs := s.Judge(r.Payload); len(vs) > 0 {
			warnings = append(warnings, identity.Warning{TenantID: r.TenantID, EventID: r.EventID, Kind: "taxonomy_violation",
				Detail: violated{r.name(), s.Version, s.Mode, vs}})
		}
	}
	if m, n := h.deps.Metrics, len(warnings); m != nil && n > 0 {
		b.OnCommit(func() { m.violations.Add(float64(n)) })
	}
	return warnings
}

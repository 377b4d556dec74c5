package ingestor

import (
	"fmt"
	"strconv"

	"github.com/google/uuid"

	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/taxonomy"
	"github.com/softcrum/carril/schemas"
)

// Taxonomy knows the schemas that tenants have installed. It waits for nothing:
// while the database is away, what it knew last is in force.
type Taxonomy interface {
	// Find gives the schema of a tenant's event name; nil: there is none.
	Find(tenant uuid.UUID, event string) *taxonomy.Schema
}

// judge refuses an event that an enforced schema does not allow (FS-CORE-0006
// §8). index is its place in the batch, negative for one that is alone.
func (a *API) judge(ev *schemas.Event, index int) *intake.Error {
	if a.deps.Taxonomy == nil {
		return nil
	}
	s := a.deps.Taxonomy.Find(ev.TenantID, ev.EventName)
	if s == nil || s.Mode != taxonomy.Enforce {
		return nil
	}
	violations := s.Judge(ev.Payload)
	if len(violations) == 0 {
		return nil
	}
	payload := "/properties"
	if ev.Kind == intake.Identify {
		payload = "/traits"
	}
	if index >= 0 {
		payload = "/events/" + strconv.Itoa(index) + payload
	}
	for i := range violations {
		violations[i].Pointer = payload + violations[i].Pointer
	}
	return &intake.Error{Code: intake.TaxonomyViolation, Pointer: violations[0].Pointer, Extra: map[string]any{"violations": violations},
		Detail: fmt.Sprintf("Version %d of the schema; %s fails.", s.Version, violations[0].Keyword)}
}

// judgeAll refuses the events of a batch, each by itself.
func (a *API) judgeAll(items []intake.Item) {
	if a.deps.Taxonomy == nil {
		return
	}
	for i := range items {
		if it := &items[i]; it.Err == nil {
			if err := a.judge(it.Event, i); err != nil {
				*it = intake.Item{Err: err}
			}
		}
	}
}

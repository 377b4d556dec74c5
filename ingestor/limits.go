package ingestor

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/ingestor/message"
)

// limitsAnswer is what GET /v1/core/limits publishes (FS-CORE-0006 §10).
type limitsAnswer struct {
	Plan       planLimits    `json:"plan"`
	Key        *rateLimits   `json:"key"` // null: the plan's alone
	Event      eventLimits   `json:"event"`
	Batch      batchLimits   `json:"batch"`
	Message    messageLimits `json:"message"`
	OccurredAt window        `json:"occurred_at"`
}

type rateLimits struct {
	EventsPerSecond int `json:"events_per_second"`
	EventsBurst     int `json:"events_burst"`
}

type planLimits struct {
	ID string `json:"id"`
	rateLimits
	RetentionMonths int `json:"retention_months"`
}

type eventLimits struct {
	Bytes     int `json:"bytes"`
	BodyBytes int `json:"body_bytes"`
	Depth     int `json:"depth"`
	Members   int `json:"members"`
	KeyBytes  int `json:"key_bytes"`
}

type batchLimits struct {
	Events    int `json:"events"`
	BodyBytes int `json:"body_bytes"`
}

type messageLimits struct {
	Recipients int `json:"recipients"`
	BodyBytes  int `json:"body_bytes"`
}

type window struct {
	Earliest   time.Time `json:"earliest"`
	Latest     time.Time `json:"latest"`
	Policy     string    `json:"policy"` // reject or clamp
	ServerTime time.Time `json:"server_time"`
}

// limits answers GET /v1/core/limits. It charges nothing.
func (a *API) limits(w http.ResponseWriter, r *http.Request) {
	p, problem := apikey.AuthorizeTenant(a.deps.Keys, r, apikey.ScopeEventsRead)
	if p != nil {
		a.deps.Limits.Show(p, w.Header())
	}
	if problem != nil {
		problem.Write(w, r)
		return
	}
	w.Header()["Content-Type"] = jsonType
	_ = json.NewEncoder(w).Encode(a.limitsOf(p)) // the client has left
}

func (a *API) limitsOf(p *apikey.Principal) limitsAnswer {
	now := a.deps.Now().UTC()
	out := limitsAnswer{
		Plan: planLimits{ID: p.Tenant.PlanID, RetentionMonths: p.Tenant.RetentionMonths,
			rateLimits: rateLimits{p.Tenant.EventsPerSecond, p.Tenant.EventsBurst}},
		Event: eventLimits{Bytes: intake.MaxEventBytes, BodyBytes: a.cfg.MaxEventBody, Depth: intake.MaxDepth,
			Members: intake.MaxMembers, KeyBytes: intake.MaxKeyBytes},
		Batch:      batchLimits{intake.MaxBatch, a.cfg.MaxBatchBody},
		Message:    messageLimits{message.MaxRecipients, a.cfg.MaxMessageBody},
		OccurredAt: window{Policy: "reject", ServerTime: now},
	}
	if p.Rate.PerSecond > 0 {
		out.Key = &rateLimits{p.Rate.PerSecond, p.Rate.Burst}
	}
	if p.Tenant.Clamp {
		out.OccurredAt.Policy = "clamp"
	}
	out.OccurredAt.Earliest, out.OccurredAt.Latest = intake.Window(now, p.Tenant.RetentionMonths, a.cfg.Ahead)
	return out
}

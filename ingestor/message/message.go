package message

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/schemas"
)

// Limits of one request. Sizes are bytes.
const (
	MaxRecipients   = 500
	MaxRecipient    = intake.MaxIdentifier // an external_id or address
	MaxTemplateID   = 200
	MaxVariables    = intake.MaxEventBytes // a variables object
	MaxContent      = 256 << 10            // subject, html and text together
	MaxSpread       = 16 << 20             // content and variables, once for each recipient: each gets its own copy
	maxCorrelations = intake.MaxCorrelationID
)

// Caller is who sent the request, and when.
type Caller struct {
	TenantID       uuid.UUID
	CellID         string
	ReceivedAt     time.Time // ours, stamped once at the edge; kept to the millisecond, which the send's id carries
	IdempotencyKey string    // the Idempotency-Key header; empty: none
	Channels       []string  // that have rails here
}

// Request is a request that was taken.
type Request struct {
	schemas.NotificationRequested
	Count int // of recipients
}

// Parse makes a request of a body, or gives the problem to answer with. The
// request holds no memory of the body.
func Parse(p *intake.Parser, body []byte, c *Caller) (*Request, *httpserver.Problem) {
	if err := p.Object(body); err != nil {
		return nil, refuseAs(err.Code, err.Pointer, err.Detail)
	}
	e, problem := envelopeOf(body)
	if problem != nil {
		return nil, problem
	}
	r := &Request{NotificationRequested: schemas.NotificationRequested{TenantID: c.TenantID, CellID: c.CellID, Origin: "api",
		ReceivedAt: c.ReceivedAt.UTC().Truncate(time.Millisecond)}}
	for _, step := range [...]func(envelope, *Caller, *Request) *httpserver.Problem{
		key, route, template, variables, recipients, times, correlation,
	} {
		if problem := step(e, c, r); problem != nil {
			return nil, problem
		}
	}
	r.BodyHash = bodyHash(r)
	return r, nil
}

// key takes the idempotency key of the body or of the header; both must agree.
func key(e envelope, c *Caller, r *Request) *httpserver.Problem {
	const pointer = "/idempotency_key"
	k, ok := e.text("idempotency_key")
	switch {
	case e.has("idempotency_key") && (!ok || !intake.Visible(k, intake.MaxIdempotencyKey)):
		return keyProblem(pointer)
	case ok && c.IdempotencyKey != "" && c.IdempotencyKey != k:
		return refuseAs(intake.IdempotencyKeyMismatch, pointer, "")
	case ok:
	case c.IdempotencyKey == "":
		return refuseAs(intake.MissingField, pointer, "idempotency_key is required: without one a retry would send twice.")
	case !intake.Visible(c.IdempotencyKey, intake.MaxIdempotencyKey):
		return keyProblem("")
	default:
		k = c.IdempotencyKey
	}
	r.IdempotencyKey, r.RequestID = &k, ids.Request(c.TenantID, k)
	return nil
}

func keyProblem(pointer string) *httpserver.Problem {
	return refuseAs(intake.InvalidIdempotencyKey, pointer, fmt.Sprintf(
		"1 to %d bytes of text without control characters, no white space at either end.", intake.MaxIdempotencyKey))
}

// route reads what decides the rail: channel and category.
func route(e envelope, c *Caller, r *Request) *httpserver.Problem {
	for _, name := range []string{"channel", "category"} {
		if !e.has(name) {
			return refuseAs(intake.MissingField, "/"+name, name+" is required.")
		}
	}
	var ok bool
	if r.Channel, ok = e.text("channel"); !ok {
		return wrongType("/channel", "a string")
	}
	if !slices.Contains(c.Channels, r.Channel) {
		return refuse(UnknownChannel, "/channel", "")
	}
	if r.Category, ok = e.text("category"); !ok {
		return wrongType("/category", "a string")
	}
	if _, ok := schemas.RailOf(r.Category); !ok {
		return refuse(InvalidCategory, "/category", "")
	}
	return nil
}

// template takes a template's name and version, or content.
func template(e envelope, _ *Caller, r *Request) *httpserver.Problem {
	if e.has("content") == e.has("template_id") {
		return refuse(ContentOrTemplate, "", "Send template_id or content.")
	}
	if e.has("content") {
		if e.has("template_version") {
			return refuse(ContentOrTemplate, "/template_version", "A template_version belongs to a template_id.")
		}
		return content(e["content"], r)
	}
	id, ok := e.text("template_id")
	if !ok || !intake.Visible(id, MaxTemplateID) {
		return refuse(InvalidTemplate, "/template_id", fmt.Sprintf("A string of 1 to %d bytes without control characters.", MaxTemplateID))
	}
	r.TemplateID = &id
	if !e.has("template_version") {
		return nil
	}
	var version int32
	if err := json.Unmarshal(e["template_version"], &version); err != nil || version < 1 {
		return refuse(InvalidTemplate, "/template_version", "A whole number from 1 on.")
	}
	r.TemplateVersion = &version
	return nil
}

// content takes the text of a message that has no template. A subject of
// several lines is made one when it is rendered (bad inputs 49).
func content(raw json.RawMessage, r *Request) *httpserver.Problem {
	parts, problem := object(raw, "/content", "subject", "html", "text")
	if problem != nil {
		return problem
	}
	given := 0
	for _, name := range []string{"subject", "html", "text"} {
		text, ok := parts.text(name)
		if parts.has(name) && !ok {
			return refuse(InvalidContent, "/content/"+name, name+" is a string.")
		}
		if name != "subject" && text != "" {
			given++
		}
	}
	if given == 0 {
		return refuse(InvalidContent, "/content", "html or text, or both, must say something.")
	}
	if subject, _ := parts.text("subject"); subject == "" && r.Channel == "email" {
		return refuse(InvalidContent, "/content/subject", "An email has a subject.")
	}
	text := parts.compact("subject", "html", "text")
	if len(text) > MaxContent {
		return refuse(TooLarge, "/content", fmt.Sprintf("At most %d bytes.", MaxContent))
	}
	r.Content = &text
	return nil
}

func variables(e envelope, _ *Caller, r *Request) *httpserver.Problem {
	v, problem := variablesOf(e, "/variables")
	if r.Variables = v; v == "" {
		r.Variables = "{}"
	}
	return problem
}

// variablesOf gives an object's variables without white space; "" for none.
func variablesOf(e envelope, pointer string) (string, *httpserver.Problem) {
	if !e.has("variables") {
		return "", nil
	}
	if e["variables"][0] != '{' {
		return "", wrongType(pointer, "an object")
	}
	v := compact(e["variables"])
	if len(v) > MaxVariables {
		return "", refuse(TooLarge, pointer, fmt.Sprintf("At most %d bytes.", MaxVariables))
	}
	return v, nil
}

// times reads expires_at. One that has passed is no fault of the form: a retry
// must be answered as the first try was, and the gate lets nothing late go.
func times(e envelope, _ *Caller, r *Request) *httpserver.Problem {
	if !e.has("expires_at") {
		return nil
	}
	text, _ := e.text("expires_at")
	at, ok := intake.ParseTime(text)
	if !ok {
		return refuseAs(intake.InvalidTime, "/expires_at", "Write it as 2026-11-01T01:30:00.123456-05:00 or 2026-11-01T06:30:00Z.")
	}
	r.ExpiresAt = &at
	return nil
}

func correlation(e envelope, _ *Caller, r *Request) *httpserver.Problem {
	r.CorrelationID = r.RequestID.String()
	if !e.has("correlation_id") {
		return nil
	}
	id, ok := e.text("correlation_id")
	if !ok || !intake.Visible(id, maxCorrelations) {
		return refuseAs(intake.InvalidCorrelationID, "/correlation_id", fmt.Sprintf(
			"A string of 1 to %d bytes without control characters, no white space at either end.", maxCorrelations))
	}
	r.CorrelationID = id
	return nil
}

// bodyHash is the hash of the package's comment. Each part stands behind its
// length, so that no two requests read the same.
func bodyHash(r *Request) []byte {
	var template, content, expires string
	version := int32(0)
	if r.TemplateID != nil {
		template = *r.TemplateID
	}
	if r.TemplateVersion != nil {
		version = *r.TemplateVersion
	}
	if r.Content != nil {
		content = *r.Content
	}
	if r.ExpiresAt != nil {
		expires = fmt.Sprint(r.ExpiresAt.UnixMicro())
	}
	h := sha256.New()
	for _, part := range []string{r.Channel, r.Category, r.Recipients, template, fmt.Sprint(version), content, r.Variables, expires} {
		_ = binary.Write(h, binary.BigEndian, uint32(len(part))) // a hash takes everything
		h.Write([]byte(part))
	}
	return h.Sum(nil)
}

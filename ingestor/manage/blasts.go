package manage

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"github.com/softcrum/carril/ingestor/apikey"
	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/content"
	"github.com/softcrum/carril/internal/httpserver"
)

// Scopes of blasts. The second is enough for what changes nothing.
const (
	ScopeBlasts     = "messaging.blasts.write"
	ScopeBlastsRead = "messaging.blasts.read"
)

// Blast is a campaign as its owner shows it.
type Blast any

// ListedBlast is a blast with its place in the list.
type ListedBlast struct {
	Blast     Blast
	CreatedAt time.Time
	ID        uuid.UUID
}

// BlastDraft is a blast to be, or what becomes different of a draft: nil leaves
// a field as it is.
type BlastDraft struct {
	Name            *string
	Channel         *string
	TemplateID      *string
	TemplateVersion *int
	Variables       json.RawMessage
	AudienceType    *string
	Traits          json.RawMessage
}

// BlastFile is a file of recipients on its way in.
type BlastFile struct {
	Format    string // csv or ndjson
	Delimiter string
	Columns   map[string]string
	Body      io.Reader
}

// BlastUpload is how far a file has come. Failed: what ended it, and where.
type BlastUpload struct {
	Upload any
	Failed string
	Detail string
	Row    int64
}

// BlastBadRow is a row of a file that was not taken.
type BlastBadRow struct {
	Row    int64  `json:"row"`
	Column string `json:"column,omitempty"`
	Reason string `json:"reason"`
}

// BlastStart is how a draft begins.
type BlastStart struct {
	At              *time.Time // nil: now
	WithOpenUploads bool
	OverQuota       bool // although the provider's quota does not take it all
}

// BlastRecipient names one contact, by one of its fields.
type BlastRecipient struct{ ContactID, ExternalID, Address string }

// Blasts keeps tenants' campaigns. ErrNotFound says that the tenant has no such
// one; an error with Problem is a refusal of what it asked for, a *content.Error
// says why the template cannot be filled in.
type Blasts interface {
	Create(ctx context.Context, tenant uuid.UUID, key string, d BlastDraft) (Blast, error)
	Update(ctx context.Context, tenant, id uuid.UUID, d BlastDraft) (Blast, error)
	Get(ctx context.Context, tenant, id uuid.UUID) (Blast, error)
	// List gives up to limit blasts behind a position, the newest first.
	List(ctx context.Context, tenant uuid.UUID, state string, before time.Time, beforeID uuid.UUID, limit int) ([]ListedBlast, error)
	Start(ctx context.Context, tenant, id uuid.UUID, how BlastStart) (Blast, error)
	Pause(ctx context.Context, tenant, id uuid.UUID) (Blast, error)
	Resume(ctx context.Context, tenant, id uuid.UUID) (Blast, error)
	Cancel(ctx context.Context, tenant, id uuid.UUID) (Blast, error)
	Upload(ctx context.Context, tenant, id, upload uuid.UUID, f BlastFile) (BlastUpload, error)
	// Uploaded gives up to limit bad rows behind one.
	Uploaded(ctx context.Context, tenant, id, upload uuid.UUID, behind int64, limit int) (any, []BlastBadRow, error)
	Preview(ctx context.Context, tenant, id uuid.UUID, address string, variables json.RawMessage) (content.Parts, error)
	Test(ctx context.Context, tenant, id uuid.UUID, to BlastRecipient, variables json.RawMessage) (send uuid.UUID, err error)
	DryRun(ctx context.Context, tenant, id uuid.UUID) (any, error)
	Report(ctx context.Context, tenant, id uuid.UUID) (any, error)
	States() []string
}

// maxBlastBody is a blast's variables with what stands around them.
const maxBlastBody = 256 << 10

func (m *Routes) mountBlasts(r chi.Router) {
	const all, one = "/v1/messaging/blasts", "/v1/messaging/blasts/{blast_id}"
	b := m.deps.Blasts
	r.Post(all, m.blasts(http.StatusCreated, m.createBlast))
	r.Get(all, m.listBlasts)
	r.Get(one, m.blastRead(blasted(b.Get)))
	r.Patch(one, m.blasts(http.StatusOK, m.updateBlast))
	r.Post(one+"/recipients", m.uploadRecipients)
	r.Get(one+"/uploads/{upload_id}", m.uploaded)
	r.Post(one+"/preview", m.blastRead(m.previewBlast))
	r.Post(one+"/test", m.blasts(http.StatusAccepted, m.testBlast))
	r.Post(one+"/dry-run", m.blastRead(blasted(b.DryRun)))
	r.Post(one+"/start", m.blasts(http.StatusOK, m.startBlast))
	r.Post(one+"/pause", m.blasts(http.StatusOK, blasted(b.Pause)))
	r.Post(one+"/resume", m.blasts(http.StatusOK, blasted(b.Resume)))
	r.Post(one+"/cancel", m.blasts(http.StatusOK, blasted(b.Cancel)))
	r.Get(one+"/report", m.blastRead(blasted(b.Report)))
}

// blasts is a route that changes a tenant's blasts.
func (m *Routes) blasts(success int, f work) http.HandlerFunc {
	return m.tenant(ScopeBlasts, success, refusedBlast(f))
}

// refusedBlast brings the refusals of blasts to the form of answers.
func refusedBlast(f work) work {
	return func(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
		answer, problem, err := f(ctx, r, tenant)
		if p := blastProblem(err); p != nil {
			return nil, p, nil
		}
		return answer, problem, err
	}
}

// blastProblem is the answer to a refusal; nil for an error that is none. What
// the blast's state forbids is a conflict, and anything else is the request's.
func blastProblem(err error) *httpserver.Problem {
	var unrendered *content.Error
	if errors.As(err, &unrendered) {
		return cannotRender(unrendered)
	}
	var refused interface {
		refusal
		Conflict() bool
	}
	if !errors.As(err, &refused) {
		return nil
	}
	code, pointer, detail := refused.Problem()
	p := unprocessable(code, pointer, detail)
	if refused.Conflict() {
		p.Status, p.Title = http.StatusConflict, "The blast is not in a state for this"
		if code == "quota_exceeded" {
			p.Title = "The blast does not fit into the provider's quota"
		}
	}
	return p
}

// blastRead is a route that only looks at a tenant's blasts.
func (m *Routes) blastRead(f work) http.HandlerFunc {
	f = refusedBlast(f)
	return func(w http.ResponseWriter, r *http.Request) {
		tenant, problem := m.readsBlasts(r)
		if problem != nil {
			problem.Write(w, r)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
		defer cancel()
		answer, problem, err := f(ctx, r, tenant)
		if problem != nil {
			problem.Write(w, r)
			return
		}
		m.reply(w, r, answer, err)
	}
}

// readsBlasts authorizes a look at blasts: who may change them may look.
func (m *Routes) readsBlasts(r *http.Request) (uuid.UUID, *httpserver.Problem) {
	p, problem := apikey.AuthorizeTenant(m.deps.Keys, r, ScopeBlastsRead)
	if problem != nil && p != nil && p.TenantID != uuid.Nil && p.Can(ScopeBlasts) {
		return p.TenantID, nil
	}
	if problem != nil {
		return uuid.Nil, problem
	}
	return p.TenantID, nil
}

// blasted does something with the blast that the path names.
func blasted[T any](f func(ctx context.Context, tenant, id uuid.UUID) (T, error)) work {
	return func(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
		id, ok := parseID(chi.URLParam(r, "blast_id"))
		if !ok {
			return nil, nil, ErrNotFound
		}
		b, err := f(ctx, tenant, id)
		return b, nil, err
	}
}

func (m *Routes) createBlast(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	key := ""
	d, problem := readBlast(r, map[string]any{"idempotency_key": &key})
	if problem != nil {
		return nil, problem, nil
	}
	if h := r.Header["Idempotency-Key"]; len(h) > 0 {
		if len(h) > 1 || h[0] == "" || key != "" && h[0] != key {
			return nil, refuse(&intake.Error{Code: intake.InvalidIdempotencyKey, Detail: "One Idempotency-Key header, equal to the body's idempotency_key."}), nil
		}
		key = h[0]
	}
	if key != "" && !intake.Visible(key, intake.MaxIdempotencyKey) {
		return nil, refuse(&intake.Error{Code: intake.InvalidIdempotencyKey, Detail: "1 to 255 bytes of text without control characters."}), nil
	}
	if d.Channel != nil {
		if problem := m.channel(*d.Channel); problem != nil {
			return nil, problem, nil
		}
	}
	b, err := m.deps.Blasts.Create(ctx, tenant, key, d)
	return b, nil, err
}

func (m *Routes) updateBlast(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	d, problem := readBlast(r, nil)
	if problem != nil {
		return nil, problem, nil
	}
	if d.Channel != nil {
		return nil, refuse(&intake.Error{Code: intake.InvalidField, Pointer: "/channel", Detail: "The channel of a blast stays as it was made."}), nil
	}
	return blasted(func(ctx context.Context, tenant, id uuid.UUID) (Blast, error) {
		return m.deps.Blasts.Update(ctx, tenant, id, d)
	})(ctx, r, tenant)
}

// readBlast reads the fields of a blast, and more where a route takes more.
func readBlast(r *http.Request, more map[string]any) (d BlastDraft, problem *httpserver.Problem) {
	body, problem := readObjectOf(r, maxBlastBody)
	if problem != nil {
		return d, problem
	}
	var audience json.RawMessage
	into := map[string]any{"name": &d.Name, "channel": &d.Channel, "template_id": &d.TemplateID, "template_version": &d.TemplateVersion,
		"variables": &d.Variables, "audience": &audience}
	for name, to := range more {
		into[name] = to
	}
	if problem := fields(body, "", into); problem != nil {
		return d, problem
	}
	if audience != nil {
		kind := ""
		if problem := fields(audience, "/audience", map[string]any{"type": &kind, "traits": &d.Traits}); problem != nil {
			return d, problem
		}
		d.AudienceType = &kind
	}
	return d, nil
}

// optionalObject reads a body that may be missing.
func optionalObject(r *http.Request, into map[string]any) *httpserver.Problem {
	if r.ContentLength == 0 {
		return nil
	}
	body, problem := readObjectOf(r, maxBlastBody)
	if problem != nil {
		return problem
	}
	return fields(body, "", into)
}

func (m *Routes) startBlast(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	var text *string
	var how BlastStart
	if problem := optionalObject(r, map[string]any{"start_at": &text, "with_open_uploads": &how.WithOpenUploads, "over_quota": &how.OverQuota}); problem != nil {
		return nil, problem, nil
	}
	if text != nil {
		t, ok := intake.ParseTime(*text)
		if !ok {
			return nil, refuse(&intake.Error{Code: intake.InvalidField, Pointer: "/start_at", Detail: "A time as 2026-11-01T09:00:00Z."}), nil
		}
		how.At = &t
	}
	return blasted(func(ctx context.Context, tenant, id uuid.UUID) (Blast, error) {
		return m.deps.Blasts.Start(ctx, tenant, id, how)
	})(ctx, r, tenant)
}

func (m *Routes) previewBlast(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	address := ""
	var variables json.RawMessage
	if problem := optionalObject(r, map[string]any{"address": &address, "variables": &variables}); problem != nil {
		return nil, problem, nil
	}
	return blasted(func(ctx context.Context, tenant, id uuid.UUID) (content.Parts, error) {
		return m.deps.Blasts.Preview(ctx, tenant, id, address, variables)
	})(ctx, r, tenant)
}

// testSent is the answer to a test.
type testSent struct {
	SendID uuid.UUID `json:"send_id"`
}

func (m *Routes) testBlast(ctx context.Context, r *http.Request, tenant uuid.UUID) (any, *httpserver.Problem, error) {
	body, problem := readObjectOf(r, maxBlastBody)
	if problem != nil {
		return nil, problem, nil
	}
	var to BlastRecipient
	var variables json.RawMessage
	problem = fields(body, "", map[string]any{"contact_id": &to.ContactID, "external_id": &to.ExternalID, "address": &to.Address, "variables": &variables})
	if problem != nil {
		return nil, problem, nil
	}
	return blasted(func(ctx context.Context, tenant, id uuid.UUID) (testSent, error) {
		send, err := m.deps.Blasts.Test(ctx, tenant, id, to, variables)
		return testSent{send}, err
	})(ctx, r, tenant)
}

// listBlasts answers GET /v1/messaging/blasts.
func (m *Routes) listBlasts(w http.ResponseWriter, r *http.Request) {
	tenant, problem := m.readsBlasts(r)
	q := &listQuery{}
	if problem == nil {
		q, problem = parseQuery(r, "blasts", []string{"state"})
	}
	if problem != nil {
		problem.Write(w, r)
		return
	}
	if q.values.Get("state") != "" && !slices.Contains(m.deps.Blasts.States(), q.values.Get("state")) {
		problem = badParameter("state is one of " + strings.Join(m.deps.Blasts.States(), ", ") + ".")
	}
	behind := position{time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), uuid.Max}
	of := "blasts\x00" + tenant.String() + "\x00" + q.values.Get("state")
	if problem == nil {
		behind, problem = m.behind(q, of, behind)
	}
	if problem != nil {
		problem.Write(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	list, err := m.deps.Blasts.List(ctx, tenant, q.values.Get("state"), behind.at, behind.id, q.limit+1)
	answer := map[string]any{}
	if len(list) > q.limit {
		list = list[:q.limit]
		last := list[q.limit-1]
		answer["next_cursor"] = signer{m.deps.CursorKey}.sign(position{last.CreatedAt, last.ID}, of)
	}
	page := make([]Blast, len(list))
	for i, b := range list {
		page[i] = b.Blast
	}
	answer["blasts"] = page
	m.reply(w, r, answer, err)
}

// behind reads the cursor of a page; without one it is the start.
func (m *Routes) behind(q *listQuery, of string, start position) (position, *httpserver.Problem) {
	if q.cursor == "" {
		return start, nil
	}
	at, ok := signer{m.deps.CursorKey}.open(q.cursor, of)
	if !ok {
		return start, &httpserver.Problem{Status: http.StatusBadRequest, Code: "invalid_cursor", Title: "The cursor does not belong to this list",
			Detail: "A cursor goes with the parameters of the page that it came from."}
	}
	return at, nil
}

package blast

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/content"
	"github.com/softcrum/carril/internal/gates"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/schemas"
)

// Sample says with what a blast's template is filled in.
type Sample struct {
	Address   string          // of one of its recipients; empty: nobody's
	Variables json.RawMessage // laid over the others
}

// Preview fills the template in as a message would be, and sends nothing. The
// error is a *content.Error with the reason that the message would fail with.
func (s *Store) Preview(ctx context.Context, tenant, id uuid.UUID, of Sample) (content.Parts, error) {
	b, err := read(ctx, s.pool, tenant, id, "")
	if err != nil {
		return content.Parts{}, err
	}
	own := json.RawMessage(`{}`)
	if of.Address != "" {
		address, _ := gates.Normalize(b.Channel, of.Address)
		err := s.pool.QueryRow(ctx, `SELECT variables FROM messaging.blast_recipients WHERE blast_id = $1 AND address = $2`, id, address).Scan(&own)
		if errors.Is(err, pgx.ErrNoRows) {
			return content.Parts{}, refuse("unknown_recipient", "/address", "The blast has no such recipient.")
		}
		if err != nil {
			return content.Parts{}, fmt.Errorf("read a recipient: %w", err)
		}
	}
	t, err := s.template(ctx, b)
	if err != nil {
		return content.Parts{}, err
	}
	vars, err := Merge(b.Variables, own, of.Variables)
	if err != nil {
		return content.Parts{}, refuse("invalid_field", "/variables", "variables is an object.")
	}
	return t.Render(vars)
}

// Merge lays variables over each other, the later over the earlier.
func Merge(layers ...json.RawMessage) (json.RawMessage, error) {
	vars := map[string]json.RawMessage{}
	for _, raw := range layers {
		if len(raw) == 0 {
			continue
		}
		if err := json.Unmarshal(raw, &vars); err != nil {
			return nil, fmt.Errorf("read a blast's variables: %w", err)
		}
	}
	return json.Marshal(vars)
}

func (s *Store) template(ctx context.Context, b *Blast) (*content.Template, error) {
	v, err := content.NewStore(s.pool).Get(ctx, b.tenant, b.TemplateID, b.TemplateVersion)
	if errors.Is(err, content.ErrNone) {
		return nil, &content.Error{Reason: content.ReasonTemplateMissing}
	}
	if err != nil {
		return nil, err
	}
	return content.Compile(*v.Parts)
}

// TestPrefix stands before the subject of a test.
const TestPrefix = "[Test] "

// Recipient names one contact, by one of its fields.
type Recipient struct{ ContactID, ExternalID, Address string }

// Test sends the blast's message to one known contact, on the marketing rail
// and through its gates, marked as a test. It is no part of the blast's
// accounting. It gives the send's id.
func (s *Store) Test(ctx context.Context, tenant, id uuid.UUID, to Recipient, variables json.RawMessage) (uuid.UUID, error) {
	b, err := read(ctx, s.pool, tenant, id, "")
	if err != nil {
		return uuid.Nil, err
	}
	if variables == nil {
		variables = json.RawMessage(`{}`)
	}
	t, err := s.template(ctx, b)
	if err != nil {
		return uuid.Nil, err
	}
	vars, err := Merge(b.Variables, variables)
	if err != nil {
		return uuid.Nil, refuse("invalid_field", "/variables", "variables is an object.")
	}
	parts, err := t.Render(vars)
	if err != nil {
		return uuid.Nil, err
	}
	parts.Subject = TestPrefix + parts.Subject
	raw, err := json.Marshal(parts)
	if err != nil {
		return uuid.Nil, fmt.Errorf("write a test: %w", err)
	}
	var send uuid.UUID
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		r := &row{contactID: to.ContactID, externalID: to.ExternalID, address: to.Address, variables: vars}
		found, err := resolve(ctx, tx, b, []*row{r})
		if err != nil {
			return err
		}
		if len(found) == 0 {
			pointer := ""
			if r.col != "" {
				pointer = "/" + r.col
			}
			return refuse(r.reason, pointer, "A test goes to one contact that an event or an import has named.")
		}
		at := time.Now().UTC().Truncate(time.Millisecond)
		m := schemas.JobMessage{RequestID: ids.New(), RequestedAt: at, ContactID: found[0].contact, Address: found[0].address, Category: "marketing",
			Content: raw, CorrelationID: "blast-test:" + b.ID.String(), OriginEventID: b.OriginEventID}
		if err := tx.QueryRow(ctx, `SELECT p.retention_months FROM core.tenants t JOIN core.plans p USING (plan_id) WHERE t.tenant_id = $1`, tenant).Scan(&m.RetentionMonths); err != nil {
			return err
		}
		m.SendID = ids.Send(tenant, m.RequestID, at, 0, b.Channel)
		send = m.SendID
		payload, err := json.Marshal(m)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO messaging.marketing_queue (tenant_id, channel, send_id, payload) VALUES ($1, $2, $3, $4)`, tenant, b.Channel, send, payload)
		return err
	})
	return send, said("send a test", err)
}

// DryRun is what a blast would do if it started now; nothing is written.
type DryRun struct {
	Recipients     int64            `json:"recipients"` // of the blast, or contacts that were looked at
	LookedAt       int64            `json:"looked_at"`
	Complete       bool             `json:"complete"` // false: the rest is estimated from what was looked at
	Sendable       int64            `json:"sendable"`
	WithoutConsent int64            `json:"without_consent"`
	Suppressed     int64            `json:"suppressed"`
	WithoutAddress int64            `json:"without_address"`
	Blocked        map[string]int64 `json:"blocked"` // of those looked at, by reason
	Rendered       int64            `json:"rendered"`
	RenderFailed   map[string]int64 `json:"render_failed"` // of those rendered, by reason
	Requests       int64            `json:"requests"`      // of the provider
	PerSecond      float64          `json:"requests_per_second,omitempty"`
	Seconds        *int64           `json:"seconds,omitempty"` // that it would take at that rate
	Quota          *Fit             `json:"quota,omitempty"`   // of the provider; absent where it has none
}

const (
	dryRunLooks   = 20_000 // recipients whose gates are asked
	dryRunRenders = 500
	dryRunFor     = 7 * time.Second
)

// DryRun asks the gates for a blast's recipients, or a sample of them that is
// spread over all, renders some, and says what the whole would take.
func (s *Store) DryRun(ctx context.Context, tenant, id uuid.UUID) (*DryRun, error) {
	b, err := read(ctx, s.pool, tenant, id, "")
	if err != nil {
		return nil, err
	}
	d := &DryRun{Blocked: map[string]int64{}, RenderFailed: map[string]int64{}, Complete: true}
	if b.Audience.Type == FromContacts && (b.State == Draft || b.State == Scheduled) {
		err = s.dryContacts(ctx, b, d)
	} else {
		err = s.dryRecipients(ctx, b, d)
	}
	if err != nil {
		return nil, said("try a blast", err)
	}
	d.estimate()
	d.Requests = (d.Sendable + Batch - 1) / Batch
	if s.cfg.RequestsPerSecond != nil {
		if d.PerSecond = s.cfg.RequestsPerSecond(ctx, tenant, b.Channel); d.PerSecond > 0 {
			d.Seconds = new(int64(float64(d.Requests)/d.PerSecond) + 1)
		}
	}
	start := s.cfg.Now()
	if b.State == Scheduled && b.StartAt != nil {
		start = *b.StartAt
	}
	d.Quota = s.room(ctx, b.Channel, d.Sendable, start)
	return d, nil
}

// estimate reckons from what was looked at to all.
func (d *DryRun) estimate() {
	if !d.Complete && d.LookedAt > 0 && d.Recipients > 0 {
		d.Sendable = int64(float64(d.Sendable) * float64(d.Recipients) / float64(d.LookedAt))
	}
}

func (s *Store) dryContacts(ctx context.Context, b *Blast, d *DryRun) error {
	if err := s.lookAtContacts(ctx, b, d); err != nil {
		return err
	}
	return s.dryRender(ctx, b, d, [][]byte{[]byte(`{}`)})
}

// lookAtContacts counts a filter's contacts, for as long as a dry run may take.
func (s *Store) lookAtContacts(ctx context.Context, b *Blast, d *DryRun) error {
	const chunk = 2_000
	after, end := uuid.Nil, time.Now().Add(dryRunFor)
	var r audienceReport
	for {
		list, err := candidates(ctx, s.pool, b.tenant, b.Channel, b.Audience.Traits, after, chunk)
		if err != nil {
			return err
		}
		for _, c := range list {
			if r.sort(c, b.Channel) {
				d.Sendable++
			}
		}
		if d.Complete = len(list) < chunk; d.Complete || time.Now().After(end) {
			break
		}
		after = list[len(list)-1].Contact
	}
	d.LookedAt, d.Recipients = r.Looked, d.Sendable
	if !d.Complete {
		if err := s.pool.QueryRow(ctx, `SELECT count(*) FROM core.contacts WHERE tenant_id = $1`, b.tenant).Scan(&d.Recipients); err != nil {
			return err
		}
	}
	d.WithoutConsent, d.Suppressed, d.WithoutAddress = r.WithoutConsent, r.Suppressed, r.WithoutAddress
	return nil
}

func (s *Store) dryRecipients(ctx context.Context, b *Blast, d *DryRun) error {
	d.Recipients = b.Recipients
	const chunk = 1_000
	stride := int64(chunk)
	if b.Recipients > dryRunLooks {
		stride, d.Complete = b.Recipients/(dryRunLooks/chunk), false
	}
	var variables [][]byte
	each := max(1, dryRunRenders/int(max(1, (b.Recipients+stride-1)/stride)))
	for at, end := int64(0), time.Now().Add(dryRunFor); at < b.Recipients; at += stride {
		if time.Now().After(end) {
			d.Complete = false
			break
		}
		vars, err := s.dryChunk(ctx, b, d, at, chunk)
		if err != nil {
			return err
		}
		variables = append(variables, vars[:min(len(vars), each)]...)
	}
	return s.dryRender(ctx, b, d, variables)
}

func (s *Store) dryChunk(ctx context.Context, b *Blast, d *DryRun, at int64, n int) (variables [][]byte, err error) {
	rows, err := s.pool.Query(ctx, `SELECT contact_id, address, variables FROM messaging.blast_recipients WHERE blast_id = $1 AND position >= $2 AND position < $3 ORDER BY position`, b.ID, at, at+int64(n))
	if err != nil {
		return nil, fmt.Errorf("read recipients: %w", err)
	}
	var subjects []gates.Subject
	var contact *uuid.UUID
	var address string
	var vars []byte
	_, err = pgx.ForEachRow(rows, []any{&contact, &address, &vars}, func() error {
		sub := gates.Subject{TenantID: b.tenant, Channel: b.Channel, Category: "marketing", Address: address}
		if contact != nil {
			sub.ContactID = *contact
		}
		subjects, variables = append(subjects, sub), append(variables, []byte(string(vars)))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read recipients: %w", err)
	}
	verdicts, err := gates.Ask(ctx, s.pool, subjects)
	if err != nil {
		return nil, err
	}
	for _, v := range verdicts {
		d.count(v)
	}
	return variables, nil
}

func (d *DryRun) count(v gates.Verdict) {
	d.LookedAt++
	if v.Open || v.Reason.Waits() {
		d.Sendable++
		return
	}
	d.Blocked[string(v.Reason)]++
	switch {
	case v.Gate == gates.GateConsent:
		d.WithoutConsent++
	case v.Gate == gates.GateSuppression:
		d.Suppressed++
	case v.Gate == gates.GateAddress:
		d.WithoutAddress++
	}
}

func (s *Store) dryRender(ctx context.Context, b *Blast, d *DryRun, variables [][]byte) error {
	t, err := s.template(ctx, b)
	for _, own := range variables {
		if err == nil {
			var vars json.RawMessage
			if vars, err = Merge(b.Variables, own); err != nil {
				return err
			}
			_, err = t.Render(vars)
		}
		d.Rendered++
		var re *content.Error
		switch {
		case errors.As(err, &re):
			d.RenderFailed[re.Reason]++
			if strings.HasPrefix(re.Reason, "template_") && t == nil {
				continue // it is the template itself
			}
			err = nil
		case err != nil:
			return err
		}
	}
	return nil
}

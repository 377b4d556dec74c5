package channels

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/internal/gates"
	"github.com/softcrum/carril/internal/identifier"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/processor/eventlog"
	"github.com/softcrum/carril/processor/identity"
	"github.com/softcrum/carril/schemas"
)

func insertKeys(ctx context.Context, tx pgx.Tx, reqs []request) (map[uuid.UUID]bool, error) {
	sorted := slices.Clone(reqs)
	slices.SortFunc(sorted, func(a, b request) int { return bytes.Compare(a.RequestID[:], b.RequestID[:]) })
	n := len(sorted)
	rows := processordb.InsertRequestKeysParams{
		Tenants: make([]uuid.UUID, n), Requests: make([]uuid.UUID, n), BodyHashes: make([][]byte, n), Received: make([]time.Time, n)}
	for i, q := range sorted {
		rows.Tenants[i], rows.Requests[i], rows.BodyHashes[i], rows.Received[i] = q.TenantID, q.RequestID, q.BodyHash, q.first
	}
	won, err := processordb.New(tx).InsertRequestKeys(ctx, rows)
	if err != nil {
		return nil, fmt.Errorf("take %d request keys: %w", n, err)
	}
	set := map[uuid.UUID]bool{}
	for _, id := range won {
		set[id] = true
	}
	return set, nil
}

// recordConflicts keeps which of the repeated requests are other requests under
// a used key. A rule's repeat is the platform's own affair: no caller chose its
// key.
func (h *Handler) recordConflicts(ctx context.Context, tx pgx.Tx, b *stream.Batch, again []request) error {
	var rows processordb.RecordRequestConflictsParams
	for _, q := range again {
		if q.Origin != "api" {
			continue
		}
		rows.Tenants, rows.Requests = append(rows.Tenants, q.TenantID), append(rows.Requests, q.RequestID)
		rows.BodyHashes, rows.Received = append(rows.BodyHashes, q.BodyHash), append(rows.Received, q.ReceivedAt)
	}
	if len(rows.Requests) == 0 {
		return nil
	}
	n, err := processordb.New(tx).RecordRequestConflicts(ctx, rows)
	if err != nil {
		return fmt.Errorf("record key conflicts of requests: %w", err)
	}
	b.OnCommit(func() { h.repeats.Add(float64(n)) })
	return nil
}

// findContacts gives every recipient its contact, as merges left it; a
// recipient of the API that nobody knows becomes one. A request that no event
// caused gets the platform's own event.
func (h *Handler) findContacts(ctx context.Context, tx pgx.Tx, b *stream.Batch, rs []*recipient) error {
	if err := resolveMerges(ctx, tx, rs); err != nil {
		return err
	}
	var in []identity.Input
	var who []*recipient
	for _, r := range rs {
		if r.contact != uuid.Nil {
			continue
		}
		m := map[string]string{}
		if r.asked.ExternalID != "" {
			m[identity.KindExternalID] = r.asked.ExternalID
		}
		if kind := identifier.OfChannel(r.req.Channel); r.asked.Address != "" && kind != "" {
			m[kind] = r.asked.Address
		}
		raw, err := json.Marshal(m)
		if err != nil {
			return fmt.Errorf("name a recipient: %w", err)
		}
		in = append(in, identity.Input{TenantID: r.req.TenantID, CellID: r.req.CellID, EventID: r.origin, CorrelationID: r.req.CorrelationID,
			Identifiers: string(raw), OccurredAt: r.first, ReceivedAt: r.first})
		who = append(who, r)
	}
	if len(in) > 0 {
		out, err := identity.Resolve(ctx, tx, in)
		if err != nil {
			return err
		}
		for i, r := range who {
			r.contact = out.Contacts[i]
			if out.Erased != nil && out.Erased[i] { // asked for before the person was erased
				r.block(gates.GateContact, gates.ContactErased)
			}
		}
		if err := h.deps.Contacts.Emit(ctx, tx, b, out.Changes); err != nil {
			return err
		}
	}
	return h.platformEvents(ctx, tx, b, rs)
}

// resolveMerges follows each named contact to the one that it became.
func resolveMerges(ctx context.Context, tx pgx.Tx, rs []*recipient) error {
	var asked processordb.ResolveMergesParams
	for _, r := range rs {
		if r.asked.ContactID != nil {
			asked.Tenants, asked.Contacts = append(asked.Tenants, r.req.TenantID), append(asked.Contacts, *r.asked.ContactID)
		}
	}
	if len(asked.Contacts) == 0 {
		return nil
	}
	rows, err := processordb.New(tx).ResolveMerges(ctx, asked)
	if err != nil {
		return fmt.Errorf("resolve merged contacts: %w", err)
	}
	type named struct{ tenant, contact uuid.UUID }
	at := map[named]uuid.UUID{}
	for _, row := range rows {
		at[named{row.TenantID, row.Asked}] = row.At
	}
	for _, r := range rs {
		if r.asked.ContactID == nil {
			continue
		}
		if c, ok := at[named{r.req.TenantID, *r.asked.ContactID}]; ok {
			r.contact = c
		} else {
			r.contact = *r.asked.ContactID
			r.block(gateRequest, unknownContact)
		}
	}
	return nil
}

func (h *Handler) platformEvents(ctx context.Context, tx pgx.Tx, b *stream.Batch, rs []*recipient) error {
	var events []eventlog.Platform
	for _, r := range rs {
		if r.req.OriginEventID == nil && r.index == 0 {
			events = append(events, eventlog.Platform{EventID: r.origin, TenantID: r.req.TenantID, CellID: r.req.CellID, ContactID: r.contact,
				Name: "messaging.message.requested", At: r.first, CorrelationID: r.req.CorrelationID, Class: r.class,
				Properties: fmt.Sprintf(`{"request_id":%q,"channel":%q,"category":%q}`, r.req.RequestID, r.req.Channel, r.req.Category)})
		}
	}
	if len(events) == 0 {
		return nil
	}
	for _, e := range events {
		if err := h.deps.Partitions.Ensure(ctx, "core.tracked_events", e.At, e.Class); err != nil {
			return err
		}
	}
	return eventlog.AppendPlatform(ctx, tx, b, h.deps.Codec, events)
}

// findAddresses gives each recipient the address named for it, else its
// contact's newest of the channel's kind.
func (h *Handler) findAddresses(ctx context.Context, tx pgx.Tx, rs []*recipient) error {
	var asked processordb.NewestAddressesParams
	for _, r := range rs {
		kind := identifier.OfChannel(r.req.Channel)
		switch {
		case r.reason != "":
		case kind == "":
			r.block(gateRequest, unknownChannel)
		case r.asked.Address != "":
			r.address, _ = gates.Normalize(r.req.Channel, r.asked.Address) // the address gate refuses what is none
		default:
			asked.Tenants, asked.Contacts, asked.Kinds = append(asked.Tenants, r.req.TenantID), append(asked.Contacts, r.contact), append(asked.Kinds, kind)
		}
	}
	if len(asked.Contacts) == 0 {
		return nil
	}
	rows, err := processordb.New(tx).NewestAddresses(ctx, asked)
	if err != nil {
		return fmt.Errorf("find addresses: %w", err)
	}
	type owner struct {
		contact uuid.UUID
		kind    string
	}
	found := map[owner]string{}
	for _, row := range rows {
		found[owner{row.ContactID, row.Kind}] = row.Value
	}
	for _, r := range rs {
		if r.reason == "" && r.address == "" {
			r.address = found[owner{r.contact, identifier.OfChannel(r.req.Channel)}]
		}
	}
	return nil
}

// findTemplates fixes the version of each request's template: what is sent is
// what stood when it was asked for.
func (h *Handler) findTemplates(ctx context.Context, tx pgx.Tx, rs []*recipient) error {
	type name struct {
		tenant uuid.UUID
		id     string
		fixed  int32
	}
	have := map[name]int{}
	db := processordb.New(tx)
	for _, r := range rs {
		if r.req.TemplateID == nil {
			continue
		}
		n := name{r.req.TenantID, *r.req.TemplateID, 0}
		if r.req.TemplateVersion != nil {
			n.fixed = *r.req.TemplateVersion
		}
		version, ok := have[n]
		if !ok {
			newest, err := db.TemplateVersion(ctx, processordb.TemplateVersionParams{TenantID: n.tenant, TemplateID: n.id, Fixed: n.fixed})
			if err != nil {
				return fmt.Errorf("find a template: %w", err)
			}
			version = int(newest)
			have[n] = version
		}
		if r.template = version; version == 0 {
			r.block(gateRequest, templateMissing)
		}
	}
	return nil
}

// decide records what became of every recipient.
func (h *Handler) decide(ctx context.Context, tx pgx.Tx, rs []*recipient) error {
	n := len(rs)
	d := processordb.InsertDecisionsParams{
		Received: make([]time.Time, n), Tenants: make([]uuid.UUID, n), Requests: make([]uuid.UUID, n), RecipientIndexes: make([]int32, n),
		Channels: make([]string, n), Contacts: make([]uuid.UUID, n), Origins: make([]uuid.UUID, n), Rules: make([]*uuid.UUID, n),
		Correlations: make([]string, n), Outcomes: make([]string, n), Gates: make([]*string, n), Reasons: make([]*string, n), Sends: make([]*uuid.UUID, n)}
	for i, r := range rs {
		d.Received[i], d.Tenants[i], d.Requests[i], d.RecipientIndexes[i] = r.first, r.req.TenantID, r.req.RequestID, int32(r.index)
		d.Channels[i], d.Contacts[i], d.Origins[i], d.Rules[i], d.Correlations[i] = r.req.Channel, r.contact, r.origin, r.rule, r.req.CorrelationID
		if r.reason != "" {
			d.Outcomes[i], d.Gates[i], d.Reasons[i] = "blocked", new(string(r.gate)), new(string(r.reason))
		} else {
			d.Outcomes[i], d.Sends[i] = "queued", new(r.sendID())
		}
	}
	if err := processordb.New(tx).InsertDecisions(ctx, d); err != nil {
		return fmt.Errorf("record %d decisions: %w", n, err)
	}
	return nil
}

func (r *recipient) job() schemas.JobMessage {
	m := schemas.JobMessage{SendID: r.sendID(), RequestID: r.req.RequestID, RecipientIndex: r.index, RequestedAt: r.first, ContactID: r.contact,
		Address: r.address, Category: r.req.Category, RetentionMonths: r.class, TemplateVersion: r.template, Variables: r.variables,
		CorrelationID: r.req.CorrelationID, OriginEventID: r.origin, RuleID: r.rule, ExpiresAt: r.req.ExpiresAt}
	if r.req.TemplateID != nil {
		m.TemplateID = *r.req.TemplateID
	}
	if r.req.Content != nil {
		m.Content = json.RawMessage(*r.req.Content)
	}
	return m
}

// enqueue hands the messages that may go to their rail: a job and its record
// on the transactional one, a row for the feeder on the marketing one.
func (h *Handler) enqueue(ctx context.Context, tx pgx.Tx, b *stream.Batch, rs []*recipient) error {
	going := rs[:0:0]
	for _, r := range rs {
		if r.reason == "" {
			going = append(going, r)
		}
	}
	if len(going) == 0 {
		return nil
	}
	if h.rail == schemas.RailMarketing {
		return h.queueMarketing(ctx, tx, going)
	}
	states, err := h.credit(ctx, tx, going)
	if err != nil {
		return err
	}
	if err := h.insertJobs(ctx, tx, going, states); err != nil {
		return err
	}
	for i, r := range going {
		if states[i] != "in_topic" {
			continue
		}
		m, err := h.sendJob(ctx, r)
		if err != nil {
			return err
		}
		m.Headers = kafka.Traced(m.Headers, r.from)
		b.Emit(m)
	}
	return nil
}

func (h *Handler) queueMarketing(ctx context.Context, tx pgx.Tx, rs []*recipient) error {
	n := len(rs)
	rows := processordb.QueueMarketingParams{
		Tenants: make([]uuid.UUID, n), Channels: make([]string, n), Sends: make([]uuid.UUID, n), Payloads: make([]string, n)}
	for i, r := range rs {
		p, err := json.Marshal(r.job())
		if err != nil {
			return fmt.Errorf("queue a marketing message: %w", err)
		}
		rows.Tenants[i], rows.Channels[i], rows.Sends[i], rows.Payloads[i] = r.req.TenantID, r.req.Channel, r.sendID(), string(p)
	}
	if err := processordb.New(tx).QueueMarketing(ctx, rows); err != nil {
		return fmt.Errorf("queue %d marketing messages: %w", n, err)
	}
	return nil
}

func (h *Handler) insertJobs(ctx context.Context, tx pgx.Tx, rs []*recipient, states []string) error {
	n := len(rs)
	rows := processordb.InsertJobsParams{States: states,
		Times: make([]time.Time, n), Workers: make([]string, n), Jobs: make([]uuid.UUID, n), Tenants: make([]uuid.UUID, n),
		Categories: make([]string, n), Payloads: make([]string, n), Expires: make([]*time.Time, n)}
	for i, r := range rs {
		p, err := json.Marshal(schemas.JobPayload{Channel: r.req.Channel, CellID: r.req.CellID, Messages: []schemas.JobMessage{r.job()}})
		if err != nil {
			return fmt.Errorf("write a job: %w", err)
		}
		job := r.sendID()
		rows.Times[i], rows.Workers[i], rows.Jobs[i] = ids.Time(job), schemas.RailWorker(r.req.Channel, h.rail), job
		rows.Tenants[i], rows.Categories[i], rows.Payloads[i], rows.Expires[i] = r.req.TenantID, r.req.Category, string(p), r.req.ExpiresAt
	}
	if err := processordb.New(tx).InsertJobs(ctx, rows); err != nil {
		return fmt.Errorf("write %d jobs: %w", n, err)
	}
	return nil
}

// credit says which jobs go into the topic now. Enqueue and release lock the
// tenant's row of the rail, and while anything waits, new jobs wait: a release
// between our count and our commit would otherwise wake nobody.
func (h *Handler) credit(ctx context.Context, tx pgx.Tx, rs []*recipient) ([]string, error) {
	type lane struct {
		tenant  uuid.UUID
		channel string
	}
	counts := map[lane]int{}
	var lanes []lane
	for _, r := range rs {
		l := lane{r.req.TenantID, r.req.Channel}
		if counts[l] == 0 {
			lanes = append(lanes, l)
		}
		counts[l]++
	}
	slices.SortFunc(lanes, func(a, b lane) int {
		if c := bytes.Compare(a.tenant[:], b.tenant[:]); c != 0 {
			return c
		}
		return slices.Compare([]byte(a.channel), []byte(b.channel))
	})
	free := map[lane]int{}
	for _, l := range lanes {
		n, err := h.freeCredits(ctx, tx, l.tenant, l.channel)
		if err != nil {
			return nil, err
		}
		free[l] = n
	}
	states := make([]string, len(rs))
	for i, r := range rs {
		l := lane{r.req.TenantID, r.req.Channel}
		if states[i] = "waiting"; free[l] > 0 {
			states[i] = "in_topic"
			free[l]--
		}
	}
	return states, nil
}

func (h *Handler) freeCredits(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, channel string) (int, error) {
	db := processordb.New(tx)
	if err := db.LockTenantRail(ctx, processordb.LockTenantRailParams{TenantID: tenant, Channel: channel, Rail: h.rail}); err != nil {
		return 0, fmt.Errorf("lock a tenant's rail: %w", err)
	}
	jobs, err := db.CountCredits(ctx, processordb.CountCreditsParams{Worker: schemas.RailWorker(channel, h.rail), TenantID: tenant})
	if err != nil {
		return 0, fmt.Errorf("count a tenant's credits: %w", err)
	}
	if jobs.Waiting {
		return 0, nil
	}
	return max(0, h.deps.Credits-int(jobs.Taken)), nil
}

func (h *Handler) sendJob(ctx context.Context, r *recipient) (outbox.Message, error) {
	now := h.deps.Now().UTC()
	rec := schemas.SendJob{JobID: r.sendID(), TenantID: r.req.TenantID, CellID: r.req.CellID, Channel: r.req.Channel, Category: r.req.Category,
		Turn: 1, CorrelationID: r.req.CorrelationID, OriginEventID: r.origin, EnqueuedAt: now, ExpiresAt: r.req.ExpiresAt}
	topic := schemas.RailTopic(r.req.Channel, h.rail)
	value, err := h.deps.Codec.Encode(ctx, nil, topic, &rec)
	if err != nil {
		return outbox.Message{}, fmt.Errorf("%w: %w", stream.ErrWait, err)
	}
	return outbox.Message{Topic: topic, Key: []byte(r.req.TenantID.String() + "/" + r.contact.String()), Value: value,
		Headers: kafka.Event{ID: rec.JobID.String() + "/1", Type: "notif.job", Source: kafka.Source(r.req.TenantID), Subject: r.req.Category,
			Time: now, CorrelationID: r.req.CorrelationID}.Headers()}, nil
}

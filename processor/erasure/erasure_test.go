package erasure_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/gates"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/processor/erasure"
	"github.com/softcrum/carril/processor/eventlog"
	"github.com/softcrum/carril/schemas"
)

// asked is a request of the API for one address.
func asked(o *office, key, address string) schemas.NotificationRequested {
	sum := sha256.Sum256([]byte(key))
	return schemas.NotificationRequested{RequestID: ids.Request(o.Tenant, key), TenantID: o.Tenant, CellID: "cell-1", Category: "transactional", Channel: "email",
		Origin: "api", CorrelationID: "corr-" + key, IdempotencyKey: &key, BodyHash: sum[:], ReceivedAt: time.Now().UTC(),
		Recipients: fmt.Sprintf(`[{"address":%q}]`, address), TemplateID: new("receipt"), Variables: `{"a":1}`}
}

// person writes a contact with an email and events, as the append leaves them.
func (o *office) person(email string, known bool, made time.Time, events ...time.Time) uuid.UUID {
	o.T.Helper()
	id := ids.New()
	o.Exec(`INSERT INTO core.contacts (tenant_id, contact_id, cell_id, known, traits, trait_times, created_at) VALUES ($1, $2, 'cell-1', $3, '{"said":"canary"}', '{"said":"2026-01-01T00:00:00Z"}', $4)`,
		o.Tenant, id, known, made)
	kind := "anonymous_id"
	if known {
		kind = "email"
	}
	o.Exec(`INSERT INTO core.contact_identifiers (tenant_id, kind, value, contact_id) VALUES ($1, $2, $3, $4)`, o.Tenant, kind, email, id)
	for i, at := range events {
		o.Exec(`SELECT core.ensure_partition('core.tracked_events', $1)`, at)
		o.Exec(`INSERT INTO core.tracked_events (tenant_id, event_id, cell_id, contact_id, kind, event_name, properties, occurred_at, occurred_offset, received_at,
			idempotency_key, correlation_id, retention_months, lane, lane_seq) VALUES ($1, $2, 'cell-1', $3, 'track', 'a.b', '{"said":"canary"}', $4, 0, $4, 'canary', 'c', 13, 1, $5)`,
			o.Tenant, ids.New(), id, at, i)
	}
	return id
}

// full counts what is left of a contact.
func (o *office) full(contact uuid.UUID) int {
	o.T.Helper()
	return o.Count(`SELECT (SELECT count(*) FROM core.tracked_events WHERE occurred_at > '-infinity' AND contact_id = $1 AND (properties <> '{}' OR idempotency_key <> ''))
		+ (SELECT count(*) FROM messaging.sends WHERE requested_at > '-infinity' AND contact_id = $1 AND (content IS NOT NULL OR address IS NOT NULL))
		+ (SELECT count(*) FROM core.contact_identifiers WHERE contact_id = $1) + (SELECT count(*) FROM core.contacts WHERE contact_id = $1 AND (traits <> '{}' OR erased_at IS NULL))
		+ (SELECT count(*) FROM core.processed_jobs WHERE id_time > '-infinity' AND payload->'messages'->0->>'contact_id' = $1::text AND payload->'messages'->0->>'address' <> '')`, contact)
}

// cutter ends what runs at its n-th statement, as a kill would: the connection
// goes, and whatever was not committed with it.
type cutter struct {
	left atomic.Int64
	cut  context.CancelFunc
}

func (c *cutter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	if c.left.Add(-1) == 0 {
		c.cut()
	}
	return ctx
}

func (c *cutter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// cutAt runs something on a pool that dies at the n-th statement; cut is false
// where it needed fewer.
func (o *office) cutAt(n int, f func(ctx context.Context, pool *pgxpool.Pool) error) (cut bool) {
	o.T.Helper()
	ctx, cancel := context.WithCancel(o.T.Context())
	defer cancel()
	c := &cutter{cut: cancel}
	c.left.Store(int64(n))
	cfg := o.Side.Config()
	cfg.ConnConfig.Tracer, cfg.MaxConns = c, 1
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(o.T, err)
	defer pool.Close()
	err = f(ctx, pool)
	if ctx.Err() == nil {
		require.NoError(o.T, err)
		return false
	}
	return true
}

// TestKilledAtEveryStep is E1 of faults F5: whatever statement an erasure dies at,
// the next one finishes it and nothing comes back.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	now := time.Now()
	newPerson := func(n int) uuid.UUID {
		id := o.person(fmt.Sprintf("canary-%d@example.com", n), true, now, now, now.Add(-time.Minute), now.Add(-time.Hour), now.Add(-2*time.Hour))
		o.send(id, fmt.Sprintf("canary-%d@example.com", n), "canary", "waiting")
		return id
	}
	t.Run("OfTheRequest", func(t *testing.T) {
		for n := 1; ; n++ {
			require.Less(t, n, 100)
			id := newPerson(n)
			cut := o.cutAt(n, func(ctx context.Context, pool *pgxpool.Pool) error {
				deps := o.deps
				deps.Pool = pool
				_, err := erasure.NewDesk(o.cfg, deps).Request(ctx, o.Tenant, id, "test")
				return err
			})
			erased := o.Count(`SELECT count(*) FROM core.contacts WHERE contact_id = $1 AND erased_at IS NOT NULL`, id)
			require.Equal(t, erased, o.Count(`SELECT count(*) FROM core.erasures WHERE contact_id = $1`, id), "all of it or nothing")
			o.erase(id)
			if !cut {
				break
			}
		}
		o.work()
	})
	t.Run("OfTheJob", func(t *testing.T) {
		for n := 1; ; n++ {
			require.Less(t, n, 300)
			id := newPerson(1000 + n)
			o.erase(id)
			cut := o.cutAt(n, func(ctx context.Context, pool *pgxpool.Pool) error {
				deps := o.deps
				deps.Pool = pool
				_, err := erasure.NewJob(o.cfg, deps).RunOnce(ctx)
				return err
			})
			require.Equal(t, 1, o.Count(`SELECT count(*) FROM core.contacts WHERE contact_id = $1 AND erased_at IS NOT NULL`, id))
			o.work()
			require.Zero(t, o.full(id), "killed at statement %d", n)
			if !cut {
				break
			}
		}
	})
	o.Exec(`TRUNCATE core.outbox`)
	require.Empty(t, o.found("canary"))
	require.Zero(t, o.Count(`SELECT count(*) FROM core.erasures WHERE passes < 1`))
}

func TestDetachedLeaf(t *testing.T) { // I36
	t.Parallel()
	o := newOffice(t)
	at := time.Now().AddDate(0, -4, 0).UTC()
	id := o.person("canary@example.com", true, at, at, at.Add(time.Second), time.Now())
	leaf := "tracked_events_" + at.Format("200601") + "_r13"
	o.Exec(fmt.Sprintf(`ALTER TABLE core.tracked_events_%s DETACH PARTITION core.%s`, at.Format("200601"), leaf))
	o.Exec(`INSERT INTO core.retention_ledger (run_id, parent, leaf, leaf_oid, lower_bound, upper_bound, retention_months, state)
		VALUES (gen_random_uuid(), 'core.tracked_events', $1, $1::text::regclass, $2, $3, 13, 'detached')`, "core."+leaf, at.AddDate(0, -1, 0), at.AddDate(0, 1, 0))
	o.erase(id)
	o.work()
	require.Equal(t, 2, o.Count(fmt.Sprintf(`SELECT count(*) FROM core.%s WHERE properties = '{}' AND idempotency_key = ''`, leaf)), "not in the export")
	require.Zero(t, o.full(id))
}

// TestLoginRole works with the rights of a login that is a member of carril_app and
// nothing else.
func TestLoginRole(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	role := "carril_test_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	o.Exec(fmt.Sprintf(`CREATE ROLE %s LOGIN PASSWORD 'x' IN ROLE carril_app`, role))
	t.Cleanup(func() {
		_, err := o.Side.Exec(context.Background(), "DROP ROLE "+role)
		require.NoError(t, err)
	})
	c := o.Side.Config().ConnConfig
	u := url.URL{Scheme: "postgres", User: url.UserPassword(role, "x"), Host: fmt.Sprintf("%s:%d", c.Host, c.Port), Path: "/" + c.Database}
	pool, err := pgxpool.New(t.Context(), u.String())
	require.NoError(t, err)
	defer pool.Close()
	id := o.person("canary@example.com", true, time.Now(), time.Now())
	o.send(id, "canary@example.com", "canary", "sent")
	_, err = pool.Exec(t.Context(), `UPDATE core.tracked_events SET properties = '{}' WHERE occurred_at > '-infinity'`)
	require.ErrorContains(t, err, "permission denied")
	deps := o.deps
	deps.Pool = pool
	_, err = erasure.NewDesk(o.cfg, deps).Request(t.Context(), o.Tenant, id, "test")
	require.NoError(t, err)
	res, err := erasure.NewJob(o.cfg, deps).RunOnce(t.Context())
	require.NoError(t, err)
	require.Zero(t, res.Failed)
	require.Zero(t, o.full(id))
}

func TestJobs(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	now := time.Now().UTC().Truncate(time.Millisecond)
	o.partitions(now)
	me, other := o.person("canary@example.com", true, now), o.person("bo@example.com", true, now)
	message := func(contact uuid.UUID, address string) schemas.JobMessage {
		m := schemas.JobMessage{RequestID: ids.New(), RequestedAt: now, ContactID: contact, Address: address, Category: "transactional", Variables: json.RawMessage(`{"a":1}`)}
		m.SendID = ids.Send(o.Tenant, m.RequestID, now, 0, "email")
		o.Exec(`INSERT INTO messaging.decisions (received_at, tenant_id, request_id, recipient_index, channel, contact_id, origin_event_id, correlation_id, outcome, send_id)
			VALUES ($1, $2, $3, 0, 'email', $4, $3, 'c', 'queued', $5)`, now, o.Tenant, m.RequestID, contact, m.SendID)
		return m
	}
	mine, theirs := message(me, "canary@example.com"), message(other, "bo@example.com")
	byAddress := message(uuid.Nil, "Canary@example.com") // a blast's, by address alone
	waiting, batch, alone, alive := ids.New(), ids.New(), ids.New(), ids.New()
	o.job(waiting, now, "waiting", 0, mine)
	o.job(batch, now, "parked", 0, message(me, "canary@example.com"), theirs)
	o.job(alone, now, "in_topic", 0, byAddress)
	o.job(alive, now, "claimed", 1, message(me, "canary@example.com"))
	o.Exec(`UPDATE core.processed_jobs SET lease = gen_random_uuid(), lease_until = now() + interval '1 hour' WHERE id_time = $1 AND job_id = $2`, now, alive)
	uncertain := ids.New()
	o.job(uncertain, now, "parked", 1, message(me, "canary@example.com"), message(other, "bo@example.com"))
	o.Exec(`INSERT INTO messaging.send_requests (worker, job_id, id_time, generation, provider, endpoint, idempotency_key, body, send_ids, lease, uncertain)
		VALUES ('rail:email.transactional', $1, $2, 1, 'resend', '/emails', 'k', 'canary', '{}', $1, true)`, uncertain, now)
	o.erase(me)
	o.work()
	state := func(job uuid.UUID) (state string, messages int) {
		require.NoError(t, o.Side.QueryRow(t.Context(), `SELECT state || ' ' || coalesce(reason, ''), jsonb_array_length(payload->'messages') FROM core.processed_jobs
			WHERE id_time = $1 AND job_id = $2`, now, job).Scan(&state, &messages))
		return state, messages
	}
	for _, c := range []struct {
		what     string
		job      uuid.UUID
		state    string
		messages int
	}{
		{"what waits is blocked", waiting, "blocked contact_erased", 1}, {"a batch goes on without the person", batch, "parked ", 1},
		{"so is what goes to the address alone", alone, "blocked contact_erased", 1}, {"what is in the provider's hands is left", alive, "claimed ", 1},
		{"bytes that may have been taken stay as they are (I15)", uncertain, "parked ", 2},
	} {
		got, n := state(c.job)
		require.Equal(t, c.state, got, c.what)
		require.Equal(t, c.messages, n, c.what)
	}
	require.Equal(t, 1, o.Count(`SELECT count(*) FROM messaging.decisions WHERE received_at = $1 AND request_id = $2 AND outcome = 'blocked' AND gate = 'contact'
		AND reason = 'contact_erased' AND send_id IS NULL`, now, mine.RequestID))
	require.Equal(t, 1, o.Count(`SELECT count(*) FROM messaging.decisions WHERE received_at = $1 AND request_id = $2 AND outcome = 'queued'`, now, theirs.RequestID))
	require.Equal(t, 1, o.Count(`SELECT count(*) FROM core.erasure_stores WHERE store = 'jobs' AND done_at IS NULL`), "and the store stays open")

	o.Exec(`UPDATE core.processed_jobs SET lease_until = now() - interval '1 second' WHERE id_time = $1 AND job_id = $2`, now, alive)
	o.Exec(`UPDATE messaging.send_requests SET settled = 'taken' WHERE created_at > '-infinity'`)
	o.Exec(`UPDATE core.processed_jobs SET state = 'sent' WHERE id_time = $1 AND job_id = $2`, now, uncertain)
	o.work(time.Minute)
	got, _ := state(alive)
	require.Equal(t, "blocked contact_erased", got)
	require.Zero(t, o.Count(`SELECT count(*) FROM core.erasure_stores WHERE store = 'jobs' AND done_at IS NULL`))
	require.Zero(t, o.Count(`SELECT count(*) FROM messaging.send_requests WHERE created_at > '-infinity' AND body <> ''`))
	require.Equal(t, 2, o.Count(`SELECT count(*) FROM core.processed_jobs WHERE id_time = $1 AND payload::text LIKE '%bo@example.com%'`, now))
	o.Exec(`TRUNCATE core.outbox`)
	require.Empty(t, o.found("canary@"))
}

func TestSuppressionsOutliveThePerson(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	id := o.person("canary@example.com", true, time.Now())
	o.Exec(`INSERT INTO messaging.suppressions (tenant_id, channel, address, reason) VALUES ($1, 'email', 'canary@example.com', 'complaint')`, o.Tenant)
	o.Exec(`INSERT INTO messaging.consents (tenant_id, contact_id, channel, granted, source) VALUES ($1, $2, 'email', false, 'form')`, o.Tenant, id)
	o.erase(id)
	require.Empty(t, o.found("canary@"))
	require.Equal(t, 1, o.Count(`SELECT count(*) FROM messaging.suppressions WHERE reason = 'complaint' AND address = core.erased_address($1, 'email', 'canary@example.com')`, o.Tenant))
	// A report of the provider comes late.
	for _, address := range []string{"canary@example.com", "bo@example.com"} {
		o.Exec(`INSERT INTO messaging.suppressions (tenant_id, channel, address, reason) VALUES ($1, 'email', $2, 'hard_bounce') ON CONFLICT DO NOTHING`, o.Tenant, address)
	}
	require.Empty(t, o.found("canary@"))
	require.Equal(t, 1, o.Count(`SELECT count(*) FROM messaging.suppressions WHERE address = 'bo@example.com'`))
	// What was lifted once is nobody's any more, and may be lifted again by whoever
	// comes back.
	require.NoError(t, gates.NewStore(o.Side).Lift(t.Context(), o.Tenant, "email", "bo@example.com", "mistake", "cli"))
	bo := o.person("bo@example.com", true, time.Now())
	o.erase(bo)
	require.Zero(t, o.Count(`SELECT count(*) FROM messaging.suppression_lifts`))
	// Whoever comes back is not written to.
	o.appends()
	o.rulesAndChannels()
	o.SendEvents(o.Event("back", "invoice.paid", time.Now(), `{"email":"canary@example.com"}`, `{}`))
	o.Await(1, `SELECT count(*) FROM messaging.decisions WHERE received_at > '-infinity' AND reason = 'suppressed_complaint'`)
	require.NoError(t, gates.NewStore(o.Side).Lift(t.Context(), o.Tenant, "email", "canary@example.com", "consent_given", "cli"))
	require.Zero(t, o.Count(`SELECT count(*) FROM messaging.suppressions`))
}

// flaky exports fail, then have some open, then are through.
type flaky struct {
	calls  atomic.Int32
	tenant uuid.UUID
	who    []uuid.UUID
}

func (f *flaky) Erase(_ context.Context, tenant uuid.UUID, contacts []uuid.UUID) (int, error) {
	f.tenant, f.who = tenant, contacts
	switch f.calls.Add(1) {
	case 1:
		return 0, errors.New("storage away")
	case 2:
		return 3, nil
	}
	return 0, nil
}

func TestStoresCloseInTheirTime(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	f := &flaky{}
	o.deps.Exports = f
	id := o.person("canary@example.com", true, time.Now(), time.Now())
	erased := o.erase(id)
	open := func() (names string) {
		require.NoError(t, o.Side.QueryRow(t.Context(), `SELECT coalesce(string_agg(store, ' ' ORDER BY store), '') FROM core.erasure_stores WHERE erasure_id = $1 AND done_at IS NULL`, erased).Scan(&names))
		return names
	}
	run := func(ahead time.Duration) erasure.Result {
		o.ahead.Store(int64(ahead))
		res, err := erasure.NewJob(o.cfg, o.deps).RunOnce(t.Context())
		require.NoError(t, err)
		return res
	}
	require.Equal(t, 1, run(0).Failed)
	require.Equal(t, 1, o.Count(`SELECT count(*) FROM core.erasures WHERE failures = 1 AND last_error = 'exports'`), "the class alone")
	require.Zero(t, o.full(id), "the other stores do not wait for it")
	run(time.Minute)
	require.Equal(t, "contact_topic exports kafka outbox", open())
	run(2 * time.Minute)
	require.Equal(t, "contact_topic kafka outbox", open())
	require.Equal(t, []any{o.Tenant, []uuid.UUID{id}}, []any{f.tenant, f.who})
	run(2 * time.Hour)
	require.Equal(t, "contact_topic kafka outbox", open(), "the outbox still holds the day")
	o.Exec(`TRUNCATE core.outbox`)
	run(4 * time.Hour)
	require.Equal(t, "contact_topic kafka", open())
	run(16 * 24 * time.Hour)
	require.Equal(t, "contact_topic", open())
	require.Equal(t, 1, run(31*24*time.Hour).Done)
	require.Empty(t, open())
	require.Zero(t, run(60*24*time.Hour).Worked)
	require.Equal(t, 1, o.Count(`SELECT count(*) FROM core.outbox WHERE written_at > '-infinity' AND topic = 'core.contact' AND value = '' AND key = $1`,
		[]byte(o.Tenant.String()+"/"+id.String())), "a tombstone for the compacted topic")
}

// TestContactLane is I38: the first owner of a contact's lane pauses after its
// commit, the second publishes, the person is erased, the first wakes.
func TestContactLane(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	o.appends()
	o.SendEvents(o.Identify("i", time.Now(), `{"email":"canary@example.com"}`, `{"name":"canary"}`))
	o.Await(1, eventCount)
	contact := o.contactOf("email", "canary@example.com")
	var lane int
	require.NoError(t, o.Side.QueryRow(t.Context(), `SELECT right(l.producer, 1)::int FROM core.outbox b JOIN core.outbox_lanes l USING (lane) WHERE b.written_at > '-infinity' AND b.topic = 'core.contact'`).Scan(&lane))
	producer := eventlog.ContactProducer(lane)
	// The first owner has its record in hand when it falls asleep.
	sleeper, err := o.Kafka.NewProducer(kgo.TransactionalID(o.Kafka.Prefix + "carril." + producer))
	require.NoError(t, err)
	t.Cleanup(sleeper.Close)
	key := []byte(o.Tenant.String() + "/" + contact.String())
	require.NoError(t, sleeper.BeginTransaction())
	require.NoError(t, sleeper.ProduceSync(t.Context(), &kgo.Record{Topic: o.Kafka.Topic(schemas.TopicContact), Key: key, Value: []byte("canary of the past")}).FirstErr())

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = outbox.RunOrdered(ctx, outbox.OrderedConfig{Producer: producer, Holder: "second", Kafka: o.Kafka}, o.Side, testkit.Logger(t))
	}()
	t.Cleanup(func() { cancel(); <-done })
	require.Len(t, o.contactRecords(1), 1)
	o.erase(contact)
	require.Len(t, o.contactRecords(2), 2)
	require.Error(t, sleeper.EndTransaction(t.Context(), kgo.TryCommit), "the sleeper wakes and is fenced")
	o.work(31 * 24 * time.Hour)
	records := o.contactRecords(3)
	var change schemas.ContactChanged
	require.NoError(t, o.Codec.Decode(t.Context(), schemas.TopicContact, records[1].Value, &change))
	require.Equal(t, []any{"erased", "{}", contact}, []any{change.Change, change.Traits, change.ContactID})
	require.NotContains(t, string(records[1].Value), "canary")
	require.Equal(t, key, records[2].Key)
	require.Nil(t, records[2].Value, "and the tombstone is the last")
}

// contactRecords reads the first n committed records of the contacts' topic.
func (o *office) contactRecords(n int) (out []*kgo.Record) {
	o.T.Helper()
	opts, err := o.Kafka.Opts()
	require.NoError(o.T, err)
	cl, err := kgo.NewClient(append(opts, kgo.ConsumeTopics(o.Kafka.Topic(schemas.TopicContact)), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	require.NoError(o.T, err)
	defer cl.Close()
	ctx, cancel := context.WithTimeout(o.T.Context(), time.Minute)
	defer cancel()
	for len(out) < n && ctx.Err() == nil {
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) { out = append(out, r) })
	}
	require.GreaterOrEqual(o.T, len(out), n)
	return out
}

func TestClock(t *testing.T) { // FS-CORE-0006 q1
	t.Parallel()
	o := newOffice(t)
	day := 24 * time.Hour
	now := time.Now()
	o.Exec(`UPDATE core.tenants SET anonymous_retention_days = 30 WHERE tenant_id = $1`, o.Tenant)
	idle := o.person("canary-idle", false, now.Add(-60*day), now.Add(-50*day), now.Add(-40*day))
	active := o.person("d-active", false, now.Add(-60*day), now.Add(-50*day), now.Add(-10*day))
	young := o.person("d-young", false, now.Add(-10*day))
	known := o.person("bo@example.com", true, now.Add(-60*day), now.Add(-50*day))
	gone := o.person("d-merged", false, now.Add(-60*day), now.Add(-50*day)) // part of somebody known
	o.Exec(`INSERT INTO core.contact_merges (tenant_id, from_contact, into_contact) VALUES ($1, $2, $3)`, o.Tenant, gone, known)
	part := o.person("canary-part", false, now.Add(-60*day), now.Add(-50*day)) // of an idle one
	o.Exec(`INSERT INTO core.contact_merges (tenant_id, from_contact, into_contact) VALUES ($1, $2, $3)`, o.Tenant, part, idle)
	partly := o.person("d-partly", false, now.Add(-60*day)) // its other half is active
	half := o.person("d-half", false, now.Add(-60*day), now.Add(-time.Hour))
	o.Exec(`INSERT INTO core.contact_merges (tenant_id, from_contact, into_contact) VALUES ($1, $2, $3)`, o.Tenant, half, partly)
	other := o.AddTenant("other", "starter")
	o.Exec(`INSERT INTO core.contacts (tenant_id, contact_id, cell_id, known, created_at) VALUES ($1, gen_random_uuid(), 'c', false, now() - interval '9 years')`, other)

	clock := erasure.NewClock(erasure.ClockConfig{Page: 1}, o.cfg, o.deps)
	n, err := clock.RunOnce(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, n)
	o.work()
	for _, c := range []uuid.UUID{idle, part} {
		require.Zero(t, o.full(c))
	}
	require.Equal(t, 2, o.Count(eventCount+` AND contact_id = $1 AND properties = '{}'`, idle), "rows stay as counts")
	for _, c := range []uuid.UUID{active, young, known, gone, partly, half} {
		require.NotZero(t, o.full(c))
	}
	require.Zero(t, o.Count(`SELECT count(*) FROM core.erased_identifiers`), "a device that comes back is a new contact")
	o.work(2 * time.Hour)
	require.Zero(t, o.Count(`SELECT count(*) FROM core.erasures WHERE done_at IS NULL`))
	o.ahead.Store(int64(25 * day))
	n, err = clock.RunOnce(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, n, "time goes on for the active and the young")
	n, err = clock.RunOnce(t.Context())
	require.NoError(t, err)
	require.Zero(t, n)
}

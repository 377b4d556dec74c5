package erasure_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/processor/channels"
	"github.com/softcrum/carril/processor/erasure"
	"github.com/softcrum/carril/processor/eventlog"
	"github.com/softcrum/carril/processor/partition"
	"github.com/softcrum/carril/processor/rules"
	"github.com/softcrum/carril/processor/stagetest"
	"github.com/softcrum/carril/processor/tenants"
	"github.com/softcrum/carril/schemas"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const eventCount = `SELECT count(*) FROM core.tracked_events WHERE occurred_at > '-infinity'`

// office is a tenant's system with a desk for erasures and a job whose clock the
// test moves.
type office struct {
	*stagetest.Bench
	deps  erasure.Deps
	cfg   erasure.Config
	desk  *erasure.Desk
	ahead atomic.Int64 // of the real time
}

func newOffice(t *testing.T) *office {
	t.Helper()
	o := &office{Bench: stagetest.New(t), cfg: erasure.Config{Quiet: time.Nanosecond, Page: 3}}
	lanes, err := eventlog.OpenContactLanes(t.Context(), o.Side, o.Codec, nil)
	require.NoError(t, err)
	o.deps = erasure.Deps{Pool: o.Side, Lanes: lanes, Log: testkit.Logger(t), Now: func() time.Time { return time.Now().Add(time.Duration(o.ahead.Load())) },
		Metrics: erasure.NewMetrics(prometheus.NewRegistry())}
	o.desk = erasure.NewDesk(o.cfg, o.deps)
	o.Exec(`INSERT INTO messaging.templates (tenant_id, template_id, version, channel, subject, text) VALUES ($1, 'receipt', 1, 'email', 's', 't')`, o.Tenant)
	o.Exec(`INSERT INTO messaging.senders (tenant_id, channel, sender, verified) VALUES ($1, 'email', 'Acme <hi@example.com>', true)`, o.Tenant)
	o.Exec(`INSERT INTO core.rules (tenant_id, rule_id, version, name, event_name, actions) VALUES ($1, gen_random_uuid(), 1, 'r', 'invoice.paid',
		'[{"type":"points","points":10},{"type":"notify","channel":"email","category":"transactional","template_id":"receipt"}]')`, o.Tenant)
	return o
}

// appends runs the append stage.
func (o *office) appends() (stop func()) {
	return o.Run(eventlog.Stage, []string{schemas.TopicEvents}, eventlog.New(eventlog.Deps{Codec: o.Codec, Tenants: tenants.NewCache(o.Side, 0),
		Partitions: partition.NewMaker(o.Side), Contacts: o.deps.Lanes, Log: testkit.Logger(o.T)}), eventlog.Source{Pool: o.Side, Codec: o.Codec})
}

// rulesAndChannels runs the stages behind it.
func (o *office) rulesAndChannels() {
	o.Run(rules.Stage, []string{schemas.TopicEventTracked}, rules.New(rules.Deps{Codec: o.Codec, Rules: rules.NewCache(o.Side, 0, testkit.Logger(o.T)),
		Metrics: prometheus.NewRegistry(), Now: time.Now}), nil)
	o.Run(channels.StageFor(schemas.RailTransactional), []string{schemas.TopicRequestedTransactional}, channels.New(schemas.RailTransactional, channels.Deps{
		Codec: o.Codec, Tenants: tenants.NewCache(o.Side, 0), Partitions: partition.NewMaker(o.Side), Contacts: o.deps.Lanes, Metrics: prometheus.NewRegistry(),
		Now: time.Now, Channels: []string{"email"}}), eventlog.Source{Pool: o.Side, Codec: o.Codec})
}

// contactOf gives the contact that an identifier leads to.
func (o *office) contactOf(kind, value string) (id uuid.UUID) {
	o.T.Helper()
	require.NoError(o.T, o.Side.QueryRow(context.Background(), `SELECT contact_id FROM core.contact_identifiers WHERE tenant_id = $1 AND kind = $2 AND value = $3`,
		o.Tenant, kind, value).Scan(&id))
	return id
}

func (o *office) erase(contact uuid.UUID) uuid.UUID {
	o.T.Helper()
	id, err := o.desk.Request(o.T.Context(), o.Tenant, contact, "test")
	require.NoError(o.T, err)
	return id
}

// work runs a fresh job, as a restarted process would, once at each time after now.
func (o *office) work(ahead ...time.Duration) {
	o.T.Helper()
	for _, d := range append([]time.Duration{0}, ahead...) {
		o.ahead.Store(int64(d))
		res, err := erasure.NewJob(o.cfg, o.deps).RunOnce(o.T.Context())
		require.NoError(o.T, err)
		require.Zero(o.T, res.Failed)
	}
}

// partitions makes what the rails' tables need for a time.
func (o *office) partitions(at time.Time) {
	for _, table := range []string{"messaging.sends", "messaging.send_status_history", "messaging.decisions", "core.tracked_events"} {
		o.Exec(`SELECT core.ensure_partition($1, $2)`, table, at)
	}
}

// send writes a send with its job, as a rail leaves them; the frozen bytes are
// compressed.
func (o *office) send(contact uuid.UUID, address, said, state string) (id uuid.UUID) {
	o.T.Helper()
	at := time.Now().UTC().Truncate(time.Millisecond)
	o.partitions(at)
	request := ids.New()
	id = ids.Send(o.Tenant, request, at, 0, "email")
	content := fmt.Sprintf(`{"template_id":"receipt","variables":{"said":%q}}`, said)
	o.Exec(`INSERT INTO messaging.sends (requested_at, retention_months, tenant_id, send_id, cell_id, request_id, recipient_index, contact_id, channel, category, provider,
		address, content, correlation_id, origin_event_id) VALUES ($1, 13, $2, $3, 'cell-1', $4, 0, $5, 'email', 'transactional', 'resend', $6, $7, 'c', $4)`,
		at, o.Tenant, id, request, contact, address, content)
	o.Exec(`INSERT INTO messaging.send_status_history (requested_at, retention_months, tenant_id, send_id, status, provider, provider_event_id, generation, occurred_at)
		VALUES ($1, 13, $2, $3, 'queued', 'resend', 'carril:queued:1', 1, now())`, at, o.Tenant, id)
	o.Exec(`INSERT INTO messaging.provider_messages (sent_at, provider, provider_message_id, send_id, tenant_id, retention_months, generation)
		VALUES (now(), 'resend', $1::text, $1::text::uuid, $2, 13, 1)`, id.String(), o.Tenant)
	o.job(id, at, state, 1, schemas.JobMessage{SendID: id, RequestID: request, RequestedAt: at, ContactID: contact, Address: address, Category: "transactional",
		RetentionMonths: 13, Variables: json.RawMessage(content)})
	enc, err := zstd.NewWriter(nil)
	require.NoError(o.T, err)
	settled := "taken"
	o.Exec(`INSERT INTO messaging.send_requests (worker, job_id, id_time, generation, provider, endpoint, idempotency_key, body, send_ids, lease, settled)
		VALUES ('rail:email.transactional', $1, $2, 1, 'resend', '/emails', 'k', $3, ARRAY[$1::uuid], $1, $4)`, id, at, enc.EncodeAll([]byte(address+said), nil), settled)
	return id
}

// job writes a rail's job.
func (o *office) job(id uuid.UUID, at time.Time, state string, generation int, ms ...schemas.JobMessage) {
	o.T.Helper()
	p, err := json.Marshal(schemas.JobPayload{Channel: "email", CellID: "cell-1", Messages: ms})
	require.NoError(o.T, err)
	o.Exec(`INSERT INTO core.processed_jobs (id_time, worker, job_id, state, tenant_id, category, generation, payload) VALUES ($1, 'rail:email.transactional', $2, $3, $4, 'transactional', $5, $6)`,
		at, id, state, o.Tenant, generation, p)
}

// found gives where in the database any of the words stands, in whatever case and
// whether compressed or not: every text, JSON and byte column of both schemas.
func (o *office) found(words ...string) (places []string) {
	o.T.Helper()
	ctx := context.Background()
	rows, err := o.Side.Query(ctx, `SELECT format('%I.%I', n.nspname, c.relname), array_agg(a.attname::text) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		WHERE n.nspname IN ('core', 'messaging') AND c.relkind = 'r' GROUP BY 1 ORDER BY 1`)
	require.NoError(o.T, err)
	type table struct {
		Name    string
		Columns []string
	}
	tables, err := pgx.CollectRows(rows, pgx.RowToStructByPos[table])
	require.NoError(o.T, err)
	require.Greater(o.T, len(tables), 60, "all of them")
	dec, err := zstd.NewReader(nil)
	require.NoError(o.T, err)
	defer dec.Close()
	for _, t := range tables {
		for _, column := range t.Columns {
			rows, err := o.Side.Query(ctx, fmt.Sprintf(`SELECT CASE WHEN pg_typeof(%[2]q) = 'bytea'::regtype THEN %[2]q::text::bytea ELSE convert_to(%[2]q::text, 'UTF8') END
				FROM %[1]s WHERE %[2]q IS NOT NULL`, t.Name, column))
			require.NoError(o.T, err, t.Name+" "+column)
			values, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
			require.NoError(o.T, err, t.Name+" "+column)
			for _, v := range values {
				text := string(v)
				if plain, err := dec.DecodeAll(v, nil); err == nil {
					text += string(plain)
				}
				text = strings.ToLower(text)
				for _, w := range words {
					if strings.Contains(text, strings.ToLower(w)) {
						places = append(places, t.Name+"."+column)
					}
				}
			}
		}
	}
	return places
}

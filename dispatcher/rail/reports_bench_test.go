package rail_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/dispatcher/provider/resend"
	"github.com/softcrum/carril/dispatcher/sends"
	figures "github.com/softcrum/carril/internal/bench"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/pg"
	"github.com/softcrum/carril/internal/stream"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/schemas"
)

// BenchmarkReports is what a blast's reports cost from their topic to the changes
// that are published: this process's processor time and the database's, which say
// more on a machine with neighbours than a rate does. In the real tier the broker is
// another process; the embedded one is in the figure.
func BenchmarkReports(b *testing.B) {
	m := newBenchOf(b, false)
	url := testkit.Postgres(b)
	pool, err := pg.Open(b.Context(), pg.Config{URL: url, MaxConns: 4, ByKey: true})
	require.NoError(b, err)
	b.Cleanup(pool.Close)
	m.pool = pool
	m.tenant = m.addTenant("acme")
	all := m.reported(b.N)
	m.produce(all...)
	h := sends.NewStatuses(m.codec, map[string]sends.Parser{resend.Name: resend.ParseWebhook}, nil)
	// As many a batch as gather in a quarter of a second at 4,000 a second.
	l, err := stream.New(stream.Config{Stage: sends.StageStatuses, Topics: []string{schemas.TopicProviderEvents}, MaxRecords: 170, CatchupRecords: 170},
		stream.Deps{Kafka: m.kafka, Pool: pool, Sink: outbox.ClientSink{Client: m.producer}, Handler: h, Log: slog.New(slog.DiscardHandler)})
	require.NoError(b, err)
	began, ours := m.backends(), cpu(b)
	b.ResetTimer()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Run(ctx) }()
	for m.count(`SELECT coalesce(sum(next_offset), 0) FROM core.stream_positions WHERE stage = $1`, sends.StageStatuses) < b.N {
		time.Sleep(50 * time.Millisecond)
	}
	b.StopTimer()
	b.ReportMetric(float64((cpu(b)-ours).Microseconds())/float64(b.N), "go-us/report")
	b.ReportMetric(float64((m.backends()-began).Microseconds())/float64(b.N), "pg-us/report")
	cancel()
	<-done
	require.Equal(b, b.N, m.count(`SELECT count(*) FROM messaging.send_status_history WHERE requested_at > now() - interval '2 days'`))
	require.Equal(b, b.N/2, m.count(`SELECT coalesce(sum(n), 0) FROM messaging.blast_counts WHERE what = 'delivered'`))
}

// reported makes a blast that was sent, and n reports of it: that a message left,
// and a batch later that it was delivered.
func (b *bench) reported(n int) (records []*kgo.Record) {
	b.t.Helper()
	blast, at := ids.New(), time.Now().UTC().Truncate(time.Millisecond)
	sent := make([]uuid.UUID, (n+1)/2)
	for i := range sent {
		sent[i] = ids.Send(b.tenant, blast, at, i, "email")
	}
	b.exec(`INSERT INTO messaging.blasts (blast_id, tenant_id, channel, name, template_id, template_version, state, recipients, origin_event_id, correlation_id)
VALUES ($1, $2, 'email', 'x', 'x', 1, 'running', $3, $1, 'x')`, blast, b.tenant, len(sent))
	b.exec(`INSERT INTO messaging.blast_recipients (blast_id, position, address, outcome) SELECT $1, n, n || '@example.com', 'sent' FROM generate_series(0, $2::int - 1) n`, blast, len(sent))
	b.exec(`INSERT INTO messaging.sends (requested_at, retention_months, tenant_id, send_id, cell_id, request_id, recipient_index, contact_id, channel, category, provider, address, content, correlation_id, origin_event_id, blast_id)
SELECT $1, 13, $2, s, 'cell-1', $3, n - 1, gen_random_uuid(), 'email', 'marketing', 'resend', n || '@example.com', '{}', 'x', $3, $3 FROM unnest($4::uuid[]) WITH ORDINALITY AS u(s, n)`, at, b.tenant, blast, sent)
	b.exec(`INSERT INTO messaging.provider_messages (sent_at, provider, provider_message_id, send_id, tenant_id, retention_months, generation)
SELECT $1, 'resend', 'em_' || s, s, $2, 13, 1 FROM unnest($3::uuid[]) s`, at, b.tenant, sent)
	for from := 0; from < len(sent); from += 100 {
		for _, kind := range []string{"sent", "delivered"} {
			for i := from; i < min(from+100, len(sent)) && len(records) < n; i++ {
				records = append(records, b.webhook(sent[i], kind, at))
			}
		}
	}
	return records
}

func (b *bench) webhook(send uuid.UUID, kind string, at time.Time) *kgo.Record {
	body := fmt.Appendf(nil, `{"type":"email.%s","created_at":"%s","data":{"broadcast_id":null,"created_at":"%s","email_id":"em_%s","from":"Shop <shop@example.com>","to":["%[4]s@example.com"],"subject":"News of the week","tags":{"send_id":"%[4]s","tenant_id":"%[5]s"},"headers":[]}}`,
		kind, at.Format(time.RFC3339Nano), at.Format("2006-01-02T15:04:05.999999-07:00"), send, b.tenant)
	message := "em_" + send.String()
	v, err := b.codec.Encode(context.Background(), nil, schemas.TopicProviderEvents, &schemas.ProviderEvent{Provider: resend.Name, ProviderEventID: "msg_" + strings.ReplaceAll(uuid.NewString(), "-", ""),
		Body: body, ReceivedAt: at, TenantID: &b.tenant, SendID: &send, ProviderMessageID: &message})
	require.NoError(b.t, err)
	return &kgo.Record{Topic: b.kafka.Topic(schemas.TopicProviderEvents), Key: []byte(send.String()), Value: v}
}

// cpu is what this process has had of the processors.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// backends is what the database's sessions have had of them, where they run on this
// machine; none of them may end meanwhile.
func (b *bench) backends() (sum time.Duration) {
	b.t.Helper()
	rows, err := b.pool.Query(context.Background(), `SELECT pid FROM pg_stat_activity WHERE datname = current_database()`)
	require.NoError(b.t, err)
	defer rows.Close()
	for rows.Next() {
		var pid int
		require.NoError(b.t, rows.Scan(&pid))
		sum += figures.CPUOf(pid)
	}
	return sum
}

package webhook_test

import (
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/webhook"
	"github.com/softcrum/carril/dispatcher/webhook/guard"
	"github.com/softcrum/carril/schemas"
)

// The first is the floor: what posting alone costs on this machine, with as many
// requests at once. The others go all the way from a record in the topic to a row
// that says delivered: straight from the stage, and claimed from the table. The
// last writes the rows and sends nothing.

func BenchmarkPostAlone(b *testing.B) {
	m := newBench(b)
	s := newSink(b, nil)
	client := guard.NewClient(m.guard)
	defer client.Close()
	body := make([]byte, 400)
	var next atomic.Int64
	var all sync.WaitGroup
	used := cpu()
	b.ResetTimer()
	for range 16 {
		all.Go(func() {
			for next.Add(1) <= int64(b.N) {
				if a, err := client.Post(b.Context(), s.URL+"/", http.Header{}, body); err != nil || a.Status != http.StatusNoContent {
					b.Errorf("status %d: %v", a.Status, err)
				}
			}
		})
	}
	all.Wait()
	report(b, used)
}

func BenchmarkFirstAttemptFromMemory(b *testing.B) {
	benchmarkDeliveries(b, webhook.Config{Rate: 1e6, QueueItems: 4096})
}

func BenchmarkFirstAttemptClaimed(b *testing.B) {
	benchmarkDeliveries(b, webhook.Config{Rate: 1e6, QueueItems: 4096, QueueBytes: 1}) // no room: every row is claimed
}

func benchmarkDeliveries(b *testing.B, cfg webhook.Config) {
	m := newMirror(b, cfg)
	m.log = slog.New(slog.DiscardHandler)
	s := newSink(b, nil)
	m.endpoint(m.tenant, s.URL)
	m.run()
	used := cpu()
	b.ResetTimer()
	send(m, schemas.TopicEventTracked, m.tenant, m.events(m.tenant, "a", b.N)...)
	awaitQuietly(b, m, `SELECT count(*) FROM core.webhook_deliveries WHERE state = 'delivered' AND created_at > now() - interval '2 days'`)
	report(b, used)
	b.StopTimer()
	require.Equal(b, b.N, s.count())
}

func BenchmarkRowsAlone(b *testing.B) {
	m := newMirror(b, webhook.Config{})
	m.log = slog.New(slog.DiscardHandler)
	s := newSink(b, nil)
	m.endpoint(m.tenant, s.URL)
	m.consume(m.dispatcher(m.cfg)) // nobody runs the lanes
	used := cpu()
	b.ResetTimer()
	send(m, schemas.TopicEventTracked, m.tenant, m.events(m.tenant, "a", b.N)...)
	awaitQuietly(b, m, `SELECT count(*) FROM core.webhook_deliveries WHERE created_at > now() - interval '2 days'`)
	report(b, used)
}

// awaitQuietly asks seldom, not to be what is measured.
func awaitQuietly(b *testing.B, m *mirror, sql string) {
	b.Helper()
	deadline := time.Now().Add(3 * time.Minute)
	for m.count(sql) < b.N {
		require.True(b, time.Now().Before(deadline), "not in time")
		time.Sleep(50 * time.Millisecond)
	}
}

// cpu is what this process has used so far: the sink, the stage and the lanes,
// not the database and the broker.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// report gives the rate, and the processor time of this process a delivery,
// which says more on a machine with neighbours.
func report(b *testing.B, since time.Duration) {
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "deliveries/s")
	b.ReportMetric(float64((cpu()-since).Microseconds())/float64(b.N), "cpu-us/delivery")
}

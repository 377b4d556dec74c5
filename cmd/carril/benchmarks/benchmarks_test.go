package benchmarks

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"go.uber.org/goleak"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/internal/bench"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/ratelimit"
	"github.com/softcrum/carril/internal/signature"
	"github.com/softcrum/carril/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Main(m, func() error { return goleak.Find() })
}

// tiny is a configuration on the tests' services, as if CARRIL_* named them.
// The figures of such a run mean nothing; that there are some does.
func tiny(t *testing.T) Config {
	t.Helper()
	broker := testkit.Kafka(t)
	redis, keys := testkit.Redis(t)
	return Config{
		Settings: app.Settings{KafkaBrokers: broker.Brokers, KafkaPrefix: broker.Prefix, RegistryURL: testkit.Registry(t), PostgresURL: testkit.Postgres(t),
			RedisURL: redis, RedisPrefix: keys, StorageURL: "file://" + t.TempDir(), Channels: []string{"email"}, ResendURL: "http://127.0.0.1:1", ResendRate: 5, AuthFailures: 30,
			BlastBounces: 0.04, BlastComplaints: 0.001, BlastTrips: 3, BlastFirst: 500, BlastFirstShare: 0.8, BlastFirstWait: 15 * time.Minute, FeederBatches: 50, Workers: 16,
			LatencyBudget: 5 * time.Second, Drain: 10 * time.Second, Addr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0"},
		Duration: 800 * time.Millisecond, Connections: 4, Log: testkit.Logger(t),
	}
}

// sound runs a benchmark and checks what every report must have.
func sound(t *testing.T, b Benchmark, cfg Config) *bench.Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	rep, err := b(ctx, cfg)
	require.NoError(t, err)
	require.Positive(t, rep.Result.Rate)
	require.Positive(t, rep.Baseline.Rate)
	require.Positive(t, rep.Ratio)
	require.Zero(t, rep.Result.Errors, "%v", rep.Result.ErrorClasses)
	require.NotEmpty(t, rep.Baseline.What)
	require.NotEmpty(t, rep.Unit)
	require.NotEmpty(t, rep.Mode)
	require.Positive(t, rep.Machine.Cores)
	require.NotEmpty(t, rep.Machine.Kafka)
	var out bytes.Buffer
	require.NoError(t, rep.WriteTable(&out))
	out.Reset()
	require.NoError(t, rep.WriteJSON(&out))
	require.True(t, json.Valid(out.Bytes()))
	requireNothingLeft(t, cfg)
	return rep
}

// requireNothingLeft looks for topics and keys under the test's prefixes;
// TestSite looks for the database.
func requireNothingLeft(t *testing.T, cfg Config) {
	t.Helper()
	cl, err := kafka.Config{Brokers: cfg.Settings.KafkaBrokers}.NewProducer()
	require.NoError(t, err)
	defer cl.Close()
	var left []string
	require.Eventually(t, func() bool { // a broker hears of a deletion later than who asked for it
		topics, err := kadm.NewClient(cl).ListTopics(t.Context())
		left = slices.DeleteFunc(topics.Names(), func(name string) bool { return !strings.HasPrefix(name, cfg.Settings.KafkaPrefix) })
		return err == nil && len(left) == 0
	}, 30*time.Second, 10*time.Millisecond, "topics")
	rd, err := ratelimit.Open(cfg.Settings.RedisURL)
	require.NoError(t, err)
	defer rd.Close()
	keys, err := rd.Keys(t.Context(), cfg.Settings.RedisPrefix+"*").Result()
	require.NoError(t, err)
	require.Empty(t, keys)
}

func TestTrack(t *testing.T) {
	t.Parallel()

	t.Run("ClosedLoopComparesRates", func(t *testing.T) {
		t.Parallel()
		rep := sound(t, Track, tiny(t))
		require.Equal(t, "rate", rep.RatioOf)
	})

	t.Run("OpenLoopComparesLatencies", func(t *testing.T) {
		t.Parallel()
		cfg := tiny(t)
		cfg.Rate = 100
		rep := sound(t, Track, cfg)
		require.Equal(t, "p95_ms", rep.RatioOf)
		require.EqualValues(t, 40, rep.Result.Count)
		require.EqualValues(t, 40, rep.Baseline.Count)
	})
}

func TestIdentify(t *testing.T) {
	t.Parallel()
	rep := sound(t, Identify, tiny(t))
	require.Equal(t, "identify", rep.Bench)
	require.Equal(t, "rate", rep.RatioOf)
}

func TestLadder(t *testing.T) {
	t.Parallel()
	cfg := tiny(t)
	cfg.Ladder, cfg.Duration, cfg.Connections = true, 200*time.Millisecond, 16
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	rep, err := Track(ctx, cfg)
	require.NoError(t, err)
	require.NotEmpty(t, rep.More)
	require.Zero(t, len(rep.More)%2, "each step beside its baseline")
	require.Positive(t, rep.Result.Count)
	require.Contains(t, rep.Mode, "the result is the step at")
	requireNothingLeft(t, cfg)
}

func TestBacklog(t *testing.T) {
	t.Parallel()
	cfg := tiny(t)
	cfg.Events, cfg.Rate, cfg.Duration = 3_000, 50, 1500*time.Millisecond
	rep := sound(t, Backlog, cfg)
	require.EqualValues(t, 25, rep.Result.Count)
	require.Contains(t, rep.Details, "caught_up_a_second")
	require.Len(t, rep.More, 1)
	require.EqualValues(t, 25, rep.More[0].Count, "every event is taken while PostgreSQL is away: %v", rep.More[0].ErrorClasses)
}

func TestBatch(t *testing.T) {
	t.Parallel()
	rep := sound(t, Batch, tiny(t))
	require.Zero(t, rep.Result.Count%500)
}

func TestAppend(t *testing.T) {
	t.Parallel()
	cfg := tiny(t)
	cfg.Events, cfg.Contacts = 4_500, 100
	rep := sound(t, Append, cfg)
	require.EqualValues(t, 4_500, rep.Result.Count)
	require.EqualValues(t, 4_500, rep.Baseline.Count)
	for _, name := range []string{"first_fifth_rate", "last_fifth_rate", "baseline_first_fifth_rate", "baseline_last_fifth_rate"} {
		require.Positive(t, rep.Details[name], name)
	}
	require.NotEmpty(t, rep.Steps)
}

func TestE2E(t *testing.T) {
	t.Parallel()
	cfg := tiny(t)
	cfg.Rate = 20
	rep := sound(t, E2E, cfg)
	require.EqualValues(t, 8, rep.Result.Count)
	require.Equal(t, "p95_ms", rep.RatioOf)
	for _, steps := range [][]bench.Step{rep.Steps, rep.Baseline.Steps} {
		require.Len(t, steps, 5)
		for _, s := range steps {
			require.Positive(t, s.Count, s.Name)
		}
	}
}

// FS-CORE-0006 AC5: the effect is visible in under 5 s p95. The requirement names
// no rate: this is a twentieth of what the measure offers by itself.
func TestEffect(t *testing.T) {
	t.Parallel()
	cfg := tiny(t)
	cfg.Duration, cfg.Rate = 2*time.Second, 100
	rep := sound(t, Effect, cfg)
	require.Positive(t, rep.Result.Count)
	require.Less(t, rep.Result.P95, 5000.0, "ms")
	require.Equal(t, "p95_ms", rep.RatioOf)
	require.EqualValues(t, 100, rep.Details["accepted"])
}

// FS-MSG-0005 AC1, in small: a blast that takes every request it may leaves
// another tenant's codes within their budget. The requirement's second is for
// quiet machines: here it is five, beside a wait of a fifth at the bucket.
func TestBlastVsOTP(t *testing.T) {
	t.Parallel()

	t.Run("LeavesTheCodesWithinTheirBudget", func(t *testing.T) {
		t.Parallel()
		cfg := tiny(t)
		cfg.Duration, cfg.Rate, cfg.ProviderRate, cfg.Blast, cfg.Workers = 16*time.Second, 1, 5, 4_000, 64
		rep := sound(t, BlastVsOTP, cfg)
		require.EqualValues(t, 8, rep.Result.Count, "every code arrives")
		require.EqualValues(t, 8, rep.Baseline.Count)
		require.Equal(t, "p99_ms", rep.RatioOf)
		require.Less(t, rep.Result.P99, 5000.0, "ms")
		// The buckets keep to the provider's rate; a machine that stands still for a
		// moment lets requests out together.
		require.Less(t, rep.Details["answered_429_percent"], 40.0)
		require.Positive(t, rep.Details["blast_left"], "the blast went on all the time")
		// No more than is permitted, but for a request at each end; on a busy machine
		// marketing yields, and uses less.
		used, ok := rep.Details["permitted_rate_used"].(float64)
		require.True(t, ok)
		require.Less(t, used, 1.3)
		require.Greater(t, used, 0.2)
	})

	t.Run("MeasuresEachRateAndItsBurstsAndDrawsThem", func(t *testing.T) {
		t.Parallel()
		cfg := tiny(t)
		cfg.Duration, cfg.Rate, cfg.ProviderRates, cfg.Blast = 3*time.Second, 4, []float64{100, 200}, 300
		cfg.Bursts, cfg.Plot = time.Second, filepath.Join(t.TempDir(), "plot.svg")
		rep := sound(t, BlastVsOTP, cfg)
		names := map[string]uint64{}
		for _, m := range rep.More {
			names[m.Name] = m.Count
			require.Zero(t, m.Errors, "%s: %v", m.Name, m.ErrorClasses)
		}
		for _, at := range []string{"", "at 200/s: "} {
			require.EqualValues(t, burstOf, names[at+"bursts of 10, beside the blast"], "a burst in the middle of the second")
			require.EqualValues(t, burstOf, names[at+"bursts of 10, idle"])
			require.Positive(t, names[at+"from the request, beside the blast"])
		}
		require.EqualValues(t, 6, rep.Result.Count+names["alone behind a burst, beside the blast"])
		require.EqualValues(t, 6, names["at 200/s: beside the blast"]+names["at 200/s: alone behind a burst, beside the blast"])
		for _, name := range []string{"requests_per_second", "permitted_rate_used", "provider_rate_used", "answered_429_percent", "messages_per_second", "blast_left", "p95_by_idle", "reports_per_second", "report_p95_ms"} {
			require.Contains(t, rep.Details, name)
			require.Contains(t, rep.Details, name+"_at_200")
		}
		svg, err := os.ReadFile(cfg.Plot)
		require.NoError(t, err)
		require.Equal(t, 2*(2*6+2*burstOf+4), strings.Count(string(svg), "<circle "), "each code of both rates, and the legends")
	})
}

func TestWebhooks(t *testing.T) {
	t.Parallel()
	rep := sound(t, Webhooks, tiny(t))
	require.Equal(t, "rate", rep.RatioOf)
	require.Len(t, rep.More, 1)
	require.EqualValues(t, 40, rep.More[0].Count)
	require.Zero(t, rep.More[0].Errors)
	require.Empty(t, rep.Notes)
}

// A batch of which an event was refused is answered 202 all the same, and must
// not count.
func TestPartialBatchIsAnError(t *testing.T) {
	t.Parallel()
	answer := `{"accepted":500,"rejected":0,"results":[]}`
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(s.Close)
	body, err := batchBody(400, time.Now())
	require.NoError(t, err)
	g := allAccepted(posts(hostOf(s.URL), "/", []tenant{{key: "k"}}, 1, body))
	t.Cleanup(g.close)
	require.NoError(t, g.ops[0](t.Context()))
	answer = `{"accepted":499,"rejected":1,"results":[]}`
	require.Equal(t, "rejected", bench.Class(g.ops[0](t.Context())))
}

func TestReceiver(t *testing.T) {
	t.Parallel()
	r, err := startReceiver(t.Context())
	require.NoError(t, err)
	t.Cleanup(r.stop)
	secret := signature.NewSecret()
	r.expect([]signature.Secret{secret})
	id := uuid.New()
	arrived := r.wait(id)
	body := []byte(`{"data":{"event_id":"` + id.String() + `"}}`)
	post := func(sig string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url(0), bytes.NewReader(body))
		require.NoError(t, err)
		req.Header.Set(signature.HeaderID, "d-1")
		req.Header.Set(signature.HeaderTimestamp, strconv.FormatInt(time.Now().Unix(), 10))
		req.Header.Set(signature.HeaderSignature, sig)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	require.Equal(t, http.StatusUnauthorized, post(signature.Sign(signature.NewSecret(), "d-1", time.Now(), body)))
	require.Equal(t, 1, r.refused())
	select {
	case <-arrived:
		require.Fail(t, "a forged delivery counts")
	default:
	}
	require.Equal(t, http.StatusNoContent, post(signature.Sign(secret, "d-1", time.Now(), body)))
	<-arrived
	require.Equal(t, body, r.first())
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
}

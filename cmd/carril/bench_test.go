package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/testkit"
)

// TestMain is the program itself where a benchmark under test starts a process
// of its own file.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "dispatch" {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	testkit.Main(m)
}

func TestBench(t *testing.T) {
	t.Run("RefusesWhatCannotBeWithTwo", func(t *testing.T) {
		for _, args := range []string{"append --events=0", "append --events=10 --contacts=11", "append --events=5000001", "track --duration=0s",
			"track --rate=-1", "batch --connections=-1", "blast-vs-otp --blast=0", "blast-vs-otp --rate=NaN",
			"blast-vs-otp --provider-rate=5,0", "blast-vs-otp --processes=17", "blast-vs-otp --workers=0", "blast-vs-otp --bursts=-1s", "blast-vs-otp --plot=/nowhere/x.svg", "fly", "track --cpu-profile=/nowhere/x"} {
			code, out, errs := try(append([]string{"bench"}, strings.Fields(args)...)...)
			require.Equal(t, exitUsage, code, "%s: %s", args, errs)
			require.Empty(t, out, args)
		}
	})

	t.Run("HelpNamesEveryBenchmark", func(t *testing.T) {
		code, out, _ := try("bench", "--help")
		require.Zero(t, code)
		for _, name := range []string{"track", "batch", "append", "e2e", "blast-vs-otp", "webhooks", "all"} {
			require.Contains(t, out, "bench "+name+" ")
		}
	})

	t.Run("DispatchesInProcessesOfTheirOwn", func(t *testing.T) {
		broker := testkit.Kafka(t)
		redis, prefix := testkit.Redis(t)
		code, out, errs := try("bench", "blast-vs-otp", "--json", "--duration=2s", "--rate=5", "--bursts=0s", "--blast=300", "--provider-rate=50", "--processes=2", "--workers=5",
			"--kafka-brokers="+broker.Brokers[0], "--kafka-prefix="+broker.Prefix, "--registry-url="+testkit.Registry(t), "--postgres-url="+testkit.Postgres(t),
			"--redis-url="+redis, "--redis-prefix="+prefix, "--storage-url=file://"+t.TempDir())
		require.Zero(t, code, errs)
		var got struct {
			Result   struct{ Count, Errors int }
			Settings map[string]any
		}
		require.NoError(t, json.Unmarshal([]byte(out), &got))
		require.Equal(t, 5, got.Result.Count)
		require.Zero(t, got.Result.Errors)
		require.EqualValues(t, 2, got.Settings["processes"])
	})

	// The names of architecture §20, which scripts read.
	t.Run("PrintsOneObjectAndNothingElse", func(t *testing.T) {
		broker := testkit.Kafka(t)
		redis, prefix := testkit.Redis(t)
		code, out, errs := try("bench", "track", "--json", "--duration=400ms", "--connections=2", "--kafka-brokers="+broker.Brokers[0],
			"--kafka-prefix="+broker.Prefix, "--registry-url="+testkit.Registry(t), "--postgres-url="+testkit.Postgres(t), "--redis-url="+redis,
			"--redis-prefix="+prefix, "--storage-url=file://"+t.TempDir())
		require.Zero(t, code, errs)
		require.Empty(t, errs, "no terminal, no progress")
		require.Equal(t, 1, strings.Count(out, "\n"))
		var got struct {
			Bench  string `json:"bench"`
			Result struct {
				Rate   *float64 `json:"rate"`
				P50    *float64 `json:"p50_ms"`
				P95    *float64 `json:"p95_ms"`
				P99    *float64 `json:"p99_ms"`
				Errors *int     `json:"errors"`
			} `json:"result"`
			Baseline struct {
				What string   `json:"what"`
				Rate *float64 `json:"rate"`
				P50  *float64 `json:"p50_ms"`
				P95  *float64 `json:"p95_ms"`
				P99  *float64 `json:"p99_ms"`
			} `json:"baseline"`
			Ratio   float64 `json:"ratio"`
			Machine struct {
				Cores int    `json:"cores"`
				Kafka string `json:"kafka"`
			} `json:"machine"`
		}
		require.NoError(t, json.Unmarshal([]byte(out), &got))
		require.Equal(t, "track", got.Bench)
		for _, f := range []*float64{got.Result.Rate, got.Result.P50, got.Result.P95, got.Result.P99, got.Baseline.Rate, got.Baseline.P50, got.Baseline.P95, got.Baseline.P99} {
			require.NotNil(t, f)
			require.Positive(t, *f)
		}
		require.NotNil(t, got.Result.Errors)
		require.NotEmpty(t, got.Baseline.What)
		require.Positive(t, got.Ratio)
		require.Positive(t, got.Machine.Cores)
		require.NotEmpty(t, got.Machine.Kafka)
	})
}

package main

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/provider/sandbox"
)

// TestMain is a worker where the harness under test starts one.
func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// Each system takes a small blast through the death of a worker: everything
// arrives, nothing twice. Its figures mean nothing. Carril's row needs its
// binary and its services too.
func TestSystems(t *testing.T) {
	redis, postgres := os.Getenv("CARRIL_REDIS_URL"), os.Getenv("CARRIL_POSTGRES_URL")
	if redis == "" || postgres == "" {
		t.Skip("no Redis and PostgreSQL: CARRIL_REDIS_URL and CARRIL_POSTGRES_URL name them")
	}
	for _, name := range []string{"fifo", "asynq", "asynq-shared", "river", "river-shared", "carril"} {
		t.Run(name, func(t *testing.T) {
			args := []string{"-systems", name, "-redis", redis, "-postgres", postgres, "-blast", "1500", "-rate", "5", "-duration", "2s", "-idle", "1s", "-bursts", "2s",
				"-provider-rate", "20", "-workers", "4", "-processes", "2", "-logs", t.TempDir()}
			if name == "carril" {
				if _, err := os.Stat("../../../bin/carril"); err != nil || os.Getenv("CARRIL_KAFKA_BROKERS") == "" {
					t.Skip("no bin/carril, or no Kafka")
				}
			} else {
				args = append(args, "-sandbox", provider(t))
			}
			o, err := parse(args)
			require.NoError(t, err)
			rep, plot, err := o.run(t.Context())
			require.NoError(t, err)
			require.Len(t, rep.Rows, 1)
			r := rep.Rows[0]
			require.Zero(t, r.Lost)
			require.Zero(t, r.Duplicates, "each request has a key of its own")
			require.EqualValues(t, 10, r.Codes.Count+r.Behind.Count)
			require.EqualValues(t, burstOf, r.Bursts.Count)
			var table, drawn bytes.Buffer
			require.NoError(t, rep.write(&table))
			require.NoError(t, plot.WriteSVG(&drawn))
			require.Positive(t, drawn.Len())
			t.Log(table.String())
		})
	}
}

// provider is a sandbox of the test's own.
func provider(t *testing.T) string {
	t.Helper()
	s, err := sandbox.New(sandbox.Config{Rate: 20}, sandbox.Deps{})
	require.NoError(t, err)
	require.NoError(t, s.Start(t.Context()))
	t.Cleanup(func() { _ = s.Stop(t.Context()) })
	return s.URL()
}

func TestLedger(t *testing.T) {
	l := newLedger("")
	at := time.Now()
	l.take(receipt{At: at, To: personAddress(1)})
	l.take(receipt{At: at.Add(time.Second), To: personAddress(1), Replay: true})
	l.take(receipt{At: at.Add(2 * time.Second), To: personAddress(1)})
	l.take(receipt{At: at, To: codeAddress(1)})
	require.Equal(t, [4]int{1, 1, 1, 2}, [4]int{l.replays, l.twice, l.people(), len(l.first)})
	require.Equal(t, at, l.last)
}

func TestBatches(t *testing.T) {
	jobs := batches("run", 250)
	require.Len(t, jobs, 3)
	require.Len(t, jobs[2].To, 50)
	require.NotEqual(t, jobs[0].ID, jobs[1].ID)
}

func TestParse(t *testing.T) {
	for _, args := range [][]string{{"-blast", "0"}, {"-processes", "9", "-workers", "3"}, {"-rate", "-1"}} {
		_, err := parse(args)
		require.Error(t, err, args)
	}
}

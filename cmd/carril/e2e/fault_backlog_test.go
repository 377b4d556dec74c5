//go:build faults

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	books "github.com/softcrum/carril/internal/testkit/ledger"
)

// backlogEvents is how many events stand before the stages; CARRIL_TEST_BACKLOG
// makes it a million.
func backlogEvents(t *testing.T, n int) int {
	t.Helper()
	if s := os.Getenv("CARRIL_TEST_BACKLOG"); s != "" {
		var err error
		n, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	return n
}

// batch sends events in one request, and keeps what each was told.
func (f *faultRun) batch(api, key string, es []event) {
	parts := make([]string, len(es))
	for i, e := range es {
		parts[i] = strings.Replace(e.body(), "{", `{"type":"track",`, 1)
	}
	req, err := http.NewRequest(http.MethodPost, "http://"+api+"/v1/core/batch", strings.NewReader(`{"events":[`+strings.Join(parts, ",")+`]}`))
	require.NoError(f.t, err)
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := (&http.Client{Timeout: time.Minute}).Do(req)
	require.NoError(f.t, err)
	defer resp.Body.Close()
	require.Equal(f.t, http.StatusAccepted, resp.StatusCode)
	var answer struct {
		Results []struct {
			EventID string `json:"event_id"`
		} `json:"results"`
	}
	require.NoError(f.t, json.NewDecoder(resp.Body).Decode(&answer))
	require.Len(f.t, answer.Results, len(es))
	for i, e := range es {
		f.acked.Add(1)
		f.book.Sent(books.Request{Tenant: e.tenant, Key: e.key, OrderKey: e.till, Seq: e.seq, Body: books.Body("invoice.paid", e.properties()),
			SentAt: time.Now(), Outcome: books.Accepted(answer.Results[i].EventID)})
	}
}

// pile sends n events of a tenant in batches, one after the other.
func (f *faultRun) pile(tenant, key string, n int, historical bool) {
	for from := 0; from < n; from += 500 {
		var es []event
		for i := from; i < min(from+500, n); i++ {
			es = append(es, event{tenant: tenant, key: fmt.Sprintf("pile-%07d", i), till: "pile", seq: int64(i), at: time.Now(), historical: historical})
		}
		f.batch(f.apis[0], key, es)
	}
}

// partitionOf is where a tenant's events lie, as the producer decides it.
func partitionOf(tenant string, partitions int) int {
	return kgo.StickyKeyPartitioner(nil).ForTopic("t").Partition(&kgo.Record{Key: []byte(tenant)}, partitions)
}

// lags sends live events of a tenant one after the other and measures from the
// 202 to the row, until stop.
func (f *faultRun) lags(tenant, key, till string, stop <-chan struct{}) (lags []time.Duration) {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, f.db.url)
	if err != nil {
		f.t.Error(err)
		return nil
	}
	defer conn.Close(ctx)
	for n := int64(1); ; n++ {
		select {
		case <-stop:
			return lags
		case <-time.After(150 * time.Millisecond):
		}
		e := event{tenant: tenant, key: fmt.Sprintf("%s-%06d", till, n), till: till, seq: n, at: time.Now()}
		outcome, _ := f.send(f.apis[0], key, e)
		id, ok := strings.CutPrefix(outcome, "202:")
		if !ok {
			f.t.Errorf("a live event got %s", outcome)
			return lags
		}
		at := time.Now()
		for there := false; !there && time.Since(at) < 2*time.Minute; {
			if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM core.event_keys WHERE event_id = $1::uuid)`, id).Scan(&there); err != nil {
				f.t.Error(err)
				return lags
			}
			if !there {
				time.Sleep(10 * time.Millisecond)
			}
		}
		lags = append(lags, time.Since(at))
	}
}

func p95(ds []time.Duration) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	slices.Sort(ds)
	return ds[len(ds)*95/100]
}

// TestFaultBacklog: a backlog of one tenant drains with memory flat, while tenants
// of other partitions are served as if it were not there.
func TestFaultBacklog(t *testing.T) {
	n := backlogEvents(t, 100_000)
	f := newFaultRun(t, fmt.Sprintf("backlog of %d", n))
	f.ingest(0)
	type other struct{ id, key string }
	var others []other
	for i := 0; len(others) < 2 && i < 20; i++ {
		if id, key := f.addTenant(fmt.Sprintf("other-%d", i)); partitionOf(id, 4) != partitionOf(f.tenant, 4) {
			others = append(others, other{id, key})
		}
	}
	f.pile(f.tenant, f.key, n, false)
	stages := f.stages("p0")
	f.heal()
	stop := make(chan struct{})
	measured := make([][]time.Duration, len(others))
	var live sync.WaitGroup
	for i, o := range others {
		live.Go(func() { measured[i] = f.lags(o.id, o.key, fmt.Sprintf("live-%d", i), stop) })
	}
	var memory []float64
	begun := time.Now()
	for f.behind("append") != 0 || len(memory) < 5 {
		require.Less(t, time.Since(begun), 20*time.Minute, "the backlog drains")
		memory = append(memory, stages.rss())
		time.Sleep(500 * time.Millisecond)
	}
	took := time.Since(begun)
	close(stop)
	live.Wait()
	var all []time.Duration
	for _, m := range measured {
		all = append(all, m...)
	}
	third := memory[len(memory)/3]
	most := slices.Max(memory)
	f.book.Recovered("memory after the first third", slices.Max(memory[len(memory)/3:]), third+160, "MiB")
	f.book.Recovered("memory at its most", most, 512, "MiB")
	f.book.Recovered("p95 of another tenant's lag", p95(all).Seconds(), 10, "s")
	f.book.Promise("live events beside the backlog", 10, len(all))
	f.figure("drained in %.1f s (%.0f/s); memory %s MiB; other tenants' lag p95 %.0f ms over %d events", took.Seconds(), float64(n)/took.Seconds(),
		some(memory), p95(all).Seconds()*1000, len(all))
	f.judge()
}

// some are about eight values of a series.
func some(series []float64) string {
	var out []string
	for i := 0; i < len(series); i += max(1, len(series)/8) {
		out = append(out, fmt.Sprintf("%.0f", series[i]))
	}
	return strings.Join(out, " ")
}

// TestFaultHistoricalImport: two years of a tenant's events are imported, and the
// same tenant's checkout of today is not behind them.
func TestFaultHistoricalImport(t *testing.T) {
	n := backlogEvents(t, 50_000)
	f := newFaultRun(t, fmt.Sprintf("import of %d", n))
	f.ingest(0)
	f.pile(f.tenant, f.key, n, true)
	f.stages("p0")
	stop := make(chan struct{})
	var live sync.WaitGroup
	var lags []time.Duration
	live.Go(func() { lags = f.lags(f.tenant, f.key, "live", stop) })
	begun := time.Now()
	eventually(t, 20*time.Minute, func() bool { return time.Since(begun) > 3*time.Second && f.behind("append-historical") == 0 },
		func() string { return "the import is through" })
	took := time.Since(begun)
	close(stop)
	live.Wait()
	f.book.Recovered("p95 of the tenant's own live lag", p95(lags).Seconds(), 10, "s")
	f.book.Promise("live events beside the import", 5, len(lags))
	f.figure("imported in %.1f s (%.0f/s); live lag p95 %.0f ms over %d events", took.Seconds(), float64(n)/took.Seconds(), p95(lags).Seconds()*1000, len(lags))
	f.judge()
}

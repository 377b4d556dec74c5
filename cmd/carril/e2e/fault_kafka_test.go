//go:build faults

package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/softcrum/carril/internal/kafka"
)

// TestFaultBrokerStops is F7: the broker is asked to end and starts again, five
// times. While it is away nobody gets a 202; afterwards everybody does.
func TestFaultBrokerStops(t *testing.T) { brokerEnds(t, "F7", syscall.SIGTERM, 5) }

// TestFaultBrokerKilled is F8.
func TestFaultBrokerKilled(t *testing.T) { brokerEnds(t, "F8", syscall.SIGKILL, 3) }

func brokerEnds(t *testing.T, row string, how syscall.Signal, times int) {
	f := newFaultRun(t, row)
	f.ingest(0)
	f.stages("p0")
	l := f.load(1, 8, 5*time.Millisecond)
	f.awaitAcked(100)
	ends, lied := 0, int64(0)
	for range times {
		f.parts.end("kafka", how)
		ends++
		time.Sleep(300 * time.Millisecond) // answers of before are read by now
		before := f.acked.Load()
		time.Sleep(time.Second)
		lied += f.acked.Load() - before
		f.parts.up()
		f.heal()
		f.awaitAcked(100)
	}
	l.stop()
	f.book.Promise("ends of the broker", times, ends)
	f.book.Promise("requests that got no 202", 1, int(f.unknown.Load()+f.failed.Load()))
	f.book.Counted("202s without a broker", lied, 0)
	f.figure("%d times", ends)
	f.judge()
}

// TestFaultBrokerSilent is F9 and F10: the broker takes connections and answers
// nothing, for 10, 30 and 90 seconds, past every session. The front door says 503
// within its deadline, its memory stays, and the stages keep or regain what is
// theirs.
func TestFaultBrokerSilent(t *testing.T) {
	f := newFaultRun(t, "F9, F10")
	door := f.ingest(0)
	stages := f.stages("p0")
	l := f.load(1, 16, 5*time.Millisecond)
	f.awaitAcked(300)
	for _, seconds := range []int{10, 30, 90} {
		before, doorWas, stagesWere := f.failed.Load(), door.rss(), stages.rss()
		f.parts.signal("kafka", syscall.SIGSTOP)
		l.slowest.Store(0)
		peak := 0.0
		for range seconds {
			time.Sleep(time.Second)
			peak = max(peak, door.rss(), stages.rss())
		}
		f.book.Recovered("a 503's time while the broker is silent", time.Duration(l.slowest.Load()).Seconds(), 8, "s")
		f.parts.signal("kafka", syscall.SIGCONT)
		f.heal()
		f.awaitAcked(100)
		recovered := time.Since(f.healed).Seconds()
		f.book.Recovered("the first 202s after the silence", recovered, 60, "s")
		f.book.Promise("answers of 503", 1, int(f.failed.Load()-before))
		f.book.Recovered("memory at its most", peak, max(doorWas, stagesWere)+128, "MiB")
		f.figure("silent %d s: %d answers of 503, the slowest after %.1f s, memory %.0f and %.0f to %.0f MiB, 202s again after %.1f s",
			seconds, f.failed.Load()-before, time.Duration(l.slowest.Load()).Seconds(), doorWas, stagesWere, peak, recovered)
	}
	l.stop()
	f.judge()
}

// TestFaultPoison is F14: records that are bad in themselves come amid the load,
// each is put aside with its very bytes, and the partition goes on.
func TestFaultPoison(t *testing.T) {
	f := newFaultRun(t, "F14")
	f.ingest(0)
	f.stages("p0")
	l := f.load(1, 8, 5*time.Millisecond)
	f.awaitAcked(100)
	sample := f.rawRecord()
	poison := map[string][]byte{
		"bad magic byte": append([]byte{7}, sample[1:]...), "unknown schema id": framed(999_999, sample[5:]),
		"truncated": sample[:len(sample)/2], "random": []byte("\x00\x01\x02random bytes \xff\xfe"), "empty": {},
		"trailing bytes": append(append([]byte{}, sample...), 1, 2, 3),
	}
	var worst time.Duration
	hashes := map[string]bool{}
	for name, value := range poison {
		require.NoError(t, f.cl.ProduceSync(t.Context(), &kgo.Record{Topic: f.kc.Topic("core.events"), Key: []byte(f.tenant), Value: value,
			Headers: []kgo.RecordHeader{{Key: "ce_id", Value: []byte(name)}}}).FirstErr())
		at, sum := time.Now(), sha256.Sum256(value)
		hashes[hex.EncodeToString(sum[:])] = true
		f.db.await(1, time.Minute, `SELECT count(*) FROM core.dead_letters WHERE content_hash = $1 AND coalesce(record_value, '') = $2 AND topic = 'core.events'`, sum[:], value)
		worst = max(worst, time.Since(at))
	}
	f.awaitAcked(100)
	l.stop()
	f.heal()
	require.Equal(t, len(hashes), f.db.count(`SELECT count(*) FROM core.dead_letters`), "and nothing else")
	f.book.Promise("records that are bad in themselves", 6, len(poison))
	f.book.Recovered("until a bad record was put aside", worst.Seconds(), 60, "s")
	f.figure("%d kinds, the slowest put aside after %.1f s", len(poison), worst.Seconds())
	f.judge()
}

// framed puts the registry's frame before a record.
func framed(id uint32, rest []byte) []byte {
	return append([]byte{0, byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)}, rest...)
}

// rawRecord reads one accepted event as it lies in its topic.
func (f *faultRun) rawRecord() []byte {
	f.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(f.kc.Brokers...), kgo.ConsumeTopics(f.kc.Topic("core.events")), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(f.t, err)
	defer cl.Close()
	fetches := cl.PollRecords(f.t.Context(), 1)
	require.NoError(f.t, fetches.Err())
	return fetches.Records()[0].Value
}

// TestFaultRegistryAway is F16: the registry is killed under load. What is known
// goes on; a record of an id that nobody knows yet waits, and is judged only once
// the registry can say that it knows none.
func TestFaultRegistryAway(t *testing.T) {
	f := newFaultRun(t, "F16")
	f.ingest(0)
	f.stages("p0")
	l := f.load(1, 8, 5*time.Millisecond)
	f.awaitAcked(100)
	// The front door knows the schema from its start, the stage from its first event.
	eventually(t, time.Minute, func() bool { return f.db.count(`SELECT count(*) FROM core.event_keys`) > 0 }, func() string { return "the stage has read an event" })
	f.parts.end("registry", syscall.SIGKILL)
	f.awaitAcked(200)
	eventually(t, time.Minute, func() bool { n := f.behind("append"); return n >= 0 && n < 100 }, func() string { return "known ids go on" })
	sample := f.rawRecord()
	strange := framed(888_888, sample[5:])
	require.NoError(t, f.cl.ProduceSync(t.Context(), &kgo.Record{Topic: f.kc.Topic("core.events"), Key: []byte(f.tenant), Value: strange}).FirstErr())
	f.awaitAcked(50) // the front door does not ask
	time.Sleep(3 * time.Second)
	require.Zero(t, f.db.count(`SELECT count(*) FROM core.dead_letters`), "away is no verdict")
	f.parts.up()
	f.heal()
	f.db.await(1, 2*time.Minute, `SELECT count(*) FROM core.dead_letters WHERE class = 'undecodable'`)
	l.stop()
	f.book.Promise("registries killed", 1, 1)
	f.judge()
}

// TestFaultSchemaChange is F15: producers of an older and of a newer schema, in
// one topic, under a running stage; and a candidate that old readers could not
// read is refused where it is registered.
func TestFaultSchemaChange(t *testing.T) {
	f := newFaultRun(t, "F15")
	f.ingest(0)
	f.stages("p0")
	l := f.load(1, 4, 5*time.Millisecond)
	f.awaitAcked(50)
	registry := strings.TrimPrefix(f.env[3], "CARRIL_REGISTRY_URL=")
	subject := f.kc.Topic("core.events") + "-value"
	call := func(method, path string, body any) (int, map[string]any) {
		raw, err := json.Marshal(body)
		require.NoError(t, err)
		req, err := http.NewRequest(method, registry+path, bytes.NewReader(raw))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/vnd.schemaregistry.v1+json")
		resp, err := client.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		out := map[string]any{}
		_ = json.Unmarshal(b, &out)
		return resp.StatusCode, out
	}
	_, latest := call(http.MethodGet, "/subjects/"+subject+"/versions/latest", nil)
	var schema map[string]any
	require.NoError(t, json.Unmarshal([]byte(latest["schema"].(string)), &schema))
	fields := schema["fields"].([]any)
	register := func(fields []any) (int, map[string]any) {
		schema["fields"] = fields
		raw, err := json.Marshal(schema)
		require.NoError(t, err)
		return call(http.MethodPost, "/subjects/"+subject+"/versions", map[string]any{"schema": string(raw)})
	}
	status, _ := register(fields[1:]) // a field that every reader needs is gone
	require.Equal(t, http.StatusConflict, status)
	status, _ = register(append(append([]any{}, fields...), map[string]any{"name": "must_be_there", "type": "string"}))
	require.Equal(t, http.StatusConflict, status)
	status, made := register(append(append([]any{}, fields...), map[string]any{"name": "added", "type": []any{"null", "string"}, "default": nil}))
	require.Equal(t, http.StatusOK, status, "%v", made)
	v2 := uint32(made["id"].(float64))

	// The newer producer: the older record, with the new field's null at its end.
	sample := f.rawRecord()
	newer := append(framed(v2, sample[5:]), 0)
	before := f.db.count(`SELECT count(*) FROM core.idempotency_conflicts`)
	at := f.behind("append")
	require.GreaterOrEqual(t, at, int64(0))
	marker := uuid.New().String()
	require.NoError(t, f.cl.ProduceSync(t.Context(), &kgo.Record{Topic: f.kc.Topic("core.events"), Key: []byte(f.tenant), Value: newer,
		Headers: kafka.Event{ID: marker, Type: "core.event.accepted", Source: "/tenants/" + f.tenant, Time: time.Now(), CorrelationID: marker}.Headers()}).FirstErr())
	f.awaitAcked(100)
	l.stop()
	f.heal()
	eventually(t, time.Minute, func() bool { return f.behind("append") == 0 }, func() string { return "both are read" })
	require.Zero(t, f.db.count(`SELECT count(*) FROM core.dead_letters`), "the newer record is read by the older stage, and is a repeat")
	require.Equal(t, before, f.db.count(`SELECT count(*) FROM core.idempotency_conflicts`), "with every field as it was")
	f.book.Promise("records of a newer schema", 1, 1)
	f.figure("schema %d beside the older; 2 incompatible candidates refused with 409", v2)
	f.judge()
}

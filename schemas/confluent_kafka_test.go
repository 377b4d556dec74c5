//go:build kafka

package schemas_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/schemas"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// python gives an interpreter that has Confluent's client: made once, in the
// project's ignored folder.
func python(t *testing.T) string {
	t.Helper()
	venv, err := filepath.Abs("../.carril/venv")
	require.NoError(t, err)
	interpreter := filepath.Join(venv, "bin", "python")
	if exec.Command(interpreter, "-c", "import confluent_kafka.schema_registry.avro").Run() == nil {
		return interpreter
	}
	out, err := exec.Command("python3", "-m", "venv", venv).CombinedOutput()
	require.NoError(t, err, "python3 -m venv: %s", out)
	out, err = exec.Command(interpreter, "-m", "pip", "install", "--quiet", "confluent-kafka[avro,schemaregistry]==2.16.0").CombinedOutput()
	require.NoError(t, err, "install Confluent's client: %s", out)
	return interpreter
}

// TestConfluentClientReadsAndWritesOurBytes decodes what the platform produced
// with another language's Confluent client against the real registry, and
// compares the bytes that its serializer makes of the same record with ours.
func TestConfluentClientReadsAndWritesOurBytes(t *testing.T) {
	interpreter := python(t)
	broker := testkit.Kafka(t)
	kc := kafka.Config{Brokers: broker.Brokers, Prefix: broker.Prefix, SingleNode: true}
	topic := broker.CreateTopic(schemas.TopicEventTracked, 1)
	reg, err := sr.NewClient(sr.URLs(testkit.Registry(t)))
	require.NoError(t, err)
	require.NoError(t, schemas.Register(t.Context(), reg, kc.Prefix, []string{"email"}))
	codec, err := schemas.NewCodec(reg, kc.Prefix)
	require.NoError(t, err)
	producer, err := kc.NewProducer()
	require.NoError(t, err)
	t.Cleanup(producer.Close)

	var want []schemas.EventTracked
	var framed [][]byte
	for i := range 5 {
		at := time.Date(2026, 11, 29, 12, 0, i, 123456000, time.UTC)
		e := schemas.EventTracked{EventID: ids.New(), TenantID: ids.New(), ContactID: ids.New(), CellID: "cell-1", Kind: "track", EventName: "factura.pagada",
			OccurredAt: at, OccurredOffset: -18000, ReceivedAt: at, CorrelationID: "c-ñ-🙂", IdempotencyKey: "k", Payload: `{"n":9007199254740993}`,
			Historical: i%2 == 0, Lane: int32(i), LaneSeq: 1 << 40}
		v, err := codec.Encode(t.Context(), nil, schemas.TopicEventTracked, &e)
		require.NoError(t, err)
		want, framed = append(want, e), append(framed, v)
		h := kafka.Event{ID: e.EventID.String(), Type: "core.event.tracked", Source: kafka.Source(e.TenantID), Time: at, CorrelationID: e.CorrelationID}
		require.NoError(t, producer.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: v, Headers: h.Headers()}).FirstErr())
	}

	cmd := exec.CommandContext(t.Context(), interpreter, "testdata/confluent.py", broker.Brokers[0], testkit.Registry(t), topic, "5")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err, string(out))
	lines := bufio.NewScanner(bytes.NewReader(out))
	for i := 0; lines.Scan(); i++ {
		var got struct {
			Record  map[string]any    `json:"record"`
			Again   string            `json:"again"`
			Headers map[string]string `json:"headers"`
		}
		require.NoError(t, json.Unmarshal(lines.Bytes(), &got))
		require.Equal(t, want[i].EventID.String(), got.Record["event_id"])
		require.Equal(t, want[i].CorrelationID, got.Record["correlation_id"])
		require.Equal(t, want[i].Payload, got.Record["payload"])
		require.Equal(t, want[i].OccurredAt.Format("2006-01-02T15:04:05.000000+00:00"), got.Record["occurred_at"])
		require.Equal(t, hex.EncodeToString(framed[i]), got.Again, "Confluent's serializer makes the same bytes")
		require.Equal(t, want[i].EventID.String(), got.Headers["ce_id"])
	}
}

// TestRegistryRefusesWhatIsNotFullTransitive holds the compatibility that
// `carril migrate topics` sets.
func TestRegistryRefusesWhatIsNotFullTransitive(t *testing.T) {
	broker := testkit.Kafka(t)
	reg, err := sr.NewClient(sr.URLs(testkit.Registry(t)))
	require.NoError(t, err)
	require.NoError(t, schemas.Register(t.Context(), reg, broker.Prefix, []string{"email"}))
	src, err := schemas.Source("event_tracked")
	require.NoError(t, err)
	var s map[string]any
	require.NoError(t, json.Unmarshal([]byte(src), &s))
	s["fields"] = append(s["fields"].([]any), map[string]any{"name": "without_default", "type": "string"})
	changed, err := json.Marshal(s)
	require.NoError(t, err)
	_, err = reg.CreateSchema(t.Context(), schemas.Subject(broker.Prefix+schemas.TopicEventTracked), sr.Schema{Schema: string(changed), Type: sr.TypeAvro})
	var re *sr.ResponseError
	require.ErrorAs(t, err, &re)
	require.Equal(t, 409, re.StatusCode)
}

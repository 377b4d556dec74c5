package schemas

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/linkedin/goavro/v2"
	"github.com/stretchr/testify/require"
	"github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"
	"pgregory.net/rapid"
)

func BenchmarkDecode(b *testing.B) {
	id := uuid.New()
	e := &Event{Kind: "track", EventID: id, TenantID: id, CellID: "cell-1", EventName: "invoice.paid", IdempotencyKey: "invoice-889",
		BodyHash: make([]byte, 32), OccurredAt: time.Now(), ReceivedAt: time.Now(), CorrelationID: id.String(), Identifiers: `{"external_id":"c-1"}`,
		Payload: `{"total":1,"note":"` + strings.Repeat("mesa silla ", 20) + `"}`}
	s, err := Source("event")
	require.NoError(b, err)
	codec, err := avro.Parse(s)
	require.NoError(b, err)
	data := e.appendAvro(nil)
	b.Run("ByHand", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var got Event
			_, _ = got.readAvro(data)
		}
	})
	b.Run("ByReflection", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var got Event
			_, _ = codec.Decode(data, &got)
		}
	})
}

func newTestCodec(t *testing.T) *Codec {
	t.Helper()
	reg := srfake.New()
	t.Cleanup(reg.Close)
	cl, err := sr.NewClient(sr.URLs(reg.URL()))
	require.NoError(t, err)
	c, err := NewCodec(cl, "t1.")
	require.NoError(t, err)
	return c
}

// example fills every field of a record with a value of its kind.
func example(t *rapid.T, typ reflect.Type) reflect.Value {
	v := reflect.New(typ).Elem()
	for i := range typ.NumField() {
		v.Field(i).Set(drawField(t, typ.Field(i).Name, typ.Field(i).Type))
	}
	return v
}

func drawField(t *rapid.T, name string, typ reflect.Type) reflect.Value {
	switch typ {
	case reflect.TypeFor[uuid.UUID]():
		return reflect.ValueOf(uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, name)))
	case reflect.TypeFor[time.Time]():
		return reflect.ValueOf(time.UnixMicro(rapid.Int64Range(0, 1<<52).Draw(t, name)).UTC())
	case reflect.TypeFor[[]byte]():
		return reflect.ValueOf(rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(t, name))
	case reflect.TypeFor[[]uuid.UUID]():
		return reflect.ValueOf([]uuid.UUID{uuid.New(), uuid.New()})
	}
	switch typ.Kind() {
	case reflect.Pointer:
		if rapid.Bool().Draw(t, name+" is null") {
			return reflect.Zero(typ)
		}
		p := reflect.New(typ.Elem())
		p.Elem().Set(drawField(t, name, typ.Elem()))
		return p
	case reflect.String:
		return reflect.ValueOf(rapid.String().Draw(t, name))
	case reflect.Int32:
		return reflect.ValueOf(rapid.Int32().Draw(t, name))
	case reflect.Int64:
		return reflect.ValueOf(rapid.Int64().Draw(t, name))
	case reflect.Bool:
		return reflect.ValueOf(rapid.Bool().Draw(t, name))
	}
	panic("no generator for " + typ.String())
}

var recordTypes = map[string]reflect.Type{
	TopicEvents:                           reflect.TypeFor[Event](),
	TopicEventTracked:                     reflect.TypeFor[EventTracked](),
	TopicContact:                          reflect.TypeFor[ContactChanged](),
	TopicRequestedMarketing:               reflect.TypeFor[NotificationRequested](),
	RailTopic("email", RailTransactional): reflect.TypeFor[SendJob](),
	RailTopic("email", RailMarketing):     reflect.TypeFor[SendBatch](),
	TopicProviderEvents:                   reflect.TypeFor[ProviderEvent](),
	TopicMessage:                          reflect.TypeFor[MessageStatusChanged](),
}

func TestCodecRoundTripsEveryRecordAndAgreesWithGoavro(t *testing.T) {
	c := newTestCodec(t)
	for topic, typ := range recordTypes {
		t.Run(topic, func(t *testing.T) {
			name, ok := schemaOf(topic)
			require.True(t, ok)
			src, err := Source(name)
			require.NoError(t, err)
			other, err := goavro.NewCodec(src)
			require.NoError(t, err)
			rapid.Check(t, func(rt *rapid.T) {
				in := example(rt, typ)
				data, err := c.Encode(t.Context(), nil, topic, in.Addr().Interface())
				require.NoError(rt, err)
				out := reflect.New(typ)
				require.NoError(rt, c.Decode(t.Context(), topic, data, out.Interface()))
				require.Equal(rt, in.Interface(), out.Elem().Interface())

				native, rest, err := other.NativeFromBinary(data[headerLen:])
				require.NoError(rt, err)
				require.Empty(rt, rest)
				again, err := other.BinaryFromNative(nil, native)
				require.NoError(rt, err)
				require.Equal(rt, data[headerLen:], again)
			})
		})
	}
}

func TestEveryTopicHasASchemaThatParses(t *testing.T) {
	for _, topic := range Topics([]string{"email", "sms"}) {
		name, ok := schemaOf(topic.Name)
		require.True(t, ok, topic.Name)
		require.Equal(t, topic.Schema, name)
	}
}

func TestDecode(t *testing.T) {
	c := newTestCodec(t)
	good, err := c.Encode(t.Context(), nil, TopicProviderEvents, &ProviderEvent{Provider: "resend", Body: []byte("{}"), ReceivedAt: time.Now()})
	require.NoError(t, err)
	foreign, err := c.Encode(t.Context(), nil, TopicMessage, &MessageStatusChanged{})
	require.NoError(t, err)

	for name, data := range map[string][]byte{ // faults F14
		"Empty":         {},
		"BadMagic":      append([]byte{1}, good[1:]...),
		"UnknownID":     append([]byte{0, 0, 0, 99, 99}, good[5:]...),
		"Truncated":     good[:len(good)-3],
		"TrailingBytes": append(append([]byte{}, good...), 7),
		"AnotherRecord": foreign,
		"RandomBytes":   []byte("\x00\x00\x00\x00\x01 not avro at all"),
	} {
		t.Run("RefusesAsMalformedWhen"+name, func(t *testing.T) {
			var out ProviderEvent
			require.ErrorIs(t, c.Decode(t.Context(), TopicProviderEvents, data, &out), ErrMalformed)
		})
	}
}

func TestRegistryAwayIsNotMalformed(t *testing.T) { // faults F16
	var down bool
	reg := srfake.New()
	t.Cleanup(reg.Close)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down {
			http.Error(w, "no", http.StatusServiceUnavailable)
			return
		}
		reg.Handler().ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	cl, err := sr.NewClient(sr.URLs(front.URL))
	require.NoError(t, err)
	writer, err := NewCodec(cl, "")
	require.NoError(t, err)
	data, err := writer.Encode(context.Background(), nil, TopicProviderEvents, &ProviderEvent{Provider: "resend"})
	require.NoError(t, err)

	down = true
	reader, err := NewCodec(cl, "")
	require.NoError(t, err)
	var out ProviderEvent
	err = reader.Decode(t.Context(), TopicProviderEvents, data, &out)
	require.ErrorIs(t, err, ErrRegistryAway)
	require.NotErrorIs(t, err, ErrMalformed)
	_, err = writer.Encode(t.Context(), nil, TopicProviderEvents, &out)
	require.NoError(t, err, "a known schema goes on")

	down = false
	require.NoError(t, reader.Decode(t.Context(), TopicProviderEvents, data, &out), "the failure to ask was not remembered")
	require.Equal(t, "resend", out.Provider)
}

// A registration that is not found is no fault of the record's: a registry may
// say so while another subject of the same content goes.
func TestARegistrationThatIsNotFoundIsRepeated(t *testing.T) {
	t.Parallel()
	var misses atomic.Int32
	reg := srfake.New()
	t.Cleanup(reg.Close)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && misses.Add(-1) >= 0 {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"error_code":404,"message":"No artifact with that ID"}`))
			return
		}
		reg.Handler().ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	cl, err := sr.NewClient(sr.URLs(front.URL))
	require.NoError(t, err)
	misses.Store(2)
	require.NoError(t, Register(t.Context(), cl, "", []string{"email"}))
	misses.Store(1000)
	c, err := NewCodec(cl, "other.")
	require.NoError(t, err)
	_, err = c.Encode(t.Context(), nil, TopicProviderEvents, &ProviderEvent{Provider: "resend"})
	require.ErrorIs(t, err, ErrRegistryAway)
	require.NotErrorIs(t, err, ErrMalformed)
}

// What is written by hand is what the codec writes, to the byte.
func TestHandWrittenRecords(t *testing.T) {
	t.Parallel()
	c := newTestCodec(t)
	for _, hot := range []struct {
		topic string
		typ   reflect.Type
	}{{TopicEvents, reflect.TypeFor[Event]()}, {TopicEventTracked, reflect.TypeFor[EventTracked]()}, {TopicContact, reflect.TypeFor[ContactChanged]()},
		{TopicProviderEvents, reflect.TypeFor[ProviderEvent]()}, {TopicMessage, reflect.TypeFor[MessageStatusChanged]()}} {
		t.Run(hot.typ.Name(), rapid.MakeCheck(func(t *rapid.T) {
			v := reflect.New(hot.typ)
			v.Elem().Set(example(t, hot.typ))
			w, err := c.writer(context.Background(), hot.topic)
			require.NoError(t, err)
			want, err := w.schema.AppendEncode([]byte("before"), v.Interface())
			require.NoError(t, err)
			hand, ok := v.Interface().(interface{ appendAvro(b []byte) []byte })
			require.True(t, ok)
			require.Equal(t, want, hand.appendAvro([]byte("before")))
		}))
	}
}

// What is read by hand is what the codec reads, and broken bytes are refused.
func TestRecordsReadByHand(t *testing.T) {
	t.Parallel()
	c := newTestCodec(t)
	for topic, typ := range map[string]reflect.Type{TopicEvents: reflect.TypeFor[Event](), TopicEventTracked: reflect.TypeFor[EventTracked](),
		TopicProviderEvents: reflect.TypeFor[ProviderEvent](), TopicMessage: reflect.TypeFor[MessageStatusChanged]()} {
		t.Run(typ.Name(), rapid.MakeCheck(func(t *rapid.T) {
			w, err := c.writer(context.Background(), topic)
			require.NoError(t, err)
			v := reflect.New(typ)
			v.Elem().Set(example(t, typ))
			data, err := w.schema.AppendEncode(nil, v.Interface())
			require.NoError(t, err)
			read := func(data []byte) (byCodec, byHand any, codecErr, handErr error) {
				x, y := reflect.New(typ), reflect.New(typ)
				y.Elem().Set(example(t, typ)) // nothing of it may stay
				hand, ok := y.Interface().(hotReader)
				require.True(t, ok)
				_, codecErr = w.schema.Decode(data, x.Interface())
				_, handErr = hand.readAvro(data)
				return x.Interface(), y.Interface(), codecErr, handErr
			}
			want, got, _, err := read(data)
			require.NoError(t, err)
			require.Equal(t, want, got)

			_, _, _, err = read(data[:rapid.IntRange(0, len(data)-1).Draw(t, "cut")])
			require.Error(t, err)

			broken := bytes.Clone(data)
			broken[rapid.IntRange(0, len(data)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
			if want, got, codecErr, err := read(broken); codecErr == nil && err == nil {
				require.Equal(t, want, got)
			} else if err == nil {
				require.NoError(t, codecErr)
			}
		}))
	}
}

// An older writer's records are resolved, those of our own schema need not be,
// however the registry lays it out.
func TestSameSchema(t *testing.T) {
	t.Parallel()
	ours, err := Source("event")
	require.NoError(t, err)
	var compact bytes.Buffer
	require.NoError(t, json.Compact(&compact, []byte(ours)))
	require.True(t, sameSchema(ours, compact.String()))
	require.False(t, sameSchema(ours, strings.Replace(ours, "timestamp-micros", "timestamp-millis", 1)))
	require.False(t, sameSchema(ours, "{"))
}

func BenchmarkEncode(b *testing.B) {
	e := &Event{Kind: "track", EventID: uuid.New(), TenantID: uuid.New(), CellID: "cell-1", EventName: "invoice.paid", IdempotencyKey: "invoice-889",
		BodyHash: make([]byte, 32), OccurredAt: time.Now(), ReceivedAt: time.Now(), CorrelationID: uuid.NewString(), Identifiers: `{"external_id":"c-1"}`, Payload: `{"total":1}`}
	s, err := Source("event")
	require.NoError(b, err)
	codec, err := avro.Parse(s)
	require.NoError(b, err)
	var buf []byte
	b.Run("ByHand", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buf = e.appendAvro(buf[:0])
		}
	})
	b.Run("ByReflection", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buf, _ = codec.AppendEncode(buf[:0], e)
		}
	})
}

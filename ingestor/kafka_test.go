package ingestor

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/ids"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/schemas"
)

// rig is a front whose queue is a broker in this process.
type rig struct {
	*front
	cluster *kfake.Cluster
	broker  *testkit.Proxy // between the producer and the broker
	client  *kgo.Client    // the producer
	codec   *schemas.Codec
	cfg     kafka.Config
}

func newRig(t *testing.T, cfg Config, producer ProducerConfig) *rig {
	t.Helper()
	fill(&cfg.EnqueueTimeout, 30*time.Second) // a busy machine is not what these tests are about
	r := &rig{}
	var err error
	r.cluster, err = kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(4, "t."+schemas.TopicEvents), kfake.SeedTopics(2, "t."+schemas.TopicEventsHistorical, "t."+schemas.TopicRequestedTransactional, "t."+schemas.TopicRequestedMarketing))
	require.NoError(t, err)
	t.Cleanup(r.cluster.Close)
	r.broker = testkit.NewProxy(t, r.cluster.ListenAddrs()[0])
	r.cfg = kafka.Config{Brokers: r.cluster.ListenAddrs(), Prefix: "t."}
	client, err := r.cfg.NewProducer(append(producer.Opts(), kgo.Dialer(r.broker.Dial))...)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	r.client, r.codec = client, newCodec(t, "")
	require.NoError(t, r.codec.Warm(t.Context(), schemas.TopicEvents, schemas.TopicEventsHistorical,
		schemas.TopicRequestedTransactional, schemas.TopicRequestedMarketing))
	queue := NewKafka(r.cfg, client, r.codec)
	r.front = newFront(t, cfg, httpserver.Config{}, func(d *Deps) { d.Queue, d.Requests = queue, queue })
	return r
}

func newCodec(t testing.TB, url string) *schemas.Codec {
	t.Helper()
	if url == "" {
		reg := srfake.New()
		t.Cleanup(reg.Close)
		url = reg.URL()
	}
	cl, err := sr.NewClient(sr.URLs(url))
	require.NoError(t, err)
	c, err := schemas.NewCodec(cl, "t.")
	require.NoError(t, err)
	return c
}

// read gives the first n records of a topic.
func (r *rig) read(t *testing.T, topic string, n int) []*kgo.Record {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.cluster.ListenAddrs()...), kgo.ConsumeTopics("t."+topic))
	require.NoError(t, err)
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out []*kgo.Record
	for len(out) < n {
		fetches := cl.PollFetches(ctx)
		require.NoError(t, fetches.Err())
		out = append(out, fetches.Records()...)
	}
	return out
}

func (r *rig) decode(t *testing.T, topic string, rec *kgo.Record) schemas.Event {
	t.Helper()
	var ev schemas.Event
	require.NoError(t, r.codec.Decode(t.Context(), topic, rec.Value, &ev))
	return ev
}

func TestKafka(t *testing.T) {
	t.Parallel()
	t.Run("HasWhatWasSent", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, Config{}, ProducerConfig{})
		const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		resp, _ := r.post(t, trackPath, `{"correlation_id":"corr-1",`+track("k-1")[1:], "traceparent", trace)
		require.Equal(t, http.StatusAccepted, resp.StatusCode)
		rec := r.read(t, schemas.TopicEvents, 1)[0]
		id := ids.Event(tenantID, "k-1")
		require.Equal(t, tenantID.String(), string(rec.Key))
		headers := map[string]string{}
		for _, h := range rec.Headers {
			headers[h.Key] = string(h.Value)
		}
		require.Equal(t, map[string]string{
			"ce_specversion": "1.0", "ce_id": id.String(), "ce_type": "core.event.accepted", "ce_source": kafka.Source(tenantID),
			"ce_time": "2026-11-01T06:30:00.5Z", "ce_subject": "invoice.paid", "content-type": "application/avro",
			"correlation_id": "corr-1", "traceparent": trace,
		}, headers)
		requireSameHeaders(t, rec)
		ev := r.decode(t, schemas.TopicEvents, rec)
		require.Equal(t, `{"total":12.50}`, ev.Payload)
		require.Equal(t, `{"external_id":"c-1"}`, ev.Identifiers)
		require.Equal(t, id, ev.EventID)
		require.Len(t, ev.BodyHash, 32)
		require.Equal(t, resp.Header.Get(httpserver.RequestIDHeader), *ev.RequestID)
	})
	t.Run("HasImportsOnTheirOwnTopic", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, Config{}, ProducerConfig{})
		old := func(key string) string { return `{"historical":true,` + item(key)[1:] }
		resp, _ := r.post(t, batchPath, batchOf(old("a"), old("b")))
		require.Equal(t, http.StatusAccepted, resp.StatusCode)
		recs := r.read(t, schemas.TopicEventsHistorical, 2)
		require.Equal(t, []string{"a", "b"}, []string{r.decode(t, schemas.TopicEventsHistorical, recs[0]).IdempotencyKey, r.decode(t, schemas.TopicEventsHistorical, recs[1]).IdempotencyKey})
		resp, body := r.post(t, batchPath, batchOf(old("a"), item("c")))
		requireProblem(t, resp, body, http.StatusUnprocessableEntity, "mixed_historical")
	})
	t.Run("KeepsATenantsOrder", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, Config{}, ProducerConfig{})
		resp, _ := r.post(t, batchPath, batchOf(items(500)...))
		require.Equal(t, http.StatusAccepted, resp.StatusCode)
		recs := r.read(t, schemas.TopicEvents, 500)
		for i, rec := range recs {
			require.Equal(t, recs[0].Partition, rec.Partition)
			require.Equal(t, fmt.Sprintf("k-%d", i), r.decode(t, schemas.TopicEvents, rec).IdempotencyKey)
		}
	})
	t.Run("HasEveryRequestsOwnBytes", func(t *testing.T) { // memory is used again from request to request
		t.Parallel()
		r := newRig(t, Config{}, ProducerConfig{})
		const clients, each = 16, 40
		var wg sync.WaitGroup
		for c := range clients {
			wg.Go(func() {
				tr := &http.Transport{}
				defer tr.CloseIdleConnections()
				for i := range each {
					key := fmt.Sprintf("c%d-%d", c, i)
					body := strings.Replace(track(key), "12.50", `"`+strings.Repeat(key, 1+i%20)+`"`, 1)
					req, _ := http.NewRequest(http.MethodPost, "http://"+r.addr+trackPath, strings.NewReader(body))
					req.Header = http.Header{"Authorization": {"Bearer " + goodKey}, "Content-Type": {"application/json"}}
					resp, err := (&http.Client{Transport: tr}).Do(req)
					if err != nil || resp.StatusCode != http.StatusAccepted {
						t.Errorf("%v %v", resp, err)
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
			})
		}
		wg.Wait()
		seen := map[string]bool{}
		for _, rec := range r.read(t, schemas.TopicEvents, clients*each) {
			ev := r.decode(t, schemas.TopicEvents, rec)
			var i int
			_, err := fmt.Sscanf(ev.IdempotencyKey[strings.Index(ev.IdempotencyKey, "-")+1:], "%d", &i)
			require.NoError(t, err)
			require.Equal(t, `{"total":"`+strings.Repeat(ev.IdempotencyKey, 1+i%20)+`"}`, ev.Payload)
			require.Equal(t, ev.EventID.String(), kafka.Header(rec, "ce_id"))
			seen[ev.IdempotencyKey] = true
		}
		require.Len(t, seen, clients*each)
	})
}

// requireSameHeaders holds the front door's headers against everybody else's.
func requireSameHeaders(t *testing.T, rec *kgo.Record) {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, kafka.Header(rec, "ce_time"))
	require.NoError(t, err)
	want := kafka.Event{ID: kafka.Header(rec, "ce_id"), Type: EventType, Source: kafka.Source(tenantID), Subject: kafka.Header(rec, "ce_subject"),
		Time: at, CorrelationID: kafka.Header(rec, "correlation_id"), TraceParent: kafka.Header(rec, "traceparent")}.Headers()
	require.ElementsMatch(t, want, rec.Headers)
}

func TestFlightIsCleanWhenItIsUsedAgain(t *testing.T) {
	t.Parallel()
	var pool sync.Pool
	f := newFlight(&pool)
	f.add("topic", []byte("value"), &Record{Event: &schemas.Event{}})
	f.board(2)
	f.leave() // the request did not wait
	f.promise(nil, io.EOF)
	require.NotNil(t, f.failed.Load())
	require.Len(t, f.records, 1, "the client may still read them")
	f.promise(nil, nil)
	require.Nil(t, f.failed.Load())
	require.Empty(t, f.landed)
	require.Empty(t, f.records)
	require.Empty(t, f.bytes)
	f.board(1)
	f.promise(nil, nil)
	require.Len(t, f.landed, 1)
}

func TestAcknowledgement(t *testing.T) { // faults P1
	t.Parallel()
	t.Run("IsAskedOfAllReplicasAndWaitedFor", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, Config{}, ProducerConfig{})
		arrived, release := make(chan *kmsg.ProduceRequest, 1), make(chan struct{})
		r.cluster.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
			arrived <- req.(*kmsg.ProduceRequest)
			r.cluster.SleepControl(func() { <-release })
			return nil, nil, false
		})
		answered := make(chan int, 1)
		go func() { answered <- r.status(trackPath, track("x")) }()
		produce := <-arrived
		require.EqualValues(t, -1, produce.Acks)
		select {
		case status := <-answered:
			require.Fail(t, "answered before the acknowledgement", "%d", status)
		case <-time.After(100 * time.Millisecond): // absence can only be waited for
		}
		close(release)
		require.Equal(t, http.StatusAccepted, <-answered)
	})
	t.Run("ThatComesTooLateIsA503AndTheRetryHasTheSameID", func(t *testing.T) { // faults F9, L2
		t.Parallel()
		r := newRig(t, Config{EnqueueTimeout: 100 * time.Millisecond}, ProducerConfig{})
		release := make(chan struct{})
		r.cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
			r.cluster.SleepControl(func() { <-release })
			return nil, nil, false
		})
		resp, body := r.post(t, trackPath, track("x"))
		requireProblem(t, resp, body, http.StatusServiceUnavailable, "queue_unavailable")
		require.InDelta(t, 1, failures(r, EnqueueDeadline), 0)
		close(release)
		require.Eventually(t, func() bool {
			resp, body = r.post(t, trackPath, track("x"))
			return resp.StatusCode == http.StatusAccepted
		}, waitFor, time.Millisecond)
		require.Contains(t, body, ids.Event(tenantID, "x").String())
		for _, rec := range r.read(t, schemas.TopicEvents, 2) {
			require.Equal(t, ids.Event(tenantID, "x").String(), kafka.Header(rec, "ce_id"))
		}
	})
}

func TestBrokerTrouble(t *testing.T) {
	t.Parallel()
	t.Run("IsA503WithinTwoSecondsAndHeals", func(t *testing.T) { // faults P8, F7
		t.Parallel()
		r := newRig(t, Config{EnqueueTimeout: Config{}.withDefaults().EnqueueTimeout}, ProducerConfig{})
		require.Equal(t, 2*time.Second, r.api.cfg.EnqueueTimeout)
		require.Eventually(t, func() bool {
			resp, _ := r.post(t, trackPath, track("before"))
			return resp.StatusCode == http.StatusAccepted
		}, waitFor, 10*time.Millisecond)
		r.broker.Refuse()
		r.broker.Reset()
		began := time.Now()
		resp, body := r.post(t, trackPath, track("during"))
		requireProblem(t, resp, body, http.StatusServiceUnavailable, "queue_unavailable")
		require.NotEmpty(t, resp.Header.Get("Retry-After"))
		require.Less(t, time.Since(began), 10*time.Second, "by the request's own deadline of 2 s, before the client gives up on its records")
		r.broker.Pass()
		require.Eventually(t, func() bool {
			resp, _ := r.post(t, trackPath, track("after"))
			return resp.StatusCode == http.StatusAccepted
		}, waitFor, 10*time.Millisecond)
	})
	t.Run("HoldsNoMoreThanTheBuffer", func(t *testing.T) { // faults F9, P13
		t.Parallel()
		r := newRig(t, Config{EnqueueTimeout: 50 * time.Millisecond}, ProducerConfig{MaxRecords: 20})
		r.broker.Blackhole()
		for i := range 30 {
			resp, body := r.post(t, trackPath, track(fmt.Sprintf("k-%d", i)))
			requireProblem(t, resp, body, http.StatusServiceUnavailable, "queue_unavailable")
		}
		require.InDelta(t, 20, failures(r, EnqueueDeadline), 0)
		require.InDelta(t, 10, failures(r, EnqueueFull), 0)
		resp, body := r.post(t, batchPath, batchOf(items(5)...))
		requireProblem(t, resp, body, http.StatusServiceUnavailable, "queue_unavailable")
		r.broker.Reset()
		r.broker.Pass()
		require.Eventually(t, func() bool {
			resp, _ := r.post(t, trackPath, track("after"))
			return resp.StatusCode == http.StatusAccepted
		}, waitFor, 10*time.Millisecond)
	})
	t.Run("IsForgottenWithTheRequest", func(t *testing.T) {
		t.Parallel()
		// Three requests take less than what is forgotten after.
		r := newRig(t, Config{EnqueueTimeout: 50 * time.Millisecond}, ProducerConfig{Forget: 5 * time.Second, MaxRecords: 2})
		r.broker.Refuse()
		r.broker.Reset()
		for i := range 2 {
			resp, _ := r.post(t, trackPath, track(fmt.Sprintf("lost-%d", i)))
			require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		}
		r.post(t, trackPath, track("no-room"))
		require.InDelta(t, 1, failures(r, EnqueueFull), 0)
		require.Eventually(t, func() bool { // what was never sent makes room again
			full := failures(r, EnqueueFull)
			r.post(t, trackPath, track("next"))
			return failures(r, EnqueueFull) == full
		}, waitFor, 10*time.Millisecond)
	})
	for _, tc := range []struct {
		name   string
		code   *kerr.Error
		status int
		class  EnqueueClass
	}{ // faults F11
		{"NotLeaderIsTriedAgain", kerr.NotLeaderForPartition, http.StatusAccepted, ""},
		{"NotEnoughReplicasIsTriedAgain", kerr.NotEnoughReplicas, http.StatusAccepted, ""},
		{"MessageTooLargeIsA413", kerr.MessageTooLarge, http.StatusRequestEntityTooLarge, EnqueueTooLarge},
		{"AuthorizationIsA503", kerr.TopicAuthorizationFailed, http.StatusServiceUnavailable, EnqueueOther},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Config{}, ProducerConfig{})
			r.cluster.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
				return refuse(req.(*kmsg.ProduceRequest), tc.code.Code), nil, true
			})
			resp, body := r.post(t, trackPath, track("x"))
			require.Equal(t, tc.status, resp.StatusCode, body)
			if tc.class != "" {
				require.InDelta(t, 1, failures(r, tc.class), 0)
			}
		})
	}
	t.Run("AMissingTopicIsA503", func(t *testing.T) { // faults F11
		t.Parallel()
		r := newRig(t, Config{EnqueueTimeout: 10 * time.Second}, ProducerConfig{})
		client, err := kafka.Config{Brokers: r.cluster.ListenAddrs()}.NewProducer(ProducerConfig{}.Opts()...)
		require.NoError(t, err)
		defer client.Close()
		err = NewKafka(kafka.Config{Prefix: "nowhere."}, client, r.codec).Enqueue(t.Context(), []Record{{Event: &schemas.Event{TenantID: tenantID}}})
		require.Equal(t, EnqueueTopic, classOf(err))
	})
	t.Run("ARegistryThatWasNeverThereIsA503", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, Config{}, ProducerConfig{})
		client, err := r.cfg.NewProducer(ProducerConfig{}.Opts()...)
		require.NoError(t, err)
		defer client.Close()
		away := httptest.NewServer(http.NotFoundHandler())
		away.Close()
		codec := newCodec(t, away.URL)
		err = NewKafka(r.cfg, client, codec).Enqueue(t.Context(), []Record{{Event: &schemas.Event{TenantID: tenantID}}})
		require.Equal(t, EnqueueRegistry, classOf(err))
	})
	t.Run("ACallerWhoHangsUpIsNotTheQueuesFault", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, Config{}, ProducerConfig{})
		r.broker.Blackhole()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			for r.client.BufferedProduceRecords() == 0 && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.addr+trackPath, strings.NewReader(track("x")))
		require.NoError(t, err)
		req.Header = http.Header{"Authorization": {"Bearer " + goodKey}, "Content-Type": {"application/json"}}
		tr := &http.Transport{}
		defer tr.CloseIdleConnections()
		_, err = (&http.Client{Transport: tr}).Do(req)
		require.ErrorIs(t, err, context.Canceled)
		require.Eventually(t, func() bool { return failures(r, EnqueueGone) == 1 }, waitFor, time.Millisecond)
		require.NotContains(t, r.logs.String(), "takes no events")
	})
}

// refuse answers a produce request with one code for all of it.
func refuse(req *kmsg.ProduceRequest, code int16) *kmsg.ProduceResponse {
	resp := req.ResponseKind().(*kmsg.ProduceResponse)
	for _, t := range req.Topics {
		st := kmsg.NewProduceResponseTopic()
		st.Topic, st.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			sp := kmsg.NewProduceResponseTopicPartition()
			sp.Partition, sp.ErrorCode = p.Partition, code
			st.Partitions = append(st.Partitions, sp)
		}
		resp.Topics = append(resp.Topics, st)
	}
	return resp
}

func failures(r *rig, class EnqueueClass) float64 {
	families, err := r.reg.Gather()
	if err != nil {
		return -1
	}
	for _, f := range families {
		if f.GetName() != "carril_ingest_enqueue_failures_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == string(class) {
				return m.GetCounter().GetValue()
			}
		}
	}
	return -1
}

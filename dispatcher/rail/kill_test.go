package rail_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/softcrum/carril/dispatcher/bucket"
	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/rail"
	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/internal/kafka"
	"github.com/softcrum/carril/internal/outbox"
	"github.com/softcrum/carril/internal/ratelimit"
	"github.com/softcrum/carril/internal/testkit"
	"github.com/softcrum/carril/schemas"
)

// envChild makes the test binary a rail worker that kills itself.
const envChild = "CARRIL_RAIL_TEST_CHILD"

// child is what a worker process of the test is told.
type child struct {
	Brokers                    []string
	Prefix, Postgres, Registry string
	Redis, RedisPrefix         string
	Provider                   string // address of the provider in the parent
	Keys                       bool
	Rail                       string
	Point                      rail.Point // where it dies; "": nowhere
	Nth                        int32      // at its n-th arrival there
}

// TestKill (F3, I18, I57) kills a worker process at every step of a job and
// starts another: each message reaches its person once, under one key.
func TestKill(t *testing.T) {
	t.Parallel()
	for _, point := range []rail.Point{rail.PointToken, rail.PointClaimed, rail.PointAnswered, rail.PointWritten} {
		for _, first := range []string{"taken", "lost", "refused"} {
			t.Run(fmt.Sprintf("At%sAfterA%sRequest", point, first), func(t *testing.T) {
				t.Parallel()
				b := newBench(t)
				b.sweep()
				b.fake.set(func(n int, r provider.Request) (provider.Result, error) {
					if n%3 == 1 {
						switch first {
						case "lost":
							return b.fake.takenButLost(r)
						case "refused":
							return provider.Result{}, &provider.Error{Class: provider.ClassRetryable, Status: 503, Code: "unavailable"}
						}
					}
					return b.fake.take(r)
				})
				addr := b.serveFake()
				all := b.enqueue(make([]job, 12)...)
				c := b.child(addr, true)
				c.Point, c.Nth = point, 4
				b.runUntilKilled(c)
				c.Point = ""
				stop := b.runChild(c)
				b.await(12, "sent")
				b.drained()
				stop()
				for _, id := range all {
					require.Equal(t, 1, b.fake.delivered(id), "exactly once in effect")
					h := b.history(id)
					require.Equal(t, map[string]int{"queued": 1, "sent": 1}, h)
				}
				if first != "refused" {
					for _, id := range all {
						require.Equal(t, 1, b.fake.keysOf(id))
					}
				}
				require.Zero(t, b.count(`SELECT count(*) FROM core.dead_letters`))
				require.Len(t, b.changes(12), 12)
			})
		}
	}

	// F3, D3 and D4, for a provider without keys
	t.Run("LeavesWhatMayHaveLeftToAPersonWithoutKeys", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.fake.caps.IdempotencyKeys = false
		b.sweep()
		addr := b.serveFake()
		b.enqueue(make([]job, 6)...)
		c := b.child(addr, false)
		c.Point, c.Nth = rail.PointAnswered, 3
		b.runUntilKilled(c)
		c.Point = ""
		stop := b.runChild(c)
		b.eventually("all are settled", func() bool {
			return b.count(`SELECT count(*) FROM core.processed_jobs WHERE id_time > now() - interval '1 day' AND state IN ('sent', 'needs_review') AND worker LIKE 'rail:%'`) == 6
		})
		stop()
		require.Empty(t, b.fake.twice(), "never an automatic repeat")
		require.Positive(t, b.count(`SELECT count(*) FROM core.processed_jobs WHERE id_time > now() - interval '1 day' AND state = 'needs_review'`))
	})

	t.Run("KeepsABatchTogether", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.sweep()
		addr := b.serveFake()
		var all []uuid.UUID
		for range 4 {
			_, ids := b.enqueueBatch(b.tenant, 10, nil)
			all = append(all, ids...)
		}
		c := b.child(addr, true)
		c.Rail, c.Point, c.Nth = schemas.RailMarketing, rail.PointAnswered, 2
		b.runUntilKilled(c)
		c.Point = ""
		stop := b.runChild(c)
		b.await(4, "sent")
		stop()
		for _, id := range all {
			require.Equal(t, 1, b.fake.delivered(id))
			require.Equal(t, 1, b.fake.keysOf(id))
		}
	})
}

func (b *bench) child(addr string, keys bool) child {
	return child{Brokers: b.kafka.Brokers, Prefix: b.kafka.Prefix, Postgres: b.pool.Config().ConnString(), Registry: testkit.Registry(b.t),
		Redis: b.redisURL, RedisPrefix: b.prefix, Provider: addr, Keys: keys, Rail: schemas.RailTransactional}
}

func (b *bench) command(c child) *exec.Cmd {
	b.t.Helper()
	raw, err := json.Marshal(c)
	require.NoError(b.t, err)
	exe, err := os.Executable()
	require.NoError(b.t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), envChild+"="+string(raw))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// runUntilKilled waits until the process has killed itself, or the test is void.
func (b *bench) runUntilKilled(c child) {
	b.t.Helper()
	cmd := b.command(c)
	require.NoError(b.t, cmd.Start())
	kill := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer kill.Stop()
	err := cmd.Wait()
	var exit *exec.ExitError
	require.ErrorAs(b.t, err, &exit)
	require.Equal(b.t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal(), "it died of something else")
}

func (b *bench) runChild(c child) (stop func()) {
	b.t.Helper()
	cmd := b.command(c)
	require.NoError(b.t, cmd.Start())
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait()
		}
	}
	b.t.Cleanup(stop)
	return stop
}

// serveFake is the fake provider for another process.
func (b *bench) serveFake() string {
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		res, err := b.fake.Send(r.Context(), provider.Request{Frozen: provider.Frozen{Endpoint: r.URL.Path, Body: body}, IdempotencyKey: r.Header.Get("Idempotency-Key")})
		var out wire
		out.Result = res
		if err != nil {
			_ = errors.As(err, &out.Err)
		}
		_ = json.NewEncoder(rw).Encode(out)
	}))
	b.t.Cleanup(srv.Close)
	return srv.URL
}

type wire struct {
	Result provider.Result
	Err    *provider.Error
}

// remote is the fake provider as another process sees it.
type remote struct {
	*fake
	addr string
}

func (p remote) Send(ctx context.Context, r provider.Request) (provider.Result, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.addr, bytes.NewReader(r.Body))
	if err != nil {
		return provider.Result{}, err
	}
	req.Header.Set("Idempotency-Key", r.IdempotencyKey)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return provider.Result{}, &provider.Error{Class: provider.ClassUncertain, Code: "no_answer", Err: err}
	}
	defer resp.Body.Close()
	var out wire
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		return provider.Result{}, &provider.Error{Class: provider.ClassUncertain, Code: "no_answer", Err: err}
	}
	if out.Err != nil {
		return out.Result, out.Err
	}
	return out.Result, nil
}

// runAsChild is a worker process: it works until SIGTERM, or until it reaches
// the point where it dies.
func runAsChild(raw string) error {
	var c child
	if err := json.Unmarshal([]byte(raw), &c); err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	pool, err := pgxpool.New(ctx, c.Postgres)
	if err != nil {
		return err
	}
	defer pool.Close()
	k := kafka.Config{Brokers: c.Brokers, Prefix: c.Prefix, SingleNode: true}
	producer, err := k.NewProducer()
	if err != nil {
		return err
	}
	defer producer.Close()
	reg, err := sr.NewClient(sr.URLs(c.Registry))
	if err != nil {
		return err
	}
	codec, err := schemas.NewCodec(reg, c.Prefix)
	if err != nil {
		return err
	}
	p := remote{newFake(), c.Provider}
	p.caps.IdempotencyKeys = c.Keys
	store, err := sends.New(sends.Config{Channel: "email", Rail: c.Rail, Provider: "fake"}, sends.Deps{Pool: pool, Codec: codec, Providers: map[string]provider.Provider{"fake": p}})
	if err != nil {
		return err
	}
	rdb, err := ratelimit.Open(c.Redis)
	if err != nil {
		return err
	}
	defer rdb.Close()
	limiter, err := bucket.New(bucket.Config{Prefix: c.RedisPrefix, Asker: fmt.Sprint("child", os.Getpid()), Budget: time.Second, Providers: map[string]bucket.Stated{"fake": {RatePerSecond: 100_000}}}, bucket.Deps{Redis: rdb})
	if err != nil {
		return err
	}
	var seen atomic.Int32
	hook := func(at rail.Point) {
		if at == c.Point && seen.Add(1) == c.Nth {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // nothing more happens in this goroutine
		}
	}
	w, err := rail.New(rail.Config{Channel: "email", Rail: c.Rail, InstanceID: "child-" + c.Rail, Concurrency: 2, Backoff: 20 * time.Millisecond, SlotLife: time.Second},
		rail.Deps{Kafka: k, Pool: pool, Store: store, Codec: codec, Limiter: limiter, Sink: outbox.ClientSink{Client: producer}, Yield: neverYield{}, Hook: hook})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

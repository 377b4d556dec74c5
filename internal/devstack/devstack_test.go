package devstack_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
	"go.uber.org/goleak"

	"github.com/softcrum/carril/internal/devstack"
)

// programEnv makes the test binary a program that runs a stack on the data
// folder in it, so that a test can kill it.
const programEnv = "CARRIL_DEVSTACK_TEST_PROGRAM"

func TestMain(m *testing.M) {
	devstack.RunChildIfAsked()
	if dir := os.Getenv(programEnv); dir != "" {
		runProgram(dir)
	}
	goleak.VerifyTestMain(m)
}

// addresses is what the program prints once its stack is up.
type addresses struct {
	Kafka    []string
	Registry string
	Postgres string
	Redis    string
	Storage  string
}

func runProgram(dir string) {
	s, err := devstack.Start(context.Background(), devstack.Config{Dir: dir})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = json.NewEncoder(os.Stdout).Encode(addressesOf(s))
	select {}
}

func addressesOf(s *devstack.Stack) addresses {
	return addresses{s.KafkaBrokers, s.RegistryURL, s.PostgresURL, s.RedisURL, s.StorageURL}
}

// startProgram runs the program and returns it with its addresses.
func startProgram(t *testing.T, dir string) (*exec.Cmd, addresses) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), programEnv+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadBytes('\n')
	require.NoError(t, err, "the program did not print its addresses")
	var a addresses
	require.NoError(t, json.Unmarshal(line, &a))
	return cmd, a
}

// reachableDir is a data folder that the user who runs PostgreSQL can enter.
func reachableDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "carril-devstack-test-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o711))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func start(t *testing.T, cfg devstack.Config) *devstack.Stack {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	s, err := devstack.Start(ctx, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop(context.Background())) })
	return s
}

const userSchema = `{"type":"record","name":"User","namespace":"carril.test","fields":[{"name":"id","type":"string"}]}`

// fill writes one thing into every part and returns the schema's id.
func fill(t *testing.T, a addresses) int {
	t.Helper()
	ctx := t.Context()
	client, err := kgo.NewClient(kgo.SeedBrokers(a.Kafka...), kgo.DefaultProduceTopic("kept"))
	require.NoError(t, err)
	defer client.Close()
	_, err = kadm.NewClient(client).CreateTopic(ctx, 3, -1, nil, "kept")
	require.NoError(t, err)
	require.NoError(t, client.ProduceSync(ctx, kgo.StringRecord("kept record")).FirstErr())

	registry, err := sr.NewClient(sr.URLs(a.Registry))
	require.NoError(t, err)
	_, err = registry.CreateSchema(ctx, "other-value", sr.Schema{Schema: `{"type":"string"}`})
	require.NoError(t, err)
	schema, err := registry.CreateSchema(ctx, "kept-value", sr.Schema{Schema: userSchema})
	require.NoError(t, err)

	conn, err := pgx.Connect(ctx, a.Postgres)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, "create table kept as select 'kept row' as v")
	require.NoError(t, err)

	require.NoError(t, os.WriteFile(filepath.Join(strings.TrimPrefix(a.Storage, "file://"), "kept"), nil, 0o600))
	return schema.ID
}

// requireFilled checks that what fill wrote is there.
func requireFilled(t *testing.T, a addresses, schemaID int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(a.Kafka...), kgo.ConsumeTopics("kept"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(t, err)
	defer client.Close()
	fetches := client.PollFetches(ctx)
	require.NoError(t, fetches.Err())
	require.Equal(t, "kept record", string(fetches.Records()[0].Value))

	registry, err := sr.NewClient(sr.URLs(a.Registry))
	require.NoError(t, err)
	schema, err := registry.SchemaByID(ctx, schemaID)
	require.NoError(t, err)
	require.JSONEq(t, userSchema, schema.Schema)
	again, err := registry.CreateSchema(ctx, "kept-value", sr.Schema{Schema: userSchema})
	require.NoError(t, err)
	require.Equal(t, schemaID, again.ID)

	conn, err := pgx.Connect(ctx, a.Postgres)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(ctx))
	var v string
	require.NoError(t, conn.QueryRow(ctx, "select v from kept").Scan(&v))
	require.Equal(t, "kept row", v)

	require.FileExists(t, filepath.Join(strings.TrimPrefix(a.Storage, "file://"), "kept"))
}

func requireRedis(t *testing.T, url string) {
	t.Helper()
	opts, err := redis.ParseURL(url)
	require.NoError(t, err)
	client := redis.NewClient(opts)
	defer client.Close()
	require.NoError(t, client.Ping(t.Context()).Err())
}

func TestStart(t *testing.T) {
	t.Parallel()

	t.Run("KeepsDataAndAddressesWhenTheParentIsKilled", func(t *testing.T) {
		t.Parallel()
		dir := reachableDir(t)
		program, first := startProgram(t, dir)
		id := fill(t, first)
		for range 2 {
			require.NoError(t, program.Process.Kill())
			_ = program.Wait()
			var again addresses
			program, again = startProgram(t, dir)
			require.Equal(t, first, again)
			requireFilled(t, again, id)
			requireRedis(t, again.Redis)
		}
	})

	t.Run("KeepsDataWhenStopped", func(t *testing.T) {
		t.Parallel()
		dir := reachableDir(t)
		s := start(t, devstack.Config{Dir: dir})
		first := addressesOf(s)
		id := fill(t, first)
		require.NoError(t, s.Stop(t.Context()))
		require.NoError(t, s.Stop(t.Context()), "a second Stop is harmless")
		s = start(t, devstack.Config{Dir: dir})
		require.Equal(t, first, addressesOf(s))
		requireFilled(t, first, id)
	})

	t.Run("RefusesADataFolderInUse", func(t *testing.T) {
		t.Parallel()
		dir := reachableDir(t)
		parts := []devstack.Part{devstack.Storage}
		start(t, devstack.Config{Dir: dir, Parts: parts})
		_, err := devstack.Start(t.Context(), devstack.Config{Dir: dir, Parts: parts})
		require.ErrorIs(t, err, devstack.ErrInUse)
		require.ErrorContains(t, err, dir)
	})

	t.Run("RunsNothingThatIsGiven", func(t *testing.T) {
		t.Parallel()
		cfg := devstack.Config{
			Dir: t.TempDir(), KafkaBrokers: []string{"kafka.example.com:9092"}, RegistryURL: "http://registry.example.com",
			PostgresURL: "postgres://db.example.com/carril", RedisURL: "redis://redis.example.com", StorageURL: "s3://bucket",
		}
		s := start(t, cfg)
		require.Empty(t, s.Embedded)
		require.Equal(t, addresses{cfg.KafkaBrokers, cfg.RegistryURL, cfg.PostgresURL, cfg.RedisURL, cfg.StorageURL}, addressesOf(s))
	})

	t.Run("SaysWhatItRuns", func(t *testing.T) {
		t.Parallel()
		s := start(t, devstack.Config{Ephemeral: true})
		require.Regexp(t, `^PostgreSQL \d+\.\d+, private cluster in /`, s.Embedded[devstack.Postgres])
		require.Len(t, s.Embedded, 5)
		require.Contains(t, s.Embedded[devstack.Kafka], "for this machine alone")
	})

	t.Run("LeavesNothingWhenEphemeral", func(t *testing.T) {
		t.Parallel()
		s := start(t, devstack.Config{Ephemeral: true, Parts: []devstack.Part{devstack.Storage}})
		dir := strings.TrimPrefix(s.StorageURL, "file://")
		require.DirExists(t, dir)
		require.NoError(t, s.Stop(t.Context()))
		require.NoDirExists(t, filepath.Dir(dir))
	})

	t.Run("RefusesToRunInsideItsOwnChild", func(t *testing.T) {
		t.Parallel()
		cmd := exec.Command(os.Args[0])
		// A main that does not know its child would start stacks for ever.
		cmd.Env = append(os.Environ(), programEnv+"="+t.TempDir(), "CARRIL_DEVSTACK_CHILD=unknown")
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), devstack.ErrNoChild.Error())
	})

	t.Run("NeedsAFolderUnlessEphemeral", func(t *testing.T) {
		t.Parallel()
		_, err := devstack.Start(t.Context(), devstack.Config{})
		require.ErrorContains(t, err, "data folder")
	})
}

func TestSupervision(t *testing.T) {
	t.Parallel()

	for _, part := range []devstack.Part{devstack.Kafka, devstack.Postgres} {
		t.Run("Restarts_"+string(part)+"_WhenItIsKilled", func(t *testing.T) {
			t.Parallel()
			s := start(t, devstack.Config{Dir: reachableDir(t), Log: slog.New(slog.DiscardHandler)})
			first := addressesOf(s)
			id := fill(t, first)
			pid := s.PID(part)
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			require.Eventually(t, func() bool { p := s.PID(part); return p != 0 && p != pid }, time.Minute, 10*time.Millisecond)
			requireFilled(t, first, id)
			require.Empty(t, s.Failed())
		})
	}
}

func TestAutoTopicCreation(t *testing.T) {
	t.Parallel()
	s := start(t, devstack.Config{Ephemeral: true, Parts: []devstack.Part{devstack.Kafka}})
	client, err := kgo.NewClient(kgo.SeedBrokers(s.KafkaBrokers...), kgo.AllowAutoTopicCreation(), kgo.UnknownTopicRetries(1))
	require.NoError(t, err)
	defer client.Close()
	err = client.ProduceSync(t.Context(), &kgo.Record{Topic: "never-made", Value: []byte("x")}).FirstErr()
	require.Error(t, err)
}

func TestRegistryOverHTTP(t *testing.T) {
	t.Parallel()
	s := start(t, devstack.Config{Ephemeral: true, Parts: []devstack.Part{devstack.Registry}})
	require.Empty(t, s.KafkaBrokers)
	resp, err := http.Get(s.RegistryURL + "/schemas/types")
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusOK, resp.StatusCode)
	http.DefaultClient.CloseIdleConnections()
}

package testkit_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/softcrum/carril/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Main(m, func() error { return goleak.Find() })
}

func TestPostgres(t *testing.T) {
	t.Parallel()

	t.Run("GivesEachTestAMigratedDatabaseOfItsOwn", func(t *testing.T) {
		t.Parallel()
		var wg sync.WaitGroup
		names := make([]string, 4)
		for i := range names {
			pool := testkit.Pool(t)
			wg.Go(func() {
				_, err := pool.Exec(t.Context(), "create table mine (v int)")
				if err == nil {
					err = pool.QueryRow(t.Context(), "select current_database() from pg_namespace where nspname = 'core'").Scan(&names[i])
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		seen := map[string]bool{}
		for _, name := range names {
			require.NotEmpty(t, name)
			require.False(t, seen[name], "%s was given twice", name)
			seen[name] = true
		}
	})

	t.Run("DropsTheDatabaseWhenTheTestIsOver", func(t *testing.T) {
		t.Parallel()
		var url string
		t.Run("inner", func(t *testing.T) {
			url = testkit.Postgres(t)
			conn, err := pgx.Connect(t.Context(), url)
			require.NoError(t, err, "it is there during the test")
			t.Cleanup(func() { _ = conn.Close(context.Background()) })
		})
		_, err := pgx.Connect(t.Context(), url)
		require.ErrorContains(t, err, "does not exist")
	})
}

func TestKafka(t *testing.T) {
	t.Parallel()
	topics := func(b testkit.Broker) []string {
		listed, err := kadm.NewClient(b.Client()).ListTopics(t.Context())
		require.NoError(t, err)
		return listed.Names()
	}
	var topic string
	keeper := testkit.Kafka(t)
	kept := keeper.CreateTopicWith("kept", 1, map[string]string{"cleanup.policy": "compact"})
	t.Run("inner", func(t *testing.T) {
		b := testkit.Kafka(t)
		topic = b.CreateTopic("events", 3)
		require.True(t, strings.HasPrefix(topic, b.Prefix))
		client := b.Client(kgo.DefaultProduceTopic(topic))
		require.NoError(t, client.ProduceSync(t.Context(), kgo.StringRecord("x")).FirstErr())
		require.Contains(t, topics(b), topic)
	})
	require.Eventually(t, func() bool { return !slices.Contains(topics(keeper), topic) }, 30*time.Second, 10*time.Millisecond, "a test's topics are deleted") // a broker hears of it later than who asked
	require.Contains(t, topics(keeper), kept, "another test's are not")
}

func TestRedis(t *testing.T) {
	t.Parallel()
	outer, _ := testkit.RedisClient(t)
	var key string
	t.Run("inner", func(t *testing.T) {
		client, prefix := testkit.RedisClient(t)
		key = prefix + "k"
		require.NoError(t, client.Set(t.Context(), key, "v", 0).Err())
		require.Equal(t, int64(1), outer.Exists(t.Context(), key).Val())
	})
	require.Zero(t, outer.Exists(t.Context(), key).Val())
}

func TestRegistry(t *testing.T) {
	t.Parallel()
	require.Regexp(t, "^http", testkit.Registry(t))
}

func TestLogger(t *testing.T) {
	t.Parallel()
	var log *slog.Logger
	t.Run("inner", func(t *testing.T) {
		log = testkit.Logger(t)
		log.Info("during the test")
	})
	log.Info("after the test: must not panic")
}

package benchmarks

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/bench"
)

func TestSite(t *testing.T) {
	t.Parallel()

	// exists says whether a site's database does.
	exists := func(t *testing.T, cfg Config, name string) (there bool) {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), cfg.Settings.PostgresURL)
		require.NoError(t, err)
		defer conn.Close(context.Background())
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, name).Scan(&there))
		return there
	}

	for name, end := range map[string]func(cancel context.CancelFunc) error{
		"LeavesNothingWhenTheBenchmarkFails": func(context.CancelFunc) error { return errors.New("broken") },
		"LeavesNothingWhenASignalComes":      func(cancel context.CancelFunc) error { cancel(); return context.Canceled },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := tiny(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var database string
			_, err := measure(ctx, cfg, "x", siteConfig{}, func(ctx context.Context, r *run, _ *bench.Report) error {
				if _, err := r.tenants(ctx, 1); err != nil {
					return err
				}
				require.NoError(t, r.pool.QueryRow(ctx, `SELECT current_database()`).Scan(&database))
				require.True(t, exists(t, cfg, database))
				require.NotEqual(t, cfg.Settings.KafkaPrefix, r.set.KafkaPrefix)
				return end(cancel)
			})
			require.Error(t, err)
			require.NotEmpty(t, database)
			require.False(t, exists(t, cfg, database), "the database is dropped")
			requireNothingLeft(t, cfg)
		})
	}

	t.Run("SaysWhatIsAway", func(t *testing.T) {
		t.Parallel()
		cfg := tiny(t)
		cfg.Settings.PostgresURL = "postgres://127.0.0.1:1/none"
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := Track(ctx, cfg)
		require.ErrorContains(t, err, "PostgreSQL")
		requireNothingLeft(t, cfg)
	})
}

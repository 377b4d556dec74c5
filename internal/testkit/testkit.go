// Package testkit gives tests real services: a database of their own cloned
// from a migrated template, a topic prefix, a registry, a Redis prefix, a
// logger and a TCP proxy that breaks connections on demand.
//
// The services are those that CARRIL_TEST_KAFKA_BROKERS,
// CARRIL_TEST_REGISTRY_URL, CARRIL_TEST_POSTGRES_URL and
// CARRIL_TEST_REDIS_URL name. Without them the first test that asks starts an
// ephemeral devstack for its process; `make test` starts one for all
// packages. With CARRIL_TEST_TIER=real (`make test-kafka`) a service that is
// not named fails the test.
//
// A package that uses it has TestMain call Main. What the services are and
// how they run is left to internal/devstack and deploy/services.
package testkit

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"testing"

	"github.com/softcrum/carril/internal/devstack"
)

// The environment variables that name running services.
const (
	EnvKafkaBrokers = "CARRIL_TEST_KAFKA_BROKERS" // comma-separated host:port
	EnvRegistryURL  = "CARRIL_TEST_REGISTRY_URL"
	EnvPostgresURL  = "CARRIL_TEST_POSTGRES_URL" // of a database where others may be created
	EnvRedisURL     = "CARRIL_TEST_REDIS_URL"
	EnvTier         = "CARRIL_TEST_TIER" // "real", or empty
)

// Main runs the tests of a package, stops what they shared, then runs checks
// that need everything to be over, and exits:
//
//	func TestMain(m *testing.M) {
//		testkit.Main(m, func() error { return goleak.Find() })
//	}
//
// The checks are skipped when a test failed already.
func Main(m *testing.M, checks ...func() error) {
	devstack.RunChildIfAsked()
	code := m.Run()
	if err := shared.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "testkit:", err)
		code = max(code, 1)
	}
	// Clients of libraries keep idle connections in the default transport.
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	for _, check := range checks {
		if code != 0 {
			break
		}
		if err := check(); err != nil {
			fmt.Fprintln(os.Stderr, "testkit: after the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// Real reports whether the tests run against the real services, so that a
// test may expect what only they do.
func Real() bool { return os.Getenv(EnvTier) == "real" }

// Logger returns a logger that writes to the test's own output, and nothing
// once the test is over.
func Logger(t testing.TB) *slog.Logger {
	w := &logWriter{t: t}
	t.Cleanup(w.close)
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type logWriter struct {
	t      testing.TB
	mu     sync.Mutex
	closed bool
}

func (w *logWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.t.Log(string(bytes.TrimRight(p, "\n")))
	}
	return len(p), nil
}

func (w *logWriter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
}

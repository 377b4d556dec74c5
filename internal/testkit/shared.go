package testkit

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/softcrum/carril/internal/devstack"
)

// startTimeout bounds the start of a shared service.
const startTimeout = 2 * time.Minute

// shared holds the services that the tests of this process share. It is the
// one variable of the package: tests have no other place in common.
var shared services

// services starts an ephemeral stack for each group of parts on demand: a
// package that asks for Redis alone does not wait for PostgreSQL.
type services struct {
	broker, postgres, redis lazyStack
	template                lazyTemplate
}

func (s *services) stop() error {
	return errors.Join(s.broker.stop(), s.postgres.stop(), s.redis.stop())
}

// lazyStack is a stack that starts when it is first asked for.
type lazyStack struct {
	mu    sync.Mutex
	stack *devstack.Stack
	err   error
}

// get starts the parts on the first call. Every later call has its result.
func (l *lazyStack) get(t testing.TB, parts ...devstack.Part) *devstack.Stack {
	t.Helper()
	if Real() {
		t.Fatalf("%s=real and no address is given for %v: see `make test-kafka`", EnvTier, parts)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stack == nil && l.err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		l.stack, l.err = devstack.Start(ctx, devstack.Config{Ephemeral: true, Parts: parts})
	}
	if l.err != nil {
		t.Fatalf("start %v for the tests: %v", parts, l.err)
	}
	return l.stack
}

func (l *lazyStack) stop() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stack == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return l.stack.Stop(ctx)
}

func kafkaBrokers(t testing.TB) []string {
	t.Helper()
	if given := os.Getenv(EnvKafkaBrokers); given != "" {
		return strings.Split(given, ",")
	}
	return shared.broker.get(t, devstack.Kafka, devstack.Registry).KafkaBrokers
}

func registryURL(t testing.TB) string {
	t.Helper()
	if given := os.Getenv(EnvRegistryURL); given != "" {
		return given
	}
	return shared.broker.get(t, devstack.Kafka, devstack.Registry).RegistryURL
}

func postgresURL(t testing.TB) string {
	t.Helper()
	if given := os.Getenv(EnvPostgresURL); given != "" {
		return given
	}
	return shared.postgres.get(t, devstack.Postgres).PostgresURL
}

func redisURL(t testing.TB) string {
	t.Helper()
	if given := os.Getenv(EnvRedisURL); given != "" {
		return given
	}
	return shared.redis.get(t, devstack.Redis).RedisURL
}

// unique returns a name that no other test has, of any process and run.
func unique(prefix string) string {
	b := make([]byte, 6)
	_, _ = rand.Read(b) // never fails
	return prefix + hex.EncodeToString(b)
}

// cleanup runs f when the test is over, with a context that is still alive
// then, and reports its error.
func cleanup(t testing.TB, what string, f func(context.Context) error) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := f(ctx); err != nil {
			t.Errorf("%s: %v", what, fmt.Errorf("clean up after the test: %w", err))
		}
	})
}

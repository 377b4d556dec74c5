package app

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEnviron(t *testing.T) {
	t.Parallel()
	s := Settings{KafkaBrokers: []string{"a:1", "b:2"}, ResendKey: "re_1", Workers: 22, ResendRate: 0.5, Drain: 10 * time.Second}
	env := s.Environ([]string{"PATH=/bin", "CARRIL_RESEND_KEY_FILE=/run/key", "CARRIL_REDIS_URL=redis://elsewhere", "CARRIL_TEST_X=1"})
	require.Subset(t, env, []string{"PATH=/bin", "CARRIL_TEST_X=1", "CARRIL_KAFKA_BROKERS=a:1,b:2", "CARRIL_RESEND_KEY=re_1", "CARRIL_MARKETING_WORKERS=22",
		"CARRIL_RESEND_RATE=0.5", "CARRIL_DRAIN=10s"})
	require.NotContains(t, env, "CARRIL_RESEND_KEY_FILE=/run/key", "a secret that was read stands for itself")
	require.NotContains(t, env, "CARRIL_REDIS_URL=redis://elsewhere", "what is not set here is not set there")
	require.NoError(t, CheckEnvironment(env))
}

package smtp_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/softcrum/carril/dispatcher/provider/providertest"
	"github.com/softcrum/carril/dispatcher/provider/smtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newAdapter makes an adapter before a relay; change may be nil.
func newAdapter(t testing.TB, b *providertest.SMTPBackend, change func(*smtp.Config)) *smtp.Adapter {
	t.Helper()
	cfg := smtp.Config{Addr: b.Addr, User: providertest.SMTPUser, Password: smtp.NewPassword(providertest.SMTPPassword)}
	if change != nil {
		change(&cfg)
	}
	a, err := smtp.New(cfg, smtp.Deps{RootCAs: b.Roots})
	require.NoError(t, err)
	t.Cleanup(a.Close)
	return a
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options providertest.SMTPOptions
		change  func(*smtp.Config)
	}{
		"STARTTLS": {},
		"Implicit": {providertest.SMTPOptions{Implicit: true}, func(c *smtp.Config) { c.Security = smtp.Implicit }},
		"Plain":    {providertest.SMTPOptions{Plain: true}, func(c *smtp.Config) { c.Security = smtp.Plain }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			providertest.Run(t, func(t *testing.T) providertest.Subject {
				backend := providertest.NewSMTPBackend(t, c.options)
				unused := &providertest.SMTPBackend{Addr: providertest.UnusedAddress(t)}
				return providertest.Subject{
					Provider:    newAdapter(t, backend, c.change),
					Backend:     backend,
					Unreachable: newAdapter(t, unused, c.change),
					Private:     []string{providertest.SMTPUser, providertest.SMTPPassword},
					Timeout:     "smtp_timeout",
				}
			})
		})
	}
}

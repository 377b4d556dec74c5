package app

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/ingestor/providerhook"
	"github.com/softcrum/carril/internal/lifecycle"
	"github.com/softcrum/carril/schemas"
)

// providing is settings that name every provider.
func providing() Settings {
	return Settings{Channels: []string{"email", "sms"}, EmailProviders: []string{"resend", "smtp"}, Repeats: 1,
		ResendURL: "http://127.0.0.1:1", ResendKey: "re_canary_0123456789", ResendRate: 5, Drain: 10 * time.Second,
		SMTPAddr: "127.0.0.1:1", SMTPSecurity: "starttls", SMTPUser: "u", SMTPPassword: "canary-0123456789", SMTPRate: 3,
		SMSURL: "http://127.0.0.1:1", SMSAccount: "AC1", SMSToken: "canary-0123456789", SMSRate: 2, SMSSegments: 4,
		SMSCallbackURL: "https://carril.example.com/v1/providers/sms/webhooks"}
}

func opened(t *testing.T, set Settings) (*dispatching, error) {
	t.Helper()
	a := &App{set: set, log: slog.New(slog.DiscardHandler)}
	a.stack = lifecycle.New(a.log)
	d, err := a.dispatching()
	t.Cleanup(func() { require.NoError(t, a.Stop()) })
	return d, err
}

func TestProviders(t *testing.T) {
	t.Parallel()
	redis := func(s Settings) Settings { s.RedisURL = "redis://127.0.0.1:1"; return s }

	t.Run("ServeTheirChannelsInTheOrderOfTheSettings", func(t *testing.T) {
		t.Parallel()
		d, err := opened(t, redis(providing()))
		require.NoError(t, err)
		store, err := d.store("email", schemas.RailTransactional, nil, nil)
		require.NoError(t, err)
		require.Equal(t, []string{"resend", "smtp"}, store.Providers())
		require.Equal(t, "resend", d.preferred("email", schemas.RailTransactional))
		for name, rate := range map[string]float64{"resend": 5, "smtp": 3, "sms": 2} {
			require.InDelta(t, rate, d.stated()[name].RatePerSecond, 0, "each has a bucket of its own")
		}
		for _, channel := range []string{"email", "sms", "fax"} {
			set := providing()
			for _, list := range [][]string{{"resend"}, {"smtp", "resend"}, {"smtp"}, {"resend", "smtp"}} {
				set.EmailProviders = list
				d, err := opened(t, redis(set))
				require.NoError(t, err)
				require.Equal(t, d.preferred(channel, schemas.RailMarketing), set.marketingProvider(channel), "the same without anybody's secrets")
			}
		}
		require.Equal(t, 100, d.batch("email"))
		require.Equal(t, 1, d.batch("sms"), "a record of a channel without batches is one message")
	})

	// FS-MSG-0005 §5, AC4
	t.Run("WithoutABatchEndpointCarryNoMarketingEmail", func(t *testing.T) {
		t.Parallel()
		set := redis(providing())
		d, err := opened(t, set)
		require.NoError(t, err)
		store, err := d.store("email", schemas.RailMarketing, nil, nil)
		require.NoError(t, err)
		require.Equal(t, []string{"resend"}, store.Providers())

		set.EmailProviders = []string{"smtp"}
		d, err = opened(t, set)
		require.NoError(t, err)
		_, err = d.store("email", schemas.RailMarketing, nil, nil)
		require.ErrorIs(t, err, ErrConfig)
		require.ErrorContains(t, err, "FS-MSG-0005")
		_, err = d.store("email", schemas.RailTransactional, nil, nil)
		require.NoError(t, err)
		_, err = d.store("sms", schemas.RailMarketing, nil, nil)
		require.NoError(t, err, "the rule is email's")
	})

	t.Run("AreRefusedWhereTheyAreNotTold", func(t *testing.T) {
		t.Parallel()
		for want, change := range map[string]func(*Settings){
			"resend-key":                            func(s *Settings) { s.ResendKey = "" },
			"smtp-addr":                             func(s *Settings) { s.SMTPAddr = "" },
			"sms-account":                           func(s *Settings) { s.SMSAccount = "" },
			"sms-token":                             func(s *Settings) { s.SMSToken = "" },
			"configuration: smtp-security is plain": func(s *Settings) { s.SMTPSecurity, s.SMTPAddr = "plain", "mail.example.com:25" },
			"configuration: smtp-auth is":           func(s *Settings) { s.SMTPAuth = "ntlm" },
			"configuration: smtp-tls-ca cannot":     func(s *Settings) { s.SMTPTLSCA = filepath.Join(t.TempDir(), "none") },
			"configuration: sms-callback-url must":  func(s *Settings) { s.SMSCallbackURL = "http://carril.example.com/x" },
			"configuration: sms-max-segments is":    func(s *Settings) { s.SMSSegments = 99 },
			"configuration: resend-key is no key":   func(s *Settings) { s.ResendKey = "canary" },
			"configuration: smtp-addr is not":       func(s *Settings) { s.SMTPAddr = "127.0.0.1:99999" },
			"configuration: smtp-hello is":          func(s *Settings) { s.SMTPHello = "can ary" },
			"configuration: smtp-user and password": func(s *Settings) { s.SMTPUser, s.SMTPPassword, s.SMTPAuth = "", "a-canary-of-length", "" },
			"configuration: sms-key is":             func(s *Settings) { s.SMSKey = "can ary" },
		} {
			set := redis(providing())
			change(&set)
			_, err := opened(t, set)
			require.ErrorIs(t, err, ErrConfig, want)
			require.ErrorContains(t, err, want)
			require.NotContains(t, err.Error(), "canary")
		}
	})
}

func TestProviderHooks(t *testing.T) {
	t.Parallel()

	t.Run("AreThoseWhoseSecretsAreKnown", func(t *testing.T) {
		t.Parallel()
		set := providing()
		for _, c := range []struct {
			change func(*Settings)
			want   map[string]int
		}{
			{func(*Settings) {}, map[string]int{"sms": 1}},
			{func(s *Settings) { s.SMSTokens = []string{"canary-0123456789", "older-0123456789abc"} }, map[string]int{"sms": 2}},
			{func(s *Settings) { s.SMSKey = "SK1" }, map[string]int{}}, // a key's secret signs nothing
			{func(s *Settings) { s.SMSCallbackURL = "" }, map[string]int{}},
			{func(s *Settings) { s.ResendSecrets = []string{"whsec_Y2FuYXJ5LTAxMjM0NTY3ODktMDEyMzQ1Njc4OQ=="} }, map[string]int{"resend": 1, "sms": 1}},
		} {
			changed := set
			c.change(&changed)
			sources, err := (&App{set: changed}).hookSources()
			require.NoError(t, err)
			got := map[string]int{}
			for _, s := range sources {
				got[s.Provider] = len(s.Secrets)
				require.Contains(t, parsers(), s.Provider, "what comes in is understood")
				if s.Provider == "sms" {
					require.Equal(t, providerhook.SignedURL, s.Verifier)
				}
			}
			require.Equal(t, c.want, got)
		}
	})
}

func TestMaskedProviders(t *testing.T) {
	t.Parallel()

	t.Run("ShowNoSecret", func(t *testing.T) {
		t.Parallel()
		set := providing()
		set.SMSTokens = []string{"canary-0123456789"}
		masked := set.Masked()
		for _, name := range []string{"smtp-password", "sms-token", "sms-webhook-tokens", "resend-key"} {
			require.Equal(t, "****", masked[name])
		}
		require.Equal(t, "resend,smtp", masked["email-providers"])
	})
}

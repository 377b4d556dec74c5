package smtp_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/provider/providertest"
	"github.com/softcrum/carril/dispatcher/provider/smtp"
)

// attempt freezes a message and makes one attempt, under a deadline that is
// only there to end a hang.
func attempt(t testing.TB, a *smtp.Adapter, m provider.Message) (provider.Result, *provider.Error) {
	t.Helper()
	frozen, err := a.Freeze([]provider.Message{m}, false)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	res, err := a.Send(ctx, provider.Request{Frozen: frozen, IdempotencyKey: "k"})
	if err == nil {
		return res, nil
	}
	var perr *provider.Error
	require.ErrorAs(t, err, &perr)
	for _, private := range []string{m.To, "ana@example.com", m.Subject, providertest.SMTPUser, providertest.SMTPPassword} {
		require.NotContains(t, fmt.Sprintf("%v %+v %#v", err, perr, perr), private)
	}
	return res, perr
}

// TestReplies shows what a relay's word means at each stage of a transaction.
func TestReplies(t *testing.T) {
	t.Parallel()
	quote := " ana@example.com: Your code is 4711 (" + providertest.SMTPPassword + ")"
	for name, c := range map[string]struct {
		at, reply string
		class     provider.Class
		code      string
	}{
		"GreetingBusy":          {providertest.AtGreeting, "421 4.3.2 Shutting down", provider.ClassRetryable, "try_later"},
		"GreetingTooMany":       {providertest.AtGreeting, "421 4.7.0 Too many connections", provider.ClassThrottled, "throttled"},
		"GreetingRefused":       {providertest.AtGreeting, "554 No service for you", provider.ClassConfiguration, "smtp_service_refused"},
		"GreetingOfAnother":     {providertest.AtGreeting, "HTTP/1.1 400 Bad Request", provider.ClassRetryable, "unreadable_answer"},
		"GreetingReset":         {providertest.AtGreeting, providertest.CutReset, provider.ClassRetryable, ""},
		"HelloClosed":           {providertest.AtHello, providertest.CutClose, provider.ClassRetryable, "reset"},
		"TLSLater":              {providertest.AtTLS, "454 4.7.0 TLS not available", provider.ClassThrottled, "throttled"},
		"TLSRefused":            {providertest.AtTLS, "501 5.5.4 No", provider.ClassConfiguration, "smtp_tls_failed"},
		"TLSClosed":             {providertest.AtTLS, providertest.CutClose, provider.ClassRetryable, "reset"},
		"AuthRefused":           {providertest.AtAuth, "535 5.7.8 Bad" + quote, provider.ClassConfiguration, "smtp_auth_failed"},
		"AuthTooWeak":           {providertest.AtAuth, "534 5.7.9 Stronger, please", provider.ClassConfiguration, "smtp_auth_failed"},
		"AuthLater":             {providertest.AtAuth, "454 4.7.0 Temporary failure", provider.ClassRetryable, "try_later"},
		"AuthClosed":            {providertest.AtAuth, providertest.CutClose, provider.ClassRetryable, "reset"},
		"SenderRefused":         {providertest.AtMail, "550 5.7.1 Not yours" + quote, provider.ClassSender, "sender_refused"},
		"SenderUnknown":         {providertest.AtMail, "553 Bad sender", provider.ClassSender, "sender_refused"},
		"SenderLater":           {providertest.AtMail, "451 4.3.0 Not now", provider.ClassRetryable, "try_later"},
		"SenderTooFast":         {providertest.AtMail, "450 4.7.1 Too fast", provider.ClassThrottled, "throttled"},
		"SenderUnauthenticated": {providertest.AtMail, "530 5.7.0 Authenticate first", provider.ClassConfiguration, "smtp_auth_failed"},
		"MailTooLarge":          {providertest.AtMail, "552 5.3.4 Too large", provider.ClassPermanent, "message_too_large"},
		"MailOutOfOrder":        {providertest.AtMail, "503 5.5.1 Nested MAIL", provider.ClassRetryable, "bad_sequence"},
		"MailReset":             {providertest.AtMail, providertest.CutReset, provider.ClassRetryable, "reset"},
		"Quota":                 {providertest.AtMail, "550 5.4.5 Daily limit", provider.ClassThrottled, "quota_exceeded"},
		"RecipientUnknown":      {providertest.AtRcpt, "550 5.1.1 No such user" + quote, provider.ClassPermanent, "recipient_refused"},
		"RecipientFull":         {providertest.AtRcpt, "552 5.2.2 Mailbox full", provider.ClassPermanent, "recipient_refused"},
		"RecipientFullForNow":   {providertest.AtRcpt, "452 4.2.2 Mailbox full", provider.ClassRetryable, "try_later"},
		"Greylisted":            {providertest.AtRcpt, "450 4.7.1 Greylisted, come back", provider.ClassRetryable, "try_later"},
		"GreylistedWithoutCode": {providertest.AtRcpt, "451 Greylisting in action", provider.ClassRetryable, "try_later"},
		"RecipientsTooFast":     {providertest.AtRcpt, "421 4.7.28 Unusual rate", provider.ClassThrottled, "throttled"},
		"RelayingDenied":        {providertest.AtRcpt, "554 5.7.1 Relay access denied", provider.ClassConfiguration, "smtp_service_refused"},
		"RcptClosed":            {providertest.AtRcpt, providertest.CutClose, provider.ClassRetryable, "reset"},
		"DataLater":             {providertest.AtData, "451 4.3.0 Not now", provider.ClassRetryable, "try_later"},
		"DataRefused":           {providertest.AtData, "554 5.5.1 No valid recipients", provider.ClassPermanent, "content_refused"},
		"DataReset":             {providertest.AtData, providertest.CutReset, provider.ClassRetryable, "reset"},
		"ContentRefused":        {providertest.AtDot, "554 5.7.1 Spam" + quote, provider.ClassPermanent, "content_refused"},
		"ContentTooLarge":       {providertest.AtDot, "552 5.3.4 Too large", provider.ClassPermanent, "message_too_large"},
		"ContentLater":          {providertest.AtDot, "451 4.3.0 Queue full", provider.ClassRetryable, "try_later"},
		"ContentTooFast":        {providertest.AtDot, "421 4.7.0 Rate", provider.ClassThrottled, "throttled"},
		"DotStrange":            {providertest.AtDot, "354 Go on", provider.ClassUncertain, "unexpected_reply"},
		"DotReset":              {providertest.AtDot, providertest.CutReset, provider.ClassUncertain, "reset"},
		"DotClosed":             {providertest.AtDot, providertest.CutClose, provider.ClassUncertain, "reset"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			relay := providertest.NewSMTPBackend(t, providertest.SMTPOptions{})
			a := newAdapter(t, relay, nil)
			relay.On(c.at, c.reply)
			res, perr := attempt(t, a, message(1))
			require.NotNil(t, perr)
			require.Equal(t, c.class, perr.Class, "%v", perr)
			if c.code != "" { // a reset at once may meet the dial
				require.Equal(t, c.code, perr.Code)
			}
			require.Nil(t, res.Items)
			require.Zero(t, perr.RetryAfter)
			require.Equal(t, c.class == provider.ClassRetryable && perr.Status != 0 && (c.at == providertest.AtRcpt || c.at == providertest.AtDot), perr.Recipient)
			if !strings.HasPrefix(c.reply, "!") {
				require.Empty(t, relay.IDs())
			}
			_, perr = attempt(t, a, message(2))
			require.Nil(t, perr, "the next message goes through")
			require.Len(t, relay.IDs()[message(2).SendID], 1)
		})
	}
}

// faults F31: SMTP's outcome is unknown from the final dot on, and only from
// there.
func TestCut(t *testing.T) {
	t.Parallel()

	t.Run("InTheMiddleOfTheMessageTookNothing", func(t *testing.T) {
		t.Parallel()
		for _, how := range []string{providertest.CutReset, providertest.CutClose} {
			relay := providertest.NewSMTPBackend(t, providertest.SMTPOptions{})
			a := newAdapter(t, relay, nil)
			relay.On(providertest.AtBody, how)
			m := message(1)
			m.Text = strings.Repeat("a long text ", 1<<20) // more than the sockets hold, so that the dot cannot have left
			_, perr := attempt(t, a, m)
			require.Equal(t, provider.ClassRetryable, perr.Class, "%v", perr)
			require.Empty(t, relay.IDs())
			require.Len(t, relay.Requests(), 1)
		}
	})

	t.Run("HangsBeforeTheDotAreRetryable", func(t *testing.T) {
		t.Parallel()
		for _, at := range []string{providertest.AtGreeting, providertest.AtHello, providertest.AtTLS, providertest.AtAuth, providertest.AtMail,
			providertest.AtRcpt, providertest.AtData} {
			relay := providertest.NewSMTPBackend(t, providertest.SMTPOptions{})
			a := newAdapter(t, relay, func(c *smtp.Config) { c.Timeout = 300 * time.Millisecond })
			relay.On(at, providertest.Hang)
			_, perr := attempt(t, a, message(1))
			require.Equal(t, provider.ClassRetryable, perr.Class, at)
			require.Equal(t, "smtp_timeout", perr.Code, at)
			require.ErrorIs(t, perr, context.DeadlineExceeded)
		}
	})
}

func TestPool(t *testing.T) {
	t.Parallel()

	t.Run("UsesAConnectionAgain", func(t *testing.T) {
		t.Parallel()
		relay := providertest.NewSMTPBackend(t, providertest.SMTPOptions{})
		a := newAdapter(t, relay, nil)
		for i := range 5 {
			_, perr := attempt(t, a, message(i))
			require.Nil(t, perr)
		}
		require.Equal(t, 1, relay.Opened())
	})

	t.Run("FindsADeadConnectionBeforeTheMessage", func(t *testing.T) {
		t.Parallel()
		for _, how := range []string{"", providertest.CutClose, "421 4.4.2 Idle for too long", "<html>"} {
			relay := providertest.NewSMTPBackend(t, providertest.SMTPOptions{})
			a := newAdapter(t, relay, nil)
			_, perr := attempt(t, a, message(1))
			require.Nil(t, perr)
			if how == "" {
				relay.CutAll()
			} else {
				relay.On(providertest.AtReset, how)
			}
			_, perr = attempt(t, a, message(2))
			require.Nil(t, perr, how)
			require.Len(t, relay.Requests(), 2, "one transaction each: %q", how)
			require.Len(t, relay.IDs()[message(2).SendID], 1)
			require.Equal(t, 2, relay.Opened())
		}
	})

	t.Run("KeepsToItsBounds", func(t *testing.T) {
		t.Parallel()
		relay := providertest.NewSMTPBackend(t, providertest.SMTPOptions{})
		a := newAdapter(t, relay, func(c *smtp.Config) { c.MaxConns, c.MaxPerConn = 2, 4 })
		var wg sync.WaitGroup
		errs := make([]error, 16)
		for i := range errs {
			frozen, err := a.Freeze([]provider.Message{message(i)}, false)
			require.NoError(t, err)
			wg.Go(func() {
				_, errs[i] = a.Send(t.Context(), provider.Request{Frozen: frozen, IdempotencyKey: "k"})
			})
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs...))
		require.Len(t, relay.IDs(), 16)
		require.GreaterOrEqual(t, relay.Opened(), 4, "four messages a connection")
		require.LessOrEqual(t, relay.Opened(), 8)
	})

	t.Run("AuthenticatesAnewWithAnotherPassword", func(t *testing.T) {
		t.Parallel()
		relay := providertest.NewSMTPBackend(t, providertest.SMTPOptions{})
		a := newAdapter(t, relay, nil)
		_, perr := attempt(t, a, message(1))
		require.Nil(t, perr)
		require.NoError(t, a.SetPassword(smtp.NewPassword("another")))
		_, perr = attempt(t, a, message(2))
		require.Equal(t, provider.ClassConfiguration, perr.Class)
		require.Equal(t, "smtp_auth_failed", perr.Code)
		require.NoError(t, a.SetPassword(smtp.NewPassword(providertest.SMTPPassword+"\n")))
		_, perr = attempt(t, a, message(3))
		require.Nil(t, perr)
		require.Error(t, a.SetPassword(smtp.NewPassword("")))
	})
}

func TestSecurity(t *testing.T) {
	t.Parallel()

	t.Run("IsNeverGivenUp", func(t *testing.T) {
		t.Parallel()
		relay := providertest.NewSMTPBackend(t, providertest.SMTPOptions{Plain: true})
		_, perr := attempt(t, newAdapter(t, relay, nil), message(1))
		require.Equal(t, provider.ClassConfiguration, perr.Class, "a relay without STARTTLS")
		require.Equal(t, "smtp_tls_failed", perr.Code)
		require.NotContains(t, relay.Verbs(), "AUTH")
		require.NotContains(t, relay.Verbs(), "MAIL")
	})

	t.Run("WantsACertificateOfTheRelay", func(t *testing.T) {
		t.Parallel()
		for _, implicit := range []bool{false, true} {
			relay := providertest.NewSMTPBackend(t, providertest.SMTPOptions{Implicit: implicit})
			cfg := smtp.Config{Addr: relay.Addr, User: providertest.SMTPUser, Password: smtp.NewPassword(providertest.SMTPPassword)}
			if implicit {
				cfg.Security = smtp.Implicit
			}
			a, err := smtp.New(cfg, smtp.Deps{}) // the system's roots do not know it
			require.NoError(t, err)
			_, perr := attempt(t, a, message(1))
			require.Equal(t, provider.ClassConfiguration, perr.Class, "%v", perr)
			require.Equal(t, "smtp_tls_failed", perr.Code)
			require.NotContains(t, relay.Verbs(), "AUTH")
		}
	})

	t.Run("MeetsARelayThatSpeaksNoTLS", func(t *testing.T) {
		t.Parallel()
		relay := providertest.NewSMTPBackend(t, providertest.SMTPOptions{Plain: true})
		_, perr := attempt(t, newAdapter(t, relay, func(c *smtp.Config) { c.Security = smtp.Implicit }), message(1))
		require.Equal(t, "smtp_tls_failed", perr.Code)
	})

	t.Run("TakesTheMechanismThatTheRelayHas", func(t *testing.T) {
		t.Parallel()
		for _, mechanism := range []string{"PLAIN", "LOGIN"} {
			relay := providertest.NewSMTPBackend(t, providertest.SMTPOptions{Mechanisms: []string{mechanism}})
			_, perr := attempt(t, newAdapter(t, relay, nil), message(1))
			require.Nil(t, perr, mechanism)
		}
		for _, offered := range [][]string{{}, {"NTLM"}, {"CRAM-MD5"}} {
			relay := providertest.NewSMTPBackend(t, providertest.SMTPOptions{Mechanisms: offered})
			_, perr := attempt(t, newAdapter(t, relay, nil), message(1))
			require.Equal(t, provider.ClassConfiguration, perr.Class)
			require.Equal(t, "smtp_auth_failed", perr.Code)
		}
	})

	t.Run("NeedsNoCredentialWhereTheRelayKnowsUs", func(t *testing.T) {
		t.Parallel()
		relay := providertest.NewSMTPBackend(t, providertest.SMTPOptions{})
		a := newAdapter(t, relay, func(c *smtp.Config) { c.User, c.Password = "", smtp.Password{} })
		_, perr := attempt(t, a, message(1))
		require.Nil(t, perr)
		require.NotContains(t, relay.Verbs(), "AUTH")
	})
}

func TestExtensions(t *testing.T) {
	t.Parallel()

	t.Run("SizeIsHeldToBeforeAnythingIsSaid", func(t *testing.T) {
		t.Parallel()
		relay := providertest.NewSMTPBackend(t, providertest.SMTPOptions{Extensions: []string{"SIZE 2000", "8BITMIME"}})
		a := newAdapter(t, relay, nil)
		m := message(1)
		m.Text = strings.Repeat("a long text ", 1000)
		_, perr := attempt(t, a, m)
		require.Equal(t, provider.ClassPermanent, perr.Class)
		require.Equal(t, "message_too_large", perr.Code)
		require.Empty(t, relay.Requests())
		_, perr = attempt(t, a, message(2))
		require.Nil(t, perr)
	})

	t.Run("SMTPUTF8IsAskedForWhereTheAddressNeedsIt", func(t *testing.T) {
		t.Parallel()
		for _, has := range []bool{true, false} {
			var extensions []string
			if has {
				extensions = []string{"SMTPUTF8"}
			}
			relay := providertest.NewSMTPBackend(t, providertest.SMTPOptions{Extensions: extensions})
			a := newAdapter(t, relay, nil)
			m := message(1)
			m.To = "añá@bücher.example"
			_, perr := attempt(t, a, m)
			if !has {
				require.Equal(t, provider.ClassPermanent, perr.Class)
				require.Equal(t, "smtputf8_missing", perr.Code)
				continue
			}
			require.Nil(t, perr)
			require.Contains(t, string(relay.Requests()[0].Body), "> SMTPUTF8\r\nRCPT TO:<añá@xn--bcher-kva.example>\r\n")
			_, perr = attempt(t, a, message(2))
			require.Nil(t, perr)
			require.NotContains(t, string(relay.Requests()[1].Body), "SMTPUTF8")
		}
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()
	good := smtp.Config{Addr: "mail.example.com:587", User: "u", Password: smtp.NewPassword("secret-canary")}

	t.Run("RefusesWhatCannotBe", func(t *testing.T) {
		t.Parallel()
		for want, change := range map[string]func(*smtp.Config){
			"addr":            func(c *smtp.Config) { c.Addr = "mail.example.com" },
			"security is n":   func(c *smtp.Config) { c.Security = "ssl" },
			"security is p":   func(c *smtp.Config) { c.Security = smtp.Plain },
			"auth is no":      func(c *smtp.Config) { c.Auth = "ntlm" },
			"auth is none":    func(c *smtp.Config) { c.Auth = smtp.AuthNone },
			"go together":     func(c *smtp.Config) { c.Password = smtp.Password{} },
			"control":         func(c *smtp.Config) { c.User = "a\x00b" },
			"rate_per_second": func(c *smtp.Config) { c.RatePerSecond = -1 },
			"hello_name":      func(c *smtp.Config) { c.HelloName = "a b" },
			"timeout":         func(c *smtp.Config) { c.Timeout = -1 },
			"bound":           func(c *smtp.Config) { c.MaxConns = -1 },
		} {
			c := good
			change(&c)
			_, err := smtp.New(c, smtp.Deps{})
			require.ErrorContains(t, err, want)
			require.NotContains(t, err.Error(), "secret-canary")
		}
		_, err := smtp.New(good, smtp.Deps{})
		require.NoError(t, err)
	})

	t.Run("NeverPrintsThePassword", func(t *testing.T) {
		t.Parallel()
		text, err := good.Password.MarshalText()
		require.NoError(t, err)
		for _, s := range []string{fmt.Sprintf("%v %+v %#v %s %q", good, good, good, good.Password, good.Password), string(text), good.Password.LogValue().String()} {
			require.NotContains(t, s, "secret-canary")
		}
	})

	t.Run("HasNoBatchAndNoKeys", func(t *testing.T) {
		t.Parallel() // FS-MSG-0005 §5, AC4: what has no batch carries no marketing email
		a, err := smtp.New(good, smtp.Deps{})
		require.NoError(t, err)
		require.False(t, a.Capabilities().Batch)
		require.False(t, a.Capabilities().IdempotencyKeys)
	})
}

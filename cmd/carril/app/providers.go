package app

import (
	"crypto/x509"
	"errors"
	"math"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/softcrum/carril/dispatcher/bucket"
	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/provider/resend"
	"github.com/softcrum/carril/dispatcher/provider/sms"
	"github.com/softcrum/carril/dispatcher/provider/smtp"
	"github.com/softcrum/carril/dispatcher/sends"
	"github.com/softcrum/carril/ingestor/providerhook"
	"github.com/softcrum/carril/internal/signature"
	"github.com/softcrum/carril/schemas"
)

// validateProviders checks which providers there are; what each is told, its
// adapter checks when it is made.
func (s *Settings) validateProviders() error {
	for i, channel := range s.Channels {
		if len(s.providersOf(channel)) == 0 {
			return configError("channels", "has %q, which no provider serves", channel)
		}
		if slices.Contains(s.Channels[:i], channel) {
			return configError("channels", "names %s twice", channel)
		}
	}
	for i, name := range s.EmailProviders {
		if name != resend.Name && name != smtp.Name {
			return configError("email-providers", "has %q, which is none of resend and smtp", name)
		}
		if slices.Contains(s.EmailProviders[:i], name) {
			return configError("email-providers", "names %s twice", name)
		}
	}
	for name, rate := range map[string]float64{"smtp-rate": s.SMTPRate, "sms-rate": s.SMSRate} { // 0: the adapter's own
		if !(rate >= 0) || rate > bucket.MaxRate {
			return configError(name, "must be a positive number of messages a second")
		}
	}
	for name, n := range map[string]int{"resend-day-quota": s.ResendDayQuota, "resend-month-quota": s.ResendMonthQuota, "smtp-day-quota": s.SMTPDayQuota, "sms-day-quota": s.SMSDayQuota} {
		if n < 0 || n > math.MaxInt32 {
			return configError(name, "is no number of messages; 0 is no limit")
		}
	}
	if !(s.QuotaReserve >= 0 && s.QuotaReserve < 1) { // NaN is neither
		return configError("quota-reserve", "is not between 0 and below 1")
	}
	if s.Repeats < 0 || s.Repeats > 5 {
		return configError("uncertain-repeats", "is not within 0 and 5")
	}
	return nil
}

// providersOf lists a channel's providers, the preferred one first.
func (s *Settings) providersOf(channel string) []string {
	switch channel {
	case "email":
		if len(s.EmailProviders) == 0 {
			return []string{resend.Name}
		}
		return s.EmailProviders
	case "sms":
		return []string{sms.Name}
	default:
		return nil
	}
}

// KnownChannel says whether there are providers of a channel.
func KnownChannel(name string) bool { return len((&Settings{}).providersOf(name)) > 0 }

// unset names the first setting that a provider needs and does not have; empty
// where every channel's providers are known.
func (s *Settings) unset() string {
	for _, channel := range s.Channels {
		for _, name := range s.providersOf(channel) {
			switch {
			case name == resend.Name && s.ResendKey == "":
				return "resend-key"
			case name == smtp.Name && s.SMTPAddr == "":
				return "smtp-addr"
			case name == sms.Name && s.SMSAccount == "":
				return "sms-account"
			case name == sms.Name && s.SMSToken == "":
				return "sms-token"
			}
		}
	}
	return ""
}

// adapter is a provider that ends its connections with the process.
type adapter interface {
	provider.Provider
	Close()
}

// openProviders makes the adapters of every channel.
func (a *App) openProviders(d *dispatching) error {
	if missing := a.set.unset(); missing != "" {
		return configError(missing, "is not set")
	}
	for _, channel := range a.set.Channels {
		for _, name := range a.set.providersOf(channel) {
			p, err := a.openProvider(name)
			if err != nil {
				return settingAtFault(name, err)
			}
			a.stack.OnStop("provider "+name, p.Close)
			d.providers[name] = p
			d.byChannel[channel] = append(d.byChannel[channel], p)
		}
	}
	return nil
}

// settingAtFault tells an operator which setting an adapter does not take: the
// adapter's error begins with the name of a field of its own.
func settingAtFault(name string, err error) error {
	if errors.Is(err, ErrConfig) {
		return err
	}
	field, rest, _ := strings.Cut(strings.TrimPrefix(err.Error(), "configure "+name+": "), " ")
	short := map[string]string{"api_key": "key", "key_id": "key", "base_url": "url", "rate_per_second": "rate", "hello_name": "hello"}
	if to, ok := short[field]; ok {
		field = to
	}
	return configError(name+"-"+strings.ReplaceAll(field, "_", "-"), "%s", rest)
}

func (a *App) openProvider(name string) (adapter, error) {
	switch name {
	case resend.Name:
		return resend.New(resend.Config{APIKey: resend.NewKey(a.set.ResendKey), BaseURL: a.set.ResendURL, RatePerSecond: a.set.ResendRate}, resend.Deps{})
	case smtp.Name:
		roots, err := a.set.relayRoots()
		if err != nil {
			return nil, err
		}
		return smtp.New(smtp.Config{Addr: a.set.SMTPAddr, Security: smtp.Security(a.set.SMTPSecurity), Auth: smtp.Mechanism(a.set.SMTPAuth),
			User: a.set.SMTPUser, Password: smtp.NewPassword(a.set.SMTPPassword), HelloName: a.set.SMTPHello, RatePerSecond: a.set.SMTPRate},
			smtp.Deps{RootCAs: roots})
	default:
		return sms.New(sms.Config{BaseURL: a.set.SMSURL, Account: a.set.SMSAccount, KeyID: a.set.SMSKey, Token: sms.NewToken(a.set.SMSToken),
			CallbackURL: a.set.SMSCallbackURL, MaxSegments: a.set.SMSSegments, RatePerSecond: a.set.SMSRate}, sms.Deps{})
	}
}

// relayRoots gives the certificates that the mail relay's is verified by; nil is
// the system's.
func (s *Settings) relayRoots() (*x509.CertPool, error) {
	if s.SMTPTLSCA == "" {
		return nil, nil //nolint:nilnil // what tls.Config takes for the system's
	}
	pem, err := os.ReadFile(s.SMTPTLSCA)
	if err != nil {
		return nil, configError("smtp-tls-ca", "cannot be read: %v", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, configError("smtp-tls-ca", "holds no certificate")
	}
	return roots, nil
}

// carriers lists those of a channel's providers that may carry a rail.
func (d *dispatching) carriers(channel, rail string) (out []provider.Provider) {
	for _, p := range d.byChannel[channel] {
		if sends.MayCarry(channel, rail, p.Capabilities()) {
			out = append(out, p)
		}
	}
	return out
}

// preferred names the first of them; empty where there is none.
func (d *dispatching) preferred(channel, rail string) string {
	if ps := d.carriers(channel, rail); len(ps) > 0 {
		return ps[0].Name()
	}
	return ""
}

// batch is how many messages one record of a channel's marketing rail may hold:
// what any of its providers takes in a request.
func (d *dispatching) batch(channel string) int {
	most := 100
	for _, p := range d.carriers(channel, schemas.RailMarketing) {
		most = min(most, p.Capabilities().MaxBatch)
	}
	return max(most, 1)
}

// parsers read what providers report; smtp reports nothing.
func parsers() map[string]sends.Parser {
	return map[string]sends.Parser{resend.Name: resend.ParseWebhook, sms.Name: sms.ParseCallback}
}

// hookSources are the providers that may report, as far as their secrets are known.
func (a *App) hookSources() (out []providerhook.Source, err error) {
	if len(a.set.ResendSecrets) > 0 {
		src := providerhook.Source{Provider: resend.Name, Verifier: providerhook.Svix, Refer: referResend}
		if src.Secrets, err = hookSecrets("resend-webhook-secrets", a.set.ResendSecrets, signature.ParseSecret); err != nil {
			return nil, err
		}
		out = append(out, src)
	}
	tokens := a.set.SMSTokens
	if len(tokens) == 0 && a.set.SMSKey == "" && a.set.SMSToken != "" {
		tokens = []string{a.set.SMSToken} // the account signs with what it is asked with
	}
	if a.set.SMSCallbackURL != "" && len(tokens) > 0 {
		src := providerhook.Source{Provider: sms.Name, Verifier: providerhook.SignedURL, URL: a.set.SMSCallbackURL, ReferCallback: referSMS}
		if src.Secrets, err = hookSecrets("sms-webhook-tokens", tokens, signature.ParseToken); err != nil {
			return nil, err
		}
		out = append(out, src)
	}
	return out, nil
}

func hookSecrets(name string, values []string, parse func(string) (signature.Secret, error)) ([]providerhook.Secret, error) {
	out := make([]providerhook.Secret, len(values))
	for i, v := range values {
		secret, err := parse(v)
		if err != nil {
			return nil, configError(name, "has one that is no such secret")
		}
		out[i].Secret = secret
	}
	return out, nil
}

// referResend reads what a verified webhook is about, as far as it says so.
func referResend(body []byte) providerhook.Reference {
	e, err := resend.ParseWebhook(body)
	if err != nil {
		return providerhook.Reference{}
	}
	return providerhook.Reference{SendID: e.SendID, TenantID: e.TenantID, ProviderMessageID: e.ProviderMessageID}
}

func referSMS(query url.Values, body []byte) (providerhook.Reference, string) {
	r := sms.Refer(query, body)
	return providerhook.Reference{SendID: r.SendID, TenantID: r.TenantID, ProviderMessageID: r.ProviderMessageID}, r.EventID
}

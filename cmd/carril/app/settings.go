// Package app wires the platform: it turns settings into connections and
// starts any set of roles in one process, so that a command and a test start
// the same thing. Flags are parsed in cmd/carril; what a part does is its own
// package's business.
package app

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/softcrum/carril/internal/kafka"
)

// Settings is what every role is told: flags, then CARRIL_* variables, then
// carril.yaml. A tag secret:"" keeps a value out of `carril config`; such a
// value may also stand in a file that the variable CARRIL_…_FILE names.
type Settings struct {
	KafkaBrokers       []string `name:"kafka-brokers" env:"CARRIL_KAFKA_BROKERS" help:"Kafka brokers, host:port, separated by commas." group:"kafka"`
	KafkaPrefix        string   `name:"kafka-prefix" env:"CARRIL_KAFKA_PREFIX" help:"Put before every topic and group name." group:"kafka"`
	KafkaSingleNode    bool     `name:"kafka-single-node" env:"CARRIL_KAFKA_SINGLE_NODE" help:"This is one machine: allow replication factor 1. The loss of its disk loses events." group:"kafka"`
	KafkaTLS           bool     `name:"kafka-tls" env:"CARRIL_KAFKA_TLS" help:"Connect to the brokers with TLS." group:"kafka"`
	KafkaTLSCA         string   `name:"kafka-tls-ca" env:"CARRIL_KAFKA_TLS_CA" help:"File with the CA certificates of the brokers; the system's when empty." group:"kafka"`
	KafkaTLSCert       string   `name:"kafka-tls-cert" env:"CARRIL_KAFKA_TLS_CERT" help:"File with the client certificate." group:"kafka"`
	KafkaTLSKey        string   `name:"kafka-tls-key" env:"CARRIL_KAFKA_TLS_KEY" help:"File with the client certificate's key." group:"kafka"`
	KafkaSASLMechanism string   `name:"kafka-sasl-mechanism" env:"CARRIL_KAFKA_SASL_MECHANISM" enum:"${enum_sasl}" default:"" help:"PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; empty: none." group:"kafka"`
	KafkaSASLUser      string   `name:"kafka-sasl-user" env:"CARRIL_KAFKA_SASL_USER" help:"SASL user." group:"kafka"`
	KafkaSASLPassword  string   `name:"kafka-sasl-password" env:"CARRIL_KAFKA_SASL_PASSWORD" help:"SASL password." group:"kafka" secret:""`

	RegistryURL      string `name:"registry-url" env:"CARRIL_REGISTRY_URL" help:"Confluent-compatible schema registry." group:"stores"`
	RegistryUser     string `name:"registry-user" env:"CARRIL_REGISTRY_USER" help:"Basic authentication of the registry." group:"stores"`
	RegistryPassword string `name:"registry-password" env:"CARRIL_REGISTRY_PASSWORD" help:"Basic authentication of the registry." group:"stores" secret:""`
	RegistryToken    string `name:"registry-token" env:"CARRIL_REGISTRY_TOKEN" help:"Bearer token of the registry." group:"stores" secret:""`

	PostgresURL       string `name:"postgres-url" env:"CARRIL_POSTGRES_URL" help:"PostgreSQL 15 or later." group:"stores" secret:""`
	PostgresDirectURL string `name:"postgres-direct-url" env:"CARRIL_POSTGRES_DIRECT_URL" help:"PostgreSQL without a transaction pooler, for LISTEN, leases and migrations; the same when empty." group:"stores" secret:""`
	RedisURL          string `name:"redis-url" env:"CARRIL_REDIS_URL" help:"Redis 6.2 or later, for token buckets." group:"stores" secret:""`
	RedisPrefix       string `name:"redis-prefix" env:"CARRIL_REDIS_PREFIX" help:"Put before every Redis key." group:"stores"`
	StorageURL        string `name:"storage-url" env:"CARRIL_STORAGE_URL" help:"Where exports go: file:///folder, or s3://bucket/prefix?endpoint=https://host&region=eu-west-1&path_style=true." group:"stores"`
	StorageAccessKey  string `name:"storage-access-key" env:"CARRIL_STORAGE_ACCESS_KEY" help:"Access key of S3; AWS_* variables or the machine's role when empty." group:"stores" secret:""`
	StorageSecretKey  string `name:"storage-secret-key" env:"CARRIL_STORAGE_SECRET_KEY" help:"Secret key of S3." group:"stores" secret:""`
	ExportCompression string `name:"export-compression" env:"CARRIL_EXPORT_COMPRESSION" enum:"zstd,gzip" default:"zstd" help:"How exports are compressed: zstd or gzip." group:"stores"`

	Channels         []string      `name:"channels" env:"CARRIL_CHANNELS" default:"email" help:"Channels that have rails: email, sms." group:"messaging"`
	EmailProviders   []string      `name:"email-providers" env:"CARRIL_EMAIL_PROVIDERS" default:"resend" help:"Providers of email, the preferred one first: resend, smtp. What was not taken goes by the next one while the first is out of order; smtp carries no marketing." group:"messaging"`
	Repeats          int           `name:"uncertain-repeats" env:"CARRIL_UNCERTAIN_REPEATS" default:"1" help:"How often a transactional message of unknown outcome is sent again by a provider without idempotency keys (smtp, sms), at the risk that somebody gets two; 0 leaves it to a person." group:"messaging"`
	ResendURL        string        `name:"resend-url" env:"CARRIL_RESEND_URL" default:"https://api.resend.com" help:"Base URL of the email provider's API." group:"messaging"`
	ResendKey        string        `name:"resend-key" env:"CARRIL_RESEND_KEY" help:"API key of the email provider." group:"messaging" secret:""`
	ResendSecrets    []string      `name:"resend-webhook-secrets" env:"CARRIL_RESEND_WEBHOOK_SECRETS" help:"Signing secrets (whsec_…) of the provider's webhooks; several during a rotation." group:"messaging" secret:""`
	ResendRate       float64       `name:"resend-rate" env:"CARRIL_RESEND_RATE" default:"5" help:"The provider's stated limit in requests a second; buckets default to 90 % of it." group:"messaging"`
	SMTPAddr         string        `name:"smtp-addr" env:"CARRIL_SMTP_ADDR" help:"The mail relay, host:port." group:"messaging"`
	SMTPSecurity     string        `name:"smtp-security" env:"CARRIL_SMTP_SECURITY" default:"starttls" help:"starttls, implicit (TLS from the first byte), or plain: a relay on this machine alone." group:"messaging"`
	SMTPAuth         string        `name:"smtp-auth" env:"CARRIL_SMTP_AUTH" default:"" help:"auto, scram-sha-256, scram-sha-1, plain, login or none; empty: auto where there is a user." group:"messaging"`
	SMTPUser         string        `name:"smtp-user" env:"CARRIL_SMTP_USER" help:"User of the mail relay." group:"messaging"`
	SMTPPassword     string        `name:"smtp-password" env:"CARRIL_SMTP_PASSWORD" help:"Password of the mail relay." group:"messaging" secret:""`
	SMTPTLSCA        string        `name:"smtp-tls-ca" env:"CARRIL_SMTP_TLS_CA" help:"File with the CA certificates of the mail relay; the system's when empty." group:"messaging"`
	SMTPHello        string        `name:"smtp-hello" env:"CARRIL_SMTP_HELLO" help:"What we call ourselves to the mail relay; localhost when empty." group:"messaging"`
	SMTPRate         float64       `name:"smtp-rate" env:"CARRIL_SMTP_RATE" default:"5" help:"Messages a second that the mail relay takes; its bucket defaults to 90 % of it." group:"messaging"`
	SMSURL           string        `name:"sms-url" env:"CARRIL_SMS_URL" default:"https://api.twilio.com" help:"Base URL of the text message provider's API." group:"messaging"`
	SMSAccount       string        `name:"sms-account" env:"CARRIL_SMS_ACCOUNT" help:"Account at the text message provider." group:"messaging"`
	SMSKey           string        `name:"sms-key" env:"CARRIL_SMS_KEY" help:"Name of the API key that sms-token is of; empty: the token is the account's own." group:"messaging"`
	SMSToken         string        `name:"sms-token" env:"CARRIL_SMS_TOKEN" help:"Token of the text message provider's account or key." group:"messaging" secret:""`
	SMSCallbackURL   string        `name:"sms-callback-url" env:"CARRIL_SMS_CALLBACK_URL" help:"Where the provider reports text messages, as it reaches us: https://…/v1/providers/sms/webhooks. Empty: it reports nothing." group:"messaging"`
	SMSTokens        []string      `name:"sms-webhook-tokens" env:"CARRIL_SMS_WEBHOOK_TOKENS" help:"Account tokens that sign those reports; several during a rotation. Empty: sms-token, where it is the account's own." group:"messaging" secret:""`
	SMSRate          float64       `name:"sms-rate" env:"CARRIL_SMS_RATE" default:"10" help:"Text messages a second that the account may send; its bucket defaults to 90 % of it." group:"messaging"`
	SMSSegments      int           `name:"sms-max-segments" env:"CARRIL_SMS_MAX_SEGMENTS" default:"10" help:"What one text may cost at most, in segments." group:"messaging"`
	ResendDayQuota   int           `name:"resend-day-quota" env:"CARRIL_RESEND_DAY_QUOTA" default:"0" help:"Messages that the email provider's account takes a UTC day; 0 is no limit. A row of carril bucket wins." group:"messaging"`
	ResendMonthQuota int           `name:"resend-month-quota" env:"CARRIL_RESEND_MONTH_QUOTA" default:"0" help:"Messages that the email provider's account takes a month; 0 is no limit." group:"messaging"`
	SMTPDayQuota     int           `name:"smtp-day-quota" env:"CARRIL_SMTP_DAY_QUOTA" default:"0" help:"Messages that the mail relay takes a UTC day; 0 is no limit." group:"messaging"`
	SMSDayQuota      int           `name:"sms-day-quota" env:"CARRIL_SMS_DAY_QUOTA" default:"0" help:"Text messages that the account may send a UTC day; 0 is no limit." group:"messaging"`
	QuotaReserve     float64       `name:"quota-reserve" env:"CARRIL_QUOTA_RESERVE" default:"0.1" help:"Share of every quota that marketing leaves to transactional messages, from 0 to below 1." group:"messaging"`
	BlastBounces     float64       `name:"blast-bounces" env:"CARRIL_BLAST_BOUNCES" default:"0.04" help:"Share of a blast's sends with an outcome that may bounce; above it the blast is paused." group:"messaging"`
	BlastComplaints  float64       `name:"blast-complaints" env:"CARRIL_BLAST_COMPLAINTS" default:"0.001" help:"The same for complaints." group:"messaging"`
	BlastTrips       int           `name:"blast-trips" env:"CARRIL_BLAST_TRIPS" default:"3" help:"Pauses like that of a tenant's blasts within a week that stop its marketing; -1: never." group:"messaging"`
	BlastFirst       int           `name:"blast-first" env:"CARRIL_BLAST_FIRST" default:"500" help:"Messages of a blast after which it waits for their outcomes; -1: it never waits." group:"messaging"`
	BlastFirstShare  float64       `name:"blast-first-share" env:"CARRIL_BLAST_FIRST_SHARE" default:"0.8" help:"Share of these that must have an outcome once two minutes have passed; before, nearly all." group:"messaging"`
	BlastFirstWait   time.Duration `name:"blast-first-wait" env:"CARRIL_BLAST_FIRST_WAIT" default:"15m" help:"Longest that a blast waits for them." group:"messaging"`
	FeederBatches    int           `name:"feeder-batches" env:"CARRIL_FEEDER_BATCHES" default:"50" help:"Batches of marketing that a tenant may have in the topic at once." group:"messaging"`
	LatencyBudget    time.Duration `name:"latency-budget" env:"CARRIL_LATENCY_BUDGET" default:"5s" help:"What a transactional message may take; thresholds follow from it." group:"messaging"`
	MarketingLate    time.Duration `name:"marketing-late" env:"CARRIL_MARKETING_LATE" default:"4ms" help:"How much later than usual a round trip to PostgreSQL counts as late; where many are, marketing leaves the cores to transactional messages. Never when 0." group:"messaging"`
	Workers          int           `name:"marketing-workers" env:"CARRIL_MARKETING_WORKERS" default:"16" help:"Requests of a channel's marketing rail that one process has on their way at once." group:"messaging"`
	WebhookKey       string        `name:"webhook-key" env:"CARRIL_WEBHOOK_KEY" help:"32 bytes in Base64 that encrypt webhook secrets at rest." group:"messaging" secret:""`
	WebhookHTTP      bool          `name:"webhook-http" env:"CARRIL_WEBHOOK_HTTP" help:"Let webhooks go to http:// URLs." group:"messaging"`
	WebhookAnyPort   bool          `name:"webhook-any-port" env:"CARRIL_WEBHOOK_ANY_PORT" help:"Let webhooks go to ports other than 443." group:"messaging"`
	WebhookPrivate   []string      `name:"webhook-private-targets" env:"CARRIL_WEBHOOK_PRIVATE_TARGETS" help:"CIDR ranges of private addresses that webhooks may go to; none by default." group:"messaging"`

	Addr    string `name:"addr" env:"CARRIL_ADDR" default:"127.0.0.1:8080" help:"Address of the public API; port 0 takes a free one." group:"listen"`
	OpsAddr string `name:"ops-addr" env:"CARRIL_OPS_ADDR" default:"127.0.0.1:0" help:"Address of /healthz, /readyz and /metrics." group:"listen"`

	AuthFailures   int      `name:"auth-failures" env:"CARRIL_AUTH_FAILURES" default:"30" help:"Failed authentications that an address has at once; another comes every 2 s." group:"listen"`
	TrustedProxies []string `name:"trusted-proxies" env:"CARRIL_TRUSTED_PROXIES" help:"CIDR ranges of the proxies whose X-Forwarded-For is believed; none by default." group:"listen"`

	OpsRemote bool `name:"ops-remote" env:"CARRIL_OPS_REMOTE" help:"Let the ops listener be reached from other machines: it asks for no key." group:"listen"`

	InstanceID string        `name:"instance-id" env:"CARRIL_INSTANCE_ID" help:"Names this replica for ever (a pod's name): a restart gets its partitions back at once." group:"process"`
	CatchUp    int           `name:"catch-up" env:"CARRIL_CATCH_UP" default:"0" help:"Large batches that the process applies at once while its stages catch up; 0 is half its cores. More drain a backlog faster, at the cost of what else runs there and in PostgreSQL." group:"process"`
	Drain      time.Duration `name:"drain" env:"CARRIL_DRAIN" default:"25s" help:"Longest a shutdown may take." group:"process"`
	LogLevel   string        `name:"log-level" env:"CARRIL_LOG_LEVEL" default:"info" enum:"debug,info,warn,error" help:"debug, info, warn or error." group:"process"`
}

// ErrConfig marks a setting that cannot be; the command ends with exit code 2
// before anything listens. It names the setting, never a secret's value.
var ErrConfig = errors.New("configuration")

func configError(name, format string, args ...any) error {
	return fmt.Errorf("%w: %s %s", ErrConfig, name, fmt.Sprintf(format, args...))
}

// ReadSecretFiles fills secrets whose CARRIL_…_FILE variable names a file.
func (s *Settings) ReadSecretFiles(getenv func(string) string) error {
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if _, secret := f.Tag.Lookup("secret"); !secret {
			continue
		}
		name := f.Tag.Get("env") + "_FILE"
		path := getenv(name)
		if path == "" {
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return configError(name, "cannot be read: %v", err)
		}
		value := strings.TrimSpace(string(b))
		if value == "" {
			return configError(name, "names an empty file")
		}
		if f.Type.Kind() == reflect.Slice {
			v.Field(i).Set(reflect.ValueOf(strings.Split(value, ",")))
		} else {
			v.Field(i).SetString(value)
		}
	}
	return nil
}

// Validate checks what can be checked without connecting.
func (s *Settings) Validate() error {
	for _, b := range s.KafkaBrokers {
		if _, _, err := net.SplitHostPort(b); err != nil {
			return configError("kafka-brokers", "has %q, which is not host:port", b)
		}
	}
	if !kafkaName.MatchString(s.KafkaPrefix) {
		return configError("kafka-prefix", "is not up to 100 letters, digits, dots, - and _, which names of topics are made of")
	}
	if !s.KafkaTLS {
		for name, file := range map[string]string{"kafka-tls-ca": s.KafkaTLSCA, "kafka-tls-cert": s.KafkaTLSCert, "kafka-tls-key": s.KafkaTLSKey} {
			if file != "" {
				return configError(name, "is set, and kafka-tls is not")
			}
		}
	}
	if (s.KafkaTLSCert == "") != (s.KafkaTLSKey == "") {
		return configError("kafka-tls-cert", "goes with kafka-tls-key")
	}
	urls := map[string]string{"registry-url": s.RegistryURL, "postgres-url": s.PostgresURL, "postgres-direct-url": s.PostgresDirectURL,
		"redis-url": s.RedisURL, "resend-url": s.ResendURL, "sms-url": s.SMSURL, "sms-callback-url": s.SMSCallbackURL}
	for name, raw := range urls {
		if raw == "" {
			continue
		}
		if u, err := url.Parse(raw); err != nil || u.Scheme == "" || u.Host == "" {
			return configError(name, "is not a URL with a scheme and a host")
		}
	}
	switch {
	case len(s.Channels) == 0:
		return configError("channels", "names none")
	case !(s.ResendRate > 0) || s.ResendRate > 100_000:
		return configError("resend-rate", "must be a positive number of requests a second")
	case s.MarketingLate < 0 || s.MarketingLate > time.Second:
		return configError("marketing-late", "is not within 0 and 1s")
	case s.LatencyBudget < 100*time.Millisecond:
		return configError("latency-budget", "is below 100ms")
	case s.Workers < 1 || s.Workers > 1024:
		return configError("marketing-workers", "must be 1 to 1024")
	case s.Drain < time.Second:
		return configError("drain", "is below 1s")
	}
	for name, addr := range map[string]string{"addr": s.Addr, "ops-addr": s.OpsAddr} {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return configError(name, "%q is not host:port", addr)
		}
	}
	if s.CatchUp < 0 {
		return configError("catch-up", "is negative")
	}
	if s.AuthFailures < 1 {
		return configError("auth-failures", "must be at least 1")
	}
	for _, p := range s.TrustedProxies {
		if _, err := netip.ParsePrefix(p); err != nil {
			return configError("trusted-proxies", "has %q, which is no CIDR range", p)
		}
	}
	if err := errors.Join(s.validateProviders(), s.validateBlasts(), s.validateSecrets()); err != nil {
		return err
	}
	if s.StorageURL != "" {
		if err := s.storage().Validate(); err != nil {
			return configError("storage-url", "does not serve: %v", err)
		}
	}
	if _, err := s.webhookGuard(); err != nil {
		return err
	}
	host, _, _ := net.SplitHostPort(s.OpsAddr)
	if ip := net.ParseIP(host); !s.OpsRemote && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return configError("ops-addr", "%q can be reached from other machines, and it asks for no key: say --ops-remote if that is meant", s.OpsAddr)
	}
	return nil
}

// foreign are variables of ours that are no settings of the product.
var foreign = []string{"CARRIL_TEST_", "CARRIL_SERVICES_", "CARRIL_DEVSTACK_", "CARRIL_RESEND_OPENAPI", "CARRIL_SANDBOX_"}

// CheckEnvironment refuses a CARRIL_* variable that no setting reads, and an empty
// secret: they would otherwise be believed to work.
func CheckEnvironment(environ []string) error {
	known, secret := map[string]bool{}, map[string]bool{}
	t := reflect.TypeFor[Settings]()
	for i := range t.NumField() {
		name := t.Field(i).Tag.Get("env")
		known[name], secret[name] = true, credential(t.Field(i))
		if _, ok := t.Field(i).Tag.Lookup("secret"); ok {
			known[name+"_FILE"] = true
		}
	}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if secret[name] && value == "" {
			return configError(name, "is set and empty")
		}
		if !strings.HasPrefix(name, "CARRIL_") || known[name] {
			continue
		}
		if !slices.ContainsFunc(foreign, func(p string) bool { return strings.HasPrefix(name, p) }) {
			return configError(name, "is no setting: `carril config` lists them")
		}
	}
	return nil
}

// NeedStores says which connections are missing.
func (s *Settings) NeedStores() error {
	for name, have := range map[string]bool{"CARRIL_KAFKA_BROKERS": len(s.KafkaBrokers) > 0, "CARRIL_REGISTRY_URL": s.RegistryURL != "",
		"CARRIL_POSTGRES_URL": s.PostgresURL != "", "CARRIL_REDIS_URL": s.RedisURL != ""} {
		if !have {
			return configError(name, "is not set (`carril dev` runs everything by itself)")
		}
	}
	// Not in Validate: a secret may come from a file, which is read later.
	if (s.StorageAccessKey == "") != (s.StorageSecretKey == "") {
		return configError("storage-access-key", "goes with storage-secret-key")
	}
	switch credentials := s.KafkaSASLUser != "" && s.KafkaSASLPassword != ""; {
	case s.KafkaSASLMechanism != "" && !credentials:
		return configError("kafka-sasl-mechanism", "goes with kafka-sasl-user and kafka-sasl-password")
	case s.KafkaSASLMechanism == "" && (s.KafkaSASLUser != "" || s.KafkaSASLPassword != ""):
		return configError("kafka-sasl-user", "or kafka-sasl-password is set, and kafka-sasl-mechanism is not: nothing would be sent")
	case s.RegistryToken != "" && (s.RegistryUser != "" || s.RegistryPassword != ""):
		return configError("registry-token", "and registry-user: one of them")
	}
	return nil
}

// kafkaName is what a prefix may be of; the longest topic of ours fits behind it.
var kafkaName = regexp.MustCompile(`^[A-Za-z0-9._-]{0,100}$`)

// proxies are the trusted ones, as Validate has seen them.
func (s *Settings) proxies() []netip.Prefix {
	ps := make([]netip.Prefix, 0, len(s.TrustedProxies))
	for _, p := range s.TrustedProxies {
		if prefix, err := netip.ParsePrefix(p); err == nil {
			ps = append(ps, prefix.Masked())
		}
	}
	return ps
}

// direct is the URL for what a transaction pooler cannot carry.
func (s *Settings) direct() string {
	if s.PostgresDirectURL != "" {
		return s.PostgresDirectURL
	}
	return s.PostgresURL
}

// KafkaConfig is the cluster as the settings describe it.
func (s *Settings) KafkaConfig() (kafka.Config, error) {
	c := kafka.Config{Brokers: s.KafkaBrokers, Prefix: s.KafkaPrefix, SingleNode: s.KafkaSingleNode,
		SASL: kafka.SASL{Mechanism: s.KafkaSASLMechanism, User: s.KafkaSASLUser, Password: s.KafkaSASLPassword}}
	if !s.KafkaTLS {
		return c, nil
	}
	c.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	if s.KafkaTLSCA != "" {
		pem, err := os.ReadFile(s.KafkaTLSCA)
		if err != nil {
			return c, configError("kafka-tls-ca", "cannot be read: %v", err)
		}
		c.TLS.RootCAs = x509.NewCertPool()
		if !c.TLS.RootCAs.AppendCertsFromPEM(pem) {
			return c, configError("kafka-tls-ca", "holds no certificate")
		}
	}
	if s.KafkaTLSCert != "" {
		cert, err := tls.LoadX509KeyPair(s.KafkaTLSCert, s.KafkaTLSKey)
		if err != nil {
			return c, configError("kafka-tls-cert", "cannot be used: %v", err)
		}
		c.TLS.Certificates = []tls.Certificate{cert}
	}
	return c, nil
}

// Masked lists the settings by flag name, secrets hidden.
func (s *Settings) Masked() map[string]string {
	out := map[string]string{}
	v := reflect.ValueOf(*s)
	for i := range v.NumField() {
		f := v.Type().Field(i)
		value := fmt.Sprint(v.Field(i).Interface())
		if f.Type.Kind() == reflect.Slice {
			value = strings.Trim(value, "[]")
			value = strings.ReplaceAll(value, " ", ",")
		}
		if _, secret := f.Tag.Lookup("secret"); secret && value != "" {
			value = "****"
		}
		out[f.Tag.Get("name")] = value
	}
	return out
}

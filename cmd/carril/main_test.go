package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func try(args ...string) (code int, out, errs string) {
	var stdout, stderr bytes.Buffer
	code = run(args, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func TestConfigurationThatCannotBeEndsWithTwo(t *testing.T) { // bad-inputs rows 82, 83
	for name, tc := range map[string]struct {
		env  map[string]string
		args []string
		says string
	}{
		"UnknownCommand":      {args: []string{"fly"}, says: "fly"},
		"UnknownFlag":         {args: []string{"config", "--acks=1"}, says: "acks"},
		"UnknownVariable":     {env: map[string]string{"CARRIL_KAFKA_BROKER": "h:1"}, args: []string{"config"}, says: "CARRIL_KAFKA_BROKER"},
		"RateNaN":             {args: []string{"config", "--resend-rate=NaN"}, says: "resend-rate"},
		"NoSuchProvider":      {args: []string{"config", "--email-providers=resend,pigeon"}, says: "email-providers"},
		"ProviderTwice":       {args: []string{"config", "--email-providers=smtp,smtp"}, says: "email-providers"},
		"NoSuchChannel":       {args: []string{"config", "--channels=email,fax"}, says: "channels"},
		"TooManyRepeats":      {args: []string{"config", "--uncertain-repeats=6"}, says: "uncertain-repeats"},
		"CallbackThatIsNoURL": {args: []string{"config", "--sms-callback-url=carril"}, says: "sms-callback-url"},
		"NoBounceAllowed":     {args: []string{"config", "--blast-bounces=0"}, says: "blast-bounces"},
		"ComplaintsNaN":       {args: []string{"config", "--blast-complaints=NaN"}, says: "blast-complaints"},
		"NoFirstMessages":     {args: []string{"config", "--blast-first=0"}, says: "blast-first"},
		"NoTrips":             {args: []string{"config", "--blast-trips=-2"}, says: "blast-trips"},
		"NoWaitForTheFirst":   {args: []string{"config", "--blast-first-wait=0s"}, says: "blast-first-wait"},
		"NoBatches":           {args: []string{"config", "--feeder-batches=0"}, says: "feeder-batches"},
		"NegativeQuota":       {args: []string{"config", "--resend-day-quota=-1"}, says: "resend-day-quota"},
		"AllOfTheQuota":       {args: []string{"config", "--quota-reserve=1"}, says: "quota-reserve"},
		"ReserveNaN":          {env: map[string]string{"CARRIL_QUOTA_RESERVE": "NaN"}, args: []string{"config"}, says: "quota-reserve"},
		"RelayRateNaN":        {args: []string{"config", "--smtp-rate=NaN"}, says: "smtp-rate"},
		"NoWorkers":           {args: []string{"config", "--marketing-workers=0"}, says: "marketing-workers"},
		"RateZero":            {args: []string{"config", "--resend-rate=0"}, says: "resend-rate"},
		"DurationWithoutUnit": {args: []string{"config", "--latency-budget=5"}, says: "latency-budget"},
		"BrokerWithoutPort":   {args: []string{"config", "--kafka-brokers=kafka"}, says: "kafka-brokers"},
		"OpsForEverybody":     {args: []string{"config", "--ops-addr=0.0.0.0:9000"}, says: "ops-addr"},
		"NoSuchScope":         {args: []string{"key", "create", "--tenant=acme", "--scopes=core.events.write,core.event.read"}, says: `no "core.event.read"`},
		"KeyOfThePast":        {args: []string{"key", "create", "--tenant=acme", "--expires=-5h"}, says: "--expires must not be negative"},
		"KeyOfNowhere":        {args: []string{"key", "create", "--tenant=acme", "--env=prod"}, says: "--env must be one of"},
		"EmptyTenant":         {args: []string{"bucket", "set", "--provider=resend", "--tenant", "", "--rate=1"}, says: "--tenant is empty"},
		"EmptyFilter":         {args: []string{"dlq", "discard", "--stage=", "--class=poison", "--note=x", "--yes=3"}, says: "--stage is empty"},
		"EmptyStart":          {args: []string{"blast", "start", "--tenant=acme", "--at=", "01a22c89-690b-7606-82a1-134f15a3c34d"}, says: "--at is empty"},
		"EmptyArgument":       {args: []string{"partitions", "list", ""}, says: "<table>"},
		"NoStores":            {args: []string{"ingest"}, says: "is not set"},
		"SecretFileMissing":   {env: map[string]string{"CARRIL_RESEND_KEY_FILE": "/nowhere/key"}, args: []string{"config"}, says: "CARRIL_RESEND_KEY_FILE"},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range tc.env {
				t.Setenv(k, v)
			}
			code, _, errs := try(tc.args...)
			require.Equal(t, exitUsage, code, errs)
			require.Contains(t, errs, tc.says)
		})
	}
}

// The same for what `carril ingest` is told: it ends before anything listens,
// names the setting and never says a secret's value.
// A setting may be emptied on the command line, over the environment.
func TestASettingMayBeEmpty(t *testing.T) {
	t.Setenv("CARRIL_REDIS_PREFIX", "staging")
	code, out, errs := try("config", "--redis-prefix=")
	require.Zero(t, code, errs)
	require.NotContains(t, out, "staging")
}

func TestIngestRefusesConfigValues(t *testing.T) { // bad-inputs rows 82, 83
	stores := map[string]string{"CARRIL_KAFKA_BROKERS": "127.0.0.1:1", "CARRIL_REGISTRY_URL": "http://127.0.0.1:1",
		"CARRIL_POSTGRES_URL": "postgres://127.0.0.1:1/x", "CARRIL_REDIS_URL": "redis://127.0.0.1:1"}
	const weak = "canary-7"
	for name, tc := range map[string]struct {
		env  map[string]string
		args []string
		file string
		says string
	}{
		"AcksInTheEnvironment":   {env: map[string]string{"CARRIL_ACKS": "1"}, says: "CARRIL_ACKS"},
		"AcksAsAFlag":            {args: []string{"--acks=1"}, says: "acks"},
		"NegativeBody":           {env: map[string]string{"CARRIL_MAX_BODY": "-1"}, says: "CARRIL_MAX_BODY"},
		"RateOfZero":             {env: map[string]string{"CARRIL_RESEND_RATE": "0"}, says: "resend-rate"},
		"RateThatIsNoNumber":     {env: map[string]string{"CARRIL_RESEND_RATE": "NaN"}, says: "resend-rate"},
		"RateWithoutEnd":         {env: map[string]string{"CARRIL_RESEND_RATE": "+Inf"}, says: "resend-rate"},
		"TimeWithoutUnit":        {env: map[string]string{"CARRIL_DRAIN": "5"}, says: "drain"},
		"NegativeTime":           {args: []string{"--drain=-5s"}, says: "drain"},
		"EmptySecret":            {env: map[string]string{"CARRIL_RESEND_KEY": ""}, says: "CARRIL_RESEND_KEY"},
		"EmptySecretFile":        {env: map[string]string{"CARRIL_WEBHOOK_KEY_FILE": os.DevNull}, says: "CARRIL_WEBHOOK_KEY_FILE"},
		"EightCharacterSecret":   {env: map[string]string{"CARRIL_RESEND_WEBHOOK_SECRETS": weak}, says: "resend-webhook-secrets"},
		"ShortCallbackToken":     {env: map[string]string{"CARRIL_SMS_WEBHOOK_TOKENS": weak}, says: "sms-webhook-tokens"},
		"RelayPlaceholder":       {env: map[string]string{"CARRIL_SMTP_PASSWORD": "changeme"}, says: "smtp-password"},
		"ShortWebhookSecret":     {env: map[string]string{"CARRIL_RESEND_WEBHOOK_SECRETS": "whsec_Y2FuYXJ5LTc="}, says: "resend-webhook-secrets"},
		"ShortWebhookKey":        {env: map[string]string{"CARRIL_WEBHOOK_KEY": weak}, says: "webhook-key"},
		"WebhookKeyOfZeros":      {env: map[string]string{"CARRIL_WEBHOOK_KEY": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}, says: "webhook-key"},
		"SecretFromTheDocuments": {env: map[string]string{"CARRIL_RESEND_KEY": "re_example_key"}, says: "resend-key"},
		"SecretToBeFilledIn":     {env: map[string]string{"CARRIL_KAFKA_SASL_PASSWORD": "<password>"}, says: "kafka-sasl-password"},
		"ChannelTwice":           {env: map[string]string{"CARRIL_CHANNELS": "email,email"}, says: "channels names email twice"},
		"SASLWithoutAUser":       {env: map[string]string{"CARRIL_KAFKA_SASL_MECHANISM": "PLAIN"}, says: "kafka-sasl-mechanism"},
		"SASLWithoutAMechanism":  {env: map[string]string{"CARRIL_KAFKA_SASL_USER": "u", "CARRIL_KAFKA_SASL_PASSWORD": "correct-horse-battery-9"}, says: "kafka-sasl-mechanism is not"},
		"TLSFilesWithoutTLS":     {env: map[string]string{"CARRIL_KAFKA_TLS_CA": "ca.pem"}, says: "kafka-tls-ca is set, and kafka-tls is not"},
		"TLSCertWithoutKey":      {env: map[string]string{"CARRIL_KAFKA_TLS": "true", "CARRIL_KAFKA_TLS_CERT": "c.pem"}, says: "kafka-tls-key"},
		"PrefixOfNoTopic":        {env: map[string]string{"CARRIL_KAFKA_PREFIX": "a b."}, says: "kafka-prefix"},
		"TokenBesideAUser":       {env: map[string]string{"CARRIL_REGISTRY_TOKEN": "correct-horse-battery-9", "CARRIL_REGISTRY_USER": "u"}, says: "registry-token"},
		"UnknownKeyOfTheFile":    {file: "max-body: 5\n", says: "max-body"},
		"DuplicateKeyOfTheFile":  {file: "drain: 9s\ndrain: 8s\n", says: "drain"},
		"ProxyThatIsNoRange":     {env: map[string]string{"CARRIL_TRUSTED_PROXIES": "10.0.0.1"}, says: "trusted-proxies"},
		"PrivateTargetNoRange":   {env: map[string]string{"CARRIL_WEBHOOK_PRIVATE_TARGETS": "localhost"}, says: "webhook-private-targets"},
		"OpsOnEveryAddress":      {args: []string{"--ops-addr=0.0.0.0:9000"}, says: "ops-addr"},
		"OpsOnAnyName":           {args: []string{"--ops-addr=:9000"}, says: "ops-addr"},
		"TLSWithoutVerification": {args: []string{"--kafka-tls-insecure-skip-verify"}, says: "insecure"},
		"Pprof":                  {args: []string{"--pprof"}, says: "pprof"},
		"AddressWithoutAPort":    {args: []string{"--addr=localhost"}, says: "addr"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, env := range []map[string]string{stores, tc.env} {
				for k, v := range env {
					t.Setenv(k, v)
				}
			}
			args := append([]string{"ingest"}, tc.args...)
			if tc.file != "" {
				p := filepath.Join(t.TempDir(), "carril.yaml")
				require.NoError(t, os.WriteFile(p, []byte(tc.file), 0o600))
				args = append(args, "--config", p)
			}
			code, out, errs := try(args...)
			require.Equal(t, exitUsage, code, errs)
			require.Contains(t, errs, tc.says)
			require.NotContains(t, errs, weak)
			require.NotContains(t, errs, "re_example_key")
			require.NotContains(t, out+errs, "ready api=")
		})
	}
}

func TestSettingsFile(t *testing.T) {
	write := func(t *testing.T, text string) string {
		t.Helper()
		p := filepath.Join(t.TempDir(), "carril.yaml")
		require.NoError(t, os.WriteFile(p, []byte(text), 0o600))
		return p
	}
	t.Run("IsBelowVariablesAndFlags", func(t *testing.T) {
		p := write(t, "resend-rate: 7\nlog-level: debug\nkafka-brokers: [a:1, b:2]\n")
		t.Setenv("CARRIL_LOG_LEVEL", "warn")
		code, out, errs := try("config", "--config", p, "--drain=9s")
		require.Zero(t, code, errs)
		for _, want := range []string{"resend-rate: 7\n", "log-level: warn\n", "drain: 9s\n", "kafka-brokers: a:1,b:2\n"} {
			require.Contains(t, out, want)
		}
	})
	for name, text := range map[string]string{"UnknownKey": "acks: 1\n", "DuplicateKey": "drain: 9s\ndrain: 8s\n", "NotYAML": "{", "NoValue": "drain:\n"} {
		t.Run("Refuses"+name, func(t *testing.T) {
			code, _, errs := try("config", "--config", write(t, text))
			require.Equal(t, exitUsage, code, errs)
		})
	}
}

func TestConfigMasksSecrets(t *testing.T) {
	t.Setenv("CARRIL_POSTGRES_URL", "postgres://u:hunter2@h:1/d")
	t.Setenv("CARRIL_RESEND_KEY", "re_canary")
	code, out, errs := try("config")
	require.Zero(t, code, errs)
	require.NotContains(t, out, "hunter2")
	require.NotContains(t, out, "re_canary")
	require.Contains(t, out, "resend-key: ****")
	require.True(t, strings.HasPrefix(out, "addr: "))
}

func TestHelpTeaches(t *testing.T) {
	code, out, _ := try("--help")
	require.Zero(t, code)
	for _, want := range []string{"start here", "Exit codes", "CARRIL_"} {
		require.Contains(t, out, want)
	}
}

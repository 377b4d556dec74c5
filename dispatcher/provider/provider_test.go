package provider_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/softcrum/carril/dispatcher/provider"
)

func TestParseRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)

	t.Run("ClampsEveryForm", func(t *testing.T) {
		t.Parallel() // faults F29, bad-inputs row 84
		for value, want := range map[string]time.Duration{
			"":                               0,
			"   ":                            0,
			"0":                              time.Second,
			"5":                              5 * time.Second,
			" 5 ":                            5 * time.Second,
			"+5":                             5 * time.Second,
			"-5":                             time.Second,
			"0.2":                            time.Second,
			"2.5":                            2500 * time.Millisecond,
			"899":                            899 * time.Second,
			"900":                            15 * time.Minute,
			"1e9":                            15 * time.Minute,
			"1e400":                          15 * time.Minute,
			"-1e400":                         time.Second,
			"99999999999999999999":           15 * time.Minute,
			"9223372036854775807":            15 * time.Minute,
			"Sun, 22 Nov 2026 10:00:30 GMT":  30 * time.Second,
			"Sunday, 22-Nov-26 10:00:30 GMT": 30 * time.Second,
			"Sun, 22 Nov 2026 09:00:00 GMT":  time.Second,
			"Thu, 01 Jan 1970 00:00:00 GMT":  time.Second,
			"Fri, 31 Dec 9999 23:59:59 GMT":  15 * time.Minute,
			"soon":                           0, "NaN": 0, "inf": 0, "0x10": 0, "5, 6": 0, "5s": 0, "--5": 0, "e": 0,
		} {
			require.Equal(t, want, provider.ParseRetryAfter(value, now), "%q", value)
		}
	})

	t.Run("IsAbsentOrWithinBounds", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			got := provider.ParseRetryAfter(rapid.StringMatching(`[-+0-9.eEa-zA-Z :,]{0,32}`).Draw(t, "value"), now)
			if got != 0 {
				require.GreaterOrEqual(t, got, provider.MinRetryAfter)
				require.LessOrEqual(t, got, provider.MaxRetryAfter)
			}
		})
	})
}

func TestRedact(t *testing.T) {
	t.Parallel()

	t.Run("MasksWhatAProviderQuotes", func(t *testing.T) {
		t.Parallel()
		for in, want := range map[string]string{
			"Invalid `to` field":                       "Invalid `to` field",
			"550 5.1.1 <ana@example.com> user unknown": "550 5.1.1 [redacted] user unknown",
			"no mailbox ana@example.com: gone":         "no mailbox [redacted] gone",
			"to:ana+x@example.com":                     "to:[redacted]",
			`value "Your code is 1234" is bad`:         "value [redacted] is bad",
			"number +5491122334455 unreachable":        "number [redacted] unreachable",
			"number 5491122334455":                     "number [redacted]",
			"key re_abc is restricted":                 "key [redacted] is restricted",
			"a\r\nb\x00c\u202ed":                       "a  b c d",
			"\xff\xfeplain":                            "plain",
		} {
			require.Equal(t, want, provider.Redact(in, "re_abc", ""), "%q", in)
		}
	})

	t.Run("IsShortAndPrintableWhateverComesIn", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			local := rapid.StringMatching(`[a-z][a-z0-9._+-]{0,20}`).Draw(t, "local")
			pad := rapid.String().Draw(t, "pad")
			got := provider.Redact(pad + " <" + local + "@example.com> " + strings.Repeat(pad, 20))
			require.LessOrEqual(t, len(got), 300)
			require.True(t, utf8.ValidString(got))
			require.NotContains(t, got, local+"@example.com")
			require.NotContains(t, got, "\n")
		})
	})
}

func TestStatuses(t *testing.T) {
	t.Parallel()

	t.Run("AreCodesThatTheDatabaseKnows", func(t *testing.T) {
		t.Parallel()
		files, err := filepath.Glob(filepath.Join("..", "..", "migrations", "sql", "*.sql"))
		require.NoError(t, err)
		var sql strings.Builder
		for _, f := range files {
			text, err := os.ReadFile(f)
			require.NoError(t, err)
			sql.Write(text)
		}
		for _, s := range provider.Statuses() {
			if s == provider.StatusSuppressed {
				continue // the provider's word for a failure of ours
			}
			require.Regexp(t, `(?s)INSERT INTO messaging\.send_statuses [^;]*\('`+string(s)+`', `, sql.String())
		}
	})
}

func TestClassOf(t *testing.T) {
	t.Parallel()

	t.Run("TakesTheSafeClassForAnUnknownError", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, provider.ClassUncertain, provider.ClassOf(errors.New("x")))
	})

	t.Run("LooksThroughWrappingAndMessageErrors", func(t *testing.T) {
		t.Parallel()
		reason := &provider.Error{Class: provider.ClassPermanent, Code: "invalid_recipient"}
		err := fmt.Errorf("freeze: %w", &provider.MessageError{Index: 3, Reason: reason})
		require.Equal(t, provider.ClassPermanent, provider.ClassOf(err))
		require.EqualError(t, err, "freeze: freeze message 3: provider: invalid_recipient (permanent)")
	})
}

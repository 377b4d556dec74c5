package resend

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

const redactedKey = "re_[redacted]"

// Key is an API key. It prints itself as "re_[redacted]" in every verb, in JSON
// and in logs.
type Key struct {
	value string
}

// NewKey takes a key as it was configured; white space around it is ignored.
func NewKey(s string) Key { return Key{value: strings.TrimSpace(s)} }

// check keeps a line break or a placeholder from reaching a header.
func (k Key) check() error {
	switch {
	case k.value == "":
		return errors.New("api_key is empty")
	case !strings.HasPrefix(k.value, "re_") || len(k.value) < 8:
		return errors.New("api_key is no key of Resend's, which begin with re_")
	case !printable(k.value) || strings.Contains(k.value, " "):
		return errors.New("api_key has characters that no header may hold")
	}
	return nil
}

func printable(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) < 0
}

// Format prints the redacted form whatever the verb.
func (k Key) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redactedKey)) }

// String gives the redacted form.
func (k Key) String() string { return redactedKey }

// LogValue gives the redacted form to slog.
func (k Key) LogValue() slog.Value { return slog.StringValue(redactedKey) }

// MarshalText gives the redacted form to JSON, YAML and the like.
func (k Key) MarshalText() ([]byte, error) { return []byte(redactedKey), nil }

// UnmarshalText takes a key from configuration.
func (k *Key) UnmarshalText(text []byte) error {
	*k = NewKey(string(text))
	return nil
}

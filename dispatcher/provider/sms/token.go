package sms

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

const redacted = "[redacted]"

// Token authenticates with the API. It prints itself as "[redacted]" in every
// verb, in JSON and in logs.
type Token struct {
	value string
}

// NewToken takes a token as it was configured; white space around it is ignored.
func NewToken(s string) Token { return Token{value: strings.TrimSpace(s)} }

// check keeps a line break or a placeholder from reaching a header.
func (t Token) check() error {
	if len(t.value) < 16 || strings.IndexFunc(t.value, func(r rune) bool { return r <= ' ' || r > '~' }) >= 0 {
		return errors.New("token is not 16 printable characters or more")
	}
	return nil
}

// Format prints the redacted form whatever the verb.
func (t Token) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// String gives the redacted form.
func (t Token) String() string { return redacted }

// LogValue gives the redacted form to slog.
func (t Token) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText gives the redacted form to JSON, YAML and the like.
func (t Token) MarshalText() ([]byte, error) { return []byte(redacted), nil }

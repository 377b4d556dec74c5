package smtp

import (
	"encoding/base64"
	"fmt"
	"log/slog"
	"strings"
)

const redacted = "[redacted]"

// Password authenticates with the relay. It prints itself as "[redacted]" in
// every verb, in JSON and in logs.
type Password struct {
	value string
}

// NewPassword takes a password as it was configured; a line break at its end,
// which files have, is ignored.
func NewPassword(s string) Password { return Password{value: strings.TrimRight(s, "\r\n")} }

// Format prints the redacted form whatever the verb.
func (p Password) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// String gives the redacted form.
func (p Password) String() string { return redacted }

// LogValue gives the redacted form to slog.
func (p Password) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText gives the redacted form to JSON, YAML and the like.
func (p Password) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// secrets lists what a relay could repeat of the credential: in clear, and in
// the forms in which it went over the wire.
func (a *Adapter) secrets() []string {
	user, password := a.cfg.User, a.password.Load().value
	if user == "" {
		return nil
	}
	encode := base64.StdEncoding.EncodeToString
	return []string{
		encode([]byte("\x00" + user + "\x00" + password)), encode([]byte(password)), encode([]byte(user)), password, user,
	}
}

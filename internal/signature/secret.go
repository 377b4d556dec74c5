package signature

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

const (
	secretPrefix = "whsec_"
	redacted     = secretPrefix + "[redacted]"

	// MinSecretBytes is the least key length that is accepted, after decoding.
	MinSecretBytes = 24
	// MaxSecretBytes is SHA-256's block; HMAC would hash a longer key down.
	MaxSecretBytes = 64

	newSecretBytes = 32
)

// ErrWeakSecret is what ParseSecret returns for anything that is no usable
// secret. Neither it nor what wraps it carries any part of the value.
var ErrWeakSecret = errors.New("signature: no usable webhook secret")

// Secret is the key of one webhook source or endpoint. It prints itself as
// "whsec_[redacted]" in every verb, in JSON and in logs; Reveal alone gives the
// value. The zero Secret signs and verifies nothing.
type Secret struct {
	key []byte
}

// NewSecret makes a secret of 32 random bytes.
func NewSecret() Secret {
	key := make([]byte, newSecretBytes)
	rand.Read(key) // never fails: it ends the program where the system has no randomness
	return Secret{key: key}
}

// ParseSecret reads "whsec_" and Base64, padded or not, of 24 to 64 bytes.
// White space around it, as of a file's last line, is ignored.
func ParseSecret(s string) (Secret, error) {
	encoded, ok := strings.CutPrefix(strings.TrimSpace(s), secretPrefix)
	if !ok {
		return Secret{}, fmt.Errorf("%w: it does not begin with %s", ErrWeakSecret, secretPrefix)
	}
	key, err := base64.RawStdEncoding.Strict().DecodeString(strings.TrimRight(encoded, "="))
	if err != nil {
		return Secret{}, fmt.Errorf("%w: what follows %s is not Base64", ErrWeakSecret, secretPrefix)
	}
	if len(key) < MinSecretBytes || len(key) > MaxSecretBytes {
		return Secret{}, fmt.Errorf("%w: %d bytes, want %d to %d", ErrWeakSecret, len(key), MinSecretBytes, MaxSecretBytes)
	}
	if uniform(key) {
		return Secret{}, fmt.Errorf("%w: every byte is the same", ErrWeakSecret)
	}
	return Secret{key: key}, nil
}

// uniform finds the placeholder that somebody typed instead of a random key.
func uniform(key []byte) bool {
	for _, b := range key[1:] {
		if b != key[0] {
			return false
		}
	}
	return true
}

// IsZero says that the secret was never set.
func (s Secret) IsZero() bool { return len(s.key) == 0 }

// Reveal gives the secret in the form that ParseSecret reads. It is for the
// store that encrypts it and for the one answer that shows it to its owner.
func (s Secret) Reveal() string {
	return secretPrefix + base64.StdEncoding.EncodeToString(s.key)
}

// Format prints the redacted form whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// String gives the redacted form.
func (s Secret) String() string { return redacted }

// LogValue gives the redacted form to slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText gives the redacted form to JSON, YAML and the like.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// UnmarshalText reads what ParseSecret reads, for configuration.
func (s *Secret) UnmarshalText(text []byte) error {
	parsed, err := ParseSecret(string(text))
	if err != nil {
		return err
	}
	*s = parsed
	return nil
}

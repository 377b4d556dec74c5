// Package seal keeps secrets at rest: AES-256-GCM under a key of the
// configuration whose id stands before the sealed text, so that a new key can
// come while what the old one sealed is still read. What is sealed is bound to
// what it belongs to, and opens nowhere else. Package webhook seals the signing
// secrets and the headers of endpoints with it; where they are stored is its
// business.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// KeyBytes is the length of a key.
const KeyBytes = 32

// ErrUnknownKey says that the key that sealed a text is not among ours.
var ErrUnknownKey = errors.New("seal: sealed under a key that is not configured")

// ErrBroken says that a text was not sealed by us, for this owner, or was changed.
var ErrBroken = errors.New("seal: the sealed text does not open")

// Keys seals under one key and opens under several. It prints nothing of them.
type Keys struct {
	current string
	byID    map[string]cipher.AEAD
}

// Parse reads keys, each 32 bytes in Base64, with "id=" before it where it has a
// name; a key without one is named after its own hash. The first seals, all
// open. Errors quote no key.
func Parse(keys ...string) (*Keys, error) {
	k := &Keys{byID: make(map[string]cipher.AEAD, len(keys))}
	for i, given := range keys {
		id, key, err := parse(given)
		if err != nil {
			return nil, fmt.Errorf("seal: key %d: %w", i+1, err)
		}
		if _, twice := k.byID[id]; twice {
			return nil, fmt.Errorf("seal: key %d: its id %q is given twice", i+1, id)
		}
		if k.byID[id], err = aead(key); err != nil {
			return nil, fmt.Errorf("seal: key %d: %w", i+1, err)
		}
		if i == 0 {
			k.current = id
		}
	}
	if k.current == "" {
		return nil, errors.New("seal: no key is given")
	}
	return k, nil
}

func parse(given string) (id string, key []byte, err error) {
	given = strings.TrimSpace(given)
	encoded := given
	// Base64 itself may end with "=": an id is what stands before one that is followed by more.
	if name, rest, ok := strings.Cut(given, "="); ok && strings.Trim(rest, "=") != "" {
		id, encoded = name, rest
		if !plain(id) {
			return "", nil, errors.New("an id has 1 to 32 letters, digits, dashes or underscores")
		}
	}
	key, err = base64.RawStdEncoding.Strict().DecodeString(strings.TrimRight(encoded, "="))
	if err != nil || len(key) != KeyBytes {
		return "", nil, fmt.Errorf("want %d bytes in Base64", KeyBytes)
	}
	if id == "" {
		sum := sha256.Sum256(key)
		id = "k" + hex.EncodeToString(sum[:4])
	}
	return id, key, nil
}

func plain(id string) bool {
	return id != "" && len(id) <= 32 && strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == ""
}

func aead(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("make the cipher: %w", err)
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// Seal encrypts plain for an owner and gives "id:base64". The same owner must
// be named to open it.
func (k *Keys) Seal(owner string, plain []byte) string {
	sealed := k.byID[k.current].Seal(nil, nil, plain, []byte(owner))
	return k.current + ":" + base64.RawStdEncoding.EncodeToString(sealed)
}

// Open decrypts what Seal gave. The error is ErrUnknownKey or ErrBroken.
func (k *Keys) Open(owner, sealed string) ([]byte, error) {
	id, encoded, ok := strings.Cut(sealed, ":")
	if !ok {
		return nil, ErrBroken
	}
	a, ok := k.byID[id]
	if !ok {
		return nil, fmt.Errorf("%w: %q", ErrUnknownKey, id)
	}
	raw, err := base64.RawStdEncoding.Strict().DecodeString(encoded)
	if err != nil || len(raw) < a.Overhead() {
		return nil, ErrBroken
	}
	plain, err := a.Open(nil, nil, raw, []byte(owner))
	if err != nil {
		return nil, ErrBroken
	}
	return plain, nil
}

// Current says whether a text was sealed under the key that seals now, so that
// others can be sealed anew.
func (k *Keys) Current(sealed string) bool { return strings.HasPrefix(sealed, k.current+":") }

// NewKey makes a key in the form that Parse reads.
func NewKey() string {
	key := make([]byte, KeyBytes)
	rand.Read(key) // never fails: it ends the program where the system has no randomness
	return base64.StdEncoding.EncodeToString(key)
}

// String says what it is and nothing more.
func (k *Keys) String() string { return "seal keys [redacted]" }

// Format prints the redacted form whatever the verb.
func (k *Keys) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(k.String())) }

// Package apikey owns API keys: their form, how they are made and revoked, and
// who stands behind one that a request presents. A Verifier answers from memory
// and asks PostgreSQL seldom, keeps known keys working for a while without it,
// and forgets a revoked key as soon as the database says so. What a scope allows
// is the business of the routes that ask for it.
package apikey

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"strings"
	"unsafe"
)

// A key is ck_<env>_<key id>_<secret><crc>: letters and digits that a double
// click selects whole and a secret scanner recognises. The checksum is the
// CRC-32 of all before it: a mistyped or invented key costs no query.
const (
	prefix    = "ck_"
	maxEnv    = 12
	idLen     = 12 // 71 bits, so that ids do not collide
	secretLen = 43 // 256 bits
	crcLen    = 6
)

// digits of base 62.
const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// Key is a well-formed key, not yet known to be anybody's.
type Key struct {
	Env  string // "live", "test", "dev": 1 to 12 lower-case letters and digits
	ID   string // public: stands in lists and logs
	Hash [sha256.Size]byte
}

// Generate makes a new key for an environment. The text is the secret; only
// its hash is kept.
func Generate(env string) (text string, k Key, err error) {
	if !validEnv(env) {
		return "", Key{}, fmt.Errorf("environment of a key: 1 to %d lower-case letters and digits, not %q", maxEnv, env)
	}
	id := random(idLen)
	body := prefix + env + "_" + id + "_" + random(secretLen)
	sum := checksum(body)
	text = body + string(sum[:])
	return text, Key{Env: env, ID: id, Hash: hash(text)}, nil
}

// Parse takes a key apart; ok is false where its form or checksum is wrong.
func Parse(text string) (k Key, ok bool) {
	if len(text) > len(prefix)+maxEnv+1+idLen+1+secretLen+crcLen || !strings.HasPrefix(text, prefix) {
		return Key{}, false
	}
	env, rest, found := strings.Cut(text[len(prefix):], "_")
	if !found || !validEnv(env) || len(rest) != idLen+1+secretLen+crcLen || rest[idLen] != '_' {
		return Key{}, false
	}
	body := text[:len(text)-crcLen]
	if sum := checksum(body); !base62(rest[:idLen]) || !base62(rest[idLen+1:]) || string(sum[:]) != text[len(body):] {
		return Key{}, false
	}
	return Key{Env: env, ID: rest[:idLen], Hash: hash(text)}, true
}

func validEnv(s string) bool {
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= maxEnv
}

func base62(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}

func hash(text string) [sha256.Size]byte {
	var buf [128]byte
	return sha256.Sum256(append(buf[:0], text...))
}

func checksum(body string) (out [crcLen]byte) {
	sum := crc32.ChecksumIEEE(unsafe.Slice(unsafe.StringData(body), len(body))) // only reads, and a copy would go to the heap
	for i := crcLen - 1; i >= 0; i-- {
		out[i] = digits[sum%62]
		sum /= 62
	}
	return out
}

// random draws n digits of base 62, each as likely as the others.
func random(n int) string {
	out := make([]byte, 0, n)
	for b := [64]byte{}; ; {
		_, _ = rand.Read(b[:]) // never fails: it ends the program instead
		for _, c := range b {
			if c >= 248 { // the rest of 256 by 62 would favour the first digits
				continue
			}
			if out = append(out, digits[c%62]); len(out) == n {
				return string(out)
			}
		}
	}
}

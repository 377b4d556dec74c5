package signature

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Header names of Standard Webhooks, and of Svix, which Resend uses.
const (
	HeaderID        = "Webhook-Id"
	HeaderTimestamp = "Webhook-Timestamp"
	HeaderSignature = "Webhook-Signature"

	HeaderSvixID        = "Svix-Id"
	HeaderSvixTimestamp = "Svix-Timestamp"
	HeaderSvixSignature = "Svix-Signature"
)

const (
	// Tolerance is how far a timestamp may lie from the receiver's clock, in
	// either direction, to the second.
	Tolerance = 5 * time.Minute
	// MaxSignatures is how many entries of one header are looked at. A header
	// with more is refused as a whole, so that its work stays bounded.
	MaxSignatures = 32
	// MaxIDLength is in bytes.
	MaxIDLength = 256

	version = "v1,"
)

// Error is a reason for which Verify refuses a request. The set is closed (see
// Errors), each one is fit to be a metric label, and none carries anything of
// the request.
type Error string

// The reasons.
const (
	ErrNoSecrets          Error = "no_secrets"
	ErrMissingHeader      Error = "missing_header"
	ErrRepeatedHeader     Error = "repeated_header"
	ErrMalformedID        Error = "malformed_id"
	ErrMalformedTimestamp Error = "malformed_timestamp"
	ErrTooOld             Error = "timestamp_too_old"
	ErrTooNew             Error = "timestamp_too_new"
	ErrTooManySignatures  Error = "too_many_signatures"
	ErrMalformedSignature Error = "malformed_signature"
	ErrMismatch           Error = "signature_mismatch"
)

// Errors lists every reason, for metrics that pre-initialise their labels.
func Errors() []Error {
	return []Error{
		ErrNoSecrets, ErrMissingHeader, ErrRepeatedHeader, ErrMalformedID, ErrMalformedTimestamp,
		ErrTooOld, ErrTooNew, ErrTooManySignatures, ErrMalformedSignature, ErrMismatch,
	}
}

func (e Error) Error() string { return "signature: " + string(e) }

// Sign gives one "v1,<base64>" entry for the exact bytes of body. The id must
// be one that ValidID accepts; ts counts to the second.
func Sign(secret Secret, id string, ts time.Time, body []byte) string {
	stamp := strconv.FormatInt(ts.Unix(), 10)
	return version + base64.StdEncoding.EncodeToString(sum(secret, id, stamp, body))
}

// SignAll gives the header's value under several secrets, separated by spaces,
// as it goes out while one secret replaces another.
func SignAll(secrets []Secret, id string, ts time.Time, body []byte) string {
	entries := make([]string, len(secrets))
	for i, s := range secrets {
		entries[i] = Sign(s, id, ts, body)
	}
	return strings.Join(entries, " ")
}

// Verify checks that one of the signatures in the headers was made with one of
// the secrets over exactly these bytes, within Tolerance of now, and gives the
// message's id, which is the key to dedupe on. Headers are read from the
// webhook-* family, else from svix-*, never mixed. The error is always an Error.
func Verify(secrets []Secret, headers http.Header, body []byte, now time.Time) (string, error) {
	if !usable(secrets) {
		return "", ErrNoSecrets
	}
	h, err := readHeaders(headers)
	if err != nil {
		return "", err
	}
	if err := checkTimestamp(h.timestamp, now); err != nil {
		return "", err
	}
	given, err := decodeSignatures(h.signatures)
	if err != nil {
		return "", err
	}
	if !anyMatch(secrets, h, body, given) {
		return "", ErrMismatch
	}
	return h.id, nil
}

// ValidID says whether an id can be signed without ambiguity: 1 to 256
// printable ASCII characters without a space or a full stop. The full stop
// separates the parts of the signed text, so an id that held one could be cut
// elsewhere and pass for another message.
func ValidID(id string) bool {
	if id == "" || len(id) > MaxIDLength {
		return false
	}
	for i := range len(id) {
		if c := id[i]; c <= ' ' || c > '~' || c == '.' {
			return false
		}
	}
	return true
}

// usable refuses a list that holds nothing, or a secret that was never set: an
// empty key is a key that everybody knows.
func usable(secrets []Secret) bool {
	for _, s := range secrets {
		if s.IsZero() {
			return false
		}
	}
	return len(secrets) > 0
}

type signedHeaders struct {
	id, timestamp, signatures string
}

func readHeaders(h http.Header) (signedHeaders, error) {
	out, err := readFamily(h, HeaderID, HeaderTimestamp, HeaderSignature)
	if errors.Is(err, ErrMissingHeader) {
		out, err = readFamily(h, HeaderSvixID, HeaderSvixTimestamp, HeaderSvixSignature)
	}
	if err != nil {
		return signedHeaders{}, err
	}
	if !ValidID(out.id) {
		return signedHeaders{}, ErrMalformedID
	}
	return out, nil
}

// readFamily wants one id and one timestamp, as two would let the caller and us
// look at different ones; signatures may come in several lines.
func readFamily(h http.Header, id, timestamp, signatures string) (signedHeaders, error) {
	ids, stamps, sigs := h.Values(id), h.Values(timestamp), h.Values(signatures)
	if len(ids) == 0 || len(stamps) == 0 || len(sigs) == 0 {
		return signedHeaders{}, ErrMissingHeader
	}
	if len(ids) > 1 || len(stamps) > 1 {
		return signedHeaders{}, ErrRepeatedHeader
	}
	if len(sigs) > MaxSignatures {
		return signedHeaders{}, ErrTooManySignatures
	}
	return signedHeaders{id: ids[0], timestamp: stamps[0], signatures: strings.Join(sigs, " ")}, nil
}

func checkTimestamp(stamp string, now time.Time) error {
	const maxDigits = 12
	if stamp == "" || len(stamp) > maxDigits || strings.Trim(stamp, "0123456789") != "" {
		return ErrMalformedTimestamp
	}
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return ErrMalformedTimestamp
	}
	switch off := now.Unix() - seconds; {
	case off > int64(Tolerance/time.Second):
		return ErrTooOld
	case off < -int64(Tolerance/time.Second):
		return ErrTooNew
	}
	return nil
}

// decodeSignatures reads the entries of this version; others are skipped, as a
// sender may add newer ones.
func decodeSignatures(header string) ([][]byte, error) {
	var out [][]byte
	rest := header
	for n := 0; ; n++ {
		rest = strings.TrimLeft(rest, " ")
		if rest == "" {
			break
		}
		if n == MaxSignatures {
			return nil, ErrTooManySignatures
		}
		var entry string
		entry, rest, _ = strings.Cut(rest, " ")
		if sig, ok := decodeEntry(entry); ok {
			out = append(out, sig)
		}
	}
	if len(out) == 0 {
		return nil, ErrMalformedSignature
	}
	return out, nil
}

func decodeEntry(entry string) ([]byte, bool) {
	encoded, ok := strings.CutPrefix(entry, version)
	if !ok || len(encoded) != base64.StdEncoding.EncodedLen(sha256.Size) {
		return nil, false
	}
	sig, err := base64.StdEncoding.Strict().DecodeString(encoded)
	return sig, err == nil && len(sig) == sha256.Size
}

// anyMatch looks at every pair, so that its time says nothing of which matched.
func anyMatch(secrets []Secret, h signedHeaders, body []byte, given [][]byte) bool {
	matched := false
	for _, s := range secrets {
		want := sum(s, h.id, h.timestamp, body)
		for _, g := range given {
			if hmac.Equal(want, g) {
				matched = true
			}
		}
	}
	return matched
}

// sum takes the timestamp as text: what was signed is what was written, leading
// zeros and all.
func sum(secret Secret, id, timestamp string, body []byte) []byte {
	mac := hmac.New(sha256.New, secret.key)
	mac.Write([]byte(id + "." + timestamp + "."))
	mac.Write(body)
	return mac.Sum(nil)
}

package signature

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // the scheme's own; HMAC does not rest on collisions
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// HeaderURL carries the signature of a callback that is signed with its URL.
const HeaderURL = "X-Twilio-Signature"

// paramBody names the digest of a body that is no form, in the URL that is signed.
const paramBody = "bodySHA256"

// minTokenLength is for tokens that a provider gave us; they are text as it stands.
const minTokenLength = 16

// ParseToken takes an account's token, which signs its callbacks, as it stands:
// 16 to 128 printable characters. White space around it is ignored.
func ParseToken(s string) (Secret, error) {
	s = strings.TrimSpace(s)
	if len(s) < minTokenLength || len(s) > 128 || strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) >= 0 {
		return Secret{}, fmt.Errorf("%w: a token is %d to 128 printable characters", ErrWeakSecret, minTokenLength)
	}
	if uniform([]byte(s)) {
		return Secret{}, fmt.Errorf("%w: every character is the same", ErrWeakSecret)
	}
	return Secret{key: []byte(s)}, nil
}

// SignURL gives the signature of a callback: HMAC-SHA1 over its URL, followed by
// the form's names and values in the order of the names. It binds neither a time
// nor the borders between names and values, so its receiver dedupes by what the
// callback says and trusts it no further than that. form is nil where the body
// is JSON; the URL then carries its digest: see URLOf.
func SignURL(token Secret, target string, form url.Values) string {
	return base64.StdEncoding.EncodeToString(urlSum(token, target, form))
}

// URLOf gives the URL to which a body that is no form is posted.
func URLOf(target string, body []byte) string {
	sum := sha256.Sum256(body)
	sep := "?"
	if strings.Contains(target, "?") {
		sep = "&"
	}
	return target + sep + paramBody + "=" + hex.EncodeToString(sum[:])
}

func urlSum(token Secret, target string, form url.Values) []byte {
	m := hmac.New(sha1.New, token.key)
	m.Write([]byte(target))
	names := make([]string, 0, len(form))
	for name := range form {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		values := slices.Clone(form[name])
		slices.Sort(values)
		for _, v := range slices.Compact(values) {
			m.Write([]byte(name + v))
		}
	}
	return m.Sum(nil)
}

// VerifyURL checks that a callback to this URL, query and all, was signed with
// one of the tokens. A form is signed itself; another body must be named by its
// digest in the URL. The error is always an Error.
func VerifyURL(tokens []Secret, target string, headers http.Header, body []byte) error {
	if !usable(tokens) {
		return ErrNoSecrets
	}
	given := headers.Values(HeaderURL)
	switch {
	case len(given) == 0:
		return ErrMissingHeader
	case len(given) > 1:
		return ErrRepeatedHeader
	}
	mac, err := base64.StdEncoding.DecodeString(given[0])
	if err != nil || len(mac) != sha1.Size {
		return ErrMalformedSignature
	}
	form, err := signedForm(target, headers.Get("Content-Type"), body)
	if err != nil {
		return err
	}
	match := 0
	for _, t := range tokens { // all of them, whichever matches
		match |= subtle.ConstantTimeCompare(mac, urlSum(t, target, form))
	}
	if match == 0 {
		return ErrMismatch
	}
	return nil
}

// signedForm gives the form that the signature covers, and checks the digest of
// a body that is none.
func signedForm(target, contentType string, body []byte) (url.Values, error) {
	if kind, _, _ := mime.ParseMediaType(contentType); kind == "application/x-www-form-urlencoded" {
		form, err := url.ParseQuery(string(body))
		if err != nil {
			return nil, ErrMalformedSignature
		}
		return form, nil
	}
	u, err := url.Parse(target)
	if err != nil {
		return nil, ErrMalformedSignature
	}
	digest, err := hex.DecodeString(u.Query().Get(paramBody))
	sum := sha256.Sum256(body)
	if err != nil || !bytes.Equal(digest, sum[:]) {
		return nil, ErrMismatch
	}
	return nil, nil //nolint:nilnil // no form is what a JSON body has
}

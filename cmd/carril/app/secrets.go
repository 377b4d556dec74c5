package app

import (
	"encoding/base64"
	"reflect"
	"strings"

	"github.com/softcrum/carril/dispatcher/webhook/seal"
	"github.com/softcrum/carril/internal/signature"
)

// validateSecrets refuses secrets that cannot be, and those that are nobody's: a
// deployment on a weak default is worse than none. It names the setting and never
// the value (bad inputs row 82).
func (s *Settings) validateSecrets() error {
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if !credential(f) {
			continue
		}
		values := []string{v.Field(i).String()}
		if f.Type.Kind() == reflect.Slice {
			values = v.Field(i).Interface().([]string)
		}
		for _, value := range values {
			if placeholder(value) {
				return configError(f.Tag.Get("name"), "is a placeholder: give it a secret of your own")
			}
		}
	}
	for _, secret := range s.ResendSecrets {
		if _, err := signature.ParseSecret(secret); err != nil {
			return configError("resend-webhook-secrets", "has one that is no whsec_ secret of 24 to 64 bytes")
		}
	}
	for _, token := range s.SMSTokens {
		if _, err := signature.ParseToken(token); err != nil {
			return configError("sms-webhook-tokens", "has one that is not 16 to 128 printable characters")
		}
	}
	if s.WebhookKey != "" {
		if _, err := seal.Parse(s.WebhookKey); err != nil {
			return configError("webhook-key", "is not 32 bytes in Base64")
		}
		if b, err := base64.StdEncoding.DecodeString(s.WebhookKey); err == nil && strings.Count(string(b), string(b[:1])) == len(b) {
			return configError("webhook-key", "is a placeholder: give it a secret of your own")
		}
	}
	return nil
}

// credential says whether a field is a secret by itself. A URL may hold one, and
// more that looks like a placeholder.
func credential(f reflect.StructField) bool {
	_, secret := f.Tag.Lookup("secret")
	return secret && !strings.HasSuffix(f.Tag.Get("env"), "_URL")
}

// placeholder recognises what documents and templates put in a secret's place.
func placeholder(value string) bool {
	value = strings.ToLower(value)
	for _, mark := range []string{"changeme", "change-me", "change_me", "example", "placeholder", "xxxxxx"} {
		if strings.Contains(value, mark) {
			return true
		}
	}
	return strings.HasPrefix(value, "your") || strings.HasPrefix(value, "<") && strings.HasSuffix(value, ">")
}

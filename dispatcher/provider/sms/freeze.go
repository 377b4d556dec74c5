package sms

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/softcrum/carril/dispatcher/provider"
)

// EndpointMessages is the adapter's one endpoint, as it stands in
// provider.Frozen.
const EndpointMessages = "messages"

// The callback's parameters by which a report finds its send: the API has no
// tags.
const (
	paramSend   = "send_id"
	paramTenant = "tenant_id"
)

var (
	e164    = regexp.MustCompile(`^\+[1-9][0-9]{6,14}$`)
	service = regexp.MustCompile(`^MG[0-9a-fA-F]{32}$`)
	// alpha is a name in a number's place: eleven characters, one of them a letter.
	alpha = regexp.MustCompile(`^[A-Za-z0-9 ]{1,11}$`)
)

// Freeze renders one message as the body of one request. It is pure. A
// *provider.MessageError names a message that can never be sent.
func (a *Adapter) Freeze(msgs []provider.Message, batch bool) (provider.Frozen, error) {
	switch {
	case len(msgs) == 0:
		return provider.Frozen{}, refusal("empty_request", "no message to freeze")
	case batch || len(msgs) > 1:
		return provider.Frozen{}, refusal("not_a_batch", fmt.Sprintf("%d messages for the single endpoint", len(msgs)))
	}
	m := msgs[0]
	if perr := a.check(m); perr != nil {
		return provider.Frozen{}, &provider.MessageError{Index: 0, Reason: perr}
	}
	form := url.Values{"To": {m.To}, "Body": {strings.TrimSpace(m.Text)}}
	if service.MatchString(m.From) {
		form.Set("MessagingServiceSid", m.From)
	} else {
		form.Set("From", m.From)
	}
	if a.cfg.CallbackURL != "" {
		tags := url.Values{paramSend: {m.SendID.String()}, paramTenant: {m.TenantID.String()}}
		form.Set("StatusCallback", a.cfg.CallbackURL+"?"+tags.Encode())
	}
	return provider.Frozen{Endpoint: EndpointMessages, Body: []byte(form.Encode()), Count: 1}, nil
}

func (a *Adapter) check(m provider.Message) *provider.Error {
	text := strings.TrimSpace(m.Text)
	switch {
	case m.SendID == uuid.Nil || m.TenantID == uuid.Nil:
		return refusal("missing_id", "a message needs a send id and a tenant id")
	case !e164.MatchString(m.To):
		return refusal("invalid_recipient", "the recipient is no number in E.164")
	case !isSender(m.From):
		return refusal("invalid_from", "the sender is neither a number in E.164 nor a name or service that may stand for one")
	case text == "":
		return refusal("missing_content", "there is no text")
	case !utf8.ValidString(text) || strings.ContainsFunc(text, isControl):
		return refusal("invalid_content", "the text has characters that no message carries")
	}
	if n, _ := Segments(text); n > a.cfg.MaxSegments {
		return refusal("content_too_large", fmt.Sprintf("%d segments, at most %d", n, a.cfg.MaxSegments))
	}
	return nil
}

func isSender(s string) bool {
	return e164.MatchString(s) || service.MatchString(s) ||
		alpha.MatchString(s) && strings.TrimSpace(s) == s && strings.ContainsFunc(s, unicode.IsLetter)
}

func isControl(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t' }

func refusal(code, detail string) *provider.Error {
	return &provider.Error{Class: provider.ClassPermanent, Code: code, Detail: detail}
}

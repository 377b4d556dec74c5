package resend

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/mail"
	"strings"

	"github.com/google/uuid"

	"github.com/softcrum/carril/dispatcher/provider"
)

// email is one message as Resend takes it. It has no topic_id and must never
// have one: a contact that opted out of a topic there is skipped without a word.
type email struct {
	From    string            `json:"from"`
	To      []string          `json:"to"`
	Subject string            `json:"subject"`
	HTML    string            `json:"html,omitempty"`
	Text    string            `json:"text,omitempty"`
	ReplyTo string            `json:"reply_to,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	Tags    []tag             `json:"tags"`
}

type tag struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// The tags by which a webhook finds its send.
const (
	tagSend   = "send_id"
	tagTenant = "tenant_id"
)

// Freeze renders one message as a single request's body, or up to 100 as a
// batch's. It is pure. A *provider.MessageError names a message that can never
// be sent; another error is a *provider.Error for the whole.
func (a *Adapter) Freeze(msgs []provider.Message, batch bool) (provider.Frozen, error) {
	if err := checkCount(len(msgs), batch); err != nil {
		return provider.Frozen{}, err
	}
	emails := make([]email, len(msgs))
	for i, m := range msgs {
		e, err := render(m)
		if err != nil {
			return provider.Frozen{}, &provider.MessageError{Index: i, Reason: err}
		}
		emails[i] = e
	}
	if batch {
		return encode(EndpointBatch, emails, len(msgs))
	}
	return encode(EndpointSingle, emails[0], 1)
}

func checkCount(n int, batch bool) error {
	switch {
	case n == 0:
		return refusal("empty_request", "no message to freeze")
	case !batch && n > 1:
		return refusal("not_a_batch", fmt.Sprintf("%d messages for the single endpoint", n))
	case n > maxBatch:
		return refusal("batch_too_large", fmt.Sprintf("%d messages, at most %d", n, maxBatch))
	}
	return nil
}

func encode(endpoint string, v any, count int) (provider.Frozen, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false) // every <, > and & of an HTML body would be six bytes
	if err := enc.Encode(v); err != nil {
		return provider.Frozen{}, fmt.Errorf("encode a resend %s request: %w", endpoint, err)
	}
	body := bytes.TrimRight(buf.Bytes(), "\n")
	if len(body) > maxBodyBytes {
		err := refusal("request_too_large", fmt.Sprintf("%d bytes, at most %d", len(body), maxBodyBytes))
		err.Divisible = count > 1
		return provider.Frozen{}, err
	}
	return provider.Frozen{Endpoint: endpoint, Body: body, Count: count}, nil
}

func render(m provider.Message) (email, *provider.Error) {
	if err := checkMessage(m); err != nil {
		return email{}, err
	}
	return email{
		From:    m.From,
		To:      []string{m.To},
		Subject: oneLine(m.Subject),
		HTML:    m.HTML,
		Text:    m.Text,
		ReplyTo: m.ReplyTo,
		Headers: m.Headers,
		Tags: []tag{
			{Name: tagSend, Value: m.SendID.String()},
			{Name: tagTenant, Value: m.TenantID.String()},
		},
	}, nil
}

func checkMessage(m provider.Message) *provider.Error {
	switch {
	case m.SendID == uuid.Nil || m.TenantID == uuid.Nil:
		return refusal("missing_id", "a message needs a send id and a tenant id")
	case !isAddress(m.To, true):
		return refusal("invalid_recipient", "the recipient is not one bare address")
	case !isAddress(m.From, false):
		return refusal("invalid_from_address", "the sender is not an address, with or without a name")
	case m.ReplyTo != "" && !isAddress(m.ReplyTo, false):
		return refusal("invalid_reply_to", "the reply address is not an address")
	case oneLine(m.Subject) == "":
		return refusal("missing_subject", "the subject is empty")
	case m.HTML == "" && m.Text == "":
		return refusal("missing_content", "there is neither HTML nor text")
	}
	return checkHeaders(m.Headers)
}

// isAddress wants one address. A bare one must be what the parser finds in it:
// ParseAddress alone takes "Name <a@example.com>" and spaces around it too.
func isAddress(s string, bare bool) bool {
	if hasControl(s) {
		return false
	}
	parsed, err := mail.ParseAddress(s)
	if err != nil || strings.HasSuffix(parsed.Address, "]") { // an address literal, as a@[127.0.0.1]
		return false
	}
	return !bare || parsed.Address == s
}

// reroutes are the headers that Resend writes itself; a tenant's own would add
// recipients, or another sender, behind our back.
func reroutes(name string) bool {
	switch strings.ToLower(name) {
	case "from", "to", "cc", "bcc", "subject", "sender", "reply-to", "return-path",
		"mime-version", "content-type", "content-transfer-encoding", "dkim-signature":
		return true
	default:
		return false
	}
}

func checkHeaders(headers map[string]string) *provider.Error {
	for name, value := range headers {
		if !isHeaderName(name) || reroutes(name) || hasControl(value) {
			return refusal("invalid_header", "a header may not be set, or its name or value is malformed")
		}
	}
	return nil
}

func isHeaderName(s string) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' }) < 0
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

func hasControl(s string) bool {
	return strings.IndexFunc(s, isControl) >= 0
}

// oneLine keeps a template's line break, or a recipient's, from becoming a
// second header.
func oneLine(s string) string {
	return strings.TrimSpace(strings.Join(strings.FieldsFunc(s, isControl), " "))
}

func refusal(code, detail string) *provider.Error {
	return &provider.Error{Class: provider.ClassPermanent, Code: code, Detail: detail}
}

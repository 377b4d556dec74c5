package sandbox

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/mail"
	"strings"
)

const (
	maxBatch      = 100
	maxRecipients = 50
	maxTag        = 256
)

// inbound is one email as it is asked for.
type inbound struct {
	From        string            `json:"from"`
	To          addresses         `json:"to"`
	CC          addresses         `json:"cc"`
	BCC         addresses         `json:"bcc"`
	ReplyTo     addresses         `json:"reply_to"`
	Subject     string            `json:"subject"`
	HTML        string            `json:"html"`
	Text        string            `json:"text"`
	Template    json.RawMessage   `json:"template"`
	Headers     map[string]string `json:"headers"`
	Tags        []tag             `json:"tags"`
	Attachments json.RawMessage   `json:"attachments"`
	ScheduledAt string            `json:"scheduled_at"`
}

type tag struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// addresses is one address or a list of them.
type addresses []string

func (a *addresses) UnmarshalJSON(b []byte) error {
	var one string
	if err := json.Unmarshal(b, &one); err == nil {
		*a = addresses{one}
		return nil
	}
	var list []string
	if err := json.Unmarshal(b, &list); err != nil {
		return errors.New("neither an address nor a list of them")
	}
	*a = list
	return nil
}

// parseBody reads a request into its messages. A message that is no email is in
// the list with its refusal; the error is for the request as a whole.
func parseBody(endpoint string, body []byte) ([]checked, *apiError) {
	if endpoint == endpointSingle {
		if !json.Valid(body) {
			return nil, refuse(http.StatusBadRequest, nameValidation, "The request body is not valid JSON.")
		}
		return []checked{parseItem(body, false)}, nil
	}
	var items []json.RawMessage
	if err := json.Unmarshal(body, &items); err != nil {
		return nil, refuse(http.StatusBadRequest, nameValidation, "The request body is not a JSON array.")
	}
	if len(items) == 0 || len(items) > maxBatch {
		return nil, invalid("A batch holds 1 to 100 emails.")
	}
	out := make([]checked, len(items))
	for i, raw := range items {
		out[i] = parseItem(raw, true)
	}
	return out, nil
}

// checked is a message, or why it is refused.
type checked struct {
	email   inbound
	refusal *apiError
}

func parseItem(raw []byte, batch bool) checked {
	var m inbound
	if err := json.Unmarshal(raw, &m); err != nil {
		return checked{refusal: invalid("A field of the email has the wrong type.")}
	}
	return checked{email: m, refusal: m.check(batch)}
}

func (m inbound) check(batch bool) *apiError {
	switch {
	case m.From == "":
		return missing("from")
	case len(m.To) == 0:
		return missing("to")
	case m.Subject == "":
		return missing("subject")
	case m.HTML == "" && m.Text == "" && m.Template == nil:
		return missing("html")
	case !isAddress(m.From):
		return refuse(http.StatusUnprocessableEntity, nameFrom, "Invalid `from` field.")
	case len(m.To) > maxRecipients:
		return invalid("The `to` field holds at most 50 addresses.")
	case batch && (m.Attachments != nil || m.ScheduledAt != ""):
		return invalid("A batch takes neither `attachments` nor `scheduled_at`.")
	}
	for _, list := range []addresses{m.To, m.CC, m.BCC, m.ReplyTo} {
		for _, a := range list {
			if !isAddress(a) {
				return invalid("Invalid address. It needs to follow the `email@example.com` or `Name <email@example.com>` format.")
			}
		}
	}
	return m.checkRest()
}

func (m inbound) checkRest() *apiError {
	for _, t := range m.Tags {
		if !isTag(t.Name) || !isTag(t.Value) {
			return invalid("Tags should only contain ASCII letters, numbers, underscores, or dashes.")
		}
	}
	for name, value := range m.Headers {
		if strings.ContainsAny(name+value, "\r\n") {
			return invalid("Invalid `headers` field.")
		}
	}
	if localPart(m.To[0]) == "rejected" {
		return invalid("Invalid `to` field.")
	}
	return nil
}

func isAddress(s string) bool {
	_, err := mail.ParseAddress(s)
	return err == nil && !strings.ContainsAny(s, "\r\n")
}

func isTag(s string) bool {
	return s != "" && len(s) <= maxTag && strings.IndexFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
	}) < 0
}

// localPart gives what stands before a + or the @ of an address, in lower case.
func localPart(s string) string {
	bare := s
	if a, err := mail.ParseAddress(s); err == nil {
		bare = a.Address
	}
	local, _, _ := strings.Cut(bare, "@")
	local, _, _ = strings.Cut(local, "+")
	return strings.ToLower(local)
}

// domainOf gives what stands behind the @ of an address, in lower case.
func domainOf(s string) string {
	a, err := mail.ParseAddress(s)
	if err != nil {
		return ""
	}
	return strings.ToLower(a.Address[strings.LastIndex(a.Address, "@")+1:])
}

func (m inbound) tag(name string) string {
	for _, t := range m.Tags {
		if t.Name == name {
			return t.Value
		}
	}
	return ""
}

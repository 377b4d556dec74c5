package smtp

import (
	"bytes"
	"net/mail"
	"strings"

	"github.com/softcrum/carril/dispatcher/provider"
)

// envelope is what a transaction says before its message. It stands in front of
// the message in the frozen bytes, as the commands that it is.
type envelope struct {
	from, to string // paths, with their angle brackets
	utf8     bool   // needs a relay with SMTPUTF8
	message  []byte
}

const (
	verbMail = "MAIL FROM:"
	verbRcpt = "RCPT TO:"
	verbData = "DATA"
	paramUTF = " SMTPUTF8"
)

func (e envelope) write(buf *bytes.Buffer) {
	buf.WriteString(verbMail + e.from)
	if e.utf8 {
		buf.WriteString(paramUTF)
	}
	buf.WriteString(crlf + verbRcpt + e.to + crlf + verbData + crlf)
}

// thaw reads frozen bytes back.
func thaw(f provider.Frozen) (envelope, *provider.Error) {
	switch {
	case f.Endpoint != EndpointTransaction:
		return envelope{}, refusal("unknown_endpoint", "the frozen request names no endpoint of this adapter")
	case f.Count != 1 || len(f.Body) == 0:
		return envelope{}, refusal("empty_request", "the frozen request holds no message, or more than one")
	}
	var e envelope
	rest := f.Body
	lines := [3]string{}
	for i := range lines {
		line, after, ok := bytes.Cut(rest, []byte(crlf))
		if !ok {
			return envelope{}, unreadable()
		}
		lines[i], rest = string(line), after
	}
	var okFrom, okTo bool
	e.from, okFrom = strings.CutPrefix(lines[0], verbMail)
	e.from, e.utf8 = strings.CutSuffix(e.from, paramUTF)
	e.to, okTo = strings.CutPrefix(lines[1], verbRcpt)
	e.message = rest
	if !okFrom || !okTo || lines[2] != verbData || !isPath(e.from) || !isPath(e.to) || !bytes.HasSuffix(rest, []byte(crlf)) {
		return envelope{}, unreadable()
	}
	return e, nil
}

func isPath(s string) bool {
	return strings.HasPrefix(s, "<") && strings.HasSuffix(s, ">") && len(s) > 2 && !strings.ContainsAny(s, "\r\n\x00")
}

func unreadable() *provider.Error {
	return refusal("invalid_request", "the frozen request is no mail transaction")
}

// id gives the message's own id, without its angle brackets.
func (e envelope) id() string {
	m, err := mail.ReadMessage(bytes.NewReader(e.message))
	if err != nil {
		return ""
	}
	return strings.Trim(m.Header.Get("Message-Id"), "<>")
}

// private lists what a relay could repeat of the message in its replies.
func (e envelope) private() []string {
	out := []string{strings.Trim(e.to, "<>"), strings.Trim(e.from, "<>")}
	if m, err := mail.ReadMessage(bytes.NewReader(e.message)); err == nil {
		if subject := m.Header.Get("Subject"); len(subject) > 3 { // what is shorter would mask half of any sentence
			out = append(out, subject)
		}
	}
	return out
}

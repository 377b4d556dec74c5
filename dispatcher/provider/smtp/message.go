package smtp

import (
	"bytes"
	"maps"
	"mime"
	"mime/quotedprintable"
	"net/mail"
	"slices"
	"strings"
	"time"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/internal/ids"
)

const (
	crlf     = "\r\n"
	foldAt   = 76  // characters a line of a header should not pass
	maxLine  = 998 // characters a line may not pass (RFC 5322 §2.1.1)
	typeText = `text/plain; charset="utf-8"`
	typeHTML = `text/html; charset="utf-8"`
)

// MessageID gives the Message-ID of a send from a domain, without its angle
// brackets: what the adapter calls the provider's id of a message, since the
// relay's own is in free text.
func messageID(m provider.Message, from address) string { return m.SendID.String() + "@" + from.host }

func writeMessage(buf *bytes.Buffer, m provider.Message, from, to, replyTo address) *provider.Error {
	h := headers{buf: buf}
	h.set("Date", ids.Time(m.SendID).UTC().Format(time.RFC1123Z))
	h.set("From", from.header())
	if replyTo.path != "" {
		h.set("Reply-To", replyTo.header())
	}
	h.set("To", to.header())
	h.set("Subject", encode(oneLine(m.Subject)))
	h.set("Message-ID", "<"+messageID(m, from)+">")
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		h.set(name, encode(m.Headers[name]))
	}
	h.set(headerSend, m.SendID.String())
	h.set(headerTenant, m.TenantID.String())
	h.set("MIME-Version", "1.0")
	if h.tooLong {
		return refusal("invalid_header", "a header has a line that is too long")
	}
	return writeContent(buf, m)
}

// writeContent writes the body and the headers that say what it is. The text
// stands before the HTML: a reader takes the last part that it can show.
func writeContent(buf *bytes.Buffer, m provider.Message) *provider.Error {
	switch {
	case m.HTML == "":
		return writePart(buf, typeText, m.Text)
	case m.Text == "":
		return writePart(buf, typeHTML, m.HTML)
	}
	// An = is always followed by two digits in quoted-printable text, so what the
	// boundary begins with stands in no part.
	boundary := "=_" + strings.ReplaceAll(m.SendID.String(), "-", "")
	buf.WriteString("Content-Type: multipart/alternative;" + crlf + ` boundary="` + boundary + `"` + crlf + crlf)
	for _, part := range []struct{ kind, content string }{{typeText, m.Text}, {typeHTML, m.HTML}} {
		buf.WriteString("--" + boundary + crlf)
		if perr := writePart(buf, part.kind, part.content); perr != nil {
			return perr
		}
	}
	buf.WriteString("--" + boundary + "--" + crlf)
	return nil
}

func writePart(buf *bytes.Buffer, kind, content string) *provider.Error {
	buf.WriteString("Content-Type: " + kind + crlf + "Content-Transfer-Encoding: quoted-printable" + crlf + crlf)
	w := quotedprintable.NewWriter(buf)
	_, err := w.Write([]byte(strings.ToValidUTF8(content, "\uFFFD")))
	if cerr := w.Close(); err != nil || cerr != nil {
		return refusal("invalid_content", "the content cannot be encoded")
	}
	buf.WriteString(crlf) // a boundary takes the line break before it for its own
	return nil
}

// header gives the address as a header has it.
func (a address) header() string {
	if a.name == "" {
		return a.path
	}
	named := mail.Address{Name: strings.ToValidUTF8(a.name, "\uFFFD"), Address: "x@y"} // for its quoting of names alone
	return strings.TrimSuffix(named.String(), "<x@y>") + a.path
}

// encode gives text as encoded words where it is not ASCII: base64 where most of
// it would be escapes.
func encode(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	foreign := 0
	for _, r := range s {
		if r > 0x7e {
			foreign++
		}
	}
	if foreign*3 > len([]rune(s)) {
		return mime.BEncoding.Encode("utf-8", s)
	}
	return mime.QEncoding.Encode("utf-8", s)
}

// headers writes header fields, folded.
type headers struct {
	buf     *bytes.Buffer
	tooLong bool
}

// set writes one field. It is folded at spaces, and only where something stands
// on either side: a line of nothing but spaces would end the header for some.
func (h *headers) set(name, value string) {
	line := len(name) + 1
	h.buf.WriteString(name + ":")
	blank := true // nothing but spaces on this line's value so far
	for _, word := range strings.Split(value, " ") {
		if !blank && word != "" && line+1+len(word) > foldAt {
			h.buf.WriteString(crlf)
			line, blank = 0, true
		}
		h.buf.WriteString(" " + word)
		line += 1 + len(word)
		blank = blank && word == ""
		h.tooLong = h.tooLong || line > maxLine
	}
	h.buf.WriteString(crlf)
}

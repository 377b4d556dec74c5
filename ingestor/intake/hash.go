package intake

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/softcrum/carril/internal/jsonscan"
	"github.com/softcrum/carril/schemas"
)

// bodyHash is the hash of the package's comment. Each part stands behind its
// length, so that no two events read the same.
func (p *Parser) bodyHash(e *envelope, ev *schemas.Event) [32]byte {
	payload := &e.fields[slotProperties]
	if ev.Kind == Identify {
		payload = &e.fields[slotTraits]
	}
	b := appendPart(p.scratch[:0], ev.Kind)
	b = appendPart(b, ev.EventName)
	b = binary.BigEndian.AppendUint64(b, uint64(ev.OccurredAt.UnixMicro()))
	b = binary.BigEndian.AppendUint32(b, uint32(ev.OccurredOffset))
	b = append(b, 0)
	if ev.Historical {
		b[len(b)-1] = 1
	}
	b = p.appendTokens(b, &e.fields[slotIdentifiers])
	b = p.appendTokens(b, payload)
	p.scratch = b
	return sha256.Sum256(b)
}

func appendPart(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

// appendTokens appends a field's text without the white space between tokens,
// behind the length of what is left.
func (p *Parser) appendTokens(b []byte, f *field) []byte {
	raw := p.b[f.start:f.end]
	if !f.spaced {
		return appendPart(b, unsafeString(raw))
	}
	from := len(b)
	b = append(b, 0, 0, 0, 0)
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; c {
		case ' ', '\n', '\t', '\r':
		case '"':
			end := jsonscan.ClosingQuote(raw, i)
			b = append(b, raw[i:end+1]...)
			i = end
		default:
			b = append(b, c)
		}
	}
	binary.BigEndian.PutUint32(b[from:], uint32(len(b)-from-4))
	return b
}

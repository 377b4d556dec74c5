package intake

import (
	"fmt"

	"github.com/softcrum/carril/internal/jsonscan"
	"github.com/softcrum/carril/schemas"
)

// checkIdentifiers asks for at least one identifier that says something. A
// null says nothing, like an absent one; any other value that is not a string
// is refused, or it would vanish later (field report 11).
func (p *Parser) checkIdentifiers(e *envelope, _ *Caller, ev *schemas.Event) *Error {
	f := &e.fields[slotIdentifiers]
	if f.first != '{' {
		return fieldError(slotIdentifiers, "an object")
	}
	ev.Identifiers = unsafeString(p.b[f.start:f.end])
	said, n := 0, 0
	for i := p.scan.Space(f.start + 1); p.scan.At(i) != '}'; n++ {
		kind, next := p.plain(i)
		i = p.scan.Space(p.scan.Space(next) + 1)
		if !validKind(kind) || n == MaxIdentifiers {
			return &Error{Code: InvalidIdentifier, Pointer: "/identifiers", Detail: fmt.Sprintf(
				"At most %d identifiers; a kind is 1 to %d lower-case ASCII letters, digits and underscores, beginning with a letter.", MaxIdentifiers, MaxIdentifierKind)}
		}
		switch p.scan.At(i) {
		case 'n':
			next = i + len("null")
		case '"':
			var value []byte
			if value, next = p.plain(i); len(value) > MaxIdentifier {
				return identifierError(kind, fmt.Sprintf("An identifier has at most %d bytes.", MaxIdentifier))
			} else if len(value) > 0 {
				said++
			}
		default:
			return identifierError(kind, "An identifier is a string; send a number as its digits in quotes.")
		}
		if i = p.scan.Space(next); p.scan.At(i) == ',' {
			i = p.scan.Space(i + 1)
		}
	}
	if said == 0 {
		return &Error{Code: MissingIdentifier, Pointer: "/identifiers", Detail: "One of external_id, email, phone, anonymous_id or a kind of your own."}
	}
	return nil
}

// plain reads the string at i, which the scan has walked already.
func (p *Parser) plain(i int) (text []byte, next int) {
	next = jsonscan.ClosingQuote(p.b, i) + 1
	return p.scan.Decode(p.b[i+1 : next-1]), next
}

func identifierError(kind []byte, detail string) *Error {
	return &Error{Code: InvalidIdentifier, Pointer: "/identifiers/" + string(kind), Detail: detail}
}

func validKind(b []byte) bool {
	if len(b) == 0 || len(b) > MaxIdentifierKind || b[0] < 'a' || b[0] > 'z' {
		return false
	}
	for _, c := range b {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return true
}

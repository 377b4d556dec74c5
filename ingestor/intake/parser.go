package intake

import (
	"fmt"

	"github.com/softcrum/carril/internal/jsonscan"
	"github.com/softcrum/carril/schemas"
)

// MaxBatch is how many events a batch has at most (FS-CORE-0006 AC4).
const MaxBatch = 500

// Parser holds the memory of one request at a time; it is not safe for
// concurrent use, and meant to be pooled. The texts of the events it returns
// are parts of the body and of the parser: they hold until the body changes or
// the parser is used again.
type Parser struct {
	scan    jsonscan.Scanner
	b       []byte // the body
	scratch []byte
	texts   []byte // ids as text
	env     envelope
	tooMany bool
	items   []Item
	events  []schemas.Event
	hashes  [][32]byte
}

// Item is one event of a batch: taken, or refused.
type Item struct {
	Event *schemas.Event // nil when it was refused
	Err   *Error
}

// NewParser makes a parser; its memory grows to what it sees.
func NewParser() *Parser { return &Parser{} }

// One parses the body of a request for one event of a kind, Track or Identify.
func (p *Parser) One(kind string, body []byte, c *Caller) (*schemas.Event, *Error) {
	p.begin(body, 1)
	start, err := p.open()
	if err != nil {
		return nil, err
	}
	if err := p.closing(p.event(start, &p.env)); err != nil {
		return nil, err
	}
	ev := &p.events[0]
	if err := p.check(kind, &p.env, c, ev, &p.hashes[0], alone); err != nil {
		return nil, err
	}
	return ev, nil
}

// Batch parses the body of a batch into one item an event, in order. The error
// refuses the batch as a whole: a body that is no JSON, or not a batch, is not
// taken in parts.
func (p *Parser) Batch(body []byte, c *Caller) ([]Item, *Error) {
	p.begin(body, 0)
	start, err := p.open()
	if err != nil {
		return nil, err
	}
	var events field
	unknown := -1
	end := p.batch(start, c, &events, &unknown)
	if p.tooMany {
		return nil, &Error{Code: BatchTooLarge, Pointer: "/events", Detail: fmt.Sprintf("At most %d events; nothing of this batch was taken.", MaxBatch)}
	}
	if err := p.closing(end); err != nil {
		return nil, err
	}
	switch {
	case p.scan.Soft.Code != "":
		return nil, p.softError()
	case unknown >= 0:
		return nil, &Error{Code: UnknownField, Pointer: jsonscan.Pointer(p.b, unknown)}
	case !events.present():
		return nil, &Error{Code: MissingField, Pointer: "/events", Detail: "events is required."}
	case events.first != '[':
		return nil, &Error{Code: InvalidField, Pointer: "/events", Detail: "events is an array."}
	case len(p.items) == 0:
		return nil, &Error{Code: EmptyBatch, Pointer: "/events"}
	}
	return p.items, p.oneKind()
}

// Object walks a body that is one JSON object of any form, and refuses in it
// what no event may contain: keys that stand twice, NUL, half surrogate pairs,
// more than MaxDepth levels or MaxMembers members, numbers out of range.
func (p *Parser) Object(body []byte) *Error {
	p.begin(body, 0)
	start, err := p.open()
	if err != nil {
		return err
	}
	if err := p.closing(p.scan.Value(start, 1)); err != nil {
		return err
	}
	if p.scan.Soft.Code != "" {
		return p.softError()
	}
	return nil
}

// begin makes room for n events.
func (p *Parser) begin(body []byte, n int) {
	p.scan.Reset(body)
	p.b, p.texts = body, p.texts[:0]
	p.tooMany = false
	clear(p.items)
	p.items = p.items[:0]
	if len(p.events) < n {
		p.events, p.hashes = make([]schemas.Event, n), make([][32]byte, n)
	}
}

// open finds the object that a body must be.
func (p *Parser) open() (start int, err *Error) {
	start = p.scan.Space(0)
	switch {
	case start == len(p.b):
		return 0, &Error{Code: EmptyBody}
	case p.b[start] == '{':
		return start, nil
	case p.scan.Value(start, 1) < 0:
		return 0, p.invalid()
	}
	return 0, &Error{Code: NotAnObject}
}

// closing refuses a walk that broke, or ended before the body did.
func (p *Parser) closing(end int) *Error {
	if end < 0 {
		return p.invalid()
	}
	if end = p.scan.Space(end); end != len(p.b) {
		return &Error{Code: TrailingData, Detail: fmt.Sprintf("The object ends before byte %d.", end)}
	}
	return nil
}

func (p *Parser) invalid() *Error {
	if p.scan.Hard >= len(p.b) {
		return &Error{Code: InvalidJSON, Detail: "The body ends in the middle of a value."}
	}
	return &Error{Code: InvalidJSON, Detail: fmt.Sprintf("At byte %d.", p.scan.Hard)}
}

// batch walks the batch's own object.
func (p *Parser) batch(i int, c *Caller, events *field, unknown *int) int {
	if i = p.scan.Space(i + 1); p.scan.At(i) == '}' {
		return i + 1
	}
	for {
		at := i
		p.scan.Begin()
		name, _, next := p.scan.Key(i)
		if i = next; i < 0 {
			return -1
		}
		if i = p.batchField(i, at, string(name), c, events, unknown); i < 0 {
			return -1
		}
		i = p.scan.Space(i)
		switch p.scan.At(i) {
		case ',':
			i = p.scan.Space(i + 1)
		case '}':
			return i + 1
		default:
			return p.scan.Broken(i)
		}
	}
}

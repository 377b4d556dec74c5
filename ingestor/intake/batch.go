package intake

import (
	"strings"

	"github.com/softcrum/carril/internal/jsonscan"
	"github.com/softcrum/carril/schemas"
)

// batchField walks a field of the batch's own object, of which there is one.
func (p *Parser) batchField(i, at int, name string, c *Caller, events *field, unknown *int) int {
	if !strings.EqualFold(name, "events") {
		if *unknown < 0 {
			*unknown = at
		}
		return p.scan.Value(i, 1)
	}
	if name != "events" && *unknown < 0 {
		*unknown = at
	}
	if events.first != 0 {
		p.scan.Note(jsonscan.DuplicateKey, at)
		return p.scan.Value(i, 1)
	}
	*events = field{first: p.scan.At(i), at: at, start: i}
	if events.first != '[' {
		return p.scan.Value(i, 1)
	}
	return p.batchEvents(i, c)
}

func (p *Parser) batchEvents(i int, c *Caller) int {
	if i = p.scan.Space(i + 1); p.scan.At(i) == ']' {
		return i + 1
	}
	for {
		if len(p.items) == MaxBatch {
			p.tooMany = true
			return -1
		}
		if i = p.item(i, c); i < 0 {
			return -1
		}
		i = p.scan.Space(i)
		switch p.scan.At(i) {
		case ',':
			i = p.scan.Space(i + 1)
		case ']':
			return i + 1
		default:
			return p.scan.Broken(i)
		}
	}
}

// item walks one event of the batch. Its soft faults are its own.
func (p *Parser) item(i int, c *Caller) int {
	outer := p.scan.Soft
	p.scan.Soft = jsonscan.Fault{}
	n := len(p.items)
	p.items = append(p.items, Item{})
	var end int
	if p.scan.At(i) != '{' {
		p.scan.Begin()
		end = p.scan.Value(i, 1)
		if p.items[n].Err = (&Error{Code: NotAnObject, Pointer: place(n).pointer("")}); p.scan.Soft.Code != "" {
			p.items[n].Err = p.softError()
		}
	} else if end = p.event(i, &p.env); end >= 0 {
		p.items[n] = p.take(n, c)
	}
	p.scan.Soft = outer
	return end
}

// take checks the scanned n-th event.
func (p *Parser) take(n int, c *Caller) Item {
	kind, err := p.kindOf(n)
	if err != nil {
		return Item{Err: err}
	}
	ev, hash := p.room(n)
	if err := p.check(kind, &p.env, c, ev, hash, place(n)); err != nil {
		return Item{Err: err}
	}
	return Item{Event: ev}
}

// room gives the n-th event's memory. What was handed out before stays where it
// is when there is more to make.
func (p *Parser) room(n int) (*schemas.Event, *[32]byte) {
	if n >= len(p.events) {
		size := min(max(2*n, 8), MaxBatch)
		p.events = append(p.events, make([]schemas.Event, size-len(p.events))...)
		p.hashes = append(p.hashes, make([][32]byte, size-len(p.hashes))...)
	}
	return &p.events[n], &p.hashes[n]
}

func (p *Parser) kindOf(n int) (string, *Error) {
	f := &p.env.fields[slotType]
	switch {
	case p.scan.Soft.Code != "":
		return "", p.softError()
	case !f.present():
		return "", &Error{Code: MissingField, Pointer: place(n).pointer("/type"), Detail: "type is track or identify."}
	}
	switch string(p.fieldText(f)) {
	case Track:
		return Track, nil
	case Identify:
		return Identify, nil
	}
	return "", &Error{Code: InvalidType, Pointer: place(n).pointer("/type")}
}

// oneKind refuses a batch that mixes imports with what just happened: they go
// to different topics, and a retry must find the whole on one.
func (p *Parser) oneKind() *Error {
	var first *schemas.Event
	for i := range p.items {
		ev := p.items[i].Event
		if ev == nil {
			continue
		}
		if first == nil {
			first = ev
		}
		if ev.Historical != first.Historical {
			return &Error{Code: MixedHistorical, Pointer: place(i).pointer("/historical")}
		}
	}
	return nil
}

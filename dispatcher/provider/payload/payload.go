// Package payload is a request's body that knows whether any of it was handed to
// a connection, for the adapters that speak HTTP: what never left may go again as
// another request, what left may have been taken.
package payload

import (
	"bytes"
	"errors"
	"io"
	"sync/atomic"
)

// Payload is the body of one attempt. It is an io.ReadCloser.
type Payload struct {
	data  []byte
	state *atomic.Int32
	rest  *bytes.Reader // behind Read alone: its WriteTo would pass the state by
}

// The states of a payload. A settled one gives nothing more, so that a transport
// that is still giving up cannot send what was reported as never sent.
const (
	untouched int32 = iota
	handedOver
	settled
)

var errSettled = errors.New("payload: the attempt is over")

// New makes the body of one attempt.
func New(data []byte) *Payload {
	return &Payload{data: data, state: new(atomic.Int32), rest: bytes.NewReader(data)}
}

// Read gives the data, and nothing once the attempt is over.
func (p *Payload) Read(b []byte) (int, error) {
	if !p.state.CompareAndSwap(untouched, handedOver) && p.state.Load() == settled {
		return 0, errSettled
	}
	return p.rest.Read(b)
}

// Close does nothing: the data is in memory.
func (p *Payload) Close() error { return nil }

// Again serves net/http where it knows that nothing was written, as on a
// connection that the server had closed while it was idle; the attempt then
// starts over on another one.
func (p *Payload) Again() (io.ReadCloser, error) {
	p.state.CompareAndSwap(handedOver, untouched)
	return &Payload{data: p.data, state: p.state, rest: bytes.NewReader(p.data)}, nil
}

// Settle ends the attempt and says whether any of the body left.
func (p *Payload) Settle() bool {
	return !p.state.CompareAndSwap(untouched, settled)
}

package resend

import (
	"bytes"
	"errors"
	"io"
	"sync/atomic"
)

// payload is a request's body that knows whether any of it was handed to a
// connection. That is what separates an attempt that never left from one whose
// outcome is unknown.
type payload struct {
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

var errSettled = errors.New("resend: the attempt is over")

func newPayload(data []byte) *payload {
	return &payload{data: data, state: new(atomic.Int32), rest: bytes.NewReader(data)}
}

func (p *payload) Read(b []byte) (int, error) {
	if !p.state.CompareAndSwap(untouched, handedOver) && p.state.Load() == settled {
		return 0, errSettled
	}
	return p.rest.Read(b)
}

func (p *payload) Close() error { return nil }

// again serves net/http where it knows that nothing was written, as on a
// connection that the server had closed while it was idle; the attempt then
// starts over on another one.
func (p *payload) again() (io.ReadCloser, error) {
	p.state.CompareAndSwap(handedOver, untouched)
	return &payload{data: p.data, state: p.state, rest: bytes.NewReader(p.data)}, nil
}

// settle ends the attempt and says whether any of the body left.
func (p *payload) settle() bool {
	return !p.state.CompareAndSwap(untouched, settled)
}

package sandbox

import (
	"bytes"
	"net"
	"net/http"
	"strconv"
	"time"
)

// meetFault takes the fault that waits for this request, if one does.
func (x *exchange) meetFault() {
	f, ok := x.faults.take(x.endpoint)
	if !ok {
		return
	}
	x.fault = f
	x.record.Fault = f.Kind
	x.ledger.faults.Add(1)
}

// failure is the error that the fault answers with, as this API says it.
func (x *exchange) failure() *apiError {
	if x.endpoint == endpointTexts {
		return x.fault.textFailure()
	}
	return x.fault.failure()
}

// outcome is what the ledger says of the answer.
func (f Fault) outcome() string {
	switch f.Kind {
	case FaultHang, FaultAcceptThenHang:
		return "hang"
	case FaultReset, FaultAcceptThenReset:
		return "reset"
	case FaultAcceptThenClose:
		return "close"
	case FaultAcceptThenStatus:
		return strconv.Itoa(f.failure().Status)
	default:
		return "200"
	}
}

// refuseByFault ends a request that is not to be taken.
func (x *exchange) refuseByFault() *apiError {
	switch x.fault.Kind {
	case FaultReset:
		x.note(x.fault.outcome())
		cut(x.w, true)
		return nil
	case FaultHang:
		x.note(x.fault.outcome())
		x.hang()
		return nil
	case FaultErrorInSuccess:
		err := x.failure()
		x.record.Name = err.Name
		x.note("200")
		writeJSON(x.w, http.StatusOK, err.body())
		return nil
	default:
		return x.failure()
	}
}

// answer tells what was taken, or does not.
func (x *exchange) answer(t *taken) {
	switch x.fault.Kind {
	case FaultAcceptThenStatus:
		x.failure().write(x.w)
	case FaultAcceptThenHang:
		x.hang()
	case FaultAcceptThenReset:
		cut(x.w, true)
	case FaultAcceptThenClose:
		cut(x.w, false)
	case FaultSlowDrip:
		x.drip(x.render(t))
	case FaultHugeBody:
		flood(x.w, x.render(t))
	case FaultUnparsable:
		writeJSON(x.w, http.StatusOK, []byte("<html><body>It works!</body></html>"))
	case FaultShort:
		short := *t
		short.count = max(0, t.count-1)
		writeJSON(x.w, http.StatusOK, x.render(&short))
	default:
		writeJSON(x.w, http.StatusOK, x.render(t))
	}
}

// hang ends when the client has left, or the sandbox.
func (x *exchange) hang() {
	x.fault.reached()
	select {
	case <-x.r.Context().Done():
	case <-x.closing:
	}
}

func (x *exchange) drip(body []byte) {
	x.w.Header().Set("Content-Type", "application/json")
	x.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	ticker := time.NewTicker(x.fault.delay())
	defer ticker.Stop()
	for i := range body {
		if _, err := x.w.Write(body[i : i+1]); err != nil {
			return
		}
		_ = http.NewResponseController(x.w).Flush()
		if i == 0 {
			x.fault.reached()
		}
		select {
		case <-ticker.C:
		case <-x.r.Context().Done():
			return
		case <-x.closing:
			return
		}
	}
}

// flood writes the right answer behind 64 MB of white space, or as much as the
// client stands.
func flood(w http.ResponseWriter, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	block := bytes.Repeat([]byte(" "), 64<<10)
	for range 1024 {
		if _, err := w.Write(block); err != nil {
			return
		}
	}
	_, _ = w.Write(body)
}

// cut ends the connection under a request, with a reset or with a plain close.
func cut(w http.ResponseWriter, reset bool) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // HTTP/2: the stream is reset
	}
	if tcp, ok := conn.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

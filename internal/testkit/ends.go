package testkit

import (
	"testing"
	"time"
)

// endsWithin is far more than anything takes to end on a machine that others load
// too: it is there for what would never end.
const endsWithin = 90 * time.Second

// Ends waits for what must end, and says whether it has. Where it does not, the
// test fails by its name, and the others run: without a bound they would all end
// with the binary's time, and nobody would know whose fault it was.
func Ends(t testing.TB, what string, wait func()) bool {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		wait()
	}()
	select {
	case <-done:
		return true
	case <-time.After(endsWithin):
		t.Errorf("%s never came to its end", what)
		return false
	}
}

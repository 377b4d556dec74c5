package testkit

import (
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// Addr gives a free address of loopback ("127.0.0.1:12345") for a process that is
// started later, or again: no port that the kernel gives to whoever asks it for
// any, as every other test does all the time.
func Addr(t testing.TB) string {
	t.Helper()
	var err error
	for range 100 {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(10_000+rand.IntN(10_000)))
		var l net.Listener
		if l, err = net.Listen("tcp", addr); err == nil {
			_ = l.Close()
			return addr
		}
	}
	t.Fatalf("find a free address: %v", err)
	return ""
}

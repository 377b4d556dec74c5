package bench

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// serve answers with what the path asks for.
func serve(t *testing.T) (addr string, conns *atomic.Int64) {
	t.Helper()
	conns = new(atomic.Int64)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.Header().Set("X-Auth", r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write(b)
	})
	mux.HandleFunc("POST /chunks", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		for range 3 {
			_, _ = io.WriteString(w, strings.Repeat("x", 5000))
			_ = http.NewResponseController(w).Flush()
		}
	})
	mux.HandleFunc("POST /away", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "come back", http.StatusServiceUnavailable)
	})
	mux.HandleFunc("POST /close", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusAccepted)
	})
	mux.HandleFunc("POST /cut", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	s := httptest.NewUnstartedServer(mux)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), conns
}

func TestConn(t *testing.T) {
	t.Parallel()
	addr, conns := serve(t)
	c := NewConn(addr, time.Minute)
	defer c.Close()
	post := func(path, body string) []byte {
		return Request("POST", path, addr, []byte(body), "Authorization: Bearer k")
	}

	for range 3 {
		got, err := c.Do(t.Context(), post("/echo", "hello"), 202)
		require.NoError(t, err)
		require.Equal(t, "hello", string(got))
	}
	got, err := c.Do(t.Context(), post("/chunks", ""), 202)
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("x", 15000), string(got))
	require.EqualValues(t, 1, conns.Load(), "one connection, kept alive")

	_, err = c.Do(t.Context(), post("/away", ""), 202)
	require.Equal(t, "http_503", Class(err))
	require.ErrorContains(t, err, "come back")
	got, err = c.Do(t.Context(), post("/echo", "after an error status"), 202)
	require.NoError(t, err)
	require.Equal(t, "after an error status", string(got))
	require.EqualValues(t, 1, conns.Load())

	_, err = c.Do(t.Context(), post("/cut", ""), 202)
	require.Equal(t, "connection", Class(err))
	_, err = c.Do(t.Context(), post("/close", ""), 202)
	require.NoError(t, err)
	_, err = c.Do(t.Context(), post("/echo", "x"), 202)
	require.NoError(t, err)
	require.EqualValues(t, 3, conns.Load(), "dialled again after the cut, and after Connection: close")
}

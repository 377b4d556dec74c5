package guard_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/webhook/guard"
)

// loopback is a guard's setting that reaches the test's own servers.
func loopback(more guard.Config) guard.Config {
	more.AnyPort, more.AllowHTTP = true, true
	more.Private = append(more.Private, netip.MustParsePrefix("127.0.0.0/8"))
	return more
}

func client(t *testing.T, cfg guard.Config, r guard.Resolver) *guard.Client {
	t.Helper()
	c := guard.NewClient(newGuard(t, cfg, r))
	t.Cleanup(c.Close)
	return c
}

func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// raw serves connections byte by byte.
func raw(t *testing.T, handle func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var all sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, conn)
			mu.Unlock()
			all.Go(func() {
				defer conn.Close()
				handle(conn)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return "http://" + l.Addr().String() + "/"
}

func readRequest(conn net.Conn) {
	req, err := http.ReadRequest(bufio.NewReader(conn))
	if err == nil {
		_, _ = io.Copy(io.Discard, req.Body)
	}
}

func classOf(err error) guard.Class {
	var f *guard.Failure
	if errors.As(err, &f) {
		return f.Class
	}
	return ""
}

func TestPost(t *testing.T) {
	t.Parallel()

	t.Run("SendsTheBytesAndGivesTheAnswer", func(t *testing.T) {
		t.Parallel()
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if string(body) != `{"n":1.10}` || r.Method != http.MethodPost || r.ContentLength != 10 || r.Header.Get("X-A") != "b" ||
				r.Header.Get("Accept-Encoding") != "" || r.Header.Values("Idempotency-Key") != nil {
				w.WriteHeader(http.StatusTeapot)
				return
			}
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusAccepted)
			fmt.Fprint(w, "ok")
		})
		a, err := client(t, loopback(guard.Config{}), nil).Post(t.Context(), s.URL+"/", http.Header{"X-A": {"b"}}, []byte(`{"n":1.10}`))
		require.NoError(t, err)
		require.Equal(t, http.StatusAccepted, a.Status)
		require.Equal(t, "ok", string(a.Kept))
		require.Equal(t, "7", a.RetryAfter)
		require.Positive(t, a.Took)
	})

	t.Run("FollowsNoRedirect", func(t *testing.T) { // bad inputs row 66, field report 33
		t.Parallel()
		var reached atomic.Int64
		other := serve(t, func(http.ResponseWriter, *http.Request) { reached.Add(1) })
		for _, status := range []int{301, 302, 303, 307, 308} {
			for _, to := range []string{other.URL, "http://169.254.169.254/latest/meta-data"} {
				s := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, status) })
				a, err := client(t, loopback(guard.Config{}), nil).Post(t.Context(), s.URL, nil, []byte("{}"))
				require.NoError(t, err)
				require.Equal(t, status, a.Status)
			}
		}
		require.Zero(t, reached.Load())
	})

	t.Run("AHugeAnswerIsCutAndCostsNothing", func(t *testing.T) { // F33
		t.Parallel()
		var sent atomic.Int64
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			chunk := bytes.Repeat([]byte("x"), 64<<10)
			for range 200 << 4 { // 200 MB
				n, err := w.Write(chunk)
				sent.Add(int64(n))
				if err != nil {
					return
				}
			}
		})
		a, err := client(t, loopback(guard.Config{}), nil).Post(t.Context(), s.URL, nil, []byte("{}"))
		require.NoError(t, err, "an answer that is too long is an answer")
		require.Equal(t, http.StatusOK, a.Status)
		require.Len(t, a.Kept, 1<<10)
		s.Close() // waits for the handler
		require.Less(t, sent.Load(), int64(64<<20), "the rest was not read")
	})

	t.Run("ACompressedAnswerIsNotInflated", func(t *testing.T) { // field report 37
		t.Parallel()
		var bomb bytes.Buffer
		z := gzip.NewWriter(&bomb)
		_, err := z.Write(make([]byte, 52<<20))
		require.NoError(t, err)
		require.NoError(t, z.Close())
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb.Bytes())
		})
		a, err := client(t, loopback(guard.Config{}), nil).Post(t.Context(), s.URL, nil, []byte("{}"))
		require.NoError(t, err)
		require.Equal(t, bomb.Bytes()[:1<<10], a.Kept)
	})

	t.Run("TheDeadlineCoversTheBody", func(t *testing.T) { // F33: a drip of a byte at a time
		t.Parallel()
		end := make(chan struct{})
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-r.Context().Done():
					close(end)
					return
				case <-tick.C:
					_, _ = w.Write([]byte("x"))
					w.(http.Flusher).Flush()
				}
			}
		})
		a, err := client(t, loopback(guard.Config{Deadline: 3 * time.Second}), nil).Post(t.Context(), s.URL, nil, []byte("{}"))
		require.Equal(t, guard.ClassTimeout, classOf(err))
		require.Equal(t, http.StatusOK, a.Status)
		<-end
	})

	t.Run("NeverEndingHeadersEnd", func(t *testing.T) { // F33
		t.Parallel()
		url := raw(t, func(c net.Conn) {
			readRequest(c)
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\n")
			for i := 0; ; i++ {
				if _, err := fmt.Fprintf(c, "X-%d: %s\r\n", i, strings.Repeat("y", 1000)); err != nil {
					return
				}
			}
		})
		_, err := client(t, loopback(guard.Config{}), nil).Post(t.Context(), url, nil, []byte("{}"))
		require.Equal(t, guard.ClassAnswer, classOf(err))
	})

	t.Run("EachTroubleHasItsClass", func(t *testing.T) {
		t.Parallel()
		reset := raw(t, func(c net.Conn) {
			readRequest(c)
			_ = c.(*net.TCPConn).SetLinger(0)
		})
		short := raw(t, func(c net.Conn) {
			readRequest(c)
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
		})
		babble := raw(t, func(c net.Conn) { readRequest(c); fmt.Fprint(c, "220 smtp.example.com ready\r\n") })
		silent := raw(t, func(c net.Conn) { readRequest(c); _, _ = io.Copy(io.Discard, c) })
		plain := strings.Replace(raw(t, func(c net.Conn) { fmt.Fprint(c, "not TLS at all, by any means\n") }), "http:", "https:", 1)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		closed := "http://" + l.Addr().String() + "/"
		l.Close()
		for name, row := range map[string]struct {
			url  string
			want guard.Class
		}{
			"reset": {reset, guard.ClassReset}, "a body cut short": {short, guard.ClassReset}, "another protocol": {babble, guard.ClassAnswer},
			"silence": {silent, guard.ClassTimeout}, "no TLS": {plain, guard.ClassTLS}, "refused": {closed, guard.ClassRefused},
			"no such name": {"http://gone.example.com/", guard.ClassDNS}, "no name server": {"http://away.example.com/", guard.ClassDNSAway},
			"an address of ours": {"http://10.0.0.1/", guard.ClassAddress}, "a scheme no longer allowed": {"ftp://example.com/", guard.ClassURL},
		} {
			deadline := 30 * time.Second
			if row.want == guard.ClassTimeout {
				deadline = 500 * time.Millisecond
			}
			_, err := client(t, loopback(guard.Config{Deadline: deadline}), trouble{}).Post(t.Context(), row.url, nil, []byte("{}"))
			require.Equal(t, row.want, classOf(err), "%s: %v", name, errors.Unwrap(err))
			require.Equal(t, "webhook request: "+string(row.want), err.Error(), "it quotes nothing")
		}
	})

	t.Run("OurOwnEndsAreTold", func(t *testing.T) { // P9
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // the server hears of a client that left only after the body
			cancel()
			<-r.Context().Done()
		})
		_, err := client(t, loopback(guard.Config{}), nil).Post(ctx, s.URL, nil, []byte("{}"))
		require.Equal(t, guard.ClassCanceled, classOf(err))

		for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.EADDRNOTAVAIL} {
			_, err = client(t, loopback(guard.Config{}), trouble{err: &net.OpError{Op: "dial", Err: errno}}).Post(t.Context(), "http://any.example.com/", nil, nil)
			require.Equal(t, guard.ClassLocal, classOf(err))
		}

		hold := make(chan struct{})
		release := sync.OnceFunc(func() { close(hold) })
		defer release()
		arrived := make(chan struct{}, 1)
		held := serve(t, func(http.ResponseWriter, *http.Request) { arrived <- struct{}{}; <-hold })
		one := client(t, loopback(guard.Config{ConnsPerHost: 1, Deadline: 4 * time.Second}), nil)
		var first sync.WaitGroup
		first.Go(func() { _, _ = one.Post(t.Context(), held.URL, nil, nil) })
		<-arrived
		_, err = one.Post(t.Context(), held.URL, nil, nil)
		require.Equal(t, guard.ClassBusy, classOf(err))
		release()
		first.Wait()
	})

	t.Run("ACertificateThatExpiredIsRefused", func(t *testing.T) { // F33
		t.Parallel()
		roots, chain := certificate(t, time.Now().Add(-48*time.Hour), time.Now().Add(-24*time.Hour))
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		s.TLS = &tls.Config{Certificates: []tls.Certificate{chain}}
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.StartTLS()
		t.Cleanup(s.Close)
		_, err := client(t, loopback(guard.Config{Roots: roots}), nil).Post(t.Context(), s.URL, nil, nil)
		require.Equal(t, guard.ClassTLS, classOf(err))
	})

	t.Run("ConnectionsAreUsedAgain", func(t *testing.T) { // field report 32
		t.Parallel()
		const at = 8
		var opened atomic.Int64
		var barrier sync.WaitGroup
		barrier.Add(at)
		roots, chain := certificate(t, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
		var first atomic.Int64
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if first.Add(1) <= at { // so many at once, the first time
				barrier.Done()
				barrier.Wait()
			}
			fmt.Fprint(w, strings.Repeat("k", 4096))
		}))
		s.TLS = &tls.Config{Certificates: []tls.Certificate{chain}}
		s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				opened.Add(1)
			}
		}
		s.StartTLS()
		t.Cleanup(s.Close)
		c := client(t, loopback(guard.Config{Roots: roots, ConnsPerHost: at}), nil)
		for range 20 {
			var round sync.WaitGroup
			for range at {
				round.Go(func() {
					a, err := c.Post(t.Context(), s.URL, nil, []byte("{}"))
					if err != nil || a.Status != http.StatusOK {
						t.Errorf("status %d: %v", a.Status, err)
					}
				})
			}
			round.Wait()
		}
		require.EqualValues(t, at, opened.Load())
	})

	t.Run("ANameThatTurnsInwardIsNeverConnectedTo", func(t *testing.T) { // row 65: rebinding, and a mixed answer
		t.Parallel()
		var accepted atomic.Int64
		inside := raw(t, func(net.Conn) { accepted.Add(1) })
		_, port, err := net.SplitHostPort(strings.TrimSuffix(strings.TrimPrefix(inside, "http://"), "/"))
		require.NoError(t, err)
		for _, answer := range [][]netip.Addr{ips("127.0.0.1"), ips("93.184.215.14", "127.0.0.1"), ips("::ffff:127.0.0.1"), ips("169.254.169.254")} {
			turning := &rebinding{then: answer}
			g := newGuard(t, guard.Config{AnyPort: true, AllowHTTP: true}, turning)
			url, err := g.Check(t.Context(), "http://hooks.example.com:"+port+"/")
			require.NoError(t, err, "public when it is created")
			c := guard.NewClient(g)
			_, err = c.Post(t.Context(), url, nil, []byte("{}"))
			require.Equal(t, guard.ClassAddress, classOf(err))
			c.Close()
		}
		require.Zero(t, accepted.Load())
	})

	t.Run("ANameWithASilentAddressTriesTheNext", func(t *testing.T) {
		t.Parallel()
		s := serve(t, func(http.ResponseWriter, *http.Request) {})
		_, port, err := net.SplitHostPort(s.Listener.Addr().String())
		require.NoError(t, err)
		c := client(t, loopback(guard.Config{}), &names{of: map[string][]netip.Addr{"two.example.com": ips("127.0.0.9", "127.0.0.1")}})
		a, err := c.Post(t.Context(), "http://two.example.com:"+port+"/", nil, nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, a.Status)
	})
}

func TestNoProxyOfTheEnvironment(t *testing.T) { // row 67; not parallel: the environment is one
	var proxied atomic.Int64
	proxy := serve(t, func(http.ResponseWriter, *http.Request) { proxied.Add(1) })
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"} {
		t.Setenv(name, proxy.URL)
	}
	c := client(t, guard.Config{AnyPort: true, AllowHTTP: true}, &names{of: map[string][]netip.Addr{"in.example.com": ips("10.0.0.1")}})
	_, err := c.Post(t.Context(), "http://in.example.com/", nil, nil)
	require.Equal(t, guard.ClassAddress, classOf(err))
	require.Zero(t, proxied.Load())
}

// rebinding is public at the first look-up and something else after it.
type rebinding struct {
	asked atomic.Int64
	then  []netip.Addr
}

func (r *rebinding) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	if r.asked.Add(1) == 1 {
		return ips("93.184.215.14"), nil
	}
	return append([]netip.Addr(nil), r.then...), nil
}

// trouble is a resolver that is away, or has no such name.
type trouble struct{ err error }

func (r trouble) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	switch {
	case r.err != nil:
		return nil, r.err
	case host == "away.example.com":
		return nil, &net.DNSError{Err: "server misbehaving", Name: host, IsTemporary: true}
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// certificate makes one for 127.0.0.1, signed by itself.
func certificate(t *testing.T, from, until time.Time) (*x509.CertPool, tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: until, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return pool, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

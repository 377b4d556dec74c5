package testkit_test

import (
	"bufio"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/testkit"
)

// echo is a server that answers each line with itself and keeps all it got.
type echo struct {
	addr string
	mu   sync.Mutex
	got  []byte
}

func startEcho(t *testing.T) *echo {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	e := &echo{addr: l.Addr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { e.serve(conn) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return e
}

func (e *echo) serve(conn net.Conn) {
	defer conn.Close()
	buf := make([]byte, 1024)
	for {
		n, err := conn.Read(buf)
		e.mu.Lock()
		e.got = append(e.got, buf[:n]...)
		e.mu.Unlock()
		if err != nil {
			return
		}
		if _, err := conn.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (e *echo) received() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return string(e.got)
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	return conn
}

func roundTrip(t *testing.T, conn net.Conn, line string) {
	t.Helper()
	_, err := io.WriteString(conn, line+"\n")
	require.NoError(t, err)
	got, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, line+"\n", got)
}

// requireReset checks that the other side ended the connection by a reset.
func requireReset(t *testing.T, conn net.Conn) {
	t.Helper()
	_, err := io.Copy(io.Discard, conn)
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestProxy(t *testing.T) {
	t.Parallel()

	t.Run("PassesAtFirst", func(t *testing.T) {
		t.Parallel()
		p := testkit.NewProxy(t, startEcho(t).addr)
		roundTrip(t, dial(t, p.Addr()), "hello")
		require.Equal(t, testkit.ProxyCounts{Accepted: 1}, p.Counts())
	})

	t.Run("RefusesAndComesBackAtTheSameAddress", func(t *testing.T) {
		t.Parallel()
		p := testkit.NewProxy(t, startEcho(t).addr)
		conn := dial(t, p.Addr())
		roundTrip(t, conn, "hello")
		p.Refuse()
		requireReset(t, conn)
		_, err := net.Dial("tcp", p.Addr())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		p.Pass()
		roundTrip(t, dial(t, p.Addr()), "again")
	})

	t.Run("HoldsBytesInABlackholeAndDeliversThemLate", func(t *testing.T) {
		t.Parallel()
		e := startEcho(t)
		p := testkit.NewProxy(t, e.addr)
		conn := dial(t, p.Addr())
		roundTrip(t, conn, "before")
		p.Blackhole()
		_, err := io.WriteString(conn, "held\n")
		require.NoError(t, err)
		fresh := dial(t, p.Addr())
		_, err = io.WriteString(fresh, "fresh\n")
		require.NoError(t, err)
		for _, c := range []net.Conn{conn, fresh} {
			require.NoError(t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
			_, err = c.Read(make([]byte, 1))
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		}
		require.Equal(t, "before\n", e.received())
		p.Pass()
		for c, want := range map[net.Conn]string{conn: "held\n", fresh: "fresh\n"} {
			require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
			got, err := bufio.NewReader(c).ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	})

	t.Run("Delays", func(t *testing.T) {
		t.Parallel()
		p := testkit.NewProxy(t, startEcho(t).addr)
		conn := dial(t, p.Addr())
		p.Delay(50 * time.Millisecond)
		start := time.Now()
		roundTrip(t, conn, "slow")
		require.GreaterOrEqual(t, time.Since(start), 100*time.Millisecond)
	})

	t.Run("Resets", func(t *testing.T) {
		t.Parallel()
		p := testkit.NewProxy(t, startEcho(t).addr)
		conn := dial(t, p.Addr())
		roundTrip(t, conn, "hello")
		p.Reset()
		requireReset(t, conn)
		require.Equal(t, 1, p.Counts().Resets)
		roundTrip(t, dial(t, p.Addr()), "new connections pass")
	})

	t.Run("CutsAfterACountOfBytes", func(t *testing.T) {
		t.Parallel()
		e := startEcho(t)
		p := testkit.NewProxy(t, e.addr)
		conn := dial(t, p.Addr())
		done := p.CutAfter(8)
		roundTrip(t, conn, "12345")
		_, err := io.WriteString(conn, "678\n")
		require.NoError(t, err)
		<-done
		requireReset(t, conn)
		require.Eventually(t, func() bool { return len(e.received()) <= 8 }, time.Second, time.Millisecond)
		require.Equal(t, 1, p.Counts().Cuts)
		roundTrip(t, dial(t, p.Addr()), "one cut alone")
	})

	t.Run("CutsBeforeAPattern", func(t *testing.T) {
		t.Parallel()
		e := startEcho(t)
		p := testkit.NewProxy(t, e.addr)
		conn := dial(t, p.Addr())
		done := p.CutOnPattern([]byte("commit"), testkit.Before)
		roundTrip(t, conn, "begin")
		_, err := io.WriteString(conn, "commit\n")
		require.NoError(t, err)
		<-done
		requireReset(t, conn)
		require.Equal(t, "begin\n", e.received())
	})

	t.Run("CutsAfterAPatternSplitOverTwoWrites", func(t *testing.T) {
		t.Parallel()
		e := startEcho(t)
		p := testkit.NewProxy(t, e.addr)
		conn := dial(t, p.Addr())
		done := p.CutOnPattern([]byte("\ncommit"), testkit.After)
		roundTrip(t, conn, "com")
		_, err := io.WriteString(conn, "commit;more")
		require.NoError(t, err)
		<-done
		n, err := io.Copy(io.Discard, conn)
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.Zero(t, n, "the client sees no answer")
		require.Eventually(t, func() bool { return e.received() == "com\ncommit;more" }, 20*time.Second, time.Millisecond)
	})
}

// TestProxyCutsACommit shows the two halves of an unknown outcome (faults F17).
func TestProxyCutsACommit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		when testkit.When
		rows int
	}{"Before": {testkit.Before, 0}, "After": {testkit.After, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := testkit.Pool(t)
			_, err := pool.Exec(t.Context(), "create table t (v int)")
			require.NoError(t, err)
			cfg := pool.Config().ConnConfig.Copy()
			p := testkit.NewProxy(t, net.JoinHostPort(cfg.Host, portOf(cfg)))
			cfg.DialFunc = p.Dial
			conn, err := pgx.ConnectConfig(t.Context(), cfg)
			require.NoError(t, err)
			tx, err := conn.Begin(t.Context())
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), "insert into t values (1)")
			require.NoError(t, err)
			done := p.CutOnPattern([]byte("commit"), c.when)
			err = tx.Commit(t.Context())
			require.Error(t, err)
			require.NotErrorIs(t, err, pgx.ErrTxCommitRollback)
			<-done
			var rows int
			require.Eventually(t, func() bool {
				require.NoError(t, pool.QueryRow(t.Context(), "select count(*) from t").Scan(&rows))
				return rows == c.rows
			}, 20*time.Second, 5*time.Millisecond)
		})
	}
}

func portOf(cfg *pgx.ConnConfig) string { return strconv.Itoa(int(cfg.Port)) }

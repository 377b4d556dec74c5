//go:build kafka

package storage_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/internal/storage"
	"github.com/softcrum/carril/internal/testkit"
)

// TestS3 holds a real server to what every storage does.
func TestS3(t *testing.T) {
	t.Parallel()
	url := os.Getenv("CARRIL_TEST_STORAGE_URL")
	require.NotEmpty(t, url, "CARRIL_TEST_STORAGE_URL names no server: see `make test-kafka`")
	conform(t, storage.Config{URL: url, AccessKey: os.Getenv("CARRIL_TEST_STORAGE_ACCESS_KEY"), SecretKey: os.Getenv("CARRIL_TEST_STORAGE_SECRET_KEY"),
		PartBytes: 5 << 20, Stall: time.Minute})
}

// gateway is a server of the test's own, to be killed.
type gateway struct {
	t      *testing.T
	dir    string
	addr   string
	server *exec.Cmd
}

func newGateway(t *testing.T) *gateway {
	require.NotEmpty(t, os.Getenv("CARRIL_TEST_S3_GATEWAY"), "CARRIL_TEST_S3_GATEWAY names no program: see `make test-kafka`")
	g := &gateway{t: t, dir: t.TempDir(), addr: testkit.Addr(t)}
	require.NoError(t, os.Mkdir(filepath.Join(g.dir, "bucket"), 0o755))
	g.start()
	t.Cleanup(g.kill)
	return g
}

func (g *gateway) start() {
	g.server = exec.Command(os.Getenv("CARRIL_TEST_S3_GATEWAY"), "--port", g.addr, "posix", g.dir)
	g.server.Env = append(os.Environ(), "ROOT_ACCESS_KEY=test", "ROOT_SECRET_KEY=test-secret")
	g.server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(g.t, g.server.Start())
	client := &http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	require.Eventually(g.t, func() bool {
		resp, err := client.Get("http://" + g.addr + "/")
		if err == nil {
			_ = resp.Body.Close()
		}
		return err == nil
	}, time.Minute, 50*time.Millisecond)
}

func (g *gateway) kill() {
	_ = g.server.Process.Kill()
	_ = g.server.Wait()
}

func (g *gateway) config() storage.Config {
	return storage.Config{URL: "s3://bucket/p?endpoint=http://" + g.addr + "&path_style=true", AccessKey: "test", SecretKey: "test-secret",
		PartBytes: 5 << 20, Stall: time.Minute}
}

// TestS3ServerIsKilledInTheMiddle: an object is whole or not there, and a rerun
// works.
func TestS3ServerIsKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	s, err := storage.Open(g.config())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	for _, point := range []string{"parts", "commit"} {
		body := random(17 << 20)
		w, err := s.Create(t.Context(), point)
		require.NoError(t, err)
		_, err = w.Write(body[:12<<20])
		require.NoError(t, err)
		if point == "parts" {
			g.kill()
			_, err = w.Write(body[12<<20:])
			require.Error(t, err)
		} else {
			_, err = w.Write(body[12<<20:])
			require.NoError(t, err)
			dead := time.AfterFunc(5*time.Millisecond, g.kill) // before, in or after the commit
			_, err = w.Commit()
			dead.Stop()
			g.kill()
		}
		w.Abort()
		g.start()
		there := err == nil
		if _, serr := s.Stat(t.Context(), point); serr == nil {
			there = true
		} else {
			require.ErrorIs(t, serr, storage.ErrNotFound)
			require.False(t, there, "what was committed is gone")
		}
		if !there {
			require.NoError(t, s.Sweep(t.Context(), "", time.Now().Add(time.Hour)))
			write(t, s, point, body)
		}
		require.Equal(t, body, read(t, s, point))
	}
}

// TestS3Refuses: what the server says reaches the caller as a class, and no
// credential does.
func TestS3Refuses(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	for _, change := range []func(*storage.Config){
		func(c *storage.Config) { c.SecretKey = "wrong-hunter2" },
		func(c *storage.Config) { c.URL = strings.Replace(c.URL, "bucket", "nobucket", 1) },
	} {
		c := g.config()
		change(&c)
		s, err := storage.Open(c)
		require.NoError(t, err)
		w, err := s.Create(t.Context(), "a")
		if err == nil { // a HEAD of what is not there says no more than that
			_, err = w.Commit()
		}
		require.Error(t, err)
		require.NotErrorIs(t, err, storage.ErrExists)
		require.NotContains(t, err.Error(), "hunter2")
		require.NoError(t, s.Close())
	}
}

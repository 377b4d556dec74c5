package storage_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/softcrum/carril/internal/storage"
)

const envChild = "CARRIL_STORAGE_TEST_CHILD"

func TestMain(m *testing.M) {
	if raw := os.Getenv(envChild); raw != "" {
		writeUntilKilled(raw)
	}
	goleak.VerifyTestMain(m)
}

func TestFolder(t *testing.T) {
	t.Parallel()
	conform(t, storage.Config{URL: "file://" + t.TempDir() + "/made/on/demand"})
}

// conform is what every storage does. The tests share it under prefixes of their
// own.
func conform(t *testing.T, cfg storage.Config) {
	s, err := storage.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()); require.NoError(t, s.Close(), "harmless twice") })
	run := func(name string, test func(t *testing.T, at string)) {
		t.Run(name, func(t *testing.T) { test(t, "t-"+strings.ToLower(rand.Text())+"/") })
	}
	run("GivesBackWhatWasWritten", func(t *testing.T, at string) {
		for _, size := range []int{0, 1, 4096, 5<<20 + 1, 17 << 20} { // within a part, a part and a byte, several
			name, body := fmt.Sprintf("%ssize/%d.bin", at, size), random(size)
			made := write(t, s, name, body)
			require.Equal(t, int64(size), made.Size)
			require.Equal(t, name, made.Name)
			require.WithinDuration(t, time.Now(), made.Modified, time.Hour)
			again, err := s.Stat(t.Context(), name)
			require.NoError(t, err)
			require.Equal(t, made.Digest, again.Digest, "the server's digest stays")
			require.Equal(t, body, read(t, s, name))
		}
	})
	run("ReadsFromAnywhere", func(t *testing.T, at string) {
		body := random(300_000)
		write(t, s, at+"a", body)
		r, err := s.Open(t.Context(), at+"a")
		require.NoError(t, err)
		defer func() { require.NoError(t, r.Close()) }()
		for _, from := range []int64{200_000, 0, 299_999} {
			n, err := r.Seek(from, io.SeekStart)
			require.NoError(t, err)
			require.Equal(t, from, n)
			got, err := io.ReadAll(r)
			require.NoError(t, err)
			require.True(t, bytes.Equal(body[from:], got))
		}
		n, err := r.Seek(-10, io.SeekEnd)
		require.NoError(t, err)
		require.Equal(t, int64(299_990), n)
		_, err = r.Seek(-1, io.SeekStart)
		require.Error(t, err)
	})
	run("NeverOverwrites", func(t *testing.T, at string) {
		write(t, s, at+"a", []byte("first"))
		_, err := s.Create(t.Context(), at+"a")
		require.ErrorIs(t, err, storage.ErrExists)
		require.Equal(t, "first", string(read(t, s, at+"a")))
	})
	run("LetsOneOfManyWin", func(t *testing.T, at string) {
		for _, size := range []int{100, 6 << 20} {
			name := fmt.Sprintf("%s%d", at, size)
			const n = 4
			bodies, errs := make([][]byte, n), make([]error, n)
			var begun, all sync.WaitGroup
			begun.Add(n)
			for i := range n {
				all.Go(func() {
					bodies[i] = random(size)
					w, err := s.Create(t.Context(), name)
					begun.Done()
					if errs[i] = err; err != nil {
						return
					}
					defer w.Abort()
					begun.Wait() // all saw a name that was free
					if _, errs[i] = w.Write(bodies[i]); errs[i] == nil {
						_, errs[i] = w.Commit()
					}
				})
			}
			all.Wait()
			won := slices.IndexFunc(errs, func(err error) bool { return err == nil })
			require.GreaterOrEqual(t, won, 0, "%v", errs)
			for i, err := range errs {
				if i != won {
					require.ErrorIs(t, err, storage.ErrExists)
				}
			}
			require.Equal(t, bodies[won], read(t, s, name))
		}
	})
	run("ShowsNothingBeforeCommit", func(t *testing.T, at string) {
		w, err := s.Create(t.Context(), at+"a")
		require.NoError(t, err)
		_, err = w.Write(random(12 << 20))
		require.NoError(t, err)
		_, err = s.Stat(t.Context(), at+"a")
		require.ErrorIs(t, err, storage.ErrNotFound)
		require.Empty(t, names(t, s, at))
		w.Abort()
		w.Abort()
		require.Empty(t, names(t, s, at))
		write(t, s, at+"a", []byte("a rerun works"))
	})
	run("CommitsNothingAfterItsContext", func(t *testing.T, at string) {
		ctx, cancel := context.WithCancel(t.Context())
		w, err := s.Create(ctx, at+"a")
		require.NoError(t, err)
		_, err = w.Write([]byte("x"))
		require.NoError(t, err)
		cancel()
		_, err = w.Commit()
		require.ErrorIs(t, err, context.Canceled)
		require.Empty(t, names(t, s, at))
	})
	run("ListsByPrefixInOrder", func(t *testing.T, at string) {
		for _, n := range []string{"b/2", "b/10", "a", "b/1/x", "bc"} {
			write(t, s, at+n, []byte(n))
		}
		require.Equal(t, []string{"a", "b/1/x", "b/10", "b/2", "bc"}, names(t, s, at))
		require.Equal(t, []string{"b/1/x", "b/10", "b/2"}, names(t, s, at+"b/"))
		require.Equal(t, []string{"b/1/x", "b/10"}, names(t, s, at+"b/1"))
		require.Empty(t, names(t, s, at+"nothing/here/"))
		for i, err := range s.List(t.Context(), at) { // may be left early
			require.NoError(t, err)
			require.Equal(t, int64(1), i.Size)
			break
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, err := range s.List(ended, at) {
			require.Error(t, err)
		}
	})
	run("Deletes", func(t *testing.T, at string) {
		write(t, s, at+"b/a", []byte("x"))
		require.NoError(t, s.Delete(t.Context(), at+"b/a"))
		require.NoError(t, s.Delete(t.Context(), at+"b/a"), "what is not there is deleted")
		_, err := s.Open(t.Context(), at+"b/a")
		require.ErrorIs(t, err, storage.ErrNotFound)
		_, err = s.Stat(t.Context(), at+"b/a")
		require.ErrorIs(t, err, storage.ErrNotFound)
		write(t, s, at+"b/a", []byte("again"))
	})
	run("ReplacesAtomically", func(t *testing.T, at string) {
		require.NoError(t, s.Replace(t.Context(), at+"m.json", []byte("one")))
		stop, reading := make(chan struct{}), sync.WaitGroup{}
		reading.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if b, err := slurp(t.Context(), s, at+"m.json"); err == nil && string(b) != "one" && string(b) != "second" {
					t.Errorf("half of it was seen: %q", b)
				}
			}
		})
		for range 10 {
			require.NoError(t, s.Replace(t.Context(), at+"m.json", []byte("second")))
			require.NoError(t, s.Replace(t.Context(), at+"m.json", []byte("one")))
		}
		close(stop)
		reading.Wait()
	})
	run("TakesPlainNamesAlone", func(t *testing.T, _ string) {
		for _, name := range []string{"", "/a", "a/", "a//b", "../a", "a/../b", "a/./b", ".a", "a b", "a\x00b", "é", "a?b", "a%2fb", `a\b`,
			strings.Repeat("a", 201), strings.Repeat("a/", 460) + "a"} {
			_, err := s.Create(t.Context(), name)
			require.ErrorIs(t, err, storage.ErrName, "%q", name)
			_, err = s.Open(t.Context(), name)
			require.ErrorIs(t, err, storage.ErrName, "%q", name)
			_, err = s.Stat(t.Context(), name)
			require.ErrorIs(t, err, storage.ErrName, "%q", name)
			require.ErrorIs(t, s.Delete(t.Context(), name), storage.ErrName, "%q", name)
			require.ErrorIs(t, s.Replace(t.Context(), name, nil), storage.ErrName, "%q", name)
		}
	})
	run("HoldsAPartInMemoryAtMost", func(t *testing.T, at string) {
		w, err := s.Create(t.Context(), at+"large")
		require.NoError(t, err)
		defer w.Abort()
		chunk := random(1 << 20)
		var most uint64
		for i := range 120 {
			_, err := w.Write(chunk)
			require.NoError(t, err)
			if i%20 == 19 {
				var m runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapAlloc)
			}
		}
		info, err := w.Commit()
		require.NoError(t, err)
		require.Equal(t, int64(120<<20), info.Size)
		require.Less(t, most, uint64(80<<20), "120 MiB were written")
	})
	run("LinksWhereTheServerServes", func(t *testing.T, at string) {
		write(t, s, at+"a.bin", []byte("linked"))
		link, err := s.Link(t.Context(), at+"a.bin", time.Minute)
		if strings.HasPrefix(cfg.URL, "file:") {
			require.ErrorIs(t, err, storage.ErrNoLink)
			return
		}
		require.NoError(t, err)
		client := &http.Client{}
		defer client.CloseIdleConnections()
		resp, err := client.Get(link)
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, "linked", string(body))
		require.Contains(t, resp.Header.Get("Content-Disposition"), `filename="a.bin"`)
	})
	run("IsWholeOrNotThereWhenItsWriterIsKilled", func(t *testing.T, at string) {
		for _, point := range []string{"begun", "written", "committed"} {
			name := at + point
			killWriter(t, child{Config: cfg, Name: name, Point: point, Size: 12 << 20})
			if point == "committed" {
				require.Len(t, read(t, s, name), 12<<20)
				continue
			}
			require.Empty(t, names(t, s, name))
			require.NoError(t, s.Sweep(t.Context(), name, time.Now().Add(time.Hour)))
			write(t, s, name, []byte("a rerun works"))
		}
	})
}

// child is what a writer process of the test is told.
type child struct {
	storage.Config
	Name, Point string
	Size        int
}

func killWriter(t *testing.T, c child) {
	t.Helper()
	raw, err := json.Marshal(c)
	require.NoError(t, err)
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	cmd.Env, cmd.Stderr = append(os.Environ(), envChild+"="+string(raw)), os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal())
}

func writeUntilKilled(raw string) {
	var c child
	must(json.Unmarshal([]byte(raw), &c))
	s, err := storage.Open(c.Config)
	must(err)
	w, err := s.Create(context.Background(), c.Name)
	must(err)
	for _, point := range []string{"begun", "written", "committed"} {
		switch point {
		case "written":
			_, err = w.Write(random(c.Size))
		case "committed":
			_, err = w.Commit()
		}
		must(err)
		if point == c.Point {
			must(syscall.Kill(os.Getpid(), syscall.SIGKILL))
			select {}
		}
	}
	os.Exit(3)
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(4)
	}
}

func write(t *testing.T, s storage.Store, name string, body []byte) storage.Info {
	t.Helper()
	w, err := s.Create(t.Context(), name)
	require.NoError(t, err)
	defer w.Abort()
	_, err = w.Write(body)
	require.NoError(t, err)
	info, err := w.Commit()
	require.NoError(t, err)
	return info
}

func slurp(ctx context.Context, s storage.Store, name string) ([]byte, error) {
	r, err := s.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(r)
	return b, errors.Join(err, r.Close())
}

func read(t *testing.T, s storage.Store, name string) []byte {
	t.Helper()
	b, err := slurp(t.Context(), s, name)
	require.NoError(t, err)
	return b
}

func names(t *testing.T, s storage.Store, prefix string) []string {
	t.Helper()
	var ns []string
	for i, err := range s.List(t.Context(), prefix) {
		require.NoError(t, err)
		_, n, _ := strings.Cut(i.Name, "/")
		ns = append(ns, n)
	}
	return ns
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // it never fails
	return b
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for _, ok := range []string{"file:///var/lib/exports", "s3://bucket", "s3://bucket/a/b?region=eu-west-1",
		"s3://bucket?endpoint=http://127.0.0.1:9000&path_style=true", "s3://b.example.com/p?endpoint=https://s3.example.com"} {
		require.NoError(t, storage.Config{URL: ok}.Validate(), ok)
	}
	for _, bad := range []string{"", "exports", "/var/lib", "file://host/a", "file:relative", "file:///a?b=c", "http://example.com", "s3://", "s3:///a",
		"s3://b?endpoint=127.0.0.1:9000", "s3://b?endpoint=http://h/path", "s3://b?endpoint=http://u:p@h", "s3://b?path_style=maybe", "s3://b?tls=off",
		"s3://key:hunter2@b", "s3://b/a/../c", "s3://b?%zz", "s3://key:hunter2@b%zz"} {
		err := storage.Config{URL: bad}.Validate()
		require.ErrorIs(t, err, storage.ErrURL, bad)
		require.NotContains(t, err.Error(), "hunter2")
	}
	_, err := storage.Open(storage.Config{URL: "s3://b", AccessKey: "a"})
	require.ErrorIs(t, err, storage.ErrURL)
	require.ErrorIs(t, storage.Config{URL: "s3://b", PartBytes: 1000}.Validate(), storage.ErrURL)
	s, err := storage.Open(storage.Config{URL: "s3://bucket/p?endpoint=http://127.0.0.1:1&path_style=true", AccessKey: "a", SecretKey: "hunter2"})
	require.NoError(t, err)
	require.Equal(t, "s3://bucket/p", s.String())
}

// TestFolderIsKeptInside: a link inside the folder leads nowhere outside it.
func TestFolderIsKeptInside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("x"), 0o600))
	s, err := storage.Open(storage.Config{URL: "file://" + dir + "/in"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, os.Symlink("..", filepath.Join(dir, "in", "out")))
	_, err = s.Open(t.Context(), "out/secret")
	require.Error(t, err)
	_, err = s.Create(t.Context(), "out/new")
	require.Error(t, err)
}

// TestFolderSweep takes what is old alone.
func TestFolderSweep(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := storage.Open(storage.Config{URL: "file://" + dir})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	w, err := s.Create(t.Context(), "a")
	require.NoError(t, err)
	require.NoError(t, s.Sweep(t.Context(), "", time.Now().Add(-time.Hour)))
	_, err = w.Write([]byte("x"))
	require.NoError(t, err)
	_, err = w.Commit()
	require.NoError(t, err)
	_, err = s.Create(t.Context(), "b") // and never goes on
	require.NoError(t, err)
	require.NoError(t, s.Sweep(t.Context(), "", time.Now().Add(time.Hour)))
	left, err := os.ReadDir(filepath.Join(dir, ".unfinished"))
	require.NoError(t, err)
	require.Empty(t, left)
}

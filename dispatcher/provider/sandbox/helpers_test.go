package sandbox_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/provider/sandbox"
)

func start(t testing.TB, cfg sandbox.Config, deps sandbox.Deps) *sandbox.Server {
	t.Helper()
	s, err := sandbox.New(cfg, deps)
	require.NoError(t, err)
	require.NoError(t, s.Start(t.Context()))
	t.Cleanup(func() { stop(t, s) })
	return s
}

func stop(t testing.TB, s *sandbox.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	require.NoError(t, s.Stop(ctx))
}

// clock stands still until it is moved.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 11, 30, 23, 59, 58, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// reply is an answer, read.
type reply struct {
	status int
	header http.Header
	body   string
	name   string // of the error that it is
}

// call makes a request; headers come in pairs and an empty value drops one.
func call(t testing.TB, s *sandbox.Server, method, path, body string, headers ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL()+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+testKey)
	req.Header.Set("User-Agent", "test")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
		if headers[i+1] == "" && headers[i] == "Authorization" {
			req.Header.Del(headers[i])
		}
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	out := reply{status: resp.StatusCode, header: resp.Header, body: string(raw)}
	var e struct {
		Name       string
		StatusCode int
		Message    string
	}
	if json.Unmarshal(raw, &e) == nil && e.Name != "" {
		require.Equal(t, resp.StatusCode, e.StatusCode)
		require.NotEmpty(t, e.Message)
		out.name = e.Name
	}
	return out
}

func email(to string) string {
	return fmt.Sprintf(`{"from":"Shop <shop@example.com>","to":[%q],"subject":"Hi","html":"<p>x</p>","tags":[{"name":"send_id","value":"s-%s"},{"name":"tenant_id","value":"t1"}]}`,
		to, regexp.MustCompile(`[^a-z0-9]`).ReplaceAllString(to, "_"))
}

func batch(to ...string) string {
	items := make([]string, len(to))
	for i, a := range to {
		items[i] = email(a)
	}
	return "[" + strings.Join(items, ",") + "]"
}

func ids(t testing.TB, body string) []string {
	t.Helper()
	var b struct {
		ID   string
		Data []struct{ ID string }
	}
	require.NoError(t, json.NewDecoder(bytes.NewBufferString(body)).Decode(&b))
	if b.ID != "" {
		return []string{b.ID}
	}
	out := []string{}
	for _, d := range b.Data {
		out = append(out, d.ID)
	}
	return out
}

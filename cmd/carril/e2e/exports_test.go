package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/stretchr/testify/require"
)

// TestATenantReadsItsEventsBack takes events in at the front door and reads them
// from the feed, the counts and an export.
func TestATenantReadsItsEventsBack(t *testing.T) {
	t.Parallel()
	p := startDev(t, dataFolder(t))
	l := newLedger()
	at := time.Now()
	for i := range 12 {
		require.Equal(t, 202, insist(func() int { return post(p.API, p.Key, fmt.Sprintf("invoice-%d", i), "ana@example.com", at, l) }))
	}
	ask := func(method, path, body string, answer any) int {
		req, err := http.NewRequestWithContext(t.Context(), method, p.API+path, strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+p.Key)
		if body != "" {
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Idempotency-Key", "export-1")
		}
		resp, err := client.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		if raw, ok := answer.(*[]byte); ok {
			*raw = b
		} else {
			require.NoError(t, json.Unmarshal(b, answer), "%s", b)
		}
		return resp.StatusCode
	}
	fed, cursor := map[string]bool{}, ""
	eventually(t, time.Minute, func() bool {
		var page struct {
			Events []struct {
				EventID   string `json:"event_id"`
				EventName string `json:"event_name"`
			} `json:"events"`
			NextCursor string `json:"next_cursor"`
		}
		path := "/v1/core/events/feed?limit=5"
		if cursor != "" {
			path += "&cursor=" + url.QueryEscape(cursor)
		}
		require.Equal(t, http.StatusOK, ask(http.MethodGet, path, "", &page))
		cursor = page.NextCursor
		for _, e := range page.Events {
			if e.EventName == "invoice.paid" {
				fed[e.EventID] = true
			}
		}
		return len(fed) == 12
	}, func() string { return fmt.Sprintf("%d of 12 events in the feed", len(fed)) })
	for _, id := range l.ids {
		require.True(t, fed[id])
	}
	first := time.Date(at.UTC().Year(), at.UTC().Month(), 1, 0, 0, 0, 0, time.UTC)
	from, to := first.Format(time.RFC3339), first.AddDate(0, 1, 0).Format(time.RFC3339)
	var counts struct {
		Total int `json:"total"`
	}
	require.Equal(t, http.StatusOK, ask(http.MethodGet, "/v1/core/counts?event_name=invoice.paid&from="+from+"&to="+to, "", &counts))
	require.Equal(t, 12, counts.Total)
	var export struct {
		ExportID string `json:"export_id"`
		State    string `json:"state"`
		Files    []struct {
			Name string `json:"name"`
			URL  string `json:"url"`
		} `json:"files"`
	}
	require.Equal(t, http.StatusAccepted, ask(http.MethodPost, "/v1/core/exports", fmt.Sprintf(`{"from":%q,"to":%q,"compression":"gzip"}`, from, to), &export))
	path := "/v1/core/exports/" + export.ExportID
	eventually(t, time.Minute, func() bool {
		require.Equal(t, http.StatusOK, ask(http.MethodGet, path, "", &export))
		return export.State == "done"
	}, func() string { return "the export is " + export.State })
	require.Len(t, export.Files, 2)
	var file []byte
	require.Equal(t, http.StatusOK, ask(http.MethodGet, export.Files[1].URL, "", &file))
	z, err := gzip.NewReader(bytes.NewReader(file))
	require.NoError(t, err)
	exported := 0
	for lines := bufio.NewScanner(z); lines.Scan(); {
		var e struct {
			EventID   string `json:"event_id"`
			EventName string `json:"event_name"`
		}
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e))
		if e.EventName == "invoice.paid" {
			require.True(t, fed[e.EventID])
			exported++
		}
	}
	require.Equal(t, 12, exported)
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// sender asks the provider, for the workers of all systems but Carril's.
type sender struct {
	url    string
	client *http.Client
}

func newSender(url string, conns int) *sender {
	return &sender{url: url, client: &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: conns}}}
}

// throttled is the provider's 429, or a token that is not there.
type throttled struct{ after time.Duration }

func (t *throttled) Error() string { return fmt.Sprintf("rate limited (retry in %s)", t.after) }

type message struct {
	From    string   `json:"from"`
	To      []string `json:"to"`
	Subject string   `json:"subject"`
	Text    string   `json:"text"`
}

// send sends a job in one request, under the job's id as idempotency key: what
// the provider has taken under it, it does not take again.
func (s *sender) send(ctx context.Context, j job) error {
	all := make([]message, len(j.To))
	for i, to := range j.To {
		all[i] = message{"Shop <shop@example.com>", []string{to}, "Hello", "493021 is your code, and this is our news."}
	}
	var body any = all
	path := "/emails/batch"
	if j.Code {
		body, path = all[0], "/emails"
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, bytes.NewReader(raw))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer re_compare_0123456789")
	req.Header.Set("Idempotency-Key", j.ID)
	resp, err := s.client.Do(req)
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	defer resp.Body.Close()
	said, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	switch {
	case resp.StatusCode == http.StatusTooManyRequests:
		seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
		if err != nil {
			seconds = 1
		}
		return &throttled{time.Duration(seconds) * time.Second}
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("send: status %d: %.200s", resp.StatusCode, said)
	}
	return nil
}

package sandbox

import (
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// limiter is a fixed window over the whole team, as Resend's headers tell it: so
// many requests, until the window ends.
type limiter struct {
	rate   int
	window time.Duration

	mu    sync.Mutex
	start time.Time
	used  int
}

// take counts one request and writes the headers that every answer has. The
// error is the 429 of a full window.
func (l *limiter) take(now time.Time, h http.Header) *apiError {
	l.mu.Lock()
	defer l.mu.Unlock()
	if start := now.Truncate(l.window); !start.Equal(l.start) {
		l.start, l.used = start, 0
	}
	full := l.used >= l.rate
	if !full {
		l.used++
	}
	reset := strconv.Itoa(wholeSeconds(l.start.Add(l.window).Sub(now)))
	h.Set("Ratelimit-Limit", strconv.Itoa(l.rate))
	h.Set("Ratelimit-Remaining", strconv.Itoa(l.rate-l.used))
	h.Set("Ratelimit-Reset", reset)
	if !full {
		return nil
	}
	err := refuse(http.StatusTooManyRequests, nameRate, "Too many requests. You can only make "+strconv.Itoa(l.rate)+" requests per window.")
	err.retryAfter = reset
	return err
}

// wholeSeconds rounds up, and names at least one: a client that is told 0 comes
// back into the same window.
func wholeSeconds(d time.Duration) int { return max(1, int(math.Ceil(d.Seconds()))) }

// quota counts messages by UTC day and month.
type quota struct {
	daily, monthly int

	mu                sync.Mutex
	day, month        time.Time
	dayUsed, monthUse int
}

// take counts n messages, all or none, and writes what is used.
func (q *quota) take(now time.Time, n int, h http.Header) *apiError {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.roll(now.UTC())
	err := q.full(now.UTC(), n)
	if err == nil {
		q.dayUsed += n
		q.monthUse += n
	}
	q.write(h)
	return err
}

// state writes what is used, for the answers that use nothing.
func (q *quota) state(now time.Time, h http.Header) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.roll(now.UTC())
	q.write(h)
}

func (q *quota) roll(now time.Time) {
	day := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, time.UTC)
	month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	if !day.Equal(q.day) {
		q.day, q.dayUsed = day, 0
	}
	if !month.Equal(q.month) {
		q.month, q.monthUse = month, 0
	}
}

func (q *quota) full(now time.Time, n int) *apiError {
	var (
		name  string
		until time.Time
	)
	switch {
	case q.monthly > 0 && q.monthUse+n > q.monthly:
		name, until = nameMonthly, q.month.AddDate(0, 1, 0)
	case q.daily > 0 && q.dayUsed+n > q.daily:
		name, until = nameDaily, q.day.AddDate(0, 0, 1)
	default:
		return nil
	}
	err := refuse(http.StatusTooManyRequests, name, "You have reached your email sending quota.")
	err.retryAfter = strconv.Itoa(wholeSeconds(until.Sub(now)))
	return err
}

func (q *quota) write(h http.Header) {
	h.Set("X-Resend-Daily-Quota", strconv.Itoa(q.dayUsed))
	h.Set("X-Resend-Monthly-Quota", strconv.Itoa(q.monthUse))
}

package provider

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The bounds of a wait that a provider asks for.
const (
	MinRetryAfter = time.Second
	MaxRetryAfter = 15 * time.Minute
)

// ParseRetryAfter reads a Retry-After header, seconds or an HTTP date, and
// clamps it to [1 s, 15 min]: a provider can neither make us hammer it nor stop
// a rail for a year by one header. It gives 0, for "name your own wait", where
// the header is absent or neither form.
func ParseRetryAfter(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	if value == "" {
		return 0
	}
	if seconds, ok := parseSeconds(value); ok {
		return clampSeconds(seconds)
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return clampSeconds(at.Sub(now).Seconds()) // Sub saturates, so the year 9999 is far and not past
}

// parseSeconds takes decimal forms only: ParseFloat alone would also read
// "NaN", "infinity" and hexadecimal.
func parseSeconds(s string) (float64, bool) {
	if strings.Trim(s, "0123456789.eE+-") != "" {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && !math.IsInf(f, 0) { // beyond float64 is still a number, and a long wait
		return 0, false
	}
	return f, true
}

// clampSeconds compares before it converts: 1e9 seconds fit a Duration, 1e20
// do not and would come out negative.
func clampSeconds(seconds float64) time.Duration {
	switch {
	case seconds <= MinRetryAfter.Seconds():
		return MinRetryAfter
	case seconds >= MaxRetryAfter.Seconds():
		return MaxRetryAfter
	default:
		return time.Duration(seconds * float64(time.Second))
	}
}

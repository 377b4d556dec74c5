package webhook

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/dispatcher/webhook/guard"
)

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{ // F29's forms
		"": 0, "0": 0, "5": 5 * time.Second, " 7 ": 7 * time.Second, "-5": 0, "1e9": 0, "soon": 0, "86400": 24 * time.Hour, "86401": 24 * time.Hour,
		"99999999999999999999": 24 * time.Hour, "9223372036854775807": 24 * time.Hour,
		"Sun, 01 Nov 2026 12:00:30 GMT": 30 * time.Second, "Sun, 01 Nov 2026 11:00:00 GMT": 0, "Fri, 31 Dec 9999 23:59:59 GMT": 24 * time.Hour,
	} {
		require.Equal(t, want, retryAfter(value, now, 24*time.Hour), value)
	}
}

func TestBreaker(t *testing.T) {
	t.Parallel()
	now := time.Now()
	b := breaker{after: 3, min: time.Second, max: 3 * time.Second}
	require.False(t, b.failed(now))
	b.succeeded()
	require.False(t, b.failed(now))
	require.False(t, b.failed(now))
	require.Equal(t, 16, b.allows(now, 16))
	require.True(t, b.failed(now), "the third in a row opens it")
	require.Equal(t, 0, b.allows(now, 16))
	require.False(t, b.failed(now), "an attempt that had begun before changes nothing")
	now = now.Add(time.Second)
	require.Equal(t, 1, b.allows(now, 16), "one probe")
	for _, wait := range []time.Duration{2 * time.Second, 3 * time.Second, 3 * time.Second} {
		require.True(t, b.failed(now))
		require.Equal(t, wait, b.until.Sub(now))
		now = b.until
	}
	b.succeeded()
	require.Equal(t, 16, b.allows(now, 16))
}

func TestPace(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := pace{every: 10 * time.Millisecond}
	var went int
	for range 1000 {
		if wait := p.take(now); wait > 0 {
			now = now.Add(wait)
			continue
		}
		went++
	}
	require.InDelta(t, 500, went, 20, "every second ask had to wait")
	idle := p
	now = now.Add(time.Hour)
	burst := 0
	for idle.take(now) == 0 {
		burst++
	}
	require.LessOrEqual(t, burst, 7, "an idle hour is not made up for")
}

func TestEgress(t *testing.T) { // P9
	t.Parallel()
	now := time.Now()
	soon, later := now.Add(time.Second), now.Add(2*recent)

	t.Run("ResourcesOfOursAreAlwaysOurs", func(t *testing.T) {
		var e egress
		e.reached("a.example.com", now)
		for _, c := range []guard.Class{guard.ClassLocal, guard.ClassBusy, guard.ClassCanceled} {
			require.True(t, e.ours(c, "a.example.com", soon))
		}
	})
	t.Run("ANameServerThatAnswersNobodyIsOurs", func(t *testing.T) {
		var e egress
		require.True(t, e.ours(guard.ClassDNSAway, "a.example.com", now))
		e.reached("b.example.com", now)
		require.False(t, e.ours(guard.ClassDNSAway, "a.example.com", soon), "another name was found just now")
		require.True(t, e.ours(guard.ClassDNSAway, "a.example.com", later))
		require.False(t, e.ours(guard.ClassDNS, "c.example.com", later), "no such name is an answer")
		require.False(t, e.ours(guard.ClassDNSAway, "a.example.com", later.Add(time.Second)))
	})
	t.Run("AnAddressProvesNoNameServer", func(t *testing.T) {
		var e egress
		e.reached("93.184.215.14", now)
		require.True(t, e.ours(guard.ClassDNSAway, "a.example.com", soon))
	})
	t.Run("OneSilentHostIsToBlame_ManyTogetherAreNot", func(t *testing.T) {
		var e egress
		require.False(t, e.ours(guard.ClassConnect, "a.example.com", now))
		require.False(t, e.ours(guard.ClassConnect, "a.example.com", soon))
		require.False(t, e.ours(guard.ClassConnect, "b.example.com", soon))
		require.True(t, e.ours(guard.ClassConnect, "c.example.com", soon))
		require.False(t, e.ours(guard.ClassRefused, "d.example.com", soon), "somebody answered")
		require.False(t, e.ours(guard.ClassConnect, "c.example.com", soon))
	})
	t.Run("NoRouteIsOursUnlessOthersAreReached", func(t *testing.T) {
		var e egress
		require.True(t, e.ours(guard.ClassUnreachable, "a.example.com", now))
		e.reached("b.example.com", now)
		require.False(t, e.ours(guard.ClassUnreachable, "a.example.com", soon))
	})
}

func TestVerdictsOfStatuses(t *testing.T) {
	t.Parallel()
	d := &Dispatcher{cfg: Config{}.withDefaults()}
	for status, class := range map[int]string{200: classDelivered, 204: classDelivered, 299: classDelivered, 301: classRedirect, 304: classRedirect, 400: classStatus,
		403: classStatus, 410: classGone, 429: classThrottled, 500: classStatus, 503: classStatus} {
		v := d.judge(&delivery{}, "https://example.com/", guard.Answer{Status: status, RetryAfter: "9"}, nil)
		require.Equal(t, class, v.class, status)
		require.Equal(t, class == classDelivered, v.outcome == delivered, status)
		require.True(t, v.asked)
		require.Equal(t, class == classGone, v.disable != "")
	}
	throttled := d.judge(&delivery{}, "https://example.com/", guard.Answer{Status: 429, RetryAfter: "7200"}, nil)
	require.Equal(t, 2*time.Hour, throttled.wait)
	require.Equal(t, maxPause, throttled.pause)
	patient := d.judge(&delivery{attempts: 6}, "https://example.com/", guard.Answer{Status: 500, RetryAfter: "1"}, nil)
	require.GreaterOrEqual(t, patient.wait, 8*time.Hour, "a Retry-After never shortens a wait")
	require.Equal(t, failed, d.judge(&delivery{attempts: 7}, "https://example.com/", guard.Answer{Status: 500}, nil).outcome)
}

func TestTheLadderIsSpread(t *testing.T) { // field report 36
	t.Parallel()
	d := &Dispatcher{cfg: Config{}.withDefaults()}
	want := []time.Duration{5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 10 * time.Hour}
	for attempts, base := range want {
		seen := map[time.Duration]bool{}
		for range 200 {
			wait := d.again(&delivery{attempts: attempts}, verdict{}, 0).wait
			require.GreaterOrEqual(t, wait, base*8/10)
			require.LessOrEqual(t, wait, base*12/10)
			seen[wait] = true
		}
		require.Greater(t, len(seen), 100, "they do not come back together")
	}
}

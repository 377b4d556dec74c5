package intake

import "time"

// Window gives the span of occurred_at that a tenant's events may have: from
// months before now, its plan's retention, to ahead after it (architecture §5).
// A month back from the 31st is the last day of a shorter month.
func Window(now time.Time, months int, ahead time.Duration) (earliest, latest time.Time) {
	now = now.UTC()
	first := time.Date(now.Year(), now.Month()-time.Month(months), 1, 0, 0, 0, 0, time.UTC)
	day := min(now.Day(), first.AddDate(0, 1, -1).Day())
	earliest = time.Date(first.Year(), first.Month(), day, now.Hour(), now.Minute(), now.Second(), now.Nanosecond(), time.UTC)
	return earliest, now.Add(ahead)
}

// ParseTime reads a time as events write theirs, as UTC to the microsecond.
func ParseTime(s string) (at time.Time, ok bool) {
	at, _, ok = parseTime([]byte(s))
	return at, ok
}

// parseTime reads a strict RFC 3339 date-time: upper-case T and Z, no leap
// second, a day that exists, an offset below 24 hours, a year from 1 on. The
// instant is UTC, cut to the microsecond; offset is seconds east.
func parseTime(b []byte) (at time.Time, offset int32, ok bool) {
	if len(b) < len("2006-01-02T15:04:05Z") || b[4] != '-' || b[7] != '-' || b[10] != 'T' || b[13] != ':' || b[16] != ':' {
		return time.Time{}, 0, false
	}
	year, month, day := num2(b, 0)*100+num2(b, 2), num2(b, 5), num2(b, 8)
	hour, minute, second := num2(b, 11), num2(b, 14), num2(b, 17)
	if num2(b, 0) < 0 || num2(b, 2) < 0 || year < 1 || month < 1 || month > 12 || day < 1 || day > daysIn(year, month) ||
		uint(hour) > 23 || uint(minute) > 59 || uint(second) > 59 {
		return time.Time{}, 0, false
	}
	nanos, rest, ok := parseFraction(b[19:])
	if !ok {
		return time.Time{}, 0, false
	}
	offset, ok = parseOffset(rest)
	if !ok {
		return time.Time{}, 0, false
	}
	sec := daysSinceEpoch(year, month, day)*86400 + int64(hour*3600+minute*60+second) - int64(offset)
	return time.Unix(sec, int64(nanos-nanos%1000)).UTC(), offset, true
}

// num2 reads two digits at i, or gives a negative number.
func num2(b []byte, i int) int {
	d, u := b[i]-'0', b[i+1]-'0'
	if d > 9 || u > 9 {
		return -1000
	}
	return int(d)*10 + int(u)
}

// parseFraction reads ".digits" where it stands; digits beyond the nanosecond
// are dropped.
func parseFraction(b []byte) (nanos int, rest []byte, ok bool) {
	if b[0] != '.' {
		return 0, b, true
	}
	i, unit := 1, 100_000_000
	for ; i < len(b) && '0' <= b[i] && b[i] <= '9'; i++ {
		nanos += int(b[i]-'0') * unit
		unit /= 10
	}
	return nanos, b[i:], i > 1
}

func parseOffset(b []byte) (seconds int32, ok bool) {
	if len(b) == 1 && b[0] == 'Z' {
		return 0, true
	}
	if len(b) != len("+00:00") || b[3] != ':' || b[0] != '+' && b[0] != '-' {
		return 0, false
	}
	h, m := num2(b, 1), num2(b, 4)
	if uint(h) > 23 || uint(m) > 59 {
		return 0, false
	}
	seconds = int32(h*3600 + m*60)
	if b[0] == '-' {
		seconds = -seconds
	}
	return seconds, true
}

func daysIn(year, month int) int {
	switch month {
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	case 4, 6, 9, 11:
		return 30
	}
	return 31
}

// daysSinceEpoch counts from 1970-01-01 in the proleptic Gregorian calendar:
// with the year turned to begin in March, the leap day is its last.
func daysSinceEpoch(year, month, day int) int64 {
	if month < 3 {
		year--
		month += 12
	}
	leaps := year/4 - year/100 + year/400
	return int64(365*year+leaps+(153*(month-3)+2)/5+day-1) - 719468
}

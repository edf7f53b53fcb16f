package export

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Names of the units of time in errors, and the functions that convert times to them. The formats'
// own conversions drop precision and wrap around, so this file has others.
var (
	unitNames = map[time.Duration]string{time.Millisecond: "milliseconds", time.Microsecond: "microseconds",
		time.Nanosecond: "nanoseconds"}
	methods = map[time.Duration]string{time.Millisecond: "time.Millisecond", time.Microsecond: "time.Microsecond"}
)

// since1970 returns a time as a number of units since 1970. It returns an error if that is not a
// whole number.
func since1970(t time.Time, unit time.Duration) (int64, error) {
	if t.Nanosecond()%int(unit) != 0 {
		return 0, fmt.Errorf("it is a time that is finer than the %s of its tag: give it a finer one, or "+
			"Truncate(%s) the time",
			unitNames[unit], methods[unit])
	}
	units := int64(time.Second / unit)
	seconds, rest := t.Unix(), int64(t.Nanosecond())/int64(unit)
	if seconds < 0 { // avoids an overflow of seconds*units alone, near the smallest int64
		seconds, rest = seconds+1, rest-units
	}
	if seconds > math.MaxInt64/units || seconds < math.MinInt64/units {
		return 0, errRange(unit)
	}
	n := seconds * units
	if rest > 0 && n > math.MaxInt64-rest || rest < 0 && n < math.MinInt64-rest {
		return 0, errRange(unit)
	}
	return n + rest, nil
}

func errRange(unit time.Duration) error {
	if unit == time.Nanosecond {
		return errors.New("it is a time that is out of the range of nanoseconds, 1677-09-21 to 2262-04-11: give " +
			"it a tag of microseconds")
	}
	return fmt.Errorf("it is a time that is out of the range of %s", unitNames[unit])
}

// wallClock returns the time in UTC that has the same date and hour as t in its own zone. Formats
// call it a local time.
func wallClock(t time.Time) time.Time {
	_, offset := t.Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

// daysSince1970 returns a time as a number of days since 1970. It returns an error if the time is
// not midnight UTC.
func daysSince1970(t time.Time) (int32, error) {
	const day = 24 * 60 * 60
	seconds := t.Unix()
	if seconds%day != 0 || t.Nanosecond() != 0 {
		return 0, errors.New("it is a time that is no date, which is midnight UTC: " +
			"give the tag of a timestamp, or time.Date(y, m, d, 0, 0, 0, 0, time.UTC)")
	}
	if days := seconds / day; days >= math.MinInt32 && days <= math.MaxInt32 {
		return int32(days), nil
	}
	return 0, errors.New("it is a date that is out of the range of 32 bits of days")
}

// timeOfDay converts a duration to a number of units. It returns an error if the duration is no
// time of day, which is from 0 to below 24 hours, or no whole number of units.
func timeOfDay(d, unit time.Duration) (int64, error) {
	switch {
	case d < 0 || d >= 24*time.Hour:
		return 0, errors.New("it is a duration that is no time of day, from 0 to below 24 h: write it as an " +
			"int64, of nanoseconds for instance")
	case d%unit != 0:
		return 0, fmt.Errorf("it is a duration that is finer than the %s of its tag: Truncate(%s) it",
			unitNames[unit], methods[unit])
	}
	return int64(d / unit), nil
}

// checkOfDay returns an error if a number of units is not a time of day.
func checkOfDay(n int64, unit time.Duration) error {
	if n < 0 || n >= int64(24*time.Hour/unit) {
		return fmt.Errorf("it is out of the range of a time of day in %s", unitNames[unit])
	}
	return nil
}

// checkText returns an error if the text of a time in RFC 3339 would be read back as another time.
func checkText(t time.Time) error {
	_, offset := t.Zone()
	switch {
	case t.Year() < 0 || t.Year() > 9999:
		return errors.New("it is a time whose year is out of the range of RFC 3339, 0 to 9999")
	case offset%60 != 0 || offset <= -24*60*60 || offset >= 24*60*60:
		return errors.New("it is a time whose zone is off by seconds, or by a day, which RFC 3339 does not " +
			"have: call its UTC()")
	}
	return nil
}

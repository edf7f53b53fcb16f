package keyspace

import (
	"bytes"
	"math"
	"time"
	"unicode/utf8"

	"github.com/scattermap/scattermap/internal/value"
)

// least returns the least value of a group of types, such as numbers or strings. The argument rank
// is the group's place in Datastore's order ([value.Rank]). The bool is false if the least value is
// unknown.
func least(rank int) (v any, ok bool) {
	switch rank {
	case value.NullRank:
		return nil, true
	case value.IntegerRank:
		return int64(math.MinInt64), true
	case value.BooleanRank:
		return false, true
	case value.BytesRank:
		return "", true
	case value.FloatRank:
		return math.Inf(-1), true
	}
	return nil, false
}

// Next returns the least value greater than v, of any type. The bool is false if that value is
// unknown.
func Next(v any) (above any, ok bool) {
	switch v := v.(type) {
	case nil:
	case int64:
		if v < math.MaxInt64 {
			return v + 1, true
		}
	case time.Time:
		above := v.Truncate(time.Microsecond).Add(time.Microsecond)
		return above, Storable(above)
	case bool:
		if !v {
			return true, true
		}
	case string:
		return v + "\x00", len(v) < MaxName // longer strings are not indexed
	case []byte:
		return append(bytes.Clone(v), 0), len(v) < MaxName
	case float64:
		if bits := value.FloatBits(v); bits < value.FloatBits(math.Inf(1)) {
			return value.FloatOf(bits + 1), true
		} else if bits < math.MaxUint64 {
			return math.NaN(), true
		}
	}
	return least(value.Rank(v) + 1)
}

// Between returns a value about halfway between a and b. The bool is false if it finds none.
func Between(a, b any) (m any, ok bool) {
	rank := value.Rank(b)
	if value.Rank(a) != rank {
		m, ok = least(rank)
		return m, ok && value.Compare(m, b) < 0
	}
	switch rank {
	case value.IntegerRank:
		x, y := value.IntegerOf(a), value.IntegerOf(b)
		mid := x + int64(uint64(y-x)/2)
		if m = any(mid); IsTime(a) && IsTime(b) {
			m = time.UnixMicro(mid).UTC()
		}
	case value.BytesRank:
		m = betweenBytes(a, b)
	case value.FloatRank:
		m = betweenFloats(a.(float64), b.(float64))
	}
	return m, m != nil && value.Compare(a, m) < 0 && value.Compare(m, b) < 0
}

// Storable reports whether Datastore can store a time.
func Storable(t time.Time) bool { return t.Year() >= 1 && t.Year() <= 9999 }

// IsTime reports whether a value is a timestamp.
func IsTime(v any) bool {
	_, ok := v.(time.Time)
	return ok
}

// greater returns a value greater than v, for use where the greatest stored value is unknown. It
// doubles a number, adds 50 years to a time, and takes a string about halfway to the greatest
// string. The result ok is false if v is too large for this, or has another type.
func greater(v any) (m any, ok bool) {
	switch v := v.(type) {
	case int64:
		if v < math.MaxInt64/2 {
			return max(1, 2*v), true
		}
	case time.Time:
		if v.Year() < 9000 {
			return v.AddDate(50, 0, 0), true
		}
	case float64:
		if m := max(1, 2*v); m < math.Inf(1) && m > v {
			return m, true
		}
	case string:
		if ascii(v) && v < lastASCII {
			return Between(v, lastASCII)
		}
		return Between(v, string(utf8.MaxRune))
	}
	return nil, false
}

// betweenFloats returns a number about halfway between x and y. If y-x is infinite, it takes the
// middle of their bit patterns.
func betweenFloats(x, y float64) float64 {
	if m := x + (y-x)/2; value.FloatBits(x) < value.FloatBits(m) && value.FloatBits(m) < value.FloatBits(y) &&
		!math.IsInf(m, 0) {
		return m
	}
	low, high := value.FloatBits(x), min(value.FloatBits(y), value.FloatBits(math.Inf(1))+1)
	return value.FloatOf(low + (high-low)/2)
}

// betweenBytes returns a string or blob about halfway between a and b. It treats both as fractions,
// whose digits are characters if both are text, and bytes otherwise.
func betweenBytes(a, b any) any {
	s, first := a.(string)
	t, second := b.(string)
	if first && second && utf8.ValidString(s) && utf8.ValidString(t) {
		if m, ok := halveNames(s, t); ok && len(m) <= MaxName {
			return m
		}
		return nil
	}
	x, y := value.BytesOf(a), value.BytesOf(b)
	var m []byte
	digit := func(s []byte, i int) int {
		if i < len(s) {
			return int(s[i])
		}
		return -1
	}
	// top says that the result is already below y, so y no longer limits its digits.
	top := false
	for i := range MaxName {
		dx, dy := digit(x, i), digit(y, i)
		if top {
			dy = 256
		}
		if mid := dx + (dy-dx)/2; mid > dx {
			return append(m, byte(mid))
		}
		switch {
		case dx == dy:
		case dx < 0: // y continues with digits 0
			if len(y) > i+1 {
				return append(m, 0)
			}
			return nil
		default: // dy is dx+1
			top = true
		}
		m = append(m, byte(max(0, dx)))
	}
	return nil
}

// Spread returns up to n values between a and b, evenly spread and in ascending order.
func Spread(a, b any, n int) []any {
	if n <= 0 || value.Compare(a, b) >= 0 {
		return nil
	}
	m, ok := Between(a, b)
	if !ok {
		return nil
	}
	below := (n - 1) / 2
	return append(append(Spread(a, m, below), m), Spread(m, b, n-1-below)...)
}

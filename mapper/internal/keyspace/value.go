package keyspace

import (
	"bytes"
	"cmp"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"cloud.google.com/go/datastore"
)

// The ranks of the types of values, as both of Google's emulators order them: integers are among
// timestamps, which are microseconds to them, and strings among blobs.
const (
	nullRank = iota
	integerRank
	booleanRank
	bytesRank
	floatRank
	pointRank
	keyRank
	otherRank
)

// RankOf returns the rank of the type of a value.
func RankOf(v any) int {
	switch v.(type) {
	case nil:
		return nullRank
	case int64, time.Time:
		return integerRank
	case bool:
		return booleanRank
	case string, []byte:
		return bytesRank
	case float64:
		return floatRank
	case datastore.GeoPoint:
		return pointRank
	case *datastore.Key:
		return keyRank
	}
	return otherRank
}

// CompareValues orders values of properties as Datastore does. Arrays and entities have no
// place in that order.
func CompareValues(a, b any) int {
	rank := RankOf(a)
	if c := cmp.Compare(rank, RankOf(b)); c != 0 {
		return c
	}
	switch rank {
	case integerRank:
		return cmp.Compare(IntegerOf(a), IntegerOf(b))
	case booleanRank:
		return Present(a.(bool)) - Present(b.(bool))
	case bytesRank:
		return compareBytes(a, b)
	case floatRank:
		return cmp.Compare(FloatBits(a.(float64)), FloatBits(b.(float64)))
	case pointRank:
		p, q := a.(datastore.GeoPoint), b.(datastore.GeoPoint)
		return cmp.Or(cmp.Compare(FloatBits(p.Lat), FloatBits(q.Lat)), cmp.Compare(FloatBits(p.Lng), FloatBits(q.Lng)))
	case keyRank:
		return CompareKeys(a.(*datastore.Key), b.(*datastore.Key))
	}
	return 0
}

// IntegerOf returns an integer, or the microseconds of a timestamp.
func IntegerOf(v any) int64 {
	if t, ok := v.(time.Time); ok {
		return t.UnixMicro()
	}
	return v.(int64)
}

func compareBytes(a, b any) int {
	s, first := a.(string)
	t, second := b.(string)
	if first && second {
		return strings.Compare(s, t)
	}
	return bytes.Compare(BytesOf(a), BytesOf(b))
}

// BytesOf returns the bytes of a string or a blob.
func BytesOf(v any) []byte {
	if s, ok := v.(string); ok {
		return []byte(s)
	}
	return v.([]byte)
}

// FloatBits maps floats to integers of the same order: negative zero is before zero, and NaN
// behind everything.
func FloatBits(f float64) uint64 {
	bits := math.Float64bits(f)
	switch {
	case f != f:
		return math.MaxUint64
	case bits>>63 == 1:
		return ^bits
	}
	return bits | 1<<63
}

// floatOf is the inverse of floatBits.
func floatOf(bits uint64) float64 {
	switch {
	case bits == math.MaxUint64:
		return math.NaN()
	case bits>>63 == 1:
		return math.Float64frombits(bits &^ (1 << 63))
	}
	return math.Float64frombits(^bits)
}

// least returns the least value of the types of a rank, if it is known.
func least(rank int) (v any, ok bool) {
	switch rank {
	case nullRank:
		return nil, true
	case integerRank:
		return int64(math.MinInt64), true
	case booleanRank:
		return false, true
	case bytesRank:
		return "", true
	case floatRank:
		return math.Inf(-1), true
	}
	return nil, false
}

// Next returns the least value above one, of whatever type, if it is known.
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
		return v + "\x00", len(v) < MaxName // longer ones are not indexed
	case []byte:
		return append(bytes.Clone(v), 0), len(v) < MaxName
	case float64:
		if bits := FloatBits(v); bits < FloatBits(math.Inf(1)) {
			return floatOf(bits + 1), true
		} else if bits < math.MaxUint64 {
			return math.NaN(), true
		}
	}
	return least(RankOf(v) + 1)
}

// Between returns a value above a and below b, about in the middle, if it knows one.
func Between(a, b any) (m any, ok bool) {
	rank := RankOf(b)
	if RankOf(a) != rank {
		m, ok = least(rank)
		return m, ok && CompareValues(m, b) < 0
	}
	switch rank {
	case integerRank:
		x, y := IntegerOf(a), IntegerOf(b)
		mid := x + int64(uint64(y-x)/2)
		if m = any(mid); IsTime(a) && IsTime(b) {
			m = time.UnixMicro(mid).UTC()
		}
	case bytesRank:
		m = betweenBytes(a, b)
	case floatRank:
		m = betweenFloats(a.(float64), b.(float64))
	}
	return m, m != nil && CompareValues(a, m) < 0 && CompareValues(m, b) < 0
}

// Storable reports whether Datastore can store a time.
func Storable(t time.Time) bool { return t.Year() >= 1 && t.Year() <= 9999 }

// IsTime reports whether a value is a timestamp.
func IsTime(v any) bool {
	_, ok := v.(time.Time)
	return ok
}

// greater returns a value above v that leaves about as much below as is already known to be
// there: twice a number.
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

// betweenFloats halves the distance, or the representations if that is infinite.
func betweenFloats(x, y float64) float64 {
	if m := x + (y-x)/2; FloatBits(x) < FloatBits(m) && FloatBits(m) < FloatBits(y) && !math.IsInf(m, 0) {
		return m
	}
	low, high := FloatBits(x), min(FloatBits(y), FloatBits(math.Inf(1))+1)
	return floatOf(low + (high-low)/2)
}

// betweenBytes halves strings as fractions, whose digits are characters if both are text.
func betweenBytes(a, b any) any {
	s, first := a.(string)
	t, second := b.(string)
	if first && second && utf8.ValidString(s) && utf8.ValidString(t) {
		if m, ok := halveNames(s, t); ok && len(m) <= MaxName {
			return m
		}
		return nil
	}
	x, y := BytesOf(a), BytesOf(b)
	var m []byte
	digit := func(s []byte, i int) int {
		if i < len(s) {
			return int(s[i])
		}
		return -1
	}
	top := false // y is no limit any more
	for i := 0; i < MaxName; i++ {
		dx, dy := digit(x, i), digit(y, i)
		if top {
			dy = 256
		}
		if mid := dx + (dy-dx)/2; mid > dx {
			return append(m, byte(mid))
		}
		switch {
		case dx == dy:
		case dx < 0: // y goes on with zeros
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

// Spread returns up to n values above a and below b, in order and evenly.
func Spread(a, b any, n int) []any {
	if n <= 0 || CompareValues(a, b) >= 0 {
		return nil
	}
	m, ok := Between(a, b)
	if !ok {
		return nil
	}
	below := (n - 1) / 2
	return append(append(Spread(a, m, below), m), Spread(m, b, n-1-below)...)
}

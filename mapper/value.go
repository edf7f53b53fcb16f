package mapper

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

func rankOf(v any) int {
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

// compareValues orders values of properties as Datastore does. Arrays and entities have no
// place in that order.
func compareValues(a, b any) int {
	rank := rankOf(a)
	if c := cmp.Compare(rank, rankOf(b)); c != 0 {
		return c
	}
	switch rank {
	case integerRank:
		return cmp.Compare(integerOf(a), integerOf(b))
	case booleanRank:
		return present(a.(bool)) - present(b.(bool))
	case bytesRank:
		return compareBytes(a, b)
	case floatRank:
		return cmp.Compare(floatBits(a.(float64)), floatBits(b.(float64)))
	case pointRank:
		p, q := a.(datastore.GeoPoint), b.(datastore.GeoPoint)
		return cmp.Or(cmp.Compare(floatBits(p.Lat), floatBits(q.Lat)), cmp.Compare(floatBits(p.Lng), floatBits(q.Lng)))
	case keyRank:
		return compareKeys(a.(*datastore.Key), b.(*datastore.Key))
	}
	return 0
}

// integerOf returns an integer, or the microseconds of a timestamp.
func integerOf(v any) int64 {
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
	return bytes.Compare(bytesOf(a), bytesOf(b))
}

func bytesOf(v any) []byte {
	if s, ok := v.(string); ok {
		return []byte(s)
	}
	return v.([]byte)
}

// floatBits maps floats to integers of the same order: negative zero is before zero, and NaN
// behind everything.
func floatBits(f float64) uint64 {
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

// next returns the least value above one, of whatever type, if it is known.
func next(v any) (above any, ok bool) {
	switch v := v.(type) {
	case nil:
	case int64:
		if v < math.MaxInt64 {
			return v + 1, true
		}
	case time.Time:
		above := v.Truncate(time.Microsecond).Add(time.Microsecond)
		return above, storable(above)
	case bool:
		if !v {
			return true, true
		}
	case string:
		return v + "\x00", len(v) < maxName // longer ones are not indexed
	case []byte:
		return append(bytes.Clone(v), 0), len(v) < maxName
	case float64:
		if bits := floatBits(v); bits < floatBits(math.Inf(1)) {
			return floatOf(bits + 1), true
		} else if bits < math.MaxUint64 {
			return math.NaN(), true
		}
	}
	return least(rankOf(v) + 1)
}

// between returns a value above a and below b, about in the middle, if it knows one.
func between(a, b any) (m any, ok bool) {
	rank := rankOf(b)
	if rankOf(a) != rank {
		m, ok = least(rank)
		return m, ok && compareValues(m, b) < 0
	}
	switch rank {
	case integerRank:
		x, y := integerOf(a), integerOf(b)
		mid := x + int64(uint64(y-x)/2)
		if m = any(mid); isTime(a) && isTime(b) {
			m = time.UnixMicro(mid).UTC()
		}
	case bytesRank:
		m = betweenBytes(a, b)
	case floatRank:
		m = betweenFloats(a.(float64), b.(float64))
	}
	return m, m != nil && compareValues(a, m) < 0 && compareValues(m, b) < 0
}

// storable reports whether Datastore can store a time.
func storable(t time.Time) bool { return t.Year() >= 1 && t.Year() <= 9999 }

func isTime(v any) bool {
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
			return between(v, lastASCII)
		}
		return between(v, string(utf8.MaxRune))
	}
	return nil, false
}

// betweenFloats halves the distance, or the representations if that is infinite.
func betweenFloats(x, y float64) float64 {
	if m := x + (y-x)/2; floatBits(x) < floatBits(m) && floatBits(m) < floatBits(y) && !math.IsInf(m, 0) {
		return m
	}
	low, high := floatBits(x), min(floatBits(y), floatBits(math.Inf(1))+1)
	return floatOf(low + (high-low)/2)
}

// betweenBytes halves strings as fractions, whose digits are characters if both are text.
func betweenBytes(a, b any) any {
	s, first := a.(string)
	t, second := b.(string)
	if first && second && utf8.ValidString(s) && utf8.ValidString(t) {
		if m, ok := halveNames(s, t); ok && len(m) <= maxName {
			return m
		}
		return nil
	}
	x, y := bytesOf(a), bytesOf(b)
	var m []byte
	digit := func(s []byte, i int) int {
		if i < len(s) {
			return int(s[i])
		}
		return -1
	}
	top := false // y is no limit any more
	for i := 0; i < maxName; i++ {
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

// spread returns up to n values above a and below b, in order and evenly.
func spread(a, b any, n int) []any {
	if n <= 0 || compareValues(a, b) >= 0 {
		return nil
	}
	m, ok := between(a, b)
	if !ok {
		return nil
	}
	below := (n - 1) / 2
	return append(append(spread(a, m, below), m), spread(m, b, n-1-below)...)
}

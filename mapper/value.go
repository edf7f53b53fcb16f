package mapper

import (
	"bytes"
	"cmp"
	"math"
	"strings"
	"time"

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

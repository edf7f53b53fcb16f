package value

import (
	"bytes"
	"cmp"
	"math"
	"strings"
	"time"

	"cloud.google.com/go/datastore"
)

// The ranks of types: their places in the order in which Datastore sorts values of different types,
// as in both of Google's emulators. A timestamp has the rank of an integer, and a string has the
// rank of a blob.
const (
	NullRank = iota
	IntegerRank
	BooleanRank
	BytesRank
	FloatRank
	PointRank
	KeyRank
	OtherRank
)

// Rank returns the rank of a value's type: its place in Datastore's order of types.
func Rank(v any) int {
	switch v.(type) {
	case nil:
		return NullRank
	case int64, time.Time:
		return IntegerRank
	case bool:
		return BooleanRank
	case string, []byte:
		return BytesRank
	case float64:
		return FloatRank
	case datastore.GeoPoint:
		return PointRank
	case *datastore.Key, Foreign:
		return KeyRank
	}
	return OtherRank
}

// Compare returns a number less than, equal to or greater than 0, by Datastore's order of a and b.
// Neither may be an array or an entity: these have no place in the order.
func Compare(a, b any) int {
	rank := Rank(a)
	if c := cmp.Compare(rank, Rank(b)); c != 0 {
		return c
	}
	switch rank {
	case IntegerRank:
		return cmp.Compare(IntegerOf(a), IntegerOf(b))
	case BooleanRank:
		switch p, q := a.(bool), b.(bool); {
		case p == q:
			return 0
		case q:
			return -1
		}
		return 1
	case BytesRank:
		return compareBytes(a, b)
	case FloatRank:
		return cmp.Compare(FloatBits(a.(float64)), FloatBits(b.(float64)))
	case PointRank:
		p, q := a.(datastore.GeoPoint), b.(datastore.GeoPoint)
		return cmp.Or(cmp.Compare(FloatBits(p.Lat), FloatBits(q.Lat)), cmp.Compare(FloatBits(p.Lng), FloatBits(q.Lng)))
	case KeyRank:
		p, ours := a.(*datastore.Key)
		q, both := b.(*datastore.Key)
		if !ours || !both {
			return compareForeign(a, b)
		}
		return CompareKeys(p, q)
	}
	return 0
}

// IntegerOf returns the integer by which a value of [IntegerRank] is sorted. For a timestamp, this
// is the number of microseconds since 1970.
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

// BytesOf returns the bytes by which a string or a blob is sorted.
func BytesOf(v any) []byte {
	if s, ok := v.(string); ok {
		return []byte(s)
	}
	return v.([]byte)
}

// FloatBits converts a float to an integer, such that the integers are in the order of the floats.
// Negative zero comes before zero, and NaN after all other floats.
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

// FloatOf converts a result of [FloatBits] back to the float.
func FloatOf(bits uint64) float64 {
	switch {
	case bits == math.MaxUint64:
		return math.NaN()
	case bits>>63 == 1:
		return math.Float64frombits(bits &^ (1 << 63))
	}
	return math.Float64frombits(^bits)
}

// CompareKeys returns a number less than, equal to or greater than 0, by Datastore's order of keys.
// Keys are ordered by namespace, and then element by element from the root. An ancestor comes
// before its descendants. Kinds compare as bytes. IDs come before names. IDs compare as signed
// integers, and names as UTF-8 bytes.
func CompareKeys(a, b *datastore.Key) int {
	if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
		return c
	}
	return ComparePaths(Path(a), Path(b))
}

// ComparePaths compares two paths element by element, from the root. The paths are in the form that
// [Path] returns.
func ComparePaths(a, b []*datastore.Key) int {
	for i := range min(len(a), len(b)) {
		if c := CompareElements(a[i], b[i]); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(a), len(b))
}

// CompareElements compares the last path elements of two keys: first the kinds, and then the IDs or
// names.
func CompareElements(a, b *datastore.Key) int {
	if c := strings.Compare(a.Kind, b.Kind); c != 0 {
		return c
	}
	switch {
	case a.Name == "" && b.Name == "":
		return cmp.Compare(a.ID, b.ID)
	case a.Name == "":
		return -1
	case b.Name == "":
		return 1
	}
	return strings.Compare(a.Name, b.Name)
}

// CloneKey returns a copy of a key and its parents.
func CloneKey(k *datastore.Key) *datastore.Key {
	if k == nil {
		return nil
	}
	clone := *k
	clone.Parent = CloneKey(k.Parent)
	return &clone
}

// Path returns the elements of a key's path, from the root on. Each element is represented by the
// key that ends with it: first the keys of the ancestors, and then k itself.
func Path(k *datastore.Key) []*datastore.Key {
	n := 0
	for e := k; e != nil; e = e.Parent {
		n++
	}
	all := make([]*datastore.Key, n)
	for e := k; e != nil; e = e.Parent {
		n--
		all[n] = e
	}
	return all
}

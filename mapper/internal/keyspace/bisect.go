package keyspace

import (
	"math"
	"unicode/utf8"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/value"
)

// bisect returns a key of the kind about halfway between a and b, or nil if it finds none. A nil a
// is the start of the key space, and a nil b its end. It compares the two paths, and halves at the
// first elements that differ: IDs as numbers, names as fractions. Between an ID and a name it
// returns the least name.
//
// The result does not depend on where entities are. If there are a few IDs and many names, half of
// the parts would be nearly empty [App Engine MapReduce, wiki]. So bisect is used only if no keys
// of entities are known.
func bisect(a, b *datastore.Key, kind, namespace string) *datastore.Key {
	if b == nil {
		return above(a, kind, namespace)
	}
	lower, upper := value.Path(a), value.Path(b)
	i := 0
	for i < len(lower) && i < len(upper) && value.CompareElements(lower[i], upper[i]) == 0 {
		i++
	}
	if i == len(upper) {
		return nil // b is not greater than a
	}
	y := upper[i]
	var m element
	var ok bool
	switch {
	case i < len(lower) && lower[i].Kind == y.Kind:
		m, ok = halve(elementOf(lower[i]), elementOf(y))
	default: // all keys of y's kind are greater than a
		m, ok = halve(leastElement, elementOf(y))
	}
	switch {
	case ok:
		return valid(m.key(y.Kind, y.Parent, namespace))
	case i+1 < len(upper):
		return y // an ancestor of b, and so less than b
	}
	return nil
}

// above returns a key greater than a, if the end of the keys is unknown. It guesses that the end is
// about twice as far as a, so it doubles an ID. The key after the largest ID is the least name.
func above(a *datastore.Key, kind, namespace string) *datastore.Key {
	if a == nil {
		return leastName.key(kind, nil, namespace)
	}
	x := value.Path(a)[0]
	e := elementOf(x)
	switch {
	case e.name != "":
		end := string(utf8.MaxRune)
		if ascii(e.name) && e.name < lastASCII {
			end = lastASCII
		}
		m, ok := halve(e, element{name: end})
		if !ok {
			return nil
		}
		return valid(m.key(x.Kind, nil, namespace))
	case e.id < 0:
		e.id = 1
	case e.id < math.MaxInt64/2:
		e.id *= 2
	default:
		e = leastName
	}
	return e.key(x.Kind, nil, namespace)
}

// An element is the identifier in the last part of a key's path: the name, or the ID if the name is
// empty.
type element struct {
	id   int64
	name string
}

const lastASCII = "\x7f"

var (
	leastElement = element{id: math.MinInt64}
	leastName    = element{name: "\x00"}
)

func elementOf(k *datastore.Key) element { return element{id: k.ID, name: k.Name} }

func (e element) key(kind string, parent *datastore.Key, namespace string) *datastore.Key {
	return &datastore.Key{Kind: kind, ID: e.id, Name: e.name, Parent: parent, Namespace: namespace}
}

// valid returns the key k, or nil if Datastore would reject it.
func valid(k *datastore.Key) *datastore.Key {
	if len(k.Name) > MaxName || names.Reserved(k.Name) || k.Incomplete() {
		return nil
	}
	return k
}

// halve returns an element about halfway between x and y. The bool is false if there is no element
// between them.
func halve(x, y element) (element, bool) {
	switch {
	case x.name == "" && y.name == "":
		mid := x.id + int64(uint64(y.id-x.id)/2)
		if mid == 0 { // 0 is not an ID
			mid = 1
		}
		return element{id: mid}, x.id < mid && mid < y.id
	case x.name == "":
		return leastName, leastName.name < y.name
	}
	m, ok := halveNames(x.name, y.name)
	return element{name: m}, ok
}

// halveNames returns a name about halfway between x and y, or false if there is none. It treats
// names as fractions whose digits are characters. If both names are ASCII, the result is ASCII,
// too. With the digits of all Unicode, most results would have characters that no name uses.
func halveNames(x, y string) (string, bool) {
	top := rune(utf8.RuneSelf)
	if !ascii(x) || !ascii(y) {
		top = digits
	}
	n := 0
	for n < len(x) && n < len(y) {
		r, size := utf8.DecodeRuneInString(x[n:])
		if s, _ := utf8.DecodeRuneInString(y[n:]); r != s {
			break
		}
		n += size
	}
	prefix, x, y := x[:n], x[n:], y[n:]
	dx, dy := digit(x), digit(y) // -1 at the end of a name
	if mid := dx + (dy-dx)/2; mid > dx {
		return prefix + character(mid), true
	}
	if dx < 0 {
		// y is x followed by a zero character, and maybe by more.
		return prefix + "\x00", len(y) > 1
	}
	// dy is dx+1. The result starts with dx, and its rest is above the rest of x.
	for {
		_, size := utf8.DecodeRuneInString(x)
		prefix, x = prefix+x[:size], x[size:]
		dx = digit(x)
		if mid := dx + (top-dx)/2; mid > dx {
			return prefix + character(mid), true
		}
	}
}

// digits is the number of different digits if names are treated as fractions: each Unicode code
// point is a digit, except the surrogates.
const (
	digits         = utf8.MaxRune + 1 - surrogates
	surrogates     = 0x800
	firstSurrogate = 0xD800
)

// digit returns the value of a name's first character as the digit of a fraction, or -1 if the name
// is empty.
func digit(s string) rune {
	r, size := utf8.DecodeRuneInString(s)
	switch {
	case size == 0:
		return -1
	case r >= firstSurrogate:
		return r - surrogates
	}
	return r
}

func character(digit rune) string {
	if digit >= firstSurrogate {
		digit += surrogates
	}
	return string(digit)
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// Middle returns a position about halfway between a and b, in the kind and namespace of a, or nil
// if it finds none. A nil b is the end of the kind.
func Middle(a, b *Position) *Position {
	s := a.Space()
	if b != nil && b.Space() != s {
		b = nil
	}
	if !a.Valued && (b == nil || !b.Valued) {
		return betweenKeys(a, b, Position{})
	}
	m := Position{Namespace: s.Namespace, Kind: s.Kind, Valued: true}
	var ok bool
	switch {
	case b == nil:
		m.Value, ok = greater(a.Value)
	case !a.Valued:
		m.Value, ok = Between(nil, b.Value)
	case value.Compare(a.Value, b.Value) == 0:
		return betweenKeys(a, b, m)
	default:
		m.Value, ok = Between(a.Value, b.Value)
	}
	switch {
	case ok:
		return &m
	case b == nil || !a.Valued:
		return nil
	case b.Key != nil: // a is before all keys of its value
		m.Value = b.Value
		return &m
	}
	return betweenKeys(a, nil, m) // a is after some keys of its value
}

// halvings is how many times Cuts halves the range from a to b to find one position. So the
// position is off by at most 2^-32 of the range.
const halvings = 32

// Cuts returns up to n-1 positions that cut the space from a to b into n equal parts. It calculates
// them without knowing where entities are. If there are several property values between a and b, it
// cuts between values, and otherwise between the keys of the single value. If there are too few
// positions, it returns fewer. A nil b is the end.
func Cuts(a, b *Position, n int) (cuts []*Position) {
	if cuts = cutsBy(valuesBetween, a, b, n); len(cuts) == 0 {
		cuts = cutsBy(Middle, a, b, n)
	}
	return cuts
}

// Lexicographic returns up to n-1 keys that cut the key space between a and b into equal parts, as
// if IDs were spread evenly up to the largest possible one. A few IDs then get as many parts as
// many names. This is only for comparison: old mappers cut in this way before Datastore had the
// property __scatter__, which gives random keys.
func Lexicographic(a, b *Position, n int) []*Position {
	return cutsBy(func(a, b *Position) *Position {
		if m := Middle(a, b); m != nil || b == nil || b.Key == nil {
			return m
		}
		lower, upper := value.Path(a.Key), value.Path(b.Key)
		i := len(upper) - 1
		if i >= len(lower) || upper[i].Name != leastName.name || lower[i].Kind != upper[i].Kind || lower[i].Name != "" {
			return nil
		}
		x := lower[i].ID
		id := x + int64(uint64(math.MaxInt64-x)/2)
		if id <= x || id == 0 {
			return nil
		}
		k := valid(element{id: id}.key(upper[i].Kind, upper[i].Parent, upper[i].Namespace))
		if k == nil {
			return nil
		}
		m := *b
		m.Key = k
		return &m
	}, a, b, n)
}

// valuesBetween returns the [Middle] of a and b if it is a boundary between two values of the
// property. If it lies between two keys with the same value, valuesBetween returns nil.
func valuesBetween(a, b *Position) *Position {
	m := Middle(a, b)
	if m != nil && m.Valued && m.Key != nil {
		return nil
	}
	return m
}

func cutsBy(middle func(a, b *Position) *Position, a, b *Position, n int) (cuts []*Position) {
	last := a
	for i := 1; i < n; i++ {
		at := portion(middle, a, b, i, n)
		if at == nil || Compare(last, at) >= 0 || b != nil && Compare(at, b) >= 0 {
			continue
		}
		cuts, last = append(cuts, at), at
	}
	return cuts
}

// portion returns the position where the i-th of n equal parts of the space between a and b ends,
// or nil if it finds none. It finds the position by bisection: the argument middle returns a
// position about halfway between two others.
func portion(middle func(a, b *Position) *Position, a, b *Position, i, n int) *Position {
	below, above := a, b
	for range halvings {
		m := middle(below, above)
		if m == nil {
			break
		}
		if i *= 2; i < n {
			above = m
			continue
		}
		below = m
		if i -= n; i == 0 {
			break
		}
	}
	switch {
	case below != a:
		return below
	case above != b:
		return above
	}
	return nil
}

// betweenKeys returns a position with the same property value as a, and with a key about halfway
// between the keys of a and b. It returns nil if there is no such key. The fields that are not set
// here are copied from m.
func betweenKeys(a, b *Position, m Position) *Position {
	var end *datastore.Key
	if b != nil {
		end = b.Key
	}
	s := a.Space()
	k := bisect(a.Key, end, s.Kind, s.Namespace)
	if k == nil {
		return nil
	}
	m.Key, m.Valued, m.Value = k, a.Valued, a.Value
	if k.Kind == s.Kind {
		m.Namespace, m.Kind = "", ""
	} else { // the key is an ancestor's, of another kind
		m.Namespace, m.Kind = s.Namespace, s.Kind
	}
	return &m
}

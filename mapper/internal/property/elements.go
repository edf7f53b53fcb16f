package property

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbkey"
)

// errTwins is the error if a function removes one of several elements of an array that are equal in
// Go but stored differently. It is unknown which of the stored elements was removed.
var errTwins = errors.New("some of its elements are equal in the Go type and are stored differently, " +
	"so it is unknown which of them were removed")

// elements returns the array to store after a function has changed its Go value. The argument old
// has the stored elements. The Go type saved them as before before the function ran, and as after
// now. An element in both before and after stays as stored, even if it has moved.
//
// If each changed element is still at its place, it is merged with the stored element there.
// Otherwise it is unknown from which stored element a changed element comes. If a guess could lose
// data, elements returns an error.
func (m merger) elements(old []*pb.Value, before, after []any, noIndex, flags bool, s *schema) ([]*pb.Value, error) {
	places := placing(before, after)
	switch {
	case !places.inPlace && places.more && places.loses(old, before):
		return nil, errUnkept
	case places.removed && m.shifts(old, before, after, places.from, flags),
		!places.removed && (places.moved || !places.inPlace) && slices.Contains(places.kept, false) &&
			m.twins(old, before, places.kept, flags):
		return nil, errTwins
	}
	all, mixed := make([]*pb.Value, len(after)), mixedFlags(old)
	for i, at := range places.from {
		var err error
		switch {
		case at >= 0:
			all[i], err = m.stays(old[at], before[at], after[i], noIndex, flags, s)
		case isUnsaved(after[i]):
		case places.inPlace:
			flag := noIndex
			if mixed && !flags { // the array's index flag does not apply to this element
				flag = old[i].GetExcludeFromIndexes() || tooLong(after[i])
			}
			all[i], err = m.saved(old[i], before[i], after[i], flag, flags, s)
		default:
			all[i], err = m.valueOf(after[i], noIndex)
		}
		if err != nil && at < 0 {
			err = fmt.Errorf("at index %d: %w", i, err)
		}
		if err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(all, func(v *pb.Value) bool { return v == nil }), nil
}

// stays returns what to store for an element that the function has not changed: it was saved as
// before, and is now saved as after. Nil means that nothing is stored.
func (m merger) stays(old *pb.Value, before, after any, noIndex, flags bool, s *schema) (*pb.Value, error) {
	switch {
	case m.resaves && isUnsaved(after):
		return nil, nil
	case m.resaves:
		return m.saved(old, before, after, noIndex, true, s)
	case flags:
		return flagged(old, noIndex), nil
	}
	return old, nil
}

// places says how a function has moved the elements of an array.
type places struct {
	from    []int  // for each element, its place before the change; -1: the element is new
	kept    []bool // for each place before the change, whether its element is still in the array
	removed bool   // whether elements were removed, and nothing else was changed
	inPlace bool   // whether the elements that differ are at the same places before and after
	more    bool   // whether some elements are new
	moved   bool   // whether some elements are at other places than before
}

func placing(before, after []any) places {
	p := places{from: left(before, after), kept: make([]bool, len(before)), inPlace: len(before) == len(after)}
	if p.removed = p.from != nil; !p.removed {
		p.from = placesOf(before, after)
	}
	for _, at := range p.from {
		if at >= 0 {
			p.kept[at] = true
		}
	}
	for i, at := range p.from {
		p.more = p.more || at < 0 && !isUnsaved(after[i])
		p.moved = p.moved || at >= 0 && at != i
		p.inPlace = p.inPlace && (at < 0) == !p.kept[i]
	}
	return p
}

// loses reports whether an element that the function removed is stored with data that its Go type
// does not hold, such as an undeclared property.
func (p places) loses(old []*pb.Value, before []any) bool {
	for i, el := range old {
		if !p.kept[i] && loses(el, before[i]) {
			return true
		}
	}
	return false
}

// left returns, for each element in after, its index in before, if the function has only removed
// elements. If an element may come from several places, left takes the first one. If the function
// has done anything else, left returns nil.
func left(before, after []any) []int {
	if len(after) >= len(before) {
		return nil
	}
	places := make([]int, 0, len(after))
	for at := 0; at < len(before) && len(places) < len(after); at++ {
		if equalValues(before[at], after[len(places)]) {
			places = append(places, at)
		}
	}
	if len(places) < len(after) {
		return nil
	}
	return places
}

// shifts reports whether it matters which elements were removed. This is so if a remaining element
// may also come from another place than left has returned in places, and that element is stored
// differently.
func (m merger) shifts(old []*pb.Value, before, after []any, places []int, flags bool) bool {
	last := len(before)
	for i := len(after) - 1; i >= 0; i-- {
		for last--; !equalValues(before[last], after[i]); last-- {
		}
		for at := places[i] + 1; at <= last; at++ { // the element may also come from one of these places
			if equalValues(before[at], after[i]) && m.unlike(old[places[i]], old[at], after[i], flags) {
				return true
			}
		}
	}
	return false
}

// twins reports whether the function removed an element that equals a remaining one in Go, but is
// stored differently.
func (m merger) twins(old []*pb.Value, before []any, kept []bool, flags bool) bool {
	type group struct {
		first              int
		gone, kept, unlike bool
	}
	groups := make(map[string]*group)
	for i, el := range old {
		text := string(appendText(nil, before[i]))
		g := groups[text]
		if g == nil {
			g = &group{first: i}
			groups[text] = g
		}
		g.unlike = g.unlike || m.unlike(old[g.first], el, before[i], flags)
		g.gone, g.kept = g.gone || !kept[i], g.kept || kept[i]
		if g.gone && g.kept && g.unlike {
			return true
		}
	}
	return false
}

// unlike reports whether two stored elements that are equal in Go differ in something that must be
// kept. If flags is set, different index flags do not count, because the remaining element gets a
// new flag.
func (m merger) unlike(a, b *pb.Value, saved any, flags bool) bool {
	if same(a, b) || flags && same(flagged(a, false), flagged(b, false)) {
		return false
	}
	return !m.resaves || loses(a, saved) || loses(b, saved)
}

// placesOf returns, for each element in after, its index in before, or -1 for a new element. An
// element that equals the one at the same place counts as not moved. Equal elements that have moved
// keep their order.
func placesOf(before, after []any) []int {
	from, used := make([]int, len(after)), make([]bool, len(before))
	keep := func(i, at int) { from[i], used[at] = at, true }
	n := min(len(before), len(after))
	start := 0
	for ; start < n && equalValues(before[start], after[start]); start++ {
		keep(start, start)
	}
	tail := 0
	for ; tail < n-start && equalValues(before[len(before)-1-tail], after[len(after)-1-tail]); tail++ {
		keep(len(after)-1-tail, len(before)-1-tail)
	}
	middle := after[start : len(after)-tail]
	for i := start; i < start+len(middle); i++ {
		from[i] = -1
		if i < len(before)-tail && equalValues(before[i], after[i]) {
			keep(i, i)
		}
	}
	// The indexes of the other elements of before, by their texts (appendText).
	var rest map[string][]int
	for i := start; i < start+len(middle); i++ {
		if from[i] >= 0 {
			continue
		}
		if rest == nil {
			rest = make(map[string][]int)
			for at := start; at < len(before)-tail; at++ {
				if !used[at] {
					text := string(appendText(nil, before[at]))
					rest[text] = append(rest[text], at)
				}
			}
		}
		text := string(appendText(nil, after[i]))
		if places := rest[text]; len(places) > 0 {
			keep(i, places[0])
			rest[text] = places[1:]
		}
	}
	return from
}

// appendText appends a text to b that identifies a property's value, for use as a key of a map.
// Equal values have equal texts. Different values have different texts, except values of types that
// the Go client does not read. A type's own Save may return such values.
func appendText(b []byte, v any) []byte {
	text := func(kind byte, s string) []byte {
		b = binary.AppendUvarint(append(b, kind), uint64(len(s)))
		return append(b, s...)
	}
	number := func(kind byte, n uint64) []byte { return binary.BigEndian.AppendUint64(append(b, kind), n) }
	switch v := v.(type) {
	case nil:
		return append(b, 'n')
	case bool:
		if v {
			return append(b, 't')
		}
		return append(b, 'f')
	case int64:
		return number('i', uint64(v))
	case float64:
		return number('d', math.Float64bits(v))
	case string:
		return text('s', v)
	case []byte:
		return text('b', string(v))
	case time.Time:
		b = number('z', uint64(v.Unix()))
		return number('.', uint64(v.Nanosecond()))
	case *datastore.Key:
		return text('k', pbkey.Text(v))
	case datastore.GeoPoint:
		b = number('g', math.Float64bits(v.Lat))
		return number(',', math.Float64bits(v.Lng))
	case []any:
		b = number('a', uint64(len(v)))
		for _, el := range v {
			b = appendText(b, el)
		}
		return b
	case *datastore.Entity:
		if v == nil {
			return append(b, 'n', 'e')
		}
		b = text('e', pbkey.Text(v.Key))
		for _, p := range v.Properties {
			b = text('p', p.Name)
			if b = append(b, '-'); p.NoIndex {
				b[len(b)-1] = '+'
			}
			b = appendText(b, p.Value)
		}
		return append(b, ')')
	}
	return text('?', fmt.Sprintf("%T %v", v, v)) // a type that no property has
}

// mixedFlags reports whether some elements of an array are indexed and others are not.
func mixedFlags(all []*pb.Value) bool {
	return slices.ContainsFunc(all, func(v *pb.Value) bool {
		return v.GetExcludeFromIndexes() != all[0].GetExcludeFromIndexes()
	})
}

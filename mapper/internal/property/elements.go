package property

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbkey"
	"github.com/scattermap/scattermap/internal/pbvalue"
)

// elements returns what is stored of an array's elements, which were saved as before and are saved as after. One that
// is there before and after is as stored, wherever it is now. Those that differ are merged with what is stored at their
// places, if they are at the same ones: all others have stayed then. Otherwise nothing says which stored element a
// changed one is, and if something would be lost it is refused.
func (m merger) elements(old []*pb.Value, before, after []any, noIndex, flags bool, s *schema) ([]*pb.Value, error) {
	all, from := make([]*pb.Value, len(after)), placesOf(before, after)
	kept, mixed := make([]bool, len(old)), mixedFlags(old)
	for i, at := range from {
		if at < 0 {
			continue
		}
		kept[at] = true
		switch {
		case m.resaves:
			var err error
			if all[i], err = m.saved(old[at], before[at], after[i], noIndex, true, s); err != nil {
				return nil, err
			}
		case flags:
			all[i] = flagged(old[at], noIndex)
		default:
			all[i] = old[at]
		}
	}
	inPlace, more := len(before) == len(after), false
	for i, at := range from {
		more = more || at < 0
		inPlace = inPlace && (at < 0) == !kept[i]
	}
	if !inPlace && more {
		for i, el := range old {
			if !kept[i] && loses(el, before[i]) {
				return nil, errUnkept
			}
		}
	}
	for i, at := range from {
		if at >= 0 {
			continue
		}
		flag := noIndex
		if inPlace && mixed && !flags { // what the flag of the whole is says nothing of this one
			flag = old[i].GetExcludeFromIndexes() || tooLong(after[i])
		}
		var err error
		if inPlace {
			all[i], err = m.saved(old[i], before[i], after[i], flag, flags, s)
		} else {
			all[i], err = pbvalue.Of(after[i], flag)
		}
		if err != nil {
			return nil, fmt.Errorf("at index %d: %w", i, err)
		}
	}
	return all, nil
}

// placesOf returns where each element was before; -1: nowhere. One that is where it was has not moved; of equal ones that
// have, the first is the first.
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
	var rest map[string][]int // of those before, by their texts
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

// appendText appends a text that values have which are equal, as equalValues says, and no others.
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
	return text('?', fmt.Sprintf("%T %v", v, v)) // what the client reads in none of these forms
}

// mixedFlags reports whether some elements are indexed, and others are not.
func mixedFlags(all []*pb.Value) bool {
	return slices.ContainsFunc(all, func(v *pb.Value) bool { return v.GetExcludeFromIndexes() != all[0].GetExcludeFromIndexes() })
}

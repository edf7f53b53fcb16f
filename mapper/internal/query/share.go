package query

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/setting"
)

// A Share is a part of all keys, by their hashes: of so many parts of the same size, those from one
// on, and before another. The zero value is all of them.
type Share struct{ From, To, Of int64 }

// In a list of filters, and in JSON, a share is a filter by the property and the operator, with a
// value such as "0-1/100". Builds that know no shares refuse it.
const (
	shareProperty = "__key__"
	shareOp       = "share"
)

// mostParts is into how many parts keys are cut at most, and smallest the least share, as
// 1/smallest: of a smaller one, a page would have too many keys read.
const (
	mostParts = 1_000_000
	smallest  = 1000
)

// Filter returns the share as a filter.
func (s Share) Filter() Filter {
	return Filter{Property: shareProperty, Op: shareOp, Value: fmt.Sprintf("%d-%d/%d", s.From, s.To, s.Of)}
}

// All reports whether the share is all keys.
func (s Share) All() bool { return s.Of == 0 }

// check returns what is wrong with a share.
func (s Share) check() error {
	switch {
	case s.All():
		return nil
	case s.From < 0 || s.From >= s.To || s.To > s.Of || s.Of > mostParts:
		return fmt.Errorf("the share is from %d to %d of %d parts, want 0 <= from < to <= of <= %d", s.From, s.To, s.Of,
			mostParts)
	case (s.To-s.From)*smallest < s.Of:
		return fmt.Errorf("the share is %d of %d parts, which is less than 1 of %d", s.To-s.From, s.Of, smallest)
	}
	return nil
}

// shareOf returns the share that a filter is; ok is false for any other filter.
func shareOf(f Filter) (s Share, ok bool, err error) {
	if f.Property != shareProperty || f.Op != shareOp {
		return s, false, nil
	}
	text, _ := f.Value.(string)
	if n, err := fmt.Sscanf(text, "%d-%d/%d", &s.From, &s.To, &s.Of); n != 3 || err != nil || s.Of == 0 ||
		s.Filter().Value != text {
		return s, true, fmt.Errorf("the value %q of a share is not like \"0-1/100\"", f.Value)
	}
	return s, true, s.check()
}

// splitShare takes the filter that is a share out of the others.
func splitShare(filters []Filter) (share Share, others []Filter, err error) {
	for _, f := range filters {
		s, ok, err := shareOf(f)
		switch {
		case err != nil:
			return share, nil, setting.Errorf("Query.Filters: %w", err)
		case !ok:
			others = append(others, f)
		case !share.All():
			return share, nil, setting.Errorf("Query.Filters: there are two shares")
		default:
			share = s
		}
	}
	return share, others, nil
}

// Has reports whether a key is in the share. It is always the same for a key.
func (s Share) Has(k *datastore.Key) bool {
	if s.All() {
		return true
	}
	part := int64(hashOf(k) % uint64(s.Of))
	return s.From <= part && part < s.To
}

// hashOf returns the hash of a key: of its namespace, and of the kinds, names and numbers of its
// path.
func hashOf(k *datastore.Key) uint64 {
	var text []byte
	for p := k; p != nil; p = p.Parent {
		text = fmt.Appendf(text, "%q %q %d\n", p.Kind, p.Name, p.ID)
	}
	sum := sha256.Sum256(fmt.Appendf(text, "%q", k.Namespace))
	return binary.BigEndian.Uint64(sum[:])
}

// Keys returns how many keys have so many of the share, about.
func (s Share) Keys(n int64) int64 {
	if s.All() {
		return n
	}
	return n * s.Of / (s.To - s.From)
}

// Part returns how many of so many keys are of the share, about: of any, at least one.
func (s Share) Part(keys int64) int64 {
	if s.All() {
		return keys
	}
	return (keys*(s.To-s.From) + s.Of - 1) / s.Of
}

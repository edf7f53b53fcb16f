package query

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/setting"
)

// A Share is a part of all keys. Hashes divide the keys into Of parts, numbered from 0. The share
// consists of the parts from From up to, but not including, To. The zero value is all keys.
type Share struct{ From, To, Of int64 }

// shareProperty and shareOp belong to the filter that stands for a share, in a list of filters and
// in JSON. The filter's value is a text such as "0-1/100", which is one percent. A build that does
// not know shares refuses such a filter.
const (
	shareProperty = "__key__"
	shareOp       = "share"
)

// Limits of a share. Keys are divided into up to mostParts parts. The smallest share is 1/smallest
// of the keys. To find the entities of a smaller share, a job would have to read too many keys.
const (
	mostParts = 1_000_000
	smallest  = 1000
)

// Filter returns the filter that stands for the share in a list of filters.
func (s Share) Filter() Filter {
	return Filter{Property: shareProperty, Op: shareOp, Value: fmt.Sprintf("%d-%d/%d", s.From, s.To, s.Of)}
}

// All reports whether the share contains all keys.
func (s Share) All() bool { return s.Of == 0 }

// check returns an error if the share is invalid.
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

// shareOf returns the share for which the filter f stands. The bool ok is false if f is an ordinary
// filter. The error says that f stands for an invalid share.
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

// splitShare separates the filter that stands for a share from the other filters.
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

// Has reports whether a key is in the share. For the same key and share, all builds return the same
// result.
func (s Share) Has(k *datastore.Key) bool {
	if s.All() {
		return true
	}
	part := int64(hashOf(k) % uint64(s.Of))
	return s.From <= part && part < s.To
}

// hashOf returns the hash that decides to which shares a key belongs. It depends on the key's
// namespace, and on the kinds, names and IDs in its path.
func hashOf(k *datastore.Key) uint64 {
	var text []byte
	for p := k; p != nil; p = p.Parent {
		text = fmt.Appendf(text, "%q %q %d\n", p.Kind, p.Name, p.ID)
	}
	sum := sha256.Sum256(fmt.Appendf(text, "%q", k.Namespace))
	return binary.BigEndian.Uint64(sum[:])
}

// Keys estimates how many keys must be read to find n keys of the share.
func (s Share) Keys(n int64) int64 {
	if s.All() {
		return n
	}
	return n * s.Of / (s.To - s.From)
}

// Part estimates how many of the given number of keys are in the share. It is at least 1, unless
// keys is 0.
func (s Share) Part(keys int64) int64 {
	if s.All() {
		return keys
	}
	return (keys*(s.To-s.From) + s.Of - 1) / s.Of
}

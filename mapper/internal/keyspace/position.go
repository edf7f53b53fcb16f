package keyspace

import (
	"cmp"
	"slices"
	"strings"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/value"
)

// A Position is a place in the order in which a job processes its entities. It consists of
// namespace, kind, the value of the property in mapper.Query.ShardBy if there is one, and key.
// Ranges start and end at positions.
//
// A part that is missing sorts before any present one. So a position without a key is before all
// keys with its value. A position without a value is before all values of its kind.
type Position struct {
	// Namespace is empty if Key has the same namespace.
	Namespace string `datastore:"namespace,omitempty,noindex"`
	// Kind is empty if Key has the same kind. The kinds differ if Key is the key of an ancestor.
	Kind   string         `datastore:"kind,omitempty,noindex"`
	Valued bool           `datastore:"valued,omitempty,noindex"`
	Value  any            `datastore:"value,omitempty,noindex"`
	Key    *datastore.Key `datastore:"key,omitempty,noindex"`
}

// At returns the position of the entity with a key, in a job without ShardBy.
func At(k *datastore.Key) *Position { return &Position{Key: k} }

// AtAll returns the positions of the entities with some keys, in a job without ShardBy.
func AtAll(keys []*datastore.Key) []*Position {
	all := make([]*Position, len(keys))
	for i, k := range keys {
		all[i] = At(k)
	}
	return all
}

// Keys returns the keys of positions.
func Keys(all []*Position) []*datastore.Key {
	keys := make([]*datastore.Key, len(all))
	for i, p := range all {
		keys[i] = p.Key
	}
	return keys
}

// Space returns the kind and namespace of the position.
func (p *Position) Space() Space {
	if p.Kind == "" && p.Key != nil {
		return Space{p.Key.Namespace, p.Key.Kind}
	}
	return Space{p.Namespace, p.Kind}
}

// Compare compares two positions: the result is negative if a comes before b, 0 if they are equal,
// and positive otherwise.
func Compare(a, b *Position) int {
	if c := CompareSpaces(a.Space(), b.Space()); c != 0 {
		return c
	}
	switch {
	case a.Valued != b.Valued:
		return Present(a.Valued) - Present(b.Valued)
	case a.Valued:
		if c := value.Compare(a.Value, b.Value); c != 0 {
			return c
		}
	}
	if a.Key == nil || b.Key == nil {
		return Present(a.Key != nil) - Present(b.Key != nil)
	}
	return value.ComparePaths(value.Path(a.Key), value.Path(b.Key))
}

// Present returns 1 if a part of a position is present, and 0 if it is missing. Compare uses these
// numbers, so that missing parts sort first.
func Present(there bool) int {
	if there {
		return 1
	}
	return 0
}

// Equal reports whether two positions are equal, or both nil.
func (p *Position) Equal(o *Position) bool {
	if p == nil || o == nil {
		return p == o
	}
	return Compare(p, o) == 0
}

// FromTo describes the range from start to end for people. A nil start is the start of the query,
// and a nil end is its end.
func FromTo(start, end *Position) string {
	from, to := "the start", "the end"
	if start != nil {
		from = start.String()
	}
	if end != nil {
		to = end.String()
	}
	return "from " + from + " to " + to
}

// String describes the position for people. Use [FromTo] for the bounds of a range, which may be
// nil.
func (p *Position) String() string {
	if p == nil {
		return "no position"
	}
	s := "the beginning"
	switch {
	case p.Key != nil:
		s = names.Key(p.Key)
	case p.Kind != "":
		s = names.Kind(p.Namespace, p.Kind)
	}
	if p.Valued {
		s = value.Text(p.Value) + " of " + s
	}
	return s
}

// Names returns the names in the position's key and in the keys of its ancestors. A key with an ID
// has the name "". It returns nil if the position has no key.
func (p *Position) Names() (all []string) {
	if p == nil {
		return nil
	}
	for key := p.Key; key != nil; key = key.Parent {
		all = append(all, key.Name)
	}
	return all
}

// Size estimates the bytes that the position takes in a record.
func (p *Position) Size() int {
	return 16 + len(p.Namespace) + len(p.Kind) + valueSize(p.Value) + KeySize(p.Key)
}

// Sort sorts positions and removes duplicates.
func Sort(all []*Position) []*Position {
	slices.SortFunc(all, Compare)
	return slices.CompactFunc(all, (*Position).Equal)
}

// A Space is one kind in one namespace.
type Space struct{ Namespace, Kind string }

// CompareSpaces orders spaces: by namespace, then by kind.
func CompareSpaces(a, b Space) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Kind, b.Kind))
}

// End returns the position after all entities of a kind in a namespace.
func (s Space) End() *Position {
	return &Position{Namespace: s.Namespace, Kind: s.Kind + "\x00"}
}

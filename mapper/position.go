package mapper

import (
	"fmt"
	"slices"

	"cloud.google.com/go/datastore"
)

// A position is a place in the order in which a job comes to its entities: by namespace, by
// kind, by the value of the property that the job is sharded by, if it is, and by key. Ranges
// begin and end at positions. A part that is missing is below all that are there, so a position
// without a key is before all keys of its value, and one without a value before all values of
// its kind.
type position struct {
	Namespace string         `datastore:"namespace,omitempty,noindex"` // unless it is that of the key
	Kind      string         `datastore:"kind,omitempty,noindex"`      // unless it is that of the key: one of an ancestor has another
	Valued    bool           `datastore:"valued,omitempty,noindex"`
	Value     any            `datastore:"value,omitempty,noindex"`
	Key       *datastore.Key `datastore:"key,omitempty,noindex"`
}

// positionOf returns the position of an entity in a job that is not sharded by a property.
func positionOf(k *datastore.Key) *position { return &position{Key: k} }

// positionsOf returns the positions of entities.
func positionsOf(keys []*datastore.Key) []*position {
	all := make([]*position, len(keys))
	for i, k := range keys {
		all[i] = positionOf(k)
	}
	return all
}

// keysOf returns the keys of entities.
func keysOf(all []*position) []*datastore.Key {
	keys := make([]*datastore.Key, len(all))
	for i, p := range all {
		keys[i] = p.Key
	}
	return keys
}

func (p *position) space() space {
	if p.Kind == "" && p.Key != nil {
		return space{p.Key.Namespace, p.Key.Kind}
	}
	return space{p.Namespace, p.Kind}
}

// comparePositions orders positions.
func comparePositions(a, b *position) int {
	if c := compareSpaces(a.space(), b.space()); c != 0 {
		return c
	}
	switch {
	case a.Valued != b.Valued:
		return present(a.Valued) - present(b.Valued)
	case a.Valued:
		if c := compareValues(a.Value, b.Value); c != 0 {
			return c
		}
	}
	if a.Key == nil || b.Key == nil {
		return present(a.Key != nil) - present(b.Key != nil)
	}
	return comparePaths(elements(a.Key), elements(b.Key))
}

func present(there bool) int {
	if there {
		return 1
	}
	return 0
}

// equal reports whether two positions are the same; nil is none.
func (p *position) equal(o *position) bool {
	if p == nil || o == nil {
		return p == o
	}
	return comparePositions(p, o) == 0
}

// String describes the position.
func (p *position) String() string {
	if p == nil {
		return "the end"
	}
	s := "the beginning"
	switch {
	case p.Key != nil:
		s = p.Key.String()
	case p.Kind != "":
		s = p.Namespace + "/" + p.Kind
	}
	if p.Valued {
		s = fmt.Sprintf("%v of %s", p.Value, s)
	}
	return s
}

// size estimates the bytes that the position takes in a record.
func (p *position) size() int {
	return 16 + len(p.Namespace) + len(p.Kind) + valueSize(p.Value) + keySize(p.Key)
}

// sortPositions sorts positions, and leaves out those that come twice.
func sortPositions(all []*position) []*position {
	slices.SortFunc(all, comparePositions)
	return slices.CompactFunc(all, (*position).equal)
}

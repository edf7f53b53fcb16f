package keyspace

import (
	"cmp"
	"strings"
)

// A Space is one kind in one namespace.
type Space struct{ Namespace, Kind string }

// CompareSpaces orders spaces: by namespace, then by kind.
func CompareSpaces(a, b Space) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Kind, b.Kind))
}

// End returns the position behind all of a space.
func (s Space) End() *Position {
	return &Position{Namespace: s.Namespace, Kind: s.Kind + "\x00"}
}

package mapper

import (
	"cmp"
	"strings"
)

// A space is one kind in one namespace.
type space struct{ namespace, kind string }

func compareSpaces(a, b space) int {
	return cmp.Or(strings.Compare(a.namespace, b.namespace), strings.Compare(a.kind, b.kind))
}

// end returns the position behind all of a space.
func (s space) end() *position {
	return &position{Namespace: s.namespace, Kind: s.kind + "\x00"}
}

package main

import (
	"fmt"
	"slices"
	"strings"
)

// indexed has the properties of each index that the program's queries need. A minus means
// descending order. For conditions on several properties, Datastore combines several indexes.
var indexed = [][]string{
	{"-__key__"},
	{"Order", "Created"}, {"Order", "-Created"},
	{"Status", "Created"}, {"Status", "-Created"},
	{"Author", "Created"}, {"Author", "-Created"},
	{"Status", "Author", "Created"},
}

// indexYAML returns an index.yaml for each of the given numbers of shards together. It also has the
// indexes of the plain kind, with which the program compares the store. The indexes of new shards
// must exist before comments are moved.
func indexYAML(shards ...int) []byte {
	var b strings.Builder
	b.WriteString("# Written by go run ./examples/comments -indexes\nindexes:\n")
	kinds := []string{plainKind}
	slices.Sort(shards)
	for _, n := range slices.Compact(shards) {
		kinds = append(kinds, kindsOf(n)...)
	}
	for _, kind := range kinds {
		for _, index := range indexed {
			fmt.Fprintf(&b, "- kind: %s\n  properties:\n", kind)
			for _, name := range index {
				name, descending := strings.CutPrefix(name, "-")
				fmt.Fprintf(&b, "  - name: %s\n", name)
				if descending {
					b.WriteString("    direction: desc\n")
				}
			}
		}
	}
	return []byte(b.String())
}

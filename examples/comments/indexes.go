package main

import (
	"fmt"
	"slices"
	"strings"
)

// indexed has the indexes that the queries of this program need. A minus means descending. Several
// indexes together serve conditions on several properties.
var indexed = [][]string{
	{"-__key__"},
	{"Order", "Created"}, {"Order", "-Created"},
	{"Status", "Created"}, {"Status", "-Created"},
	{"Author", "Created"}, {"Author", "-Created"},
	{"Status", "Author", "Created"},
}

// indexYAML returns an index.yaml for comments in the given numbers of shards. It also has the
// indexes of the plain kind, with which the program compares. The indexes of new shards must exist
// before comments are moved.
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

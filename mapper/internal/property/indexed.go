package property

import (
	"strings"

	"cloud.google.com/go/datastore"
)

// Indexed returns the values under which properties are in the index of a name: each
// element of an array, and those of entities inside under names joined by dots.
func Indexed(properties []datastore.Property, name string) (values []any) {
	for _, p := range properties {
		rest, inside := strings.CutPrefix(name, p.Name+".")
		if p.NoIndex || p.Name != name && !inside {
			continue
		}
		all := []any{p.Value}
		if array, ok := p.Value.([]any); ok {
			all = array
		}
		for _, v := range all {
			e, isEntity := v.(*datastore.Entity)
			switch {
			case isEntity && e != nil && inside:
				values = append(values, Indexed(e.Properties, rest)...)
			case !isEntity && !inside:
				values = append(values, v)
			}
		}
	}
	return values
}

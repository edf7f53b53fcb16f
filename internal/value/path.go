package value

import (
	"strings"

	"cloud.google.com/go/datastore"
)

// Each calls f with each property that a path names, as Datastore's indexes have it: a path is names with dots between
// them, a dot leads into an entity inside, also one of an array, and a dot may be part of a name. So "a.b" is the
// property b of the entity a, and the property "a.b", which flattened structs have: both, if both are there. Inside says
// whether the property is that of an entity inside.
func Each(properties []datastore.Property, path string, f func(p *datastore.Property, inside bool)) {
	each(properties, path, false, false, f)
}

func each(properties []datastore.Property, path string, inside, indexed bool, f func(*datastore.Property, bool)) {
	for i := range properties {
		p := &properties[i]
		if indexed && p.NoIndex {
			continue
		}
		if p.Name == path {
			f(p, inside)
		}
		rest, leads := strings.CutPrefix(path, p.Name+".")
		if !leads {
			continue
		}
		for _, v := range Elements(p.Value) {
			if e, ok := v.(*datastore.Entity); ok && e != nil {
				each(e.Properties, rest, true, indexed, f)
			}
		}
	}
}

// Leads reports whether the beginning of a path names an entity inside, so that the path leads into that.
func Leads(properties []datastore.Property, path string) bool {
	for i, c := range path {
		if c != '.' {
			continue
		}
		found := false
		Each(properties, path[:i], func(p *datastore.Property, _ bool) {
			for _, v := range Elements(p.Value) {
				e, ok := v.(*datastore.Entity)
				found = found || ok && e != nil
			}
		})
		if found {
			return true
		}
	}
	return false
}

// Of returns the values of the properties that a path names, those of arrays one by one, and whether there is such a
// property at all.
func Of(properties []datastore.Property, path string) (values []any, there bool) {
	Each(properties, path, func(p *datastore.Property, _ bool) {
		values, there = append(values, Elements(p.Value)...), true
	})
	return values, there
}

// Indexed returns the values of a path that indexes have.
func Indexed(properties []datastore.Property, path string) (values []any) {
	each(properties, path, false, true, func(p *datastore.Property, _ bool) {
		for _, v := range Elements(p.Value) {
			if _, entity := v.(*datastore.Entity); !entity {
				values = append(values, v)
			}
		}
	})
	return values
}

// Elements returns the values that a property has: those of an array, or the one that it is.
func Elements(v any) []any {
	if array, ok := v.([]any); ok {
		return array
	}
	return []any{v}
}

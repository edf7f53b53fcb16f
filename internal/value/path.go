package value

import (
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// Each calls f with each property that a path names, as Datastore's indexes have it: a path is
// names with dots between them, a dot leads into an entity inside, also one of an array, and a dot
// may be part of a name. So "a.b" is the property b of the entity a, and the property "a.b", which
// flattened structs have: both, if both are there.
func Each(e *pb.Entity, path string, f func(v *pb.Value)) { each(e, path, false, f) }

func each(e *pb.Entity, path string, indexed bool, f func(*pb.Value)) {
	if v := e.GetProperties()[path]; v != nil && (!indexed || !v.ExcludeFromIndexes) {
		f(v)
	}
	for i := range len(path) {
		if path[i] != '.' {
			continue
		}
		v := e.GetProperties()[path[:i]]
		if v == nil || indexed && v.ExcludeFromIndexes {
			continue
		}
		for _, el := range Elements(v) {
			if inner := el.GetEntityValue(); inner != nil && (!indexed || !el.ExcludeFromIndexes) {
				each(inner, path[i+1:], indexed, f)
			}
		}
	}
}

// Leads reports whether the beginning of a path names an entity inside, so that the path leads into
// that.
func Leads(e *pb.Entity, path string) bool {
	found := false
	for i := range strings.Count(path, ".") {
		parts := strings.SplitN(path, ".", i+2)
		Each(e, strings.Join(parts[:i+1], "."), func(v *pb.Value) {
			for _, el := range Elements(v) {
				found = found || el.GetEntityValue() != nil
			}
		})
	}
	return found
}

// Of returns the values of the properties that a path names. It returns the elements of arrays one
// by one.
func Of(e *pb.Entity, path string) (values []any) {
	Each(e, path, func(v *pb.Value) {
		for _, el := range Elements(v) {
			values = append(values, Go(e, el))
		}
	})
	return values
}

// Indexed returns the values of a path that indexes have.
func Indexed(e *pb.Entity, path string) (values []*pb.Value) {
	each(e, path, true, func(v *pb.Value) {
		for _, el := range Elements(v) {
			if !el.ExcludeFromIndexes && el.GetEntityValue() == nil {
				values = append(values, el)
			}
		}
	})
	return values
}

// Elements returns the values that a property has: those of an array, or the one that it is.
func Elements(v *pb.Value) []*pb.Value {
	if array := v.GetArrayValue(); array != nil {
		return array.Values
	}
	return []*pb.Value{v}
}

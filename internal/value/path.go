package value

import (
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// Each calls f with each value at a path, by the rules of Datastore's indexes. A path consists of
// names joined by dots. A dot either leads into a nested entity, which may be in an array, or is
// part of a name. So "a.b" is the property b of the entity a. It is also the property "a.b", as in
// flattened structs. If both exist, Each calls f for both.
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

// Leads reports whether the start of a path names a nested entity of e, so that the rest of the
// path names a property of this entity.
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

// Of returns the values that an entity has at a path. For an array, these are its elements.
func Of(e *pb.Entity, path string) (values []any) {
	Each(e, path, func(v *pb.Value) {
		for _, el := range Elements(v) {
			values = append(values, Go(e, el))
		}
	})
	return values
}

// Indexed returns the values at a path of an entity under which an index lists the entity.
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

// Elements returns the elements of an array. For any other value, it returns this value alone.
func Elements(v *pb.Value) []*pb.Value {
	if array := v.GetArrayValue(); array != nil {
		return array.Values
	}
	return []*pb.Value{v}
}

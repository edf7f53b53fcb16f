package dsemu

import (
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// mask returns the properties of before with those that the paths name taken
// from after: set, or removed where after does not have them.
func mask(before, after map[string]*pb.Value, paths []string) (map[string]*pb.Value, error) {
	result := make(map[string]*pb.Value, len(before))
	for name, v := range before {
		result[name] = v
	}
	for _, p := range paths {
		names, err := splitPath(p)
		if err != nil {
			return nil, err
		}
		maskOne(result, after, names)
	}
	return result, nil
}

func maskOne(to, from map[string]*pb.Value, names []string) {
	name := names[0]
	v, ok := from[name]
	if len(names) == 1 {
		if ok {
			to[name] = v
		} else {
			delete(to, name)
		}
		return
	}
	sub := v.GetEntityValue().GetProperties()
	old := to[name].GetEntityValue()
	if old == nil && sub == nil {
		return
	}
	properties := make(map[string]*pb.Value)
	for n, v := range old.GetProperties() {
		properties[n] = v
	}
	maskOne(properties, sub, names[1:])
	to[name] = &pb.Value{
		ExcludeFromIndexes: v.GetExcludeFromIndexes(),
		ValueType:          &pb.Value_EntityValue{EntityValue: &pb.Entity{Key: old.GetKey(), Properties: properties}},
	}
}

// splitPath splits a mask's path at its dots. A backslash escapes a dot or a
// backslash that belongs to a name.
func splitPath(p string) ([]string, error) {
	var names []string
	var name strings.Builder
	for i := 0; i < len(p); i++ {
		switch p[i] {
		case '\\':
			if i++; i == len(p) || p[i] != '.' && p[i] != '\\' {
				return nil, invalid("the property mask path %q has a stray backslash", p)
			}
			name.WriteByte(p[i])
		case '.':
			names = append(names, name.String())
			name.Reset()
		default:
			name.WriteByte(p[i])
		}
	}
	names = append(names, name.String())
	for _, n := range names {
		if n == "" || reserved(n) && p != keyProperty {
			return nil, invalid("the property path %q has an empty or a reserved name", p)
		}
	}
	return names, nil
}

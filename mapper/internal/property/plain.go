package property

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/datastore"
)

// plainProperties converts the values of properties to the types that the Go client returns when it
// reads, also inside entities. It sorts properties inside entities by name. It does not change its
// argument.
func plainProperties(properties []datastore.Property) []datastore.Property {
	own := false
	for i, p := range properties {
		v, changed := plainWhole(p.Value)
		if !changed {
			continue
		}
		if !own {
			properties, own = slices.Clone(properties), true
		}
		properties[i].Value = v
	}
	return properties
}

// plainWhole converts a value, and everything inside it, to the types that the Go client returns
// when it reads. If nothing needs a conversion, it returns v itself, and changed is false.
func plainWhole(v any) (_ any, changed bool) {
	switch v := v.(type) {
	case nil, bool, int64, float64, string, []byte, time.Time, datastore.GeoPoint:
		return v, false
	case []any:
		all := v
		for i, el := range v {
			one, another := plainWhole(el)
			if another && !changed {
				all, changed = slices.Clone(v), true
			}
			all[i] = one
		}
		return all, changed
	case *datastore.Key:
		if v != nil {
			return v, false
		}
	case *datastore.Entity:
		if v != nil {
			byName := func(a, b datastore.Property) int { return strings.Compare(a.Name, b.Name) }
			all := plainProperties(v.Properties)
			same := len(all) == 0 || &all[0] == &v.Properties[0]
			if same && slices.IsSortedFunc(all, byName) {
				return v, false
			}
			return &datastore.Entity{Key: v.Key, Properties: slices.SortedStableFunc(slices.Values(all), byName)}, true
		}
	}
	plain := plainValue(v)
	if reflect.TypeOf(plain) == reflect.TypeOf(v) {
		return v, false // a type that no property has
	}
	plain, _ = plainWhole(plain)
	return plain, true
}

// plainValue converts a value that a type's Save method may return, such as an int, to the type
// that the Go client returns when it reads. It does not look into arrays and entities.
func plainValue(v any) any {
	switch v := v.(type) {
	case nil, bool, int64, float64, string, []byte, time.Time, []any, datastore.GeoPoint:
		return v
	case int:
		return int64(v)
	case int32:
		return int64(v)
	case float32:
		return float64(v)
	case *datastore.Key:
		if v == nil {
			return nil
		}
		return v
	case *datastore.Entity:
		if v == nil {
			return nil
		}
		return v
	}
	if p := reflect.ValueOf(v); p.Kind() == reflect.Pointer {
		if p.IsNil() {
			return nil
		}
		return plainValue(p.Elem().Interface())
	}
	return v
}

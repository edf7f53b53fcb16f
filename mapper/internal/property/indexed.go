package property

import (
	"strings"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbvalue"
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

// IndexedOf returns the values under which an entity is in the index of a name: as [Indexed] does, and with the flag of
// each element.
func IndexedOf(e *pb.Entity, name string) (values []any) {
	for _, v := range elementsOf(e.GetProperties()[name]) {
		if !v.GetExcludeFromIndexes() && v.GetEntityValue() == nil {
			values = append(values, pbvalue.Go(v))
		}
	}
	for i := range len(name) {
		if name[i] != '.' {
			continue
		}
		for _, v := range elementsOf(e.GetProperties()[name[:i]]) {
			if inner := v.GetEntityValue(); inner != nil && !v.GetExcludeFromIndexes() {
				values = append(values, IndexedOf(inner, name[i+1:])...)
			}
		}
	}
	return values
}

// elementsOf returns the elements of an array that are stored, and of another value itself.
func elementsOf(v *pb.Value) []*pb.Value {
	switch {
	case v == nil:
		return nil
	case v.GetArrayValue() == nil:
		return []*pb.Value{v}
	case v.GetExcludeFromIndexes():
		return nil
	}
	return v.GetArrayValue().GetValues()
}

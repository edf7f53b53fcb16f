package property

import (
	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/internal/value"
)

// Indexed returns the values of a property that indexes have: see [value.Indexed].
func Indexed(properties []datastore.Property, name string) []any {
	return value.Indexed(properties, name)
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

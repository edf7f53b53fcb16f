package property

import (
	"maps"
	"slices"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// An Edit is a change of a stored entity. It shares values with this entity.
type Edit struct {
	Changed []string // the names of the properties that differ from the stored ones, in order

	stored  *pb.Entity
	values  map[string]*pb.Value // the values of changed properties; nil: the property is removed
	removes bool                 // whether a value is nil
}

// NewEdit returns the edit that gives some properties of an entity other values. A nil value
// removes the property.
func NewEdit(stored *pb.Entity, values map[string]*pb.Value) Edit {
	e := Edit{stored: stored, values: values}
	for name, v := range values {
		e.Changed = append(e.Changed, name)
		e.removes = e.removes || v == nil
	}
	slices.Sort(e.Changed)
	return e
}

// Whole returns the entity after the edit. If the edit changes nothing, this is the stored entity.
// For the zero Edit it is nil.
func (e Edit) Whole() *pb.Entity {
	if len(e.values) == 0 {
		return e.stored
	}
	all := maps.Clone(e.stored.GetProperties())
	if all == nil {
		all = make(map[string]*pb.Value)
	}
	maps.Copy(all, e.values)
	return &pb.Entity{Key: e.stored.GetKey(), Properties: withoutNil(all)}
}

// Parts returns the entity with only the changed properties that it has after the edit.
func (e Edit) Parts() *pb.Entity {
	some := e.values
	if e.removes {
		some = withoutNil(maps.Clone(some))
	}
	return &pb.Entity{Key: e.stored.GetKey(), Properties: some}
}

// withoutNil removes nil values from a map, and returns the map.
func withoutNil(values map[string]*pb.Value) map[string]*pb.Value {
	maps.DeleteFunc(values, func(_ string, v *pb.Value) bool { return v == nil })
	return values
}

package dsemu

import (
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Limits of properties, as the limits page of Datastore has them.
const (
	maxIndexedValue  = 1500    // bytes of a string or blob
	maxIndexedValues = 20000   // of an entity
	maxPropertyValue = 1048487 // bytes of a string or blob that is not indexed
	maxDepth         = 20      // of entities and arrays in each other
)

// projectionMeaning marks a value that only a projection returns.
const projectionMeaning = 18

// Bounds of timestamps: 0001-01-01T00:00:00Z and 9999-12-31T23:59:59.999999Z.
const (
	minSeconds = -62135596800
	maxSeconds = 253402300799
)

// checkProperties checks an entity's properties, and cuts its times to the
// microseconds that Datastore keeps.
func checkProperties(properties map[string]*pb.Value) error {
	return checkNested("", properties, 0)
}

func checkNested(prefix string, properties map[string]*pb.Value, depth int) error {
	for name, v := range properties {
		if name == "" || reserved(name) || len(name) > maxNameSize {
			return invalid("the property name %q is empty, reserved or longer than %d bytes", prefix+name, maxNameSize)
		}
		if err := checkValue(prefix+name, v, depth, false); err != nil {
			return err
		}
	}
	return nil
}

// checkValue checks a value that is inside depth entities and arrays.
func checkValue(name string, v *pb.Value, depth int, inArray bool) error {
	if depth > maxDepth {
		return invalid("the property %.100q is inside more than %d entities and arrays", name, maxDepth)
	}
	if v.GetMeaning() == projectionMeaning {
		return invalid("the property %q has meaning %d, which only results of projections have", name, projectionMeaning)
	}
	switch value := v.GetValueType().(type) {
	case nil:
		return invalid("the property %q has no value", name)
	case *pb.Value_StringValue:
		return checkSize(name, len(value.StringValue), v.ExcludeFromIndexes)
	case *pb.Value_BlobValue:
		return checkSize(name, len(value.BlobValue), v.ExcludeFromIndexes)
	case *pb.Value_TimestampValue:
		t := value.TimestampValue
		if t.CheckValid() != nil || t.Seconds < minSeconds || t.Seconds > maxSeconds {
			return invalid("the property %q is no time between the years 1 and 9999", name)
		}
		v.ValueType = &pb.Value_TimestampValue{TimestampValue: timestamppb.New(t.AsTime().Truncate(time.Microsecond))}
	case *pb.Value_GeoPointValue:
		p := value.GeoPointValue
		if !(p.GetLatitude() >= -90 && p.GetLatitude() <= 90 && p.GetLongitude() >= -180 && p.GetLongitude() <= 180) {
			return invalid("the property %q is no point: latitude in [-90, 90], longitude in [-180, 180]", name)
		}
	case *pb.Value_KeyValue:
		return checkPath(value.KeyValue.GetPath(), false)
	case *pb.Value_ArrayValue:
		switch {
		case inArray:
			return invalid("the property %q is an array of arrays", name)
		case v.ExcludeFromIndexes:
			return invalid("the property %q is an array that is excluded from indexes: its elements are to be", name)
		}
		for _, el := range value.ArrayValue.GetValues() {
			if err := checkValue(name, el, depth+1, true); err != nil {
				return err
			}
		}
	case *pb.Value_EntityValue:
		return checkNested(name+".", value.EntityValue.GetProperties(), depth+1)
	}
	return nil
}

// checkSize checks the size of a string or blob.
func checkSize(name string, size int, unindexed bool) error {
	limit := maxIndexedValue
	if unindexed {
		limit = maxPropertyValue
	}
	if size > limit {
		return invalid("The value of property %q is longer than %d bytes.", name, limit)
	}
	return nil
}

// countIndexed counts the values that are in the indexes.
func countIndexed(properties map[string]*pb.Value) int {
	n := 0
	for _, v := range properties {
		n += countIndexedOf(v)
	}
	return n
}

func countIndexedOf(v *pb.Value) int {
	switch value := v.GetValueType().(type) {
	case *pb.Value_ArrayValue:
		n := 0
		for _, el := range value.ArrayValue.GetValues() {
			n += countIndexedOf(el)
		}
		return n
	case *pb.Value_EntityValue:
		if v.ExcludeFromIndexes {
			return 0
		}
		return countIndexed(value.EntityValue.GetProperties())
	}
	if v.GetExcludeFromIndexes() {
		return 0
	}
	return 1
}

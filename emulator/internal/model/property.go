package model

import (
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Limits of properties, from the limits page of Datastore.
const (
	maxIndexedValue  = 1500    // the maximum size of an indexed string or blob in bytes
	maxPropertyValue = 1048487 // the maximum size of a string or blob that is not indexed, in bytes
	maxDepth         = 20      // the maximum depth of nested entities and arrays
)

// ProjectionMeaning is the meaning of a value that comes from a projection.
const ProjectionMeaning = 18

// The bounds of timestamps: 0001-01-01T00:00:00Z and 9999-12-31T23:59:59.999999Z.
const (
	minSeconds = -62135596800
	maxSeconds = 253402300799
)

// CheckProperties checks an entity's properties. It rounds times down to the microseconds that
// Datastore stores. It adds the database to keys among the values that lack it.
func (db Database) CheckProperties(properties map[string]*pb.Value) error {
	return db.checkNested("", properties, 0)
}

func (db Database) checkNested(prefix string, properties map[string]*pb.Value, depth int) error {
	for name, v := range properties {
		if err := checkName("property.name", name); err != nil {
			return err
		}
		if err := db.CheckValue(prefix+name, v, depth, false); err != nil {
			return err
		}
	}
	return nil
}

// CheckValue checks a value of the property name. The depth is the number of entities and arrays
// that contain the value. The caller sets inArray if it is an element of an array, which can't
// contain arrays.
func (db Database) CheckValue(name string, v *pb.Value, depth int, inArray bool) error {
	if depth > maxDepth {
		return Invalid("the property %.100q is inside more than %d entities and arrays", name, maxDepth)
	}
	if err := checkMeaning(name, v); err != nil {
		return err
	}
	switch value := v.GetValueType().(type) {
	case nil:
		return Invalid("the property %q has no value", name)
	case *pb.Value_StringValue:
		return checkLength(name, len(value.StringValue), v.ExcludeFromIndexes)
	case *pb.Value_BlobValue:
		return checkLength(name, len(value.BlobValue), v.ExcludeFromIndexes)
	case *pb.Value_TimestampValue:
		if !isTime(value.TimestampValue) {
			return Invalid("the property %q is no time between the years 1 and 9999", name)
		}
		t := value.TimestampValue.AsTime().Truncate(time.Microsecond)
		v.ValueType = &pb.Value_TimestampValue{TimestampValue: timestamppb.New(t)}
	case *pb.Value_GeoPointValue:
		if !isPoint(value.GeoPointValue) {
			return Invalid("the property %q is no point: latitude in [-90, 90], longitude in [-180, 180]", name)
		}
	case *pb.Value_KeyValue:
		key, err := db.ValueKey(value.KeyValue)
		if err != nil {
			return err
		}
		v.ValueType = &pb.Value_KeyValue{KeyValue: key}
	case *pb.Value_ArrayValue:
		switch {
		case inArray:
			return Invalid("the property %q is an array of arrays", name)
		case v.ExcludeFromIndexes && v.Meaning != vectorMeaning:
			return Invalid("the property %q is an array that is excluded from indexes: its elements are to be", name)
		}
		for _, el := range value.ArrayValue.GetValues() {
			if err := db.CheckValue(name, el, depth+1, true); err != nil {
				return err
			}
		}
	case *pb.Value_EntityValue:
		if err := db.checkNestedKey(value.EntityValue.GetKey()); err != nil {
			return err
		}
		return db.checkNested(name+".", value.EntityValue.GetProperties(), depth+1)
	}
	return nil
}

func isTime(t *timestamppb.Timestamp) bool {
	return t.CheckValid() == nil && t.Seconds >= minSeconds && t.Seconds <= maxSeconds
}

func isPoint(p *latlng.LatLng) bool {
	return p.GetLatitude() >= -90 && p.GetLatitude() <= 90 && p.GetLongitude() >= -180 && p.GetLongitude() <= 180
}

// checkLength returns an error if a string or blob of a property is too long. The size is in bytes.
// The limit is higher if the value is unindexed.
func checkLength(name string, size int, unindexed bool) error {
	limit := maxIndexedValue
	if unindexed {
		limit = maxPropertyValue
	}
	if size > limit {
		return Invalid("The value of property %q is longer than %d bytes.", name, limit)
	}
	return nil
}

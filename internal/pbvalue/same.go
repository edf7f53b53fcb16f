package pbvalue

import (
	"maps"
	"math"
	"slices"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/protobuf/proto"
)

// Same reports whether two values are equal bit for bit. It distinguishes 0 from -0, unlike
// proto.Equal.
func Same(a, b *pb.Value) bool {
	switch x := a.GetValueType().(type) {
	case *pb.Value_IntegerValue: // for integers and strings, proto.Equal is correct, but slow
		y, ok := b.GetValueType().(*pb.Value_IntegerValue)
		return ok && x.IntegerValue == y.IntegerValue && sameAround(a, b)
	case *pb.Value_StringValue:
		y, ok := b.GetValueType().(*pb.Value_StringValue)
		return ok && x.StringValue == y.StringValue && sameAround(a, b)
	case *pb.Value_DoubleValue:
		y, ok := b.GetValueType().(*pb.Value_DoubleValue)
		return ok && sameFloat(x.DoubleValue, y.DoubleValue) && sameAround(a, b)
	case *pb.Value_GeoPointValue:
		y, ok := b.GetValueType().(*pb.Value_GeoPointValue)
		return ok && samePoint(x.GeoPointValue, y.GeoPointValue) && sameAround(a, b)
	case *pb.Value_ArrayValue:
		y, ok := b.GetValueType().(*pb.Value_ArrayValue)
		return ok && slices.EqualFunc(x.ArrayValue.GetValues(), y.ArrayValue.GetValues(), Same) && sameAround(a, b)
	case *pb.Value_EntityValue:
		y, ok := b.GetValueType().(*pb.Value_EntityValue)
		return ok && SameEntity(x.EntityValue, y.EntityValue) && sameAround(a, b)
	}
	return proto.Equal(a, b)
}

// SameEntity reports whether two entities have equal keys and, by [Same], equal properties. A nil
// entity equals only nil.
func SameEntity(a, b *pb.Entity) bool {
	return (a == nil) == (b == nil) && proto.Equal(a.GetKey(), b.GetKey()) &&
		maps.EqualFunc(a.GetProperties(), b.GetProperties(), Same)
}

// sameAround reports whether two values have the same meaning and the same index flag.
func sameAround(a, b *pb.Value) bool {
	return a.GetMeaning() == b.GetMeaning() && a.GetExcludeFromIndexes() == b.GetExcludeFromIndexes()
}

func sameFloat(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }

func samePoint(a, b *latlng.LatLng) bool {
	return sameFloat(a.GetLatitude(), b.GetLatitude()) && sameFloat(a.GetLongitude(), b.GetLongitude())
}

// Clone returns a copy of an entity, bit for bit. proto.CloneOf alone would turn -0 into 0 in a
// geographical point. So Clone also copies the numbers of points.
func Clone(e *pb.Entity) *pb.Entity {
	clone := proto.CloneOf(e)
	restorePoints(e, clone)
	return clone
}

// CloneValue returns a copy of a value, bit for bit: see [Clone].
func CloneValue(v *pb.Value) *pb.Value {
	clone := proto.CloneOf(v)
	restorePoint(v, clone)
	return clone
}

func restorePoints(from, to *pb.Entity) {
	for name, v := range from.GetProperties() {
		restorePoint(v, to.Properties[name])
	}
}

func restorePoint(from, to *pb.Value) {
	switch x := from.GetValueType().(type) {
	case *pb.Value_GeoPointValue:
		if p := to.GetGeoPointValue(); p != nil {
			p.Latitude, p.Longitude = x.GeoPointValue.GetLatitude(), x.GeoPointValue.GetLongitude()
		}
	case *pb.Value_EntityValue:
		restorePoints(x.EntityValue, to.GetEntityValue())
	case *pb.Value_ArrayValue:
		for i, el := range x.ArrayValue.GetValues() {
			restorePoint(el, to.GetArrayValue().GetValues()[i])
		}
	}
}

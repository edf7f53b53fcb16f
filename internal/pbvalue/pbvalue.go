// Package pbvalue converts entities between messages of the Datastore API and the Go client's form.
// The client does not export its own conversion.
//
// The client's form has no place for some data: meanings, the index flags of an array's elements,
// and the projects of keys. So [Go] may lose data. [Of] loses none.
package pbvalue

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/scattermap/scattermap/internal/pbkey"
)

// keyField is the name of the property in which the client keeps the key of a nested struct.
const keyField = "__key__"

// Properties returns an entity's properties in the client's form, sorted by name. They share no
// memory with the entity.
func Properties(e *pb.Entity) []datastore.Property { return Some(e, nil) }

// Some returns an entity's properties in the client's form. If wanted is not nil, Some leaves out
// properties for whose name it returns false.
func Some(e *pb.Entity, wanted func(name string) bool) []datastore.Property {
	var all []datastore.Property
	if wanted == nil {
		all = make([]datastore.Property, 0, len(e.GetProperties()))
	}
	for name, v := range e.GetProperties() {
		if wanted == nil || wanted(name) {
			all = append(all, Property(name, v))
		}
	}
	slices.SortFunc(all, func(a, b datastore.Property) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Property converts a property to the client's form. An array gets the index flag of its first
// element.
func Property(name string, v *pb.Value) datastore.Property {
	p := datastore.Property{Name: name, Value: Go(v), NoIndex: v.GetExcludeFromIndexes()}
	if elements := v.GetArrayValue().GetValues(); len(elements) > 0 {
		p.NoIndex = elements[0].GetExcludeFromIndexes()
	}
	return p
}

// Go converts a value to the client's form.
func Go(v *pb.Value) any {
	switch x := v.GetValueType().(type) {
	case *pb.Value_BooleanValue:
		return x.BooleanValue
	case *pb.Value_IntegerValue:
		return x.IntegerValue
	case *pb.Value_DoubleValue:
		return x.DoubleValue
	case *pb.Value_StringValue:
		return x.StringValue
	case *pb.Value_BlobValue:
		return slices.Clone(x.BlobValue)
	case *pb.Value_TimestampValue:
		return time.Unix(x.TimestampValue.GetSeconds(), int64(x.TimestampValue.GetNanos())).UTC()
	case *pb.Value_GeoPointValue:
		return datastore.GeoPoint{Lat: x.GeoPointValue.GetLatitude(), Lng: x.GeoPointValue.GetLongitude()}
	case *pb.Value_KeyValue:
		return pbkey.Of(x.KeyValue)
	case *pb.Value_EntityValue:
		return &datastore.Entity{Key: pbkey.Of(x.EntityValue.GetKey()), Properties: Properties(x.EntityValue)}
	case *pb.Value_ArrayValue:
		list := make([]any, len(x.ArrayValue.GetValues()))
		for i, el := range x.ArrayValue.GetValues() {
			list[i] = Go(el)
		}
		return list
	}
	return nil
}

// Entity returns the entity that the client's Put would store for a key and properties. If
// unindexed is set, no property is indexed, at any depth.
func Entity(key *datastore.Key, properties []datastore.Property, unindexed bool) (*pb.Entity, error) {
	e := &pb.Entity{Key: Key(key), Properties: make(map[string]*pb.Value, len(properties))}
	for _, p := range properties {
		if p.Name == keyField {
			continue // the client does not send the key as a property
		}
		if e.Properties[p.Name] != nil {
			return nil, fmt.Errorf("property %q is there twice", p.Name)
		}
		v, err := Of(p.Value, p.NoIndex || unindexed)
		if err != nil {
			return nil, fmt.Errorf("property %q: %w", p.Name, err)
		}
		e.Properties[p.Name] = v
	}
	return e, nil
}

// Key converts a key to the protocol's form, without project and database. The client adds these
// when it sends the key.
func Key(k *datastore.Key) *pb.Key {
	if k == nil {
		return nil
	}
	all := new(pb.Key)
	if k.Namespace != "" {
		all.PartitionId = &pb.PartitionId{NamespaceId: k.Namespace}
	}
	for ; k != nil; k = k.Parent {
		e := &pb.Key_PathElement{Kind: k.Kind}
		switch {
		case k.Name != "":
			e.IdType = &pb.Key_PathElement_Name{Name: k.Name}
		case k.ID != 0:
			e.IdType = &pb.Key_PathElement_Id{Id: k.ID}
		}
		all.Path = append(all.Path, e)
	}
	slices.Reverse(all.Path)
	return all
}

// LongestIndexed is the maximum length of an indexed string or blob, in bytes. It is from the page
// on Datastore's limits.
const LongestIndexed = 1500

// The protocol allows times from first on and before last.
var first, last = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)

// Errors about values that Datastore can't store.
var (
	errTooLong = fmt.Errorf("a text or blob has more than %d bytes, and is indexed", LongestIndexed)
	errUTF8    = errors.New("a text is not valid UTF-8")
	errTime    = errors.New("a time is not in the years 1 to 9999")
	errPoint   = errors.New("a geographical point is off the map")
)

// Of returns the value that the client's Put would store for a Go value. It returns an error for a
// value that the client or the database refuses.
func Of(value any, noIndex bool) (*pb.Value, error) {
	v := &pb.Value{ExcludeFromIndexes: noIndex}
	switch x := value.(type) {
	case nil, bool, int, int32, int64, float32, float64:
		return ofPlain(x, noIndex), nil
	case string:
		if err := checkText(x, noIndex); err != nil {
			return nil, err
		}
		v.ValueType = &pb.Value_StringValue{StringValue: x}
	case []byte:
		if len(x) > LongestIndexed && !noIndex {
			return nil, errTooLong
		}
		v.ValueType = &pb.Value_BlobValue{BlobValue: slices.Clone(x)}
	case time.Time:
		if x.Before(first) || !x.Before(last) {
			return nil, errTime
		}
		micros := int32(x.Nanosecond()) / 1000 * 1000 // the database stores microseconds
		v.ValueType = &pb.Value_TimestampValue{TimestampValue: &timestamppb.Timestamp{Seconds: x.Unix(), Nanos: micros}}
	case datastore.GeoPoint:
		if !x.Valid() {
			return nil, errPoint
		}
		v.ValueType = &pb.Value_GeoPointValue{GeoPointValue: &latlng.LatLng{Latitude: x.Lat, Longitude: x.Lng}}
	case *datastore.Key:
		if x == nil {
			return Of(nil, noIndex)
		}
		v.ValueType = &pb.Value_KeyValue{KeyValue: Key(x)}
	case *datastore.Entity:
		if x == nil {
			return Of(nil, noIndex)
		}
		inner, err := Entity(x.Key, x.Properties, noIndex)
		if err != nil {
			return nil, err
		}
		v.ValueType = &pb.Value_EntityValue{EntityValue: inner}
	case []any:
		return ofList(x, noIndex)
	default:
		return ofPointer(value, noIndex)
	}
	return v, nil
}

// ofPlain converts a value of a simple type, such as a number or a text, to the protocol's form.
func ofPlain(value any, noIndex bool) *pb.Value {
	v := &pb.Value{ExcludeFromIndexes: noIndex}
	switch x := value.(type) {
	case nil:
		v.ValueType = &pb.Value_NullValue{NullValue: structpb.NullValue_NULL_VALUE}
	case bool:
		v.ValueType = &pb.Value_BooleanValue{BooleanValue: x}
	case int:
		v.ValueType = &pb.Value_IntegerValue{IntegerValue: int64(x)}
	case int32:
		v.ValueType = &pb.Value_IntegerValue{IntegerValue: int64(x)}
	case int64:
		v.ValueType = &pb.Value_IntegerValue{IntegerValue: x}
	case float32:
		v.ValueType = &pb.Value_DoubleValue{DoubleValue: float64(x)}
	case float64:
		v.ValueType = &pb.Value_DoubleValue{DoubleValue: x}
	}
	return v
}

func checkText(text string, noIndex bool) error {
	switch {
	case len(text) > LongestIndexed && !noIndex:
		return errTooLong
	case !utf8.ValidString(text):
		return errUTF8
	}
	return nil
}

// ofList converts an array to a message of the Datastore API. The index flag is set in the
// elements, and not in the array.
func ofList(all []any, noIndex bool) (*pb.Value, error) {
	list := make([]*pb.Value, len(all))
	for i, one := range all {
		var err error
		if list[i], err = Of(one, noIndex); err != nil {
			return nil, fmt.Errorf("at index %d: %w", i, err)
		}
	}
	return &pb.Value{ValueType: &pb.Value_ArrayValue{ArrayValue: &pb.ArrayValue{Values: list}}}, nil
}

// ofPointer converts the value that a pointer points to. If the value is no pointer, no property
// can have its type, and ofPointer returns an error that says so.
func ofPointer(value any, noIndex bool) (*pb.Value, error) {
	p := reflect.ValueOf(value)
	switch {
	case p.Kind() != reflect.Pointer:
		return nil, fmt.Errorf("a value of the type %T, which no property can have: it can have a bool, int64, "+
			"float64, string, []byte, time.Time, datastore.GeoPoint, *datastore.Key, *datastore.Entity, or an "+
			"[]any of these", value)
	case p.IsNil():
		return Of(nil, noIndex)
	}
	return Of(p.Elem().Interface(), noIndex)
}

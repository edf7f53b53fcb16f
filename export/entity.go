package export

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"gocloud.dev/blob"
	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/scattermap/scattermap/internal/pbkey"
	"github.com/scattermap/scattermap/mapper"
)

// An Entity is an entity as it is. In JSON it is that of Datastore's REST API
// (https://cloud.google.com/datastore/docs/reference/data/rest/v1/Entity), which has the type of each value: so keys, times, blobs,
// geographical points, entities inside, lists, nulls, and which values are not indexed, survive a round trip. The key has no
// project and no database.
type Entity struct {
	Key        *datastore.Key
	Properties datastore.PropertyList
}

// A Row is an entity as it is, in formats whose records have fields: the key, as datastore.Key.Encode has it, and the JSON of
// [Entity].
type Row struct {
	Key    string `json:"key" csv:"key" avro:"key" parquet:"key"`
	Entity string `json:"entity" csv:"entity" avro:"entity" parquet:"entity"`
}

// NewEntities defines an export of entities as they are: as an [Entity] in [JSONLines] and [JSON], and as a [Row] in other formats.
func NewEntities(name string, bucket *blob.Bucket, o *Options) *Export[mapper.None] {
	if o == nil || o.Format == JSONLines || o.Format == JSON || o.Format == "" {
		return New(name, bucket, func(_ context.Context, e *mapper.Entity[datastore.PropertyList], _ mapper.None) (Entity, error) {
			return Entity{e.Key, e.Value}, nil
		}, o)
	}
	return New(name, bucket, func(_ context.Context, e *mapper.Entity[datastore.PropertyList], _ mapper.None) (Row, error) {
		text, err := Entity{e.Key, e.Value}.MarshalJSON()
		if err != nil {
			return Row{}, mapper.Permanent(err)
		}
		return Row{e.Key.Encode(), string(text)}, nil
	}, o)
}

// MarshalJSON returns the JSON of Datastore's REST API.
func (e Entity) MarshalJSON() ([]byte, error) {
	p, err := toProto(e.Key, e.Properties)
	if err != nil {
		return nil, err
	}
	text, err := protojson.Marshal(p)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer // protojson varies its blanks, so that nobody relies on them
	err = json.Compact(&b, text)
	return b.Bytes(), err
}

// UnmarshalJSON reads what MarshalJSON has returned.
func (e *Entity) UnmarshalJSON(text []byte) error {
	p := new(pb.Entity)
	if err := protojson.Unmarshal(text, p); err != nil {
		return err
	}
	var err error
	e.Key, e.Properties, err = fromProto(p)
	return err
}

func toProto(key *datastore.Key, properties []datastore.Property) (*pb.Entity, error) {
	e := &pb.Entity{Key: keyToProto(key), Properties: make(map[string]*pb.Value, len(properties))}
	for _, p := range properties {
		v, err := valueToProto(p.Value, p.NoIndex)
		if err != nil {
			return nil, fmt.Errorf("property %q: %w", p.Name, err)
		}
		e.Properties[p.Name] = v
	}
	return e, nil
}

func keyToProto(k *datastore.Key) *pb.Key {
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
		all.Path = append([]*pb.Key_PathElement{e}, all.Path...)
	}
	return all
}

func valueToProto(value any, noIndex bool) (*pb.Value, error) {
	v := &pb.Value{ExcludeFromIndexes: noIndex}
	switch x := value.(type) {
	case nil:
		v.ValueType = &pb.Value_NullValue{NullValue: structpb.NullValue_NULL_VALUE}
	case bool:
		v.ValueType = &pb.Value_BooleanValue{BooleanValue: x}
	case int64:
		v.ValueType = &pb.Value_IntegerValue{IntegerValue: x}
	case float64:
		v.ValueType = &pb.Value_DoubleValue{DoubleValue: x}
	case string:
		v.ValueType = &pb.Value_StringValue{StringValue: x}
	case []byte:
		v.ValueType = &pb.Value_BlobValue{BlobValue: x}
	case time.Time:
		v.ValueType = &pb.Value_TimestampValue{TimestampValue: timestamppb.New(x)}
	case datastore.GeoPoint:
		v.ValueType = &pb.Value_GeoPointValue{GeoPointValue: &latlng.LatLng{Latitude: x.Lat, Longitude: x.Lng}}
	case *datastore.Key:
		v.ValueType = &pb.Value_KeyValue{KeyValue: keyToProto(x)}
	case *datastore.Entity:
		inner, err := toProto(x.Key, x.Properties)
		if err != nil {
			return nil, err
		}
		v.ValueType = &pb.Value_EntityValue{EntityValue: inner}
	case []any:
		list := new(pb.ArrayValue)
		for _, one := range x { // an array has no index of its own: its elements do
			e, err := valueToProto(one, noIndex)
			if err != nil {
				return nil, err
			}
			list.Values = append(list.Values, e)
		}
		v.ValueType, v.ExcludeFromIndexes = &pb.Value_ArrayValue{ArrayValue: list}, noIndex && len(x) == 0
	default:
		return nil, fmt.Errorf("a value of the type %T", value)
	}
	return v, nil
}

func fromProto(e *pb.Entity) (*datastore.Key, datastore.PropertyList, error) {
	var all datastore.PropertyList
	for name, v := range e.GetProperties() {
		value, noIndex, err := valueFromProto(v)
		if err != nil {
			return nil, nil, fmt.Errorf("property %q: %w", name, err)
		}
		all = append(all, datastore.Property{Name: name, Value: value, NoIndex: noIndex})
	}
	return pbkey.Of(e.GetKey()), all, nil
}

func valueFromProto(v *pb.Value) (value any, noIndex bool, err error) {
	noIndex = v.GetExcludeFromIndexes()
	switch x := v.GetValueType().(type) {
	case *pb.Value_NullValue:
		return nil, noIndex, nil
	case *pb.Value_BooleanValue:
		return x.BooleanValue, noIndex, nil
	case *pb.Value_IntegerValue:
		return x.IntegerValue, noIndex, nil
	case *pb.Value_DoubleValue:
		return x.DoubleValue, noIndex, nil
	case *pb.Value_StringValue:
		return x.StringValue, noIndex, nil
	case *pb.Value_BlobValue:
		return x.BlobValue, noIndex, nil
	case *pb.Value_TimestampValue:
		return x.TimestampValue.AsTime(), noIndex, nil
	case *pb.Value_GeoPointValue:
		return datastore.GeoPoint{Lat: x.GeoPointValue.GetLatitude(), Lng: x.GeoPointValue.GetLongitude()}, noIndex, nil
	case *pb.Value_KeyValue:
		return pbkey.Of(x.KeyValue), noIndex, nil
	case *pb.Value_EntityValue:
		key, properties, err := fromProto(x.EntityValue)
		return &datastore.Entity{Key: key, Properties: properties}, noIndex, err
	case *pb.Value_ArrayValue:
		list := make([]any, 0, len(x.ArrayValue.GetValues()))
		for _, e := range x.ArrayValue.GetValues() {
			one, without, err := valueFromProto(e)
			if err != nil {
				return nil, false, err
			}
			noIndex = noIndex || without
			list = append(list, one)
		}
		return list, noIndex, nil
	}
	return nil, false, fmt.Errorf("a value of the type %T", v.GetValueType())
}

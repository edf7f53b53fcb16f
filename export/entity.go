package export

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"gocloud.dev/blob"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/scattermap/scattermap/internal/pbkey"
	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/mapper"
)

// An Entity is an entity as it is. In JSON it is that of Datastore's REST API
// (https://cloud.google.com/datastore/docs/reference/data/rest/v1/Entity), which has the type of each value: so keys, times, blobs,
// geographical points, entities inside, lists, nulls, meanings, and which values are not indexed, survive a round trip. The
// key has no project and no database, nor has a reference within those of the entity.
type Entity struct {
	Key        *datastore.Key
	Properties datastore.PropertyList // as the Go client has them

	// Stored is the entity as the database has it, in the protocol's form. JSON has that, if it is not nil, and
	// otherwise what the client's Put of Key and Properties stores.
	Stored *pb.Entity
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
		return New(name, bucket, func(_ context.Context, e *mapper.Entity[struct{}], _ mapper.None) (Entity, error) {
			return Entity{Key: e.Key, Stored: e.Stored()}, nil
		}, o)
	}
	return New(name, bucket, func(_ context.Context, e *mapper.Entity[struct{}], _ mapper.None) (Row, error) {
		text, err := Entity{Key: e.Key, Stored: e.Stored()}.MarshalJSON()
		if err != nil {
			return Row{}, mapper.Permanent(err)
		}
		return Row{e.Key.Encode(), string(text)}, nil
	}, o)
}

// MarshalJSON returns the JSON of Datastore's REST API.
func (e Entity) MarshalJSON() ([]byte, error) {
	p := e.Stored
	if p == nil {
		var err error
		if p, err = pbvalue.Entity(e.Key, e.Properties, false); err != nil {
			return nil, err
		}
	}
	text, err := protojson.Marshal(exported(p))
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
	e.Stored = p
	return err
}

// exported returns what is written of an entity. The project and the database are the reader's, also in references that
// are to the entity's own; others keep theirs.
func exported(e *pb.Entity) *pb.Entity {
	e = pbvalue.Clone(e)
	home := e.GetKey().GetPartitionId()
	eachKey(e, func(k *pb.Key) {
		if of := k.GetPartitionId(); of.GetProjectId() == home.GetProjectId() && of.GetDatabaseId() == home.GetDatabaseId() {
			if k.PartitionId = nil; of.GetNamespaceId() != "" {
				k.PartitionId = &pb.PartitionId{NamespaceId: of.GetNamespaceId()}
			}
		}
	})
	return e
}

// eachKey calls f for all keys of an entity, its own last.
func eachKey(e *pb.Entity, f func(*pb.Key)) {
	for _, v := range e.GetProperties() {
		eachKeyIn(v, f)
	}
	if e.GetKey() != nil {
		f(e.Key)
	}
}

func eachKeyIn(v *pb.Value, f func(*pb.Key)) {
	switch v := v.GetValueType().(type) {
	case *pb.Value_KeyValue:
		f(v.KeyValue)
	case *pb.Value_EntityValue:
		eachKey(v.EntityValue, f)
	case *pb.Value_ArrayValue:
		for _, el := range v.ArrayValue.GetValues() {
			eachKeyIn(el, f)
		}
	}
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

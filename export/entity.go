package export

import (
	"bytes"
	"context"
	"encoding/json"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"gocloud.dev/blob"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/scattermap/scattermap/internal/pbkey"
	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/mapper"
)

// An Entity is a whole stored entity. Its JSON is the entity of Datastore's REST API
// (https://cloud.google.com/datastore/docs/reference/data/rest/v1/Entity), which names the type of
// each value. So everything survives a round trip: keys, times, blobs, geographical points,
// embedded entities, lists, nulls, meanings, and index flags. Its key, and references to the same
// database, lack only the project and the database.
type Entity struct {
	Key        *datastore.Key
	Properties datastore.PropertyList // the properties as the Go client loads them

	// Stored is the entity in the protocol's form, as stored. If it is set, MarshalJSON writes it.
	// Otherwise MarshalJSON writes what the client's Put of Key and Properties would store.
	Stored *pb.Entity
}

// A Row is a whole entity as a record with two fields, for formats with columns. Key is the text of
// datastore.Key.Encode, and Entity is the JSON of an [Entity].
type Row struct {
	Key    string `json:"key" csv:"key" avro:"key" parquet:"key"`
	Entity string `json:"entity" csv:"entity" avro:"entity" parquet:"entity"`
}

// NewEntities defines an export of whole entities. Records are of the type [Entity] in JSONLines
// and JSON, and [Row] in the other formats. The rest is as for [New].
func NewEntities(name string, bucket *blob.Bucket, o *Options) (*Export[mapper.NoParams], error) {
	entity := func(_ context.Context, e *mapper.Entity[struct{}], _ mapper.NoParams) (Entity, error) {
		return Entity{Key: e.Key, Stored: e.Stored()}, nil
	}
	row := func(_ context.Context, e *mapper.Entity[struct{}], _ mapper.NoParams) (Row, error) {
		text, err := Entity{Key: e.Key, Stored: e.Stored()}.MarshalJSON()
		return Row{e.Key.Encode(), string(text)}, err
	}
	var x *Export[mapper.NoParams]
	var err error
	if o == nil || o.Format == JSONLines || o.Format == JSON || o.Format == "" {
		x, err = New(name, bucket, entity, o)
	} else {
		x, err = New(name, bucket, row, o)
	}
	if err == nil {
		x.whole = true
	}
	return x, err
}

// MarshalJSON implements json.Marshaler.
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
	var b bytes.Buffer // compact the JSON, because protojson varies its spaces on purpose
	err = json.Compact(&b, text)
	return b.Bytes(), err
}

// UnmarshalJSON implements json.Unmarshaler. It reads what MarshalJSON writes.
func (e *Entity) UnmarshalJSON(text []byte) error {
	p := new(pb.Entity)
	if err := protojson.Unmarshal(text, p); err != nil {
		return err
	}
	e.Key, e.Properties, e.Stored = pbkey.Of(p.GetKey()), pbvalue.Properties(p), p
	return nil
}

// exported returns a copy of an entity without the project and the database in its key. It also
// removes them from keys in its properties, except from keys of other databases.
func exported(e *pb.Entity) *pb.Entity {
	e = pbvalue.Clone(e)
	home := e.GetKey().GetPartitionId()
	eachKey(e, func(k *pb.Key) {
		if of := k.GetPartitionId(); of.GetProjectId() == home.GetProjectId() &&
			of.GetDatabaseId() == home.GetDatabaseId() {
			if k.PartitionId = nil; of.GetNamespaceId() != "" {
				k.PartitionId = &pb.PartitionId{NamespaceId: of.GetNamespaceId()}
			}
		}
	})
	return e
}

// eachKey calls f for all keys in an entity. The entity's own key comes last.
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

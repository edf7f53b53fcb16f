// Package anyentity makes random entities for tests. Their values have all forms that messages of
// the Datastore API can express.
package anyentity

import (
	"math"
	"math/rand/v2"
	"strings"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Names has the property names of random entities. Some are unusual, such as a name with a dot.
var Names = []string{
	"p", "q", "Name", "ü", "日本", "emoji😀", "with space", "a.b", "a", "dot.", "`q`", "b`c", `back\slash`, `"quoted"`,
	"n\nl", "'", "0", "-", "N.N",
}

// New returns a random entity with up to twelve properties, whose names are in [Names]. A caller
// may add properties. If plain is set, the entity has only values that Google's emulators accept.
func New(rng *rand.Rand, key *pb.Key, plain bool) *pb.Entity {
	g := generator{rng, key, plain}
	return &pb.Entity{Key: key, Properties: g.properties(0)}
}

// Value returns a random value of a property of the entity with this key. If plain is set, it is a
// value that Google's emulators accept.
func Value(rng *rand.Rand, key *pb.Key, plain bool) *pb.Value {
	return generator{rng, key, plain}.value(0)
}

type generator struct {
	*rand.Rand
	own   *pb.Key
	plain bool
}

func (g generator) properties(depth int) map[string]*pb.Value {
	all := make(map[string]*pb.Value)
	for range g.IntN(12 >> depth) {
		all[Names[g.IntN(len(Names))]] = g.value(depth)
	}
	return all
}

// value returns a random value. The depth is the number of entities that contain the value.
func (g generator) value(depth int) *pb.Value {
	if g.IntN(5) == 0 {
		list := new(pb.ArrayValue)
		for range g.IntN(5) {
			list.Values = append(list.Values, g.element(depth))
		}
		return &pb.Value{ValueType: &pb.Value_ArrayValue{ArrayValue: list}}
	}
	return g.element(depth)
}

// element returns a random value that is not an array, so that an array can have it as an element.
func (g generator) element(depth int) *pb.Value {
	v := &pb.Value{ExcludeFromIndexes: g.IntN(3) == 0}
	kind := g.IntN(12)
	if depth >= 3 && kind >= 10 {
		kind = g.IntN(10)
	}
	switch kind {
	case 0:
		v.ValueType = &pb.Value_NullValue{}
	case 1:
		v.ValueType = &pb.Value_BooleanValue{BooleanValue: g.IntN(2) == 0}
	case 2:
		v.ValueType = &pb.Value_IntegerValue{IntegerValue: pick[int64](g, 0, 1, -1, math.MaxInt64, math.MinInt64,
			1<<53+1)}
	case 3:
		v.ValueType = &pb.Value_DoubleValue{DoubleValue: pick(g, 0, math.Copysign(0, -1), 1.5, math.NaN(), math.Inf(1),
			math.Inf(-1), 1)}
	case 4:
		t := pick(g, time.Unix(0, 0), time.Unix(-1, 999999000), time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC),
			time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC), time.UnixMicro(g.Int64N(1e15)))
		v.ValueType = &pb.Value_TimestampValue{TimestampValue: timestamppb.New(t)}
	case 5:
		v.ValueType = &pb.Value_KeyValue{KeyValue: g.key()}
	case 6:
		text := pick(g, "", "s", "ü😀\x00", "s", strings.Repeat("x", 1500), strings.Repeat("é", 1200))
		v.ExcludeFromIndexes = v.ExcludeFromIndexes || len(text) > 1500
		v.ValueType = &pb.Value_StringValue{StringValue: text}
	case 7:
		blob := pick(g, nil, []byte{0, 255}, []byte("s"), make([]byte, 2000))
		v.ExcludeFromIndexes = v.ExcludeFromIndexes || len(blob) > 1500
		v.ValueType = &pb.Value_BlobValue{BlobValue: blob}
		if g.IntN(2) == 0 && !g.plain {
			v.Meaning, v.ExcludeFromIndexes = 22, true // a compressed property of NDB
		}
	case 8, 9:
		v.ValueType = &pb.Value_GeoPointValue{GeoPointValue: &latlng.LatLng{
			Latitude:  pick(g, 0, -90, 47.25, math.Copysign(0, -1)),
			Longitude: pick(g, 180, 0, -11.5, math.Copysign(0, -1))}}
	default:
		if g.IntN(4) == 0 && !g.plain {
			v.Meaning, v.ValueType = 20, user() // a user of App Engine
			break
		}
		inner := &pb.Entity{Properties: g.properties(depth + 1)}
		if g.IntN(3) == 0 {
			inner.Key = g.key()
		}
		v.ValueType = &pb.Value_EntityValue{EntityValue: inner}
	}
	return v
}

func user() *pb.Value_EntityValue {
	text := func(s string) *pb.Value {
		return &pb.Value{ValueType: &pb.Value_StringValue{StringValue: s}, ExcludeFromIndexes: true}
	}
	return &pb.Value_EntityValue{EntityValue: &pb.Entity{Properties: map[string]*pb.Value{
		"email": text("ü@example.com"), "auth_domain": text("example.com"), "user_id": text("7"),
	}}}
}

// key returns a random key, either of the entity's own project or of another one.
func (g generator) key() *pb.Key {
	of := g.own.GetPartitionId()
	k := &pb.Key{PartitionId: &pb.PartitionId{ProjectId: of.GetProjectId(), DatabaseId: of.GetDatabaseId()}}
	k.PartitionId.NamespaceId = pick(g, "", of.GetNamespaceId(), "elsewhere")
	if g.IntN(4) == 0 && !g.plain {
		k.PartitionId.ProjectId, k.PartitionId.DatabaseId = "another-project", pick(g, "", "another-database")
	}
	for range 1 + g.IntN(3) {
		e := &pb.Key_PathElement{Kind: pick(g, "Thing", "日本", "a.b"),
			IdType: &pb.Key_PathElement_Id{Id: pick[int64](g, 7, math.MaxInt64)}}
		if g.IntN(2) == 0 {
			e.IdType = &pb.Key_PathElement_Name{Name: pick(g, "7", "ü", "a/b", "x\"y")}
		}
		k.Path = append(k.Path, e)
	}
	return k
}

func pick[T any](g generator, all ...T) T { return all[g.IntN(len(all))] }

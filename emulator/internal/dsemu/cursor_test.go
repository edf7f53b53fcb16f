package dsemu

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/scattermap/scattermap/emulator/internal/entity"
	"github.com/scattermap/scattermap/emulator/internal/meter"
)

// TestCursorsOfAllValues takes the cursor of each result of a query by values of all types. From
// there, or up to there, it runs the same query and the reversed query.
func TestCursorsOfAllValues(t *testing.T) {
	s := NewServer(Options{Scatter: 2, Batch: 1000, Retention: time.Hour}, new(meter.Meter))
	deep := testKey("\x00\x01")
	deep.Path = append(deep.Path, &pb.Key_PathElement{Kind: "\x00", IdType: &pb.Key_PathElement_Id{Id: -1}})
	double := func(f float64) *pb.Value { return &pb.Value{ValueType: &pb.Value_DoubleValue{DoubleValue: f}} }
	for i, v := range []*pb.Value{
		{ValueType: &pb.Value_NullValue{}}, entity.Integer(math.MinInt64), entity.Integer(1), entity.Integer(1),
		entity.Text(""), entity.Text("\x00"), entity.Text("a\x00\xc3\xbf"), entity.Text("a"), entity.Text("a"),
		double(math.NaN()), double(math.Inf(-1)), double(math.Copysign(0, -1)), double(0),
		{ValueType: &pb.Value_BooleanValue{}}, {ValueType: &pb.Value_BooleanValue{BooleanValue: true}},
		{ValueType: &pb.Value_BlobValue{BlobValue: []byte{0xFF, 0, 0xFF}}},
		{ValueType: &pb.Value_TimestampValue{TimestampValue: &timestamppb.Timestamp{Seconds: -1}}},
		{ValueType: &pb.Value_GeoPointValue{GeoPointValue: &latlng.LatLng{Latitude: -1, Longitude: 1}}},
		{ValueType: &pb.Value_KeyValue{KeyValue: testKey("k")}}, {ValueType: &pb.Value_KeyValue{KeyValue: deep}},
		entity.Array([]*pb.Value{entity.Text("z"), entity.Integer(7), entity.Text("\x00")}),
	} {
		key := testKey(fmt.Sprintf("%02d", i))
		if i%3 == 0 {
			key = &pb.Key{PartitionId: deep.PartitionId, Path: slices.Concat(deep.Path, key.Path)}
		}
		put := &pb.Entity{Key: key, Properties: map[string]*pb.Value{"v": v, "even": entity.Integer(int64(i % 2))}}
		if _, err := s.Commit(t.Context(), &pb.CommitRequest{ProjectId: "p", Mode: pb.CommitRequest_NON_TRANSACTIONAL,
			Mutations: []*pb.Mutation{{Operation: &pb.Mutation_Upsert{Upsert: put}}}}); err != nil {
			t.Fatal(err)
		}
	}
	run := func(q *pb.Query, start, end []byte) (names []string, cursors [][]byte) {
		q.StartCursor, q.EndCursor = start, end
		resp, err := s.RunQuery(t.Context(),
			&pb.RunQueryRequest{ProjectId: "p", QueryType: &pb.RunQueryRequest_Query{Query: q}})
		if err != nil {
			t.Fatal(err)
		}
		wire, err := proto.Marshal(resp) // the server keeps entities in wire form
		if err != nil || proto.Unmarshal(wire, resp) != nil {
			t.Fatal(err)
		}
		for _, r := range resp.Batch.EntityResults {
			path := r.Entity.Key.Path
			names = append(names, path[len(path)-1].GetName()+fmt.Sprint(r.Entity.Properties["v"]))
			cursors = append(cursors, r.Cursor)
		}
		return names, cursors
	}
	// A projection, so that each value of an array has a result of its own. In whole entities, an
	// array sorts by its least value, and in descending order by its greatest.
	query := func(orders ...*pb.PropertyOrder) *pb.Query {
		return &pb.Query{Kind: []*pb.KindExpression{{Name: "K"}}, Order: orders,
			Projection: []*pb.Projection{{Property: &pb.PropertyReference{Name: "v"}}}}
	}
	by := func(property string, descending bool) *pb.PropertyOrder {
		o := &pb.PropertyOrder{Property: &pb.PropertyReference{Name: property}}
		if descending {
			o.Direction = pb.PropertyOrder_DESCENDING
		}
		return o
	}
	for n := range 8 {
		a, b, c := n&1 > 0, n&2 > 0, n&4 > 0
		q := query(by("even", a), by("v", b), by("__key__", c))
		reversed := query(by("even", !a), by("v", !b), by("__key__", !c))
		all, cursors := run(q, nil, nil)
		if len(all) != 23 {
			t.Fatalf("%v: %d results", q.Order, len(all))
		}
		for i, cursor := range cursors {
			before, after := slices.Clone(all[:i+1]), slices.Clone(all[i+1:])
			if got, _ := run(q, cursor, nil); !slices.Equal(got, after) {
				t.Fatalf("%v from result %d: %q, want %q", q.Order, i, got, after)
			}
			if got, _ := run(q, nil, cursor); !slices.Equal(got, before) {
				t.Fatalf("%v to result %d: %q, want %q", q.Order, i, got, before)
			}
			slices.Reverse(before)
			slices.Reverse(after)
			if got, _ := run(reversed, cursor, nil); !slices.Equal(got, before) {
				t.Fatalf("%v from result %d of the reversed query: %q, want %q", reversed.Order, i, got, before)
			}
			if got, _ := run(reversed, nil, cursor); !slices.Equal(got, after) {
				t.Fatalf("%v to result %d of the reversed query: %q, want %q", reversed.Order, i, got, after)
			}
			for end := range cursor {
				q.StartCursor, q.EndCursor = cursor[:end], nil
				_, err := s.RunQuery(t.Context(),
					&pb.RunQueryRequest{ProjectId: "p", QueryType: &pb.RunQueryRequest_Query{Query: q}})
				if end > 0 && status.Code(err) != codes.InvalidArgument {
					t.Fatalf("%v from the first %d bytes of a cursor: %v", q.Order, end, err)
				}
			}
		}
	}
}

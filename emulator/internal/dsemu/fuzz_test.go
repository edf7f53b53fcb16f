package dsemu

import (
	"context"
	"testing"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/emulator/internal/entity"
	"github.com/scattermap/scattermap/emulator/internal/meter"
	"github.com/scattermap/scattermap/emulator/internal/query"
	_ "github.com/scattermap/scattermap/internal/testflag" // every test package below emulator/ must know its flags
)

func newTestServer(t testing.TB) *Server {
	t.Helper()
	s := NewServer(Options{Scatter: 2, Batch: 2, Retention: time.Hour}, new(meter.Meter))
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		entity := &pb.Entity{Key: testKey(name), Properties: map[string]*pb.Value{"n": entity.Integer(int64(len(name))),
			"m": entity.Array([]*pb.Value{entity.Integer(1), entity.Text(name)})}}
		if _, err := s.Commit(context.Background(), &pb.CommitRequest{
			ProjectId: "p", Mode: pb.CommitRequest_NON_TRANSACTIONAL,
			Mutations: []*pb.Mutation{{Operation: &pb.Mutation_Upsert{Upsert: entity}}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func testKey(name string) *pb.Key {
	path := []*pb.Key_PathElement{{Kind: "K", IdType: &pb.Key_PathElement_Name{Name: name}}}
	return &pb.Key{PartitionId: &pb.PartitionId{ProjectId: "p"}, Path: path}
}

func testFilter(property string, op pb.PropertyFilter_Operator, v *pb.Value) *pb.Filter {
	return &pb.Filter{
		FilterType: &pb.Filter_PropertyFilter{
			PropertyFilter: &pb.PropertyFilter{Property: &pb.PropertyReference{Name: property}, Op: op, Value: v}}}
}

// testQueries returns queries with every kind of filter, order and projection. The fuzz tests start
// from them.
func testQueries() []*pb.Query {
	kind := []*pb.KindExpression{{Name: "K"}}
	m := &pb.PropertyReference{Name: "m"}
	return []*pb.Query{
		{Kind: kind},
		{},
		{Kind: kind, Offset: 1, Order: []*pb.PropertyOrder{{Property: m, Direction: pb.PropertyOrder_DESCENDING}}},
		{Kind: kind, Filter: testFilter("n", pb.PropertyFilter_GREATER_THAN, entity.Integer(0))},
		{Kind: kind, Filter: testFilter("m", pb.PropertyFilter_IN,
			entity.Array([]*pb.Value{entity.Text("a"), entity.Integer(1)}))},
		{Kind: kind, Filter: testFilter("m", pb.PropertyFilter_NOT_EQUAL, entity.Text("a")),
			Order: []*pb.PropertyOrder{{Property: m}}},
		{Kind: kind, Filter: testFilter("__key__", pb.PropertyFilter_HAS_ANCESTOR,
			&pb.Value{ValueType: &pb.Value_KeyValue{KeyValue: testKey("a")}})},
		{Kind: kind, Projection: []*pb.Projection{{Property: m}}, DistinctOn: []*pb.PropertyReference{m}},
		{Kind: kind, Order: []*pb.PropertyOrder{{Property: &pb.PropertyReference{Name: query.ScatterProperty}}}},
		{Kind: []*pb.KindExpression{{Name: "__property__"}}},
		{Kind: kind,
			Filter: &pb.Filter{
				FilterType: &pb.Filter_CompositeFilter{CompositeFilter: &pb.CompositeFilter{Op: pb.CompositeFilter_OR,
					Filters: []*pb.Filter{
						testFilter("n", pb.PropertyFilter_EQUAL, entity.Integer(1)),
						testFilter("m", pb.PropertyFilter_LESS_THAN, entity.Text("c")),
					}}}}},
	}
}

// FuzzQuery sends arbitrary queries. It checks that none panics, and that small batches give the
// same results as one large batch.
func FuzzQuery(f *testing.F) {
	for _, q := range testQueries() {
		encoded, err := proto.Marshal(q)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(encoded)
	}
	s := newTestServer(f)
	f.Fuzz(func(t *testing.T, encoded []byte) {
		q := new(pb.Query)
		if proto.Unmarshal(encoded, q) != nil {
			return
		}
		q.Offset, q.Limit = 0, nil
		var pieces, whole []string
		for range 50 {
			resp, err := s.RunQuery(t.Context(),
				&pb.RunQueryRequest{ProjectId: "p", QueryType: &pb.RunQueryRequest_Query{Query: q}})
			if err != nil {
				return
			}
			for _, r := range resp.Batch.EntityResults {
				pieces = append(pieces, string(r.Cursor))
			}
			if resp.Batch.MoreResults != pb.QueryResultBatch_NOT_FINISHED {
				break
			}
			q.StartCursor = resp.Batch.EndCursor
		}
		q.StartCursor = nil
		db, err := s.database("p", "")
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := query.Parse(db.Database, query.Options{Scatter: db.opts.Scatter, Indexes: db.opts.Indexes}, nil,
			q)
		if err != nil {
			return // the server has removed the start cursor from the request
		}
		db.scanRows(parsed, db.lastCommit, func(r query.Row) bool {
			whole = append(whole, string(parsed.Cursor(r)))
			return true
		})
		if len(pieces) != len(whole) && len(pieces) > 0 && pieces[0] == whole[0] {
			t.Errorf("%d results in pieces, %d at once: %v", len(pieces), len(whole), q)
		}
	})
}

// FuzzRequests sends arbitrary requests to each method. None panics.
func FuzzRequests(f *testing.F) {
	for i, req := range []proto.Message{
		&pb.LookupRequest{ProjectId: "p", Keys: []*pb.Key{testKey("a")}},
		&pb.RunAggregationQueryRequest{ProjectId: "p",
			QueryType: &pb.RunAggregationQueryRequest_GqlQuery{
				GqlQuery: &pb.GqlQuery{QueryString: "SELECT COUNT(*) FROM K", AllowLiterals: true}}},
		&pb.BeginTransactionRequest{ProjectId: "p"},
		&pb.CommitRequest{ProjectId: "p", Mode: pb.CommitRequest_NON_TRANSACTIONAL, Mutations: []*pb.Mutation{{
			Operation: &pb.Mutation_Update{Update: &pb.Entity{Key: testKey("a"),
				Properties: map[string]*pb.Value{"n": entity.Integer(1)}}},
			PropertyMask: &pb.PropertyMask{Paths: []string{`n.a\.b`}},
			PropertyTransforms: []*pb.PropertyTransform{{Property: "n",
				TransformType: &pb.PropertyTransform_Increment{Increment: entity.Integer(1)}}},
		}}},
		&pb.RollbackRequest{ProjectId: "p", Transaction: []byte("x")},
		&pb.AllocateIdsRequest{ProjectId: "p", Keys: []*pb.Key{{Path: []*pb.Key_PathElement{{Kind: "K"}}}}},
		&pb.ReserveIdsRequest{ProjectId: "p",
			Keys: []*pb.Key{{Path: []*pb.Key_PathElement{{Kind: "K", IdType: &pb.Key_PathElement_Id{Id: 5}}}}}},
		&pb.RunQueryRequest{ProjectId: "p", QueryType: &pb.RunQueryRequest_Query{Query: &pb.Query{}},
			ExplainOptions: &pb.ExplainOptions{Analyze: true}, PropertyMask: &pb.PropertyMask{Paths: []string{"n"}}},
	} {
		encoded, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(i, encoded)
	}
	s := newTestServer(f)
	methods := [8]func(context.Context, []byte){
		method(s.Lookup), method(s.RunAggregationQuery), method(s.BeginTransaction), method(s.Commit),
		method(s.Rollback), method(s.AllocateIds), method(s.ReserveIds), method(s.RunQuery),
	}
	f.Fuzz(func(t *testing.T, i int, encoded []byte) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // cancelled, so that a commit that has to wait for a lock returns at once
		methods[i&7](ctx, encoded)
	})
}

// method wraps a method so that its request can be given in wire form. The result ignores requests
// that can't be decoded, and errors of the method.
func method[Q, R any, P interface {
	*Q
	proto.Message
}](call func(context.Context, P) (R, error)) func(context.Context, []byte) {
	return func(ctx context.Context, encoded []byte) {
		if req := P(new(Q)); proto.Unmarshal(encoded, req) == nil {
			_, _ = call(ctx, req)
		}
	}
}

// FuzzCursor continues queries from arbitrary cursors.
func FuzzCursor(f *testing.F) {
	s := newTestServer(f)
	queries := testQueries()
	for i, q := range queries {
		resp, err := s.RunQuery(context.Background(),
			&pb.RunQueryRequest{ProjectId: "p", QueryType: &pb.RunQueryRequest_Query{Query: q}})
		if err != nil {
			f.Fatal(i, err)
		}
		f.Add(i, resp.Batch.EndCursor)
	}
	f.Fuzz(func(t *testing.T, i int, cursor []byte) {
		q := proto.CloneOf(queries[uint(i)%uint(len(queries))])
		q.StartCursor = cursor
		_, _ = s.RunQuery(t.Context(),
			&pb.RunQueryRequest{ProjectId: "p", QueryType: &pb.RunQueryRequest_Query{Query: q}})
		q.StartCursor, q.EndCursor = nil, cursor
		_, _ = s.RunQuery(t.Context(),
			&pb.RunQueryRequest{ProjectId: "p", QueryType: &pb.RunQueryRequest_Query{Query: q}})
	})
}

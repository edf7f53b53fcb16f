package emulator_test

import (
	"testing"

	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/scattermap/scattermap/emulator"
)

// integer returns an aggregation's result, which the client does not decode.
func integer(v any) int64 {
	return v.(*datastorepb.Value).GetIntegerValue()
}

// raw returns the generated client of the protocol, for requests that the client library can't
// send.
func raw(t *testing.T) (datastorepb.DatastoreClient, *emulator.Emulator) {
	t.Helper()
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0"})
	return rawOf(t, e), e
}

// rawOf returns the generated client of the protocol, connected to an emulator with a
// DatastoreAddr.
func rawOf(t *testing.T, e *emulator.Emulator) datastorepb.DatastoreClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+e.DatastoreAddr(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return datastorepb.NewDatastoreClient(conn)
}

func pathKey(kind, name string) *datastorepb.Key {
	return &datastorepb.Key{
		Path: []*datastorepb.Key_PathElement{{Kind: kind, IdType: &datastorepb.Key_PathElement_Name{Name: name}}}}
}

func upsert(key *datastorepb.Key, n int64) *datastorepb.Mutation {
	return &datastorepb.Mutation{Operation: &datastorepb.Mutation_Upsert{Upsert: &datastorepb.Entity{
		Key:        key,
		Properties: map[string]*datastorepb.Value{"n": {ValueType: &datastorepb.Value_IntegerValue{IntegerValue: n}}},
	}}}
}

func TestCountUpTo(t *testing.T) {
	client, e := raw(t)
	var mutations []*datastorepb.Mutation
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		mutations = append(mutations, upsert(pathKey("K", name), 10))
	}
	if _, err := client.Commit(t.Context(), &datastorepb.CommitRequest{
		ProjectId: "p", Mode: datastorepb.CommitRequest_NON_TRANSACTIONAL, Mutations: mutations,
	}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ upTo, want int64 }{{3, 3}, {5, 5}, {9, 5}} {
		resp, err := client.RunAggregationQuery(t.Context(), &datastorepb.RunAggregationQueryRequest{
			ProjectId: "p",
			QueryType: &datastorepb.RunAggregationQueryRequest_AggregationQuery{
				AggregationQuery: &datastorepb.AggregationQuery{
					QueryType: &datastorepb.AggregationQuery_NestedQuery{
						NestedQuery: &datastorepb.Query{Kind: []*datastorepb.KindExpression{{Name: "K"}}}},
					Aggregations: []*datastorepb.AggregationQuery_Aggregation{{
						Alias: "n",
						Operator: &datastorepb.AggregationQuery_Aggregation_Count_{
							Count: &datastorepb.AggregationQuery_Aggregation_Count{UpTo: wrapperspb.Int64(c.upTo)}},
					}},
				}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.Batch.AggregationResults[0].AggregateProperties["n"].GetIntegerValue(); got != c.want {
			t.Errorf("count up to %d is %d, want %d", c.upTo, got, c.want)
		}
	}
	if reads := e.Usage().Reads; reads != 3 {
		t.Errorf("three counts of a few entries cost %d reads, want one each", reads)
	}
}

// TestRefused sends requests that the service must refuse, and checks that each error names the
// fault.
func TestRefused(t *testing.T) {
	client, _ := raw(t)
	lookup := func(keys ...*datastorepb.Key) func() error {
		return func() error {
			_, err := client.Lookup(t.Context(), &datastorepb.LookupRequest{ProjectId: "p", Keys: keys})
			return err
		}
	}
	commit := func(mutations ...*datastorepb.Mutation) func() error {
		return func() error {
			_, err := client.Commit(t.Context(), &datastorepb.CommitRequest{
				ProjectId: "p", Mode: datastorepb.CommitRequest_NON_TRANSACTIONAL, Mutations: mutations,
			})
			return err
		}
	}
	query := func(q *datastorepb.Query) func() error {
		return func() error {
			_, err := client.RunQuery(t.Context(),
				&datastorepb.RunQueryRequest{ProjectId: "p", QueryType: &datastorepb.RunQueryRequest_Query{Query: q}})
			return err
		}
	}
	incomplete := &datastorepb.Key{Path: []*datastorepb.Key_PathElement{{Kind: "K"}}}
	elsewhere := pathKey("K", "a")
	elsewhere.PartitionId = &datastorepb.PartitionId{ProjectId: "another"}
	kind := []*datastorepb.KindExpression{{Name: "K"}}
	masked := upsert(pathKey("K", "a"), 1)
	masked.PropertyMask = &datastorepb.PropertyMask{Paths: []string{`a\x`}}
	maskedUpdate := &datastorepb.Mutation{PropertyMask: masked.PropertyMask,
		Operation: &datastorepb.Mutation_Update{Update: &datastorepb.Entity{Key: pathKey("K", "none")}}}
	for name, c := range map[string]struct {
		call func() error
		code codes.Code
	}{
		"no project": {func() error {
			_, err := client.Lookup(t.Context(), &datastorepb.LookupRequest{})
			return err
		}, codes.InvalidArgument},
		"incomplete key": {lookup(incomplete), codes.InvalidArgument},
		"empty path":     {lookup(&datastorepb.Key{}), codes.InvalidArgument},
		"nil key":        {lookup(nil), codes.InvalidArgument},
		"other project":  {lookup(elsewhere), codes.InvalidArgument},
		"reserved kind":  {commit(upsert(pathKey("__K__", "a"), 1)), codes.InvalidArgument},
		"reserved name":  {commit(upsert(pathKey("K", "__a__"), 1)), codes.InvalidArgument},
		"empty mutation": {commit(&datastorepb.Mutation{}), codes.InvalidArgument},
		"twice":          {commit(upsert(pathKey("K", "a"), 1), upsert(pathKey("K", "a"), 2)), codes.InvalidArgument},
		"bad mask":       {commit(masked), codes.InvalidArgument},
		"bad mask of an entity that does not exist": {commit(maskedUpdate), codes.InvalidArgument},
		"no query": {func() error {
			_, err := client.RunQuery(t.Context(), &datastorepb.RunQueryRequest{ProjectId: "p"})
			return err
		}, codes.InvalidArgument},
		"order without a kind": {
			query(&datastorepb.Query{
				Order: []*datastorepb.PropertyOrder{{Property: &datastorepb.PropertyReference{Name: "n"}}}}),
			codes.InvalidArgument},
		"two kinds": {query(&datastorepb.Query{Kind: append(kind, kind...)}), codes.InvalidArgument},
		"negative limit": {query(&datastorepb.Query{Kind: kind, Limit: wrapperspb.Int32(-1)}),
			codes.InvalidArgument},
		"negative offset": {query(&datastorepb.Query{Kind: kind, Offset: -1}), codes.InvalidArgument},
		"bad cursor": {query(&datastorepb.Query{Kind: kind, StartCursor: []byte("x")}),
			codes.InvalidArgument},
		"empty filter": {query(&datastorepb.Query{Kind: kind, Filter: &datastorepb.Filter{}}),
			codes.InvalidArgument},
		"empty order": {query(&datastorepb.Query{Kind: kind, Order: []*datastorepb.PropertyOrder{{}}}),
			codes.InvalidArgument},
		"no mode": {func() error {
			_, err := client.Commit(t.Context(), &datastorepb.CommitRequest{ProjectId: "p"})
			return err
		}, codes.InvalidArgument},
		"unknown transaction": {func() error {
			_, err := client.Rollback(t.Context(),
				&datastorepb.RollbackRequest{ProjectId: "p", Transaction: []byte("x")})
			return err
		}, codes.InvalidArgument},
	} {
		if err := c.call(); status.Code(err) != c.code {
			t.Errorf("%s: %v, want %v", name, err, c.code)
		}
	}
}

// TestNothingRead checks that a query which returns nothing, because of its limit, conflicts with
// no write.
func TestNothingRead(t *testing.T) {
	client, _ := raw(t)
	n := int64(0) // each commit changes its entity
	commit := func(req *datastorepb.CommitRequest, name string) error {
		n++
		req.ProjectId, req.Mutations = "p", []*datastorepb.Mutation{upsert(pathKey("K", name), n)}
		_, err := client.Commit(t.Context(), req)
		return err
	}
	query := func(limit int32, start []byte) *datastorepb.Query {
		return &datastorepb.Query{Kind: []*datastorepb.KindExpression{{Name: "K"}}, Limit: wrapperspb.Int32(limit),
			StartCursor: start}
	}
	alone := &datastorepb.CommitRequest{Mode: datastorepb.CommitRequest_NON_TRANSACTIONAL}
	for _, name := range []string{"a", "b"} {
		if err := commit(alone, name); err != nil {
			t.Fatal(err)
		}
	}
	run := func(q *datastorepb.Query, o *datastorepb.ReadOptions) *datastorepb.RunQueryResponse {
		resp, err := client.RunQuery(t.Context(), &datastorepb.RunQueryRequest{ProjectId: "p", ReadOptions: o,
			QueryType: &datastorepb.RunQueryRequest_Query{Query: q}})
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	after := run(query(1, nil), nil).Batch.EndCursor
	inNew := &datastorepb.ReadOptions{ConsistencyType: &datastorepb.ReadOptions_NewTransaction{}}
	for name, read := range map[string]func() []byte{
		"limit 0":                func() []byte { return run(query(0, nil), inNew).Transaction },
		"limit 0 after a cursor": func() []byte { return run(query(0, after), inNew).Transaction },
		"a count up to 0": func() []byte {
			count := &datastorepb.GqlQuery{QueryString: "AGGREGATE COUNT_UP_TO(0) OVER (SELECT * FROM K)",
				AllowLiterals: true}
			resp, err := client.RunAggregationQuery(t.Context(), &datastorepb.RunAggregationQueryRequest{ProjectId: "p",
				ReadOptions: inNew, QueryType: &datastorepb.RunAggregationQueryRequest_GqlQuery{GqlQuery: count}})
			if err != nil {
				t.Fatal(err)
			}
			return resp.Transaction
		},
	} {
		tx := &datastorepb.CommitRequest{
			TransactionSelector: &datastorepb.CommitRequest_Transaction{Transaction: read()}}
		if err := commit(alone, "b"); err != nil {
			t.Fatal(err)
		}
		if err := commit(tx, "c"); err != nil {
			t.Errorf("%s: %v, want no conflict", name, err)
		}
	}
}

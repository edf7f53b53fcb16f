package gql_test

import (
	"errors"
	"strings"
	"testing"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/internal/nightly"
)

// TestGoogle compares the expected results of the other tests with Google's Firestore emulator. Its
// answer to a GQL query contains the parsed query. Only .ci/nightly runs it: the other tests have
// the same expected results, so this one fails only if one of these, or the emulator, has changed.
func TestGoogle(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves Google's emulators out")
	}
	nightly.Leave(t)
	server, err := google.Start(t.Context(), google.Firestore)
	if errors.Is(err, google.ErrNotInstalled) {
		t.Skipf("left out: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	conn, err := grpc.NewClient("passthrough:///"+server.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	client := pb.NewDatastoreClient(conn)
	run := func(q *pb.GqlQuery) (*pb.Query, error) {
		resp, err := client.RunQuery(t.Context(), &pb.RunQueryRequest{
			ProjectId: "p", PartitionId: partition, QueryType: &pb.RunQueryRequest_GqlQuery{GqlQuery: q},
		})
		return resp.GetQuery(), err
	}
	aggregate := func(q *pb.GqlQuery) error {
		_, err := client.RunAggregationQuery(t.Context(), &pb.RunAggregationQueryRequest{
			ProjectId: "p", PartitionId: partition, QueryType: &pb.RunAggregationQueryRequest_GqlQuery{GqlQuery: q},
		})
		return err
	}

	code := func(c invalidCase) codes.Code {
		if c.crashes {
			return codes.Unknown
		}
		return codes.InvalidArgument
	}

	for _, cases := range [][]validCase{selections, filters, values, keys, positions, lexical} {
		for _, c := range cases {
			got, err := run(c.request())
			if c.refused != "" {
				if err == nil || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("%s: got %v, want %s", c.text, err, c.refused)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", c.text, err)
				continue
			}
			if diff := cmp.Diff(c.statement(t).Query, got, protocmp.Transform()); diff != "" {
				t.Errorf("%s: -want +got:\n%s", c.text, diff)
			}
		}
	}
	for _, c := range aggregations { // the emulator's answers to aggregations do not contain the query
		if err := aggregate(c.request()); err != nil {
			t.Errorf("%s: %v", c.text, err)
		}
	}
	for _, cases := range [][]invalidCase{invalidQueries, invalidPositions, invalidFilters, invalidLiterals,
		invalidBindings} {
		for _, c := range cases {
			if got, err := run(request(c.text, c.positional)); code(c) != status.Code(err) {
				t.Errorf("%s: got %v, %v", c.text, got, err)
			}
		}
	}
	for _, c := range invalidAggregations {
		if err := aggregate(request(c.text, c.positional)); code(c) != status.Code(err) {
			t.Errorf("%s: got %v", c.text, err)
		}
	}
}

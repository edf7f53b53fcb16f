package pbvalue_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/anyentity"
	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/internal/testflag"
)

// A tap is an interceptor of a test's client. It records the entity that is written, and can
// replace the entity that is read.
type tap struct {
	sent *pb.Entity // the entity in the last Put
	give *pb.Entity // the entity that the next Get returns; nil: the stored one
}

func (p *tap) intercept(
	ctx context.Context, method string, req, resp any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	if r, ok := req.(*pb.CommitRequest); ok {
		p.sent = r.Mutations[0].GetUpsert()
	}
	err := invoke(ctx, method, req, resp, conn, opts...)
	if r, ok := resp.(*pb.LookupResponse); ok && p.give != nil {
		r.Found, r.Missing = []*pb.EntityResult{{Entity: p.give}}, nil
	}
	return err
}

// TestAsTheClient compares the conversions of random entities with what the Go client's Get and Put
// do.
func TestAsTheClient(t *testing.T) {
	tapped := new(tap)
	client, err := emulator.ForTest(t, nil).DatastoreClient(t.Context(), "project",
		option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(tapped.intercept)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	rng := testflag.Rand(t)
	key := datastore.NameKey("Thing", "ü", datastore.IDKey("Parent", 7, nil))
	sameFloat := cmp.Comparer(func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) })
	put := 0
	for range 400 {
		own := proto.CloneOf(pbvalue.Key(key))
		own.PartitionId = &pb.PartitionId{ProjectId: "project"}
		tapped.give = anyentity.New(rng, own, false)
		var got datastore.PropertyList
		if err := client.Get(t.Context(), key, &got); err != nil {
			t.Fatalf("%v: %.3000v", err, tapped.give)
		}
		list := pbvalue.Properties(tapped.give)
		byName := func(a, b datastore.Property) int { return strings.Compare(a.Name, b.Name) }
		sortAll(got, byName)
		if diff := cmp.Diff([]datastore.Property(got), list, sameFloat, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("Properties (-the client's Get +ours): %.5000s", diff)
		}
		want, refused := pbvalue.Entity(key, list, false)
		tapped.sent = nil
		if _, err := client.Put(t.Context(), key, &got); err != nil || refused != nil {
			if refused == nil {
				t.Fatalf("the client's Put: %v, and Entity refuses nothing: %.3000v", err, tapped.give)
			}
			continue // another test has the refused values
		}
		put++
		tapped.sent.Key.PartitionId = nil
		if diff := cmp.Diff(tapped.sent, want, protocmp.Transform(), sameFloat); diff != "" {
			t.Fatalf("Entity (-the client's Put +ours): %.5000s", diff)
		}
	}
	if put < 40 {
		t.Errorf("only %d were put", put)
	}
}

// sortAll sorts properties, including nested ones.
func sortAll(all []datastore.Property, by func(a, b datastore.Property) int) {
	slices.SortFunc(all, by)
	for _, p := range all {
		sortInside(p.Value, by)
	}
}

func sortInside(v any, by func(a, b datastore.Property) int) {
	switch v := v.(type) {
	case *datastore.Entity:
		sortAll(v.Properties, by)
	case []any:
		for _, el := range v {
			sortInside(el, by)
		}
	}
}

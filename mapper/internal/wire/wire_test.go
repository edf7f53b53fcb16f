package wire

import (
	"context"
	"path"
	"sync"
	"testing"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/intercept"
	_ "github.com/scattermap/scattermap/internal/testflag"
)

// A database is an emulator with a client whose connection has the interceptor. It records the Go
// client's calls.
type database struct {
	*datastore.Client
	mu      sync.Mutex
	calls   []string
	commits []*pb.CommitRequest
}

func newDatabase(t *testing.T) *database {
	t.Helper()
	db := new(database)
	seen := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		db.mu.Lock()
		db.calls = append(db.calls, path.Base(info.FullMethod))
		if c, ok := req.(*pb.CommitRequest); ok {
			db.commits = append(db.commits, c)
		}
		db.mu.Unlock()
		return handler(ctx, req)
	}
	var err error
	db.Client, err = emulator.ForTest(t, &emulator.Options{Interceptor: seen}).DatastoreClient(t.Context(), "test",
		option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(intercept.Unary)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// An item is an entity in these tests.
type item struct{ N int64 }

func key(n int64) *datastore.Key { return datastore.IDKey("K", n, nil) }

// put writes an entity, and returns its version.
func (db *database) put(t *testing.T, k *datastore.Key, n int64) int64 {
	t.Helper()
	ctx, v := Noting(t.Context())
	if _, err := db.Put(ctx, k, &item{n}); err != nil {
		t.Fatal(err)
	}
	return v.Last(1)
}

// stored returns the number in the entity with a key, or -1 if there is no such entity.
func (db *database) stored(t *testing.T, k *datastore.Key) int64 {
	t.Helper()
	ctx, read := Reading(t.Context())
	_ = db.Get(ctx, k, new(datastore.PropertyList))
	e := read.Of(k).GetEntity()
	if e == nil {
		return -1
	}
	return e.Properties["N"].GetIntegerValue()
}

// sends returns the entity with the ID k and the number n, as a message of the Datastore API.
func sends(k int64, n int64) *pb.Entity {
	return &pb.Entity{
		Key: &pb.Key{PartitionId: &pb.PartitionId{ProjectId: "test"},
			Path: []*pb.Key_PathElement{{Kind: "K", IdType: &pb.Key_PathElement_Id{Id: k}}}},
		Properties: map[string]*pb.Value{
			"N": {ValueType: &pb.Value_IntegerValue{IntegerValue: n}},
			// The Go client would not send this meaning:
			"T": {ValueType: &pb.Value_StringValue{StringValue: "text"}, Meaning: 15, ExcludeFromIndexes: true},
		},
	}
}

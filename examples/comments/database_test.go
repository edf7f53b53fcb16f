package main

import (
	"context"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
)

// TestNamedDatabases uses a store over two named databases of one project. Each comment must be in
// one of them. If comments are ordered by a property whose values are keys, the database in a key
// must not matter.
func TestNamedDatabases(t *testing.T) {
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0"})
	var open []Open
	for _, name := range []string{"one", "two"} {
		open = append(open, func(opts ...option.ClientOption) (*datastore.Client, error) {
			return datastore.NewClientWithDatabase(t.Context(), "test", name,
				append(opts, option.WithEndpoint(e.DatastoreAddr()),
					option.WithoutAuthentication(), option.WithTelemetryDisabled(),
					option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))...)
		})
	}
	s := openStore(t, open...)
	var want []int64
	for i := range int64(10) {
		key, err := s.Put(t.Context(), plain(0), &datastore.PropertyList{{Name: "Order", Value: i * ordersAShard},
			{Name: "Answers", Value: plain(ID(i + 1))}})
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, key.ID)
	}
	for i, d := range s.router.databases {
		raw, err := open[i]()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, kind := range kindsOf(20) {
			some, err := raw.Count(t.Context(), datastore.NewQuery(kind))
			if err != nil {
				t.Fatal(err)
			}
			n += some
		}
		if raw.Close(); n != 5 {
			t.Errorf("database %q has %d comments, want 5", d.name, n)
		}
	}
	var got []int64
	keys, err := s.GetAll(t.Context(), datastore.NewQuery(plainKind).Order("Answers").KeysOnly(), nil)
	for _, key := range keys {
		got = append(got, key.ID)
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("by the comments that they answer: %v, %v, want %v", got, err, want)
	}
	keys, err = s.GetAll(t.Context(), datastore.NewQuery(plainKind).FilterField("Answers", "=", plain(5)).KeysOnly(),
		nil)
	if err != nil || len(keys) != 1 || keys[0].ID != want[4] {
		t.Errorf("what answers comment 5: %v, %v", keys, err)
	}
	if err := s.DeleteMulti(t.Context(), keys); err != nil {
		t.Error(err)
	}
}

// TestDisorder uses a database that returns results in a wrong order. The query must fail, and must
// not leave out a result.
func TestDisorder(t *testing.T) {
	reverse := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, cc, opts...)
		if answer, ok := reply.(*pb.RunQueryResponse); ok {
			slices.Reverse(answer.GetBatch().GetEntityResults())
		}
		return err
	}
	s := newStore(t, 1, reverse)
	for range 3 {
		if _, err := s.Put(t.Context(), plain(0), &Comment{Order: 7}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := s.GetAll(t.Context(), datastore.NewQuery(plainKind).KeysOnly(), nil)
	if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "another order than the store expects") {
		t.Errorf("%v, %v", all, err)
	}
}

// TestForeignClient opens a store with a function that ignores the store's options for its client.
// This must be an error.
func TestForeignClient(t *testing.T) {
	e := emulator.ForTest(t, nil)
	_, err := OpenStore(t.Context(), 20, func(...option.ClientOption) (*datastore.Client, error) {
		return e.DatastoreClient(t.Context(), "test")
	})
	if err == nil || !strings.Contains(err.Error(), "has to be made with the options that it is given") {
		t.Errorf("%v", err)
	}
}

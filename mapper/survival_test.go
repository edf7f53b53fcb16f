package mapper_test

import (
	"context"
	"strings"
	"testing"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

func str(s string, noIndex bool) *datastorepb.Value {
	return &datastorepb.Value{ValueType: &datastorepb.Value_StringValue{StringValue: s}, ExcludeFromIndexes: noIndex}
}

func integer(n int64) *datastorepb.Value {
	return &datastorepb.Value{ValueType: &datastorepb.Value_IntegerValue{IntegerValue: n}}
}

// TestUndeclaredPropertiesSurvive writes an entity through the raw protocol,
// with what the Go client can't even say, and updates another property of it:
// everything else is the same to the bit.
func TestUndeclaredPropertiesSurvive(t *testing.T) {
	t.Parallel()
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0"})
	client, err := e.DatastoreClient(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	conn, err := grpc.NewClient("passthrough:///"+e.DatastoreAddr(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	raw := datastorepb.NewDatastoreClient(conn)

	key := &datastorepb.Key{
		PartitionId: &datastorepb.PartitionId{ProjectId: "test"},
		Path: []*datastorepb.Key_PathElement{{Kind: "Account",
			IdType: &datastorepb.Key_PathElement_Name{Name: "a"}}},
	}
	entity := &datastorepb.Entity{Key: key, Properties: map[string]*datastorepb.Value{
		"Balance": integer(5),
		"Owner":   str("Ann", false),
		"flags per element": {ValueType: &datastorepb.Value_ArrayValue{ArrayValue: &datastorepb.ArrayValue{
			Values: []*datastorepb.Value{str("short", false), str(strings.Repeat("long", 1000), true), integer(7)},
		}}},
		"empty array": {ValueType: &datastorepb.Value_ArrayValue{ArrayValue: new(datastorepb.ArrayValue)}},
		"meaning":     {ValueType: &datastorepb.Value_IntegerValue{IntegerValue: 9}, Meaning: 13},
		"a.dotted":    str("x", true),
		"inside": {ExcludeFromIndexes: true, ValueType: &datastorepb.Value_EntityValue{EntityValue: &datastorepb.Entity{
			Properties: map[string]*datastorepb.Value{"deep": str("x", true),
				"null": {ValueType: &datastorepb.Value_NullValue{}}},
		}}},
	}}
	if _, err := raw.Commit(t.Context(), &datastorepb.CommitRequest{
		ProjectId: "test", Mode: datastorepb.CommitRequest_NON_TRANSACTIONAL,
		Mutations: []*datastorepb.Mutation{{Operation: &datastorepb.Mutation_Upsert{Upsert: entity}}},
	}); err != nil {
		t.Fatal(err)
	}

	w := newWorld(t, setting{client: client}, addCredit)
	w.wait(w.start(10, nil))

	resp, err := raw.Lookup(t.Context(), &datastorepb.LookupRequest{ProjectId: "test", Keys: []*datastorepb.Key{key}})
	if err != nil {
		t.Fatal(err)
	}
	entity.Properties["Balance"] = integer(15)
	if diff := cmp.Diff(entity, resp.Found[0].Entity, protocmp.Transform()); diff != "" {
		t.Errorf("the entity (-want +got):\n%s", diff)
	}
}

// TestUndeclaredValuesSurvive checks the same for values on the database that
// drops what a property mask does not name, and on those that keep it.
func TestUndeclaredValuesSurvive(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	type full struct {
		Balance int64
		Owner   string
		Tags    []string
		Note    string `datastore:",noindex"`
		Home    struct{ Town, Street string }
	}
	type part struct {
		Balance int64
		Home    struct{ Town string }
	}
	m := mapper.Update("part", func(_ context.Context, a *mapper.Entity[part], _ mapper.NoParams) error {
		a.Value.Balance++
		a.Value.Home.Town = "York"
		return nil
	})
	onEach(t, func(t *testing.T, client *datastore.Client) {
		w := newWorld(t, setting{client: client}, m)
		before := full{Balance: 1, Owner: "Ann", Tags: []string{"x", "y"}, Note: strings.Repeat("n", 2000)}
		before.Home.Town, before.Home.Street = "Bath", "High"
		key := datastore.NameKey("Account", "a", nil)
		if _, err := client.Put(t.Context(), key, &before); err != nil {
			t.Fatal(err)
		}
		if s := over(w, m, nil); s.State != mapper.StateSucceeded {
			t.Fatalf("status %+v", s)
		}
		var after full
		if err := client.Get(t.Context(), key, &after); err != nil {
			t.Fatal(err)
		}
		want := before
		want.Balance, want.Home.Town = 2, "York"
		if diff := cmp.Diff(want, after); diff != "" {
			t.Errorf("the entity (-want +got):\n%s", diff)
		}
	})
}

package emulator_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
)

type reading struct {
	A, B, C, D int
}

// property returns one of a reading's properties, by its index.
func (r reading) property(i int) int { return [...]int{r.A, r.B, r.C, r.D}[i] }

// TestQueriesWhileIndexesAreBuilt runs many queries at once, while entities are written. Each query
// needs an index that does not exist yet, over thousands of entities.
func TestQueriesWhileIndexesAreBuilt(t *testing.T) {
	seed := testflag.Seed(t)
	client := embedded(t, &emulator.Options{IndexMemory: 2 << 20})
	const entities = 3000
	rounds := testflag.Size(t, 4, 6, 12)
	random := func(rng *rand.Rand) *reading {
		return &reading{rng.IntN(4), rng.IntN(4), rng.IntN(4), rng.IntN(4)}
	}
	var keys []*datastore.Key
	for i := range entities {
		keys = append(keys, datastore.IDKey("R", int64(i+1), nil))
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	for some := range slices.Chunk(keys, 500) {
		var all []*reading
		for range some {
			all = append(all, random(rng))
		}
		if _, err := client.PutMulti(t.Context(), some, all); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for w := range uint64(2) {
		writers.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 1+w))
			for ctx.Err() == nil {
				key := keys[rng.IntN(entities)]
				if rng.IntN(4) == 0 {
					_ = client.Delete(ctx, key) // an error is possible: the end of the test cancels the last call
				} else {
					_, _ = client.Put(ctx, key, random(rng))
				}
			}
		})
	}
	names := []string{"A", "B", "C", "D"}
	var readers errgroup.Group
	for r := range uint64(4) {
		readers.Go(func() error {
			rng := rand.New(rand.NewPCG(seed, 100+r))
			for range rounds {
				equal, by, value, down := rng.IntN(4), rng.IntN(4), rng.IntN(4), rng.IntN(2) == 0
				if by == equal {
					by = (by + 1) % 4
				}
				tx, err := client.NewTransaction(t.Context(), datastore.ReadOnly)
				if err != nil {
					return err
				}
				order := names[by]
				if down {
					order = "-" + order
				}
				shape := datastore.NewQuery("R").FilterField(names[equal], "=", value).Order(order).Transaction(tx)
				var got, all []reading
				found, err := client.GetAll(t.Context(), shape, &got)
				if err != nil {
					return fmt.Errorf("%v of %s=%d: %w", order, names[equal], value, err)
				}
				everything, err := client.GetAll(t.Context(), datastore.NewQuery("R").Transaction(tx), &all)
				if err != nil {
					return err
				}
				_ = tx.Rollback()
				want := readingsOf(everything, all, equal, value, by, down)
				var have []string
				for i, e := range got {
					have = append(have, found[i].String()+fmt.Sprint(e))
				}
				if !slices.Equal(have, want) {
					return fmt.Errorf("%v of %s=%d: %d results, want %d", order, names[equal], value, len(have),
						len(want))
				}
			}
			return nil
		})
	}
	if err := readers.Wait(); err != nil {
		t.Error(err)
	}
	stop()
	writers.Wait()
}

// readingsOf returns the readings that have a certain value in one property, sorted by another
// property. They are the expected result of a query.
func readingsOf(keys []*datastore.Key, all []reading, equal, value, by int, down bool) (texts []string) {
	for v := range 4 {
		if down {
			v = 3 - v
		}
		for i, e := range all {
			if e.property(equal) == value && e.property(by) == v {
				texts = append(texts, keys[i].String()+fmt.Sprint(e))
			}
		}
	}
	return texts
}

// TestVersionMemory updates an entity until its old versions exceed VersionMemory. It checks that
// reads of earlier times are refused, and that the versions which an open transaction sees are
// kept.
func TestVersionMemory(t *testing.T) {
	client := rawOf(t, emulator.ForTest(t, &emulator.Options{VersionMemory: 100000, DatastoreAddr: "127.0.0.1:0"}))
	key := pathKey("K", "k")
	var times []*timestamppb.Timestamp
	put := func(n int64) {
		m := upsert(key, n)
		m.GetUpsert().Properties["s"] = &datastorepb.Value{
			ValueType:          &datastorepb.Value_StringValue{StringValue: string(make([]byte, 1000))},
			ExcludeFromIndexes: true,
		}
		resp, err := client.Commit(t.Context(), &datastorepb.CommitRequest{
			ProjectId: "p", Mode: datastorepb.CommitRequest_NON_TRANSACTIONAL, Mutations: []*datastorepb.Mutation{m},
		})
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, resp.MutationResults[0].UpdateTime)
	}
	read := func(o *datastorepb.ReadOptions) (int64, error) {
		resp, err := client.Lookup(t.Context(),
			&datastorepb.LookupRequest{ProjectId: "p", Keys: []*datastorepb.Key{key}, ReadOptions: o})
		if err != nil {
			return 0, err
		}
		if len(resp.Found) == 0 {
			return -1, nil
		}
		return resp.Found[0].Entity.Properties["n"].GetIntegerValue(), nil
	}
	at := func(n int) *datastorepb.ReadOptions {
		return &datastorepb.ReadOptions{ConsistencyType: &datastorepb.ReadOptions_ReadTime{ReadTime: times[n]}}
	}
	put(0)
	tx, err := client.BeginTransaction(t.Context(), &datastorepb.BeginTransactionRequest{ProjectId: "p",
		TransactionOptions: &datastorepb.TransactionOptions{
			Mode: &datastorepb.TransactionOptions_ReadOnly_{ReadOnly: new(datastorepb.TransactionOptions_ReadOnly)},
		}})
	if err != nil {
		t.Fatal(err)
	}
	for n := range int64(300) {
		put(n + 1)
	}
	in := &datastorepb.ReadOptions{ConsistencyType: &datastorepb.ReadOptions_Transaction{Transaction: tx.Transaction}}
	if n, err := read(in); n != 0 || err != nil {
		t.Errorf("the open transaction reads %d, %v, want 0", n, err)
	}
	if n, err := read(at(150)); n != 150 || err != nil {
		t.Errorf("while the transaction is open the past is %d, %v, want 150", n, err)
	}
	if _, err := client.Rollback(t.Context(),
		&datastorepb.RollbackRequest{ProjectId: "p", Transaction: tx.Transaction}); err != nil {
		t.Fatal(err)
	}
	put(301)
	wantSomeKept(t, len(times), func(n int) (int64, error) { return read(at(n)) })
	if _, err := client.Commit(t.Context(),
		&datastorepb.CommitRequest{ProjectId: "p", Mode: datastorepb.CommitRequest_NON_TRANSACTIONAL,
			Mutations: []*datastorepb.Mutation{
				{Operation: &datastorepb.Mutation_Delete{Delete: key}},
			}}); err != nil {
		t.Fatal(err)
	}
	if n, err := read(nil); n != -1 || err != nil {
		t.Errorf("after it was deleted: %d, %v", n, err)
	}
	if n, err := read(at(301)); n != 301 || err != nil {
		t.Errorf("before it was deleted: %d, %v, want 301", n, err)
	}
}

// wantSomeKept checks that some of the last versions can be read, and that older ones can't. Each
// version has 1 kB.
func wantSomeKept(t *testing.T, versions int, read func(n int) (int64, error)) {
	t.Helper()
	kept := 0
	for n := range versions {
		switch got, err := read(n); {
		case err == nil && got == int64(n):
			kept++
		case err == nil:
			t.Errorf("the past of %d is %d", n, got)
		case status.Code(err) != codes.FailedPrecondition || kept > 0:
			t.Errorf("the past of %d: %v", n, err)
		}
	}
	if kept < 60 || kept > 100 {
		t.Errorf("%d versions of 1 kB are kept, want about 85", kept)
	}
}

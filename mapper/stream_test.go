package mapper

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestShortenOrder has a database order keys in its own way: what is then behind the end of a
// stream may not be left out without a word.
func TestShortenOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		swapped := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			if r, ok := resp.(*datastorepb.RunQueryResponse); ok && len(r.GetBatch().GetEntityResults()) == 5 {
				results := r.GetBatch().GetEntityResults()
				results[2], results[4] = results[4], results[2]
			}
			return resp, err
		}
		_, e := newEmulator(t, &emulator.Options{Interceptor: swapped})
		for i := range 5 {
			if _, err := e.client.Put(t.Context(), datastore.IDKey("K", int64(i+1), nil), &struct{ N int }{}); err != nil {
				t.Fatal(err)
			}
		}
		s := e.source().stream(t.Context(), Query{Kind: "K"}, nil, nil, true)
		defer s.close()
		if _, err := s.peek(2); err != nil {
			t.Fatal(err)
		}
		s.shorten(keyspace.At(datastore.IDKey("K", 5, nil)))
		if found, err := s.peek(5); !errors.Is(err, errOrder) {
			t.Errorf("found %v, %v", found, err)
		}
	})
}

// TestFew reads a page of a range: where the rest is for others, its stream reads no more.
func TestFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		em, e := newEmulator(t, nil)
		for range 2 {
			if _, err := e.client.PutMulti(t.Context(), slices.Repeat([]*datastore.Key{datastore.IncompleteKey("K", nil)}, 500), make([]struct{ N int }, 500)); err != nil {
				t.Fatal(err)
			}
		}
		e.paces.Expect(record.Ref{ID: "job"}, 100)
		for workers, want := range map[int64]int64{1: queryBatch, 4: 51} {
			w := &work{engine: e, source: e.source(), mode: visit, query: Query{Kind: "K"}, job: &record.Job{ID: "job", PageSize: 50}, record: &record.Range{PageSize: 50, Workers: workers}}
			s := w.stream(t.Context())
			before := em.Usage()
			if found, err := s.peek(51); err != nil || len(found) != 51 {
				t.Fatalf("%d, %v", len(found), err)
			}
			if reads := em.Usage().Sub(before).Reads; reads < want || reads > want+1 { // a query costs one
				t.Errorf("%d reads of a range for %d workers, want %d", reads, workers, want)
			}
			if found, err := s.peek(2000); err != nil || len(found) != 1000 {
				t.Errorf("%d of 1000 found, %v", len(found), err)
			}
			s.close()
		}
	})
}

// TestShorten reads streams of entities that become shorter meanwhile, at random: each has what is
// before its last end, once and in order, and what is behind that was not read but with a batch.
func TestShorten(t *testing.T) {
	rng := testflag.Rand(t)
	synctest.Test(t, func(t *testing.T) {
		em, e := newEmulator(t, nil)
		var all []*keyspace.Position
		for _, namespace := range []string{"a", "b", "c"} {
			var keys []*datastore.Key
			for i := range 1000 {
				keys = append(keys, &datastore.Key{Kind: "K", ID: int64(i + 1), Namespace: namespace})
			}
			for some := range slices.Chunk(keys, 500) {
				values := make([]struct{ N int64 }, len(some))
				for i, key := range some {
					values[i].N = key.ID
				}
				if _, err := e.client.PutMulti(t.Context(), some, values); err != nil {
					t.Fatal(err)
				}
			}
			all = append(all, keyspace.AtAll(keys)...)
		}
		for range 300 {
			q, want := Query{Kind: "K", Namespace: "b"}, all[1000:2000]
			if rng.IntN(2) == 0 {
				q, want = Query{Kind: "K", AllNamespaces: true}, all
			}
			before := em.Usage()
			s := e.source().stream(t.Context(), q, nil, nil, true)
			s.few = rng.IntN(3) * rng.IntN(700)
			var found []*keyspace.Position
			shortened, reached := 0, 0
			for {
				if end := len(found) + 1 + rng.IntN(len(want)); end < len(want) && shortened < 3 {
					want = want[:end]
					s.shorten(all[slices.Index(all, want[end-1])+1])
					shortened++
				}
				if rng.IntN(2) == 0 {
					ahead := 1 + rng.IntN(700)
					reached = max(reached, min(len(found)+ahead, len(want)))
					s.readAhead(ahead)
				}
				n := 1 + rng.IntN(700)
				reached = max(reached, min(len(found)+n, len(want)))
				at, err := s.peek(n)
				if err != nil {
					t.Fatal(err)
				}
				at = at[:min(len(at), 1+rng.IntN(700))]
				if len(at) == 0 {
					break
				}
				entities, _, err := s.read(at)
				if err != nil || len(entities) != len(at) {
					t.Fatalf("%d entities for %d positions, %v", len(entities), len(at), err)
				}
				for i, p := range at {
					if n := entities[i][0].Value; n != p.Key.ID {
						t.Fatalf("at %v is the entity of %v", p.Key, n)
					}
				}
				if found = append(found, at...); len(found) == len(want) {
					break
				}
				s.pass(want[len(found)])
			}
			s.close()
			if !slices.EqualFunc(found, want, (*keyspace.Position).Equal) {
				t.Fatalf("found %d, want %d", len(found), len(want))
			}
			if used := em.Usage().Sub(before).Reads; used > int64(reached+queryBatch+50) {
				t.Errorf("%d reads of up to %d entities that are shortened %d times to %d", used, reached, shortened, len(want))
			}
		}
	})
}

package source

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
)

// TestShortenOrder reads a stream from a database that returns entities in a wrong order. The
// stream is shortened before the last entity. An entity after the new end must cause an error, and
// must not be skipped.
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
		_, src := newEmulator(t, &emulator.Options{Interceptor: swapped})
		for i := range 5 {
			if _, err := src.Client.Put(t.Context(), datastore.IDKey("K", int64(i+1), nil),
				&struct{ N int }{}); err != nil {
				t.Fatal(err)
			}
		}
		s := NewStream(t.Context(), src, query.Query{Kind: "K"}, nil, nil, true)
		defer s.Close()
		if _, err := s.Peek(2); err != nil {
			t.Fatal(err)
		}
		s.Shorten(keyspace.At(datastore.IDKey("K", 5, nil)))
		if found, err := s.Peek(5); !errors.Is(err, ErrOrder) {
			t.Errorf("found %v, %v", found, err)
		}
	})
}

// TestShorten shortens streams of entities at random while they are read. Each stream must return
// everything before its last end, once and in order. After that end it must read at most the rest
// of a batch.
func TestShorten(t *testing.T) {
	rng := testflag.Rand(t)
	synctest.Test(t, func(t *testing.T) {
		em, src := newEmulator(t, nil)
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
				if _, err := src.Client.PutMulti(t.Context(), some, values); err != nil {
					t.Fatal(err)
				}
			}
			all = append(all, keyspace.AtAll(keys)...)
		}
		for range 300 {
			q, want := query.Query{Kind: "K", Namespace: "b"}, all[1000:2000]
			if rng.IntN(2) == 0 {
				q, want = query.Query{Kind: "K", AllNamespaces: true}, all
			}
			before := em.Usage()
			s := NewStream(t.Context(), src, q, nil, nil, true)
			s.Few, s.AtOnce = rng.IntN(3)*rng.IntN(700), 100+rng.IntN(1000)
			var found []*keyspace.Position
			shortened, reached := 0, 0
			for {
				if end := len(found) + 1 + rng.IntN(len(want)); end < len(want) && shortened < 3 {
					want = want[:end]
					s.Shorten(all[slices.Index(all, want[end-1])+1])
					shortened++
				}
				if rng.IntN(2) == 0 {
					ahead := 1 + rng.IntN(700)
					reached = max(reached, min(len(found)+ahead, len(want)))
					s.ReadAhead(ahead)
				}
				n := 1 + rng.IntN(700)
				reached = max(reached, min(len(found)+n, len(want)))
				at, err := s.Peek(n)
				if err != nil {
					t.Fatal(err)
				}
				at = at[:min(len(at), 1+rng.IntN(700))]
				if len(at) == 0 {
					break
				}
				entities, err := s.Read(at)
				if err != nil || len(entities) != len(at) {
					t.Fatalf("%d entities for %d positions, %v", len(entities), len(at), err)
				}
				for i, p := range at {
					if n := entities[i].Entity.Properties["N"].GetIntegerValue(); n != p.Key.ID {
						t.Fatalf("at %v is the entity of %v", p.Key, n)
					}
				}
				if found = append(found, at...); len(found) == len(want) {
					break
				}
				s.Pass(want[len(found)])
			}
			s.Close()
			if !slices.EqualFunc(found, want, (*keyspace.Position).Equal) {
				t.Fatalf("found %d, want %d", len(found), len(want))
			}
			if used := em.Usage().Sub(before).Reads; used > int64(reached+query.Batch+50) {
				t.Errorf("%d reads of up to %d entities that are shortened %d times to %d", used, reached, shortened,
					len(want))
			}
		}
	})
}

// TestReadBesideReadAhead checks that [Stream.Read] returns a page's entities without waiting while
// the next page is read in the background.
func TestReadBesideReadAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if _, ok := req.(*datastorepb.RunQueryRequest); ok {
				time.Sleep(time.Second)
			}
			return handler(ctx, req)
		}
		_, src := newEmulator(t, &emulator.Options{Interceptor: slow})
		keys := make([]*datastore.Key, 900)
		for i := range keys {
			keys[i] = datastore.IDKey("K", int64(i+1), nil)
		}
		for some := range slices.Chunk(keys, 450) {
			if _, err := src.Client.PutMulti(t.Context(), some, make([]struct{ N int64 }, len(some))); err != nil {
				t.Fatal(err)
			}
		}
		s := NewStream(t.Context(), src, query.Query{Kind: "K"}, nil, nil, true)
		defer s.Close()
		page, err := s.Peek(query.Batch)
		if err != nil {
			t.Fatal(err)
		}
		s.ReadAhead(len(keys))
		synctest.Wait()
		begun := time.Now()
		entities, err := s.Read(page)
		if err != nil || len(entities) != len(page) || time.Since(begun) > 0 {
			t.Errorf("%d entities for %d positions after %v, %v", len(entities), len(page), time.Since(begun), err)
		}
		if rest, err := s.Peek(len(keys)); err != nil || len(rest) != len(keys) || time.Since(begun) == 0 {
			t.Errorf("%d positions after %v, %v, want %d after some seconds", len(rest), time.Since(begun), err,
				len(keys))
		}
	})
}

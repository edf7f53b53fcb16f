package source

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
)

// TestApart checks that keys which the Go client would confuse are put into different groups.
func TestApart(t *testing.T) {
	number, name := datastore.IDKey("K", 7, nil), datastore.NameKey("K", "7", nil)
	path, slash := datastore.IDKey("K", 1, datastore.NameKey("P", "a", nil)), datastore.NameKey("P", "a/K,1", nil)
	for _, c := range []struct {
		keys []*datastore.Key
		want string // the indexes of each group
	}{
		{nil, "[]"}, {[]*datastore.Key{number, path}, "[[0 1]]"}, {[]*datastore.Key{number, path, name}, "[[0 1] [2]]"},
		{[]*datastore.Key{path, slash, number, name}, "[[0 2] [1 3]]"},
	} {
		if got := fmt.Sprint(Apart(c.keys)); got != c.want {
			t.Errorf("%v: %s, want %s", c.keys, got, c.want)
		}
	}
}

// TestLookup checks that each key gets its own entity, even if the Go client would confuse the
// keys, and that missing entities are reported.
func TestLookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, src := newEmulator(t, nil)
		keys := []*datastore.Key{datastore.IDKey("K", 7, nil), datastore.IDKey("K", 8, nil),
			datastore.NameKey("K", "7", nil), datastore.NameKey("K", "8", nil)}
		for i, key := range keys[:3] {
			if _, err := src.Client.Put(t.Context(), key, &struct{ N int }{i}); err != nil {
				t.Fatal(err)
			}
		}
		missing, err := Lookup(src.Get(t.Context()), keys, Into(len(keys)))
		if got := fmt.Sprint(missing); err != nil || got != "[false false false true]" {
			t.Errorf("missing are %s, %v", got, err)
		}
		stamps, err := EntityReader(src.Stored(t.Context()))(keyspace.AtAll(keys))
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range stamps {
			if s.Gone != (i == 3) || !s.Gone && s.Entity.Properties["N"].GetIntegerValue() != int64(i) {
				t.Errorf("%v is %+v", keys[i], s)
			}
		}
		errDown := errors.New("down")
		if _, err := Lookup(func([]*datastore.Key, any) error { return errDown }, keys, Into(4)); !errors.Is(err,
			errDown) {
			t.Error(err)
		}
		if _, err := Lookup(func([]*datastore.Key, any) error {
			return datastore.MultiError{nil, errDown}
		}, keys[:2], Into(2)); !errors.Is(err, errDown) {
			t.Error(err)
		}
	})
}

// TestStoredInParts checks that a lookup in several calls returns what one call returns, or an error if
// any of the calls fails. Every seventh entity is missing. The first is loaded as a record.
func TestStoredInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls, fails atomic.Int64
		_, src := newEmulator(t, &emulator.Options{Interceptor: func(ctx context.Context, req any,
			info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if path.Base(info.FullMethod) == "Lookup" && calls.Add(1) == fails.Load() {
				return nil, status.Error(codes.InvalidArgument, "down")
			}
			return handler(ctx, req)
		}})
		const n = 3*partKeys + 1
		keys := make([]*datastore.Key, n)
		for i := range keys {
			if keys[i] = datastore.IDKey("K", int64(i+1), nil); i%7 == 3 {
				continue
			}
			if _, err := src.Client.Put(t.Context(), keys[i], &struct{ N int }{i}); err != nil {
				t.Fatal(err)
			}
		}
		record := new(struct{ N int })
		want, err := src.Stored(t.Context())(keys)
		if err != nil {
			t.Fatal(err)
		}
		calls.Store(0)
		got, err := src.StoredInParts(t.Context())(keys, record)
		if err != nil || len(got) != n || calls.Load() != 4 || record.N != 0 || got[0].Version != want[0].Version {
			t.Fatalf("%d entities, %v, in %d calls, the record %+v", len(got), err, calls.Load(), record)
		}
		for i := 1; i < n; i++ {
			if got[i].Gone != want[i].Gone || got[i].Version != want[i].Version ||
				!proto.Equal(got[i].Entity, want[i].Entity) {
				t.Errorf("%v is %+v, want %+v", keys[i], got[i], want[i])
			}
		}
		for call := int64(1); call <= 4; call++ {
			calls.Store(0)
			fails.Store(call)
			if _, err := src.StoredInParts(t.Context())(keys, record); status.Code(err) != codes.InvalidArgument {
				t.Errorf("call %d fails: %v", call, err)
			}
		}
	})
}

// TestSpaces checks [Source.Spaces] for ranges of queries over the namespaces a, b and c. The
// spaces of a range are the pairs of kind and namespace in it.
func TestSpaces(t *testing.T) {
	pos := func(namespace, kind string) *keyspace.Position {
		return &keyspace.Position{Namespace: namespace, Kind: kind}
	}
	all := query.Query{Kinds: []string{"K", "L"}, AllNamespaces: true}
	key := datastore.IDKey("L", 1, nil)
	key.Namespace = "b"
	for _, c := range []struct {
		name       string
		q          query.Query
		start, end *keyspace.Position
		want       string
	}{
		{"one", query.Query{Kind: "K", Namespace: "a"}, nil, nil, "[{a K}]"},
		{"some that are named", query.Query{Kind: "K", Namespaces: []string{"a", "x"}}, nil, nil, "[{a K} {x K}]"},
		{"all that are there", all, nil, nil, "[{a K} {a L} {b K} {b L} {c K} {c L}]"},
		{"from one on", all, pos("b", "L"), nil, "[{b L} {c K} {c L}]"},
		{"from a key on", all, keyspace.At(key), nil, "[{b L} {c K} {c L}]"},
		{"before one", all, nil, pos("b", "L"), "[{a K} {a L} {b K}]"},
		{"up to a key of one", all, nil, keyspace.At(key), "[{a K} {a L} {b K} {b L}]"},
		{"behind the last", all, pos("d", "K"), nil, "[]"},
		{"of some from one on", query.Query{Kind: "K", Namespaces: []string{"a", "x"}}, pos("b", "K"), nil, "[{x K}]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, src := newEmulator(t, nil)
				for _, namespace := range []string{"c", "a", "b"} {
					key := datastore.IDKey("K", 1, nil)
					key.Namespace = namespace
					if _, err := src.Client.Put(t.Context(), key, &struct{ N int }{1}); err != nil {
						t.Fatal(err)
					}
				}
				var got []keyspace.Space
				for next := src.Spaces(t.Context(), c.q, c.start, c.end); ; {
					s, ok, err := next()
					if err != nil {
						t.Fatal(err)
					}
					if !ok {
						break
					}
					got = append(got, s)
				}
				if text := fmt.Sprint(got); text != c.want {
					t.Errorf("%s, want %s", text, c.want)
				}
			})
		})
	}
}

// TestSample checks that a sample of a kind's keys keeps to the limits of number and size.
func TestSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, src := newEmulator(t, &emulator.Options{ScatterOneIn: 2})
		for i := range 100 {
			if _, err := src.Client.Put(t.Context(), datastore.IDKey("K", int64(i+1), nil),
				&struct{ N int }{i}); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []struct{ n, bytes, least, most int }{{1000, 1 << 20, 30, 70}, {10, 1 << 20, 10, 10},
			{1000, 17 * 5, 5, 5}, {1000, 0, 0, 0}} { // a key takes 17 bytes
			got, err := src.Sample(t.Context(), query.Query{Kind: "K"}, c.n, c.bytes)
			if err != nil || len(got) < c.least || len(got) > c.most {
				t.Errorf("of %d in %d bytes: %d, %v", c.n, c.bytes, len(got), err)
			}
			for i := range got {
				if i > 0 && keyspace.Compare(got[i-1], got[i]) >= 0 {
					t.Errorf("%v is before %v", got[i-1], got[i])
				}
			}
		}
	})
}

// TestUncounted checks that a database which can't count is asked for a count only once.
// HonoursMasks recognizes such a database, which does not support property masks.
func TestUncounted(t *testing.T) {
	for _, code := range []codes.Code{codes.OK, codes.Unimplemented, codes.Internal} {
		t.Run(code.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				_, src := newEmulator(t, &emulator.Options{Interceptor: func(
					ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
				) (any, error) {
					if path.Base(info.FullMethod) == "RunAggregationQuery" {
						if asked++; code != codes.OK {
							return nil, status.Error(code, "no")
						}
					}
					return handler(ctx, req)
				}})
				scans := query.Query{Kind: "K"}.Scans(nil, nil)
				for range 3 {
					if _, known := src.Count(t.Context(), scans, 10); known != (code == codes.OK) {
						t.Errorf("it is known %v", known)
					}
				}
				if once := asked == 1; once != (code == codes.Unimplemented) || src.Counts() == once {
					t.Errorf("it was asked %d times, and counts: %v", asked, src.Counts())
				}
				masks, err := src.HonoursMasks(t.Context())
				if masks != (code == codes.OK) || (err != nil) != (code == codes.Internal) {
					t.Errorf("it honours masks: %v, %v", masks, err)
				}
				time.Sleep(time.Minute)
				err = src.CheckTime(t.Context(), time.Now().Add(-time.Minute))
				if classic := code == codes.Unimplemented; (err == nil) != (code == codes.OK) || errors.Is(err,
					fault.ErrArguments) != classic || strings.Contains(fmt.Sprint(err), "Query.") {
					t.Errorf("a past time: %v", err)
				}
			})
		})
	}
}

// TestAnswered checks that an error names the database exactly if a call got no answer.
func TestAnswered(t *testing.T) {
	down := status.Error(codes.Unavailable, "down")
	for _, c := range []struct {
		name  string
		host  string
		ask   func(ctx context.Context) error
		named string // in the error; empty: it is unchanged, or there is none
		took  time.Duration
	}{
		{"it answers", "", func(context.Context) error { return nil }, "", 0},
		{"it is down", "", func(context.Context) error { return down }, "Datastore itself", 0},
		{"an emulator is down", "localhost:81", func(context.Context) error { return down }, "localhost:81", 0},
		{"it does not answer", "", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
			"does not answer", Patience},
		{"it refuses", "", func(context.Context) error { return status.Error(codes.NotFound, "no") }, "", 0},
	} {
		t.Setenv("DATASTORE_EMULATOR_HOST", c.host)
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			err := Answered(t.Context(), c.ask)
			if took := time.Since(begun); took != c.took || c.named != "" &&
				!strings.Contains(fmt.Sprint(err), c.named) ||
				c.named == "" && err != nil && strings.Contains(err.Error(), "answer") {
				t.Errorf("%s: after %v %v", c.name, took, err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := Unanswered(ctx, down); !errors.Is(err, down) {
				t.Errorf("%s: of somebody who has gone: %v", c.name, err)
			}
		})
	}
}

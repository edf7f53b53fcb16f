package protocol_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/picture"
)

// finish runs a job over a query to its end, checks its records, and returns its status.
func finish(w *world, m *mapper.Mapper[mapper.NoParams], q mapper.Query, o *mapper.StartOptions) *mapper.Status {
	w.Helper()
	job, err := m.Start(w.Context(), w.engine, q, mapper.NoParams{}, o)
	if err != nil {
		w.Fatalf("query %+v: %v", q, err)
	}
	ctx, cancel := context.WithTimeout(w.Context(), 2*time.Hour)
	defer cancel()
	s, err := job.Wait(ctx)
	if err != nil {
		w.Fatalf("query %+v: %v", q, err)
	}
	proof, err := job.Verify(w.Context(), nil)
	if err != nil || len(proof.Problems) > 0 {
		w.Errorf("%+v: %+v, %v", q, proof, err)
	}
	return s
}

// putMany puts entities of one Go type, in calls of an allowed size.
func putMany[T any](w *world, keys []*datastore.Key, entities []T) {
	w.Helper()
	for i := 0; i < len(keys); i += 400 {
		if _, err := w.client.PutMulti(w.Context(), keys[i:min(len(keys), i+400)],
			entities[i:min(len(keys), i+400)]); err != nil {
			w.Fatal(err)
		}
	}
}

// TestSlowSpaces runs a slow function over several kinds and namespaces, so that pages end early.
// The rest of a range must be able to start anywhere inside a small kind of a namespace.
func TestSlowSpaces(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	slow := func(_ context.Context, u *mapper.Entity[user], _ mapper.NoParams) error {
		if u.Value.UserID >= 200 {
			time.Sleep(3 * time.Second)
		}
		return nil
	}
	for _, m := range []*mapper.Mapper[mapper.NoParams]{mapper.Visit("visit", slow), mapper.Update("update", slow)} {
		for _, shardBy := range []string{"", "userid"} {
			t.Run(fmt.Sprint(m.Name(), shardBy), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, setting{queue: few(8), emulator: emulator.Options{ScatterOneIn: 4}}, m)
					for _, kind := range []string{"A", "B"} {
						var keys []*datastore.Key
						var users []user
						for i := range int64(300) {
							keys, users = append(keys, datastore.IDKey(kind, i+1, nil)), append(users, user{UserID: i})
						}
						putMany(w, keys, users)
					}
					s := finish(w, m, mapper.Query{Kinds: []string{"A", "B"}, ShardBy: shardBy},
						&mapper.StartOptions{PageSize: 300, ExpectedWorkers: 8})
					if s.State != mapper.StateSucceeded || s.Processed != 600 {
						t.Errorf("status %+v", s)
					}
				})
			})
		}
	}
}

// TestHalves checks that the range of a property's values is cut in the middle if the database
// can't count, even if one value is far from all others.
func TestHalves(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for name, splitting := range map[string]mapper.Splitting{"adaptive": {},
		"bisect": {First: 1, FanOut: 2, Bisect: true}, "in ten": {First: 1, FanOut: 10, Bisect: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setting{emulator: emulator.Options{Interceptor: uncounted(0, codes.Unimplemented)}},
					checkUser)
				var keys []*datastore.Key
				var users []user
				for i := range int64(480) {
					keys, users = append(keys, datastore.IDKey("User", i*7919%100_000+1, nil)),
						append(users, user{UserID: i})
				}
				users[479].UserID = 1 << 50
				putMany(w, keys, users)
				s := finish(w, checkUser, mapper.Query{Kind: "User", ShardBy: "userid"},
					&mapper.StartOptions{PageSize: 5, Splitting: splitting})
				w.wantChecked(keys, users, everybody, s)
			})
		})
	}
}

// TestFewValues cuts a range into ten parts although the property has only three values, each
// shared by many entities. If a page ends between entities with the same value, no entity may be
// lost.
func TestFewValues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, checkUser)
		var keys []*datastore.Key
		var users []user
		for i := range int64(200) {
			keys, users = append(keys, datastore.IDKey("User", i+1, nil)), append(users, user{UserID: i % 3})
		}
		putMany(w, keys, users)
		s := finish(w, checkUser, mapper.Query{Kind: "User", ShardBy: "userid"},
			&mapper.StartOptions{PageSize: 7, Splitting: mapper.Splitting{First: 1, FanOut: 10, Bisect: true}})
		w.wantChecked(keys, users, everybody, s)
	})
}

// TestPageThenTen uses a splitting that processes one page, cuts the rest into ten equal intervals
// of values, and repeats that in each. If values are random, the depth of the tree of ranges must
// grow with the logarithm of the number of entities.
func TestPageThenTen(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for n, deepest := range map[int]int64{10: 0, 100: 1, 1000: 2} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setting{}, checkUser)
				rng := rand.New(rand.NewPCG(3, 0))
				var keys []*datastore.Key
				var users []user
				for i := range n {
					keys, users = append(keys, datastore.IDKey("User", int64(i+1), nil)),
						append(users, user{UserID: rng.Int64N(1 << 32)})
				}
				putMany(w, keys, users)
				s := finish(w, checkUser, mapper.Query{Kind: "User", ShardBy: "userid",
					Filters: []mapper.Filter{mapper.Where("userid", ">=", 0), mapper.Where("userid", "<", 1<<32)}},
					&mapper.StartOptions{PageSize: 20, Splitting: mapper.Splitting{First: 1, FanOut: 10, Bisect: true}})
				w.wantChecked(keys, users, everybody, s)
				p, err := picture.Of(t.Context(), w.client, s.ID)
				if err != nil {
					t.Fatal(err)
				}
				levels := p.Levels()
				if got := int64(len(levels) - 1); got != deepest {
					t.Errorf("%d entities in pages of 20: depth %d, want %d", n, got, deepest)
				}
				for i, l := range levels[:min(2, len(levels))] {
					if want := []float64{1, 10}[i]; l.Ranges != want {
						t.Errorf("%v ranges at depth %d, want %v", l.Ranges, i, want)
					}
				}
			})
		})
	}
}

// TestTimesAndIntegers shards a job by a property that is a time in some entities, and in others an
// integer outside the range of times.
func TestTimesAndIntegers(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	touch := mapper.Update("touch",
		func(_ context.Context, e *mapper.Entity[datastore.PropertyList], _ mapper.NoParams) error {
			e.Value = append(e.Value, datastore.Property{Name: "seen", Value: true})
			return nil
		})
	for _, kinds := range [][]string{{"A"}, {"A", "B"}} {
		t.Run(fmt.Sprint(kinds), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setting{}, touch)
				for i := range 300 {
					list, kind := datastore.PropertyList{{Name: "joined",
						Value: epoch.Add(time.Duration(i) * time.Hour)}}, "A"
					if i%3 == 0 {
						list[0].Value, kind = epoch.UnixNano()+int64(i), kinds[len(kinds)-1]
					}
					if _, err := w.client.Put(t.Context(), datastore.IDKey(kind, int64(i+1), nil), &list); err != nil {
						t.Fatal(err)
					}
				}
				if s := finish(w, touch, mapper.Query{Kinds: kinds, ShardBy: "joined"},
					&mapper.StartOptions{PageSize: 20}); s.Processed != 300 || s.State != mapper.StateSucceeded {
					t.Errorf("status %+v", s)
				}
			})
		})
	}
}

// TestLastBounds runs jobs with filters at the smallest and largest values of each type.
func TestLastBounds(t *testing.T) {
	t.Parallel()
	last := time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, checkUser)
		putMany(w, []*datastore.Key{datastore.IDKey("User", 1, nil)}, []user{{Joined: epoch, Name: "x"}})
		for _, f := range []mapper.Filter{
			mapper.Where("joined", "<=", last), mapper.Where("joined", "<", last),
			mapper.Where("name", "<=", strings.Repeat("y", 1500)),
			mapper.Where("score", "<=", math.Inf(1)), mapper.Where("score", "<=", math.NaN()),
			mapper.Where("score", ">=", math.Copysign(0, -1)),
			mapper.Where("userid", "<=", math.MaxInt64), mapper.Where("userid", ">=", nil),
			{Property: "userid", Op: "<", Value: datastore.IDKey("X", 1, nil), AllowAnyType: true},
			{Property: "userid", Op: "<=", Value: datastore.IDKey("X", 1, nil), AllowAnyType: true},
		} {
			if s := finish(w, checkUser, mapper.Query{Kind: "User", ShardBy: f.Property, Filters: []mapper.Filter{f}},
				nil); s.Processed != 1 {
				t.Errorf("%v: %+v", f, s)
			}
		}
	})
}

// TestRetryMoved changes a failed entity so that it has another place in the order of the job. A
// retry must still process it.
func TestRetryMoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, checkUser)
		for i := range int64(5) {
			list := datastore.PropertyList{{Name: "userid", Value: i}}
			if i == 3 {
				list[0].Value = []any{int64(30), int64(100)}
			}
			if _, err := w.client.Put(t.Context(), datastore.IDKey("User", i+1, nil), &list); err != nil {
				t.Fatal(err)
			}
		}
		s := finish(w, checkUser, mapper.Query{Kind: "User", ShardBy: "userid"}, nil)
		if s.Processed != 4 || s.Failures != 1 {
			t.Errorf("status %+v", s)
		}
		if _, err := w.client.Put(t.Context(), datastore.IDKey("User", 4, nil),
			&datastore.PropertyList{{Name: "userid", Value: int64(3)}}); err != nil {
			t.Fatal(err)
		}
		job := w.engine.Job(s.ID)
		if err := job.Retry(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if s := w.wait(job); s.Processed != 5 || s.Failures != 0 {
			t.Errorf("status %+v", s)
		}
	})
}

// TestNeighbourKinds runs jobs over kinds whose names are adjacent in the order. Some of the kinds
// are empty.
func TestNeighbourKinds(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	kinds := []string{"A", "A\x00", "A\x00\x00", "AA", "A "}
	for _, shardBy := range []string{"", "userid"} {
		for _, size := range []int{1, 3, 40} {
			t.Run(fmt.Sprint(shardBy, size), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, setting{queue: few(4)}, checkUser)
					var keys []*datastore.Key
					var users []user
					for k, kind := range kinds {
						for _, namespace := range []string{"", "a", "a-", "a.b"} {
							for i := range []int64{1, 3, 0, 41, 7}[k] {
								keys = append(keys, &datastore.Key{Kind: kind, ID: i + 1, Namespace: namespace})
								users = append(users, user{UserID: i / 2})
							}
						}
					}
					putMany(w, keys, users)
					s := finish(w, checkUser, mapper.Query{Kinds: kinds, AllNamespaces: true, ShardBy: shardBy},
						&mapper.StartOptions{PageSize: size, ExpectedWorkers: 2, AllowEmpty: true})
					w.wantChecked(keys, users, everybody, s)
				})
			})
		}
	}
}

// A nested is an entity with a struct that has properties, and with a list.
type nested struct {
	Addr    struct{ Zip int64 }
	Tags    []string
	Checked int64 `datastore:",noindex"`
}

// TestNested runs jobs with filters on lists, and jobs that are sharded by a property of an
// embedded entity.
func TestNested(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	check := func(_ context.Context, e *mapper.Entity[nested], _ mapper.NoParams) error {
		e.Value.Checked++
		return nil
	}
	zip := []mapper.Filter{mapper.Where("Addr.Zip", ">=", 0), mapper.Where("Addr.Zip", "<", 1000)}
	some, between := mapper.Where("Tags", "in", []string{"a", "b"}), []mapper.Filter{mapper.Where("Tags", ">=", "a"),
		mapper.Where("Tags", "<", "c")}
	for name, q := range map[string]mapper.Query{
		"by zip":                 {ShardBy: "Addr.Zip"},
		"by some zips":           {ShardBy: "Addr.Zip", Filters: zip},
		"in, by zip":             {ShardBy: "Addr.Zip", Filters: []mapper.Filter{some}},
		"in, and zips":           {Filters: append(zip, some)},
		"inequality of a list":   {Filters: between},
		"inequality, and by zip": {ShardBy: "Addr.Zip", Filters: between},
	} {
		q.Kind = "N"
		for _, m := range []*mapper.Mapper[mapper.NoParams]{mapper.Visit("visit", check),
			mapper.Update("update", check)} {
			t.Run(fmt.Sprint(name, m.Name()), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, setting{}, m)
					var keys []*datastore.Key
					var all []nested
					for i := range int64(400) {
						n := nested{Tags: []string{"a", "b", "x"}}
						n.Addr.Zip = i / 3
						keys, all = append(keys, datastore.IDKey("N", i*7919%4001+1, nil)), append(all, n)
					}
					putMany(w, keys, all)
					if s := finish(w, m, q, &mapper.StartOptions{PageSize: 10}); s.Processed != 400 ||
						s.State != mapper.StateSucceeded {
						t.Errorf("status %+v", s)
					}
				})
			})
		}
	}
}

// TestIndexOfOneKind starts a job over two kinds. Only one of them has the index that the query
// needs.
func TestIndexOfOneKind(t *testing.T) {
	t.Parallel()
	const index = "indexes:\n- kind: B\n  properties:\n  - name: active\n  - name: userid\n"
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{emulator: emulator.Options{Indexes: []byte(index)}}, checkUser)
		putMany(w, []*datastore.Key{datastore.IDKey("A", 1, nil), datastore.IDKey("B", 1, nil)}, []user{{}, {}})
		q := mapper.Query{Kinds: []string{"A", "B"}, ShardBy: "userid",
			Filters: []mapper.Filter{mapper.Where("active", "=", true)}}
		_, err := checkUser.Start(t.Context(), w.engine, q, mapper.NoParams{}, nil)
		if said := fmt.Sprint(err); !strings.Contains(said, "- kind: A") || strings.Contains(said, "- kind: B") ||
			strings.Contains(said, "%!") {
			t.Error(err)
		}
	})
}

type parcel struct {
	Code []byte
	Home *datastore.Key
	N    int64
}

// TestShardedInPlace runs functions that change, inside the loaded value, the property by which the
// job is sharded. The engine must notice the change: its own copy of the value must not be
// affected.
func TestShardedInPlace(t *testing.T) {
	t.Parallel()
	for property, change := range map[string]func(*parcel){
		"Code": func(p *parcel) { p.Code[0] += 100 },
		"Home": func(p *parcel) { p.Home.ID += 1000 },
	} {
		t.Run(property, func(t *testing.T) {
			t.Parallel()
			move := mapper.Update("move", func(_ context.Context, e *mapper.Entity[parcel], _ mapper.NoParams) error {
				change(&e.Value)
				e.Value.N++
				return nil
			})
			synctest.Test(t, func(t *testing.T) {
				const n = 100
				w := newWorld(t, setting{}, move)
				var keys []*datastore.Key
				var parcels []parcel
				for i := range n {
					keys = append(keys, datastore.IDKey("Parcel", int64(i+1), nil))
					parcels = append(parcels,
						parcel{Code: []byte{byte(i)}, Home: datastore.IDKey("Home", int64(i+1), nil)})
				}
				if _, err := w.client.PutMulti(t.Context(), keys, parcels); err != nil {
					t.Fatal(err)
				}
				job, err := move.Start(t.Context(), w.engine, mapper.Query{Kind: "Parcel", ShardBy: property},
					mapper.NoParams{}, &mapper.StartOptions{PageSize: 10, FailureLimit: -1})
				if err != nil {
					t.Fatal(err)
				}
				s, err := job.Wait(t.Context())
				if err != nil || s.Processed != 0 || s.Failures != n {
					t.Errorf("status %+v, %v", s, err)
				}
				now := make([]parcel, n)
				if err := w.client.GetMulti(t.Context(), keys, now); err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(now, parcels) {
					t.Error("some have changed")
				}
			})
		})
	}
}

// TestShardedByPath shards jobs by a path with a dot. The dot may lead into an embedded entity, or
// be part of a property's name. Functions must be allowed to change all properties except the one
// that the path finds.
func TestShardedByPath(t *testing.T) {
	t.Parallel()
	type list = datastore.PropertyList
	const n = 20
	inside := func(name string, v any) *datastore.Entity {
		return &datastore.Entity{Properties: []datastore.Property{{Name: name, Value: v}}}
	}
	raise := func(p *datastore.Property) {
		if e, ok := p.Value.(*datastore.Entity); ok {
			p = &e.Properties[0]
		}
		p.Value = p.Value.(int64) + 1000
	}
	for _, c := range []struct {
		by      string
		stored  func(i int64) list // the properties of entity i; the function increases the first one
		refused bool
	}{
		{"a", func(i int64) list { return list{{Name: "a", Value: i}} }, true},
		{"a.b", func(i int64) list { return list{{Name: "a.b", Value: i}} }, true},
		{"b.c", func(i int64) list { return list{{Name: "b", Value: inside("c", i)}} }, true},
		{"a.b.c", func(i int64) list { return list{{Name: "a.b", Value: inside("c", i)}} }, true},
		{"a.b.c", func(i int64) list { return list{{Name: "a", Value: inside("b.c", i)}} }, true},
		{"a.b", func(i int64) list {
			return list{{Name: "a", Value: int64(7)}, {Name: "a.b", Value: i}}
		}, false},
		{"a.b.c", func(i int64) list {
			return list{{Name: "a", Value: inside("x", int64(7))}, {Name: "a.b", Value: inside("c", i)}}
		}, false},
		{"a.b", func(i int64) list {
			return list{{Name: "a.bc", Value: int64(7)}, {Name: "a.b", Value: i}}
		}, false},
	} {
		t.Run(fmt.Sprint(c.by, " of ", c.stored(0)[0].Name, " ", c.refused), func(t *testing.T) {
			t.Parallel()
			move := mapper.Update("move", func(_ context.Context, e *mapper.Entity[list], _ mapper.NoParams) error {
				first := c.stored(0)[0].Name
				raise(&e.Value[slices.IndexFunc(e.Value, func(p datastore.Property) bool { return p.Name == first })])
				return nil
			})
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setting{}, move)
				for i := range int64(n) {
					all := c.stored(i)
					if _, err := w.client.Put(t.Context(), datastore.IDKey("Parcel", i+1, nil), &all); err != nil {
						t.Fatal(err)
					}
				}
				job, err := move.Start(t.Context(), w.engine, mapper.Query{Kind: "Parcel", ShardBy: c.by},
					mapper.NoParams{}, &mapper.StartOptions{PageSize: 5, FailureLimit: -1})
				if err != nil {
					t.Fatal(err)
				}
				s, err := job.Wait(t.Context())
				if failures := int64(boolToInt(c.refused) * n); err != nil || s.Failures != failures ||
					s.Written != n-failures {
					t.Errorf("status %+v, %v", s, err)
				}
			})
		})
	}
}

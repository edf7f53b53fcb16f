package protocol_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
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
	"github.com/scattermap/scattermap/mapper/split"
)

// wantParts checks that the parts together have each user of a query once. It returns the size of
// the largest part, as a multiple of the mean.
func (w *world) wantParts(
	splits []split.Part, keys []*datastore.Key, users []user, want func(*datastore.Key, user) bool,
) float64 {
	w.Helper()
	seen := make(map[string]int)
	total, largest := 0, 0
	for i, s := range splits {
		q, err := s.Query.DatastoreQuery()
		if err != nil {
			w.Fatal(err)
		}
		found, err := w.client.GetAll(w.Context(), q.KeysOnly(), nil)
		if err != nil {
			w.Fatal(err)
		}
		if int64(len(found)) != s.Entities || len(found) == 0 && len(splits) > 1 {
			w.Errorf("split %d has %d entities, and says %d", i, len(found), s.Entities)
		}
		total, largest = total+len(found), max(largest, len(found))
		for _, k := range found {
			seen[k.String()]++
		}
	}
	wrong := 0
	for i, k := range keys {
		n := seen[k.String()]
		if delete(seen, k.String()); n != 1 && want(k, users[i]) || n != 0 && !want(k, users[i]) {
			wrong++
		}
	}
	if wrong > 0 || len(seen) > 0 {
		w.Errorf("%d users are not in one split, or should be in none; %d others are in some", wrong, len(seen))
	}
	return float64(largest*len(splits)) / float64(max(1, total))
}

// TestSplits splits each form of query into parts, with few users and with many.
func TestSplits(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for name, test := range queries {
		sizes := []int{5, 300}
		if !testing.Short() {
			sizes = []int{0, 5, 1000}
		}
		if some := []string{"string", "equality", "integer"}; slices.Contains(some[:testflag.Size(t, 0, 1, 3)], name) {
			sizes = append(sizes, 11_000)
		}
		for _, n := range sizes {
			t.Run(fmt.Sprint(name, n), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, setting{})
					keys, users := w.putUsers(rand.New(rand.NewPCG(1, 0)), n)
					for _, parts := range []int{1, 7} {
						q := test.query
						q.Kind = "User"
						splits, err := split.Query(t.Context(), w.client, q, parts,
							&split.Options{Count: true})
						if err != nil {
							t.Fatal(err)
						}
						largest := w.wantParts(splits, keys, users, test.want)
						// Several cuts may be at the same value.
						if n >= 300 && len(splits) < parts-2 && name != "few strings" {
							t.Errorf("%d splits, want %d", len(splits), parts)
						}
						// A fifth of the users have the same value, and a value is not cut. This is
						// 1.4 times the mean of 7 parts.
						if most := 2.5; n >= 300 && largest > most && name != "few strings" {
							t.Errorf("the largest of %d splits is %.2f times the mean", parts, largest)
						}
					}
				})
			})
		}
	}
}

// TestSplitsOfMany splits a kind with many entities. It must be cut at sampled keys, with few
// reads.
func TestSplitsOfMany(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	n := 20_000
	if testing.Short() {
		n = 11_000
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{emulator: emulator.Options{ScatterOneIn: 16}})
		w.putAccounts(names(n))
		before := w.emulator.Usage()
		splits, err := split.Query(t.Context(), w.client, mapper.Query{Kind: "Account"}, 20, nil)
		used := w.emulator.Usage().Sub(before)
		if err != nil || len(splits) != 20 || used.Reads > 100 || used.SmallOps > 2000 {
			t.Fatalf("%d splits, %v, used %+v", len(splits), err, used)
		}
		if splits[3].Entities != -1 {
			t.Errorf("not counted, and %d entities", splits[3].Entities)
		}
		splits, err = split.Query(t.Context(), w.client, mapper.Query{Kind: "Account"}, 20,
			&split.Options{Count: true})
		if err != nil {
			t.Fatal(err)
		}
		total, largest := int64(0), int64(0)
		for _, s := range splits {
			total, largest = total+s.Entities, max(largest, s.Entities)
		}
		if ratio := float64(largest*20) / float64(n); total != int64(n) || ratio > 1.8 {
			t.Errorf("%d entities, the largest split is %.2f times the mean", total, ratio)
		}
		encoded, err := json.Marshal(splits[3])
		var decoded split.Part
		if err := errors.Join(err, json.Unmarshal(encoded, &decoded)); err != nil ||
			!decoded.Query.Start.Equal(splits[3].Query.Start) || !decoded.Query.End.Equal(splits[4].Query.Start) {
			t.Errorf("%s, %v", encoded, err)
		}
	})
}

// TestSplitsUnsampled splits queries on databases in which no entity has __scatter__, such as
// Google's Firestore emulator. So keys can't be sampled.
func TestSplitsUnsampled(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{emulator: emulator.Options{ScatterOneIn: 1 << 16}})
		const n = 12_000
		w.putAccounts(names(n))
		splits, err := split.Query(t.Context(), w.client, mapper.Query{Kind: "Account"}, 8,
			&split.Options{Count: true})
		if err != nil || len(splits) != 8 {
			t.Fatalf("%d splits, %v", len(splits), err)
		}
		for i, s := range splits {
			if s.Entities != n/8 {
				t.Errorf("split %d has %d entities", i, s.Entities)
			}
		}
	})
	for _, scatter := range []int{512, 2048} { // or few entities have __scatter__
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, setting{emulator: emulator.Options{ScatterOneIn: scatter}})
			w.putAccounts(names(12_000))
			splits, err := split.Query(t.Context(), w.client, mapper.Query{Kind: "Account"}, 8,
				&split.Options{Count: true})
			if err != nil || len(splits) != 8 {
				t.Fatalf("%d splits, %v", len(splits), err)
			}
			for i, s := range splits {
				if s.Entities < 1200 || s.Entities > 1800 {
					t.Errorf("scatter %d: split %d has %d entities of 12,000", scatter, i, s.Entities)
				}
			}
		})
	}
}

// TestSplitsIndexes splits queries with only the index that the error has named. The parts must be
// readable with this index, too.
func TestSplitsIndexes(t *testing.T) {
	t.Parallel()
	q := mapper.Query{Kind: "User", ShardBy: "userid", Filters: []mapper.Filter{mapper.Where("score", ">", 0.0)}}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{emulator: emulator.Options{Indexes: []byte("indexes: []")}})
		_, err := split.Query(t.Context(), w.client, q, 5, nil)
		if !errors.Is(err, mapper.ErrInvalidArgument) {
			t.Fatal(err)
		}
		_, lines, _ := strings.Cut(err.Error(), "built:\n")
		lines, _, _ = strings.Cut(lines, "\nThe database says")
		w = newWorld(t, setting{emulator: emulator.Options{Indexes: []byte(lines)}})
		w.putUsers(rand.New(rand.NewPCG(1, 0)), 1000)
		splits, err := split.Query(t.Context(), w.client, q, 5, &split.Options{Count: true})
		if err != nil || len(splits) != 5 {
			t.Fatalf("%d splits, %v", len(splits), err)
		}
		for _, s := range splits {
			d, err := s.Query.DatastoreQuery()
			if err != nil {
				t.Fatal(err)
			}
			if found, err := w.client.GetAll(t.Context(), d, &[]user{}); err != nil || int64(len(found)) != s.Entities {
				t.Errorf("%d users of %d, %v", len(found), s.Entities, err)
			}
		}
	})
}

// TestSplitsRefused checks the errors for queries that can't be split.
func TestSplitsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{})
		users := mapper.Query{Kind: "User"}
		for want, ask := range map[string]struct {
			client *datastore.Client
			query  mapper.Query
			n      int
		}{
			"the client is nil":                {nil, users, 2},
			"has to be in [1, 10000], it is 0": {w.client, users, 0},
			"it is 10001":                      {w.client, users, 10_001},
			"Query.Kind is empty":              {w.client, mapper.Query{}, 2},
			"over several kinds or namespaces": {w.client, mapper.Query{Kinds: []string{"A", "B"}}, 2},
			"can't be read as it was": {w.client,
				mapper.Query{Kind: "User", ReadTime: time.Now().Add(time.Hour)}, 2},
		} {
			if _, err := split.Query(t.Context(), ask.client, ask.query, ask.n, nil); !errors.Is(err,
				mapper.ErrInvalidArgument) || !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%v, want an error with %q", err, want)
			}
		}
		for _, q := range []mapper.Query{{Kind: "User", AllNamespaces: true},
			{Kind: "User", Filters: []mapper.Filter{mapper.Share(0, 1, 2)}}} {
			if _, err := q.DatastoreQuery(); !errors.Is(err, mapper.ErrInvalidArgument) {
				t.Errorf("Datastore has a query for %+v: %v", q, err)
			}
		}
	})
}

// wantCompared calls split.Compare, checks the result against split.Query, and returns it.
func (w *world) wantCompared(q mapper.Query, n, entities int) *split.Comparison {
	w.Helper()
	c, err := split.Compare(w.Context(), w.client, q, n)
	if err != nil {
		w.Fatal(err)
	}
	if c.Entities != int64(entities) || c.Parts != n || len(c.Ways) != 4 {
		w.Fatalf("%+v, want %d entities in %d parts", c, entities, n)
	}
	asked := []int{0, n - 1, 32*n - 1, -1}
	if n == 1 {
		asked = []int{0, 0, 0, -1}
	}
	for i, way := range c.Ways {
		if way.Asked != asked[i] || way.Sampled > way.Asked || (way.Sampled < way.Asked) != (way.Note != "") {
			w.Errorf("%s asks for %d keys, want %d; %d came, and it says %q", way.Way, way.Asked, asked[i], way.Sampled,
				way.Note)
		}
		total, empty := int64(0), 0
		for _, count := range way.Each {
			if total += count; count == 0 {
				empty++
			}
		}
		if total != c.Entities || way.Parts != len(way.Each) || way.Parts < 1 || way.Parts > n || way.Empty != empty ||
			way.Largest != slices.Max(way.Each) {
			w.Errorf("%+v of %d entities in up to %d parts", way, entities, n)
		}
		if want := float64(way.Largest) / max(1, float64(entities)/float64(n)); way.Ratio != want {
			w.Errorf("%s: ratio %v, want %v", way.Way, way.Ratio, want)
		}
	}
	splits, err := split.Query(w.Context(), w.client, q, n, &split.Options{Count: true})
	if err != nil && (entities == 0 || c.Ways[3].Parts > 1 ||
		!strings.Contains(err.Error(), "it is unknown where they are")) {
		w.Fatal(err)
	}
	for i, s := range splits {
		if each := c.Ways[3].Each; len(each) != len(splits) || s.Entities >= 0 && s.Entities != each[i] {
			w.Fatalf("%v, and split.Query has %d parts; part %d has %d entities", each, len(splits), i,
				s.Entities)
		}
	}
	return c
}

// TestCompareSplits compares the ways to cut a kind, for kinds with several forms of keys.
func TestCompareSplits(t *testing.T) {
	t.Parallel()
	below := func(parent, id int64) *datastore.Key {
		return datastore.IDKey("Account", id, datastore.IDKey("Owner", parent, nil))
	}
	for name, kind := range map[string]struct {
		key     func(i int) *datastore.Key
		scatter int // one in this number of entities has __scatter__
	}{
		"names": {func(i int) *datastore.Key {
			return datastore.NameKey("Account", fmt.Sprintf("%08x", i*2654435761%(1<<32)), nil)
		}, 4},
		"few samples":  {func(i int) *datastore.Key { return datastore.IDKey("Account", int64(i+1), nil) }, 128},
		"no samples":   {func(i int) *datastore.Key { return datastore.IDKey("Account", int64(i+1), nil) }, 1 << 16},
		"ancestors":    {func(i int) *datastore.Key { return below(int64(i%7+1), int64(i+1)) }, 2},
		"one scatter":  {func(i int) *datastore.Key { return below(int64(i+1024), int64(i+1024)^(1<<20)) }, 1},
		"negative ids": {func(i int) *datastore.Key { return datastore.IDKey("Account", int64(i*2-1001), nil) }, 2},
		"all sizes": {func(i int) *datastore.Key {
			return datastore.IDKey("Account", int64(1)<<(i%60)+int64(i), nil)
		}, 2},
		"other letters": {func(i int) *datastore.Key {
			return datastore.NameKey("Account", fmt.Sprintf("ключ-%d-\U0010ffff", i), nil)
		}, 2},
	} {
		for _, counts := range []bool{true, false} {
			t.Run(fmt.Sprint(name, counts), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					o := emulator.Options{ScatterOneIn: kind.scatter}
					if !counts {
						o.Interceptor = uncounted(0, codes.Unimplemented)
					}
					w := newWorld(t, setting{emulator: o})
					var keys []*datastore.Key
					for i := range 600 {
						k := kind.key(i)
						keys = append(keys, k)
						for n := keys[len(keys)-1]; n != nil; n = n.Parent {
							n.Namespace = "n"
						}
					}
					in := mapper.Query{Kind: "Account", Namespace: "n"}
					put := 0
					for _, total := range []int{0, 1, 5, 600} {
						if total > 0 {
							putMany(w, keys[put:total], make([]account, total-put))
							put = total
						}
						for _, n := range []int{1, 2, 8, 100} {
							w.wantCompared(in, n, total)
						}
						w.wantCompared(mapper.Query{Kind: "Account"}, 1, 0)
					}
				})
			})
		}
	}
}

// TestLexicographic compares the ways to cut a kind with a few numeric IDs and many names. A
// lexicographic cut must give half of the shards to the few IDs. Samples must cut the kind more
// evenly, the larger they are.
func TestLexicographic(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ids, named, n = 3, 11_000, 8
		w := newWorld(t, setting{emulator: emulator.Options{ScatterOneIn: 16}})
		rng := rand.New(rand.NewPCG(5, 0))
		var keys []*datastore.Key
		for i := range int64(ids) {
			keys = append(keys, datastore.IDKey("Account", i+1, nil))
		}
		for range named {
			keys = append(keys, datastore.NameKey("Account", fmt.Sprintf("%016x", rng.Uint64()), nil))
		}
		putMany(w, keys, make([]account, len(keys)))
		used := w.emulator.Usage()
		c := w.wantCompared(mapper.Query{Kind: "Account"}, n, ids+named)
		if cost := w.emulator.Usage().Sub(used); cost.Reads > 300 {
			t.Errorf("it costs %+v", cost)
		}
		lexicographic, scatter, oversampled, ours := c.Ways[0], c.Ways[1], c.Ways[2], c.Ways[3]
		for i, n := range lexicographic.Each[:n/2] {
			if want := []int64{ids, 0, 0, 0}[i]; n != want {
				t.Errorf("part %d of %v has %d entities, want %d of the %d ids", i, lexicographic.Each, n, want, ids)
			}
		}
		if scatter.Sampled != n-1 || oversampled.Sampled != 32*n-1 {
			t.Errorf("sampled %d and %d keys, want %d and %d", scatter.Sampled, oversampled.Sampled, n-1, 32*n-1)
		}
		if lexicographic.Ratio < 3 || scatter.Ratio < 1.5*oversampled.Ratio || oversampled.Ratio > 1.5 ||
			ours.Ratio > oversampled.Ratio+0.2 {
			t.Errorf("the largest is %.2f times the mean lexicographically, %.2f by scatter, %.2f oversampled, %.2f "+
				"by split.Query", lexicographic.Ratio, scatter.Ratio, oversampled.Ratio, ours.Ratio)
		}
	})
}

// TestCompareRefused checks that split.Compare refuses impossible arguments.
func TestCompareRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{})
		for _, c := range []struct {
			q mapper.Query
			n int
		}{{mapper.Query{Kind: "Account"}, 0}, {mapper.Query{Kind: "Account"}, 10_001}, {mapper.Query{}, 2},
			{mapper.Query{Kind: "Account", ShardBy: "Balance"}, 2}, {mapper.Query{Kinds: []string{"A", "B"}}, 2}} {
			if _, err := split.Compare(t.Context(), w.client, c.q, c.n); !errors.Is(err,
				mapper.ErrInvalidArgument) {
				t.Errorf("%+v in %d parts: %v", c.q, c.n, err)
			}
		}
		if _, err := split.Compare(t.Context(), nil, mapper.Query{Kind: "Account"}, 2); !errors.Is(err,
			mapper.ErrInvalidArgument) {
			t.Errorf("no client: %v", err)
		}
	})
}

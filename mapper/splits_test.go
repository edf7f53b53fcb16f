package mapper_test

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

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// wantParts checks that splits have all of a query's users, each once, and returns the most that
// one of them has, as a multiple of the mean.
func (w *world) wantParts(splits []mapper.Split, keys []*datastore.Key, users []user, want func(*datastore.Key, user) bool) float64 {
	w.Helper()
	seen := make(map[string]int)
	total, largest := 0, 0
	for i, s := range splits {
		q, err := s.Query.Datastore()
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

// TestSplits splits each form of query, over few users and over many.
func TestSplits(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for name, test := range queries {
		sizes := []int{5, 300}
		if !testing.Short() {
			sizes = []int{0, 5, 1000}
		}
		if some := []string{"equality", "integer", "string"}; !testing.Short() && slices.Contains(some, name) {
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
						splits, err := mapper.Splits(t.Context(), w.client, q, parts, &mapper.SplitsOptions{Count: true})
						if err != nil {
							t.Fatal(err)
						}
						largest := w.wantParts(splits, keys, users, test.want)
						if n >= 300 && len(splits) < parts-2 && name != "few strings" { // one value may take the place of several
							t.Errorf("%d splits, want %d", len(splits), parts)
						}
						// A fifth of the users have one value, which is not cut: 1.4 times the mean of 7.
						if most := 2.5; n >= 300 && largest > most && name != "few strings" {
							t.Errorf("the largest of %d splits is %.2f times the mean", parts, largest)
						}
					}
				})
			})
		}
	}
}

// TestSplitsOfMany splits a kind at sampled keys, without reading much.
func TestSplitsOfMany(t *testing.T) {
	t.Parallel()
	n := 20_000
	if testing.Short() {
		n = 11_000
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{emulator: emulator.Options{Scatter: 16}})
		w.putAccounts(names(n))
		before := w.emulator.Usage()
		splits, err := mapper.Splits(t.Context(), w.client, mapper.Query{Kind: "Account"}, 20, nil)
		used := w.emulator.Usage().Sub(before)
		if err != nil || len(splits) != 20 || used.Reads > 100 || used.SmallOps > 2000 {
			t.Fatalf("%d splits, %v, used %+v", len(splits), err, used)
		}
		if splits[3].Entities != -1 {
			t.Errorf("not counted, and %d entities", splits[3].Entities)
		}
		splits, err = mapper.Splits(t.Context(), w.client, mapper.Query{Kind: "Account"}, 20, &mapper.SplitsOptions{Count: true})
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
		var decoded mapper.Split
		if err := errors.Join(err, json.Unmarshal(encoded, &decoded)); err != nil || !decoded.Query.Start.Equal(splits[3].Query.Start) || !decoded.Query.End.Equal(splits[4].Query.Start) {
			t.Errorf("%s, %v", encoded, err)
		}
	})
}

// TestSplitsUnsampled splits where the database has no scatter keys, as Google's Firestore
// emulator.
func TestSplitsUnsampled(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{emulator: emulator.Options{Scatter: 1 << 16}})
		const n = 12_000
		w.putAccounts(names(n))
		splits, err := mapper.Splits(t.Context(), w.client, mapper.Query{Kind: "Account"}, 8, &mapper.SplitsOptions{Count: true})
		if err != nil || len(splits) != 8 {
			t.Fatalf("%d splits, %v", len(splits), err)
		}
		for i, s := range splits {
			if s.Entities != n/8 {
				t.Errorf("split %d has %d entities", i, s.Entities)
			}
		}
	})
	for _, scatter := range []int{512, 2048} { // or has few
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, setting{emulator: emulator.Options{Scatter: scatter}})
			w.putAccounts(names(12_000))
			splits, err := mapper.Splits(t.Context(), w.client, mapper.Query{Kind: "Account"}, 8, &mapper.SplitsOptions{Count: true})
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

// TestSplitsIndexes splits with the index that it asks for, and nothing else: the parts can be
// read.
func TestSplitsIndexes(t *testing.T) {
	t.Parallel()
	q := mapper.Query{Kind: "User", ShardBy: "userid", Filters: []mapper.Filter{mapper.Where("score", ">", 0.0)}}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{emulator: emulator.Options{Indexes: []byte("indexes: []")}})
		_, err := mapper.Splits(t.Context(), w.client, q, 5, nil)
		if !errors.Is(err, mapper.ErrArguments) {
			t.Fatal(err)
		}
		_, lines, _ := strings.Cut(err.Error(), "built:\n")
		lines, _, _ = strings.Cut(lines, "\nThe database says")
		w = newWorld(t, setting{emulator: emulator.Options{Indexes: []byte(lines)}})
		w.putUsers(rand.New(rand.NewPCG(1, 0)), 1000)
		splits, err := mapper.Splits(t.Context(), w.client, q, 5, &mapper.SplitsOptions{Count: true})
		if err != nil || len(splits) != 5 {
			t.Fatalf("%d splits, %v", len(splits), err)
		}
		for _, s := range splits {
			d, err := s.Query.Datastore()
			if err != nil {
				t.Fatal(err)
			}
			if found, err := w.client.GetAll(t.Context(), d, &[]user{}); err != nil || int64(len(found)) != s.Entities {
				t.Errorf("%d users of %d, %v", len(found), s.Entities, err)
			}
		}
	})
}

// TestSplitsRefused splits what can't be.
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
			"can't be read as it was":          {w.client, mapper.Query{Kind: "User", ReadTime: time.Now().Add(time.Hour)}, 2},
		} {
			if _, err := mapper.Splits(t.Context(), ask.client, ask.query, ask.n, nil); !errors.Is(err, mapper.ErrArguments) || !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%v, want an error with %q", err, want)
			}
		}
		if _, err := (mapper.Query{Kind: "User", AllNamespaces: true}).Datastore(); !errors.Is(err, mapper.ErrArguments) {
			t.Error(err)
		}
	})
}

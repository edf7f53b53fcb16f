package survey

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/datastore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/intercept"
	_ "github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// kindOf returns a source of entities. Its kind K has the IDs 1 to n. A quarter of them can be in a
// sample. The property V is half of the ID, and every fifth entity lacks V.
func kindOf(t *testing.T, n int) source.Source {
	t.Helper()
	client, err := emulator.ForTest(t, &emulator.Options{ScatterOneIn: 4}).DatastoreClient(t.Context(), "test",
		option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(intercept.Unary)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	var keys []*datastore.Key
	var all []datastore.PropertyList
	for i := 1; i <= n; i++ {
		list := datastore.PropertyList{{Name: "even", Value: i%2 == 0}}
		if i%5 != 0 {
			list = append(list, datastore.Property{Name: "V", Value: int64(i / 2)})
		}
		keys, all = append(keys, datastore.IDKey("K", int64(i), nil)), append(all, list)
	}
	for some := range slices.Chunk(keys, 500) {
		if _, err := client.PutMulti(t.Context(), some, all[:len(some)]); err != nil {
			t.Fatal(err)
		}
		all = all[len(some):]
	}
	return source.New(client, nil)
}

func id(n int64) *keyspace.Position { return keyspace.At(datastore.IDKey("K", n, nil)) }

// TestRun surveys ranges of a kind with 600 entities, with pages of ten.
func TestRun(t *testing.T) {
	whole := query.Query{Kind: "K"}
	even := []query.Filter{{Property: "even", Op: "=", Value: true}}
	for _, c := range []struct {
		name        string
		survey      Survey
		blind       bool  // whether the database can't count
		least, most int64 // bounds of the estimated number of entities
		exact       bool
		samples     bool // whether samples must be found
	}{
		{name: "the whole kind is estimated", survey: Survey{Query: whole}, least: 300, most: 1200, samples: true},
		{name: "a range of a page", survey: Survey{Query: whole, Start: id(1), End: id(8)}, least: 1, most: 10,
			samples: true},
		{name: "a range of some pages is counted", survey: Survey{Query: whole, Start: id(1), End: id(61)}, least: 60,
			most: 60, exact: true, samples: true},
		{name: "all that is known is an estimate: it is counted", survey: Survey{Query: whole, Refine: true},
			least: 300, most: 1200, samples: true},
		{name: "the database does not count", survey: Survey{Query: whole}, blind: true, least: 300, most: 1200,
			samples: true},
		{name: "some entities of the kind, of which there are many", survey: Survey{Query: query.Query{Kind: "K",
			Filters: even}}, least: split.MostCountedPieces, most: split.MostCountedPieces, samples: true},
		{name: "some entities of the kind, counted", survey: Survey{Query: query.Query{Kind: "K", Filters: even},
			Refine: true}, least: 300, most: 300, samples: true},
		{name: "few entities of the kind", survey: Survey{Query: query.Query{Kind: "K", Filters: even}, End: id(101)},
			least: 50, most: 50, exact: true, samples: true},
		{name: "some of them, and the database does not count", survey: Survey{Query: query.Query{Kind: "K",
			Filters: even}}, blind: true, least: 100, most: 1200, samples: true},
		{name: "by values", survey: Survey{Query: query.Query{Kind: "K", ShardBy: "V"}, Refine: true}, least: 480,
			most: 480, samples: true},
		{name: "another kind", survey: Survey{Query: query.Query{Kind: "L"}}, most: 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var used billing.Usage
				sv := c.survey
				sv.Source, sv.Page, sv.Used = kindOf(t, 600), 10, &used
				if c.blind {
					sv.Source.CantCount()
				}
				found, err := sv.Run(t.Context(), split.Strategy{}, 8)
				if err != nil || found.Estimate < c.least || found.Estimate > c.most || found.Exact != c.exact ||
					len(found.Samples) > 0 != c.samples || used.Reads == 0 {
					t.Errorf("%d, exact %v, %d samples, %d reads, %v", found.Estimate, found.Exact, len(found.Samples),
						used.Reads, err)
				}
				low, high := sv.bounds()
				for _, p := range found.Samples {
					if low != nil && keyspace.Compare(p, low) <= 0 || high != nil && keyspace.Compare(p, high) >= 0 {
						t.Errorf("the sample %v is not between %v and %v", p, low, high)
					}
				}
			})
		})
	}
}

// TestRunByCounts checks when a survey ends after it has counted the intervals between samples.
func TestRunByCounts(t *testing.T) {
	for _, c := range []struct {
		name string
		n    int
		// The number of entities that the read of the first page finds: the page, and one more.
		first   int
		workers int64
		pieces  bool
		exact   bool
	}{
		{"many pages", 600, 11, 8, true, false},
		{"one page", 8, 8, 8, false, true},
		{"one worker has it all", 600, 11, 1, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src, q := kindOf(t, c.n), query.Query{Kind: "K"}
				sv := Survey{Source: src, Query: q, Page: 10,
					Next: func() (first []*keyspace.Position, err error) {
						for i := range c.first {
							first = append(first, id(int64(i+1)))
						}
						return first, nil
					},
					CountPieces: func(pieces []split.Piece) []split.Piece {
						for i := range pieces {
							n, known := src.Count(t.Context(), q.Scans(pieces[i].Start, pieces[i].End), 1000)
							pieces[i].Estimate, pieces[i].Exact = n, known
						}
						return pieces
					}}
				found, err := sv.Run(t.Context(), split.Strategy{}, c.workers)
				if err != nil || len(found.Pieces) > 1 != c.pieces || found.Exact != c.exact {
					t.Fatalf("%+v, %v", found, err)
				}
				if c.exact && found.Estimate != int64(c.n) {
					t.Errorf("%d of %d", found.Estimate, c.n)
				}
				sum := int64(0)
				for i, p := range found.Pieces {
					if sum += p.Estimate; i > 0 && !p.Start.Equal(found.Pieces[i-1].End) {
						t.Errorf("piece %d starts at %v, and the previous one ends at %v", i, p.Start,
							found.Pieces[i-1].End)
					}
				}
				if c.pieces && (sum != int64(c.n) || found.Estimate != sum) {
					t.Errorf("the pieces have %d, the estimate is %d, and there are %d", sum, found.Estimate, c.n)
				}
			})
		})
	}
}

// TestEntitySize checks that the mean size is calculated from some of the entities.
func TestEntitySize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := kindOf(t, 100)
		sample := make([]*keyspace.Position, 40)
		for i := range sample {
			sample[i] = id(int64(i + 1))
		}
		for _, c := range []struct {
			name        string
			q           query.Query
			sample      []*keyspace.Position
			least, most int64
		}{
			{"of a sample", query.Query{Kind: "K"}, sample, 24, 45}, // "even" takes 4 + 12 + 8, V 1 + 12 + 8
			{"of the first ones by a value", query.Query{Kind: "K", ShardBy: "V"}, nil, 45, 45},
			{"of none", query.Query{Kind: "K"}, nil, 0, 0},
		} {
			size, err := Survey{Source: src, Query: c.q}.EntitySize(t.Context(), c.sample)
			if err != nil || size < c.least || size > c.most {
				t.Errorf("%s: %d, %v", c.name, size, err)
			}
		}
	})
}

// TestUnsharded checks how many entities lack the property in ShardBy.
func TestUnsharded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := kindOf(t, 100)
		for _, c := range []struct {
			name string
			q    query.Query
			want int64
		}{
			{"by keys", query.Query{Kind: "K"}, 0},
			{"by a property", query.Query{Kind: "K", ShardBy: "V"}, 20},
			{"by a property that all have", query.Query{Kind: "K", ShardBy: "even"}, 0},
			{"of some entities", query.Query{Kind: "K", ShardBy: "V",
				Filters: []query.Filter{{Property: "even", Op: "=", Value: true}}}, 10},
			{"of those with some values", query.Query{Kind: "K", ShardBy: "V",
				Filters: []query.Filter{{Property: "V", Op: ">", Value: int64(5)}}}, 0},
		} {
			if got := (Survey{Source: src, Query: c.q}).Unsharded(t.Context()); got != c.want {
				t.Errorf("%s: %d, want %d", c.name, got, c.want)
			}
		}
		src.CantCount()
		if got := (Survey{Source: src, Query: query.Query{Kind: "K", ShardBy: "V"}}).Unsharded(t.Context()); got >= 0 {
			t.Errorf("of a database that does not count: %d", got)
		}
	})
}

// TestParts cuts a kind of 600 entities into parts, and counts them.
func TestParts(t *testing.T) {
	for _, c := range []struct {
		name  string
		q     query.Query
		n     int
		blind bool
		want  string // numbers of entities in each part; -1: unknown
	}{
		{"one part", query.Query{Kind: "K"}, 1, false, "[600]"},
		{"four parts", query.Query{Kind: "K"}, 4, false, "[150 150 150 150]"},
		{"of a range", query.Query{Kind: "K", Start: id(301).Key}, 3, false, "[100 100 100]"},
		{"between values, each of which two have but for every fifth", query.Query{Kind: "K", ShardBy: "V"}, 2, false,
			"[240 240]"},
		{"of nothing", query.Query{Kind: "L"}, 4, false, "[0]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src := kindOf(t, 600)
				parts, err := Parts(t.Context(), src, c.q, c.n, true)
				var counts []int64
				for _, p := range parts {
					counts = append(counts, p.Entities)
				}
				if got := fmt.Sprint(counts); err != nil || got != c.want {
					t.Errorf("%s, %v, want %s", got, err, c.want)
				}
				if parts, err = Parts(t.Context(), src, c.q, c.n, false); err != nil || parts[0].Entities != -1 {
					t.Errorf("uncounted: %+v, %v", parts, err)
				}
				src.CantCount()
				parts, err = Parts(t.Context(), src, c.q, c.n, true)
				if err != nil && c.q.ShardBy == "" {
					t.Errorf("where nothing counts: %v", err)
				}
				for _, p := range parts {
					if p.Entities != -1 {
						t.Errorf("where nothing counts: %+v", p)
					}
				}
			})
		})
	}
}

// TestEvenly checks that the parts between the cuts have about the same number of entities.
func TestEvenly(t *testing.T) {
	at := func(n int) (all []*keyspace.Position) {
		for i := range n {
			all = append(all, id(int64(i+1)))
		}
		return all
	}
	for _, c := range []struct {
		counts []int64 // numbers of entities before each position, and after the last
		n      int
		want   string
	}{
		{[]int64{1, 1, 1, 1}, 2, "[/K,2]"}, {[]int64{1, 1, 1, 1}, 4, "[/K,1 /K,2 /K,3]"},
		{[]int64{1, 1, 1, 1}, 9, "[/K,1 /K,2 /K,3]"}, {[]int64{9, 1, 1, 1}, 2, "[/K,1]"},
		{[]int64{1, 1, 1, 9}, 2, "[/K,3]"}, {[]int64{0, 5, 0, 5}, 2, "[/K,3]"}, {[]int64{5, 0, 0, 0}, 2, "[]"},
		{[]int64{1, 1, 1, 1}, 1, "[]"},
	} {
		if got := fmt.Sprint(evenly(at(len(c.counts)-1), c.counts, c.n)); got != c.want {
			t.Errorf("%d in %d parts: %s, want %s", c.counts, c.n, got, c.want)
		}
	}
	for _, c := range []struct {
		all, n int
		want   string
	}{{3, 3, "[/K,1 /K,2 /K,3]"}, {10, 2, "[/K,3 /K,8]"}, {9, 3, "[/K,2 /K,5 /K,8]"}} {
		if got := fmt.Sprint(some(at(c.all), c.n)); got != c.want {
			t.Errorf("%d of %d: %s, want %s", c.n, c.all, got, c.want)
		}
	}
}

// TestCompare checks the number of entities in each part, for each way to cut a kind.
func TestCompare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ways, err := Compare(t.Context(), kindOf(t, 600), query.Query{Kind: "K"}, 4)
		if err != nil || len(ways) != 4 {
			t.Fatalf("%+v, %v", ways, err)
		}
		for _, w := range ways {
			sum, largest := int64(0), int64(0)
			for _, n := range w.Counts {
				sum, largest = sum+n, max(largest, n)
			}
			if sum != 600 || len(w.Counts) != 4 {
				t.Errorf("%s: %v", w.Name, w.Counts)
			}
			if (w.Name == "splits" || w.Name == "lexicographic") && largest > 151 { // the IDs are spread evenly
				t.Errorf("%s: %v", w.Name, w.Counts)
			}
			if (w.Asked < 0) != (w.Name == "splits") || w.Sampled > w.Asked {
				t.Errorf("%+v", w)
			}
		}
	})
}

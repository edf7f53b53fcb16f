package emulator_test

import (
	"errors"
	"fmt"
	"testing"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/googletest"
)

type book struct {
	Author string
	Year   int
	Tags   []string
	Blurb  string `datastore:",noindex"`
}

// library puts the entities that the query tests use.
func library(t *testing.T, client *datastore.Client) {
	t.Helper()
	shelf := datastore.NameKey("Shelf", "top", nil)
	other := datastore.NameKey("Book", "far", nil)
	other.Namespace = "elsewhere"
	books := map[*datastore.Key]*book{
		datastore.NameKey("Book", "a", nil):   {Author: "Ann", Year: 1990, Tags: []string{"x", "y"}, Blurb: "b"},
		datastore.NameKey("Book", "b", nil):   {Author: "Bob", Year: 1980, Tags: []string{"y"}, Blurb: "b"},
		datastore.NameKey("Book", "c", nil):   {Author: "Ann", Year: 2000, Blurb: "b"},
		datastore.IDKey("Book", 7, nil):       {Author: "Cid", Year: 1980, Blurb: "b"},
		datastore.NameKey("Book", "d", shelf): {Author: "Ann", Year: 1980, Tags: []string{"z"}, Blurb: "b"},
		datastore.NameKey("Note", "n", shelf): {Author: "Ann", Year: 1980, Blurb: "b"},
		other:                                 {Author: "Ann", Year: 1990, Blurb: "b"},
	}
	for key, b := range books {
		if _, err := client.Put(t.Context(), key, b); err != nil {
			t.Fatal(err)
		}
	}
}

func TestQueries(t *testing.T) {
	all := datastore.NewQuery("Book")
	shelf := datastore.NameKey("Shelf", "top", nil)
	cases := []struct {
		name  string
		query *datastore.Query
		want  []string
	}{
		{"kind", all, []string{`/Book,7`, `/Book,"a"`, `/Book,"b"`, `/Book,"c"`, `/Shelf,"top"/Book,"d"`}},
		{"namespace", all.Namespace("elsewhere"), []string{`/Book,"far"`}},
		{"ancestor", all.Ancestor(shelf), []string{`/Shelf,"top"/Book,"d"`}},
		{"ancestor itself", datastore.NewQuery("Shelf").Ancestor(shelf), nil},
		{"equality", all.FilterField("Author", "=", "Ann"),
			[]string{`/Book,"a"`, `/Book,"c"`, `/Shelf,"top"/Book,"d"`}},
		{"two equalities", all.FilterField("Author", "=", "Ann").FilterField("Year", "=", 1980),
			[]string{`/Shelf,"top"/Book,"d"`}},
		{"element of an array", all.FilterField("Tags", "=", "y"), []string{`/Book,"a"`, `/Book,"b"`}},
		{"unindexed", all.FilterField("Blurb", "=", "b"), nil},
		{"absent property", all.FilterField("Nope", "=", "b"), nil},
		{"no match", all.FilterField("Author", "=", "Nobody"), nil},
		{"unknown kind", datastore.NewQuery("Nothing"), nil},
		{"equality and key range", all.FilterField("Author", "=", "Ann").FilterField("__key__", ">",
			datastore.NameKey("Book", "a", nil)),
			[]string{`/Book,"c"`, `/Shelf,"top"/Book,"d"`}},
		{"equality and ancestor", all.FilterField("Author", "=", "Ann").Ancestor(shelf),
			[]string{`/Shelf,"top"/Book,"d"`}},
		{"order", all.Order("Year"), []string{`/Book,7`, `/Book,"b"`, `/Shelf,"top"/Book,"d"`, `/Book,"a"`,
			`/Book,"c"`}},
		{"descending order", all.Order("-Year").Order("__key__"), []string{`/Book,"c"`, `/Book,"a"`, `/Book,7`,
			`/Book,"b"`, `/Shelf,"top"/Book,"d"`}},
		{"two orders", all.Order("Author").Order("-Year"), []string{`/Book,"c"`, `/Book,"a"`, `/Shelf,"top"/Book,"d"`,
			`/Book,"b"`, `/Book,7`}},
		{"order leaves out who lacks it", all.Order("Tags").FilterField("Tags", "=", "z"),
			[]string{`/Shelf,"top"/Book,"d"`}},
		{"equality and order", all.FilterField("Author", "=", "Ann").Order("Year"),
			[]string{`/Shelf,"top"/Book,"d"`, `/Book,"a"`, `/Book,"c"`}},
		{"keys descending", all.Order("-__key__").Limit(2), []string{`/Shelf,"top"/Book,"d"`, `/Book,"c"`}},
		{"inequality", all.FilterField("Year", ">", 1980).Order("Year"), []string{`/Book,"a"`, `/Book,"c"`}},
		{"interval", all.FilterField("Year", ">=", 1980).FilterField("Year", "<", 2000),
			[]string{`/Book,7`, `/Book,"b"`, `/Shelf,"top"/Book,"d"`, `/Book,"a"`}},
		{"limit", all.Limit(2), []string{`/Book,7`, `/Book,"a"`}},
		{"no limit at all", all.Limit(0), nil},
		{"offset", all.Offset(1).Limit(2), []string{`/Book,"a"`, `/Book,"b"`}},
		{"offset beyond", all.Offset(9), nil},
		{"key equality", all.FilterField("__key__", "=", datastore.IDKey("Book", 7, nil)), []string{`/Book,7`}},
		{"key range", all.FilterField("__key__", ">=", datastore.NameKey("Book", "a", nil)).FilterField("__key__", "<",
			datastore.NameKey("Book", "c", nil)),
			[]string{`/Book,"a"`, `/Book,"b"`}},
		{"key range of another kind", all.FilterField("__key__", ">", datastore.IDKey("Cart", 1, nil)),
			[]string{`/Shelf,"top"/Book,"d"`}},
		{"empty key range", all.FilterField("__key__", ">=", datastore.NameKey("Book", "c", nil)).FilterField("__key__",
			"<", datastore.NameKey("Book", "a", nil)), nil},
	}
	onEach(t, func(t *testing.T, client *datastore.Client) {
		library(t, client)
		for _, c := range cases {
			want := c.want
			if want == nil {
				want = []string{}
			}
			if diff := cmp.Diff(want, keysOf(t, client, c.query)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.name, diff)
			}
		}
	})
}

// TestQueryReturnsEntities checks that a query without a projection returns whole entities.
func TestQueryReturnsEntities(t *testing.T) {
	onEach(t, func(t *testing.T, client *datastore.Client) {
		library(t, client)
		var books []book
		keys, err := client.GetAll(t.Context(), datastore.NewQuery("Book").FilterField("Tags", "=", "x"), &books)
		if err != nil {
			t.Fatal(err)
		}
		want := []book{{Author: "Ann", Year: 1990, Tags: []string{"x", "y"}, Blurb: "b"}}
		if diff := cmp.Diff(want, books); diff != "" || keys[0].Name != "a" {
			t.Errorf("keys %v, books (-want +got):\n%s", keys, diff)
		}
	})
}

// TestCursors reads a query in pieces of every size. Meanwhile, entities are put and deleted in the
// part that was already read.
func TestCursors(t *testing.T) {
	for _, order := range []string{"__key__", "-__key__", "Year", "-Year"} {
		t.Run(order, func(t *testing.T) {
			client := embedded(t, nil)
			const n = 40
			for i := range n {
				if _, err := client.Put(t.Context(), datastore.IDKey("Book", int64(i+100), nil),
					&book{Year: i % 3}); err != nil {
					t.Fatal(err)
				}
			}
			q := datastore.NewQuery("Book").Order(order).KeysOnly()
			want, err := client.GetAll(t.Context(), q, nil)
			if err != nil {
				t.Fatal(err)
			}
			for size := 1; size < n; size += 6 {
				var got []*datastore.Key
				var cursor datastore.Cursor
				for range n {
					it := client.Run(t.Context(), q.Start(cursor).Limit(size))
					for {
						key, err := it.Next(nil)
						if errors.Is(err, iterator.Done) {
							break
						}
						if err != nil {
							t.Fatal(err)
						}
						got = append(got, key)
					}
					if cursor, err = it.Cursor(); err != nil {
						t.Fatal(err)
					}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("pieces of %d (-want +got):\n%s", size, diff)
				}
			}
			// A start cursor also works as an end cursor, even if its entity was deleted.
			it := client.Run(t.Context(), q.Limit(10))
			for range 10 {
				if _, err := it.Next(nil); err != nil {
					t.Fatal(err)
				}
			}
			cursor, err := it.Cursor()
			if err != nil {
				t.Fatal(err)
			}
			if err := client.Delete(t.Context(), want[9]); err != nil {
				t.Fatal(err)
			}
			before, err := client.GetAll(t.Context(), q.End(cursor), nil)
			if err != nil {
				t.Fatal(err)
			}
			after, err := client.GetAll(t.Context(), q.Start(cursor), nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(append(want[:9:9], want[10:]...), append(before, after...)); diff != "" ||
				len(before) != 9 {
				t.Errorf("%d before the cursor (-want +got):\n%s", len(before), diff)
			}
		})
	}
}

func TestCursorOfAnotherQueryIsRefused(t *testing.T) {
	client := embedded(t, nil)
	library(t, client)
	it := client.Run(t.Context(), datastore.NewQuery("Book").Limit(1))
	if _, err := it.Next(&book{}); err != nil {
		t.Fatal(err)
	}
	cursor, err := it.Cursor()
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.GetAll(t.Context(), datastore.NewQuery("Book").Order("Year").Start(cursor).KeysOnly(), nil)
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("error %v, want InvalidArgument", err)
	}
}

// TestBatches reads queries with more results than one call returns, and with fewer.
func TestBatches(t *testing.T) {
	for _, n := range []int{0, 1, 299, 300, 301, 1000} {
		e := emulator.ForTest(t, nil)
		client, err := e.DatastoreClient(t.Context(), googletest.Project())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		var keys []*datastore.Key
		for i := range n {
			keys = append(keys, datastore.NameKey("K", fmt.Sprintf("%05d", i), nil))
		}
		putAll(t, client, keys)
		before := e.Usage()
		if got := keysOf(t, client, datastore.NewQuery("K")); len(got) != n {
			t.Errorf("%d entities: the query returned %d", n, len(got))
		}
		if calls := e.Usage().Sub(before).RPCs["RunQuery"]; calls > int64(n/300+1) {
			t.Errorf("%d entities: %d calls of RunQuery", n, calls)
		}
	}
}

// TestLargeResults reads more bytes than fit into one answer, by a query and by a lookup.
func TestLargeResults(t *testing.T) {
	client := embedded(t, nil)
	type page struct {
		Text []byte `datastore:",noindex"`
	}
	var keys []*datastore.Key
	for i := range 20 {
		key := datastore.IDKey("Page", int64(i+1), nil)
		keys = append(keys, key)
		if _, err := client.Put(t.Context(), key, &page{make([]byte, 900<<10)}); err != nil {
			t.Fatal(err)
		}
	}
	var pages []page
	if _, err := client.GetAll(t.Context(), datastore.NewQuery("Page"), &pages); err != nil || len(pages) != len(keys) {
		t.Errorf("query: %d of %d, %v", len(pages), len(keys), err)
	}
	found := make([]page, len(keys))
	if err := client.GetMulti(t.Context(), keys, found); err != nil {
		t.Errorf("lookup: %v", err)
	}
	// These entities have the largest size. Only a few fit into an answer.
	for _, k := range keys[:5] {
		if _, err := client.Put(t.Context(), k, &page{make([]byte, 1048572-100)}); err != nil {
			t.Fatal(err)
		}
	}
	pages = nil
	if _, err := client.GetAll(t.Context(), datastore.NewQuery("Page"), &pages); err != nil || len(pages) != len(keys) {
		t.Errorf("query of the largest: %d of %d, %v", len(pages), len(keys), err)
	}
	if err := client.GetMulti(t.Context(), keys, found); err != nil {
		t.Errorf("lookup of the largest: %v", err)
	}
	_, err := client.Put(t.Context(), keys[0], &page{make([]byte, 1<<20)})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("an entity above the limit: %v, want InvalidArgument", err)
	}
}

func TestAggregations(t *testing.T) {
	onEach(t, func(t *testing.T, client *datastore.Client) {
		if on(t, "google") {
			t.Skip("left out: Google's classic emulator has no aggregations")
		}
		library(t, client)
		q := datastore.NewQuery("Book")
		for _, c := range []struct {
			name string
			q    *datastore.AggregationQuery
			want map[string]int64
		}{
			{"count and sum", q.NewAggregationQuery().WithCount("n").WithSum("Year", "years"),
				map[string]int64{"n": 5, "years": 9930}},
			{"filtered", q.FilterField("Author", "=", "Ann").NewAggregationQuery().WithCount("n"),
				map[string]int64{"n": 3}},
			{"limited", q.Limit(2).NewAggregationQuery().WithCount("n"), map[string]int64{"n": 2}},
			{"nothing", datastore.NewQuery("Nothing").NewAggregationQuery().WithCount("n").WithSum("Year", "s"),
				map[string]int64{"n": 0, "s": 0}},
		} {
			result, err := client.RunAggregationQuery(t.Context(), c.q)
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
				continue
			}
			for alias, want := range c.want {
				if got := integer(result[alias]); got != want {
					t.Errorf("%s: %s is %d, want %d", c.name, alias, got, want)
				}
			}
		}
	})
}

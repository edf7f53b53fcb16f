package planner

import (
	"testing"
	"testing/synctest"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestSpaces plans ranges over the kind K, with 5 entities, and the kind L, with 25, each in the
// namespaces a and b.
func TestSpaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := emulator.ForTest(t, nil).DatastoreClient(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		for _, namespace := range []string{"a", "b"} {
			kindIn(t, client, keyspace.Space{Namespace: namespace, Kind: "K"}, 5)
			kindIn(t, client, keyspace.Space{Namespace: namespace, Kind: "L"}, 25)
		}
		root := record.RangeID(record.Ref{ID: "j"}.String(), 0)
		start := func(namespace, kind string) *keyspace.Position {
			return &keyspace.Position{Namespace: namespace, Kind: kind}
		}
		for _, c := range []struct {
			name    string
			r       record.Range
			workers int64
			want    string
		}{
			{"the root, for one worker, who goes through them", record.Range{ID: root}, 1,
				"a/K 1 to a/K 5, next a/L 1"},
			{"the root, for four: each a range of spaces", record.Range{ID: root}, 4,
				"nothing, first cut into [,a/L) [a/L,b/K) [b/K,b/L) [b/L,)"},
			{"a space that ends with the page", record.Range{Start: start("b", "K")}, 1, "b/K 1 to b/K 5, next b/L 1"},
			{"the first space is more than a page: it gets a range of its own", record.Range{Start: start("a", "L")}, 1,
				"nothing, first cut into [a/L,a/L) [a/L,)"},
			{"it has one", record.Range{Start: start("a", "L"), End: keyspace.Space{Namespace: "a", Kind: "L"}.End(),
				Namespace: "a", Kind: "L"}, 1, "a/L 1 to a/L 10, next a/L 11"},
			{"it ends with the range: it is planned as one", record.Range{Start: start("a", "L"),
				End: keyspace.Space{Namespace: "a", Kind: "L"}.End()}, 1, "a/L 1 to a/L 10, next a/L 11"},
			{"the last page of all", record.Range{Start: &keyspace.Position{Namespace: "b", Kind: "M"}}, 1, "nothing"},
			{"a suspected page stays together",
				record.Range{Start: start("a", "K"), Suspicion: record.Suspicion{Solo: true},
					Narrowed: 2}, 1, "a/K 1 to a/K 2, next a/K 3"},
		} {
			p, r := plannerOf(client, query.Query{Kinds: []string{"K", "L"}, Namespaces: []string{"a", "b"}},
				c.workers), c.r
			if r.PageSize, r.Workers = 10, c.workers; r.ID == "" {
				r.ID = "r"
			}
			plan, err := p.Plan(t.Context(), p.job, &r)
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
				continue
			}
			if got := said(plan); got != c.want {
				t.Errorf("%s: %s\nwant %s", c.name, got, c.want)
			}
			p.Close()
		}
	})
}

package emulator_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
)

// explained returns the plan and the cost of a query as text. The indexes come first, with their
// scopes.
func explained(m *datastore.ExplainMetrics) string {
	var parts []string
	for _, x := range m.PlanSummary.IndexesUsed {
		parts = append(parts, fmt.Sprint((*x)["query_scope"], " ", (*x)["properties"]))
	}
	if s := m.ExecutionStats; s != nil {
		debug := *s.DebugStats
		parts = append(parts, fmt.Sprintf("%d results, %d reads, %v entries, %v documents", s.ResultsReturned,
			s.ReadOperations, debug["index_entries_scanned"], debug["documents_scanned"]))
		billing := debug["billing_details"].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(billing)) {
			parts = append(parts, fmt.Sprint(name, " ", billing[name]))
		}
	}
	return strings.Join(parts, "; ")
}

// TestExplain checks the plans and costs of queries. Some of the expected values are from the
// system tests of Google's clients for Go, Node.js and Python, which run in production. The others
// are in the same notation.
func TestExplain(t *testing.T) {
	client := embedded(t, nil)
	shelf := datastore.NameKey("Shelf", "s", nil)
	var keys []*datastore.Key
	var books []book
	for i := range 8 {
		keys, books = append(keys, datastore.IDKey("Book", int64(i+1), shelf)),
			append(books, book{Author: "Ann", Year: i % 3})
	}
	if _, err := client.PutMulti(t.Context(), keys, books); err != nil {
		t.Fatal(err)
	}
	billed := func(documents, entries, least, small int) string {
		return fmt.Sprintf("; documents_billable %d; index_entries_billable %d; min_query_cost %d; small_ops %d",
			documents, entries, least, small)
	}
	all := datastore.NewQuery("Book")
	for _, c := range []struct {
		name  string
		query *datastore.Query
		want  string
	}{
		{"kind", all, "Collection group (__name__ ASC); 8 results, 8 reads, 8 entries, 8 documents" +
			billed(8, 0, 0, 0)},
		{"ancestor", all.Ancestor(shelf),
			"Collection group (__name__ ASC); 8 results, 8 reads, 8 entries, 8 documents" + billed(8, 0, 0, 0)},
		{"limit", all.Limit(3), "Collection group (__name__ ASC); 3 results, 3 reads, 3 entries, 3 documents" +
			billed(3, 0, 0, 0)},
		{"ancestor, equality and order", all.Ancestor(shelf).FilterField("Author", "=", "Ann").Order("Year"),
			"Includes ancestors (Author ASC, Year ASC, __name__ ASC); 8 results, 8 reads, 8 entries, 8 documents" +
				billed(8, 0, 0, 0)},
		{"equalities", all.FilterField("Author", "=", "Ann").FilterField("Year", "=", 1),
			"Collection group (Author ASC, __name__ ASC); Collection group (Year ASC, __name__ ASC); 3 results, 3 " +
				"reads, 3 entries, 3 documents" + billed(3, 0, 0, 0)},
		{"disjunctions", all.FilterField("Year", "in", []any{1, 2}),
			"Collection group (Year ASC, __name__ ASC); 5 results, 5 reads, 5 entries, 5 documents" +
				billed(5, 0, 0, 0)},
		{"descending", all.Order("-Year"),
			"Collection group (Year DESC, __name__ ASC); 8 results, 8 reads, 8 entries, 8 documents" +
				billed(8, 0, 0, 0)},
		{"descending keys", all.Order("-__key__"),
			"Collection group (__name__ DESC); 8 results, 8 reads, 8 entries, 8 documents" + billed(8, 0, 0, 0)},
		{"what is filtered behind the index", all.FilterField("Author", ">", "A").FilterField("Year", "=",
			1).FilterField("__key__", ">", keys[3]),
			"Collection group (Year ASC, Author ASC, __name__ ASC); 2 results, 2 reads, 3 entries, 2 documents" +
				billed(2, 0, 0, 0)},
		{"keys", all.KeysOnly(), "Collection group (__name__ ASC); 8 results, 1 reads, 8 entries, 0 documents" +
			billed(0, 0, 1, 8)},
		{"projection", all.Project("Year"),
			"Collection group (Year ASC, __name__ ASC); 8 results, 1 reads, 8 entries, 0 documents" +
				billed(0, 0, 1, 8)},
		{"nothing", all.FilterField("Year", "=", 9),
			"Collection group (Year ASC, __name__ ASC); 0 results, 1 reads, 0 entries, 0 documents" +
				billed(0, 0, 1, 0)},
	} {
		t.Run(c.name, func(t *testing.T) {
			var found []book
			result, err := client.GetAllWithOptions(t.Context(), c.query, &found,
				datastore.ExplainOptions{Analyze: true})
			if err != nil {
				t.Fatal(err)
			}
			if got := explained(result.ExplainMetrics); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			plan, _, _ := strings.Cut(c.want, fmt.Sprintf("; %d results", len(result.Keys)))
			if result, err = client.GetAllWithOptions(t.Context(), c.query, &found,
				datastore.ExplainOptions{}); err != nil {
				t.Fatal(err)
			}
			if got := explained(result.ExplainMetrics); got != plan {
				t.Errorf("the plan alone: got  %s\nwant %s", got, plan)
			}
		})
	}
	for _, c := range []struct {
		name  string
		query *datastore.AggregationQuery
		want  string
	}{
		{"sum of descendants", all.Ancestor(shelf).NewAggregationQuery().WithSum("Year", "s"),
			"Includes ancestors (Year ASC, __name__ ASC); 1 results, 1 reads, 8 entries, 0 documents" +
				billed(0, 8, 0, 0)},
		{"count", all.NewAggregationQuery().WithCount("n"),
			"Collection group (__name__ ASC); 1 results, 1 reads, 8 entries, 0 documents" + billed(0, 8, 0, 0)},
		{"count of nothing", datastore.NewQuery("None").NewAggregationQuery().WithCount("n"),
			"Collection group (__name__ ASC); 1 results, 1 reads, 0 entries, 0 documents" + billed(0, 0, 1, 0)},
	} {
		t.Run(c.name, func(t *testing.T) {
			result, err := client.RunAggregationQueryWithOptions(t.Context(), c.query,
				datastore.ExplainOptions{Analyze: true})
			if err != nil {
				t.Fatal(err)
			}
			if got := explained(result.ExplainMetrics); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestExplainEnforced checks that a plan names the indexes of an index.yaml which serve the query
// together.
func TestExplainEnforced(t *testing.T) {
	client := embedded(t, &emulator.Options{Indexes: []byte("indexes:\n" +
		"- kind: Book\n  properties:\n  - name: Author\n  - name: Blurb\n" +
		"- kind: Book\n  properties:\n  - name: Year\n  - name: Blurb\n")})
	query := datastore.NewQuery("Book").FilterField("Author", "=", "Ann").FilterField("Year", "=", 1).Order("Blurb")
	result, err := client.GetAllWithOptions(t.Context(), query, new([]book), datastore.ExplainOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const want = "Collection group (Author ASC, Blurb ASC, __name__ ASC); Collection group (Year ASC, Blurb ASC, " +
		"__name__ ASC)"
	if got := explained(result.ExplainMetrics); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

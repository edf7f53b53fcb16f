package emulator_test

import (
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
)

// TestEnforcedIndexes runs queries with an index.yaml: some that its indexes serve, and some that
// need another index. The error names the missing index. It checks that the query succeeds once
// this index is added.
func TestEnforcedIndexes(t *testing.T) {
	const file = "indexes:\n- kind: Book\n  properties:\n  - name: Author\n  - name: Year\n"
	client := embedded(t, &emulator.Options{Indexes: []byte(file)})
	library(t, client)
	byAuthor := datastore.NewQuery("Book").FilterField("Author", "=", "Ann")
	if got := keysOf(t, client, byAuthor.Order("Year")); len(got) != 3 {
		t.Errorf("with its index: %v", got)
	}
	query := byAuthor.Order("-Year").KeysOnly()
	_, err := client.GetAll(t.Context(), query, nil)
	if status.Code(err) != codes.FailedPrecondition {
		t.Fatalf("without an index: %v, want FailedPrecondition", err)
	}
	_, lines, found := strings.Cut(status.Convert(err).Message(), "recommended index is:\n")
	if !found {
		t.Fatalf("the error has no index: %v", err)
	}
	sums := byAuthor.NewAggregationQuery().WithSum("Year", "s").WithAvg("Pages", "a")
	if _, err := client.RunAggregationQuery(t.Context(), sums); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("what is added up is in no index: %v, want FailedPrecondition", err)
	}
	client = embedded(t, &emulator.Options{Indexes: []byte(file + lines)})
	library(t, client)
	if keys, err := client.GetAll(t.Context(), query, nil); err != nil || len(keys) != 3 {
		t.Errorf("with the recommended index: %v, %v", keys, err)
	}
}

// TestProjectionIndexes checks that an index serves a projection of its properties, whatever their
// order and directions in the index. The results have the order of the index.
func TestProjectionIndexes(t *testing.T) {
	const file = "indexes:\n- kind: Book\n  properties:\n  - name: Year\n    direction: desc\n  - name: Author\n"
	client := embedded(t, &emulator.Options{Indexes: []byte(file)})
	for _, b := range []book{{Author: "Ann", Year: 1}, {Author: "Bob", Year: 2}, {Author: "Cid", Year: 2}} {
		if _, err := client.Put(t.Context(), datastore.NameKey("Book", b.Author, nil), &b); err != nil {
			t.Fatal(err)
		}
	}
	for name, q := range map[string]*datastore.Query{
		"plain":    datastore.NewQuery("Book").Project("Author", "Year"),
		"ordered":  datastore.NewQuery("Book").Project("Author", "Year").Order("-Year"),
		"distinct": datastore.NewQuery("Book").Project("Author", "Year").Order("-Year").Distinct(),
	} {
		var got []book
		if _, err := client.GetAll(t.Context(), q, &got); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(got) != 3 || got[0].Author != "Bob" || got[1].Author != "Cid" || got[2].Author != "Ann" {
			t.Errorf("%s: %v, want Bob, Cid, Ann: the order of the index", name, got)
		}
	}
	for name, q := range map[string]*datastore.Query{
		"another order":     datastore.NewQuery("Book").Project("Author", "Year").Order("Author"),
		"another direction": datastore.NewQuery("Book").Project("Author", "Year").Order("Year"),
		"one more":          datastore.NewQuery("Book").Project("Author", "Year", "Pages"),
	} {
		if _, err := client.GetAll(t.Context(), q, new([]book)); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s: %v, want FailedPrecondition", name, err)
		}
	}
}

// TestExplodingIndex puts an entity whose arrays have too many combinations of values for an index.
// A query that orders by these properties is refused, before and after the index is built. A query
// that compares them for equality finds the entity, because it merges indexes of single properties,
// as in production.
func TestExplodingIndex(t *testing.T) {
	client := embedded(t, nil)
	type lists struct {
		A, B, C []int
		N       int
	}
	put := func(name string, n int) {
		t.Helper()
		l := &lists{N: n}
		for i := range n {
			l.A, l.B, l.C = append(l.A, i), append(l.B, -i), append(l.C, i%7)
		}
		if _, err := client.Put(t.Context(), datastore.NameKey("Lists", name, nil), l); err != nil {
			t.Fatal(err)
		}
	}
	all := datastore.NewQuery("Lists")
	byA := all.FilterField("A", "=", 1)
	put("few", 10)
	if got := keysOf(t, client, all.Order("A").Order("B")); len(got) != 1 {
		t.Errorf("found %v", got)
	}
	for i := range 2 { // the existing indexes lack the second entity
		for name, q := range map[string]*datastore.Query{
			"two arrays":        byA.FilterField("B", "=", -2),
			"three arrays":      byA.FilterField("B", "=", -2).FilterField("C", "=", 3),
			"one array, twice":  byA.FilterField("A", "=", 2).FilterField("B", "=", -3),
			"keys descending":   byA.FilterField("B", "=", -2).Order("-__key__"),
			"ordered":           byA.FilterField("B", "=", -2).Order("-N"),
			"ordered by itself": byA.Order("-A"),
			"by another array":  byA.Order("B"),
			"with an ancestor": byA.FilterField("B", "=", -2).Order("C").Ancestor(
				datastore.NameKey("Lists", []string{"few", "many"}[i], nil)),
			"either": all.FilterEntity(datastore.OrFilter{Filters: []datastore.EntityFilter{
				datastore.AndFilter{Filters: []datastore.EntityFilter{
					datastore.PropertyFilter{FieldName: "A", Operator: "=", Value: 1},
					datastore.PropertyFilter{FieldName: "B", Operator: "=", Value: -1}}},
				datastore.PropertyFilter{FieldName: "C", Operator: "=", Value: 2},
			}}),
		} {
			want := []string{"few", "many"}[: 1+i : 1+i]
			switch name {
			case "with an ancestor":
				want = want[i:]
			case "ordered", "keys descending", "by another array":
				want = slices.Clone(want)
				slices.Reverse(want)
			}
			for n, id := range want {
				want[n] = describe(datastore.NameKey("Lists", id, nil))
			}
			if got := keysOf(t, client, q); !slices.Equal(got, want) {
				t.Errorf("%s: found %v, want %v", name, got, want)
			}
			if n, err := client.Count(t.Context(), q); n != len(want) || err != nil {
				t.Errorf("%s: counted %d, %v, want %d", name, n, err, len(want))
			}
		}
		if i == 0 {
			put("many", 200) // two arrays with 40,000 combinations
		}
	}
	for index, q := range map[string]*datastore.Query{
		"(A, B)": all.Order("A").Order("B"), "(A, -B)": byA.Order("A").Order("-B"),
	} {
		_, err := client.GetAll(t.Context(), q.KeysOnly(), nil)
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), `"Lists"`) ||
			!strings.Contains(err.Error(), index) {
			t.Errorf("error %v, want one that names the kind and the index %s", err, index)
		}
	}
	if got := keysOf(t, client, byA); len(got) != 2 {
		t.Errorf("by one property: found %v", got)
	}
}

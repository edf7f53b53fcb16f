package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/internal/testflag"
)

// twins returns a store with random comments, and a client of another Datastore with the same
// comments in one kind. The keys are the same in both.
func twins(t *testing.T, rng *rand.Rand, databases, n int) (*datastore.Client, *Store, []*datastore.Key) {
	t.Helper()
	s := newStore(t, databases)
	lists := make([]datastore.PropertyList, n)
	keys := make([]*datastore.Key, n)
	for i := range lists {
		keys[i], lists[i] = plain(0), someComment(rng)
	}
	keys, err := s.PutMulti(t.Context(), keys, lists)
	if err != nil {
		t.Fatal(err)
	}
	clear(lists)
	lists = make([]datastore.PropertyList, n)
	if err := s.GetMulti(t.Context(), keys, lists); err != nil {
		t.Fatal(err)
	}
	client := plainClient(t)
	if _, err := client.PutMulti(t.Context(), keys, lists); err != nil {
		t.Fatal(err)
	}
	return client, s, keys
}

// someComment returns a random comment. Its properties have values of several types, several
// values, or none.
func someComment(rng *rand.Rand) datastore.PropertyList {
	list := datastore.PropertyList{
		{Name: "Order", Value: orders[rng.IntN(len(orders))]},
		{Name: "Status", Value: statuses[rng.IntN(3)]},
		{Name: "Text", Value: "well done", NoIndex: true},
		{Name: "Created", Value: time.Date(2024, 1, 1, 0, 0, rng.IntN(20), 0, time.UTC)},
	}
	if rng.IntN(3) > 0 {
		list = append(list, datastore.Property{Name: "Author",
			Value: []string{"", "ann", "bob", "bo\x00b", "bo"}[rng.IntN(5)]})
	}
	if rng.IntN(3) > 0 {
		list = append(list,
			datastore.Property{Name: "Score", Value: []any{nil, int64(-3), int64(0), int64(5), -2.5, 5.0,
				true, "five",
				time.Unix(5, 0).UTC(), []byte("b"), datastore.GeoPoint{Lat: 1, Lng: -1}, plain(5)}[rng.IntN(12)]})
	}
	if rng.IntN(2) > 0 {
		tags := []any{}
		for range rng.IntN(4) {
			tags = append(tags, []any{"a", "b", "c", int64(1)}[rng.IntN(4)])
		}
		list = append(list, datastore.Property{Name: "Tags", Value: tags})
	}
	return list
}

// someQuery returns a random query, and a description of it.
func someQuery(rng *rand.Rand, keys []*datastore.Key) (*datastore.Query, string) {
	q := datastore.NewQuery(plainKind)
	var what []string
	say := func(format string, args ...any) { what = append(what, fmt.Sprintf(format, args...)) }
	filter := func(name, op string, value any) {
		q = q.FilterField(name, op, value)
		say("%s %s %v", name, op, value)
	}
	key := func() *datastore.Key { return keys[rng.IntN(len(keys))] }
	values := map[string]func() any{
		"Order": func() any { return orders[rng.IntN(len(orders))] }, "Status": func() any {
			return statuses[rng.IntN(3)]
		},
		"Author":  func() any { return []string{"", "ann", "bo", "bob"}[rng.IntN(4)] },
		"Score":   func() any { return []any{int64(0), int64(5), 5.0, "five", nil}[rng.IntN(5)] },
		"Tags":    func() any { return []any{"a", "b", "c", int64(1)}[rng.IntN(4)] },
		"Created": func() any { return time.Date(2024, 1, 1, 0, 0, rng.IntN(20), 0, time.UTC) },
		"__key__": func() any { return key() },
	}
	names := []string{"Order", "Order", "Status", "Author", "Score", "Tags", "Created", "__key__"}
	for range rng.IntN(3) {
		name := names[rng.IntN(len(names))]
		switch op := []string{"=", "=", "=", "in", "in", "<", "<=", ">", ">=", "!=", "not-in"}[rng.IntN(11)]; op {
		case "in", "not-in":
			filter(name, op, []any{values[name](), values[name]()})
		default:
			filter(name, op, values[name]())
		}
	}
	if rng.IntN(8) == 0 {
		either := datastore.OrFilter{Filters: []datastore.EntityFilter{
			datastore.PropertyFilter{FieldName: "Order", Operator: "=", Value: values["Order"]()},
			datastore.PropertyFilter{FieldName: "Status", Operator: "=", Value: values["Status"]()},
		}}
		q = q.FilterEntity(either)
		say("%+v", either)
	}
	if rng.IntN(12) == 0 {
		ancestor := []*datastore.Key{key(), datastore.NameKey("Shop", "x", nil)}[rng.IntN(2)]
		q = q.Ancestor(ancestor)
		say("below %v", ancestor)
	}
	rng.Shuffle(len(names), func(i, k int) { names[i], names[k] = names[k], names[i] })
	var ordered []string
	for _, name := range slices.Compact(names[:rng.IntN(4)]) {
		if slices.Contains(ordered, name) {
			continue
		}
		ordered = append(ordered, name)
		minus := []string{"", "-"}[rng.IntN(2)]
		q = q.Order(minus + name)
		say("by %s%s", minus, name)
	}
	switch rng.IntN(8) {
	case 0:
		q = q.KeysOnly()
		say("keys")
	case 1, 2:
		some := []string{"Order", "Status", "Author", "Created", "Tags", "Score"}
		rng.Shuffle(len(some), func(i, k int) { some[i], some[k] = some[k], some[i] })
		some = some[:1+rng.IntN(2)]
		q = q.Project(some...)
		say("only %v", some)
		switch rng.IntN(4) {
		case 0:
			q = q.Distinct()
			say("distinct")
		case 1:
			q = q.DistinctOn(some[0])
			say("distinct on %s", some[0])
		}
	}
	if rng.IntN(3) == 0 {
		n := rng.IntN(12)
		q = q.Limit(n)
		say("limit %d", n)
	}
	if rng.IntN(4) == 0 {
		n := []int{1, 5, 40, 1000}[rng.IntN(4)]
		q = q.Offset(n)
		say("offset %d", n)
	}
	return q, strings.Join(what, ", ")
}

// answers returns all results of a query, their count, and the results again, read page by page.
func answers(ctx context.Context, client Verbs, q *datastore.Query, pages int) (all []string, err error) {
	var lists []datastore.PropertyList
	keys, err := client.GetAll(ctx, q, &lists)
	if err != nil {
		return nil, err
	}
	for i, key := range keys {
		line := key.String()
		if i < len(lists) {
			slices.SortFunc(lists[i], func(a, b datastore.Property) int { return strings.Compare(a.Name, b.Name) })
			line += fmt.Sprintf(" %v", lists[i])
		}
		all = append(all, line)
	}
	n, err := client.Count(ctx, q)
	if err != nil {
		return nil, err
	}
	all = append(all, fmt.Sprint("count ", n))
	for page := 0; pages > 0; page++ {
		it := client.Run(ctx, q)
		line := "page"
		for i := 0; ; i++ {
			if i == pages { // continue from a cursor in the middle of a batch, and from one at its end
				if page%2 == 0 {
					q = q.Offset(0)
					break
				}
			}
			key, err := it.Next(nil)
			if errors.Is(err, iterator.Done) {
				return append(all, line), nil
			}
			if err != nil {
				return nil, err
			}
			line += " " + key.String()
		}
		all = append(all, line)
		c, err := it.Cursor()
		if err != nil {
			return nil, err
		}
		q = q.Start(c).Limit(-1)
	}
	return all, nil
}

// TestSameQueries compares the store with a single kind that has the same comments. Random queries
// must have the same results in the same order, or the same error code. Errors must say what the
// store does not support.
func TestSameQueries(t *testing.T) {
	seed := testflag.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, databases := range []int{1, 4} {
		client, s, keys := twins(t, rng, databases, 80)
		found, refused, queries := 0, 0, testflag.Size(t, 100, 100, 200)
		for i := range queries {
			q, what := someQuery(rng, keys)
			pages := []int{0, 0, 7, 40}[rng.IntN(4)]
			want, wrong := answers(t.Context(), client, q, pages)
			got, err := answers(t.Context(), s, q, pages)
			switch {
			case err != nil && wrong == nil && (strings.Contains(err.Error(), "several values") ||
				strings.Contains(err.Error(), "ask for whole")):
				refused++
			case (err == nil) != (wrong == nil) || status.Code(err) != status.Code(wrong):
				t.Fatalf("seed %d, query %d of %s: error %v, want %v", seed, i, what, err, wrong)
			case !slices.Equal(got, want):
				t.Fatalf("seed %d, query %d of %s, pages of %d:\ngot  %q\nwant %q", seed, i, what, pages, got, want)
			}
			found += min(1, len(want)/2)
		}
		if found < queries/4 || refused > queries/10 {
			t.Errorf("%d of %d queries found something, and %d were refused", found, queries, refused)
		}
	}
}

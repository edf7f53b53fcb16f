package mapper_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/scattermap/scattermap/mapper"
)

type (
	address struct {
		City string
		Zip  string `datastore:",noindex"`
	}
	audit struct{ Created, Seen time.Time }
	// A patron is stored by the client in each of its ways.
	patron struct {
		audit
		Name    string
		Seats   int
		Large   bool
		Ratio   float32
		Nick    string  `datastore:"nick,omitempty"`
		Bio     string  `datastore:",noindex"`
		Age     *int    `datastore:"age"`
		Limit   *int    `datastore:",omitempty"`
		Home    address `datastore:",flatten"`
		Work    address
		Old     *address
		Homes   []address
		Tags    []string
		Photo   []byte `datastore:",noindex"`
		Boss    *datastore.Key
		Where   datastore.GeoPoint
		Any     any
		Ignored int `datastore:"-"`
	}
	// A plain patron has no embedded struct, so that its fields are compared one by one.
	plainPatron struct {
		Seen  time.Time
		Name  string
		Seats int
		Large bool
		Ratio float32
		Nick  string   `datastore:"nick,omitempty"`
		Bio   string   `datastore:",noindex"`
		Home  address  `datastore:",flatten"`
		Work  address  `datastore:",noindex"`
		Old   *address `datastore:",omitempty"`
		Tags  []string `datastore:",noindex"`
		Photo []byte   `datastore:",noindex"`
		Boss  *datastore.Key
	}
	// A selfMade patron saves itself, as what it says only then.
	selfMade struct{ Name string }
)

func (u *selfMade) Load(p []datastore.Property) error {
	for _, x := range p {
		if x.Name == "Name" {
			u.Name, _ = x.Value.(string)
		}
	}
	return nil
}

func (u *selfMade) Save() ([]datastore.Property, error) {
	return []datastore.Property{{Name: "Name", Value: u.Name}, {Name: "Lower", Value: strings.ToLower(u.Name)},
		{Name: "Length", Value: len(u.Name), NoIndex: true}}, nil
}

// TestResaveStoresWhatPutDoes runs mappers that resave over entities that were stored by older
// types: what is there afterwards is what the client's Put of their structs stores, and what those
// do not declare. A second job over them writes nothing.
func TestResaveStoresWhatPutDoes(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 23, 1, 2, 3, 4567, time.UTC)
	name := func(v string) datastore.Property { return datastore.Property{Name: "Name", Value: v} }
	stored := []datastore.PropertyList{
		{},
		{name("Ann"), {Name: "Seats", Value: int64(11)}},
		{name("Bob"), {Name: "Seats", Value: int64(3)}, {Name: "undeclared", Value: []any{int64(1), "x"},
			NoIndex: true}},
		{name("Cy"), {Name: "Seats", Value: nil}, {Name: "nick", Value: ""}, {Name: "Limit", Value: nil},
			{Name: "Bio", Value: "indexed"}, {Name: "Tags", Value: []any{}}},
		{name("Di"),
			{Name: "Work",
				Value: &datastore.Entity{Properties: []datastore.Property{{Name: "City", Value: "Rome"},
					{Name: "undeclared", Value: "u"}}}}},
		{name("Ed"), {Name: "Home.City", Value: "Oslo"}, {Name: "Ratio", Value: 0.1},
			{Name: "Photo", Value: "text", NoIndex: true}, {Name: "Tags", Value: "one"}},
		{name("Flo"), {Name: "Old", Value: nil}, {Name: "Seen", Value: now.Truncate(time.Microsecond)},
			{Name: "Boss", Value: datastore.IDKey("Patron", 1, nil)},
			{Name: "Tags", Value: []any{"a", "b"}, NoIndex: true}},
	}
	all := func(names string) func(string) bool {
		return func(name string) bool { return slices.Contains(strings.Fields(names), name) }
	}
	large := func(name string, seats int) bool { return seats > 10 || name == "Flo" }
	for _, run := range []func(t *testing.T, stored []datastore.PropertyList){
		func(t *testing.T, stored []datastore.PropertyList) {
			storesWhatPutDoes(t, stored, all("undeclared"), func(u *patron) {
				u.Large, u.Seen = large(u.Name, u.Seats), now
			})
		},
		func(t *testing.T, stored []datastore.PropertyList) {
			storesWhatPutDoes(t, stored, all("undeclared Limit"), func(u *plainPatron) {
				u.Large = large(u.Name, u.Seats)
			})
		},
		func(t *testing.T, stored []datastore.PropertyList) {
			storesWhatPutDoes(t, stored, func(name string) bool { return !all("Name Lower Length")(name) },
				func(*selfMade) {})
		},
	} {
		synctest.Test(t, func(t *testing.T) { run(t, stored) })
	}
}

// storesWhatPutDoes runs a mapper of a type, which does not declare some of their properties, over
// stored entities.
func storesWhatPutDoes[T any](
	t *testing.T, stored []datastore.PropertyList, undeclared func(name string) bool, change func(*T),
) {
	m := mapper.Update("save", func(_ context.Context, e *mapper.Entity[T], _ mapper.NoParams) error {
		change(&e.Value)
		e.Resave()
		return nil
	})
	w := newWorld(t, setting{}, m)
	var keys []*datastore.Key
	want := make(map[string]datastore.PropertyList)
	for i := range stored {
		key, elsewhere := datastore.IDKey("Patron", int64(1+i), nil), datastore.IDKey("Elsewhere", int64(1+i), nil)
		if _, err := w.client.Put(t.Context(), key, &stored[i]); err != nil {
			t.Fatal(err)
		}
		var v T
		if err := w.client.Get(t.Context(), key, &v); err != nil &&
			!strings.Contains(err.Error(), "no such struct field") {
			t.Fatal(err)
		}
		change(&v)
		if _, err := w.client.Put(t.Context(), elsewhere, &v); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
		want[key.String()] = w.propertiesOf(elsewhere)
	}
	finish := func(written int64) {
		t.Helper()
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Patron"}, mapper.NoParams{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if s := w.wait(job); s.Processed != int64(len(keys)) || s.Written != written {
			t.Errorf("%d processed, %d written, want %d and %d", s.Processed, s.Written, len(keys), written)
		}
	}
	finish(int64(len(keys)))
	for i, key := range keys {
		for _, p := range stored[i] {
			if undeclared(p.Name) {
				want[key.String()] = append(want[key.String()], p)
			}
		}
		got, byName := w.propertiesOf(key), cmpopts.SortSlices(func(a, b datastore.Property) int {
			return strings.Compare(a.Name, b.Name)
		})
		for _, p := range got {
			inside, ok := p.Value.(*datastore.Entity)
			if !ok || undeclared(p.Name) || p.Name != "Work" || i != 4 {
				continue
			}
			n := len(inside.Properties)
			if inside.Properties = slices.DeleteFunc(inside.Properties, func(p datastore.Property) bool {
				return p.Name == "undeclared" && p.Value == "u"
			}); len(inside.Properties) == n {
				t.Errorf("%v: what was undeclared inside is gone: %+v", key, inside)
			}
		}
		if diff := cmp.Diff(want[key.String()], got, byName, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%v (-want +got):\n%s", key, diff)
		}
	}
	finish(0)
}

func (w *world) propertiesOf(key *datastore.Key) (list datastore.PropertyList) {
	w.Helper()
	if err := w.client.Get(w.Context(), key, &list); err != nil {
		w.Fatal(err)
	}
	return list
}

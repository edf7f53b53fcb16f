package property

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"
)

type item struct{ A int64 }

type base struct {
	ID   int64
	Name string
}

type shop struct {
	base
	Name    string `datastore:"name"`
	Items   []item
	Flat    item    `datastore:",flatten"`
	Flats   []item  `datastore:"fs,flatten"`
	Home    *inner  `datastore:"Home,noindex"`
	Self    *shop   // a type inside itself
	Skipped string  `datastore:"-"`
	Note    note    `datastore:",flatten"`
	Ratio   float64 `datastore:",omitempty"`
}

func prop(name string, v any) datastore.Property { return datastore.Property{Name: name, Value: v} }

// TestSchema checks which stored properties the Go client gets to load into a struct.
func TestSchema(t *testing.T) {
	entity := func(p ...datastore.Property) any { return nested(p...) }
	for name, c := range map[string]struct {
		stored props
		want   props  // the properties that the client loads into the struct
		err    string // or a part of the expected error
	}{
		"declared": {props{prop("name", "n"), prop("ID", int64(1))},
			props{prop("name", "n"), prop("ID", int64(1))}, ""},
		"undeclared":      {props{prop("x", 1.5), prop("Skipped", "s")}, props{}, ""},
		"promoted":        {props{prop("Name", "n")}, props{prop("Name", "n")}, ""},
		"in another case": {props{prop("RATIO", 1.5)}, nil, `the property "RATIO"`},
		"flattened": {props{prop("Flat.A", int64(1)), prop("fs.A", []any{int64(1)})},
			props{prop("Flat.A", int64(1)), prop("fs.A", []any{int64(1)})}, ""},
		"undeclared, flat":      {props{prop("Flat.B", int64(1)), prop("other.A", int64(1))}, props{}, ""},
		"flat where it isn't":   {props{prop("Home.A", int64(1))}, nil, `the property "Home.A"`},
		"whole where it's flat": {props{prop("Flat", entity(prop("A", int64(1))))}, nil, `the property "Flat"`},
		"flattened load saver":  {props{prop("Note.x", int64(1))}, props{prop("Note.x", int64(1))}, ""},
		"inside": {props{prop("Home", entity(prop("A", int64(1)), prop("Zip", "z")))},
			props{prop("Home", entity(prop("A", int64(1))))}, ""},
		"inside in another case": {props{prop("Home", entity(prop("a", int64(1))))}, nil,
			`in "Home": the property "a"`},
		"elements": {props{prop("Items", []any{entity(prop("A", int64(1)), prop("B", "x")), entity(prop("B", "y"))})},
			props{prop("Items", []any{entity(prop("A", int64(1))), entity()})}, ""},
		"inside itself": {props{prop("Self", entity(prop("name", "n"), prop("x", 1.5)))},
			props{prop("Self", entity(prop("name", "n")))}, ""},
	} {
		got, err := schemaOf(reflect.TypeFor[shop]()).fit(c.stored)
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, error %v, want one with %s", name, got, err, c.err)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		default:
			if diff := cmp.Diff(c.want, got, cmp.Transformer("nil", func(e *datastore.Entity) []datastore.Property {
				return append(props{}, e.Properties...)
			})); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
		if err == nil && name != "flattened load saver" {
			// The client must load the rest without an error.
			var s shop
			if err := datastore.LoadStruct(&s, got); err != nil {
				t.Errorf("%s: load: %v", name, err)
			}
		}
	}
}

// TestElementsSurvive changes arrays of entities with undeclared properties. The function must see
// all elements, and no undeclared property may be lost.
func TestElementsSurvive(t *testing.T) {
	stored := props{prop("Items", []any{nested(prop("A", int64(1)), prop("B", "x")),
		nested(prop("A", int64(2)), prop("B", "y"))})}
	values, changed := updated(t, stored, func(s *struct{ Items []item }) {
		if len(s.Items) != 2 || s.Items[1].A != 2 {
			t.Errorf("the function sees %+v", s.Items)
		}
	})
	if diff := cmp.Diff(map[string]any{"Items": stored[0].Value}, values); diff != "" || len(changed) > 0 {
		t.Errorf("changed %v, values (-want +got):\n%s", changed, diff)
	}
	for name, stored := range map[string]any{
		"array":  stored[0].Value,
		"single": nested(prop("A", int64(1)), prop("B", "x")),
		"keyed":  &datastore.Entity{Key: datastore.IDKey("K", 1, nil), Properties: props{prop("A", int64(1))}},
	} {
		values, _ := updated(t, props{prop("Items", stored)}, func(s *struct{ Items []item }) {
			s.Items = append(s.Items, item{3})
		})
		want := append(slices.Clone(valuesIn(stored)), nested(prop("A", int64(3))))
		if diff := cmp.Diff(want, values["Items"]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestNestedKeySurvives changes a property of a nested entity with a key. The key must stay.
func TestNestedKeySurvives(t *testing.T) {
	key := datastore.IDKey("K", 1, nil)
	values, _ := updated(t, props{prop("Home", &datastore.Entity{Key: key, Properties: props{prop("A", int64(1))}})},
		func(s *struct{ Home inner }) {
			s.Home.A = 2
		})
	if got := values["Home"].(*datastore.Entity).Key; !got.Equal(key) {
		t.Errorf("the key is %v, want %v", got, key)
	}
}

// A counted has its own Load and Save, which call the Go client's functions.
type counted struct {
	Balance int64
}

func (c *counted) Load(p []datastore.Property) error   { return datastore.LoadStruct(c, p) }
func (c *counted) Save() ([]datastore.Property, error) { return datastore.SaveStruct(c) }

// TestMisfitBesideUndeclared loads values that do not fit their fields, among undeclared properties
// in every order. There must always be an error.
func TestMisfitBesideUndeclared(t *testing.T) {
	key := datastore.IDKey("P", 1, nil)
	misfit, other := prop("Balance", "precious"), prop("Other", "x")
	home := func(p ...datastore.Property) props { return props{prop("Home", nested(p...))} }
	for range 20 {
		for _, p := range []props{{misfit, other}, {other, misfit}} {
			if err := Load(key, p, new(counted)); err == nil {
				t.Error("a PropertyLoadSaver: no error")
			}
			if err := Load(key, p, new(struct{ Balance int64 })); err == nil {
				t.Error("a struct: no error")
			}
			if err := Load(key, home(p...), new(struct{ Home struct{ Balance int64 } })); err == nil {
				t.Error("a struct inside: no error")
			}
		}
	}
}

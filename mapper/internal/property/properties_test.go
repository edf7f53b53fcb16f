package property

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

type inner struct {
	A, B int
}

type person struct {
	Name    string
	Age     int
	Tags    []string
	Blob    []byte `datastore:",noindex"`
	Boss    *datastore.Key
	Address inner
	Homes   []inner
	Nick    string `datastore:",omitempty"`
	Born    time.Time
	K       *datastore.Key `datastore:"__key__"`
	private int
}

type props = []datastore.Property

func nested(p ...datastore.Property) *datastore.Entity { return &datastore.Entity{Properties: p} }

// updated loads stored properties into a value, lets fn change it, and returns the properties to
// store and the names of the properties that differ.
func updated[T any](t *testing.T, stored props, fn func(*T)) (map[string]any, []string) {
	t.Helper()
	return saved(t, stored, false, fn)
}

// resaved does the same as updated, but stores all properties that the type declares, even
// unchanged ones.
func resaved[T any](t *testing.T, stored props, fn func(*T)) (map[string]any, []string) {
	t.Helper()
	return saved(t, stored, true, fn)
}

func saved[T any](t *testing.T, stored props, resaves bool, fn func(*T)) (map[string]any, []string) {
	t.Helper()
	var v T
	was, err := LoadOriginal(datastore.IDKey("P", 1, nil), image(t, stored), &v)
	if err != nil {
		t.Fatal(err)
	}
	fn(&v)
	edit, err := was.Changes(&v, resaves)
	if err != nil {
		t.Fatal(err)
	}
	values := make(map[string]any)
	for _, p := range pbvalue.Properties(edit.Whole()) {
		values[p.Name] = p.Value
	}
	return values, edit.Changed
}

func TestMerge(t *testing.T) {
	boss := datastore.NameKey("P", "boss", nil)
	stored := func() props {
		return props{
			{Name: "Name", Value: "Ann"}, {Name: "Age", Value: int64(30)},
			{Name: "Tags", Value: []any{"x", "y"}}, {Name: "Blob", Value: []byte("abc"), NoIndex: true},
			{Name: "Boss", Value: boss}, {Name: "Nick", Value: "A"}, {Name: "Born", Value: time.Unix(5, 0).UTC()},
			{Name: "Address", Value: nested(prop("A", int64(1)), prop("B", int64(0)), prop("Zip", "z"))},
			{Name: "Undeclared", Value: []any{int64(1), "two"}, NoIndex: true},
			{Name: "old.flat", Value: 1.5},
		}
	}
	for _, c := range []struct {
		name string
		fn   func(*person)
		want []string // the names of the properties that must differ
	}{
		{"nothing", func(*person) {}, nil},
		{"same values again", func(p *person) {
			p.Name, p.Tags, p.Blob = "Ann", []string{"x", "y"}, []byte("abc")
			p.Boss = datastore.NameKey("P", "boss", nil)
			p.Born = time.Unix(5, 0)
		}, nil},
		{"an unsaved field", func(p *person) { p.private = 9; p.K = nil }, nil},
		{"a number", func(p *person) { p.Age++ }, []string{"Age"}},
		{"bytes in place", func(p *person) { p.Blob[0] = 'X' }, []string{"Blob"}},
		{"an element in place", func(p *person) { p.Tags[1] = "Y" }, []string{"Tags"}},
		{"a key in place", func(p *person) { p.Boss.Name = "other" }, []string{"Boss"}},
		{"inside", func(p *person) { p.Address.A = 7 }, []string{"Address"}},
		{"omitted", func(p *person) { p.Nick = "" }, []string{"Nick"}},
		{"emptied", func(p *person) { p.Tags = nil }, []string{"Tags"}},
		{"added", func(p *person) { p.Homes = []inner{{1, 2}} }, []string{"Homes"}},
		{"two", func(p *person) { p.Age, p.Name = 1, "Bob" }, []string{"Age", "Name"}},
	} {
		values, changed := updated(t, stored(), c.fn)
		if diff := cmp.Diff(c.want, changed, cmpopts.SortSlices(strings.Compare), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: changed (-want +got):\n%s", c.name, diff)
		}
		if diff := cmp.Diff([]any{[]any{int64(1), "two"}, 1.5},
			[]any{values["Undeclared"], values["old.flat"]}); diff != "" {
			t.Errorf("%s: undeclared properties (-want +got):\n%s", c.name, diff)
		}
		zip := byName(values["Address"].(*datastore.Entity).Properties)("Zip").Value
		if zip != "z" {
			t.Errorf("%s: an undeclared property inside is %v", c.name, zip)
		}
		if _, ok := values["Nick"]; ok == (c.name == "omitted") {
			t.Errorf("%s: Nick is there: %v", c.name, ok)
		}
	}
}

// TestSavedOver loads and saves Go values without a change. Their properties are stored in other
// forms than the Go client's. They must stay as stored, and fields that are not stored yet must be
// added. With resaving, the properties get the client's form, and undeclared properties stay.
func TestSavedOver(t *testing.T) {
	type fields struct {
		N     int
		Yes   bool
		Text  string `datastore:",noindex"`
		Short string `datastore:",omitempty"`
		When  time.Time
		Texts []string
		Age   *int
		In    *inner
		Flat  inner `datastore:",flatten"`
	}
	// now returns the stored form of fields that were never set.
	now := func() props {
		return props{
			prop("N", int64(0)), prop("Yes", false), {Name: "Text", Value: "", NoIndex: true},
			prop("When", time.Time{}), prop("Age", nil),
			prop("Flat.A", int64(0)), prop("Flat.B", int64(0)), prop("old", "o"),
		}
	}
	with := func(p ...datastore.Property) props {
		all := now()
		for _, p := range p {
			all = append(without(all, p.Name), p)
		}
		return all
	}
	for name, c := range map[string]struct {
		stored  props
		changed []string
	}{
		"its final form": {now(), nil},
		"nothing": {props{prop("old", "o")}, []string{"N", "Yes", "Text", "When", "Age", "Flat.A",
			"Flat.B"}},
		"a null":             {with(prop("N", nil)), []string{"N"}},
		"indexed":            {with(prop("Text", "")), []string{"Text"}},
		"unindexed":          {with(datastore.Property{Name: "N", Value: int64(0), NoIndex: true}), []string{"N"}},
		"what is left out":   {with(prop("Short", "")), []string{"Short"}},
		"an empty array":     {with(prop("Texts", []any{})), []string{"Texts"}},
		"a null of a struct": {with(prop("In", nil)), []string{"In"}},
		"bytes as a text": {with(datastore.Property{Name: "Text", Value: []byte{}, NoIndex: true}),
			[]string{"Text"}},
		"one, and not an array":  {with(prop("Texts", "a")), []string{"Texts"}},
		"a struct lacks a field": {with(prop("In", nested(prop("A", int64(0)), prop("Z", "z")))), []string{"In"}},
		"a struct has more": {with(prop("In", nested(prop("A", int64(0)), prop("B", int64(0)), prop("Z", "z")))),
			nil},
		"flat ones lack a field": {without(now(), "Flat.B"), []string{"Flat.B"}},
	} {
		var lacks []string
		for _, name := range []string{"N", "Yes", "Text", "When", "Age", "Flat.A", "Flat.B"} {
			if byName(c.stored)(name) == nil {
				lacks = append(lacks, name)
			}
		}
		values, changed := updated(t, c.stored, func(*fields) {})
		if slices.Sort(lacks); !slices.Equal(changed, lacks) {
			t.Errorf("%s: left alone: changed are %q, want %q", name, changed, lacks)
		}
		for _, p := range c.stored {
			if diff := cmp.Diff(values[p.Name], p.Value, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s: left alone (-want +got):\n%s", name, diff)
			}
		}
		values, changed = resaved(t, c.stored, func(*fields) {})
		if diff := cmp.Diff(c.changed, changed, cmpopts.SortSlices(strings.Compare),
			cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: changed (-want +got):\n%s", name, diff)
		}
		if values["old"] != "o" || len(values) < len(now()) {
			t.Errorf("%s: %v", name, values)
		}
		if in, ok := values["In"].(*datastore.Entity); ok && (byName(in.Properties)("Z").Value != "z" ||
			len(in.Properties) != 3) {
			t.Errorf("%s: inside are %v", name, in.Properties)
		}
	}
}

// TestElementsGetNewFields resaves an array of entities with a type that has a new field. Each
// element must get the field, and keep its undeclared properties.
func TestElementsGetNewFields(t *testing.T) {
	stored := props{prop("Homes", []any{nested(prop("A", int64(1)), prop("Zip", "y")),
		nested(prop("A", int64(2)), prop("Zip", "z"))})}
	values, changed := updated(t, stored, func(*struct{ Homes []inner }) {})
	if len(changed) > 0 {
		t.Errorf("left alone: %v, changed %v", values, changed)
	}
	values, changed = resaved(t, stored, func(*struct{ Homes []inner }) {})
	want := []any{nested(prop("A", int64(1)), prop("B", int64(0)), prop("Zip", "y")),
		nested(prop("A", int64(2)), prop("B", int64(0)), prop("Zip", "z"))}
	if diff := cmp.Diff(want, values["Homes"]); diff != "" || !slices.Equal(changed, []string{"Homes"}) {
		t.Errorf("changed %v (-want +got):\n%s", changed, diff)
	}
	// the null can't be saved
	stored = props{prop("Homes", []any{nested(prop("A", int64(1)), prop("Zip", "y")), nil})}
	if values, changed = updated(t, stored, func(*struct{ Homes []*inner }) {}); len(changed) > 0 {
		t.Errorf("%v, changed %v", values, changed)
	}
}

// TestMergeElements changes arrays of entities with properties that the Go type does not declare.
// These properties must stay, or the change must be an error.
func TestMergeElements(t *testing.T) {
	type homes struct{ Homes []inner }
	home := func(a, b int64, zip string) any {
		return nested(prop("A", a), prop("B", b), prop("Zip", zip))
	}
	all := func() props { return props{prop("Homes", []any{home(1, 0, "x"), home(2, 0, "y"), home(3, 0, "z")})} }
	bare := func(a, b int64) any { return nested(prop("A", a), prop("B", b)) }
	for name, c := range map[string]struct {
		fn   func(*homes)
		want []any // nil: an error is expected
	}{
		"changed in place": {func(h *homes) { h.Homes[1].B = 7 },
			[]any{home(1, 0, "x"), home(2, 7, "y"), home(3, 0, "z")}},
		"all in place": {func(h *homes) {
			for i := range h.Homes {
				h.Homes[i].B++
			}
		}, []any{home(1, 1, "x"), home(2, 1, "y"), home(3, 1, "z")}},
		"removed": {func(h *homes) { h.Homes = slices.Delete(h.Homes, 0, 1) },
			[]any{home(2, 0, "y"), home(3, 0, "z")}},
		"inserted": {func(h *homes) { h.Homes = slices.Insert(h.Homes, 1, inner{9, 9}) },
			[]any{home(1, 0, "x"), bare(9, 9), home(2, 0, "y"), home(3, 0, "z")}},
		"reversed": {func(h *homes) { slices.Reverse(h.Homes) },
			[]any{home(3, 0, "z"), home(2, 0, "y"), home(1, 0, "x")}},
		"removed and added": {func(h *homes) { h.Homes = append(h.Homes[1:], inner{9, 9}) }, nil},
		"moved and changed": {func(h *homes) { h.Homes[0], h.Homes[1] = inner{2, 7}, inner{1, 0} }, nil},
		"fewer":             {func(h *homes) { h.Homes = []inner{{9, 9}} }, nil},
		"emptied":           {func(h *homes) { h.Homes = nil }, []any{}},
	} {
		var v homes
		was, err := LoadOriginal(datastore.IDKey("P", 1, nil), image(t, all()), &v)
		if err != nil {
			t.Fatal(err)
		}
		c.fn(&v)
		edit, err := was.Changes(&v, false)
		if c.want == nil {
			if err == nil || !strings.Contains(err.Error(), `"Homes"`) {
				t.Errorf("%s: error %v, want one that names the property", name, err)
			}
			continue
		}
		got, _ := pbvalue.Go(edit.Whole().GetProperties()["Homes"]).([]any)
		if diff := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

// TestLoadNamesMisfits loads properties with the wrong types for their fields, together with
// undeclared properties. The error must name a property with a wrong type.
func TestLoadNamesMisfits(t *testing.T) {
	key := datastore.IDKey("P", 1, nil)
	extra := datastore.Property{Name: "Extra", Value: int64(1)}
	inside := datastore.Property{Name: "Address", Value: nested(datastore.Property{Name: "Zip", Value: "z"})}
	for name, c := range map[string]struct {
		stored props
		want   string
	}{
		"type":                     {props{{Name: "Age", Value: "old"}}, "Age"},
		"type before undeclared":   {props{{Name: "Age", Value: "old"}, extra}, "Age"},
		"type after undeclared":    {props{extra, {Name: "Age", Value: "old"}}, "Age"},
		"type beside inside":       {props{{Name: "Age", Value: "old"}, inside, extra}, "Age"},
		"overflow":                 {props{{Name: "Age", Value: 1.5}}, "Age"},
		"many values, one field":   {props{{Name: "Name", Value: []any{"a", "b"}}}, "Name"},
		"fits":                     {props{{Name: "Age", Value: int64(3)}, inside, extra}, ""},
		"nothing at all is stored": {nil, ""},
	} {
		for range 5 { // repeated, because the schema of a type is built only once
			var p person
			err := Load(key, c.stored, &p)
			switch {
			case c.want == "" && (err != nil || p.K != key):
				t.Errorf("%s: %v, key %v", name, err, p.K)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%s: error %v, want one that names %s", name, err, c.want)
			}
		}
	}
}

// A note has its own Load and Save, and needs its key to load.
type note struct {
	key  *datastore.Key
	list datastore.PropertyList
}

func (n *note) LoadKey(k *datastore.Key) error { n.key = k; return nil }
func (n *note) Load(p []datastore.Property) error {
	return n.list.Load(p)
}
func (n *note) Save() ([]datastore.Property, error) { return n.list.Save() }

func TestLoadSavers(t *testing.T) {
	stored := props{{Name: "A", Value: int64(1)}, {Name: "B", Value: []byte("b")}}
	values, changed := updated(t, stored, func(n *note) {
		if n.key == nil {
			t.Error("the key was not loaded")
		}
		n.list[1].Value.([]byte)[0] = 'X'
		n.list = append(n.list, datastore.Property{Name: "C", Value: "c"})
	})
	if diff := cmp.Diff(map[string]any{"A": int64(1), "B": []byte("X"), "C": "c"}, values); diff != "" ||
		len(changed) != 2 {
		t.Errorf("changed %v, values (-want +got):\n%s", changed, diff)
	}
	if string(stored[1].Value.([]byte)) != "b" {
		t.Error("changing the value changed what is stored")
	}
	values, changed = updated(t, stored, func(l *datastore.PropertyList) { *l = (*l)[:1] })
	if diff := cmp.Diff(map[string]any{"A": int64(1)}, values); diff != "" || len(changed) != 1 {
		t.Errorf("changed %v, values (-want +got):\n%s", changed, diff)
	}
}

// TestNilReferences sets a key in a struct to nil, and sets a key beside a nil one.
func TestNilReferences(t *testing.T) {
	type linked struct{ A, B *datastore.Key }
	key := datastore.IDKey("K", 1, nil)
	values, changed := updated(t, props{{Name: "A", Value: key}, {Name: "B", Value: nil}}, func(v *linked) {
		v.A = nil
	})
	if k, _ := values["A"].(*datastore.Key); k != nil || len(changed) != 1 {
		t.Errorf("%v, changed %v", values, changed)
	}
	if n := keyspace.PropertiesSize(props{{Name: "A", Value: (*datastore.Key)(nil)}}); n <= 0 {
		t.Errorf("size %d", n)
	}
}

func TestMaskable(t *testing.T) {
	for name, want := range map[string]bool{
		"A": true, "_a1": true, "": false, "1st": false, "a.b": false, `c\\d`: false, "`q`": false, "my-prop": false,
		"日本": false, "with space": false,
	} {
		if got := Maskable([]string{"other", name}); got != want {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
	}
}

func TestEqualValues(t *testing.T) {
	nan, zero := math.NaN(), math.Copysign(0, -1)
	for _, c := range []struct {
		a, b any
		want bool
	}{
		{nil, nil, true}, {nil, int64(0), false}, {int64(1), int64(1), true}, {int64(1), 1.0, false},
		{nan, math.NaN(), true}, {zero, 0.0, false}, {1.5, 1.5, true},
		{"a", []byte("a"), false}, {[]byte{}, []byte(nil), true},
		{time.Unix(1, 0), time.Unix(1, 0).UTC(), true}, {time.Unix(1, 0), time.Unix(2, 0), false},
		{[]any{"a", nan}, []any{"a", nan}, true}, {[]any{"a"}, []any{"a", "b"}, false},
		{datastore.IDKey("K", 1, nil), datastore.IDKey("K", 1, nil), true},
		{datastore.IDKey("K", 1, nil), (*datastore.Key)(nil), false},
		{nested(), nested(), true}, {nested(), (*datastore.Entity)(nil), false},
		{nested(datastore.Property{Name: "A", Value: nan}), nested(datastore.Property{Name: "A", Value: nan}), true},
		{datastore.GeoPoint{Lat: 1}, datastore.GeoPoint{Lat: 1}, true},
		{datastore.GeoPoint{Lat: 1}, datastore.GeoPoint{Lat: 2}, false},
		{datastore.GeoPoint{}, datastore.GeoPoint{Lat: math.Copysign(0, -1)}, false},
		{datastore.GeoPoint{}, datastore.GeoPoint{Lng: math.Copysign(0, -1)}, false},
	} {
		if got := equalValues(c.a, c.b); got != c.want {
			t.Errorf("%v and %v are equal: %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

// TestImpossibleValues uses a type whose Save returns values of types that no property can have.
// The error must name the property and the type. There is no error if nothing would be stored.
func TestImpossibleValues(t *testing.T) {
	for _, v := range []any{[]string{"a"}, map[string]int{"a": 1}, func() {}, struct{ A []int }{}, []any{[]string{"a"}},
		nested(prop("inner", []int{1})), uint8(1), struct{ A any }{[]int{1}}} {
		stored := &pb.Entity{
			Properties: map[string]*pb.Value{"Tags": {ValueType: &pb.Value_IntegerValue{IntegerValue: 1}}}}
		var b bag
		o, err := LoadOriginal(datastore.IDKey("K", 1, nil), stored, &b)
		if err != nil {
			t.Fatal(err)
		}
		b.kept = []datastore.Property{prop("Tags", v)}
		for _, resaves := range []bool{false, true} {
			_, err = o.Changes(&b, resaves)
			if err == nil || !strings.Contains(err.Error(), `"Tags"`) ||
				!strings.Contains(err.Error(), "which no property can have") {
				t.Errorf("%T: error %v", v, err)
			}
		}
		if equalValues(v, v) && !reflect.ValueOf(v).Comparable() {
			t.Errorf("%T is equal to itself", v)
		}
		list := bag{[]datastore.Property{prop("Tags", []any{int64(1), v})}} // the same before and after
		before := &Original[bag]{stored: stored, shape: shapeOf(reflect.TypeFor[bag]()),
			saved: []twice{{first: cloneProperties(list.kept)}}}
		if _, err := before.Changes(&list, true); err == nil ||
			!strings.Contains(err.Error(), "which no property can have") {
			t.Errorf("%T in a list: error %v", v, err)
		}
		stored.Properties["Tags"] = arrayOf(wire(t, 1))
		one := bag{[]datastore.Property{prop("Tags", v)}}
		before.saved[0].first = cloneProperties(one.kept)
		if whole, changed, err := merged(before, &one, true); err == nil {
			t.Errorf("%T in place of an array: %v, %v", v, whole, changed)
		}
		if equalValues(v, int64(1)) || equalValues(int64(1), v) {
			t.Errorf("%T is equal to 1", v)
		}
	}
}

// A bag has its own Load and Save. It keeps the slice that it loads, and returns that slice when it
// is saved.
type bag struct{ kept []datastore.Property }

func (b *bag) Load(p []datastore.Property) error   { b.kept = p; return nil }
func (b *bag) Save() ([]datastore.Property, error) { return b.kept, nil }

// A labels has its own Load and Save. It keeps the loaded values as one array, and is saved as that
// array.
type labels struct{ values []any }

func (l *labels) Load(p []datastore.Property) error {
	for _, x := range p {
		l.values = append(l.values, x.Value)
	}
	return nil
}

func (l *labels) Save() ([]datastore.Property, error) {
	return []datastore.Property{{Name: "L", Value: l.values}}, nil
}

// TestChangedInPlace uses types that keep the slice from which they were loaded. A change inside
// this slice must be found.
func TestChangedInPlace(t *testing.T) {
	type order struct {
		In     bag
		Labels labels `datastore:"X,flatten"`
	}
	stored := func() props {
		return props{
			{Name: "In",
				Value: &datastore.Entity{Properties: props{{Name: "A", Value: int64(1)},
					{Name: "B", Value: int64(2)}}}},
			{Name: "X.L", Value: []any{int64(1), int64(2)}},
		}
	}
	values, changed := updated(t, stored(), func(o *order) {
		o.In.kept = slices.DeleteFunc(o.In.kept, func(p datastore.Property) bool { return p.Name == "A" })
	})
	want := []datastore.Property{{Name: "B", Value: int64(2)}}
	if !slices.Equal(changed, []string{"In"}) || !reflect.DeepEqual(values["In"].(*datastore.Entity).Properties, want) {
		t.Errorf("%v, %+v", changed, values["In"])
	}
	values, changed = updated(t, stored(), func(o *order) { o.Labels.values[0] = int64(9) })
	if want := []any{int64(9), int64(2)}; !slices.Equal(changed, []string{"X.L"}) ||
		!reflect.DeepEqual(values["X.L"], want) {
		t.Errorf("%v, %+v", changed, values)
	}
}

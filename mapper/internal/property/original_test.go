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
	"github.com/scattermap/scattermap/internal/testflag"
)

type (
	color  string
	shades []string // has its own Save method
	all    struct {
		Text    string
		Color   color  `datastore:"c,noindex"`
		Short   string `datastore:",omitempty"`
		Number  int8
		Yes     bool
		Ratio   float64
		Small   float32
		When    time.Time
		Blob    []byte `datastore:",noindex"`
		Texts   []string
		Colors  []color
		Ratios  []float64
		Days    []time.Time
		Ref     *datastore.Key
		Refs    []*datastore.Key
		Point   datastore.GeoPoint
		In      inner
		Flat    inner `datastore:",flatten"`
		Maybe   *inner
		Age     *int
		Many    []inner
		Shades  shades
		Any     any
		Ignored string         `datastore:"-"`
		Key     *datastore.Key `datastore:"__key__"`
		hidden  int
	}
	embedding struct {
		inner
		Text string
	}
	revision struct { // has its own Save method, and changes in it
		N  int
		Of string
	}
	revised struct {
		Name string
		Rev  revision
	}
	revisions struct{ Revs []*revision }
	flattened struct {
		In inner `datastore:",flatten"`
		X  int   `datastore:"In.A"`
	}
)

func (r *revision) Load(p []datastore.Property) error { return datastore.LoadStruct(r, p) }

func (r *revision) Save() ([]datastore.Property, error) {
	r.N++
	return []datastore.Property{{Name: "N", Value: int64(r.N)}, {Name: "Of", Value: r.Of}}, nil
}

func (s *shades) Load(p []datastore.Property) error {
	for _, x := range p {
		*s = append(*s, x.Name)
	}
	return nil
}

func (s *shades) Save() (p []datastore.Property, err error) {
	for _, name := range *s {
		p = append(p, datastore.Property{Name: name, Value: true})
	}
	return p, nil
}

// image returns an entity with the given properties, as the Go client's Put would store it.
func image(t *testing.T, stored []datastore.Property) *pb.Entity {
	t.Helper()
	e, err := pbvalue.Entity(datastore.IDKey("K", 1, nil), stored, false)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestOriginal changes random fields, and resaves some entities. The result must be the entity that
// the Go client's Put would store, plus all properties that the type does not declare.
func TestOriginal(t *testing.T) {
	testflag.Sequential(t)
	rng := testflag.Rand(t)
	n := func() int { return rng.IntN(3) }
	key := func() *datastore.Key { return datastore.IDKey("K", int64(1+n()), datastore.NameKey("P", "p", nil)) }
	day := func() time.Time {
		return time.Unix(int64(n()), 0).In([]*time.Location{time.UTC, time.FixedZone("x", 3600)}[rng.IntN(2)])
	}
	changes := []func(v *all){
		func(v *all) { v.Text = strings.Repeat("x", n()) },
		func(v *all) { v.Color = color(strings.Repeat("x", n())) },
		func(v *all) { v.Short = strings.Repeat("x", n()) },
		func(v *all) { v.Number = int8(n()) },
		func(v *all) { v.Yes = !v.Yes },
		func(v *all) { v.Ratio = []float64{0, math.Copysign(0, -1), math.NaN()}[n()] },
		func(v *all) { v.Small = float32(n()) },
		func(v *all) { v.When = day() },
		func(v *all) { v.Blob = slices.Repeat([]byte{1}, n()) },
		func(v *all) { v.Texts = slices.Repeat([]string{"a"}, n()) },
		func(v *all) { v.Colors = slices.Repeat([]color{"a"}, n()) },
		func(v *all) { v.Ratios = slices.Repeat([]float64{1.5}, n()) },
		func(v *all) { v.Days = []time.Time{day(), day()}[:n()%3] },
		func(v *all) { v.Ref = []*datastore.Key{nil, key(), key()}[n()] },
		func(v *all) { v.Refs = []*datastore.Key{key(), key()}[:n()] },
		func(v *all) { v.Point.Lat = float64(n()) },
		func(v *all) { v.In.A = n() },
		func(v *all) { v.Flat.B = n() },
		func(v *all) { v.Maybe = []*inner{nil, {1, n()}, {2, 2}}[n()] },
		func(v *all) { v.Age = []*int{nil, new(int), nil}[n()] },
		func(v *all) { v.Many = []inner{{1, n()}, {2, n()}}[:n()] },
		func(v *all) { v.Shades = shades{"a", "b"}[:n()] },
		func(v *all) { v.Any = []any{"a", int64(n()), 1.5}[n()] },
		func(v *all) { v.Ignored, v.hidden, v.Key = "x", n(), key() },
		// In place.
		func(v *all) { slices.Reverse(v.Blob); set(v.Blob, byte(n())) },
		func(v *all) { set(v.Texts, "b") },
		func(v *all) { set(v.Colors, "b") },
		func(v *all) { set(v.Ratios, math.NaN()) },
		func(v *all) { set(v.Days, day()) },
		func(v *all) {
			if v.Ref != nil {
				v.Ref.ID, v.Ref.Parent.Name = 9, "q"
			}
		},
		func(v *all) {
			if len(v.Refs) > 0 {
				v.Refs[0].ID = 8
			}
		},
		func(v *all) {
			if v.Maybe != nil {
				v.Maybe.A++
			}
		},
		func(v *all) {
			if v.Age != nil {
				*v.Age++
			}
		},
		func(v *all) { set(v.Many, inner{7, 7}) },
		func(v *all) {
			if !slices.Contains(v.Shades, "z") {
				set(v.Shades, "z")
			}
		},
	}
	some := func(v *all) {
		for range rng.IntN(5) {
			changes[rng.IntN(len(changes))](v)
		}
	}
	for range testflag.Size(t, 200, 400, 10_000) {
		v := all{Any: "any"}
		for range 20 {
			some(&v)
		}
		saved, err := Save(&v)
		if err != nil {
			t.Fatal(err)
		}
		stored := slices.DeleteFunc(Stored(saved), func(datastore.Property) bool { return rng.IntN(10) == 0 })
		for i := range stored {
			if stored[i].NoIndex = stored[i].NoIndex != (rng.IntN(50) == 0); stored[i].Name == "Text" &&
				rng.IntN(10) == 0 {
				stored[i].Value = nil
			}
		}
		stored = append(stored, datastore.Property{Name: "undeclared", Value: int64(1)})
		was := v
		v = all{}
		original, err := LoadOriginal(datastore.IDKey("K", 1, nil), image(t, stored), &v)
		if err != nil {
			t.Fatal(err)
		}
		v.Any, v.hidden = was.Any, was.hidden
		some(&v)
		if saved, err = Save(&v); err != nil {
			t.Fatal(err)
		}
		stored = pbvalue.Properties(image(t, stored))
		want := pbvalue.Properties(image(t, append(saved, prop("undeclared", int64(1)))))
		e, changed, err := merged(original, &v, true)
		if err != nil {
			t.Fatal(err)
		}
		whole := pbvalue.Properties(e)
		byNames := func(a, b datastore.Property) int { return strings.Compare(a.Name, b.Name) }
		slices.SortFunc(want, byNames)
		slices.SortFunc(whole, byNames)
		same := cmp.Options{cmpopts.EquateEmpty(), cmp.Comparer(func(a, b float64) bool {
			return math.Float64bits(a) == math.Float64bits(b)
		}),
			cmp.Comparer(func(a, b *datastore.Key) bool { return a.Equal(b) })}
		if diff := cmp.Diff(want, whole, same); diff != "" {
			t.Fatalf("%+v (-want +got):\n%s", v, diff)
		}
		has, is := byName(stored), byName(want)
		for _, p := range append(stored, want...) {
			old, now := has(p.Name), is(p.Name)
			if same := old != nil && now != nil && cmp.Equal(*old, *now, same); same == slices.Contains(changed,
				p.Name) {
				t.Fatalf("%s: it was %+v and is %+v, and changed are %q", p.Name, old, now, changed)
			}
		}
	}
}

func set[T any](s []T, v T) {
	if len(s) > 0 {
		s[0] = v
	}
}

func TestParts(t *testing.T) {
	p := partsOf(reflect.TypeFor[all]())
	plain := 0
	for _, p := range p {
		if p.plain {
			plain++
		}
	}
	if len(p) != 23 || plain != 14 {
		t.Errorf("%d parts, %d of them plain, want 23 and 14", len(p), plain)
	}
	for _, whole := range []reflect.Type{reflect.TypeFor[embedding](), reflect.TypeFor[note](),
		reflect.TypeFor[datastore.PropertyList](), reflect.TypeFor[flattened]()} {
		if p := partsOf(whole); p != nil {
			t.Errorf("%v has parts: %+v", whole, p)
		}
	}
	// Values that are saved as a whole, and values that are not saved at all.
	values, changed := updated(t, props{prop("A", int64(1)), prop("B", int64(0)), prop("Text", "a")},
		func(v *embedding) {
			v.A, v.Text = 2, "b"
		})
	if len(changed) != 2 || values["A"] != int64(2) || values["Text"] != "b" {
		t.Errorf("%v, changed %v", values, changed)
	}
}

// TestOriginalOfStateful uses a type that changes in every call of Save. If the function changes
// nothing, nothing may be stored. Otherwise the stored value must be the result of one call, as
// with the Go client's Put.
func TestOriginalOfStateful(t *testing.T) {
	field := props{{Name: "Name", Value: "a"}, {Name: "Rev", Value: nested(prop("N", int64(5)), prop("Of", "a"))}}
	revOf := func(v any) any { return v.(*datastore.Entity).Properties[0].Value }
	values, changed := updated(t, field, func(v *revised) {
		if v.Rev.N != 5 {
			t.Errorf("the function gets revision %d, want 5", v.Rev.N)
		}
	})
	if len(changed) != 0 {
		t.Errorf("nothing changed, and %v is written: %v", changed, values)
	}
	values, changed = updated(t, field, func(v *revised) { v.Name = "b" })
	if revOf(values["Rev"]) != int64(5) || !slices.Equal(changed, []string{"Name"}) {
		t.Errorf("Name changed: %v, changed %v: want revision 5", values, changed)
	}
	values, changed = updated(t, field, func(v *revised) { v.Rev.Of = "b" })
	if revOf(values["Rev"]) != int64(6) || !slices.Equal(changed, []string{"Rev"}) {
		t.Errorf("Rev changed: %v, changed %v: want revision 6", values, changed)
	}
	whole := props{prop("N", int64(5)), prop("Of", "a")}
	for _, c := range []struct {
		of   string
		want []string
	}{{"a", nil}, {"b", []string{"N", "Of"}}} {
		values, changed := updated(t, whole, func(v *revision) { v.Of = c.of })
		if values["N"] != int64(5+len(c.want)/2) || !slices.Equal(changed, c.want) {
			t.Errorf("Of is %q: %v, changed %v, want %v", c.of, values, changed, c.want)
		}
	}
	values, _ = updated(t, props{{Name: "Revs", Value: []any{nested(prop("N", int64(5)), prop("Of", "a"))}}},
		func(v *revisions) {
			v.Revs[0].Of = "b"
		})
	if rev := revOf(values["Revs"].([]any)[0]); rev != int64(6) {
		t.Errorf("in a slice it is revision %v, want 6", rev)
	}
}

package property

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/internal/anyentity"
	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/internal/value"
)

type (
	room struct {
		Number int
		Label  string `datastore:",noindex"`
		Since  time.Time
		Owner  *datastore.Key
	}
	house struct {
		Street string
		Rooms  []room
		Door   *room
		Point  datastore.GeoPoint
	}
	rich struct {
		Text   string
		Number int64
		Ratio  float64
		Yes    bool
		Blob   []byte
		When   time.Time
		Ref    *datastore.Key
		Age    *int
		Point  datastore.GeoPoint
		Texts  []string
		Ratios []float64 `datastore:",noindex"`
		Refs   []*datastore.Key
		Home   house
		Maybe  *house
		Homes  []house
		Hidden house `datastore:",noindex"`
		Any    any
	}
	flat struct {
		Text string
		Home struct {
			Street string
			Texts  []string
			Point  datastore.GeoPoint
		} `datastore:",flatten"`
	}
	embedded struct {
		room
		Text  string
		Rooms []*room
	}
	sparse struct { // the client does not save some of its elements
		Texts  []string         `datastore:",omitempty"`
		Counts []int64          `datastore:",noindex,omitempty"`
		Times  []time.Time      `datastore:",omitempty"`
		Refs   []*datastore.Key `datastore:",omitempty"`
		Rooms  []*room
		House  struct {
			Rooms []*room
			Texts []string `datastore:",omitempty"`
		}
	}
)

// A fitter makes random stored values that fit Go types. The values also have properties and flags
// that the types do not declare.
type fitter struct {
	*rand.Rand
	key *pb.Key
}

// value returns a random stored value that fits the Go type t. The depth counts the entities around
// the value.
func (f fitter) value(t reflect.Type, depth int) *pb.Value {
	if t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8 {
		if f.IntN(6) == 0 {
			return f.element(t.Elem(), depth)
		}
		list := new(pb.ArrayValue)
		for range f.IntN(4) {
			list.Values = append(list.Values, f.element(t.Elem(), depth))
		}
		return &pb.Value{ValueType: &pb.Value_ArrayValue{ArrayValue: list}}
	}
	return f.element(t, depth)
}

func (f fitter) element(t reflect.Type, depth int) *pb.Value {
	pointer := t.Kind() == reflect.Pointer
	if pointer && t != keyType {
		t = t.Elem()
	}
	isEntity := t.Kind() == reflect.Struct && t != timeType && t != reflect.TypeFor[datastore.GeoPoint]()
	v := &pb.Value{ExcludeFromIndexes: f.IntN(3) == 0, ValueType: &pb.Value_NullValue{}}
	if f.IntN(6) == 0 && (pointer || !isEntity) { // the client can't load null into a struct
		return v
	}
	if isEntity {
		inner := &pb.Entity{Properties: f.properties(t, depth+1)}
		if f.IntN(4) == 0 {
			inner.Key = f.key
		}
		v.ValueType = &pb.Value_EntityValue{EntityValue: inner}
		return v
	}
	for {
		v = anyentity.Value(f.Rand, f.key, true)
		ok := false
		switch v.ValueType.(type) {
		case *pb.Value_BooleanValue:
			ok = t.Kind() == reflect.Bool
		case *pb.Value_IntegerValue:
			ok = t.Kind() == reflect.Int64 || t.Kind() == reflect.Int
		case *pb.Value_DoubleValue:
			ok = t.Kind() == reflect.Float64
		case *pb.Value_TimestampValue:
			ok = t == timeType
		case *pb.Value_KeyValue:
			ok = t == keyType
		case *pb.Value_StringValue:
			ok = t.Kind() == reflect.String
		case *pb.Value_BlobValue:
			ok = t.Kind() == reflect.Slice
		case *pb.Value_GeoPointValue:
			ok = t == reflect.TypeFor[datastore.GeoPoint]()
		}
		if ok || t.Kind() == reflect.Interface && v.GetArrayValue() == nil {
			return v
		}
	}
}

// properties returns random stored properties for all fields of a struct, and some undeclared ones.
// For a flattened or embedded field, it returns properties for the fields inside.
func (f fitter) properties(t reflect.Type, depth int) map[string]*pb.Value {
	all := make(map[string]*pb.Value)
	for range f.IntN(4) {
		all["undeclared "+anyentity.Names[f.IntN(len(anyentity.Names))]] = anyentity.Value(f.Rand, f.key, true)
	}
	for _, field := range reflect.VisibleFields(t) {
		switch {
		case len(field.Index) > 1:
		case field.Anonymous:
			maps.Copy(all, f.properties(field.Type, depth))
		case strings.HasSuffix(field.Tag.Get("datastore"), ",flatten"):
			for name, v := range f.properties(field.Type, depth) {
				all[field.Name+"."+name] = v
			}
		default:
			all[field.Name] = f.value(field.Type, depth)
		}
	}
	return all
}

// TestSpared loads random entities, and changes one place or nothing. Everything else must stay as
// stored, bit for bit, at any depth.
func TestSpared(t *testing.T) {
	testflag.Sequential(t)
	rng := testflag.Rand(t)
	spared(t, rng, map[string]func(*rich){
		"":                        func(*rich) {},
		"Text":                    func(v *rich) { v.Text += "+" },
		"Number":                  func(v *rich) { v.Number++ },
		"Yes":                     func(v *rich) { v.Yes = !v.Yes },
		"Blob":                    func(v *rich) { v.Blob = append(v.Blob, 1) },
		"When":                    func(v *rich) { v.When = time.Unix(77, 0) },
		"Age":                     func(v *rich) { v.Age = new(7) },
		"Texts[0]":                func(v *rich) { v.Texts[0] += "+" },
		"Ratios[1]":               func(v *rich) { v.Ratios[1] = 77 },
		"Home.Street":             func(v *rich) { v.Home.Street += "+" },
		"Home.Rooms[0].Number":    func(v *rich) { v.Home.Rooms[0].Number++ },
		"Home.Door.Label":         func(v *rich) { v.Home.Door.Label += "+" },
		"Maybe.Point":             func(v *rich) { v.Maybe.Point.Lat = 1 },
		"Maybe.Door.Since":        func(v *rich) { v.Maybe.Door.Since = time.Unix(77, 0) },
		"Homes[1].Street":         func(v *rich) { v.Homes[1].Street += "+" },
		"Homes[0].Rooms[1].Label": func(v *rich) { v.Homes[0].Rooms[1].Label += "+" },
		"Hidden.Street":           func(v *rich) { v.Hidden.Street += "+" },
		"Texts+":                  func(v *rich) { v.Texts = append(v.Texts, "+") },
		"Ratios+":                 func(v *rich) { v.Ratios = append(v.Ratios, 77) },
		"Refs+":                   func(v *rich) { v.Refs = append(v.Refs, nil) },
		"Homes+":                  func(v *rich) { v.Homes = append(v.Homes, house{}) },
		"Homes[0].Rooms+":         func(v *rich) { v.Homes[0].Rooms = append(v.Homes[0].Rooms, room{}) },
		"Texts-":                  func(v *rich) { remove(rng, &v.Texts, nil) },
		"Ratios-":                 func(v *rich) { remove(rng, &v.Ratios, nil) },
		"Refs-":                   func(v *rich) { remove(rng, &v.Refs, nil) },
		"Homes-":                  func(v *rich) { remove(rng, &v.Homes, nil) },
	})
	spared(t, rng, map[string]func(*flat){
		"":              func(*flat) {},
		"Text":          func(v *flat) { v.Text += "+" },
		"Home.Street":   func(v *flat) { v.Home.Street += "+" },
		"Home.Texts[1]": func(v *flat) { v.Home.Texts[1] += "+" },
	})
	spared(t, rng, map[string]func(*embedded){
		"":                func(*embedded) {},
		"Number":          func(v *embedded) { v.Number++ },
		"Rooms[0].Number": func(v *embedded) { v.Rooms[0].Number++ },
		"Rooms+":          func(v *embedded) { v.Rooms = append(v.Rooms, new(room)) },
	})
	spared(t, rng, map[string]func(*sparse){
		"":                      func(*sparse) {},
		"Texts[1]":              func(v *sparse) { change(&v.Texts[1], "+") },
		"Counts[0]":             func(v *sparse) { change(&v.Counts[0], 77) },
		"Rooms[1].Label":        func(v *sparse) { v.Rooms[1].Label += "+" },
		"House.Rooms[1].Number": func(v *sparse) { v.House.Rooms[1].Number++ },
		"Texts+":                func(v *sparse) { v.Texts = append(v.Texts, "+") },
		"Counts+":               func(v *sparse) { v.Counts = append(v.Counts, 77) },
		"Times+":                func(v *sparse) { v.Times = append(v.Times, time.Unix(77, 0)) },
		"Refs+":                 func(v *sparse) { v.Refs = append(v.Refs, datastore.IDKey("K", 77, nil)) },
		"Rooms+":                func(v *sparse) { v.Rooms = append(v.Rooms, new(room)) },
		"House.Texts+":          func(v *sparse) { v.House.Texts = append(v.House.Texts, "+") },
		"Rooms[0]":              func(v *sparse) { fill(&v.Rooms[0], new(room)) },
		"Texts[2]":              func(v *sparse) { fill(&v.Texts[2], "+") },
		"House.Texts[0]":        func(v *sparse) { fill(&v.House.Texts[0], "+") },
		"House.Rooms+":          func(v *sparse) { v.House.Rooms = append(v.House.Rooms, new(room)) },
		"Texts-":                func(v *sparse) { remove(rng, &v.Texts, func(s string) bool { return s == "" }) },
		"Counts-":               func(v *sparse) { remove(rng, &v.Counts, func(n int64) bool { return n == 0 }) },
		"Refs-": func(v *sparse) {
			remove(rng, &v.Refs, func(k *datastore.Key) bool { return k == nil })
		},
		"Rooms-": func(v *sparse) { remove(rng, &v.Rooms, func(r *room) bool { return r == nil }) },
		"Times-": func(v *sparse) { // an element that is not saved
			i := slices.IndexFunc(v.Times, time.Time.IsZero)
			v.Times = slices.Delete(v.Times, i, i+1)
			_ = v.Times[slices.IndexFunc(v.Times, func(t time.Time) bool { return !t.IsZero() })]
		},
	})
}

// change sets *v to another value. It panics if *v is empty, because then omitempty has left it out
// of the stored entity.
func change[E comparable](v *E, to E) {
	if *v == *new(E) {
		panic("not saved")
	}
	*v = to
}

// fill sets *v, which is empty because omitempty has left it out, to another value. It panics if *v
// is not empty.
func fill[E comparable](v *E, to E) {
	if *v != *new(E) {
		panic("saved")
	}
	*v = to
}

// remove removes a random element that the Go client saves. It panics if the list has fewer than
// two such elements.
func remove[E any](rng *rand.Rand, list *[]E, unsaved func(E) bool) {
	var places []int
	for i, el := range *list {
		if unsaved == nil || !unsaved(el) {
			places = append(places, i)
		}
	}
	at := places[:len(places)-1][rng.IntN(len(places)-1)]
	if rng.IntN(2) == 0 {
		at = places[len(places)-1]
	}
	*list = slices.Delete(*list, at, at+1)
}

func spared[T any](t *testing.T, rng *rand.Rand, edits map[string]func(*T)) {
	t.Helper()
	key := pbvalue.Key(datastore.IDKey("K", 1, nil))
	names := slices.Sorted(maps.Keys(edits))
	done, twins := make(map[string]int), 0
	for n := 0; n < 1000 || n < 30000 && len(done) < len(names); n++ { // some edits are rarely possible
		name := names[rng.IntN(len(names))]
		stored := &pb.Entity{Key: key, Properties: fitter{rng, key}.properties(reflect.TypeFor[T](), 0)}
		var v T
		was, err := LoadOriginal(datastore.IDKey("K", 1, nil), stored, &v)
		if err != nil {
			t.Fatalf("%v: %.300v", err, stored)
		}
		if !try(func() { edits[name](&v) }) {
			continue // there is nothing at that place
		}
		is, changed, err := merged(was, &v, false)
		if err != nil && strings.Contains(err.Error(), "more than 1500 bytes") {
			continue // the type indexes it
		}
		if property, removed := strings.CutSuffix(name, "-"); removed {
			all := without1(t, stored, property, &v)
			certain := len(slices.CompactFunc(slices.Clone(all), same)) == 1
			if certain != (err == nil) || !certain && !errors.Is(err, errTwins) {
				t.Fatalf("%q: error %v: %.3000v", name, err, stored)
			}
			if err != nil {
				twins++
				continue
			}
			if done[name]++; !same(all[0], is.Properties[property]) {
				t.Fatalf("%q:\nwas  %.3000v\nis   %.3000v\nwant %.3000v", name, stored, is.Properties[property], all[0])
			}
			continue
		}
		if err != nil {
			t.Fatalf("%q: %v: %.3000v", name, err, stored)
		}
		done[name]++
		if len(changed) != min(1, len(name)) {
			t.Fatalf("%q: changed %q: %.3000v", name, changed, stored)
		}
		all := differences("", stored, is)
		if name == "" && len(all) == 0 {
			continue
		}
		if len(all) != 1 || all[0].path != name && (!all[0].null || !strings.HasPrefix(name, all[0].path+".")) {
			t.Fatalf("%q is changed, and %v are:\nwas %.3000v\nis  %.3000v", name, all, stored, is)
		}
	}
	for _, name := range names {
		if done[name] == 0 {
			t.Errorf("%q was never changed", name)
		}
	}
	t.Logf("%T: %v; %d removals of one of several that are saved alike", *new(T), done, twins)
}

// without1 returns the arrays that may be stored after a function has removed one element of the
// property. Each is the stored array without one element, and is loaded as the Go value v.
func without1[T any](t *testing.T, stored *pb.Entity, property string, v *T) (all []*pb.Value) {
	t.Helper()
	want, err := shapeOf(reflect.TypeFor[T]()).save(v)
	if err != nil {
		t.Fatal(err)
	}
	array := value.Elements(stored.Properties[property])
	for i := range array {
		one := arrayOf(slices.Delete(slices.Clone(array), i, i+1)...)
		e := &pb.Entity{Key: stored.Key, Properties: maps.Clone(stored.Properties)}
		e.Properties[property] = one
		var loaded T
		if err := LoadStored(datastore.IDKey("K", 1, nil), e, &loaded); err != nil {
			t.Fatal(err)
		}
		if saved, err := shapeOf(reflect.TypeFor[T]()).save(&loaded); err == nil && equalProperties(saved, want) {
			all = append(all, one)
		}
	}
	return all
}

var entityType = reflect.TypeFor[*datastore.Entity]()

// TestSparedLists renames and swaps properties of random PropertyLists, also in nested entities. A
// property may get another one's name. Each value must keep its stored form under its new name.
func TestSparedLists(t *testing.T) {
	testflag.Sequential(t)
	rng := testflag.Rand(t)
	key := pbvalue.Key(datastore.IDKey("K", 1, nil))
	done := make(map[string]int)
	for range testflag.Size(t, 200, 400, 10_000) {
		stored := anyentity.New(rng, key, false)
		var v datastore.PropertyList
		was, err := LoadOriginal(datastore.IDKey("K", 1, nil), stored, &v)
		if err != nil {
			t.Fatal(err)
		}
		want := pbvalue.Clone(stored)
		list, in := (*[]datastore.Property)(&v), want
		for rng.IntN(2) == 0 { // a nested entity
			i := slices.IndexFunc(*list, func(p datastore.Property) bool {
				return reflect.TypeOf(p.Value) == entityType
			})
			if i < 0 {
				break
			}
			in = in.Properties[(*list)[i].Name].GetEntityValue()
			list = &(*list)[i].Value.(*datastore.Entity).Properties
		}
		if len(*list) < 2 {
			continue
		}
		i, k := rng.IntN(len(*list)), rng.IntN(len(*list))
		a, b := &(*list)[i], &(*list)[k]
		if i == k || equalValues(a.Value, b.Value) {
			continue
		}
		kind := []string{"to another name", "over another one", "names swapped", "values swapped"}[rng.IntN(4)]
		from, to := in.Properties[a.Name], in.Properties[b.Name]
		switch kind {
		case "to another name":
			delete(in.Properties, a.Name)
			a.Name = "another"
			in.Properties[a.Name] = from
		case "over another one":
			delete(in.Properties, a.Name)
			in.Properties[b.Name] = from
			a.Name = b.Name
			*list = slices.Delete(*list, k, k+1)
		case "names swapped":
			in.Properties[a.Name], in.Properties[b.Name] = to, from
			a.Name, b.Name = b.Name, a.Name
		case "values swapped":
			if a.NoIndex != b.NoIndex {
				continue
			}
			in.Properties[a.Name], in.Properties[b.Name] = to, from
			a.Value, b.Value = b.Value, a.Value
		}
		is, _, err := merged(was, &v, false)
		if err != nil {
			t.Fatalf("%s: %v: %.3000v", kind, err, stored)
		}
		if all := differences("", want, is); len(all) > 0 {
			t.Fatalf("%s: %v differ:\nwas  %.3000v\nis   %.3000v\nwant %.3000v", kind, all, stored, is, want)
		}
		done[kind]++
	}
	if len(done) != 4 {
		t.Errorf("only %v were done", done)
	}
}

// try calls a function, and reports whether it returned without a panic.
func try(fn func()) (ok bool) {
	defer func() { ok = recover() == nil }()
	fn()
	return
}

// A difference is a place where two entities differ. If null is set, the first entity has a null
// there.
type difference struct {
	path string
	null bool
}

// differences returns the innermost places where two entities differ. It ignores their keys.
func differences(path string, was, is *pb.Entity) (all []difference) {
	names := maps.Clone(was.GetProperties())
	maps.Copy(names, is.GetProperties())
	for name := range names {
		all = append(all, unlike(strings.TrimPrefix(path+"."+name, "."), was.GetProperties()[name],
			is.GetProperties()[name])...)
	}
	return all
}

func unlike(path string, was, is *pb.Value) (all []difference) {
	if was != nil && is != nil {
		from, to := value.Elements(was), value.Elements(is)
		single := was.GetArrayValue() == nil // it may be an array now
		switch {
		case was.GetEntityValue() != nil && is.GetEntityValue() != nil && sameAround(was, is) &&
			proto.Equal(was.GetEntityValue().GetKey(), is.GetEntityValue().GetKey()):
			return differences(path, was.GetEntityValue(), is.GetEntityValue())
		case is.GetArrayValue() != nil && (single || sameAround(was, is)) && len(to) >= len(from) && len(to) > 0:
			for i, el := range from {
				all = append(all, unlike(fmt.Sprintf("%s[%d]", path, i), el, to[i])...)
			}
			for range len(to) - len(from) {
				all = append(all, difference{path + "+", false})
			}
			return all
		}
	}
	if was == nil || is == nil || !same(was, is) {
		_, null := was.GetValueType().(*pb.Value_NullValue)
		return []difference{{path, null}}
	}
	return nil
}

func sameAround(a, b *pb.Value) bool {
	return a.GetMeaning() == b.GetMeaning() && a.GetExcludeFromIndexes() == b.GetExcludeFromIndexes()
}

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
)

// A fitter makes random stored values that Go types can hold, and more than these declare.
type fitter struct {
	*rand.Rand
	key *pb.Key
}

// value returns a value for a type: inside depth entities.
func (f fitter) value(t reflect.Type, depth int) *pb.Value {
	if t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8 {
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
	if f.IntN(8) == 0 && (pointer || !isEntity) { // the client loads null into no struct
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

// properties returns what a struct declares, and more; of flattened and embedded fields, what is inside them.
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

// TestSpared has a function change nothing of random entities, or one thing: all else is as stored, bit for bit, however
// deep it is, and whatever is beside it.
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
	})
}

func spared[T any](t *testing.T, rng *rand.Rand, edits map[string]func(*T)) {
	t.Helper()
	key := pbvalue.Key(datastore.IDKey("K", 1, nil))
	names := slices.Sorted(maps.Keys(edits))
	done := make(map[string]int)
	for range 600 {
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
		is, changed, err := was.Changes(&v, false)
		if err != nil && strings.Contains(err.Error(), "more than 1500 bytes") || errors.Is(err, errUnkept) && name == "Rooms[0].Number" {
			continue // the type indexes it; or has a nil pointer among others, which the client does not save
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
		if len(all) != 1 || all[0].path != name && !(all[0].null && strings.HasPrefix(name, all[0].path+".")) {
			t.Fatalf("%q is changed, and %v are:\nwas %.3000v\nis  %.3000v", name, all, stored, is)
		}
	}
	for _, name := range names {
		if done[name] == 0 {
			t.Errorf("%q was never changed", name)
		}
	}
}

// try runs a function, and reports whether it did not panic.
func try(fn func()) (ok bool) {
	defer func() { ok = recover() == nil }()
	fn()
	return
}

// A difference is a place where values differ; null: the first is null there.
type difference struct {
	path string
	null bool
}

// differences returns the innermost places where two entities differ, but for their keys.
func differences(path string, was, is *pb.Entity) (all []difference) {
	names := maps.Clone(was.GetProperties())
	maps.Copy(names, is.GetProperties())
	for name := range names {
		all = append(all, unlike(strings.TrimPrefix(path+"."+name, "."), was.GetProperties()[name], is.GetProperties()[name])...)
	}
	return all
}

func unlike(path string, was, is *pb.Value) (all []difference) {
	from, to := was.GetArrayValue().GetValues(), is.GetArrayValue().GetValues()
	if was != nil && is != nil && sameAround(was, is) {
		switch {
		case was.GetEntityValue() != nil && is.GetEntityValue() != nil && proto.Equal(was.GetEntityValue().GetKey(), is.GetEntityValue().GetKey()):
			return differences(path, was.GetEntityValue(), is.GetEntityValue())
		case len(from) == len(to) && len(from) > 0:
			for i, el := range from {
				all = append(all, unlike(fmt.Sprintf("%s[%d]", path, i), el, to[i])...)
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

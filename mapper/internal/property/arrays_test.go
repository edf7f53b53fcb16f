package property

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/internal/pbvalue"
)

// wire returns a Go value as a message of the Datastore API, without an index flag or a meaning.
func wire(t *testing.T, v any) *pb.Value {
	t.Helper()
	w, err := pbvalue.Of(v, false)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func arrayOf(all ...*pb.Value) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_ArrayValue{ArrayValue: &pb.ArrayValue{Values: all}}}
}

// edited loads a stored entity, lets fn change the value, and returns the entity to store.
func edited[T any](t *testing.T, stored map[string]*pb.Value, fn func(*T)) (*pb.Entity, error) {
	t.Helper()
	key := datastore.IDKey("K", 1, nil)
	e := &pb.Entity{Key: pbvalue.Key(key), Properties: stored}
	was := proto.CloneOf(e)
	var v T
	o, err := LoadOriginal(key, e, &v)
	if err != nil {
		t.Fatal(err)
	}
	fn(&v)
	is, _, err := merged(o, &v, false)
	if !proto.Equal(was, e) {
		t.Errorf("what is stored was changed in place: %v, %v", was, e)
	}
	return is, err
}

// An edit loads a stored entity, changes the value by a function, and returns the entity to store.
type edit func(stored map[string]*pb.Value) (*pb.Entity, error)

func editOf[T any](t *testing.T, fn func(*T)) edit {
	return func(stored map[string]*pb.Value) (*pb.Entity, error) { return edited(t, stored, fn) }
}

// tagsOf returns an edit that loads a PropertyList and lets fn change its property Tags, the second
// one.
func tagsOf(t *testing.T, fn func(v any) any) edit {
	return editOf(t, func(v *datastore.PropertyList) { (*v)[1].Value = fn((*v)[1].Value) })
}

type (
	tagged struct {
		Tags []string
		Keys []*datastore.Key
	}
	brief struct {
		Tags []string `datastore:",omitempty"`
	}
	sortsItself struct {
		Tags []string
	}
)

func (s *sortsItself) Load(p []datastore.Property) error {
	err := datastore.LoadStruct(s, p)
	slices.Sort(s.Tags)
	return err
}

func (s *sortsItself) Save() ([]datastore.Property, error) { return datastore.SaveStruct(s) }

// TestArrays changes arrays that are stored in forms that the Go client would not write, such as a
// single value in place of an array.
func TestArrays(t *testing.T) {
	null, empty, a, b, x := wire(t, nil), wire(t, ""), wire(t, "a"), wire(t, "b"), wire(t, "x")
	special := &pb.Value{ValueType: a.ValueType, Meaning: 15, ExcludeFromIndexes: true}
	foreign := wire(t, datastore.IDKey("K", 7, nil))
	foreign.GetKeyValue().PartitionId = &pb.PartitionId{ProjectId: "another"}
	own := wire(t, datastore.IDKey("K", 8, nil))
	add := func(v *tagged) { v.Tags = append(v.Tags, "x") }
	addBrief := func(v *brief) { v.Tags = append(v.Tags, "x") }
	indexed := proto.CloneOf(special)
	indexed.ExcludeFromIndexes = false
	unindexed := wire(t, "b")
	unindexed.ExcludeFromIndexes = true
	for _, c := range []struct {
		name         string
		stored, want *pb.Value // the property Tags before and after; nil: it is missing
		err          error
		edit         edit
	}{
		{"a single value, one added", special, arrayOf(special, x), nil, editOf(t, add)},
		{"a null, one added", null, arrayOf(null, x), nil, editOf(t, add)},
		{"a single value changed", a, arrayOf(b), nil, editOf(t, func(v *tagged) { v.Tags[0] = "b" })},
		{"an empty array, one added", arrayOf(), arrayOf(x), nil, editOf(t, add)},
		{"one of equal ones, the order tells", arrayOf(null, a, empty), arrayOf(null, a), nil,
			editOf(t, func(v *tagged) { v.Tags = v.Tags[:2] })},
		{"one of equal ones, nothing tells", arrayOf(special, a), nil, errTwins,
			editOf(t, func(v *tagged) { v.Tags = v.Tags[1:] })},
		{"one of equal ones that are stored alike", arrayOf(special, special), arrayOf(special), nil,
			editOf(t, func(v *tagged) { v.Tags = v.Tags[1:] })},
		{"one of equal ones gone, and one new", arrayOf(special, b, a), nil, errTwins,
			editOf(t, func(v *tagged) { v.Tags = []string{"b", "a", "x"} })},
		{"all equal ones gone", arrayOf(special, b, a), arrayOf(b), nil,
			editOf(t, func(v *tagged) { v.Tags = []string{"b"} })},
		{"those left are in their order", arrayOf(x, a, special, b), arrayOf(a, special), nil,
			editOf(t, func(v *tagged) { v.Tags = []string{"a", "a"} })},
		{"omitempty, one added", arrayOf(null, special, empty), arrayOf(null, special, empty, x), nil,
			editOf(t, addBrief)},
		{"omitempty, only what is not saved, one added", arrayOf(null, empty), arrayOf(null, empty, x), nil,
			editOf(t, addBrief)},
		{"omitempty, a null, one added", null, arrayOf(null, x), nil, editOf(t, addBrief)},
		{"omitempty, one given a value", arrayOf(null, special), arrayOf(x, special), nil,
			editOf(t, func(v *brief) { v.Tags[0] = "x" })},
		{"omitempty, one inserted", arrayOf(null, special, empty), arrayOf(null, x, special, empty), nil,
			editOf(t, func(v *brief) { v.Tags = slices.Insert(v.Tags, 1, "x") })},
		{"omitempty, one emptied", arrayOf(null, special, b), arrayOf(null, b), nil,
			editOf(t, func(v *brief) { v.Tags[1] = "" })},
		{"omitempty, cleared of what is empty", arrayOf(null, special, empty), arrayOf(special), nil,
			editOf(t, func(v *brief) { v.Tags = v.Tags[1:2] })},
		{"omitempty, nothing left", arrayOf(null, special), nil, nil,
			editOf(t, func(v *brief) { v.Tags = nil })},
		{"sorted by Load, the last removed", arrayOf(b, a), arrayOf(a), nil,
			editOf(t, func(v *sortsItself) { v.Tags = v.Tags[:1] })},
		{"a list, single to array", indexed, arrayOf(indexed, x), nil,
			tagsOf(t, func(v any) any { return []any{v, "x"} })},
		{"a list, array to single", arrayOf(indexed, x), indexed, nil,
			tagsOf(t, func(v any) any { return v.([]any)[0] })},
		{"a list, array to single, which was unindexed", arrayOf(a, unindexed), b, nil,
			tagsOf(t, func(v any) any { return v.([]any)[1] })},
		{"a list, array to single, which was indexed", arrayOf(special, b), unindexed, nil,
			tagsOf(t, func(v any) any { return v.([]any)[1] })},
		{"a list, array to single, one of equal ones", arrayOf(b, unindexed), b, nil,
			tagsOf(t, func(v any) any { return v.([]any)[1] })},
		{"a list, array to single, one of equal ones with meanings", arrayOf(a, indexed), nil, errTwins,
			tagsOf(t, func(v any) any { return v.([]any)[1] })},
		{"a list, array to another array", arrayOf(a, unindexed), arrayOf(unindexed), nil,
			tagsOf(t, func(v any) any { return []any{"b"} })},
		{"a list, emptied", arrayOf(indexed, x), arrayOf(), nil, tagsOf(t, func(v any) any { return []any{} })},
	} {
		is, err := c.edit(map[string]*pb.Value{"Tags": c.stored, "Keys": arrayOf()})
		if !errors.Is(err, c.err) || err != nil && (c.err == nil || !strings.Contains(err.Error(), `"Tags"`)) {
			t.Errorf("%s: error %v, want %v", c.name, err, c.err)
			continue
		}
		got := is.GetProperties()["Tags"]
		if err == nil && ((c.want == nil) != (got == nil) || got != nil && !same(c.want, got)) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	is, err := edited(t, map[string]*pb.Value{"Tags": a, "Keys": foreign}, func(v *tagged) {
		v.Keys = append(v.Keys, datastore.IDKey("K", 8, nil))
	})
	if got := is.GetProperties()["Keys"]; err != nil || !same(got, arrayOf(foreign, own)) {
		t.Errorf("a key of another project, one added: %v, error %v", got, err)
	}
}

// TestEqualStructs removes one of two structs that are equal in Go. If they differ in undeclared
// properties, it is unknown which one was removed, so that is an error.
func TestEqualStructs(t *testing.T) {
	with := func(b string) *pb.Value { return wire(t, nested(prop("A", int64(1)), prop("B", b))) }
	type items struct{ Items []item }
	removeFirst := editOf(t, func(v *items) { v.Items = v.Items[1:] })
	is, err := removeFirst(map[string]*pb.Value{"Items": arrayOf(with("x"), with("y"))})
	if !errors.Is(err, errTwins) {
		t.Errorf("stored otherwise: %v, error %v, want errTwins", is, err)
	}
	is, err = removeFirst(map[string]*pb.Value{"Items": arrayOf(with("x"), with("x"))})
	if got := is.GetProperties()["Items"]; err != nil || !same(got, arrayOf(with("x"))) {
		t.Errorf("stored alike: %v, error %v", got, err)
	}
	is, err = editOf(t, func(v *items) { v.Items = nil })(map[string]*pb.Value{"Items": arrayOf(with("x"), with("y"))})
	if len(is.GetProperties()) > 0 || err != nil {
		t.Errorf("all removed: %v, error %v", is, err)
	}
}

// TestFlattenedSlices changes slices of structs that are stored flattened: as one array for each
// field of the structs. The Go type declares only some of the fields.
func TestFlattenedSlices(t *testing.T) {
	type row struct {
		Name string
		Qty  int
	}
	type order struct {
		Items []row `datastore:",flatten"`
		Deep  struct {
			Items []row
		} `datastore:",flatten"`
	}
	texts := func(all ...any) *pb.Value { return wire(t, all) }
	both := texts("of a", "of b")
	for name, c := range map[string]struct {
		edit  func([]row) []row
		extra *pb.Value
		ok    bool
	}{
		"first removed":          {func(r []row) []row { return r[1:] }, both, false},
		"last removed":           {func(r []row) []row { return r[:1] }, both, false},
		"all removed":            {func(r []row) []row { return nil }, both, false},
		"swapped":                {func(r []row) []row { return []row{r[1], r[0]} }, both, false},
		"inserted":               {func(r []row) []row { return append([]row{{"x", 9}}, r...) }, both, false},
		"removed, and one added": {func(r []row) []row { return []row{r[1], {"x", 9}} }, both, false},
		"added":                  {func(r []row) []row { return append(r, row{"x", 9}) }, both, true},
		"added where there is one more": {func(r []row) []row { return append(r, row{"x", 9}) }, texts("", "", ""),
			false},
		"in place": {func(r []row) []row { r[0].Qty++; r[1].Qty++; return r }, both, true},
		"no array": {func(r []row) []row { return r[1:] }, wire(t, "x"), true},
		"none":     {func(r []row) []row { return r[1:] }, nil, true},
	} {
		for _, prefix := range []string{"Items.", "Deep.Items."} {
			stored := map[string]*pb.Value{prefix + "Name": texts("a", "b"), prefix + "Qty": texts(int64(1), int64(2))}
			if c.extra != nil {
				stored[prefix+"Extra"] = c.extra
			}
			is, err := edited(t, stored, func(v *order) {
				if prefix == "Items." {
					v.Items = c.edit(v.Items)
				} else {
					v.Deep.Items = c.edit(v.Deep.Items)
				}
			})
			names := err != nil && errors.Is(err, errOutOfStep) && strings.Contains(err.Error(), prefix+"Extra")
			if c.ok != (err == nil) || !c.ok && !names {
				t.Errorf("%s, %s: %v, error %v", prefix, name, is, err)
			}
			if err == nil && c.extra != nil && !same(is.Properties[prefix+"Extra"], c.extra) {
				t.Errorf("%s, %s: %v", prefix, name, is)
			}
		}
	}
}

// A pair has its own Load and Save, which call the Go client's functions.
type pair struct{ A, B int64 }

func (p *pair) Load(all []datastore.Property) error { return datastore.LoadStruct(p, all) }
func (p *pair) Save() ([]datastore.Property, error) { return datastore.SaveStruct(p) }

// TestZeroIsNoMovedNull sets the property A to zero. Another property, B, is stored as null, and
// its Go type saves it as zero, too. The null of B must not be stored as A, as if B had been
// renamed to A.
func TestZeroIsNoMovedNull(t *testing.T) {
	stored := map[string]*pb.Value{"A": wire(t, int64(5)), "B": wire(t, nil)}
	is, err := edited(t, stored, func(v *pair) { v.A, v.B = 0, 7 })
	if got := is.GetProperties()["A"]; err != nil || !same(got, wire(t, int64(0))) {
		t.Errorf("A is %v, error %v, want 0", got, err)
	}
}

package property

import (
	"errors"
	"testing"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/internal/pbvalue"
)

// Types with their own Save methods, or with fields that have one. The Go client accepts all of
// them.
type (
	lines    []struct{ SKU string }
	pointers struct {
		Name string
		N    int64
	}
	copies     struct{ Name string }
	attributes map[string]any // saved in any order
	order      struct {
		Lines lines
		All   []datastore.PropertyList
		More  datastore.PropertyList `datastore:",flatten"`
	}
	catalog struct{ Items []attributes }
)

func (l *lines) Load(all []datastore.Property) error {
	for _, p := range all {
		*l = append(*l, struct{ SKU string }{p.Name})
	}
	return nil
}

func (l *lines) Save() (all []datastore.Property, err error) {
	for _, line := range *l {
		all = append(all, datastore.Property{Name: line.SKU, Value: int64(1)})
	}
	return all, nil
}

func (p *pointers) Load(all []datastore.Property) error { return datastore.LoadStruct(p, all) }
func (p *pointers) Save() ([]datastore.Property, error) {
	return []datastore.Property{{Name: "Name", Value: &p.Name}, {Name: "N", Value: &p.N}}, nil
}

func (c *copies) Load(all []datastore.Property) error { return datastore.LoadStruct(c, all) }
func (c *copies) Save() ([]datastore.Property, error) {
	name := c.Name
	return []datastore.Property{{Name: "Name", Value: &name}}, nil
}

func (a *attributes) Load(all []datastore.Property) error {
	*a = attributes{}
	for _, p := range all {
		(*a)[p.Name] = p.Value
	}
	return nil
}

func (a *attributes) Save() (all []datastore.Property, err error) {
	for name, v := range *a {
		all = append(all, datastore.Property{Name: name, Value: v})
	}
	return all, nil
}

// entityOf returns a value, as a message of the Datastore API, that contains an entity with these
// properties.
func entityOf(properties map[string]*pb.Value) *pb.Value {
	return &pb.Value{ValueType: &pb.Value_EntityValue{EntityValue: &pb.Entity{Properties: properties}}}
}

// TestSlicesThatSaveThemselves uses slices that have their own Load and Save, or whose elements
// have them. The slices must be loaded with all elements, as by the Go client's Get. Unchanged
// elements must stay as stored.
func TestSlicesThatSaveThemselves(t *testing.T) {
	one := func() *pb.Value { return entityOf(map[string]*pb.Value{"a": wire(t, int64(1))}) }
	stored := func() map[string]*pb.Value {
		return map[string]*pb.Value{"Lines": one(), "All": arrayOf(one(), one()), "More.x": wire(t, "y")}
	}
	key := datastore.IDKey("K", 1, nil)
	for _, resaves := range []bool{false, true} {
		e := &pb.Entity{Key: pbvalue.Key(key), Properties: stored()}
		var v order
		o, err := LoadOriginal(key, e, &v)
		if err != nil {
			t.Fatal(err)
		}
		if len(v.Lines) != 1 || len(v.All) != 2 || len(v.All[1]) != 1 || len(v.More) != 1 {
			t.Errorf("the function gets %+v", v)
		}
		is, changed, err := merged(o, &v, resaves)
		if err != nil || len(changed) > 0 || len(is.Properties) != 3 {
			t.Errorf("resaved %v: %v has changed, stored is %v, error %v", resaves, changed, is, err)
		}
	}
}

// TestSavedPointers uses types whose Save returns pointers, which the Go client's Put allows.
// Changes must be stored, and unchanged values must stay as stored.
func TestSavedPointers(t *testing.T) {
	null := wire(t, nil)
	null.ExcludeFromIndexes = true
	is, err := edited(t, map[string]*pb.Value{"Name": wire(t, "old"), "N": wire(t, int64(1))}, func(p *pointers) {
		p.Name = "new"
	})
	if err != nil || is.Properties["Name"].GetStringValue() != "new" || is.Properties["N"].GetIntegerValue() != 1 {
		t.Errorf("stored is %v, error %v", is, err)
	}
	is, err = edited(t, map[string]*pb.Value{"Name": null}, func(*copies) {})
	if err != nil || !proto.Equal(is.Properties["Name"], null) {
		t.Errorf("stored is %v, error %v", is, err)
	}
}

// TestSavedInAnyOrder removes an element of an array. The Save method of the elements returns their
// properties in random order. The remaining elements must stay as stored.
func TestSavedInAnyOrder(t *testing.T) {
	element := func(name string) *pb.Value {
		special := wire(t, name)
		special.Meaning, special.ExcludeFromIndexes = 15, true
		return entityOf(map[string]*pb.Value{"a": special, "b": wire(t, int64(1)), "c": wire(t, true),
			"d": wire(t, nil)})
	}
	for range 20 { // repeated, because maps are in another order each time
		all := []*pb.Value{element("x"), element("y"), element("z")}
		is, err := edited(t, map[string]*pb.Value{"Items": arrayOf(all...)}, func(c *catalog) { c.Items = c.Items[1:] })
		if err != nil || !proto.Equal(is.Properties["Items"], arrayOf(all[1:]...)) {
			t.Fatalf("stored is %v, error %v", is, err)
		}
		is, err = edited(t, map[string]*pb.Value{"Items": arrayOf(all...)}, func(l *datastore.PropertyList) {
			(*l)[0].Value = (*l)[0].Value.([]any)[1:]
		})
		if err != nil || !proto.Equal(is.Properties["Items"], arrayOf(all[1:]...)) {
			t.Fatalf("of a list: stored is %v, error %v", is, err)
		}
	}
}

// TestRowsWithEmptyValues changes a slice of structs that is stored flattened: as one array for
// each field. Values that omitempty leaves out must not shift the other values to other structs.
func TestRowsWithEmptyValues(t *testing.T) {
	type address struct {
		City string
		Zip  string `datastore:",omitempty"`
	}
	type person struct {
		Addr []address `datastore:",flatten"`
	}
	null, s := wire(t, nil), func(text string) *pb.Value { return wire(t, text) }
	for name, c := range map[string]struct {
		edit func(p *person)
		zips []*pb.Value
	}{
		"one more": {func(p *person) { p.Addr = append(p.Addr, address{"d", "4"}) },
			[]*pb.Value{s("1"), null, s("3"), s("4")}},
		"one more without": {func(p *person) { p.Addr = append(p.Addr, address{"d", ""}) },
			[]*pb.Value{s("1"), null, s("3"), s("")}},
		"one is emptied":   {func(p *person) { p.Addr[2].Zip = "" }, []*pb.Value{s("1"), null, s("")}},
		"one is filled":    {func(p *person) { p.Addr[1].Zip = "2" }, []*pb.Value{s("1"), s("2"), s("3")}},
		"the last is gone": {func(p *person) { p.Addr = p.Addr[:2] }, []*pb.Value{s("1"), null}},
	} {
		is, err := edited(t, map[string]*pb.Value{"Addr.City": arrayOf(s("a"), s("b"), s("c")),
			"Addr.Zip": arrayOf(s("1"), null, s("3"))}, c.edit)
		if err != nil || !proto.Equal(is.Properties["Addr.Zip"], arrayOf(c.zips...)) {
			t.Errorf("%s: stored is %v, error %v", name, is.GetProperties()["Addr.Zip"], err)
		}
	}
	// The client does not save a slice whose first struct lacks a property of a later one.
	stored := map[string]*pb.Value{"Addr.City": arrayOf(s("a"), s("b")), "Addr.Zip": arrayOf(s("1"), s("2"))}
	if is, err := edited(t, stored, func(p *person) { p.Addr[0].Zip = "" }); err == nil {
		t.Errorf("stored is %v", is)
	}
}

// TestEntityInInterface uses a struct with an interface that holds a *datastore.Entity. If the
// function changes that value, there is an error, because the Go client can't save it. If not, it
// stays as stored.
func TestEntityInInterface(t *testing.T) {
	type holder struct {
		V any
		N int64
	}
	stored := func() map[string]*pb.Value {
		return map[string]*pb.Value{"V": entityOf(map[string]*pb.Value{"a": wire(t, "old")}), "N": wire(t, int64(1))}
	}
	if _, err := edited(t, stored(),
		func(h *holder) { h.V.(*datastore.Entity).Properties[0].Value = "new" }); !errors.Is(err, errLoose) {
		t.Errorf("error %v, want %v", err, errLoose)
	}
	is, err := edited(t, stored(), func(h *holder) { h.N = 2 })
	if err != nil || !proto.Equal(is.Properties["V"], stored()["V"]) || is.Properties["N"].GetIntegerValue() != 2 {
		t.Errorf("stored is %v, error %v", is, err)
	}
}

// TestDotBesidePlainField stores a property whose name starts with a plain field's name and a dot.
// No field loads this property, and it must stay.
func TestDotBesidePlainField(t *testing.T) {
	type person struct {
		Address string
		Visits  int64
	}
	is, err := edited(t, map[string]*pb.Value{"Address": wire(t, "x"), "Address.City": wire(t, "Oslo")},
		func(p *person) {
			p.Visits++
		})
	if err != nil || is.Properties["Address.City"].GetStringValue() != "Oslo" ||
		is.Properties["Visits"].GetIntegerValue() != 1 {
		t.Errorf("stored is %v, error %v", is, err)
	}
}

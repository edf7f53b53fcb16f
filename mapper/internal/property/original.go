package property

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbkey"
	"github.com/scattermap/scattermap/internal/pbvalue"
)

// An Original is an entity as it was before a function that may change it. To save a whole struct
// takes about as long as all else that is done for an entity; so most fields are compared with what
// is stored, and only those that differ are saved. The others are saved before and after.
type Original[T any] struct {
	stored *pb.Entity
	parts  []part                 // none of a type that is saved as a whole
	saved  [][]datastore.Property // the parts that are not plain, or the whole, before
	lists  bool                   // T is a PropertyList: before is what is stored
}

var listType = reflect.TypeFor[datastore.PropertyList]()

// LoadOriginal loads a stored entity into *v as [Load] does, for a function that changes it.
func LoadOriginal[T any](key *datastore.Key, stored *pb.Entity, v *T) (*Original[T], error) {
	if err := LoadStored(key, stored, v); err != nil {
		return nil, err
	}
	t := reflect.TypeFor[T]()
	o := &Original[T]{stored: stored, parts: partsOf(t), lists: t == listType}
	switch {
	case o.lists:
		return o, nil
	case o.parts == nil:
		whole, err := saveApart(v)
		o.saved = [][]datastore.Property{whole}
		return o, err
	}
	is := reflect.ValueOf(v).Elem()
	for _, p := range o.parts {
		if p.plain {
			continue
		}
		alone := p.of(is)
		saved, err := saveApart(alone.Interface())
		if err != nil {
			return nil, err
		}
		is.Field(p.field).Set(alone.Elem().Field(0)) // it may save itself, and have changed by that
		o.saved = append(o.saved, saved)
	}
	return o, nil
}

// Changes returns what is stored once the value is saved, and the names of the properties that differ from those that
// are stored. What the function has left alone is as stored, and what it has changed, or what is not stored yet, is as
// the client's Put stores it. Where it resaves, all that T declares is so. What is returned may share values with what
// is stored.
func (o *Original[T]) Changes(v *T, resaves bool) (whole *pb.Entity, changed []string, err error) {
	s, m := schemaOrNone(reflect.TypeFor[T]()), merger{resaves}
	if o.parts == nil {
		after, err := Save(v)
		if err != nil {
			return nil, nil, err
		}
		var before []datastore.Property
		if o.lists {
			before = pbvalue.Properties(o.stored)
		} else {
			before = o.saved[0]
		}
		return m.merge(o.stored, before, after, s, false)
	}
	is, saved := reflect.ValueOf(v).Elem(), o.saved
	before, after := make([]datastore.Property, 0, len(o.parts)), make([]datastore.Property, 0, len(o.parts))
	for _, p := range o.parts {
		old := o.stored.GetProperties()[p.name]
		if !p.plain {
			before, saved = append(before, saved[0]...), saved[1:]
		} else if !resaves && old != nil && p.stores(is.Field(p.field), old) {
			continue
		} else {
			was, err := p.before(old)
			if err != nil {
				return nil, nil, err
			}
			before = append(before, was...)
		}
		now, err := Save(p.of(is).Interface())
		if err != nil {
			return nil, nil, err
		}
		after = append(after, now...)
	}
	return m.merge(o.stored, before, after, s, false)
}

// before returns what a plain part was saved as when it had been loaded from what is stored.
func (p part) before(old *pb.Value) ([]datastore.Property, error) {
	v := reflect.New(p.alone).Interface()
	if old != nil {
		if err := datastore.LoadStruct(v, []datastore.Property{pbvalue.Property(p.name, old)}); err != nil {
			return nil, err
		}
	}
	return Save(v)
}

// saveApart saves what a pointer points to, and shares nothing with it that could be changed in
// place.
func saveApart(src any) ([]datastore.Property, error) {
	properties, err := Save(src)
	for i, p := range properties {
		properties[i].Value = CloneValue(p.Value)
	}
	return properties, err
}

// A part is one field of a struct. The client saves it as it saves that of the struct.
type part struct {
	field int
	name  string
	alone reflect.Type // a struct that has nothing else
	plain bool         // its values can be compared with stored ones
}

// of returns a pointer to a struct with the part of another one.
func (p part) of(whole reflect.Value) reflect.Value {
	v := reflect.New(p.alone)
	v.Elem().Field(0).Set(whole.Field(p.field))
	return v
}

// stores reports whether a plain field has what is stored.
func (p part) stores(f reflect.Value, stored *pb.Value) bool {
	if f.Kind() != reflect.Slice || f.Type().Elem().Kind() == reflect.Uint8 {
		return storedAs(stored, f)
	}
	array := stored.GetArrayValue().GetValues()
	if len(array) == 0 || len(array) != f.Len() {
		return false
	}
	for i, el := range array {
		if !storedAs(el, f.Index(i)) {
			return false
		}
	}
	return true
}

var allParts sync.Map // by reflect.Type

// partsOf returns the parts of a type, or none if it is to be saved as a whole: one that saves
// itself, has embedded fields, or could have two fields under one name.
func partsOf(t reflect.Type) []part {
	if p, ok := allParts.Load(t); ok {
		return p.([]part)
	}
	p, _ := allParts.LoadOrStore(t, newParts(t))
	return p.([]part)
}

func newParts(t reflect.Type) []part {
	if t.Kind() != reflect.Struct || savesItself(t) {
		return nil
	}
	all := []part{}
	names := make(map[string]bool)
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			return nil
		}
		name, tag, _ := strings.Cut(f.Tag.Get("datastore"), ",")
		if !f.IsExported() || name == "-" || name == "__key__" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		if names[name] || strings.Contains(name, ".") { // as those that are flattened have
			return nil
		}
		names[name] = true
		options := strings.Split(tag, ",")
		all = append(all, part{
			field: i, name: name,
			alone: reflect.StructOf([]reflect.StructField{{Name: f.Name, Type: f.Type, Tag: f.Tag}}),
			plain: isPlain(f.Type) && !slices.Contains(options, "flatten"),
		})
	}
	return all
}

func savesItself(t reflect.Type) bool {
	return t.Implements(loadSaver) || reflect.PointerTo(t).Implements(loadSaver)
}

var (
	timeType = reflect.TypeFor[time.Time]()
	keyType  = reflect.TypeFor[*datastore.Key]()
)

// isPlain reports whether part.stores compares values of a type.
func isPlain(t reflect.Type) bool {
	if t == timeType || t == keyType {
		return true
	}
	if savesItself(t) {
		return false
	}
	switch t.Kind() {
	case reflect.Bool, reflect.String, reflect.Float32, reflect.Float64,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return true
	case reflect.Slice:
		element := t.Elem()
		return element.Kind() == reflect.Uint8 || element.Kind() != reflect.Slice && element != keyType && isPlain(element)
	}
	return false
}

// storedAs reports whether a field of a plain type has a value that is stored.
func storedAs(stored *pb.Value, f reflect.Value) bool {
	switch v := stored.GetValueType().(type) {
	case *pb.Value_BooleanValue:
		return f.Kind() == reflect.Bool && f.Bool() == v.BooleanValue
	case *pb.Value_StringValue:
		return f.Kind() == reflect.String && f.String() == v.StringValue
	case *pb.Value_IntegerValue:
		return f.CanInt() && f.Int() == v.IntegerValue
	case *pb.Value_DoubleValue:
		return f.CanFloat() && math.Float64bits(f.Float()) == math.Float64bits(v.DoubleValue)
	case *pb.Value_BlobValue:
		return f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.Uint8 && slices.Equal(f.Bytes(), v.BlobValue)
	case *pb.Value_TimestampValue:
		t, ok := f.Interface().(time.Time)
		return ok && t.Unix() == v.TimestampValue.GetSeconds() && int64(t.Nanosecond()) == int64(v.TimestampValue.GetNanos())
	case *pb.Value_KeyValue:
		k, ok := f.Interface().(*datastore.Key)
		return ok && k != nil && pbkey.Text(k) == pbkey.TextOf(v.KeyValue)
	case nil, *pb.Value_NullValue:
		k, ok := f.Interface().(*datastore.Key)
		return ok && k == nil
	}
	return false
}

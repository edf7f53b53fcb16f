package property

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/datastore"
)

// An Original is an entity as it was before a function that may change it. To save a whole struct
// takes about as long as all else that is done for an entity; so most fields are compared with what
// is stored, and only those that differ are saved. The others are saved before and after.
type Original[T any] struct {
	stored []datastore.Property
	parts  []part                 // none of a type that is saved as a whole
	saved  [][]datastore.Property // the parts that are not plain, or the whole, before
}

// LoadOriginal loads stored properties into *v as [Load] does, for a function that changes it.
func LoadOriginal[T any](key *datastore.Key, stored []datastore.Property, v *T) (*Original[T], error) {
	if err := Load(key, apart(stored), v); err != nil {
		return nil, err
	}
	o := &Original[T]{stored: stored, parts: partsOf(reflect.TypeFor[T]())}
	if o.parts == nil {
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

// Changes returns what is stored once the value is saved, and the names of the properties that
// differ from those that are stored: what T declares is stored as by the client's Put, and the rest
// stays as it is.
func (o *Original[T]) Changes(v *T) (whole []datastore.Property, changed []string, err error) {
	s := schemaOrNone(reflect.TypeFor[T]())
	if o.parts == nil {
		after, err := Save(v)
		if err != nil {
			return nil, nil, err
		}
		return merge(o.stored, o.saved[0], after, s)
	}
	is, has, saved := reflect.ValueOf(v).Elem(), byName(o.stored), o.saved
	before, after := make([]datastore.Property, 0, len(o.parts)), make([]datastore.Property, 0, len(o.parts))
	for _, p := range o.parts {
		if !p.plain {
			before, saved = append(before, saved[0]...), saved[1:]
		} else if old := has(p.name); old != nil && p.stores(is.Field(p.field), old) {
			after = append(after, *old)
			continue
		}
		now, err := Save(p.of(is).Interface())
		if err != nil {
			return nil, nil, err
		}
		after = append(after, now...)
	}
	return merge(o.stored, before, after, s)
}

// apart returns properties that share nothing with others that could be changed in place.
func apart(properties []datastore.Property) []datastore.Property {
	clones := properties
	for i, p := range properties {
		if !shares(p.Value) {
			continue
		}
		if &clones[0] == &properties[0] {
			clones = slices.Clone(properties)
		}
		clones[i].Value = CloneValue(p.Value)
	}
	return clones
}

// shares reports whether loading a value into a field shares something that can be changed in place.
func shares(v any) bool {
	switch v := v.(type) {
	case []byte, *datastore.Key, *datastore.Entity:
		return true
	case []any:
		return slices.ContainsFunc(v, shares)
	}
	return false
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
	field     int
	name      string
	unindexed bool
	omitEmpty bool
	alone     reflect.Type // a struct that has nothing else
	plain     bool         // its values can be compared with stored ones
}

// of returns a pointer to a struct with the part of another one.
func (p part) of(whole reflect.Value) reflect.Value {
	v := reflect.New(p.alone)
	v.Elem().Field(0).Set(whole.Field(p.field))
	return v
}

// stores reports whether a plain field is saved as a property that is stored.
func (p part) stores(f reflect.Value, stored *datastore.Property) bool {
	if stored.NoIndex != p.unindexed || p.omitEmpty {
		return false // what is empty is left out, element by element
	}
	if f.Kind() != reflect.Slice || f.Type().Elem().Kind() == reflect.Uint8 {
		return storedAs(stored.Value, f)
	}
	array, ok := stored.Value.([]any)
	if !ok || len(array) == 0 || len(array) != f.Len() {
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
			field: i, name: name, unindexed: slices.Contains(options, "noindex"), omitEmpty: slices.Contains(options, "omitempty"),
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

// storedAs reports whether a value of a plain type is saved as a value that is stored.
func storedAs(stored any, f reflect.Value) bool {
	switch stored := stored.(type) {
	case bool:
		return f.Kind() == reflect.Bool && f.Bool() == stored
	case string:
		return f.Kind() == reflect.String && f.String() == stored
	case int64:
		return f.CanInt() && f.Int() == stored
	case float64:
		return f.CanFloat() && math.Float64bits(f.Float()) == math.Float64bits(stored)
	case []byte:
		return f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.Uint8 && slices.Equal(f.Bytes(), stored)
	case time.Time:
		t, ok := f.Interface().(time.Time)
		return ok && t.Equal(stored)
	case *datastore.Key:
		k, ok := f.Interface().(*datastore.Key)
		return ok && k.Equal(stored)
	case nil:
		k, ok := f.Interface().(*datastore.Key)
		return ok && k == nil
	}
	return false
}

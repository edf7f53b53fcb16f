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

// An Original is a value as it was before a function that may change it. To save a whole struct
// takes about as long as all else that is done for an entity; so of most fields it keeps a
// copy, and only those that have changed are saved, as they were and as they are.
type Original[T any] struct {
	value T                      // apart from what a function could change in place, as far as parts are plain
	parts []part                 // none of a type that is saved as a whole
	saved [][]datastore.Property // those parts that are not plain, or the whole
}

// OriginalOf returns the original of a value that a function is about to get.
func OriginalOf[T any](v *T) (*Original[T], error) {
	o := &Original[T]{parts: partsOf(reflect.TypeFor[T]())}
	if o.parts == nil {
		whole, err := saveApart(v)
		o.saved = [][]datastore.Property{whole}
		return o, err
	}
	o.value = *v
	was, is := reflect.ValueOf(&o.value).Elem(), reflect.ValueOf(v).Elem()
	for _, p := range o.parts {
		if p.plain {
			detach(was.Field(p.field))
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

// Changes returns properties of the original, and those of the value in their place: all that
// differ are among them. If all are asked for, they are.
func (o *Original[T]) Changes(v *T, all bool) (before, after []datastore.Property, err error) {
	if o.parts == nil {
		after, err = Save(v)
		return o.saved[0], after, err
	}
	was, is := reflect.ValueOf(&o.value).Elem(), reflect.ValueOf(v).Elem()
	saved := o.saved
	for _, p := range o.parts {
		var old []datastore.Property
		switch {
		case !p.plain:
			old, saved = saved[0], saved[1:]
		case !all && equalFields(was.Field(p.field), is.Field(p.field)):
			continue
		default:
			if old, err = Save(p.of(was).Interface()); err != nil {
				return nil, nil, err
			}
		}
		now, err := Save(p.of(is).Interface())
		if err != nil {
			return nil, nil, err
		}
		before, after = append(before, old...), append(after, now...)
	}
	return before, after, nil
}

// A part is one field of a struct. The client saves it as it saves that of the struct.
type part struct {
	field int
	alone reflect.Type // a struct that has nothing else
	plain bool         // its values can be compared
}

// of returns a pointer to a struct with the part of another one.
func (p part) of(whole reflect.Value) reflect.Value {
	v := reflect.New(p.alone)
	v.Elem().Field(0).Set(whole.Field(p.field))
	return v
}

// detach has a plain field of a copy share nothing with the original that could be changed in
// place.
func detach(f reflect.Value) {
	switch f.Kind() {
	case reflect.Slice:
		if !f.IsNil() {
			clone := reflect.MakeSlice(f.Type(), f.Len(), f.Len())
			reflect.Copy(clone, f)
			f.Set(clone)
		}
	case reflect.Pointer:
		f.Set(reflect.ValueOf(cloneKey(f.Interface().(*datastore.Key))))
	}
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
		name, _, _ := strings.Cut(f.Tag.Get("datastore"), ",")
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
		alone := reflect.StructOf([]reflect.StructField{{Name: f.Name, Type: f.Type, Tag: f.Tag}})
		all = append(all, part{i, alone, isPlain(f.Type)})
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

// isPlain reports whether equalFields compares values of a type.
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

// equalFields reports whether two values of a plain type are saved as equal properties.
func equalFields(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Bool:
		return a.Bool() == b.Bool()
	case reflect.String:
		return a.String() == b.String()
	case reflect.Float32, reflect.Float64:
		return math.Float64bits(a.Float()) == math.Float64bits(b.Float())
	case reflect.Struct:
		return a.Interface().(time.Time).Equal(b.Interface().(time.Time))
	case reflect.Pointer:
		return a.Interface().(*datastore.Key).Equal(b.Interface().(*datastore.Key))
	case reflect.Slice:
		if a.Type().Elem().Kind() == reflect.Uint8 {
			return slices.Equal(a.Bytes(), b.Bytes())
		}
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !equalFields(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	}
	return a.Int() == b.Int()
}

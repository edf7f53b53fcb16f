package mapper

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/datastore"
)

// An original is a value as it was before a function that may change it. To save a whole struct
// takes about as long as all else that is done for an entity; so of most fields it keeps a
// copy, and only those that have changed are saved, as they were and as they are.
type original[T any] struct {
	value T                    // apart from what a function could change in place, if parts are known
	parts *parts               // nil of a type that is saved as a whole
	saved []datastore.Property // what can't be compared: some fields, or all
}

// originalOf returns the original of a value that a function is about to get.
func originalOf[T any](v *T) (*original[T], error) {
	o := &original[T]{parts: partsOf(reflect.TypeFor[T]())}
	if o.parts == nil {
		var err error
		o.saved, err = saveApart(v)
		return o, err
	}
	o.value = *v
	now := reflect.ValueOf(v).Elem()
	o.parts.detach(reflect.ValueOf(&o.value).Elem())
	if o.parts.rest == nil {
		return o, nil
	}
	rest := o.parts.rest.of(now)
	var err error
	o.saved, err = saveApart(rest)
	o.parts.rest.set(now, rest) // a field that saves itself may have changed
	return o, err
}

// changes returns properties of the original, and those of the value in their place: all that
// differ are among them. If all are asked for, they are.
func (o *original[T]) changes(v *T, all bool) (before, after []datastore.Property, err error) {
	if o.parts == nil {
		after, err = save(v)
		return o.saved, after, err
	}
	was, is := reflect.ValueOf(&o.value).Elem(), reflect.ValueOf(v).Elem()
	for _, p := range o.parts.plain {
		i := p.fields[0]
		if !all && equalFields(was.Field(i), is.Field(i)) {
			continue
		}
		old, err := save(p.of(was))
		if err != nil {
			return nil, nil, err
		}
		now, err := save(p.of(is))
		if err != nil {
			return nil, nil, err
		}
		before, after = append(before, old...), append(after, now...)
	}
	if o.parts.rest != nil {
		saved, err := save(o.parts.rest.of(is))
		if err != nil {
			return nil, nil, err
		}
		before, after = append(before, o.saved...), append(after, saved...)
	}
	return before, after, nil
}

// Parts are the fields of a struct that are saved by themselves: each of those whose values can
// be compared, and the others together.
type parts struct {
	plain []part
	rest  *part
	inner []int // those of the plain fields that lead to something that can be changed in place
}

// A part is some fields of a struct. The client saves them as it saves the struct's.
type part struct {
	fields []int
	alone  reflect.Type // a struct that has only them
}

// of returns a pointer to a struct with the part's fields of another one.
func (p part) of(whole reflect.Value) any {
	v := reflect.New(p.alone)
	for i, field := range p.fields {
		v.Elem().Field(i).Set(whole.Field(field))
	}
	return v.Interface()
}

// set sets the part's fields of a struct to those of a pointer to one that has only them.
func (p part) set(whole reflect.Value, alone any) {
	v := reflect.ValueOf(alone).Elem()
	for i, field := range p.fields {
		whole.Field(field).Set(v.Field(i))
	}
}

// detach has a copy of a struct share nothing with it that could be changed in place, as far as
// its fields are plain.
func (p *parts) detach(copied reflect.Value) {
	for _, i := range p.inner {
		f := copied.Field(i)
		switch {
		case f.IsNil():
		case f.Kind() == reflect.Slice:
			clone := reflect.MakeSlice(f.Type(), f.Len(), f.Len())
			reflect.Copy(clone, f)
			f.Set(clone)
		default:
			f.Set(reflect.ValueOf(cloneKey(f.Interface().(*datastore.Key))))
		}
	}
}

var allParts sync.Map // by reflect.Type

// partsOf returns the parts of a type, or nil if it is to be saved as a whole: one that saves
// itself, has embedded fields, or could have two fields under one name.
func partsOf(t reflect.Type) *parts {
	if p, ok := allParts.Load(t); ok {
		return p.(*parts)
	}
	p, _ := allParts.LoadOrStore(t, newParts(t))
	return p.(*parts)
}

func newParts(t reflect.Type) *parts {
	if t.Kind() != reflect.Struct || savesItself(t) {
		return nil
	}
	all := new(parts)
	names := make(map[string]bool)
	var others []int
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
		switch {
		case !isPlain(f.Type):
			others = append(others, i)
			continue
		case f.Type.Kind() == reflect.Slice || f.Type.Kind() == reflect.Pointer:
			all.inner = append(all.inner, i)
		}
		all.plain = append(all.plain, newPart(t, i))
	}
	if len(others) > 0 {
		rest := newPart(t, others...)
		all.rest = &rest
	}
	return all
}

func newPart(t reflect.Type, fields ...int) part {
	var alone []reflect.StructField
	for _, i := range fields {
		f := t.Field(i)
		alone = append(alone, reflect.StructField{Name: f.Name, Type: f.Type, Tag: f.Tag})
	}
	return part{fields, reflect.StructOf(alone)}
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

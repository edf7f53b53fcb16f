package property

import (
	"errors"
	"reflect"
	"slices"

	"cloud.google.com/go/datastore"
)

// errLoose is the error if a function has changed a Go value in which an interface holds a
// *datastore.Entity. The client would not save this as an entity, but as the fields of the Go
// struct.
var errLoose = errors.New("it holds a *datastore.Entity in an interface, and the Go client saves that as the fields " +
	"of the struct " +
	"datastore.Entity: have a field of a type of its own, or a datastore.PropertyList for the whole entity")

// checkLoose returns errLoose if a function has changed the Go value v, and an interface in v holds
// a *datastore.Entity. The value was saved as the properties before, and is now saved as after.
func (h habits) checkLoose(v reflect.Value, before, after []datastore.Property) error {
	if h.loose && !equalProperties(before, after) && holdsLoose(v) {
		return errLoose
	}
	return nil
}

// looseSome reports whether a type contains interfaces, which may hold an entity (see errLoose).
// The map seen has the types that were checked already.
func looseSome(t reflect.Type, seen map[reflect.Type]bool) bool {
	if t = elementType(t); seen[t] || savesItself(t) || slices.Contains(leaves, t) {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Struct:
		for i := range t.NumField() {
			if looseSome(t.Field(i).Type, seen) {
				return true
			}
		}
	}
	return false
}

// holdsLoose reports whether an interface inside a value holds a *datastore.Entity.
func holdsLoose(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Interface:
		_, is := v.Interface().(*datastore.Entity)
		return is || holdsLoose(v.Elem())
	case reflect.Pointer:
		return holdsLoose(v.Elem())
	case reflect.Slice:
		for i := range v.Len() {
			if holdsLoose(v.Index(i)) {
				return true
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && holdsLoose(v.Field(i)) {
				return true
			}
		}
	}
	return false
}

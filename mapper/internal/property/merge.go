package property

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"cloud.google.com/go/datastore"
)

// errUnkept says that something which the Go type does not declare has no place any more.
var errUnkept = errors.New("it holds entities with properties or keys that the Go type does not declare, and which changing it would drop")

// merge returns what is stored once a value is saved over stored properties, and the names of those
// that differ then: the value's are what the client's Put would store, and what the Go type does not
// declare stays. The value was saved as before when it had been loaded, and is saved as after. What
// the type declares is what either has, and what its schema says, if it has one.
func merge(stored, before, after []datastore.Property, s *schema) (whole []datastore.Property, changed []string, err error) {
	was, is, has := byName(before), byName(after), byName(stored)
	whole = make([]datastore.Property, 0, max(len(stored), len(after)))
	for _, p := range stored {
		if is(p.Name) != nil {
			continue
		}
		if was(p.Name) != nil || s.declares(p.Name) {
			changed = append(changed, p.Name) // removed
			continue
		}
		whole = append(whole, asStored(p))
	}
	for _, p := range after {
		if p.Name == "__key__" {
			continue // the client does not send it
		}
		old := has(p.Name)
		if old == nil {
			whole, changed = append(whole, p), append(changed, p.Name)
			continue
		}
		var from any
		if b := was(p.Name); b != nil {
			from = b.Value
		}
		if p.Value, err = mergeValue(old.Value, from, p.Value, s.inside(p.Name)); err != nil {
			return nil, nil, fmt.Errorf("property %q: %w", p.Name, err)
		}
		if sameStored(*old, p, false) {
			whole = append(whole, asStored(*old))
			continue
		}
		whole, changed = append(whole, p), append(changed, p.Name)
	}
	return whole, changed, nil
}

// mergeValue keeps, in a value that is saved, what the entities inside it hold that the Go type does
// not declare. In an array nothing says which stored element a changed one is: only one that the
// function has left alone is merged, element by element, and any other is refused if something would
// be lost.
func mergeValue(stored, before, after any, s *schema) (any, error) {
	if !holdsEntity(stored) {
		return after, nil
	}
	old, isEntity := stored.(*datastore.Entity)
	b, wasEntity := before.(*datastore.Entity)
	a, staysEntity := after.(*datastore.Entity)
	if isEntity && wasEntity && staysEntity && old != nil && b != nil && a != nil {
		whole, _, err := merge(old.Properties, b.Properties, a.Properties, s)
		key := a.Key
		if key.Equal(b.Key) {
			key = old.Key // the Go type may not have it
		}
		return &datastore.Entity{Key: key, Properties: whole}, err
	}
	from, was, is := elementsOf(stored), elementsOf(before), elementsOf(after)
	alone := equalValues(before, after)
	if _, array := after.([]any); array && alone && len(from) == len(is) {
		merged := make([]any, len(is))
		for i := range is {
			var err error
			if merged[i], err = mergeValue(from[i], was[i], is[i], s); err != nil {
				return nil, err
			}
		}
		return merged, nil
	}
	for i, el := range from {
		if _, ok := el.(*datastore.Entity); ok && (len(from) != len(was) || loses(el, was[i])) {
			if alone {
				return stored, nil
			}
			return nil, errUnkept
		}
	}
	return after, nil
}

// elementsOf returns the elements of an array, and of another value itself.
func elementsOf(v any) []any {
	if array, ok := v.([]any); ok {
		return array
	}
	return []any{v}
}

// sameStored reports whether a property that is saved is stored as the one that is stored already,
// both in what is indexed or is not.
func sameStored(stored, saved datastore.Property, unindexed bool) bool {
	stored, unindexed = asStored(stored), unindexed || saved.NoIndex
	if array, ok := saved.Value.([]any); (!ok || len(array) > 0) && stored.NoIndex != unindexed {
		return false // an empty array has no flag
	}
	return sameValues(stored.Value, saved.Value, unindexed)
}

// sameValues reports whether a value that is saved is stored as one that is stored already. What is
// inside an unindexed value is unindexed, too.
func sameValues(stored, saved any, unindexed bool) bool {
	switch saved := plainValue(saved).(type) {
	case time.Time:
		s, ok := stored.(time.Time)
		return ok && s.Equal(saved.Truncate(time.Microsecond))
	case []any:
		s, ok := stored.([]any)
		return ok && slices.EqualFunc(s, saved, func(a, b any) bool { return sameValues(a, b, unindexed) })
	case *datastore.Entity:
		s, ok := stored.(*datastore.Entity)
		if !ok || s == nil || !s.Key.Equal(saved.Key) {
			return false
		}
		has, n := byName(s.Properties), 0
		for _, p := range saved.Properties {
			if p.Name == "__key__" {
				continue
			}
			n++
			if old := has(p.Name); old == nil || !sameStored(*old, p, unindexed) {
				return false
			}
		}
		return n == len(s.Properties)
	default:
		return equalValues(stored, saved)
	}
}

// plainValue returns a value that something may save as the client returns it from the database.
func plainValue(v any) any {
	switch v := v.(type) {
	case nil, bool, int64, float64, string, []byte, time.Time, []any, datastore.GeoPoint:
		return v
	case int:
		return int64(v)
	case int32:
		return int64(v)
	case float32:
		return float64(v)
	case *datastore.Key:
		if v == nil {
			return nil
		}
		return v
	case *datastore.Entity:
		if v == nil {
			return nil
		}
		return v
	}
	if p := reflect.ValueOf(v); p.Kind() == reflect.Pointer {
		if p.IsNil() {
			return nil
		}
		return plainValue(p.Elem().Interface())
	}
	return v
}

package property

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"slices"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/internal/value"
)

// noField is the reason in the Go client's error for a property that a struct does not declare.
const noField = "no such struct field"

// keyField is the name under which the Go client loads and saves a struct's field for the entity's
// key.
const keyField = "__key__"

// Load loads properties into *v. It skips properties that T does not declare. If a property does
// not fit its field, it returns an error with the property's name.
func Load[T any](key *datastore.Key, properties []datastore.Property, v *T) error {
	if loader, ok := any(v).(datastore.PropertyLoadSaver); ok {
		return loadItself(key, properties, v, loader)
	}
	s := schemaOf(reflect.TypeFor[T]())
	fitting, err := s.fit(properties)
	if err != nil {
		return err
	}
	if s.keyed {
		fitting = append(fitting, datastore.Property{Name: "__key__", Value: key})
	}
	return datastore.LoadStruct(v, fitting)
}

// LoadStored loads a stored entity into *v. It does the same as [Load] with the entity's
// properties, but is faster, because it does not convert properties that T does not declare. A
// later change of *v does not change stored.
func LoadStored[T any](key *datastore.Key, stored *pb.Entity, v *T) error {
	if _, ok := any(v).(datastore.PropertyLoadSaver); ok {
		return Load(key, pbvalue.Properties(stored), v)
	}
	s, is := schemaOf(reflect.TypeFor[T]()), reflect.ValueOf(v).Elem()
	rest := pbvalue.Some(stored, func(name string) bool {
		f, ok := s.fields[name]
		plain := ok && len(f.index) == 1 && f.sub == nil && !f.opaque
		if plain && load(stored.Properties[name], is.Field(f.index[0])) {
			return false
		}
		return s.concerns(name)
	})
	if len(rest) == 0 && !s.keyed {
		return nil
	}
	return Load(key, rest, v)
}

// load loads a stored value into a struct's field and returns true, if the field has the usual type
// for this kind of value. It is a fast path: the Go client would do the same, but takes longer than
// the rest of an entity's update. If load returns false, the caller must use the client.
func load(v *pb.Value, f reflect.Value) bool {
	t := f.Type()
	elements := v.GetArrayValue().GetValues()
	if len(elements) > 0 && t.Kind() == reflect.Slice && isScalar(t.Elem()) && !savesItself(t) {
		list := reflect.MakeSlice(t, len(elements), len(elements))
		for i, el := range elements {
			if !load(el, list.Index(i)) {
				return false
			}
		}
		f.Set(list)
		return true
	}
	if !isScalar(t) || !fits(v, t) {
		return false
	}
	switch x := v.GetValueType().(type) {
	case *pb.Value_BooleanValue:
		f.SetBool(x.BooleanValue)
	case *pb.Value_StringValue:
		f.SetString(x.StringValue)
	case *pb.Value_DoubleValue:
		f.SetFloat(x.DoubleValue)
	case *pb.Value_IntegerValue:
		if f.OverflowInt(x.IntegerValue) {
			return false // the caller uses the client, which returns the error
		}
		f.SetInt(x.IntegerValue)
	default:
		f.Set(reflect.ValueOf(pbvalue.Go(v)))
	}
	return true
}

// loadItself loads properties by calling the value's own Load method. Many such methods call
// LoadStruct, which reports only the last property that does not fit. A property that T does not
// declare is no error here, but its report could hide a real error. So loadItself loads again
// without such properties, into another value, until there is a real error or none.
func loadItself[T any](
	key *datastore.Key, properties []datastore.Property, v *T, loader datastore.PropertyLoadSaver,
) error {
	if keyed, ok := any(v).(datastore.KeyLoader); ok {
		if err := keyed.LoadKey(key); err != nil {
			return err
		}
	}
	err := loader.Load(cloneProperties(properties))
	for known := properties; ; {
		mismatch := new(datastore.ErrFieldMismatch)
		if !errors.As(err, &mismatch) || mismatch.Reason != noField {
			return err
		}
		n := len(known)
		if known = without(known, mismatch.FieldName); len(known) == n {
			return err
		}
		probe, ok := any(new(T)).(datastore.PropertyLoadSaver)
		if !ok {
			return err
		}
		err = probe.Load(cloneProperties(known))
	}
}

func without(properties []datastore.Property, name string) []datastore.Property {
	rest := make([]datastore.Property, 0, len(properties))
	for _, p := range properties {
		if p.Name != name {
			rest = append(rest, p)
		}
	}
	return rest
}

// Save returns the properties of src, which is a pointer to a struct or a PropertyLoadSaver.
func Save(src any) ([]datastore.Property, error) {
	var properties []datastore.Property
	var err error
	if saver, ok := src.(datastore.PropertyLoadSaver); ok {
		properties, err = saver.Save()
		properties = slices.Clone(properties) // the saver may keep the slice
	} else {
		properties, err = datastore.SaveStruct(src)
	}
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(properties, func(p datastore.Property) bool { return p.Name == "__key__" }), nil
}

// tooLong reports whether a value contains a text or blob that is too long to be indexed.
func tooLong(v any) bool {
	switch v := v.(type) {
	case string:
		return len(v) > pbvalue.LongestIndexed
	case []byte:
		return len(v) > pbvalue.LongestIndexed
	case []any:
		return slices.ContainsFunc(v, tooLong)
	case *datastore.Entity:
		return slices.ContainsFunc(v.Properties, func(p datastore.Property) bool {
			return !p.NoIndex && tooLong(p.Value)
		})
	}
	return false
}

// byName returns a function that finds the last property with a name, or returns nil if there is
// none. It uses a map only if there are many properties.
func byName(properties []datastore.Property) func(name string) *datastore.Property {
	const few = 32
	if len(properties) > few {
		m := make(map[string]*datastore.Property, len(properties))
		for i := range properties {
			m[properties[i].Name] = &properties[i]
		}
		return func(name string) *datastore.Property { return m[name] }
	}
	return func(name string) *datastore.Property {
		for i := len(properties) - 1; i >= 0; i-- {
			if properties[i].Name == name {
				return &properties[i]
			}
		}
		return nil
	}
}

// Maskable reports whether all of the names can be in a property mask: each must be a plain
// identifier. Database servers disagree about other names in a mask: some refuse them, and others
// take them for another property.
func Maskable(names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return !isIdentifier(name) })
}

// isIdentifier reports whether a name is a plain identifier: ASCII letters, digits and underscores,
// without a digit at the start. It is called for each update, so it uses no regular expression.
func isIdentifier(name string) bool {
	for i, c := range []byte(name) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// equalValues reports whether two values of properties are equal.
func equalValues(a, b any) bool {
	switch a := a.(type) {
	case float64:
		return isEqual(a, b, func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) })
	case []byte:
		return isEqual(a, b, bytes.Equal)
	case time.Time:
		return isEqual(a, b, time.Time.Equal)
	case *datastore.Key:
		return isEqual(a, b, (*datastore.Key).Equal)
	case datastore.GeoPoint:
		return isEqual(a, b, func(a, b datastore.GeoPoint) bool {
			return equalValues(a.Lat, b.Lat) && equalValues(a.Lng, b.Lng)
		})
	case []any:
		return isEqual(a, b, func(a, b []any) bool { return slices.EqualFunc(a, b, equalValues) })
	case *datastore.Entity:
		return isEqual(a, b, equalEntities)
	}
	// A Save may return a value that no property can have, such as a []string.
	if a == nil || b == nil {
		return a == b
	}
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

// isEqual reports whether b has a's type, and equals it.
func isEqual[T any](a T, b any, equal func(a, b T) bool) bool {
	same, ok := b.(T)
	return ok && equal(a, same)
}

func equalEntities(a, b *datastore.Entity) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Key.Equal(b.Key) && equalProperties(a.Properties, b.Properties)
}

func equalProperties(a, b []datastore.Property) bool {
	return slices.EqualFunc(a, b, func(p, q datastore.Property) bool {
		return p.Name == q.Name && p.NoIndex == q.NoIndex && equalValues(p.Value, q.Value)
	})
}

// cloneProperties copies properties, so that no change inside the copy changes the original.
func cloneProperties(properties []datastore.Property) []datastore.Property {
	clone := slices.Clone(properties)
	for i := range clone {
		clone[i].Value = CloneValue(clone[i].Value)
	}
	return clone
}

// CloneValue copies a property's value, so that no change inside the copy changes the original.
func CloneValue(v any) any {
	switch v := v.(type) {
	case []byte:
		return slices.Clone(v)
	case []any:
		clone := slices.Clone(v)
		for i := range clone {
			clone[i] = CloneValue(clone[i])
		}
		return clone
	case *datastore.Key:
		return value.CloneKey(v)
	case *datastore.Entity:
		if v == nil {
			return v
		}
		return &datastore.Entity{Key: value.CloneKey(v.Key), Properties: cloneProperties(v.Properties)}
	}
	return v
}

// Stored returns properties as the Go client would read them after it has put them. It leaves out
// the field for the key, which is not a property. Everything inside an unindexed value becomes
// unindexed. The result shares no memory with the argument.
func Stored(properties []datastore.Property) []datastore.Property {
	return storedIn(cloneProperties(properties), false)
}

func storedIn(properties []datastore.Property, unindexed bool) []datastore.Property {
	properties = slices.DeleteFunc(properties, func(p datastore.Property) bool { return p.Name == "__key__" })
	for i := range properties {
		p := &properties[i]
		p.NoIndex = p.NoIndex || unindexed
		p.Value = storedValue(p.Value, p.NoIndex)
		if array, ok := p.Value.([]any); ok && len(array) == 0 {
			p.NoIndex = false // the index flag is stored in elements, and there are none
		}
	}
	return properties
}

func storedValue(v any, unindexed bool) any {
	switch v := plainValue(v).(type) {
	case time.Time:
		return v.UTC().Truncate(time.Microsecond)
	case []any:
		for i := range v {
			v[i] = storedValue(v[i], unindexed)
		}
		return v
	case *datastore.Entity:
		v.Properties = storedIn(v.Properties, unindexed)
		return v
	default:
		return v
	}
}

// LoadInto loads properties into the value that entity points to. It does the same as [Load], but
// the type is known only at run time. It returns an error for a property that the type does not
// declare.
func LoadInto(entity any, key *datastore.Key, properties []datastore.Property) error {
	v := reflect.ValueOf(entity).Elem()
	v.SetZero() // the client appends to slices, and does not reset fields without a property
	if loader, ok := entity.(datastore.PropertyLoadSaver); ok {
		if keyed, ok := entity.(datastore.KeyLoader); ok {
			if err := keyed.LoadKey(key); err != nil {
				return err
			}
		}
		return loader.Load(properties)
	}
	fitting, err := schemaOf(v.Type()).fit(properties)
	if err != nil {
		return err
	}
	// The client reports only the last mismatch. So the key comes first, because most structs have
	// no field for it.
	return datastore.LoadStruct(entity, append([]datastore.Property{{Name: "__key__", Value: key}}, fitting...))
}

// IgnoreUndeclared returns nil if err only says that a struct has no field for a stored property,
// which a newer version may have stored. Otherwise it returns err.
func IgnoreUndeclared(err error) error {
	if mismatch := new(datastore.ErrFieldMismatch); errors.As(err, &mismatch) && mismatch.Reason == noField {
		return nil
	}
	return err
}

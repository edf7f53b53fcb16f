package property

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/internal/value"
)

// errUnkept is the error for a change that would lose stored data that the Go type does not hold,
// such as an undeclared property.
var errUnkept = errors.New("changing it would drop properties or keys of entities inside it that the Go type " +
	"does not declare")

// A merger makes the entity to store after a function has changed the Go value that was loaded from
// a stored entity. A property that is saved in the same form before and after the function stays as
// stored, bit for bit. Properties that the type does not save also stay. Only values that differ
// are converted. Inside arrays and entities, only the parts that differ are converted.
type merger struct {
	resaves bool            // whether unchanged values are converted, too, as the client's Put would do
	own     *pb.PartitionId // project and namespace of the stored entity
}

// merge returns the change of the stored entity. The Go value was saved as the properties before
// when it was loaded, and as after now. If its type is a struct, s is the schema, which declares
// all of these properties. The argument unindexed says that the entity is inside an unindexed
// value.
func (m merger) merge(
	stored *pb.Entity, before, after []datastore.Property, s *schema, unindexed bool,
) (Edit, error) {
	was, is := byName(before), byName(after)
	if err := s.inStep(stored, before, after); err != nil {
		return Edit{}, err
	}
	edits := m.removed(stored, before, is, s)
	moved := moves{stored: stored, before: before, is: is, flags: m.resaves}
	for i := range after {
		p := after[i]
		switch last := is(p.Name); {
		case p.Name == keyField:
			continue // the client does not send the key as a property
		case last != &after[i]:
			return Edit{}, fmt.Errorf("property %q is there twice", p.Name)
		case !utf8.ValidString(p.Name):
			return Edit{}, fmt.Errorf("the property's name %q is not valid UTF-8", p.Name)
		}
		old, b := stored.GetProperties()[p.Name], was(p.Name)
		differs := b == nil || !equalValues(b.Value, p.Value)
		if !m.resaves && old != nil && !differs && b.NoIndex == p.NoIndex {
			continue
		}
		if err := checkValue(p.Value); err != nil {
			return Edit{}, fmt.Errorf("property %q: %w", p.Name, err)
		}
		var v *pb.Value
		var err error
		if s == nil && differs {
			v = moved.find(p, unindexed)
		}
		switch {
		case v != nil:
		case old == nil:
			v, err = m.valueOf(p.Value, p.NoIndex || unindexed)
		default:
			v, err = m.value(old, b, p, s.inside(p.Name), unindexed)
		}
		if err != nil {
			return Edit{}, fmt.Errorf("property %q: %w", p.Name, err)
		}
		if !same(old, v) {
			edits[p.Name] = v
		}
	}
	return NewEdit(stored, edits), nil
}

// removed returns edits that remove properties: the Go value saved them before the function ran,
// and does not save them any more. The keys are names of properties, and the values are nil, which
// means removal.
func (m merger) removed(
	stored *pb.Entity, before []datastore.Property, is func(string) *datastore.Property, s *schema,
) map[string]*pb.Value {
	edits := make(map[string]*pb.Value)
	for _, p := range before {
		if stored.GetProperties()[p.Name] != nil && is(p.Name) == nil {
			edits[p.Name] = nil
		}
	}
	if m.resaves && s != nil {
		for name := range stored.GetProperties() {
			if is(name) == nil && s.declares(name) {
				edits[name] = nil
			}
		}
	}
	return edits
}

// checkValue returns an error for a value of a Go type that no property can have. A type's own Save
// may return such a value.
func checkValue(v any) error {
	switch x := plainValue(v).(type) {
	case nil, bool, int64, float64, string, []byte, time.Time, datastore.GeoPoint, *datastore.Key, unsaved, omitted:
		return nil
	case *datastore.Entity:
		for _, p := range x.Properties {
			if err := checkValue(p.Value); err != nil {
				return fmt.Errorf("property %q: %w", p.Name, err)
			}
		}
		return nil
	case []any:
		for _, el := range x {
			if err := checkValue(el); err != nil {
				return err
			}
		}
		return nil
	default:
		_, err := pbvalue.Of(x, true)
		return err
	}
}

// A moves finds properties that a function has renamed, so that they keep their stored form. It is
// for types without a schema, such as a PropertyList. A property p counts as renamed if its value
// is new under its name, and equals the earlier value of another name. That other name must have
// been removed, or have a new value.
type moves struct {
	stored *pb.Entity
	before []datastore.Property
	// is returns the property that is saved now under a name, or nil.
	is    func(name string) *datastore.Property
	taken map[string]bool // the earlier names for which a renamed property was already found
	// flags says that a renamed value gets the index flag of its new property, in every case.
	flags bool
}

// find returns the stored value of the property that the function has renamed to p, or nil if p is
// no renamed property.
func (m *moves) find(p datastore.Property, unindexed bool) *pb.Value {
	for _, b := range m.before {
		old := m.stored.GetProperties()[b.Name]
		if old == nil || b.Name == p.Name || m.taken[b.Name] || !equalValues(b.Value, p.Value) {
			continue
		}
		if now := m.is(b.Name); now != nil && equalValues(b.Value, now.Value) {
			continue
		}
		was := pbvalue.Property(b.Name, old)
		if !equalValues(was.Value, p.Value) {
			continue // the Go value differs from the stored one even without a change
		}
		if m.taken == nil {
			m.taken = make(map[string]bool)
		}
		m.taken[b.Name] = true
		if m.flags || was.NoIndex != p.NoIndex {
			return flagged(old, p.NoIndex || unindexed)
		}
		return old
	}
	return nil
}

// value returns the value to store for the property p, whose stored value is old. Before the
// function ran, the property was saved as b; a nil b means that it was not saved.
func (m merger) value(
	old *pb.Value, b *datastore.Property, p datastore.Property, s *schema, unindexed bool,
) (*pb.Value, error) {
	noIndex := p.NoIndex || unindexed
	if b == nil {
		return m.saved(old, unsaved{}, p.Value, noIndex, m.resaves, s)
	}
	if !m.resaves && equalValues(b.Value, p.Value) { // only the index flag differs
		return flagged(old, noIndex), nil
	}
	return m.saved(old, b.Value, p.Value, noIndex, m.resaves || b.NoIndex != p.NoIndex, s)
}

// saved returns the value to store in place of the stored value old. The Go value was saved as
// before before the function ran, and is now saved as after. If flags is set, unchanged parts also
// get the new index flag.
func (m merger) saved(old *pb.Value, before, after any, noIndex, flags bool, s *schema) (*pb.Value, error) {
	b, wasEntity := before.(*datastore.Entity)
	a, isEntity := after.(*datastore.Entity)
	if inner := old.GetEntityValue(); inner != nil && wasEntity && isEntity && a != nil && b != nil {
		edit, err := m.merge(inner, b.Properties, a.Properties, s, noIndex)
		if err != nil {
			return nil, err
		}
		whole := edit.Whole()
		if !a.Key.Equal(b.Key) { // a Go type that does not hold the key saves nil both times
			whole = &pb.Entity{Key: pbvalue.Key(a.Key), Properties: whole.GetProperties()}
		}
		return like(old, &pb.Value{ValueType: &pb.Value_EntityValue{EntityValue: whole}}, noIndex, flags), nil
	}
	_, isArray := after.([]any)
	if isArray || old.GetArrayValue() != nil {
		if from, ok := align(value.Elements(old), valuesIn(before)); ok {
			// A single value gets the flag with which it is saved, even if it was an element with
			// another flag.
			all, err := m.elements(value.Elements(old), from, valuesIn(after), noIndex, flags || !isArray, s)
			if err != nil {
				return nil, err
			}
			if !isArray && len(all) == 1 {
				return all[0], nil
			}
			whole := &pb.Value{ValueType: &pb.Value_ArrayValue{ArrayValue: &pb.ArrayValue{Values: all}}}
			if old.GetArrayValue() != nil {
				whole = like(old, whole, false, flags)
			}
			return whole, nil
		}
	}
	if loses(old, before) {
		if equalValues(before, after) {
			return old, nil
		}
		return nil, errUnkept
	}
	v, err := m.valueOf(after, noIndex)
	if err == nil && sameBut(old, v) {
		return flagged(old, noIndex), nil
	}
	return v, err
}

// like gives v, which replaces the stored value old, the meaning and the index flag of old, and
// returns v. If flags is set, v gets the index flag noIndex instead.
func like(old, v *pb.Value, noIndex, flags bool) *pb.Value {
	v.Meaning, v.ExcludeFromIndexes = old.GetMeaning(), noIndex
	if !flags {
		v.ExcludeFromIndexes = old.GetExcludeFromIndexes()
	}
	return v
}

// flagged returns a copy of the value with the index flag noIndex. In an unindexed entity, all
// properties become unindexed, at every depth.
func flagged(v *pb.Value, noIndex bool) *pb.Value {
	v = pbvalue.CloneValue(v)
	if elements := v.GetArrayValue().GetValues(); len(elements) > 0 {
		for i, el := range elements {
			elements[i] = flagged(el, noIndex)
		}
		return v
	}
	if inner := v.GetEntityValue(); inner != nil && noIndex && !v.GetExcludeFromIndexes() {
		for name, p := range inner.GetProperties() {
			inner.Properties[name] = flagged(p, true)
		}
	}
	if v.GetArrayValue() == nil {
		v.ExcludeFromIndexes = noIndex
	}
	return v
}

// sameBut reports whether two values are equal except perhaps in their index flags and meanings. It
// returns false for arrays and entities.
func sameBut(old, v *pb.Value) bool {
	switch old.GetValueType().(type) {
	case *pb.Value_ArrayValue, *pb.Value_EntityValue:
		return false
	}
	return same(&pb.Value{ValueType: old.GetValueType()}, &pb.Value{ValueType: v.GetValueType()})
}

// same reports whether two values are stored in the same way.
func same(a, b *pb.Value) bool { return pbvalue.Same(a, b) }

// loses reports whether a stored value has data that is missing after a Go type has loaded and
// saved it, such as a property that the type does not declare. Only entities, and arrays of
// entities, can have such data.
func loses(old *pb.Value, saved any) bool {
	if array := old.GetArrayValue(); array != nil {
		to, ok := saved.([]any)
		for i, el := range array.GetValues() {
			var s any
			if ok && len(to) == len(array.GetValues()) {
				s = to[i]
			}
			if loses(el, s) {
				return true
			}
		}
		return false
	}
	inner := old.GetEntityValue()
	if inner == nil {
		return false
	}
	b, ok := saved.(*datastore.Entity)
	if !ok || b == nil {
		return len(inner.GetProperties())+len(inner.GetKey().GetPath()) > 0
	}
	if len(inner.GetKey().GetPath()) > 0 && !proto.Equal(pbvalue.Key(b.Key), withoutProject(inner.GetKey())) {
		return true
	}
	have := byName(b.Properties)
	for name, v := range inner.GetProperties() {
		if p := have(name); p == nil || loses(v, p.Value) {
			return true
		}
	}
	return false
}

// withoutProject returns a copy of a key without its project. The Go client also makes keys without
// one.
func withoutProject(k *pb.Key) *pb.Key {
	all := &pb.Key{Path: k.GetPath()}
	if namespace := k.GetPartitionId().GetNamespaceId(); namespace != "" {
		all.PartitionId = &pb.PartitionId{NamespaceId: namespace}
	}
	return all
}

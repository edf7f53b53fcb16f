package property

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/internal/value"
)

// errUnkept says that something which the Go type does not hold has no place any more.
var errUnkept = errors.New("changing it would drop what the Go type does not hold: properties or keys of the " +
	"entities inside")

// A merger makes what is stored of what a function has changed. The stored entity is the base. What
// is saved the same before and after the function is as stored, bit for bit, and so is what is not
// saved at all. What differs is converted, and inside arrays and entities only what differs.
type merger struct {
	resaves bool            // what does not differ is converted, too: as the client's Put would
	own     *pb.PartitionId // of the stored entity
}

// merge returns what is stored once properties are saved over a stored entity, and the names of
// those that differ then. They were saved as before when the value had been loaded, and are saved
// as after. What the type declares is what either has, and what its schema says, if it has one.
// Unindexed is what is inside an unindexed value. What is returned may share values with what is
// stored.
func (m merger) merge(
	stored *pb.Entity, before, after []datastore.Property, s *schema, unindexed bool,
) (whole *pb.Entity, changed []string, err error) {
	was, is := byName(before), byName(after)
	if err := s.inStep(stored, before, after); err != nil {
		return nil, nil, err
	}
	edits := m.removed(stored, before, is, s)
	moved := moves{stored: stored, before: before, is: is, flags: m.resaves}
	for i := range after {
		p := after[i]
		switch last := is(p.Name); {
		case p.Name == keyField:
			continue // the client does not send it
		case last != &after[i]:
			return nil, nil, fmt.Errorf("property %q is there twice", p.Name)
		case !utf8.ValidString(p.Name):
			return nil, nil, fmt.Errorf("the property's name %q is not valid UTF-8", p.Name)
		}
		old, b := stored.GetProperties()[p.Name], was(p.Name)
		differs := b == nil || !equalValues(b.Value, p.Value)
		if !m.resaves && old != nil && !differs && b.NoIndex == p.NoIndex {
			continue
		}
		if err := checkValue(p.Value); err != nil {
			return nil, nil, fmt.Errorf("property %q: %w", p.Name, err)
		}
		var v *pb.Value
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
			return nil, nil, fmt.Errorf("property %q: %w", p.Name, err)
		}
		if !same(old, v) {
			edits[p.Name] = v
		}
	}
	whole, changed = withEdits(stored, edits)
	return whole, changed, nil
}

// removed returns the edits that remove what is stored and not saved any more.
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

// withEdits returns an entity with its properties edited, and their names. One whose edit is nil is
// removed.
func withEdits(stored *pb.Entity, edits map[string]*pb.Value) (whole *pb.Entity, changed []string) {
	if len(edits) == 0 {
		return stored, nil
	}
	whole = &pb.Entity{Key: stored.GetKey(), Properties: maps.Clone(stored.GetProperties())}
	if whole.Properties == nil {
		whole.Properties = make(map[string]*pb.Value)
	}
	for name, v := range edits {
		if changed = append(changed, name); v == nil {
			delete(whole.Properties, name)
		} else {
			whole.Properties[name] = v
		}
	}
	slices.Sort(changed)
	return whole, changed
}

// checkValue returns an error for a value that a Save may return and no property can have.
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

// moves are properties that have got another name, where the type does not say which names there
// are: one whose value differs from what it was under its name, and is what is stored of another
// one that is gone, or differs, too.
type moves struct {
	stored *pb.Entity
	before []datastore.Property
	is     func(name string) *datastore.Property // after
	taken  map[string]bool
	flags  bool // what is moved gets the flag that it is saved with
}

// find returns what is stored of a property that was moved to p, or nil.
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
			continue // the type saves it as something else
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

// value returns what is stored of a property that is stored already, and was saved as b, if it was.
func (m merger) value(
	old *pb.Value, b *datastore.Property, p datastore.Property, s *schema, unindexed bool,
) (*pb.Value, error) {
	noIndex := p.NoIndex || unindexed
	if b == nil {
		return m.saved(old, unsaved{}, p.Value, noIndex, m.resaves, s)
	}
	if !m.resaves && equalValues(b.Value, p.Value) { // but not the flag
		return flagged(old, noIndex), nil
	}
	return m.saved(old, b.Value, p.Value, noIndex, m.resaves || b.NoIndex != p.NoIndex, s)
}

// saved returns what is stored of a value that was saved as before, and is saved as after. Flags
// says that what does not differ gets the flag, too.
func (m merger) saved(old *pb.Value, before, after any, noIndex, flags bool, s *schema) (*pb.Value, error) {
	b, wasEntity := before.(*datastore.Entity)
	a, isEntity := after.(*datastore.Entity)
	if inner := old.GetEntityValue(); inner != nil && wasEntity && isEntity && a != nil && b != nil {
		whole, _, err := m.merge(inner, b.Properties, a.Properties, s, noIndex)
		if err != nil {
			return nil, err
		}
		if !a.Key.Equal(b.Key) { // where it is, the Go type may not have it
			whole = &pb.Entity{Key: pbvalue.Key(a.Key), Properties: whole.GetProperties()}
		}
		return like(old, &pb.Value{ValueType: &pb.Value_EntityValue{EntityValue: whole}}, noIndex, flags), nil
	}
	_, isArray := after.([]any)
	if isArray || old.GetArrayValue() != nil {
		if from, ok := align(value.Elements(old), valuesIn(before)); ok {
			// A single value gets the flag that it is saved with, also if it was an element that
			// had another one.
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

// like returns a value with the meaning of one that it takes the place of, and with its flag, or
// another one.
func like(old, v *pb.Value, noIndex, flags bool) *pb.Value {
	v.Meaning, v.ExcludeFromIndexes = old.GetMeaning(), noIndex
	if !flags {
		v.ExcludeFromIndexes = old.GetExcludeFromIndexes()
	}
	return v
}

// flagged returns a value as it is but for its flag. What is inside an unindexed one is unindexed.
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

// sameBut reports whether two values, of which none is an array or an entity, are the same but for
// flags and meanings.
func sameBut(old, v *pb.Value) bool {
	switch x := old.GetValueType().(type) {
	case *pb.Value_ArrayValue, *pb.Value_EntityValue:
		return false
	case *pb.Value_IntegerValue:
		y, ok := v.GetValueType().(*pb.Value_IntegerValue)
		return ok && x.IntegerValue == y.IntegerValue
	case *pb.Value_StringValue:
		y, ok := v.GetValueType().(*pb.Value_StringValue)
		return ok && x.StringValue == y.StringValue
	}
	return same(&pb.Value{ValueType: old.GetValueType()}, &pb.Value{ValueType: v.GetValueType()})
}

// same reports whether two values are stored alike.
func same(a, b *pb.Value) bool { return pbvalue.Same(a, b) }

// loses reports whether a stored value has something that its saved form lacks: inside entities, of
// which it is, or has, one.
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

// withoutProject returns a key as the client has it: one of another project is not the same once it
// is saved.
func withoutProject(k *pb.Key) *pb.Key {
	all := &pb.Key{Path: k.GetPath()}
	if namespace := k.GetPartitionId().GetNamespaceId(); namespace != "" {
		all.PartitionId = &pb.PartitionId{NamespaceId: namespace}
	}
	return all
}

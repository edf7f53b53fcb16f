package property

import (
	"fmt"
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

// An Original remembers a stored entity and the Go value that was loaded from it. After a function
// has changed the value, the Original finds out what to store. Saving a whole struct takes about as
// long as all other work for an entity. So most fields are compared with the stored values, and
// only fields that differ are saved. The remaining fields are saved before and after the function.
type Original[T any] struct {
	stored *pb.Entity
	shape  *shape
	// saved has the fields that can't be compared with stored values, or the whole value, as they
	// were saved before the function.
	saved []twice
	lists bool // whether T is a PropertyList, so that the stored properties are the saved ones
}

// A twice holds a value as it was saved before the function ran. The second result is kept only if
// it differs from the first. For example, the type's Save method may count its calls.
type twice struct{ first, again []datastore.Property }

// before returns the earlier result of Save that must be compared with after, the result after the
// function. A property that differs at every call must not look like a change by the function. So
// if the first result equals after, before returns the first one, and otherwise the second. Then a
// real change is stored as the Go client's Put would store it.
func (s twice) before(after []datastore.Property, resaves bool) []datastore.Property {
	if s.again == nil || resaves || equalProperties(s.first, after) {
		return s.first
	}
	return s.again
}

var listType = reflect.TypeFor[datastore.PropertyList]()

// LoadOriginal loads a stored entity into *v as [Load] does. It returns an Original, which finds
// out later how a function has changed *v.
func LoadOriginal[T any](key *datastore.Key, stored *pb.Entity, v *T) (*Original[T], error) {
	if err := LoadStored(key, stored, v); err != nil {
		return nil, err
	}
	t := reflect.TypeFor[T]()
	o := &Original[T]{stored: stored, shape: shapeOf(t), lists: t == listType}
	if o.lists {
		return o, nil
	}
	changes := false
	save := func(src any, h habits) error {
		saved, err := h.saveTwice(src)
		o.saved = append(o.saved, saved)
		changes = changes || saved.again != nil
		return err
	}
	if o.shape.parts == nil {
		if err := save(v, o.shape.habits); err != nil {
			return nil, err
		}
	}
	is := reflect.ValueOf(v).Elem()
	for _, p := range o.shape.parts {
		if p.plain {
			continue
		}
		alone := p.of(is)
		if err := save(alone.Interface(), p.habits); err != nil {
			return nil, err
		}
		is.Field(p.field).Set(alone.Elem().Field(0)) // saving may have changed the field
	}
	if changes { // the function gets a freshly loaded value, because saving has changed this one
		*v = *new(T)
		return o, LoadStored(key, stored, v)
	}
	return o, nil
}

// Changes returns the change of the stored entity after a function has changed *v. Unchanged values
// stay as stored. Changed and new values are stored as the Go client's Put would store them. If
// resaves is set, this applies to all values that T declares. The result may share values with the
// stored entity.
func (o *Original[T]) Changes(v *T, resaves bool) (Edit, error) {
	s, m := schemaOrNone(reflect.TypeFor[T]()), merger{resaves, o.stored.GetKey().GetPartitionId()}
	if o.shape.parts == nil {
		after, err := o.shape.save(v)
		if err != nil {
			return Edit{}, err
		}
		if o.lists {
			return m.merge(o.stored, plainProperties(pbvalue.Properties(o.stored)), after, s, false)
		}
		before := o.saved[0].before(after, resaves)
		if err := o.shape.checkLoose(reflect.ValueOf(v).Elem(), before, after); err != nil {
			return Edit{}, err
		}
		return m.merge(o.stored, before, after, s, false)
	}
	is, saved := reflect.ValueOf(v).Elem(), o.saved
	before, after := make([]datastore.Property, 0, len(o.shape.parts)),
		make([]datastore.Property, 0, len(o.shape.parts))
	for _, p := range o.shape.parts {
		old := o.stored.GetProperties()[p.name]
		if p.plain && !resaves && old != nil && p.stores(is.Field(p.field), old) {
			continue
		}
		now, err := p.after(is)
		if err != nil {
			return Edit{}, err
		}
		var was []datastore.Property
		if !p.plain {
			was, saved = saved[0].before(now, resaves), saved[1:]
		} else if was, err = p.before(old); err != nil {
			return Edit{}, err
		}
		if err := p.checkLoose(is.Field(p.field), was, now); err != nil {
			return Edit{}, fmt.Errorf("property %q: %w", p.name, err)
		}
		before, after = append(before, was...), append(after, now...)
	}
	return m.merge(o.stored, before, after, s, false)
}

// before returns the properties as which a plain field is saved if it is unchanged, that is, if it
// was loaded from the stored value old.
func (p part) before(old *pb.Value) ([]datastore.Property, error) {
	if p.scalar && fits(old, p.alone.Field(0).Type) {
		return []datastore.Property{{Name: p.name, Value: pbvalue.Go(old), NoIndex: p.noIndex}}, nil
	}
	v := reflect.New(p.alone).Interface()
	if old != nil {
		if err := datastore.LoadStruct(v, []datastore.Property{pbvalue.Property(p.name, old)}); err != nil {
			return nil, err
		}
	}
	return p.save(v)
}

// habits say how a type, or a type inside it, is saved differently from a plain struct.
type habits struct {
	saves bool // whether the type has its own Save method
	omits bool // whether the type leaves out elements of slices when it is saved
	loose bool // whether the type has interfaces, which may hold anything
}

func habitsOf(t reflect.Type, tag string) habits {
	return habits{savesSome(t, make(map[reflect.Type]bool)), omitsSome(t, tag, make(map[reflect.Type]bool)),
		looseSome(t, make(map[reflect.Type]bool))}
}

// save saves the value that src points to. The result has only types that the Go client returns
// when it reads. Its slices have all elements, even those that the client would leave out.
func (h habits) save(src any) ([]datastore.Property, error) {
	properties, err := Save(src)
	if h.saves {
		properties = plainProperties(properties)
	}
	if h.omits {
		properties = complete(properties, reflect.ValueOf(src).Elem())
	}
	return properties, err
}

// saveApart saves the value that src points to. The result shares no memory with the value.
func (h habits) saveApart(src any) ([]datastore.Property, error) {
	properties, err := h.save(src)
	for i, p := range properties {
		properties[i].Value = CloneValue(p.Value)
	}
	return properties, err
}

// saveTwice saves the value that src points to. If its type has its own Save method, saveTwice
// calls it twice, and keeps the second result if it differs from the first.
func (h habits) saveTwice(src any) (saved twice, err error) {
	if saved.first, err = h.saveApart(src); err != nil || !h.saves {
		return saved, err
	}
	again, err := h.saveApart(src)
	if !equalProperties(saved.first, again) {
		saved.again = again
	}
	return saved, err
}

// A part is one field of a struct that can be saved alone, with the same result as in the struct.
type part struct {
	field int
	name  string
	alone reflect.Type // a struct type that has only this field
	plain bool         // whether the field can be compared with a stored value without saving it
	habits

	// scalar says that the field is always saved as one value, with an index flag that depends only
	// on the field's type.
	scalar  bool
	noIndex bool
}

// after returns the properties as which the part is saved now. The argument whole is the struct
// with the field.
func (p part) after(whole reflect.Value) ([]datastore.Property, error) {
	if !p.scalar {
		return p.save(p.of(whole).Interface())
	}
	saved := datastore.Property{Name: p.name, NoIndex: p.noIndex}
	switch f := whole.Field(p.field); {
	case f.Type() == timeType:
		saved.Value = f.Interface()
	case f.Kind() == reflect.Bool:
		saved.Value = f.Bool()
	case f.Kind() == reflect.String:
		saved.Value = f.String()
	case f.Kind() == reflect.Float64:
		saved.Value = f.Float()
	default:
		saved.Value = f.Int()
	}
	return []datastore.Property{saved}, nil
}

// isScalar reports whether [part.after] can save a type without the Go client, which is faster.
func isScalar(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Bool, reflect.String, reflect.Float64, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32,
		reflect.Int64:
		return true
	}
	return t == timeType
}

// fits reports whether the Go client loads this kind of stored value into the scalar type t, and
// saves it as the same kind again.
func fits(v *pb.Value, t reflect.Type) bool {
	switch v.GetValueType().(type) {
	case *pb.Value_BooleanValue:
		return t.Kind() == reflect.Bool
	case *pb.Value_StringValue:
		return t.Kind() == reflect.String
	case *pb.Value_DoubleValue:
		return t.Kind() == reflect.Float64
	case *pb.Value_IntegerValue:
		return t.Kind() >= reflect.Int && t.Kind() <= reflect.Int64
	case *pb.Value_TimestampValue:
		return t == timeType
	}
	return false
}

// of returns a pointer to a new struct that has only this field, with its value in the struct
// whole.
func (p part) of(whole reflect.Value) reflect.Value {
	v := reflect.New(p.alone)
	v.Elem().Field(0).Set(whole.Field(p.field))
	return v
}

// stores reports whether the value f of a plain field equals the stored value.
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

// A shape says how a struct type is saved: field by field, or as a whole.
type shape struct {
	parts []part // the fields that can be compared and saved one by one; none: the value is saved as a whole
	habits
}

var shapes sync.Map // the shape of each type, by its reflect.Type

func shapeOf(t reflect.Type) *shape {
	if s, ok := shapes.Load(t); ok {
		return s.(*shape)
	}
	s, _ := shapes.LoadOrStore(t, &shape{partsOf(t), habitsOf(t, "")})
	return s.(*shape)
}

// partsOf returns the fields of a struct type that can be saved one by one. It returns none if the
// type has its own Save method, has embedded fields, or could save two fields under one name. Then
// the value is saved as a whole.
func partsOf(t reflect.Type) []part {
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
		if names[name] || strings.Contains(name, ".") { // fields inside flattened fields have such names, too
			return nil
		}
		names[name] = true
		options := strings.Split(tag, ",")
		plain := isPlain(f.Type) && !slices.Contains(options, "flatten")
		all = append(all, part{
			field: i, name: name,
			alone:  reflect.StructOf([]reflect.StructField{{Name: f.Name, Type: f.Type, Tag: f.Tag}}),
			plain:  plain,
			habits: habitsOf(f.Type, f.Tag.Get("datastore")),

			scalar:  plain && isScalar(f.Type) && !slices.Contains(options, "omitempty"),
			noIndex: slices.Contains(options, "noindex"),
		})
	}
	return all
}

func savesItself(t reflect.Type) bool {
	return t.Implements(loadSaver) || reflect.PointerTo(t).Implements(loadSaver)
}

// savesSome reports whether a type, or a type inside it, has its own Save method. The map seen has
// the types that were checked already.
func savesSome(t reflect.Type, seen map[reflect.Type]bool) bool {
	if partSavesItself(t) {
		return true
	}
	if t = elementType(t); seen[t] || slices.Contains(leaves, t) {
		return false
	}
	seen[t] = true
	if t.Kind() == reflect.Struct {
		for i := range t.NumField() {
			if savesSome(t.Field(i).Type, seen) {
				return true
			}
		}
	}
	return false
}

var (
	timeType = reflect.TypeFor[time.Time]()
	keyType  = reflect.TypeFor[*datastore.Key]()
)

// isPlain reports whether values of a type can be compared with stored values without saving them.
func isPlain(t reflect.Type) bool {
	if t == timeType || t == keyType {
		return true
	}
	if savesItself(t) {
		return false
	}
	if t.Kind() == reflect.Slice {
		element := t.Elem()
		return element.Kind() == reflect.Uint8 || element.Kind() != reflect.Slice && element != keyType &&
			isPlain(element)
	}
	return isScalar(t) || t.Kind() == reflect.Float32
}

// storedAs reports whether the field f of a plain type equals the stored value.
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
		return f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.Uint8 &&
			slices.Equal(f.Bytes(), v.BlobValue)
	case *pb.Value_TimestampValue:
		t, ok := f.Interface().(time.Time)
		return ok && t.Unix() == v.TimestampValue.GetSeconds() &&
			int64(t.Nanosecond()) == int64(v.TimestampValue.GetNanos())
	case *pb.Value_KeyValue:
		k, ok := f.Interface().(*datastore.Key)
		return ok && k != nil && pbkey.Text(k) == pbkey.TextOf(v.KeyValue)
	case nil, *pb.Value_NullValue:
		k, ok := f.Interface().(*datastore.Key)
		return ok && k == nil
	}
	return false
}

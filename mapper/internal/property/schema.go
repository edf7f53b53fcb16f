package property

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/datastore"
)

// A schema says which properties a struct type declares: the properties that its fields are saved
// as.
//
// The Go client also loads a property into a field whose name differs in case, or into a nested
// field to which the dots in the name lead. It then saves the field under the field's own name, so
// the property would exist twice. And it drops a whole slice of structs if an element has a
// property that the struct lacks. So the schema gives the client only properties whose names match
// exactly.
type schema struct {
	fields map[string]field
	keyed  bool // whether a field takes the entity's key
	// flattens says that at least one field has the option flatten.
	flattens bool
}

// A field describes one field of a struct, or of a struct that is embedded in it.
type field struct {
	sub     *schema // the schema of a field that holds structs; nil for other fields
	flatten bool    // whether the inner fields are properties of the outer entity, with dots in their names
	opaque  bool    // whether the field's type loads and saves itself
	many    bool    // whether the field is a slice
	index   []int   // the field's index in the struct, as in reflect.StructField
}

var schemas sync.Map // the schema of each type, by its reflect.Type

var (
	loadSaver = reflect.TypeFor[datastore.PropertyLoadSaver]()
	leaves    = []reflect.Type{reflect.TypeFor[time.Time](), reflect.TypeFor[datastore.GeoPoint](),
		reflect.TypeFor[datastore.Key](), reflect.TypeFor[datastore.Entity]()}
)

// schemaOf returns the schema of a struct type. The type may contain itself, as in a list.
func schemaOf(t reflect.Type) *schema {
	if s, ok := schemas.Load(t); ok {
		return s.(*schema)
	}
	building := make(map[reflect.Type]*schema)
	s := buildSchema(t, building)
	for t, s := range building {
		schemas.LoadOrStore(t, s)
	}
	return s
}

func buildSchema(t reflect.Type, building map[reflect.Type]*schema) *schema {
	if s := building[t]; s != nil {
		return s
	}
	s := &schema{fields: make(map[string]field)}
	building[t] = s
	s.collect(t, nil, building, []reflect.Type{t})
	return s
}

// collect adds the fields of a struct type to the schema. Fields of embedded structs are added as
// if they were fields of the outer struct.
func (s *schema) collect(t reflect.Type, index []int, building map[reflect.Type]*schema, embedding []reflect.Type) {
	for i := range t.NumField() {
		f, at := t.Field(i), append(slices.Clone(index), i)
		tag, options, _ := strings.Cut(f.Tag.Get("datastore"), ",")
		if f.Tag.Get("datastore") == "-" || !f.IsExported() && !f.Anonymous {
			continue
		}
		element := elementType(f.Type)
		if f.Anonymous && tag == "" && isStruct(element) && f.Type.Kind() != reflect.Slice {
			if !slices.Contains(embedding, element) {
				s.collect(element, at, building, append(slices.Clone(embedding), element))
			}
			continue
		}
		name := tag
		if name == "" {
			name = f.Name
		}
		s.keyed = s.keyed || name == "__key__"
		if _, shadowed := s.fields[name]; shadowed && len(embedding) > 1 || name == "__key__" || !f.IsExported() {
			continue
		}
		entry := field{
			flatten: slices.Contains(strings.Split(options, ","), "flatten"),
			opaque:  partSavesItself(f.Type),
			many:    f.Type.Kind() == reflect.Slice && !savesItself(f.Type),
			index:   at,
		}
		s.flattens = s.flattens || entry.flatten
		if isStruct(element) && !entry.opaque {
			entry.sub = buildSchema(element, building)
		}
		s.fields[name] = entry
	}
}

// isStruct reports whether a type is saved as an entity, field by field. Its argument is the type
// of a value, or of the elements of a slice.
func isStruct(element reflect.Type) bool {
	return element.Kind() == reflect.Struct && !slices.Contains(leaves, element)
}

// partSavesItself reports whether a type, or the type that its pointers and slices lead to, has its
// own Save method.
func partSavesItself(t reflect.Type) bool {
	for !savesItself(t) {
		if t.Kind() != reflect.Pointer && (t.Kind() != reflect.Slice || t.Elem().Kind() == reflect.Uint8) {
			return false
		}
		t = t.Elem()
	}
	return true
}

// elementType follows pointers and slices, and returns the type that they lead to. A []byte is not
// followed.
func elementType(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8 {
		t = t.Elem()
	}
	return t
}

// saved reports whether one of the struct's fields is saved as the property with this name. If that
// field holds structs, saved also returns their schema. The argument flat says that the schema s
// itself belongs to a flattened field, so it has names with dots.
func (s *schema) saved(name string, flat bool) (sub *schema, ok bool) {
	if f, ok := s.fields[name]; ok && (!f.flatten && !flat || f.sub == nil && !f.opaque) {
		return f.sub, true
	}
	for outer, f := range s.fields {
		rest, inside := strings.CutPrefix(name, outer+".")
		if !inside || !f.flatten && !flat {
			continue
		}
		if f.opaque {
			return nil, true
		}
		if f.sub != nil {
			if sub, ok := f.sub.saved(rest, true); ok {
				return sub, true
			}
		}
	}
	return nil, false
}

// schemaOrNone returns the schema of a type. It returns nil if the type is not a struct or saves
// itself, because nothing is known about such a type.
func schemaOrNone(t reflect.Type) *schema {
	if t.Kind() != reflect.Struct || savesItself(t) {
		return nil
	}
	return schemaOf(t)
}

// declares reports whether one of the struct's fields is saved as the property with this name. A
// nil schema declares nothing.
func (s *schema) declares(name string) bool {
	if s == nil {
		return false
	}
	_, ok := s.saved(name, false)
	return ok
}

// inside returns the schema of the entities in the property with this name, or nil if the
// property's field does not hold structs.
func (s *schema) inside(name string) *schema {
	if s == nil {
		return nil
	}
	sub, _ := s.saved(name, false)
	return sub
}

// loads reports whether the Go client would load the property with this name into some field.
func (s *schema) loads(name string) bool {
	elements := strings.Split(name, ".")
	for i := len(elements); i > 0; i-- {
		outer, rest := strings.Join(elements[:i], "."), strings.Join(elements[i:], ".")
		for fieldName, f := range s.fields {
			if !strings.EqualFold(fieldName, outer) {
				continue
			}
			return rest == "" || f.opaque || f.sub != nil && f.sub.loads(rest)
		}
	}
	return false
}

// concerns reports whether a change of the property with this name would affect a field. Either the
// field is saved as this property, or the Go client would load the property into the field.
func (s *schema) concerns(name string) bool {
	_, ok := s.saved(name, false)
	return ok || s.loads(name)
}

// fit returns the properties that the Go type declares, so that the Go client can load them without
// an error. It leaves out other properties, also inside entities. If nothing is left out, which is
// usual, it returns the same slice.
func (s *schema) fit(properties []datastore.Property) ([]datastore.Property, error) {
	fits := 0
	for fits < len(properties) {
		if sub, ok := s.saved(properties[fits].Name, false); !ok || sub != nil || holdsEntity(properties[fits].Value) {
			break
		}
		fits++
	}
	if fits == len(properties) {
		return slices.Clip(properties), nil
	}
	fitting := append(make([]datastore.Property, 0, len(properties)+1), properties[:fits]...)
	for _, p := range properties[fits:] {
		sub, ok := s.saved(p.Name, false)
		if !ok {
			if s.loads(p.Name) {
				return nil, fmt.Errorf("the property %q belongs to a field that is saved under another name: give "+
					"the field exactly that name by a tag", p.Name)
			}
			continue
		}
		if sub != nil {
			var err error
			if p.Value, err = sub.fitValue(p.Value); err != nil {
				return nil, fmt.Errorf("in %q: %w", p.Name, err)
			}
		} else if holdsEntity(p.Value) {
			p.Value = CloneValue(p.Value) // a type that loads itself may keep the value, and change it
		}
		fitting = append(fitting, p)
	}
	return fitting, nil
}

func holdsEntity(v any) bool {
	switch v := v.(type) {
	case *datastore.Entity:
		return true
	case []any:
		return slices.ContainsFunc(v, holdsEntity)
	}
	return false
}

func (s *schema) fitValue(v any) (any, error) {
	switch v := v.(type) {
	case *datastore.Entity:
		if v == nil {
			return v, nil
		}
		properties, err := s.fit(v.Properties)
		return &datastore.Entity{Key: v.Key, Properties: properties}, err
	case []any:
		elements := make([]any, len(v))
		for i, el := range v {
			var err error
			if elements[i], err = s.fitValue(el); err != nil {
				return nil, err
			}
		}
		return elements, nil
	}
	return v, nil
}

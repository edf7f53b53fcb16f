package operator

import (
	"cmp"
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/datastore"
)

// A Param is one parameter of a mapper.
type Param struct {
	Name     string `json:"name"`     // the parameter's name in JSON, with dots between nested names
	Kind     string `json:"kind"`     // bool, int, float, text, lines, duration, time or json
	Optional bool   `json:"optional"` // whether an empty input leaves the parameter out
	Required bool   `json:"required"` // whether an empty input is an error

	Type   reflect.Type `json:"-"` // the Go type of the value
	Path   []string     `json:"-"` // the names in Name
	Quoted bool         `json:"-"` // whether the value is a number that is encoded as a JSON string
	Omits  bool         `json:"-"` // whether Go leaves the parameter out of the JSON if it is zero or empty
}

var (
	jsonType = reflect.TypeFor[json.Unmarshaler]()
	textType = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// ParamsOf returns the parameters of a mapper, by their Go type. If the type is no struct, there is
// one parameter for all of it, with the kind json and an empty name.
func ParamsOf(t reflect.Type) []Param {
	if t == nil {
		return nil
	}
	if t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(jsonType) {
		return []Param{{Kind: "json", Type: t}}
	}
	return inside(t, nil, 0)
}

// deepest is the maximum depth of nested structs whose fields are parameters of their own. A deeper
// struct is one parameter.
const deepest = 4

// inside returns the parameters for the fields of a struct. The path has the names of the fields
// that contain the struct, and depth is how many structs contain it.
func inside(t reflect.Type, path []string, depth int) (all []Param) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag := f.Tag.Get("json")
		name, options, _ := strings.Cut(tag, ",")
		if tag == "-" || !f.IsExported() && !f.Anonymous {
			continue
		}
		if inner := embedded(f); inner != nil && name == "" && depth < deepest {
			all = append(all, inside(inner, path, depth+1)...)
			continue
		}
		if !f.IsExported() {
			continue
		}
		typ, at := f.Type, append(append([]string{}, path...), cmp.Or(name, f.Name))
		v := Param{Name: strings.Join(at, "."), Path: at, Type: typ, Quoted: hasOption(options, "string"),
			Omits: hasOption(options, "omitempty") || hasOption(options, "omitzero")}
		if typ.Kind() == reflect.Pointer {
			v.Optional, typ = true, typ.Elem()
		}
		if v.Kind = kindOf(typ); v.Kind == "" && !v.Optional && depth < deepest {
			all = append(all, inside(typ, at, depth+1)...)
			continue
		}
		if v.Kind == "" {
			v.Kind = "json"
		}
		v.Required = !v.Optional && !v.Omits && slices.Contains(needed, v.Kind)
		all = append(all, v)
	}
	return all
}

// embedded returns the type of an embedded struct, or nil for another field.
func embedded(f reflect.StructField) reflect.Type {
	t := f.Type
	if t.Kind() == reflect.Pointer && f.IsExported() {
		t = t.Elem()
	}
	if !f.Anonymous || t.Kind() != reflect.Struct {
		return nil
	}
	return t
}

// hasOption reports whether the options of a JSON tag have this one.
func hasOption(options, name string) bool { return slices.Contains(strings.Split(options, ","), name) }

// needed has the kinds of parameters for which an empty input is an error, unless their JSON tag
// has omitempty or omitzero. Their zero value is seldom intended.
var needed = []string{"int", "float", "duration", "time"}

// kindOf returns the kind of the parameter of a Go type. It returns "" for a struct, whose fields
// are parameters.
func kindOf(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return "time"
	case t == reflect.TypeFor[time.Duration]():
		return "duration"
	case reflect.PointerTo(t).Implements(jsonType):
		return "json"
	case reflect.PointerTo(t).Implements(textType):
		return "text"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "bool"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8,
		reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "int"
	case reflect.Float32, reflect.Float64:
		return "float"
	case reflect.String:
		return "text"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.String && kindOf(t.Elem()) == "text" {
			return "lines"
		}
	case reflect.Struct:
		return ""
	}
	return "json"
}

// TypeName returns the type of the parameter's JSON, in the words of docs/jobs-api.md.
func (p Param) TypeName() string {
	if p.Quoted {
		return "text"
	}
	return typeName(p.Type, 0)
}

// typeName returns the name of a Go type's JSON. The parameter depth is how many types have the type
// as their elements.
func typeName(t reflect.Type, depth int) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch kind := kindOf(t); {
	case t == reflect.TypeFor[datastore.Key]():
		return "key"
	case kind == "json" && !reflect.PointerTo(t).Implements(jsonType) && depth < deepest:
		return compound(t, depth)
	case kind == "":
		return "object"
	default:
		return typeNames[kind]
	}
}

// typeNames has the types of the parameters' JSON by their kinds.
var typeNames = map[string]string{"bool": "boolean", "int": "integer", "float": "number", "text": "text",
	"lines": "list of text", "duration": "nanoseconds", "time": "time", "json": "JSON"}

// compound returns the type of the JSON for a Go type that has elements, or can be anything.
func compound(t reflect.Type, depth int) string {
	switch t.Kind() {
	case reflect.Slice, reflect.Array:
		if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 {
			return "text" // in base64
		}
		return "list of " + typeName(t.Elem(), depth+1)
	case reflect.Map:
		return "object of " + typeName(t.Elem(), depth+1)
	}
	return "JSON"
}

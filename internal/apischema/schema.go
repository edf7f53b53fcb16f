// Package apischema makes a JSON schema from the Go types of the jobs API's answers, and checks
// answers against it. The check knows only the few schema keywords that the package writes.
package apischema

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/datastore"
)

// Path is the path of the schema's file in the folder docs.
const Path = "jobs-api.schema.json"

// A Schema is a JSON schema, or a part of one, as decoded JSON.
type Schema map[string]any

// Of returns a schema with a definition for each of the given types, under the type's key in the
// map. The types of their fields get definitions, too. The function meaning returns the description
// of a field for the schema.
func Of(types map[string]reflect.Type, meaning func(t reflect.Type, field string) string) Schema {
	m := maker{defs: make(map[string]any), meaning: meaning}
	for _, name := range slices.Sorted(maps.Keys(types)) {
		m.defs[name] = m.of(types[name])
	}
	return Schema{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"title":   "Answers of scattermap's jobs API, and of the command line with -o json",
		"$defs":   m.defs,
	}
}

type maker struct {
	defs    map[string]any
	meaning func(t reflect.Type, field string) string
}

// of returns the JSON schema of a Go type.
func (m maker) of(t reflect.Type) Schema {
	switch t {
	case reflect.TypeFor[time.Time]():
		return Schema{"type": "string", "format": "date-time"}
	case reflect.TypeFor[time.Duration]():
		return Schema{"type": "integer"}
	case reflect.TypeFor[*datastore.Key]():
		return Schema{"type": []string{"string", "null"}}
	case reflect.TypeFor[json.RawMessage]():
		return Schema{}
	}
	switch t.Kind() {
	case reflect.String:
		return Schema{"type": "string"}
	case reflect.Bool:
		return Schema{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return Schema{"type": "integer"}
	case reflect.Float64:
		return Schema{"type": "number"}
	case reflect.Slice:
		return Schema{"type": []string{"array", "null"}, "items": m.of(t.Elem())}
	case reflect.Map:
		return Schema{"type": []string{"object", "null"}, "additionalProperties": m.of(t.Elem())}
	case reflect.Pointer:
		return m.of(t.Elem())
	case reflect.Struct:
		return m.object(t)
	}
	return Schema{}
}

// object returns the JSON schema of a struct. If the struct type has a name, object stores a
// definition for it and returns a reference to this definition.
func (m maker) object(t reflect.Type) Schema {
	name := t.String()
	if t.Name() != "" {
		if m.defs[name] != nil {
			return Schema{"$ref": "#/$defs/" + name}
		}
		m.defs[name] = Schema{} // defined before its fields, because the type may contain itself
	}
	if _, custom := reflect.PointerTo(t).MethodByName("MarshalJSON"); custom {
		m.defs[name] = Schema{"type": "object"}
		return Schema{"$ref": "#/$defs/" + name}
	}
	properties, required := make(map[string]any), []string{}
	for f := range t.Fields() {
		field, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if field == "" || field == "-" {
			continue
		}
		s := m.of(f.Type)
		if text := m.meaning(t, field); text != "" {
			s["description"] = text
		}
		if properties[field] = s; !strings.Contains(options, "omit") {
			required = append(required, field)
		}
	}
	object := Schema{"type": "object", "properties": properties, "required": required, "additionalProperties": false}
	if t.Name() == "" {
		return object
	}
	m.defs[name] = object
	return Schema{"$ref": "#/$defs/" + name}
}

// Check returns an error if a JSON text does not match the definition with this name in a schema.
// The schema must be decoded by encoding/json.
func Check(schema map[string]any, definition string, text []byte) error {
	defs, _ := schema["$defs"].(map[string]any)
	s, ok := defs[definition].(map[string]any)
	if !ok {
		return fmt.Errorf("the schema has no %s", definition)
	}
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return err
	}
	return check(defs, s, definition, v)
}

func check(defs, s map[string]any, at string, v any) error {
	if ref, ok := s["$ref"].(string); ok {
		s, _ = defs[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any)
	}
	if want := s["type"]; want != nil && !isType(want, v) {
		return fmt.Errorf("%s is %v, want the type %v", at, v, want)
	}
	if all, ok := v.([]any); ok {
		items, _ := s["items"].(map[string]any)
		for i, each := range all {
			if err := check(defs, items, fmt.Sprintf("%s[%d]", at, i), each); err != nil {
				return err
			}
		}
	}
	object, ok := v.(map[string]any)
	properties, has := s["properties"].(map[string]any)
	if !ok || !has {
		return nil
	}
	required, _ := s["required"].([]any)
	for _, name := range required {
		if _, ok := object[name.(string)]; !ok {
			return fmt.Errorf("%s lacks %v", at, name)
		}
	}
	for name, each := range object {
		of, ok := properties[name].(map[string]any)
		if !ok {
			return fmt.Errorf("%s has %s, and the schema does not", at, name)
		}
		if err := check(defs, of, at+"."+name, each); err != nil {
			return err
		}
	}
	return nil
}

// isType reports whether a JSON value has the type want, which is the name of a type, or a list of
// names.
func isType(want, v any) bool {
	if several, ok := want.([]any); ok {
		return slices.ContainsFunc(several, func(one any) bool { return isType(one, v) })
	}
	switch v := v.(type) {
	case nil:
		return want == "null"
	case bool:
		return want == "boolean"
	case string:
		return want == "string"
	case float64:
		return want == "number" || want == "integer" && v == float64(int64(v))
	case []any:
		return want == "array"
	}
	return want == "object"
}

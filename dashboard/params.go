package dashboard

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/internal/strictjson"
)

// A field is the input in a form for one parameter of a mapper.
type field struct {
	Name     string `json:"name"`     // the parameter's name in JSON, with dots between nested names
	Kind     string `json:"kind"`     // bool, int, float, text, lines, duration, time or json
	Optional bool   `json:"optional"` // whether an empty input leaves the parameter out
	Required bool   `json:"required"` // whether an empty input is an error

	Value string       `json:"-"` // the text that the viewer has entered
	Bad   string       `json:"-"` // the error about the text; empty: none
	typ   reflect.Type // the Go type of the value
	path  []string
	quote bool // whether the value is a number that is encoded as a JSON string
}

// ID returns the ID of the input in the page.
func (f field) ID() string { return "p." + f.Name }

// Help returns a hint for the viewer about what to enter.
func (f field) Help() string {
	switch f.Kind {
	case "duration":
		return "such as 90s or 2h"
	case "time":
		return "such as 2026-10-24T00:00:00Z"
	case "lines":
		return "one per line"
	case "json":
		return `JSON, such as 5, true or "text"`
	}
	return ""
}

var (
	jsonType = reflect.TypeFor[json.Unmarshaler]()
	textType = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// fieldsOf returns the inputs for a type of parameters. If the type is no struct, there is one
// input for all of it, as JSON and with an empty name.
func fieldsOf(t reflect.Type) []field {
	if t == nil {
		return nil
	}
	if t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(jsonType) {
		return []field{{Kind: "json", typ: t}}
	}
	return inside(t, nil, 0)
}

// deepest is the maximum depth of nested structs whose fields have inputs of their own. A deeper
// struct has one input for its JSON.
const deepest = 4

// inside returns the inputs for the fields of a struct. The path has the names of the fields that
// contain the struct, and depth is how many structs contain it.
func inside(t reflect.Type, path []string, depth int) (all []field) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag := f.Tag.Get("json")
		name, options, _ := strings.Cut(tag, ",")
		if tag == "-" || !f.IsExported() && !f.Anonymous {
			continue
		}
		typ := f.Type
		if inner := typ; f.Anonymous && name == "" {
			if inner.Kind() == reflect.Pointer && f.IsExported() {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct && depth < deepest {
				all = append(all, inside(inner, path, depth+1)...)
				continue
			}
		}
		if !f.IsExported() {
			continue
		}
		if name == "" {
			name = f.Name
		}
		at := append(append([]string{}, path...), name)
		v := field{Name: strings.Join(at, "."), path: at, typ: typ,
			quote: strings.Contains(","+options+",", ",string,")}
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
		v.Required = !v.Optional && required(v.Kind, options)
		all = append(all, v)
	}
	return all
}

// required reports whether an empty input is an error. This is so for numbers and times, because
// their zero value is seldom intended. The exceptions are fields with omitempty or omitzero in the
// options of their JSON tag.
func required(kind, options string) bool {
	all := strings.Split(options, ",")
	return slices.Contains([]string{"int", "float", "duration", "time"}, kind) &&
		!slices.Contains(all, "omitempty") && !slices.Contains(all, "omitzero")
}

// kindOf returns the kind of the input for a Go type. It returns "" for a struct, whose fields have
// inputs.
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

// params encodes the values in the fields' inputs as JSON. It stores errors in the fields, and
// returns the first one.
func params(fields []field, q url.Values) (encoded json.RawMessage, err error) {
	for name := range q {
		if known := slices.ContainsFunc(fields, func(f field) bool { return f.ID() == name }); strings.HasPrefix(name,
			"p.") && !known {
			return nil, operator.BadRequest(fmt.Sprintf("the mapper has no parameter %.100q", name[2:]))
		}
	}
	all := make(map[string]any)
	for i := range fields {
		f := &fields[i]
		f.Value = q.Get(f.ID())
		value, bad := f.encode()
		if bad != nil {
			if f.Bad = bad.Error(); err == nil {
				err = operator.BadRequest(fmt.Sprintf("the parameter %s: %s", f.Name, f.Bad))
			}
			continue
		}
		if value == nil {
			continue
		}
		if f.path == nil {
			return value, err
		}
		at := all
		for _, name := range f.path[:len(f.path)-1] {
			next, ok := at[name].(map[string]any)
			if !ok {
				next = make(map[string]any)
				at[name] = next
			}
			at = next
		}
		at[f.path[len(f.path)-1]] = value
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(all)
}

// encode returns the field's input as JSON, or nil if the input is empty.
func (f *field) encode() (value json.RawMessage, err error) {
	text := f.Value
	if f.Kind != "text" {
		text = strings.TrimSpace(text)
	}
	if text == "" && f.Required {
		return nil, errors.New("it is missing")
	}
	if text == "" {
		return nil, nil
	}
	v, err := f.parse(text)
	if err != nil {
		return nil, err
	}
	if value, err = json.Marshal(v); err != nil {
		return nil, err
	}
	if f.quote {
		if value, err = json.Marshal(string(value)); err != nil {
			return nil, err
		}
	}
	return value, f.try(value)
}

// parse converts a text to a value of the field's kind.
func (f *field) parse(text string) (any, error) {
	switch f.Kind {
	case "bool":
		return text == "on" || text == "true", nil // any other text is false
	case "int":
		if _, err := strconv.ParseInt(text, 10, 64); err != nil {
			if _, err := strconv.ParseUint(text, 10, 64); err != nil {
				return nil, fmt.Errorf("%.100q is no whole number", text)
			}
		}
		return json.Number(text), nil
	case "float":
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("%.100q is no number", text)
		}
		if finite := !math.IsNaN(n) && !math.IsInf(n, 0); finite && !strictjson.Exact(text) {
			return nil, fmt.Errorf("%.100q is no float: the nearest one is %v", text, n)
		}
		return n, nil
	case "duration":
		d, err := time.ParseDuration(text)
		if err != nil {
			return nil, fmt.Errorf("%.100q is no duration: it is written as 90s or 2h", text)
		}
		return d, nil
	case "time":
		t, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return nil, fmt.Errorf("%.100q is no time: it is written as 2026-10-24T00:00:00Z", text)
		}
		return t, nil
	case "lines":
		lines := []string{}
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); line != "" {
				lines = append(lines, line)
			}
		}
		return lines, nil
	case "json":
		if err := strictjson.Check([]byte(text)); err != nil {
			return nil, fmt.Errorf("%.100q is no JSON: %w", text, err)
		}
		return json.RawMessage(text), nil
	}
	return text, nil
}

// try decodes a value into the field's Go type. It returns an error if the value is out of the
// type's range.
func (f *field) try(value json.RawMessage) error {
	if f.quote || f.typ == nil {
		return nil // only the struct that contains the value can decode it
	}
	if err := json.Unmarshal(value, reflect.New(f.typ).Interface()); err != nil {
		return fmt.Errorf("%.100q does not fit: %w", f.Value, err)
	}
	return nil
}

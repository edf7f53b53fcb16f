package export

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"
)

// A field is a field of a struct, and the name under which a format writes it.
type field struct {
	reflect.StructField // the field in Go; its Index may lead through embedded structs
	column              string
}

// fieldsOf returns the fields of a struct that a format writes, with the names in their tags. The
// format's tag has the given key. As in Go, fields of embedded structs are included. It returns an
// error if two fields have the same name, or if the format would silently leave out a field.
func fieldsOf(t reflect.Type, tag string) ([]field, error) {
	all, err := appendFields(nil, t, tag, nil, nil)
	if err != nil {
		return nil, err
	}
	seen := make(map[string]field)
	for _, f := range all {
		other, there := seen[strings.ToLower(f.column)]
		seen[strings.ToLower(f.column)] = f
		switch {
		case !there:
		case other.column == f.column:
			return nil, fmt.Errorf("fields %s and %s of %v have one name, %q: give one of them another name, or "+
				"the tag `%s:\"-\"`",
				goName(t, other.Index), goName(t, f.Index), t, f.column, tag)
		default:
			return nil, fmt.Errorf("fields %s and %s of %v have the names %q and %q, which readers such as "+
				"BigQuery and DuckDB take "+
				"for one: give one of them another name, or the tag `%s:\"-\"`",
				goName(t, other.Index), goName(t, f.Index), t, other.column, f.column, tag)
		}
	}
	return all, nil
}

func appendFields(all []field, t reflect.Type, tag string, index []int, above []reflect.Type) ([]field, error) {
	if slices.Contains(above, t) {
		return nil, fmt.Errorf("%v is embedded in itself: give it a name", t)
	}
	above = append(slices.Clip(above), t)
	for i := range t.NumField() {
		f := t.Field(i)
		column, options, _ := strings.Cut(f.Tag.Get(tag), ",")
		if hasNoColumn(f, tag) {
			continue
		}
		f.Index = append(slices.Clip(index), i)
		inner := f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		inline := tag == "avro" && slices.Contains(strings.Split(options, ","), "inline") && f.IsExported()
		if inline || f.Anonymous && inner.Kind() == reflect.Struct && embeds(tag, column, f.Type) {
			if err := embeddable(f, inner, tag); err != nil {
				return nil, fmt.Errorf("field %s of %v: %w", f.Name, t, err)
			}
			var err error
			if all, err = appendFields(all, inner, tag, f.Index, above); err != nil {
				return nil, err
			}
			continue
		}
		if err := nameable(f, inner, tag, options); err != nil {
			return nil, fmt.Errorf("field %s of %v: %w", f.Name, t, err)
		}
		if column == "" {
			column = f.Name
		} else if tag == "json" && !jsonName(column) {
			return nil, fmt.Errorf("field %s of %v: the tag's name %q has characters that encoding/json does "+
				"not take: "+
				"give it another name", f.Name, t, column)
		}
		all = append(all, field{f, column})
	}
	return all, nil
}

// hasNoColumn reports whether a format writes no column for a field: its tag says so, or it is
// unexported and has no tag.
func hasNoColumn(f reflect.StructField, tag string) bool {
	whole := f.Tag.Get(tag)
	column, _, _ := strings.Cut(whole, ",")
	return whole == "-" || column == "-" && tag != "json" && whole != "-," ||
		whole == "" && !f.IsExported() && !f.Anonymous
}

// embeds reports whether a format writes the fields of an embedded struct of type t as fields of
// the outer struct. The column is the name in the field's tag.
func embeds(tag, column string, t reflect.Type) bool {
	switch tag {
	case "parquet":
		return true
	case "csv":
		return column == "" && !writable(t)
	}
	return column == ""
}

// nameable returns an error for an embedded or tagged field that a format would leave out, or could
// not write. The parameter inner is the field's type without a pointer, tag is the key of the
// format's tag, and options are the options in that tag.
func nameable(f reflect.StructField, inner reflect.Type, tag, options string) error {
	// in JSON and Avro, an embedded struct is one field if its tag gives it a name: see embeds
	named := f.Anonymous && inner.Kind() == reflect.Struct && (tag == "json" || tag == "avro")
	switch {
	case f.Anonymous && tag == "parquet":
		return errors.New("a type that is embedded and is no struct has no column: give it a name")
	case f.IsExported():
		return nil
	case !named: // such a struct is written even if it is not exported
		return fmt.Errorf("it is not exported, so %q would leave it out: export it, or give it the tag `%s:\"-\"`",
			tag, tag)
	case hasMethod(inner, "MarshalText") || hasMethod(inner, "MarshalJSON") ||
		hasMethod(inner, "IsZero") && slices.Contains(strings.Split(options, ","), "omitzero"):
		return fmt.Errorf("%v is embedded and not exported, so its methods can't be called: give the field a name "+
			"that "+
			"is exported", f.Type)
	}
	return nil
}

// embeddable returns an error for an embedded field if writing the fields of its type would lose a
// part of its value. The parameter inner is that type without a pointer, and tag is the key of the
// format's tag.
func embeddable(f reflect.StructField, inner reflect.Type, tag string) error {
	if p := reflect.PointerTo(inner); p.Implements(textMarshaler) || p.Implements(jsonMarshaler) {
		return fmt.Errorf("%v is embedded, so that its fields would be written, and not its value: give the "+
			"field a name", inner)
	}
	if column, _, _ := strings.Cut(f.Tag.Get(tag), ","); column != "" {
		return fmt.Errorf("%v is embedded, so %q writes its fields and not the name %q of its tag: give the field a "+
			"name, or the tag no name", inner, tag, column)
	}
	if tag == "parquet" && f.Type.Kind() == reflect.Pointer {
		return fmt.Errorf("%v is embedded as a pointer, which %q can't write: embed the struct, or give the "+
			"field a name", f.Type, Parquet)
	}
	return nil
}

// jsonName reports whether encoding/json accepts the name in a tag.
func jsonName(name string) bool {
	return !strings.ContainsFunc(name, func(c rune) bool {
		return !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", c) && !unicode.IsLetter(c) && !unicode.IsDigit(c)
	})
}

// goName returns the name of a field in Go, with the names of the embedded structs to which it
// belongs.
func goName(t reflect.Type, index []int) string {
	var names []string
	for _, i := range index {
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		names = append(names, t.Field(i).Name)
		t = t.Field(i).Type
	}
	return strings.Join(names, ".")
}

// value returns the value of the field in the struct v. It returns false if the field is in an
// embedded struct whose pointer is nil.
func (f *field) value(v reflect.Value) (reflect.Value, bool) {
	for _, i := range f.Index {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				return reflect.Value{}, false
			}
			v = v.Elem()
		}
		v = v.Field(i)
	}
	return v, true
}

// A valueError says that the value of a field can't be written, and why. It has the path of the
// field.
type valueError struct {
	path string
	err  error
}

func (e *valueError) Error() string { return "field " + e.path + ": " + e.err.Error() }
func (e *valueError) Unwrap() error { return e.err }

// inside adds a field, or an element of a list or map, to the front of an error's path. Keys of
// maps are not in the path, because they may be private data.
func inside(where string, err error) error {
	inner, ok := err.(*valueError) //nolint:errorlint // only our own, unwrapped
	switch {
	case !ok:
		return &valueError{where, err}
	case errors.Is(inner.err, errDeep): // the path would have as many names as the value has levels
		return &valueError{where, errDeep}
	case strings.HasPrefix(inner.path, "["):
		return &valueError{where + inner.path, inner.err}
	}
	return &valueError{where + "." + inner.path, inner.err}
}

const someKey = "[…]" // someKey stands for the key of a map in an error's path

func elementOf(i int) string { return fmt.Sprintf("[%d]", i) }

// deepest is the maximum depth of a value of a recursive type. Deeper values are refused.
const deepest = 1000

var errDeep = fmt.Errorf("it is nested deeper than %d levels, or in itself", deepest)

// Errors of values that can't be written. They do not contain the values, because entities must not
// be logged.
var (
	errText = errors.New("it is a text that is not valid UTF-8: write it as []byte, or mend it by " +
		"strings.ToValidUTF8")
	errTextKey  = errors.New("the map has a key that is not valid UTF-8")
	errSameKey  = errors.New("the map has two keys of one text")
	errUnsigned = errors.New("it is above 9223372036854775807, the largest that the format has")
	errEmbedded = errors.New("it is in an embedded struct whose pointer is nil, and the format has no null for it")
	errNilText  = errors.New("it is nil, and the format has no null for it")
	errNilKey   = errors.New("the map has a key that is nil, which has no text")
)

// addressable returns a copy of a record that has an address, so that methods with pointer
// receivers can be called on it.
func addressable(record any) reflect.Value {
	v := reflect.New(reflect.TypeOf(record)).Elem()
	v.Set(reflect.ValueOf(record))
	return v
}

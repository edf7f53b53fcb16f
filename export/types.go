package export

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

var (
	timeType     = reflect.TypeFor[time.Time]()
	durationType = reflect.TypeFor[time.Duration]()
	bytesType    = reflect.TypeFor[[]byte]()
)

// A precise describes a Go type that a format writes with less precision by default, and the tags
// that prevent that.
type precise struct {
	says []string // the tag must have one of these texts, or start with one that ends with '-' or '('
	want string   // the error for a field without such a tag
}

// A schemed is a format whose schema is derived from a Go type: Avro or Parquet.
type schemed struct {
	format  Format
	tag     string
	precise map[reflect.Type]precise

	texts    bool // whether a type with MarshalText is written as its text
	circular bool // whether a type may contain itself
}

var (
	ofAvro = schemed{Avro, "avro", map[reflect.Type]precise{
		timeType: {[]string{"timestamp-", "local-timestamp-", "date"},
			"its tag has to say the precision of a time.Time: `avro:\",timestamp-micros\"` keeps all that " +
				"Datastore has"},
		durationType: {[]string{"time-"}, "a time.Duration has no type in Avro: make it an int64, of " +
			"nanoseconds for instance, " +
			"or give it the tag `avro:\",time-micros\"` if it is a time of day, from 0 to below 24 h"},
	}, true, true}
	ofParquet = schemed{Parquet, "parquet", map[reflect.Type]precise{
		timeType: {[]string{"timestamp(", "date"},
			"its tag has to say the precision of a time.Time: `parquet:\",timestamp(microsecond)\"` keeps all " +
				"that Datastore has"},
	}, false, false}
)

// check returns an error for a type of records if the format would silently leave out a part of it.
func (s schemed) check(t reflect.Type) error {
	if t.Kind() != reflect.Struct || t.Name() == "" {
		return fmt.Errorf("records of %q are structs whose type has a name, and not of the type %v", s.format, t)
	}
	return s.checkGroup(t, nil)
}

// checkGroup checks a struct type, which is a record or a group in a record. The parameter above
// has the types that contain it.
func (s schemed) checkGroup(t reflect.Type, above []reflect.Type) error {
	if err := s.checkName(t); err != nil {
		return err
	}
	if err := s.checkStruct(t, above); err != nil {
		return err
	}
	if !hasExported(t) && (t.NumField() > 0 || s.format == Parquet) {
		return fmt.Errorf("%v has no fields that %q could write, and all of its values would be empty: give it as a "+
			"text, or as bytes", t, s.format)
	}
	return nil
}

var (
	avroName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	avroTypes = []string{"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
)

// checkName returns an error for a type whose name is invalid in the schema.
func (s schemed) checkName(t reflect.Type) error {
	switch name := t.Name(); {
	case s.format != Avro || name == "" && t.Kind() == reflect.Array,
		avroName.MatchString(name) && !slices.Contains(avroTypes, name):
		return nil
	case name == "":
		return fmt.Errorf("%v has no name, which a record of %q needs: declare a type for it", t, s.format)
	case strings.Contains(name, "["):
		return fmt.Errorf("%v is of a generic type, whose name %q can't have: declare a type of it, such as "+
			"`type Name %s[…]`", t, s.format, name[:strings.Index(name, "[")])
	case slices.Contains(avroTypes, name):
		return fmt.Errorf("the name of %v is also the name of a type of %q: give it another one", t, s.format)
	}
	return fmt.Errorf("the name of %v has characters that %q does not take: its names have letters of ASCII, digits "+
		"and _, and begin with no digit", t, s.format)
}

func (s schemed) checkStruct(t reflect.Type, above []reflect.Type) error {
	if slices.Contains(above, t) {
		return fmt.Errorf("%v is inside itself, and a schema of %q has an end: give the field the tag `%s:\"-\"`", t,
			s.format, s.tag)
	}
	above = append(slices.Clip(above), t)
	fields, err := fieldsOf(t, s.tag)
	if err != nil {
		return err
	}
	for _, f := range fields {
		if s.format == Avro && !avroName.MatchString(f.column) {
			return fmt.Errorf("field %s of %v has the name %q, and names of %q have letters of ASCII, digits and _ "+
				"only, "+
				"and begin with no digit: give it another one by the tag `avro:\"name\"`",
				goName(t, f.Index), t, f.column, s.format)
		}
		if err := s.checkValue(f.Type, f.Tag, above); err != nil {
			return fmt.Errorf("field %s of %v: %w", goName(t, f.Index), t, err)
		}
	}
	return nil
}

// checkValue checks the type of a field or element. The tag is empty for a type to which the
// field's tag does not apply, such as an element of a map.
func (s schemed) checkValue(t reflect.Type, tag reflect.StructTag, above []reflect.Type) error {
	if at := slices.Index(above, t); at >= 0 && s.circular && hasStruct(above[at:]) {
		return nil // the type is recursive, and its check is already under way
	}
	if len(above) > 100 {
		return fmt.Errorf("%v is inside itself, or nested too deeply for %q", t, s.format)
	}
	if _, there := s.precise[t]; there {
		return s.checkPrecise(t, tag, above)
	}
	if s.texts && hasText(t) {
		return nil
	}
	if t.Kind() != reflect.Struct {
		above = append(slices.Clip(above), t)
	}
	switch t.Kind() {
	case reflect.Pointer:
		if err := s.checkPointer(t); err != nil {
			return err
		}
		return s.checkValue(t.Elem(), tag, above)
	case reflect.Slice, reflect.Array:
		return s.checkElements(t, tag, above)
	case reflect.Map:
		return s.checkMap(t, tag, above)
	case reflect.Struct:
		return s.checkGroup(t, above)
	case reflect.Interface, reflect.Chan, reflect.Func, reflect.Complex64, reflect.Complex128,
		reflect.Uintptr, reflect.UnsafePointer:
		return fmt.Errorf("%v has no type that %q knows: give it as a text, or as bytes", t, s.format)
	}
	return nil
}

// checkPrecise returns an error for a type that would lose precision, unless its tag keeps it.
func (s schemed) checkPrecise(t reflect.Type, tag reflect.StructTag, above []reflect.Type) error {
	_, options, _ := strings.Cut(tag.Get(s.tag), ",")
	for _, say := range s.precise[t].says {
		if slices.ContainsFunc(strings.Split(options, ","), func(o string) bool {
			return o == say || strings.HasPrefix(o, say) && strings.ContainsAny(say, "-(")
		}) {
			return nil
		}
	}
	if (tag == "" || tag == nested) && inList(above) {
		return fmt.Errorf("no tag says the precision of a %v here, and part of it would be lost: put it into a "+
			"struct of its own", t)
	}
	return errors.New(s.precise[t].want)
}

func (s schemed) checkElements(t reflect.Type, tag reflect.StructTag, above []reflect.Type) error {
	if t.Kind() == reflect.Array && t.Elem().Kind() == reflect.Uint8 && !s.tagged(tag, "uuid") {
		return s.checkName(t)
	}
	if err := s.checkList(t, tag); err != nil {
		return err
	}
	return s.checkValue(t.Elem(), s.tagOf(tag, "-element"), above)
}

func (s schemed) checkMap(t reflect.Type, tag reflect.StructTag, above []reflect.Type) error {
	if err := s.checkValue(t.Key(), s.tagOf(tag, "-key"), above); err != nil {
		return err
	}
	value := s.tagOf(tag, "-value")
	if isList(t.Elem()) && s.format == Parquet && !s.tagged(value, "list") {
		return fmt.Errorf("%v is a map of lists, which needs the tag `parquet-value:\",list\"`", t)
	}
	return s.checkValue(t.Elem(), value, above)
}

func hasStruct(types []reflect.Type) bool {
	return slices.ContainsFunc(types, func(t reflect.Type) bool { return t.Kind() == reflect.Struct })
}

// inList reports whether a value is in a list or map, so that the field's tag does not apply to it.
// The parameter above has the types that contain the value.
func inList(above []reflect.Type) bool {
	for _, t := range slices.Backward(above) {
		if t.Kind() != reflect.Pointer {
			return t.Kind() != reflect.Struct
		}
	}
	return false
}

// checkList returns an error for a list type that Parquet can't hold, or can hold only with a tag
// that is missing.
func (s schemed) checkList(t reflect.Type, tag reflect.StructTag) error {
	inner := t.Elem()
	if s.format != Parquet || inner.Kind() == reflect.Uint8 {
		return nil
	}
	if t.Kind() == reflect.Array {
		return fmt.Errorf("%v has no type that %q knows: let it be a slice", t, s.format)
	}
	switch {
	case s.tagged(tag, "list"):
		return nil
	case isList(inner):
		return fmt.Errorf("%v is a list of lists, which needs the tag `parquet:\",list\"`", t)
	case inner.Kind() == reflect.Map:
		return fmt.Errorf("%v is a list of maps, which needs the tag `parquet:\",list\"`", t)
	}
	return nil
}

// checkPointer returns an error for a pointer to a list or map. In Parquet these types already have
// a null, so the pointer's nil would not differ from theirs.
func (s schemed) checkPointer(t reflect.Type) error {
	inner := t.Elem()
	for inner.Kind() == reflect.Pointer {
		inner = inner.Elem()
	}
	switch {
	case s.format != Parquet:
		return nil
	case isList(inner):
		return fmt.Errorf("%v is a pointer to a list: let it be a slice, with the tag `parquet:\",list,optional\"` if "+
			"nil is to be null", t)
	case inner.Kind() == reflect.Map:
		return fmt.Errorf("%v is a pointer to a map: let it be a map, with the tag `parquet:\",optional\"` if nil "+
			"is to "+
			"be null", t)
	}
	return nil
}

func isList(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8
}

func (s schemed) tagged(tag reflect.StructTag, option string) bool {
	_, options, _ := strings.Cut(tag.Get(s.tag), ",")
	return slices.Contains(strings.Split(options, ","), option)
}

// nested is the tag that the elements of a Parquet list have, if the field has no tag for its
// elements. Lists of lists without the tag "list" are refused earlier.
const nested = reflect.StructTag(`parquet:",list"`)

// tagOf returns the tag for the elements of a list or map. In Parquet a field can have such tags;
// in Avro it can't, and the result is empty. The parameter part is -element, -key or -value.
func (s schemed) tagOf(tag reflect.StructTag, part string) reflect.StructTag {
	if s.format == Parquet {
		if inner := tag.Get(s.tag + part); inner != "" {
			return reflect.StructTag(s.tag + ":" + strconv.Quote(inner))
		}
		if part == "-element" {
			return nested
		}
	}
	return ""
}

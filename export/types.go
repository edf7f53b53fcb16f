package export

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

var (
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
	timeType      = reflect.TypeFor[time.Time]()
	durationType  = reflect.TypeFor[time.Duration]()
	bytesType     = reflect.TypeFor[[]byte]()
)

// A precise is what a tag says of a type whose default would drop part of its value.
type precise struct {
	says []string // what the tag has to have one of; one that ends with '-' or '(' is the beginning of it
	all  string   // the one of them that keeps all that Datastore has
}

// A schemed is a format whose schema is that of a Go type.
type schemed struct {
	format  Format
	tag     string
	precise map[reflect.Type]precise

	texts    bool // types that have a text are one
	circular bool // types may be inside themselves
}

var (
	ofAvro = schemed{Avro, "avro", map[reflect.Type]precise{
		timeType:     {[]string{"timestamp-", "local-timestamp-", "date"}, "timestamp-micros"},
		durationType: {[]string{"time-"}, "time-micros"},
	}, true, true}
	ofParquet = schemed{Parquet, "parquet", map[reflect.Type]precise{
		timeType: {[]string{"timestamp(", "date"}, "timestamp(microsecond)"},
	}, false, false}
)

// check returns an error for a type of records of which the format would drop something without a word.
func (s schemed) check(t reflect.Type) error {
	if t.Kind() != reflect.Struct || t.Name() == "" {
		return fmt.Errorf("records of %q are structs whose type has a name, and not of the type %v", s.format, t)
	}
	return s.checkStruct(t, nil)
}

func (s schemed) checkStruct(t reflect.Type, above []reflect.Type) error {
	if slices.Contains(above, t) {
		if s.circular {
			return nil
		}
		return fmt.Errorf("%v is inside itself, and a schema of %q has an end: give the field the tag `%s:\"-\"`", t, s.format, s.tag)
	}
	above = append(slices.Clip(above), t)
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get(s.tag), ",")
		if !f.IsExported() && !f.Anonymous || name == "-" {
			continue
		}
		if err := s.checkValue(f.Type, strings.Split(options, ","), above); err != nil {
			return fmt.Errorf("field %s of %v: %w", f.Name, t, err)
		}
	}
	return nil
}

// checkValue checks the type of a field, or of what is in it. Its tag's options are nil where a tag does not reach.
func (s schemed) checkValue(t reflect.Type, options []string, above []reflect.Type) error {
	if p, there := s.precise[t]; there {
		for _, say := range p.says {
			if slices.ContainsFunc(options, func(o string) bool { return o == say || strings.HasPrefix(o, say) && strings.ContainsAny(say, "-(") }) {
				return nil
			}
		}
		if options == nil {
			return fmt.Errorf("no tag says the precision of a %v here, and part of it would be lost: put it into a struct of its own", t)
		}
		return fmt.Errorf("its tag has to say the precision of a %v: `%s:\",%s\"` keeps all that Datastore has", t, s.tag, p.all)
	}
	if s.texts && (t.Implements(textMarshaler) || reflect.PointerTo(t).Implements(textMarshaler)) {
		return nil
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return s.checkValue(t.Elem(), options, above)
	case reflect.Map:
		if err := s.checkValue(t.Key(), nil, above); err != nil {
			return err
		}
		return s.checkValue(t.Elem(), nil, above)
	case reflect.Struct:
		if !slices.ContainsFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool { return f.IsExported() }) {
			return fmt.Errorf("%v has no fields that %q could write, and all of its values would be empty: give it as a text, or as bytes", t, s.format)
		}
		return s.checkStruct(t, above)
	case reflect.Interface:
		return fmt.Errorf("%v has no type that %q knows: give it as a text, or as bytes", t, s.format)
	}
	return nil
}

package export

import (
	"encoding/base64"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// csvEncoding returns the coder that writes structs as lines of CSV.
func csvEncoding[R any](s squeezer) (*frames, error) {
	t := reflect.TypeFor[R]()
	if t.Kind() != reflect.Struct {
		return nil, fmt.Errorf("records of %q are structs, and not of the type %v", CSV, t)
	}
	fields, err := fieldsOf(t, "csv")
	if err != nil {
		return nil, err
	}
	if len(fields) == 0 {
		return nil, fmt.Errorf("%v has no fields that %q could write", t, CSV)
	}
	var names []cell
	for _, f := range fields {
		switch name := goName(t, f.Index); {
		case !writable(f.Type):
			return nil, fmt.Errorf("field %s of %v is of the type %v, which %q has no value for: give it the "+
				"tag `csv:\"-\"`, "+
				"or a method MarshalText", name, t, f.Type, CSV)
		case !utf8.ValidString(f.column):
			return nil, fmt.Errorf("field %s of %v: its name is not valid UTF-8", name, t)
		default:
			if _, err := routeOf(f.Type, "MarshalText", "csv"); err != nil {
				return nil, fmt.Errorf("field %s of %v: %w", name, t, err)
			}
		}
		names = append(names, cell{f.column, true})
	}
	return &frames{squeezer: s, ext: ".csv", rev: secondRevision,
		head: func(File) string { return string(csvLine(names)) },
		line: func(record any) ([]byte, error) {
			v := addressable(record)
			cells := make([]cell, len(fields))
			for i := range fields {
				f := &fields[i]
				value, there := f.value(v)
				if !there { // the field is in an embedded struct whose pointer is nil
					continue
				}
				var err error
				if cells[i], err = cellOf(value); err != nil {
					return nil, inside(goName(t, f.Index), err)
				}
			}
			return csvLine(cells), nil
		}}, nil
}

// A cell is a value in a line of CSV: a text, or null. Null is written as an empty cell, and the
// empty text as "", so that readers can tell them apart.
type cell struct {
	text  string
	there bool
}

// csvLine encodes cells as a line of CSV, as RFC 4180 says. It does not change line ends inside
// values. It also quotes values that start or end with a space, because some readers trim others.
func csvLine(cells []cell) []byte {
	var b []byte
	for i, c := range cells {
		if i > 0 {
			b = append(b, ',')
		}
		if !c.there {
			continue
		}
		first, _ := utf8.DecodeRuneInString(c.text)
		last, _ := utf8.DecodeLastRuneInString(c.text)
		if c.text != "" && c.text != `\.` && !strings.ContainsAny(c.text, "\",\r\n\x00") &&
			!unicode.IsSpace(first) && !unicode.IsSpace(last) && first != '\ufeff' {
			b = append(b, c.text...)
			continue
		}
		b = append(b, '"')
		b = append(b, strings.ReplaceAll(c.text, `"`, `""`)...)
		b = append(b, '"')
	}
	return append(b, "\r\n"...)
}

// writable reports whether a cell of CSV can hold a value of a Go type.
func writable(t reflect.Type) bool {
	if hasText(t) || t == bytesType {
		return true
	}
	switch t.Kind() {
	case reflect.Pointer:
		return writable(t.Elem())
	case reflect.Bool, reflect.String, reflect.Float32, reflect.Float64,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return true
	}
	return false
}

// cellOf converts a value into a cell. Nil becomes null. A time is written as in RFC 3339 with
// nanoseconds, and bytes as base64.
func cellOf(v reflect.Value) (cell, error) {
	switch t := v.Type(); {
	case hasText(t):
		text, there, err := textOf(v, "csv")
		return cell{string(text), there}, err
	case t == bytesType:
		return cell{base64.StdEncoding.EncodeToString(v.Bytes()), !v.IsNil()}, nil
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return cell{}, nil
		}
		return cellOf(v.Elem())
	case reflect.Bool:
		return cell{strconv.FormatBool(v.Bool()), true}, nil
	case reflect.Float32:
		return cell{strconv.FormatFloat(v.Float(), 'g', -1, 32), true}, nil
	case reflect.Float64:
		return cell{strconv.FormatFloat(v.Float(), 'g', -1, 64), true}, nil
	case reflect.String:
		if !utf8.ValidString(v.String()) {
			return cell{}, errText
		}
		return cell{v.String(), true}, nil
	}
	if v.CanInt() {
		return cell{strconv.FormatInt(v.Int(), 10), true}, nil
	}
	return cell{strconv.FormatUint(v.Uint(), 10), true}, nil
}

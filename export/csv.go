package export

import (
	"bytes"
	"encoding"
	"encoding/base64"
	"encoding/csv"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// csvEncoding returns the encoding of structs as lines of CSV.
func csvEncoding[R any](s squeezer) (*frames, error) {
	t := reflect.TypeFor[R]()
	if t.Kind() != reflect.Struct {
		return nil, fmt.Errorf("records of %q are structs, and not of the type %v", CSV, t)
	}
	var names []string
	var fields []int
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("csv"), ",")
		switch {
		case !f.IsExported() || name == "-":
			continue
		case !writable(f.Type):
			return nil, fmt.Errorf("field %s of %v is of the type %v, which %q has no value for: give it the tag `csv:\"-\"`, or a method MarshalText", f.Name, t, f.Type, CSV)
		case name == "":
			name = f.Name
		}
		names, fields = append(names, name), append(fields, i)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%v has no fields that %q could write", t, CSV)
	}
	return &frames{squeezer: s, ext: ".csv",
		head: func(File) ([]byte, error) { return csvLine(names) },
		line: func(record any) ([]byte, error) {
			v := reflect.ValueOf(record)
			values := make([]string, len(fields))
			for i, f := range fields {
				var err error
				if values[i], err = cell(v.Field(f)); err != nil {
					return nil, fmt.Errorf("field %s: %w", names[i], err)
				}
			}
			return csvLine(values)
		}}, nil
}

func csvLine(values []string) ([]byte, error) {
	if len(values) == 1 && values[0] == "" {
		return []byte("\"\"\r\n"), nil // readers take an empty line for none
	}
	var b bytes.Buffer
	w := csv.NewWriter(&b) // whose UseCRLF would change line ends inside values, too
	err := w.Write(values)
	w.Flush()
	if err = errors.Join(err, w.Error()); err != nil {
		return nil, err
	}
	return append(bytes.TrimSuffix(b.Bytes(), []byte("\n")), "\r\n"...), nil
}

// writable reports whether values of a type can be in a cell.
func writable(t reflect.Type) bool {
	if t.Implements(textMarshaler) || t == bytesType {
		return true
	}
	switch t.Kind() {
	case reflect.Pointer:
		return writable(t.Elem())
	case reflect.Bool, reflect.String, reflect.Float32, reflect.Float64,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return true
	}
	return false
}

// cell returns what is in a cell: nothing for nil, RFC 3339 with nanoseconds for times, and base64 for bytes.
func cell(v reflect.Value) (string, error) {
	switch {
	case v.Kind() == reflect.Pointer && v.IsNil():
		return "", nil
	case v.Type() == timeType:
		return v.Interface().(time.Time).Format(time.RFC3339Nano), nil
	case v.Type().Implements(textMarshaler):
		text, err := v.Interface().(encoding.TextMarshaler).MarshalText()
		return string(text), err
	case v.Type() == bytesType:
		return base64.StdEncoding.EncodeToString(v.Bytes()), nil
	}
	switch v.Kind() {
	case reflect.Pointer:
		return cell(v.Elem())
	case reflect.Bool:
		return strconv.FormatBool(v.Bool()), nil
	case reflect.Float32:
		return strconv.FormatFloat(v.Float(), 'g', -1, 32), nil
	case reflect.Float64:
		return strconv.FormatFloat(v.Float(), 'g', -1, 64), nil
	case reflect.String:
		return v.String(), nil
	}
	if v.CanInt() {
		return strconv.FormatInt(v.Int(), 10), nil
	}
	return strconv.FormatUint(v.Uint(), 10), nil
}

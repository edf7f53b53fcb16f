package export

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/twmb/avro"
)

// An avroWriter is a function that appends a value to b in Avro's binary form. The parameter depth
// is how many structs contain the value. Package avro derives the schema, but its own encoder is
// not used. That one silently drops precision below the unit of a time, and writes any duration as
// a time of day.
type avroWriter func(b []byte, v reflect.Value, depth int) ([]byte, error)

// avroWriters makes avroWriters for pairs of an Avro type and a Go type. It caches them, because
// types may be recursive.
type avroWriters struct {
	named map[string]*avro.SchemaNode
	made  map[avroPlace]*avroWriter
}

type avroPlace struct {
	name string
	t    reflect.Type
}

var (
	ratType      = reflect.TypeFor[big.Rat]()
	avroDuration = reflect.TypeFor[avro.Duration]()
)

var avroUnits = map[string]time.Duration{"millis": time.Millisecond, "micros": time.Microsecond,
	"nanos": time.Nanosecond}

func (w *avroWriters) of(n *avro.SchemaNode, t reflect.Type) (avroWriter, error) {
	if known := w.named[n.Type]; known != nil {
		n = known
	} else if n.Name != "" {
		w.named[n.Name] = n // the schemas that package avro derives have no namespaces
	}
	kind := t.Kind()
	if leaf := avroLeaf(n, t); leaf != nil {
		return leaf, nil
	}
	switch n.Type {
	case "union":
		return w.union(n, t)
	case "string":
		return avroText(n.LogicalType, t)
	case "array":
		if kind == reflect.Slice || kind == reflect.Array {
			return w.array(n, t)
		}
	case "map":
		if kind == reflect.Map && t.Key().Kind() == reflect.String {
			return w.ofMap(n, t)
		}
	case "record":
		if kind == reflect.Struct {
			return w.record(n, t)
		}
	}
	return nil, fmt.Errorf("%v can't be written as what the Avro schema has for it, %s: give it as a text, or as bytes",
		t, strings.TrimSpace(n.Type+" "+n.LogicalType))
}

// avroLeaf returns the writer for a type that contains no other types. It returns nil if n is not
// such a type, or if the Go type t does not fit it.
func avroLeaf(n *avro.SchemaNode, t reflect.Type) avroWriter {
	kind := t.Kind()
	switch {
	case n.Type == "boolean" && kind == reflect.Bool:
		return func(b []byte, v reflect.Value, _ int) ([]byte, error) {
			if v.Bool() {
				return append(b, 1), nil
			}
			return append(b, 0), nil
		}
	case n.Type == "int", n.Type == "long":
		if of := avroNumber(n.LogicalType, t); of != nil {
			return func(b []byte, v reflect.Value, _ int) ([]byte, error) {
				i, err := of(v)
				return binary.AppendVarint(b, i), err
			}
		}
	case n.Type == "float" && kind == reflect.Float32:
		return func(b []byte, v reflect.Value, _ int) ([]byte, error) {
			return binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(v.Float()))), nil
		}
	case n.Type == "double" && kind == reflect.Float64:
		return func(b []byte, v reflect.Value, _ int) ([]byte, error) {
			return binary.LittleEndian.AppendUint64(b, math.Float64bits(v.Float())), nil
		}
	case n.Type == "bytes" && n.LogicalType == "decimal" && t == ratType:
		return func(b []byte, v reflect.Value, _ int) ([]byte, error) {
			text, err := decimalBytes(v, n.Precision, n.Scale)
			return appendBytes(b, text), err
		}
	case n.Type == "bytes" && kind == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return func(b []byte, v reflect.Value, _ int) ([]byte, error) { return appendBytes(b, v.Bytes()), nil }
	case n.Type == "fixed":
		return avroFixed(n, t)
	}
	return nil
}

// avroFixed returns the writer for a value with a fixed number of bytes.
func avroFixed(n *avro.SchemaNode, t reflect.Type) avroWriter {
	switch {
	case n.LogicalType == "duration" && t == avroDuration:
		return func(b []byte, v reflect.Value, _ int) ([]byte, error) {
			text := v.Interface().(avro.Duration).Bytes()
			return append(b, text[:]...), nil
		}
	case t.Kind() == reflect.Array && t.Elem().Kind() == reflect.Uint8 && t.Len() == n.Size:
		return func(b []byte, v reflect.Value, _ int) ([]byte, error) {
			for i := range v.Len() {
				b = append(b, byte(v.Index(i).Uint()))
			}
			return b, nil
		}
	}
	return nil
}

// avroNumber returns the function that converts a Go value to the integer of an Avro type. It
// returns nil if the Go type does not fit the logical type.
func avroNumber(logical string, t reflect.Type) func(v reflect.Value) (int64, error) {
	what, unitName, _ := strings.Cut(strings.TrimPrefix(logical, "local-"), "-")
	unit := avroUnits[unitName]
	switch {
	case logical == "date" && t == timeType:
		return func(v reflect.Value) (int64, error) {
			days, err := daysSince1970(v.Interface().(time.Time))
			return int64(days), err
		}
	case what == "timestamp" && t == timeType:
		local := strings.HasPrefix(logical, "local-")
		return func(v reflect.Value) (int64, error) {
			at := v.Interface().(time.Time)
			if local {
				at = wallClock(at)
			}
			return since1970(at, unit)
		}
	case what == "time" && t == durationType:
		return func(v reflect.Value) (int64, error) { return timeOfDay(time.Duration(v.Int()), unit) }
	case t == durationType:
		return nil
	}
	number := func(v reflect.Value) (int64, error) { return v.Int(), nil } //nolint:unparam // others may fail
	switch kind := t.Kind(); {
	case kind >= reflect.Int && kind <= reflect.Int64:
	case kind >= reflect.Uint && kind <= reflect.Uint64:
		number = func(v reflect.Value) (int64, error) {
			if v.Uint() > math.MaxInt64 {
				return 0, errUnsigned
			}
			return int64(v.Uint()), nil
		}
	default:
		return nil
	}
	if what != "time" {
		return number
	}
	return func(v reflect.Value) (int64, error) {
		n, err := number(v)
		if err == nil {
			err = checkOfDay(n, unit)
		}
		return n, err
	}
}

func avroText(logical string, t reflect.Type) (avroWriter, error) {
	texts := hasText(t)
	bytes := t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8
	if !texts && !bytes && t.Kind() != reflect.String {
		return nil, fmt.Errorf("%v has no MarshalText", t)
	}
	if texts {
		if _, err := routeOf(t, "MarshalText", "avro"); err != nil {
			return nil, err
		}
	}
	return func(b []byte, v reflect.Value, _ int) ([]byte, error) {
		var text []byte
		var err error
		switch {
		case texts:
			var there bool
			if text, there, err = textOf(v, "avro"); err == nil && !there {
				err = errNilText
			}
		case bytes:
			text = v.Bytes()
		default:
			text = []byte(v.String())
		}
		switch {
		case err != nil:
		case !utf8.Valid(text):
			err = errText
		case logical == "uuid" && !isUUID(string(text)):
			err = errUUID
		}
		return appendBytes(b, text), err
	}, nil
}

func appendBytes(b, text []byte) []byte {
	return append(binary.AppendVarint(b, int64(len(text))), text...)
}

var errUUID = errors.New("it is a text that is no UUID")

func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		if dash := i == 8 || i == 13 || i == 18 || i == 23; dash != (s[i] == '-') || !dash &&
			!strings.ContainsRune("0123456789abcdefABCDEF", rune(s[i])) {
			return false
		}
	}
	return true
}

// decimalBytes encodes a big.Rat as Avro's decimal: a number of units of 10^-scale, as a big-endian
// two's complement.
func decimalBytes(v reflect.Value, precision, scale int) ([]byte, error) {
	r := v.Addr().Interface().(*big.Rat)
	units := new(big.Rat).Mul(r, new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(scale)), nil)))
	if !units.IsInt() {
		return nil, fmt.Errorf("it is a number that has more than the %d digits after the point of its tag", scale)
	}
	n := units.Num()
	if !hasDigits(n, precision) {
		return nil, fmt.Errorf("it is a number that has more than the %d digits of its tag", precision)
	}
	size := n.BitLen()/8 + 1
	if n.Sign() < 0 {
		size = new(big.Int).Not(n).BitLen()/8 + 1
		n = new(big.Int).Add(n, new(big.Int).Lsh(big.NewInt(1), uint(8*size)))
	}
	return n.FillBytes(make([]byte, size)), nil
}

func hasDigits(n *big.Int, precision int) bool {
	return n.CmpAbs(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(precision)), nil)) < 0
}

// union returns the writer for a pointer. Nil is written as null, and otherwise the value that the
// pointer points to.
func (w *avroWriters) union(n *avro.SchemaNode, t reflect.Type) (avroWriter, error) {
	if len(n.Branches) != 2 || n.Branches[0].Type != "null" || t.Kind() != reflect.Pointer {
		return nil, fmt.Errorf("%v can't be written as a union of other types than null and its own", t)
	}
	pointers := 0
	for t.Kind() == reflect.Pointer {
		t, pointers = t.Elem(), pointers+1
	}
	inner, err := w.of(&n.Branches[1], t)
	return func(b []byte, v reflect.Value, depth int) ([]byte, error) {
		for range pointers {
			if v.IsNil() {
				return binary.AppendVarint(b, 0), nil
			}
			v = v.Elem()
		}
		return inner(binary.AppendVarint(b, 1), v, depth)
	}, err
}

func (w *avroWriters) array(n *avro.SchemaNode, t reflect.Type) (avroWriter, error) {
	inner, err := w.of(n.Items, t.Elem())
	return func(b []byte, v reflect.Value, depth int) ([]byte, error) {
		if v.Len() > 0 {
			b = binary.AppendVarint(b, int64(v.Len()))
		}
		var err error
		for i := range v.Len() {
			if b, err = inner(b, v.Index(i), depth); err != nil {
				return nil, inside(elementOf(i), err)
			}
		}
		return binary.AppendVarint(b, 0), nil
	}, err
}

func (w *avroWriters) ofMap(n *avro.SchemaNode, t reflect.Type) (avroWriter, error) {
	if t.Key().Implements(textMarshaler) {
		return nil, fmt.Errorf("%v has keys with a method MarshalText: let them be strings", t)
	}
	inner, err := w.of(n.Values, t.Elem())
	return func(b []byte, v reflect.Value, depth int) ([]byte, error) {
		if v.Len() > 0 {
			b = binary.AppendVarint(b, int64(v.Len()))
		}
		for _, key := range sortedKeys(v) {
			if !utf8.ValidString(key.String()) {
				return nil, errTextKey
			}
			value := reflect.New(t.Elem()).Elem()
			value.Set(v.MapIndex(key))
			var err error
			if b, err = inner(appendBytes(b, []byte(key.String())), value, depth); err != nil {
				return nil, inside(someKey, err)
			}
		}
		return binary.AppendVarint(b, 0), nil
	}, err
}

// sortedKeys returns the keys of a map, which are strings or integers, in ascending order.
func sortedKeys(v reflect.Value) []reflect.Value {
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int {
		switch {
		case a.CanInt():
			return cmp.Compare(a.Int(), b.Int())
		case a.CanUint():
			return cmp.Compare(a.Uint(), b.Uint())
		}
		return strings.Compare(a.String(), b.String())
	})
	return keys
}

func (w *avroWriters) record(n *avro.SchemaNode, t reflect.Type) (avroWriter, error) {
	if known := w.made[avroPlace{n.Name, t}]; known != nil { // the type is recursive
		return func(b []byte, v reflect.Value, depth int) ([]byte, error) { return (*known)(b, v, depth) }, nil
	}
	writer := new(avroWriter)
	w.made[avroPlace{n.Name, t}] = writer
	fields, err := fieldsOf(t, "avro")
	if err != nil {
		return nil, err
	}
	if len(fields) != len(n.Fields) {
		return nil, fmt.Errorf("%v has %d fields, and its Avro schema %d", t, len(fields), len(n.Fields))
	}
	inner := make([]avroWriter, len(fields))
	for i := range fields {
		name := goName(t, fields[i].Index)
		if fields[i].column != n.Fields[i].Name {
			return nil, fmt.Errorf("field %s of %v is %q in its Avro schema, want %q", name, t,
				n.Fields[i].Name, fields[i].column)
		}
		if inner[i], err = w.of(&n.Fields[i].Type, fields[i].Type); err != nil {
			return nil, fmt.Errorf("field %s of %v: %w", name, t, err)
		}
	}
	*writer = func(b []byte, v reflect.Value, depth int) ([]byte, error) {
		if depth++; depth > deepest {
			return nil, errDeep
		}
		for i := range fields {
			value, there := fields[i].value(v)
			err := errEmbedded
			if there {
				b, err = inner[i](b, value, depth)
			}
			if err != nil {
				return nil, inside(fields[i].Name, err)
			}
		}
		return b, nil
	}
	return *writer, nil
}

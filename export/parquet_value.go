package export

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// parquetWriters makes parquetWriters for the fields of a schema. Package parquet derives the
// schema, but its own conversion of values is not used. That one writes nanoseconds to columns of
// days and microseconds, and numbers that are out of range wrap around. Here each pair of a Go type
// and a column type is either converted correctly or refused.
type parquetWriters struct {
	columns int  // number of columns so far, which is the index of the next one
	ofDay   bool // whether there are dates or times of day, which older builds wrote differently
}

// A parquetWriter appends a Go value to its columns in a row. An invalid reflect.Value stands for
// null.
type parquetWriter func(row [][]parquet.Value, l parquetLevels, v reflect.Value) error

// parquetLevels are the numbers by which Parquet describes nested values: the repetition level
// counts lists around the value, and the definition level counts optional or repeated fields around
// it.
type parquetLevels struct{ repetition, depth, definition int }

var errNoNull = errors.New("it is nil, and its column has no null there: " +
	"a list of values that may be null has the tags `parquet:\",list\" parquet-element:\",optional\"`")

func (w *parquetWriters) of(n parquet.Node, t reflect.Type) (parquetWriter, error) {
	switch {
	case n.Optional():
		return w.optional(n, t)
	case n.Repeated():
		if t.Kind() != reflect.Slice {
			return nil, cannot(n, t)
		}
		inner, err := w.of(parquet.Required(n), t.Elem())
		return repeatedWriter(inner), err
	case t.Kind() == reflect.Pointer:
		inner, err := w.of(n, t.Elem())
		return func(row [][]parquet.Value, l parquetLevels, v reflect.Value) error {
			if v.IsValid() {
				if v.IsNil() {
					return errNoNull
				}
				v = v.Elem()
			}
			return inner(row, l, v)
		}, err
	case n.Leaf():
		return w.leaf(n, t)
	}
	switch logicalOf(n).(type) {
	case *format.ListType:
		if t.Kind() != reflect.Slice {
			return nil, cannot(n, t)
		}
		inner, err := w.of(n.Fields()[0].Fields()[0], t.Elem())
		return repeatedWriter(inner), err
	case *format.MapType:
		return w.ofMap(n, t)
	case nil:
		if t.Kind() == reflect.Struct {
			return w.group(n, t)
		}
	}
	return nil, cannot(n, t)
}

func logicalOf(n parquet.Node) format.LogicalTypeValue {
	if of := n.Type().LogicalType(); of != nil {
		return of.Value
	}
	return nil
}

func cannot(n parquet.Node, t reflect.Type) error {
	what := ""
	if n.Leaf() || logicalOf(n) != nil {
		what = " as " + n.Type().String()
	}
	return fmt.Errorf("%v can't be written to Parquet%s: give it as a text, or as bytes", t, what)
}

// optional returns a writer for an optional field. It writes null for nil. For a pointer to a
// pointer, either may be nil.
func (w *parquetWriters) optional(n parquet.Node, t reflect.Type) (parquetWriter, error) {
	pointers := 0
	for t.Kind() == reflect.Pointer {
		t, pointers = t.Elem(), pointers+1
	}
	if pointers == 0 && t.Kind() != reflect.Slice && t.Kind() != reflect.Map {
		return nil, fmt.Errorf("the tag `optional` would make null of a zero %v: make it a *%v, which is null "+
			"where it is nil", t, t)
	}
	inner, err := w.of(parquet.Required(n), t)
	return func(row [][]parquet.Value, l parquetLevels, v reflect.Value) error {
		for i := 0; v.IsValid() && i < max(pointers, 1); i++ {
			switch {
			case v.IsNil():
				v = reflect.Value{}
			case pointers > 0:
				v = v.Elem()
			}
		}
		if v.IsValid() {
			l.definition++
		}
		return inner(row, l, v)
	}, err
}

// repeatedWriter returns a writer for a list. Parquet does not distinguish a nil list from an empty
// one, unless the list is optional.
func repeatedWriter(inner parquetWriter) parquetWriter {
	return func(row [][]parquet.Value, l parquetLevels, v reflect.Value) error {
		if !v.IsValid() || v.Len() == 0 {
			return inner(row, l, reflect.Value{})
		}
		l.depth++
		l.definition++
		for i := range v.Len() {
			if err := inner(row, l, v.Index(i)); err != nil {
				return inside(elementOf(i), err)
			}
			l.repetition = l.depth
		}
		return nil
	}
}

func (w *parquetWriters) ofMap(n parquet.Node, t reflect.Type) (parquetWriter, error) {
	if t.Kind() != reflect.Map {
		return nil, cannot(n, t)
	}
	switch t.Key().Kind() {
	case reflect.String, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
	default:
		return nil, fmt.Errorf("%v has keys that are no texts and no numbers", t)
	}
	pair := n.Fields()[0].Fields()
	key, err := w.of(pair[0], t.Key())
	if err != nil {
		return nil, err
	}
	value, err := w.of(pair[1], t.Elem())
	return func(row [][]parquet.Value, l parquetLevels, v reflect.Value) error {
		if !v.IsValid() || v.Len() == 0 {
			return errors.Join(key(row, l, reflect.Value{}), value(row, l, reflect.Value{}))
		}
		l.depth++
		l.definition++
		for _, k := range sortedKeys(v) {
			if err := key(row, l, k); err != nil {
				return inside(someKey, err)
			}
			of := reflect.New(t.Elem()).Elem()
			of.Set(v.MapIndex(k))
			if err := value(row, l, of); err != nil {
				return inside(someKey, err)
			}
			l.repetition = l.depth
		}
		return nil
	}, err
}

func (w *parquetWriters) group(n parquet.Node, t reflect.Type) (parquetWriter, error) {
	fields, err := fieldsOf(t, "parquet")
	if err != nil {
		return nil, err
	}
	nodes := n.Fields()
	if len(fields) != len(nodes) {
		return nil, fmt.Errorf("%v has %d fields, and its Parquet schema %d", t, len(fields), len(nodes))
	}
	inner := make([]parquetWriter, len(fields))
	for i := range fields {
		name := goName(t, fields[i].Index)
		if fields[i].column != nodes[i].Name() {
			return nil, fmt.Errorf("field %s of %v is %q in its Parquet schema, want %q", name, t,
				nodes[i].Name(), fields[i].column)
		}
		if !utf8.ValidString(fields[i].column) {
			return nil, fmt.Errorf("field %s of %v: its name is not valid UTF-8", name, t)
		}
		if inner[i], err = w.of(nodes[i], fields[i].Type); err != nil {
			return nil, fmt.Errorf("field %s of %v: %w", name, t, err)
		}
	}
	return func(row [][]parquet.Value, l parquetLevels, v reflect.Value) error {
		for i := range fields {
			value := reflect.Value{}
			if v.IsValid() {
				value, _ = fields[i].value(v)
			}
			if err := inner[i](row, l, value); err != nil {
				return inside(fields[i].Name, err)
			}
		}
		return nil
	}, nil
}

func (w *parquetWriters) leaf(n parquet.Node, t reflect.Type) (parquetWriter, error) {
	of, err := parquetValue(n, t)
	if err != nil {
		return nil, err
	}
	switch logicalOf(n).(type) {
	case *format.DateType, *format.TimeType:
		w.ofDay = w.ofDay || t == timeType || t == durationType
	}
	column := w.columns
	if w.columns++; column > parquet.MaxColumnIndex {
		return nil, fmt.Errorf("it has more than %d columns", parquet.MaxColumnIndex)
	}
	return func(row [][]parquet.Value, l parquetLevels, v reflect.Value) error {
		value := parquet.NullValue()
		if v.IsValid() {
			var err error
			if value, err = of(v); err != nil {
				return err
			}
		}
		row[column] = append(row[column], value.Level(l.repetition, l.definition, column))
		return nil
	}, nil
}

// parquetValue returns the function that converts a Go value to a column's value.
func parquetValue(n parquet.Node, t reflect.Type) (func(v reflect.Value) (parquet.Value, error), error) {
	physical, kind := n.Type().Kind(), t.Kind()
	switch physical {
	case parquet.Boolean:
		if kind == reflect.Bool {
			return func(v reflect.Value) (parquet.Value, error) { return parquet.BooleanValue(v.Bool()), nil }, nil
		}
	case parquet.Int32, parquet.Int64:
		number, err := parquetNumber(n, t)
		if physical == parquet.Int64 {
			return func(v reflect.Value) (parquet.Value, error) {
				i, err := number(v)
				return parquet.Int64Value(i), err
			}, err
		}
		return func(v reflect.Value) (parquet.Value, error) {
			i, err := number(v)
			return parquet.Int32Value(int32(i)), err
		}, err
	case parquet.Float:
		if kind == reflect.Float32 {
			return func(v reflect.Value) (parquet.Value, error) {
				return parquet.FloatValue(float32(v.Float())), nil
			}, nil
		}
	case parquet.Double:
		if kind == reflect.Float64 {
			return func(v reflect.Value) (parquet.Value, error) { return parquet.DoubleValue(v.Float()), nil }, nil
		}
	case parquet.ByteArray:
		if text := parquetText(logicalOf(n), t); text != nil {
			return func(v reflect.Value) (parquet.Value, error) {
				b, err := text(v)
				return parquet.ByteArrayValue(b), err
			}, nil
		}
	case parquet.FixedLenByteArray:
		if bytes := parquetFixed(n, t); bytes != nil {
			return func(v reflect.Value) (parquet.Value, error) {
				b, err := bytes(v)
				return parquet.FixedLenByteArrayValue(b), err
			}, nil
		}
	}
	return nil, cannot(n, t)
}

func parquetUnit(u format.TimeUnit) time.Duration {
	switch u.Value.(type) {
	case *format.MilliSeconds:
		return time.Millisecond
	case *format.MicroSeconds:
		return time.Microsecond
	}
	return time.Nanosecond
}

// parquetNumber returns a function that converts a Go value to an integer column's value. That
// function returns 64 bits; unsigned integers and integers of 32 bits keep their bit patterns.
func parquetNumber(n parquet.Node, t reflect.Type) (func(v reflect.Value) (int64, error), error) {
	switch logical := logicalOf(n).(type) {
	case *format.DateType:
		switch {
		case t == timeType:
			return func(v reflect.Value) (int64, error) {
				days, err := daysSince1970(v.Interface().(time.Time))
				return int64(days), err
			}, nil
		case t.Kind() == reflect.Int32:
			return func(v reflect.Value) (int64, error) { return v.Int(), nil }, nil
		}
	case *format.TimestampType:
		unit := parquetUnit(logical.Unit)
		switch {
		case t == timeType:
			return func(v reflect.Value) (int64, error) {
				at := v.Interface().(time.Time)
				if !logical.IsAdjustedToUTC {
					at = wallClock(at)
				}
				return since1970(at, unit)
			}, nil
		case t.Kind() == reflect.Int64 && t != durationType:
			return func(v reflect.Value) (int64, error) { return v.Int(), nil }, nil
		}
	case *format.TimeType:
		unit := parquetUnit(logical.Unit)
		switch {
		case t == durationType:
			return func(v reflect.Value) (int64, error) { return timeOfDay(time.Duration(v.Int()), unit) }, nil
		case t.Kind() == reflect.Int32 || t.Kind() == reflect.Int64:
			return func(v reflect.Value) (int64, error) { return v.Int(), checkOfDay(v.Int(), unit) }, nil
		}
	case *format.DecimalType:
		if t.Kind() == reflect.Int32 || t.Kind() == reflect.Int64 {
			return func(v reflect.Value) (int64, error) {
				return v.Int(), checkDigits(big.NewInt(v.Int()), int(logical.Precision))
			}, nil
		}
	case *format.IntType:
		return parquetInteger(n, t, int(logical.BitWidth), logical.IsSigned)
	}
	return nil, cannot(n, t)
}

func checkDigits(n *big.Int, precision int) error {
	if !hasDigits(n, precision) {
		return fmt.Errorf("it has more than the %d digits of its tag", precision)
	}
	return nil
}

func parquetInteger(n parquet.Node, t reflect.Type, bits int,
	signed bool) (func(v reflect.Value) (int64, error), error) {
	out := fmt.Errorf("it is out of the range of its column, %v", n.Type())
	switch kind := t.Kind(); {
	case kind >= reflect.Int && kind <= reflect.Int64:
		return func(v reflect.Value) (int64, error) {
			i := v.Int()
			if signed && (i < math.MinInt64>>(64-bits) || i > math.MaxInt64>>(64-bits)) ||
				!signed && (i < 0 || uint64(i) > math.MaxUint64>>(64-bits)) {
				return 0, out
			}
			return i, nil
		}, nil
	case kind >= reflect.Uint && kind <= reflect.Uint64:
		return func(v reflect.Value) (int64, error) {
			u := v.Uint()
			if signed && u > math.MaxInt64>>(64-bits) || u > math.MaxUint64>>(64-bits) {
				return 0, out
			}
			return int64(u), nil
		}, nil
	}
	return nil, cannot(n, t)
}

// parquetText returns a function that converts a string or bytes to the bytes of a column. It
// returns nil if a column of this logical type can't hold the Go type t.
func parquetText(logical format.LogicalTypeValue, t reflect.Type) func(v reflect.Value) ([]byte, error) {
	bytes := func(v reflect.Value) []byte { return v.Bytes() }
	switch {
	case t.Kind() == reflect.String:
		bytes = func(v reflect.Value) []byte { return []byte(v.String()) }
	case t.Kind() != reflect.Slice || t.Elem().Kind() != reflect.Uint8:
		return nil
	}
	switch logical.(type) {
	case nil:
		return func(v reflect.Value) ([]byte, error) { return bytes(v), nil }
	case *format.StringType, *format.EnumType:
		return func(v reflect.Value) ([]byte, error) {
			if !utf8.Valid(bytes(v)) {
				return nil, errText
			}
			return bytes(v), nil
		}
	case *format.JsonType:
		return func(v reflect.Value) ([]byte, error) {
			switch text := bytes(v); {
			case !utf8.Valid(text):
				return nil, errText
			case !json.Valid(text):
				return nil, errors.New("it is no JSON, which its tag says it is")
			default:
				return text, nil
			}
		}
	}
	return nil
}

// parquetFixed returns a function that converts a Go value to the bytes of a column of fixed
// length. It returns nil if the column can't hold the Go type t.
func parquetFixed(n parquet.Node, t reflect.Type) func(v reflect.Value) ([]byte, error) {
	size := n.Type().Length()
	var bytes func(v reflect.Value) ([]byte, error)
	switch {
	case t.Kind() == reflect.Array && t.Elem().Kind() == reflect.Uint8 && t.Len() == size:
		bytes = func(v reflect.Value) ([]byte, error) { //nolint:unparam // others may fail
			b := make([]byte, size)
			reflect.Copy(reflect.ValueOf(b), v)
			return b, nil
		}
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		bytes = func(v reflect.Value) ([]byte, error) {
			if v.Len() != size {
				return nil, fmt.Errorf("it has %d bytes, and its column %d", v.Len(), size)
			}
			return v.Bytes(), nil
		}
	}
	switch logical := logicalOf(n).(type) {
	case nil:
		return bytes
	case *format.UUIDType:
		if t.Kind() == reflect.String {
			return uuidBytes
		}
		return bytes
	case *format.DecimalType:
		if bytes == nil {
			return nil
		}
		return func(v reflect.Value) ([]byte, error) {
			b, err := bytes(v)
			if err != nil {
				return nil, err
			}
			n := new(big.Int).SetBytes(b)
			if b[0] >= 0x80 {
				n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
			}
			return b, checkDigits(n, int(logical.Precision))
		}
	}
	return nil
}

func uuidBytes(v reflect.Value) ([]byte, error) {
	if !isUUID(v.String()) {
		return nil, errUUID
	}
	return hex.DecodeString(strings.ReplaceAll(v.String(), "-", ""))
}

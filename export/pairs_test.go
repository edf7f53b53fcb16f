package export

import (
	"encoding/json"
	"fmt"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
	"github.com/twmb/avro"
)

// Types to test besides Go's predeclared types.
type (
	emptyStruct struct{}
	oneField    struct{ A int64 }
	twoFields   struct {
		A int64
		B bool
	}
	keyText string
)

func (k keyText) MarshalText() ([]byte, error) { return []byte("key " + k), nil }

var pairMoment = time.Unix(86400, 0).UTC()

// pairValues are values of all kinds of Go types. The tests try to write each of them as each Avro
// and Parquet type.
var pairValues = []any{
	true, int(1), int8(1), int16(1), int32(1), int64(1), uint(1), uint8(1), uint16(1), uint32(1), uint64(1), uintptr(1),
	float32(1), float64(1), complex64(1), "ab", []byte("ab"), json.RawMessage("12"), [0]byte{}, [4]byte{1},
	[5]byte{1}, [12]byte{1}, [16]byte{1}, [96]byte{1}, [4]int8{1}, [4]uint16{1}, []int8{1}, []int64{1}, [2]int64{1, 2},
	map[string]int64{"a": 1}, map[int64]int64{1: 1}, map[bool]int64{true: 1}, map[keyText]int64{"a": 1}, emptyStruct{},
	oneField{1}, twoFields{1, true}, new(int64), new(*int64), pairMoment, time.Second, *big.NewRat(1, 1),
	avro.Duration{Months: 1}, make(chan int),
}

// pairNames returns the names of the values' types.
func pairNames(values ...any) (names []string) {
	for _, v := range values {
		names = append(names, fmt.Sprintf("%T", v))
	}
	return names
}

var (
	pairInts  = pairNames(int(1), int8(1), int16(1), int32(1), int64(1))
	pairUints = pairNames(uint(1), uint8(1), uint16(1), uint32(1), uint64(1))
	pairTimes = pairNames(pairMoment)
	pairTook  = pairNames(time.Second)
	pairTexts = pairNames("", []byte{}, json.RawMessage{})
	pairLists = pairNames([]int8{}, []int64{}, []byte{}, json.RawMessage{})
	pairFixed = pairNames([4]byte{}, []byte{}, json.RawMessage{})
)

// avroPairs has the Go types that can be written as each Avro type.
var avroPairs = map[string][]string{
	`"null"`:                              nil,
	`"boolean"`:                           {"bool"},
	`"long"`:                              slices.Concat(pairInts, pairUints),
	`{"type":"int","logicalType":"date"}`: slices.Concat(pairInts, pairUints, pairTimes),
	`{"type":"long","logicalType":"timestamp-millis"}`:       slices.Concat(pairInts, pairUints, pairTimes),
	`{"type":"long","logicalType":"timestamp-micros"}`:       slices.Concat(pairInts, pairUints, pairTimes),
	`{"type":"long","logicalType":"timestamp-nanos"}`:        slices.Concat(pairInts, pairUints, pairTimes),
	`{"type":"long","logicalType":"local-timestamp-micros"}`: slices.Concat(pairInts, pairUints, pairTimes),
	`{"type":"int","logicalType":"time-millis"}`:             slices.Concat(pairInts, pairUints, pairTook),
	`{"type":"long","logicalType":"time-micros"}`:            slices.Concat(pairInts, pairUints, pairTook),
	`"float"`:  {"float32"},
	`"double"`: {"float64"},
	`"bytes"`:  {"[]uint8", "json.RawMessage"},
	`{"type":"bytes","logicalType":"decimal","precision":4,"scale":1}`: {"[]uint8", "json.RawMessage", "big.Rat"},
	`"string"`:                             {"string", "[]uint8", "json.RawMessage", "time.Time", "big.Rat"},
	`{"type":"fixed","name":"f","size":4}`: {"[4]uint8"},
	`{"type":"fixed","name":"f","size":4,"logicalType":"decimal","precision":9,"scale":1}`: {
		"[4]uint8"},
	`{"type":"fixed","name":"f","size":12,"logicalType":"duration"}`: {"[12]uint8", "avro.Duration"},
	`{"type":"array","items":"long"}`: pairNames([]int8{}, [4]int8{}, [4]uint16{}, []int64{},
		[2]int64{}),
	`{"type":"map","values":"long"}`: {"map[string]int64"},
	`["null","long"]`:                {"*int64", "**int64"},
	`["long","null"]`:                nil,
	`["string","long"]`:              nil,
	`["null"]`:                       nil,
	`["null","long","string"]`:       nil,
	`{"type":"record","name":"r","fields":[{"name":"A","type":"long"}]}`: {"export.oneField"},
	`{"type":"record","name":"r","fields":[{"name":"B","type":"long"}]}`: nil,
	`{"type":"record","name":"r","fields":[{"name":"A","type":"long"},{"name":"B","type":"boolean"}]}`: {
		"export.twoFields"},
	`{"type":"enum","name":"e","symbols":["a"]}`: nil,
}

// TestAvroPairs tries to write each Go type as each Avro type. Either the type is refused, or its
// values can be read back.
func TestAvroPairs(t *testing.T) {
	for text, want := range avroPairs {
		schema := avro.MustParse(text)
		if strings.Contains(text, `"array"`) { // any array of numbers
			want = append(slices.Clone(want), "[0]uint8", "[4]uint8", "[5]uint8", "[12]uint8", "[16]uint8",
				"[96]uint8", "[]uint8", "json.RawMessage")
		}
		for _, v := range pairValues {
			name := fmt.Sprintf("%T", v)
			w := &avroWriters{named: make(map[string]*avro.SchemaNode), made: make(map[avroPlace]*avroWriter)}
			write, err := w.of(schema.Root(), reflect.TypeOf(v))
			if accepted := err == nil; accepted != slices.Contains(want, name) {
				t.Errorf("%s as %s: %v, want one of %v", name, text, err, want)
				continue
			}
			if err != nil {
				continue
			}
			zero := reflect.Zero(reflect.TypeOf(v)).Interface()
			for _, of := range []reflect.Value{addressable(v), addressable(zero)} {
				if of.Interface() == (time.Time{}) {
					continue // this time is before the range of nanoseconds in 64 bits
				}
				b, err := write(nil, of, 0)
				if err != nil {
					t.Errorf("%v of %s as %s: %v", of, name, text, err)
					continue
				}
				back := reflect.New(reflect.TypeOf(v))
				if readBack := avroReadsAs(name, text); readBack != nil {
					back = reflect.New(readBack)
				}
				rest, err := schema.Decode(b, back.Interface())
				if err != nil || len(rest) > 0 {
					t.Errorf("%v of %s as %s is %x: it can't be read: %v", of, name, text, b, err)
				}
				if got, want := fmt.Sprint(plainOf(back.Elem())), fmt.Sprint(plainOf(of)); got != want {
					t.Errorf("%v of %s as %s is read as %s", want, name, text, got)
				}
			}
		}
	}
}

// avroReadsAs returns the Go type as which a value is read back, if that is not the value's own
// type. Otherwise it returns nil.
func avroReadsAs(name, schema string) reflect.Type {
	if name == "json.RawMessage" && !strings.Contains(schema, "array") {
		return reflect.TypeFor[[]byte]()
	}
	return nil
}

// plainOf converts a value to a form in which the test compares it.
func plainOf(v reflect.Value) any {
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	switch of := v.Interface().(type) {
	case time.Time:
		return of.UTC()
	case big.Rat:
		return of.RatString()
	case json.RawMessage:
		return []byte(of)
	}
	return v.Interface()
}

// parquetPairs has the Go types that can be written to each type of Parquet column.
var parquetPairs = map[string]struct {
	node parquet.Node
	want []string
}{
	"boolean":  {parquet.Leaf(parquet.BooleanType), []string{"bool"}},
	"int 32":   {parquet.Leaf(parquet.Int32Type), slices.Concat(pairInts, pairUints, pairTook)},
	"int96":    {parquet.Leaf(parquet.Int96Type), nil},
	"int 8":    {parquet.Int(8), slices.Concat(pairInts, pairUints, pairTook)},
	"int 64":   {parquet.Int(64), slices.Concat(pairInts, pairUints, pairTook)},
	"uint 32":  {parquet.Uint(32), slices.Concat(pairInts, pairUints, pairTook)},
	"date":     {parquet.Date(), pairNames(int32(1), pairMoment)},
	"ms":       {parquet.Timestamp(parquet.Millisecond), pairNames(int64(1), pairMoment)},
	"ns":       {parquet.Timestamp(parquet.Nanosecond), pairNames(int64(1), pairMoment)},
	"time ms":  {parquet.Time(parquet.Millisecond), pairNames(int32(1), int64(1), time.Second)},
	"time us":  {parquet.Time(parquet.Microsecond), pairNames(int32(1), int64(1), time.Second)},
	"decimal":  {parquet.Decimal(1, 4, parquet.Int32Type), pairNames(int32(1), int64(1), time.Second)},
	"bytes":    {parquet.Leaf(parquet.ByteArrayType), pairTexts},
	"text":     {parquet.String(), pairTexts},
	"enum":     {parquet.Enum(), pairTexts},
	"bson":     {parquet.BSON(), nil},
	"float":    {parquet.Leaf(parquet.FloatType), []string{"float32"}},
	"double":   {parquet.Leaf(parquet.DoubleType), []string{"float64"}},
	"fixed":    {parquet.Leaf(parquet.FixedLenByteArrayType(4)), pairFixed},
	"fixed 1":  {parquet.Decimal(1, 2, parquet.FixedLenByteArrayType(4)), pairFixed},
	"uuid":     {parquet.UUID(), pairNames("ab", [16]byte{}, []byte("ab"), json.RawMessage(""))},
	"list":     {parquet.List(parquet.Int(64)), pairLists},
	"repeated": {parquet.Repeated(parquet.Int(64)), pairLists},
	"map":      {parquet.Map(parquet.String(), parquet.Int(64)), pairNames(map[string]int64{}, map[keyText]int64{})},
	"numbered": {parquet.Map(parquet.Int(64), parquet.Int(64)), pairNames(map[int64]int64{})},
	"flagged":  {parquet.Map(parquet.Leaf(parquet.BooleanType), parquet.Int(64)), nil},
	"group":    {parquet.Group{"A": parquet.Int(64)}, []string{"export.oneField"}},
	"two": {parquet.Group{"A": parquet.Int(64), "B": parquet.Leaf(parquet.BooleanType)},
		[]string{"export.twoFields"}},
	"other":   {parquet.Group{"B": parquet.Int(64)}, nil},
	"variant": {odd{parquet.Group{"A": parquet.Int(64)}}, nil},
}

// odd is a Parquet group whose logical type fits no Go type.
type odd struct{ parquet.Node }

func (odd) Type() parquet.Type { return oddType{parquet.Group{}.Type()} }

type oddType struct{ parquet.Type }

func (oddType) LogicalType() *format.LogicalType {
	return &format.LogicalType{Value: &format.BsonType{}}
}
func (oddType) String() string { return "VARIANT" }

// TestParquetPairs tries to write each Go type to each type of Parquet column. Either the type is
// refused, with an error that names the column's type, or its values are written unchanged.
func TestParquetPairs(t *testing.T) {
	for text, column := range parquetPairs {
		for _, v := range pairValues {
			name := fmt.Sprintf("%T", v)
			write, err := new(parquetWriters).of(column.node, reflect.TypeOf(v))
			pointer := strings.HasPrefix(name, "*")
			// a pointer is written as the value that it points to
			want := slices.Contains(column.want, strings.TrimLeft(name, "*"))
			if accepted := err == nil; accepted != want {
				t.Errorf("%s as %s: %v, want %v", name, text, err, column.want)
				continue
			}
			if err != nil {
				as := " as " + column.node.Type().String()
				if _, group := column.node.(parquet.Group); group {
					as = ""
				}
				if of := " can't be written to Parquet"; strings.HasPrefix(err.Error(), name+of) &&
					!strings.HasPrefix(err.Error(), name+of+as+":") {
					t.Errorf("%s as %s: %v, want an error that has %q", name, text, err, as)
				}
				continue
			}
			row := make([][]parquet.Value, 2)
			if err := write(row, parquetLevels{}, addressable(v)); err != nil {
				if pointer || v == time.Second || strings.HasPrefix(text, "fixed") || text == "uuid" {
					continue // the value is nil, out of range, or of another length
				}
				t.Errorf("%v of %s as %s: %v", v, name, text, err)
				continue
			}
			if got := row[0][0]; !samePlain(got, v, text) {
				t.Errorf("%v of %s as %s is written as %v", v, name, text, got)
			}
		}
	}
}

// samePlain reports whether the value in a column equals the Go value, as far as the Go value's
// kind allows to compare them.
func samePlain(got parquet.Value, v any, column string) bool {
	of := reflect.ValueOf(v)
	unit := map[string]time.Duration{"time ms": time.Millisecond, "time us": time.Microsecond,
		"ms": time.Millisecond, "ns": time.Nanosecond}[column]
	switch {
	case of.Type() == durationType && unit > 0:
		return got.Int64()|int64(got.Int32()) == int64(time.Second/unit)
	case of.Type() == timeType && unit > 0:
		return got.Int64() == pairMoment.UnixNano()/int64(unit)
	case of.CanInt() && of.Type() != durationType:
		return got.Int64() == of.Int() || int64(got.Int32()) == of.Int()
	case of.Kind() == reflect.String, of.Type() == bytesType:
		return column == "list" || column == "repeated" || string(got.ByteArray()) == fmt.Sprintf("%s", v)
	}
	return true
}

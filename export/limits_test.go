package export

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// fileOf returns the content of a file that is joined from one part with the given records.
func fileOf[R any](o Options, records ...R) (string, error) {
	c, err := coderOf[R](&o)
	if err != nil {
		return "", err
	}
	var all []any
	for _, r := range records {
		encoded, err := c.encode(r)
		if err != nil {
			return "", err
		}
		all = append(all, encoded)
	}
	part, err := c.part(all)
	if err != nil {
		return "", err
	}
	parts := [][]byte{part}
	var file bytes.Buffer
	err = c.join(&file, File{Of: 1}, func() (io.ReadCloser, error) {
		if len(parts) == 0 {
			return nil, io.EOF
		}
		next := parts[0]
		parts = parts[1:]
		return io.NopCloser(bytes.NewReader(next)), nil
	})
	return file.String(), err
}

// A limited is a value at or beyond the limit of a format, and the error that it must get.
type limited struct {
	format Format
	record func() error
	want   string // a part of the error; empty: the value is written
}

func recordOf[R any](format Format, want string, record R) limited {
	return limited{format, func() error { _, err := fileOf(Options{Format: format}, record); return err }, want}
}

func (l limited) check(t *testing.T) {
	t.Helper()
	switch err := l.record(); {
	case l.want == "" && err != nil:
		t.Errorf("%s: %v, want that it is written", l.format, err)
	case l.want != "" && (err == nil || !strings.Contains(err.Error(), l.want)):
		t.Errorf("%s: %v, want an error with %q", l.format, err, l.want)
	}
}

// TestIntegerLimits writes the minimum and maximum of each integer column. The next smaller and the
// next greater number must be refused.
func TestIntegerLimits(t *testing.T) {
	try := func(n parquet.Node, v any, stored int64, in bool) {
		t.Helper()
		write, err := new(parquetWriters).of(n, reflect.TypeOf(v))
		if err != nil {
			t.Fatal(err)
		}
		row := make([][]parquet.Value, 1)
		err = write(row, parquetLevels{}, addressable(v))
		if (err == nil) != in || err != nil && !strings.Contains(err.Error(), "out of the range of its column") {
			t.Errorf("%T %v in %v: %v, want that it fits: %t", v, v, n.Type(), err, in)
		}
		if err != nil {
			return
		}
		if got := row[0][0]; n.Type().Kind() == parquet.Int64 && got.Int64() != stored ||
			n.Type().Kind() == parquet.Int32 && got.Int32() != int32(stored) {
			t.Errorf("%T %v in %v is %v", v, v, n.Type(), got)
		}
	}
	for _, bits := range []int{8, 16, 32, 64} {
		signed, unsigned := parquet.Int(bits), parquet.Uint(bits)
		least, most := int64(math.MinInt64)>>(64-bits), int64(math.MaxInt64)>>(64-bits)
		greatest := uint64(math.MaxUint64) >> (64 - bits)
		for _, v := range []int64{least, least + 1, -1, 0, most - 1, most} {
			try(signed, v, v, true)
			try(unsigned, v, v, v >= 0)
		}
		try(signed, uint64(most), most, true)
		try(signed, uint64(most)+1, 0, false)
		try(signed, greatest, 0, false)
		try(unsigned, uint64(0), 0, true)
		try(unsigned, greatest, int64(greatest), true)
		if bits < 64 {
			try(signed, least-1, 0, false)
			try(signed, most+1, 0, false)
			try(unsigned, int64(greatest), int64(greatest), true)
			try(unsigned, int64(greatest)+1, 0, false)
			try(unsigned, greatest+1, 0, false)
		}
	}
}

// TestTimeLimits writes the first and last time, and time of day, for each tag. The times before
// and after must be refused.
func TestTimeLimits(t *testing.T) {
	type days struct {
		T time.Time `avro:",date" parquet:",date"`
	}
	day := func(n int64) time.Time { return time.Unix(n*86400, 0) }
	type took struct {
		D time.Duration `avro:",time-millis" parquet:",time(millisecond)"`
	}
	type millis struct {
		N int32 `avro:",time-millis" parquet:",time(millisecond)"`
	}
	type micros struct {
		N int64 `avro:",time-micros" parquet:",time(microsecond)"`
	}
	type moments struct {
		T time.Time `avro:",timestamp-micros" parquet:",timestamp(microsecond)"`
	}
	type nanos struct {
		T time.Time `avro:",timestamp-nanos" parquet:",timestamp(nanosecond)"`
	}
	type text struct{ T time.Time }
	zone := func(seconds int) time.Time {
		return time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", seconds))
	}
	year := func(n int) time.Time { return time.Date(n, 1, 2, 3, 4, 5, 0, time.UTC) }
	const day1, noDate = 24 * time.Hour, "no date"
	for _, format := range []Format{Avro, Parquet} {
		for _, c := range []limited{
			recordOf(format, "", days{day(0)}), recordOf(format, "", days{day(-1)}),
			recordOf(format, noDate, days{day(0).Add(1)}), recordOf(format, noDate, days{day(0).Add(time.Second)}),
			recordOf(format, "", days{day(math.MaxInt32)}), recordOf(format, "", days{day(math.MinInt32)}),
			recordOf(format, "32 bits of days", days{day(math.MaxInt32 + 1)}),
			recordOf(format, "32 bits of days", days{day(math.MinInt32 - 1)}),
			recordOf(format, "", took{0}), recordOf(format, "no time of day", took{-time.Millisecond}),
			recordOf(format, "", took{day1 - time.Millisecond}), recordOf(format, "no time of day", took{day1}),
			recordOf(format, "", millis{0}), recordOf(format, "time of day in milliseconds", millis{-1}),
			recordOf(format, "", millis{86_399_999}),
			recordOf(format, "time of day in milliseconds", millis{86_400_000}),
			recordOf(format, "", micros{86_399_999_999}),
			recordOf(format, "time of day in microseconds", micros{86_400_000_000}),
			recordOf(format, "out of the range of microseconds", moments{day(200_000_000)}),
			recordOf(format, "out of the range of nanoseconds, 1677-09-21 to 2262-04-11", nanos{day(200_000)}),
		} {
			c.check(t)
		}
	}
	for _, format := range []Format{JSONLines, CSV} {
		for _, c := range []limited{
			recordOf(format, "", text{year(0)}), recordOf(format, "", text{year(9999)}),
			recordOf(format, "0 to 9999", text{year(-1)}), recordOf(format, "0 to 9999", text{year(10000)}),
			recordOf(format, "", text{zone(86400 - 60)}), recordOf(format, "", text{zone(60 - 86400)}),
			recordOf(format, "by a day", text{zone(86400)}), recordOf(format, "by a day", text{zone(-86400)}),
			recordOf(format, "by a day", text{zone(30)}),
		} {
			c.check(t)
		}
	}
}

// TestLocalTimes checks that a local timestamp has the date and hour in the time's own zone. Other
// timestamps must have the moment.
func TestLocalTimes(t *testing.T) {
	check := func(what string, n int64, unit time.Duration, err error, want int) {
		t.Helper()
		at := time.Unix(0, 0).Add(time.Duration(n) * unit).UTC()
		if err != nil || !at.Equal(time.Date(2026, 1, 2, want, 0, 0, 0, time.UTC)) {
			t.Errorf("%s: %v, %v, want %d o'clock", what, at, err, want)
		}
	}
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.FixedZone("", 2*60*60))
	for tag, want := range map[string]int{"local-timestamp-": 12, "timestamp-": 10} {
		for name, unit := range avroUnits {
			n, err := avroNumber(tag+name, timeType)(reflect.ValueOf(noon))
			check(tag+name, n, unit, err, want)
		}
	}
	for utc, want := range map[bool]int{false: 12, true: 10} {
		of, err := parquetNumber(parquet.TimestampAdjusted(parquet.Microsecond, utc), timeType)
		if err != nil {
			t.Fatal(err)
		}
		n, err := of(reflect.ValueOf(noon))
		check(fmt.Sprint("a timestamp that is in UTC: ", utc), n, time.Microsecond, err, want)
	}
}

// TestParquetMaps writes maps to Parquet, also in lists and in other maps, and reads them back.
func TestParquetMaps(t *testing.T) {
	type record struct {
		N int64
		M map[string]int64
		L []map[int32]string          `parquet:",list"`
		D map[string]map[string]int64 `parquet:"d"`
		O map[string]*int64           `parquet:",optional"`
		E map[string][]string         `parquet:"e" parquet-value:",list"`
	}
	n := int64(7)
	want := []record{
		{N: 1, M: map[string]int64{"a": 1, "b": 2, "c": 3}, L: []map[int32]string{{1: "x", 2: "y"}, {3: "z"}},
			D: map[string]map[string]int64{"a": {"b": 1, "c": 2}, "d": {"e": 3}},
			O: map[string]*int64{"a": &n, "b": &n}, E: map[string][]string{"a": {"x", "y"}, "b": {"z"}}},
		{N: 2, M: map[string]int64{"d": 4}, L: []map[int32]string{{4: ""}},
			D: map[string]map[string]int64{"f": {"g": 4}}, O: map[string]*int64{"c": &n},
			E: map[string][]string{"c": {""}}},
		{N: 3, M: map[string]int64{}, L: []map[int32]string{{}, {5: "x"}},
			D: map[string]map[string]int64{"h": {}}, O: map[string]*int64{}, E: map[string][]string{"d": {"e"}}},
		{N: 4, M: map[string]int64{"i": 5}, L: []map[int32]string{{6: "y"}},
			D: map[string]map[string]int64{"j": {"k": 6}}, O: map[string]*int64{"l": &n},
			E: map[string][]string{"m": {"n"}}},
	}
	file, err := fileOf(Options{Format: Parquet}, want...)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parquet.Read[record](strings.NewReader(file), int64(len(file)))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
}

// A byPointer has a MarshalText with a pointer receiver.
type byPointer struct{ N int }

func (p *byPointer) MarshalText() ([]byte, error) { return fmt.Append(nil, p.N), nil }

// TestRevisions checks for which types the encoding has changed since older builds. A run that an
// older build has started must not continue with such a type.
func TestRevisions(t *testing.T) {
	type pointer struct{ P *byPointer }
	type plain struct{ N int64 }
	type value struct {
		P byPointer
		A netip.Addr // its MarshalText has no pointer receiver, unlike the method of the field before
	}
	type date struct {
		T time.Time `parquet:",date"`
		N int32     `parquet:",date"`
	}
	type took struct {
		D time.Duration `parquet:",time(microsecond)"`
		N int32         `parquet:",time(millisecond)"`
	}
	type days struct {
		N int32 `parquet:",date"`
	}
	check := func(c coder, err error, want string) {
		t.Helper()
		if err != nil || c.revision() != want {
			t.Errorf("%+v, %v, want %q", c, err, want)
		}
	}
	try := func(c coder, err error) func(want string) {
		return func(want string) { t.Helper(); check(c, err, want) }
	}
	lines, rows := &Options{Format: JSONLines}, &Options{Format: Parquet}
	try(coderOf[plain](lines))("")
	try(coderOf[pointer](lines))("")
	try(coderOf[value](lines))(secondRevision)
	try(coderOf[plain](rows))("")
	try(coderOf[days](rows))("")
	try(coderOf[date](rows))(secondRevision)
	try(coderOf[took](rows))(secondRevision)
}

// A counting value counts how often its MarshalJSON is called.
type counting struct{ n *int }

func (c counting) MarshalJSON() ([]byte, error) { *c.n++; return []byte("1"), nil }

// TestOneCall checks that a value's MarshalJSON is called only once if it returns no error.
func TestOneCall(t *testing.T) {
	n := 0
	recordOf(JSONLines, "", struct{ A counting }{counting{&n}}).check(t)
	if n != 1 {
		t.Errorf("its method is called %d times, want once", n)
	}
}

type (
	ownText   struct{ N int }
	inPointer struct{ P byPointer }
)

func (ownText) MarshalText() ([]byte, error) { return nil, nil }

// TestEmbeddedMethods checks values whose JSON or text comes from a type that they embed or
// contain.
func TestEmbeddedMethods(t *testing.T) {
	type outer struct{ *inPointer }
	type row struct {
		ownText
		M int
	}
	recordOf(JSONLines, "", struct{ M map[string]outer }{map[string]outer{"a": {&inPointer{}}}}).check(t)
	recordOf(JSONLines, "MarshalText of *export.byPointer is not called", struct{ M map[string]inPointer }{}).check(t)
	recordOf(Parquet, "is embedded, so that its fields would be written", row{}).check(t)
}

// Types with methods, for other types to embed or contain.
type (
	zeroed   struct{ N int }
	noText   string
	noJSON   struct{}
	Embedded struct{ N int64 }
	OwnText  struct{ N int64 }
)

func (zeroed) IsZero() bool                  { return true }
func (OwnText) MarshalText() ([]byte, error) { return nil, nil }
func (noText) MarshalText() ([]byte, error)  { return nil, errPipe }
func (*noJSON) MarshalJSON() ([]byte, error) { return nil, errPipe }

// TestNamedEmbedded checks embedded structs whose tag gives them a name. They must be refused if
// their methods can't be called, or if the format ignores the name.
func TestNamedEmbedded(t *testing.T) {
	const methods = "its methods can't be called"
	type text struct { // has no MarshalText, because two embedded fields have one
		ownText `json:"in"`
		OwnText `json:"out"`
	}
	type zero struct {
		zeroed `json:"in,omitzero"`
		M      int
	}
	type whole struct {
		zeroed `json:"in"`
		M      int
	}
	type never struct { // accepted: without IsZero, encoding/json calls no method
		inPointer `json:"in,omitzero"`
		M         int
	}
	type rows struct {
		Embedded `parquet:"in"`
		M        int64
	}
	type twice struct {
		A int `csv:"x"`
		B int `csv:"x"`
	}
	type texts struct { // nor has this one
		OwnText
		ownText
	}
	recordOf(JSONLines, methods, text{}).check(t)
	recordOf(CSV, "it is not exported, so \"csv\" would leave it out", text{}).check(t)
	recordOf(JSONLines, "so that its fields would be written", texts{}).check(t)
	recordOf(JSONLines, methods, zero{}).check(t)
	recordOf(JSONLines, "", whole{}).check(t)
	recordOf(JSONLines, "", never{}).check(t)
	recordOf(Parquet, "writes its fields and not the name", rows{}).check(t)
	recordOf(CSV, "have one name", twice{}).check(t)
}

// TestWhichMethod checks which method of a value a format calls, if it has several.
func TestWhichMethod(t *testing.T) {
	// accepted: a string is its own key
	recordOf(JSONLines, "", struct{ M map[noText]int }{map[noText]int{"a": 1}}).check(t)
	recordOf(JSONLines, "field A: ", struct{ A *noJSON }{new(noJSON)}).check(t)
	recordOf(JSONLines, "", struct{ A *noJSON }{}).check(t)
}

// TestFixedBytes checks that a column of fixed-length bytes gets the bytes of a Go array.
func TestFixedBytes(t *testing.T) {
	type record struct{ A [4]byte }
	file, err := fileOf(Options{Format: Parquet}, record{[4]byte{0xfe, 1, 2, 0xfd}})
	if err != nil || !strings.Contains(file, "\xfe\x01\x02\xfd") {
		t.Errorf("the bytes are not in the file, %v", err)
	}
}

// TestNullLists checks an optional list: nil is written as null, and an empty list as an empty
// list.
func TestNullLists(t *testing.T) {
	type record struct {
		L []string `parquet:",list,optional"`
	}
	write, err := new(parquetWriters).of(parquet.SchemaOf(new(record)), reflect.TypeFor[record]())
	if err != nil {
		t.Fatal(err)
	}
	for definition, list := range [][]string{nil, {}, {""}} {
		row := make([][]parquet.Value, 1)
		if err := write(row, parquetLevels{}, addressable(record{list})); err != nil {
			t.Fatal(err)
		}
		if got := row[0][0].DefinitionLevel(); got != definition {
			t.Errorf("%#v has the definition level %d, want %d", list, got, definition)
		}
	}
}

// TestLongLists writes lists with more elements than the maximum depth of nested values, because
// the depth must not count elements.
func TestLongLists(t *testing.T) {
	type record struct{ L []string }
	for _, format := range []Format{JSONLines, Avro, Parquet} {
		recordOf(format, "", record{make([]string, 2*deepest)}).check(t)
	}
}

type (
	straße struct{ A int64 }
	maß    [4]byte
	maß16  [16]byte
)

type nest []nest

// TestDeepValues writes JSON that is nested 1,000 levels deep, and refuses deeper values.
func TestDeepValues(t *testing.T) {
	var deep nest
	for range deepest - 1 {
		deep = nest{deep}
	}
	recordOf(JSONLines, "", deep).check(t)
	recordOf(JSONLines, errDeep.Error(), nest{deep}).check(t)
}

// TestDictionaries writes a dictionary for a column whose tag says so, unless it has fixed bytes.
func TestDictionaries(t *testing.T) {
	type record struct {
		Text  string  `parquet:",dict"`
		Fixed [2]byte `parquet:",dict"`
		Plain string
	}
	f := openParquet(t, record{"a", [2]byte{1}, "b"})
	for i, want := range []bool{true, false, false} {
		m := f.Metadata().RowGroups[0].Columns[i].MetaData
		if got := slices.Contains(m.Encoding, format.RLEDictionary); got != want {
			t.Errorf("%v has the encodings %v, want a dictionary: %t", m.PathInSchema, m.Encoding, want)
		}
	}
}

func openParquet[R any](t *testing.T, records ...R) *parquet.File {
	t.Helper()
	file, err := fileOf(Options{Format: Parquet}, records...)
	if err != nil {
		t.Fatal(err)
	}
	f, err := parquet.OpenFile(strings.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestSchemaErrors checks that the error for a refused type names the problem.
func TestSchemaErrors(t *testing.T) {
	type named struct{ S straße }
	type times struct {
		L []time.Time `parquet:",list" parquet-element:",timestamp"`
	}
	type array struct{ S maß }
	type ids struct {
		S maß16 `avro:",uuid"`
	}
	type inList struct {
		L []time.Time `parquet:",list"`
	}
	recordOf(Avro, "has characters that \"avro\" does not take", named{}).check(t)
	recordOf(Avro, "has characters that \"avro\" does not take", array{}).check(t)
	recordOf(Avro, "", ids{}).check(t) // its schema does not have the type's name
	recordOf(Parquet, "no tag says the precision of a time.Time", inList{}).check(t)
	recordOf(Parquet, "its tag has to say the precision of a time.Time", times{}).check(t)
}

// TestOtherFile checks the errors about a file that an earlier attempt has written from other
// parts.
func TestOtherFile(t *testing.T) {
	for _, c := range []struct {
		of   stage
		want string
	}{
		{stage{Layout: 0}, "there is another file"}, {stage{Layout: 0, Failures: 1}, "there is another file"},
		{stage{Layout: layoutRuns, Failures: 1}, "an attempt before has written"}, {stage{Layout: layoutRuns}, "<nil>"},
	} {
		if err := c.of.otherFile("f"); !strings.HasPrefix(fmt.Sprint(err), c.want) {
			t.Errorf("%+v: %v, want %s", c.of, err, c.want)
		}
	}
}

// TestUUIDs checks which texts are accepted for a column of UUIDs.
func TestUUIDs(t *testing.T) {
	type ids struct {
		ID string `avro:",uuid" parquet:",uuid"`
	}
	for text, want := range map[string]string{
		"01234567-89ab-cdef-ABCD-EF0123456789":  "",
		"01234567-89ab-cdef-ABCD-EF012345678":   "no UUID",
		"01234567-89ab-cdef-ABCD-EF01234567890": "no UUID",
		"01234567-89ab-cdef-ABCD-EF012345678g":  "no UUID",
		"01234567-89ab-cdef-ABCD-EF012345678-":  "no UUID",
		"0123456-789ab-cdef-ABCD-EF0123456789":  "no UUID",
		"0123456789ab0cdef0ABCD0EF01234567890":  "no UUID",
		"":                                      "no UUID",
	} {
		recordOf(Avro, want, ids{text}).check(t)
		recordOf(Parquet, want, ids{text}).check(t)
	}
	file, err := fileOf(Options{Format: Parquet}, ids{"01234567-89ab-cdef-ABCD-EF0123456789"})
	if err != nil || !strings.Contains(file, "\x01\x23\x45\x67\x89\xab\xcd\xef\xab\xcd\xef\x01\x23\x45\x67\x89") {
		t.Errorf("the bytes of the UUID are not in the file, %v", err)
	}
}

// TestDecimalLimits writes numbers with as many digits as the tag allows. Numbers with more digits
// must be refused.
func TestDecimalLimits(t *testing.T) {
	node := parquet.Decimal(1, 4, parquet.FixedLenByteArrayType(2))
	write, err := new(parquetWriters).of(node, bytesType)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"\x00\x00": "", "\x27\x0f": "", "\xd8\xf1": "", // 0, 9999, -9999
		"\x27\x10": "4 digits", "\xd8\xf0": "4 digits", "\x80\x00": "4 digits", "\x7f\xff": "4 digits",
		"\x00": "has 1 bytes, and its column 2", "\x00\x00\x00": "has 3 bytes, and its column 2", "": "has 0 bytes",
	} {
		err := write(make([][]parquet.Value, 1), parquetLevels{}, addressable([]byte(text)))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%x: %v, want %q", text, err, want)
		}
	}
	type rats struct {
		R *big.Rat `avro:",decimal(3,1)"`
	}
	for n, want := range map[int64]string{999: "", -999: "", 0: "", 1000: "3 digits", -1000: "3 digits"} {
		recordOf(Avro, want, rats{big.NewRat(n, 10)}).check(t)
	}
	recordOf(Avro, "1 digits after the point", rats{big.NewRat(1, 100)}).check(t)
	for n, want := range map[int64]string{
		0: "00", 1: "01", 127: "7f", 128: "0080", 255: "00ff", 256: "0100", 32767: "7fff", 32768: "008000",
		-1: "ff", -127: "81", -128: "80", -129: "ff7f", -255: "ff01", -256: "ff00", -32768: "8000", -32769: "ff7fff",
	} {
		got, err := decimalBytes(addressable(*big.NewRat(n, 100)), 9, 2)
		if err != nil || fmt.Sprintf("%x", got) != want {
			t.Errorf("%d units of 1/100 are %x, %v, want %s", n, got, err, want)
		}
	}
}

// TestJSONNumbers checks which values of json.Number are accepted. An empty one must be refused,
// because encoding/json would write 0.
func TestJSONNumbers(t *testing.T) {
	type record struct{ N json.Number }
	for _, text := range []string{"0", "9", "-1", "1.5e+10"} {
		recordOf(JSONLines, "", record{json.Number(text)}).check(t)
	}
	for _, text := range []string{"", " 1", "1 ", "1\n", "01", "+1", "-", "--1", "1a", "true", "null", `"1"`, "{}",
		"[1]"} {
		recordOf(JSONLines, "field N: it is a json.Number that is no number", record{json.Number(text)}).check(t)
	}
}

// TestInvalidText checks that text which is not valid UTF-8 is refused, wherever it is in a record.
func TestInvalidText(t *testing.T) {
	const bad = "\xff"
	type raws struct {
		R json.RawMessage `parquet:",json"`
	}
	type lists struct {
		L []string `parquet:",list"`
	}
	type named struct {
		A string `csv:"a\xff" parquet:"a\xff" json:"-" avro:"-"`
	}
	for _, c := range []limited{
		recordOf(JSONLines, "field R: it is a text", raws{json.RawMessage(`"` + bad + `"`)}),
		recordOf(Parquet, "field R: it is a text", raws{json.RawMessage(`"` + bad + `"`)}),
		recordOf(JSONLines, "", raws{}),
		recordOf(JSONLines, "field A: it is a json.RawMessage that is no JSON",
			struct{ A struct{ json.RawMessage } }{struct{ json.RawMessage }{json.RawMessage("secret")}}),
		recordOf(JSONLines, "field R: it is a json.RawMessage", raws{json.RawMessage{}}),
		recordOf(Avro, "field L[1]: it is a text", lists{[]string{"", bad}}),
		recordOf(Parquet, "field L[1]: it is a text", lists{[]string{"", bad}}),
		recordOf(JSONLines, "field L[1]: it is a text", lists{[]string{"", bad}}),
		recordOf(CSV, "field A of export.named: its name is not valid UTF-8", named{}),
		recordOf(Parquet, "field A of export.named: its name is not valid UTF-8", named{}),
	} {
		c.check(t)
	}
}

// TestSortedKeys checks that maps are written in the order of their keys, so that a record always
// has the same bytes.
func TestSortedKeys(t *testing.T) {
	check := func(got []reflect.Value, want string) {
		t.Helper()
		var keys []any
		for _, key := range got {
			keys = append(keys, key.Interface())
		}
		if s := fmt.Sprint(keys...); s != want {
			t.Errorf("%s, want %s", s, want)
		}
	}
	for range 20 { // repeat it, because Go iterates over maps in a random order
		check(sortedKeys(reflect.ValueOf(map[string]int{"b": 1, "a": 1, "10": 1, "9": 1})), "109ab")
		check(sortedKeys(reflect.ValueOf(map[int8]int{10: 1, -3: 1, 9: 1, 0: 1})), "-3 0 9 10")
		check(sortedKeys(reflect.ValueOf(map[uint64]int{math.MaxUint64: 1, 1 << 63: 1, 9: 1, 10: 1})),
			"9 10 9223372036854775808 18446744073709551615")
	}
}

// TestMostColumns checks that a Parquet schema with more columns than package parquet can number is
// refused.
func TestMostColumns(t *testing.T) {
	last := &parquetWriters{columns: parquet.MaxColumnIndex}
	if _, err := last.of(parquet.Int(64), reflect.TypeFor[int64]()); err != nil {
		t.Errorf("the last column: %v", err)
	}
	if _, err := last.of(parquet.Int(64), reflect.TypeFor[int64]()); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprint("more than ", parquet.MaxColumnIndex, " columns")) {
		t.Errorf("one more: %v", err)
	}
}

// TestDeepTypes checks that types nested 100 levels deep are accepted, and deeper ones refused.
func TestDeepTypes(t *testing.T) {
	deep := reflect.TypeFor[int]()
	for range 100 {
		deep = reflect.SliceOf(deep)
	}
	if err := ofAvro.checkValue(deep, "", nil); err != nil {
		t.Errorf("100 levels: %v", err)
	}
	if err := ofAvro.checkValue(reflect.SliceOf(deep), "", nil); err == nil ||
		!strings.Contains(err.Error(), "nested too deeply") {
		t.Errorf("101 levels: %v", err)
	}
}

// A pipe is a reader and writer that fails after a number of calls.
type pipe struct{ left int }

var errPipe = errors.New("the pipe is broken")

func (p *pipe) Write(b []byte) (int, error) {
	if p.left--; p.left == -1 {
		return 0, errPipe
	}
	return len(b), nil
}

// brokenPart is a part whose Read or Close fails.
type brokenPart struct {
	io.Reader
	err error
}

func (b brokenPart) Close() error { return b.err }

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errPipe }

// TestBrokenJoins lets each call fail that a join makes to read parts and write the file. The join
// must return the error. Otherwise a file would lack records.
func TestBrokenJoins(t *testing.T) {
	type record struct{ A string }
	for _, format := range []Format{JSONLines, JSON, CSV, Avro, Parquet} {
		for _, compression := range []Compression{Uncompressed, Gzip} {
			c, err := coderOf[record](&Options{Format: format, Compression: compression})
			if err != nil {
				t.Fatal(err)
			}
			encoded, err := c.encode(record{"a"})
			if err != nil {
				t.Fatal(err)
			}
			part, err := c.part([]any{encoded})
			if err != nil {
				t.Fatal(err)
			}
			join := func(w io.Writer, broken int, how func() (io.ReadCloser, error)) error {
				n := 0
				return c.join(w, File{Of: 1}, func() (io.ReadCloser, error) {
					switch n++; {
					case n == broken:
						return how()
					case n > 3:
						return nil, io.EOF
					}
					return brokenPart{bytes.NewReader(part), nil}, nil
				})
			}
			calls := &pipe{1 << 30}
			if err := join(calls, 0, nil); err != nil {
				t.Fatal(err)
			}
			for n := range 1<<30 - calls.left {
				if err := join(&pipe{n}, 0, nil); !errors.Is(err, errPipe) {
					t.Errorf("%s %s: %v after %d writes, want an error", format, compression, err, n)
				}
			}
			for name, how := range map[string]func() (io.ReadCloser, error){
				"opened": func() (io.ReadCloser, error) { return nil, errPipe },
				"read":   func() (io.ReadCloser, error) { return brokenPart{failing{}, nil}, nil },
				"closed": func() (io.ReadCloser, error) { return brokenPart{bytes.NewReader(part), errPipe}, nil },
			} {
				for n := 1; n <= 3; n++ {
					if err := join(io.Discard, n, how); !errors.Is(err, errPipe) {
						t.Errorf("%s %s: part %d can't be %s, and the error is %v", format, compression, n, name, err)
					}
				}
			}
			if format == Parquet {
				err := join(io.Discard, 2, func() (io.ReadCloser, error) {
					return brokenPart{strings.NewReader("no Parquet"), nil}, nil
				})
				if err == nil {
					t.Error("a part that is no Parquet file is joined")
				}
				damaged := bytes.Clone(part)
				copy(damaged[4:], "\xff\xff\xff\xff\xff\xff") // the header of its first page
				err = join(io.Discard, 2, func() (io.ReadCloser, error) {
					return brokenPart{bytes.NewReader(damaged), nil}, nil
				})
				if err == nil {
					t.Error("a part with a damaged page is joined")
				}
			}
		}
	}
}

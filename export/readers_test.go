package export_test

import (
	"context"
	"encoding"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"
	"gocloud.dev/blob/memblob"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// A reader is a program or library, independent of this package, that reads files of a format.
type reader struct {
	name   string
	format export.Format
	// drops are columns that the reader can't read, or reads as other values.
	drops []string
}

var readers = []reader{
	{"duckdb-parquet", export.Parquet, nil},
	{"hyparquet", export.Parquet, []string{"Raw", "Cents", "Dec"}}, // hyparquet converts these columns to floats
	{"avsc", export.Avro, nil},
	{"duckdb-csv", export.CSV, nil},
	{"python-csv", export.CSV, nil},
	{"python-json", export.JSONLines, nil},
}

const nodeModules = "../.ci/node/node_modules"

// read reads a file with the reader, or skips the test if the reader is not installed. A row has
// pairs of a column's name and its value.
func (r reader) read(t *testing.T, file string) (rows [][][2]any) {
	t.Helper()
	c := nodeReader(t, r.name, file)
	if strings.HasPrefix(r.name, "python") {
		if _, err := exec.LookPath("python3"); err != nil {
			t.Skip("left out: python3 is not installed")
		}
		c = exec.Command("python3", "testdata/readers/read.py", r.name, file)
	}
	runReader(t, r.name, c, &rows)
	return rows
}

// nodeReader returns the command that runs a reader in Node.js, or skips the test if it is not
// installed.
func nodeReader(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	if _, err := os.Stat(nodeModules + "/@duckdb/node-api"); err != nil && !strings.HasPrefix(name, "python") {
		t.Skip("left out: the readers of exports are not installed (npm install --prefix .ci/node " +
			"@duckdb/node-api@1.5.6-r.1 hyparquet@1.33.0 avsc@5.7.9)")
	}
	at, err := filepath.Abs(nodeModules)
	if err != nil {
		t.Fatal(err)
	}
	return exec.Command("node", append([]string{"testdata/readers/read.mjs", at, name}, args...)...)
}

func runReader(t *testing.T, name string, c *exec.Cmd, found any) {
	t.Helper()
	var said strings.Builder
	c.Stderr = &said
	out, err := c.Output()
	if err == nil {
		err = json.Unmarshal(out, found)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, said.String())
	}
}

type mood string

type inner struct {
	A int64
	B *string
}

type base struct{ Base string }

// A sample is a record with fields of all types that formats can hold. Its tags are the ones in the
// tables of docs/export.md.
type sample struct {
	base
	ID       int64
	Bool     bool
	Int      int
	I8       int8
	I16      int16
	I32      int32
	I64      int64
	U8       uint8
	U16      uint16
	U32      uint32
	U64      uint64
	Large    uint64 `avro:"-"` // may exceed an int64
	F32      float32
	F64      float64
	Text     string
	Mood     mood          `parquet:",enum"`
	Bytes    []byte        `parquet:",optional"`
	Fixed    [5]byte       `csv:"-" json:"-"`
	UUID     [16]byte      `csv:"-" json:"-" avro:",uuid" parquet:",uuid"`
	UUIDText string        `avro:",uuid" parquet:",uuid"`
	Micros   time.Time     `unit:"1000" avro:",timestamp-micros" parquet:",timestamp(microsecond)"`
	Millis   time.Time     `unit:"1000000" avro:",timestamp-millis" parquet:",timestamp(millisecond)"`
	Nanos    time.Time     `unit:"1" avro:",timestamp-nanos" parquet:",timestamp(nanosecond)"`
	Local    time.Time     `unit:"1000" avro:",local-timestamp-micros" parquet:",timestamp(microsecond:local)"`
	Day      time.Time     `unit:"86400000000000" avro:",date" parquet:",date"`
	OfDay    time.Duration `unit:"1000" avro:",time-micros" parquet:",time(microsecond)"`
	OfDay3   time.Duration `unit:"1000000" avro:",time-millis" parquet:",time(millisecond)"`
	Took     time.Duration `avro:"-"`
	Dict     string        `parquet:",dict"`
	Delta    int64         `parquet:",delta"`
	Split    float64       `parquet:",split"`
	Cents    int64         `parquet:",decimal(2:18)"`
	Dec      [9]byte       `csv:"-" json:"-" avro:"-" parquet:",decimal(2:20)"`
	Rat      *big.Rat      `csv:"-" json:"-" parquet:"-" avro:",decimal(30,4)"`
	Big      big.Int       `parquet:"-"`
	BigPtr   *big.Int      `parquet:"-"`
	Addr     netip.Addr    `parquet:"-"`

	NoBool  *bool
	NoInt   *int64
	NoF64   *float64
	NoText  *string
	NoTime  *time.Time `unit:"1000" avro:",timestamp-micros" parquet:",timestamp(microsecond)"`
	NoDay   *time.Time `unit:"86400000000000" avro:",date" parquet:",date"`
	NoInner *inner     `csv:"-"`
	NoNo    **int64

	Inner  inner              `csv:"-"`
	Ints   []int64            `csv:"-" parquet:",list"`
	Plain  []string           `csv:"-"`
	Inners []inner            `csv:"-" parquet:",list"`
	Matrix [][]int64          `csv:"-" parquet:",list"`
	Blobs  [][]byte           `csv:"-" parquet:",list"`
	Nulls  []*string          `csv:"-" parquet:",list" parquet-element:",optional"`
	MapInt map[string]int64   `csv:"-"`
	MapIn  map[string]*inner  `csv:"-"`
	MapAll map[string][]int64 `csv:"-" parquet-value:",list"`
	Raw    json.RawMessage    `csv:"-" json:"-" parquet:",json"`
}

var edges = []string{"", "", "null", "NULL", `\N`, `\.`, " before", "after ", "a,b", `"`, `""`, `a "b"`,
	"one\r\ntwo", "\r", "\n", "\t", "ä", "𝄞", "\u2028",
	"x\ufeff", "=1+1", "NaN", "true", "0", "'", `\`, "<&>"}

func randomText(r *rand.Rand) string {
	if r.IntN(2) == 0 {
		return edges[r.IntN(len(edges))]
	}
	runes := make([]rune, r.IntN(8))
	for i := range runes {
		if runes[i] = rune(1 + r.IntN(0x2ff)); r.IntN(20) == 0 {
			runes[i] = rune(0x10000 + r.IntN(0x1000))
		}
	}
	return string(runes)
}

func randomInt(r *rand.Rand, bits int) int64 {
	all := []int64{0, 1, -1, math.MaxInt64 >> (64 - bits), math.MinInt64 >> (64 - bits)}
	if i := r.IntN(10); i < len(all) {
		return all[i]
	}
	return int64(r.Uint64()) >> (64 - bits) >> r.IntN(bits)
}

func randomUint(r *rand.Rand, bits int) uint64 {
	return uint64(randomInt(r, bits)) << (64 - bits) >> (64 - bits)
}

func randomFloat(r *rand.Rand, format export.Format) float64 {
	all := []float64{0, math.Copysign(0, -1), 1, -1.5, math.MaxFloat64, math.SmallestNonzeroFloat64,
		math.NaN(), math.Inf(1), math.Inf(-1)}
	if format == export.JSONLines {
		all = all[:6]
	}
	if i := r.IntN(20); i < len(all) {
		return all[i]
	}
	return r.NormFloat64() * math.Pow(10, float64(r.IntN(40)-20))
}

// randomTime returns a random time in a random zone, as a multiple of the unit. Sometimes it is
// Go's zero time, or a limit of RFC 3339 or of nanoseconds in 64 bits.
func randomTime(r *rand.Rand, unit time.Duration) time.Time {
	all := []time.Time{{}, time.Unix(0, 0), time.Unix(-1, 999999999),
		time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC),
		time.Date(1, 1, 1, 0, 0, 0, 999000000, time.UTC), time.Date(1582, 10, 4, 0, 0, 0, 0, time.UTC)}
	at := time.Unix(-62135596800+r.Int64N(253402300799+62135596800), r.Int64N(1e9))
	if i := r.IntN(12); i < len(all) {
		at = all[i]
	}
	if unit == time.Nanosecond {
		at = time.Unix(0, randomInt(r, 64))
		if at.Year() < 1700 || at.Year() > 2200 { // DuckDB can't show these years
			at = time.Unix(0, int64(r.Int32())*1e9+int64(r.IntN(1e9)))
		}
	}
	at = at.UTC().Add(-time.Duration(at.Nanosecond() % int(min(unit, time.Second))))
	if unit > time.Second {
		return at.Truncate(unit)
	}
	if at.Year() > 1 && at.Year() < 9999 {
		at = at.In(time.FixedZone("", 60*(r.IntN(2*14*60)-14*60)))
	}
	return at
}

func maybe[T any](r *rand.Rand, v T) *T {
	if r.IntN(3) == 0 {
		return nil
	}
	return &v
}

func some[T any](r *rand.Rand, one func() T) []T {
	all := make([]T, r.IntN(4))
	for i := range all {
		all[i] = one()
	}
	return all
}

// decimalOf encodes a number as a decimal of 9 bytes in two's complement.
func decimalOf(n int64) (d [9]byte) {
	if n < 0 {
		d[0] = 0xff
	}
	binary.BigEndian.PutUint64(d[1:], uint64(n))
	return d
}

func randomSample(r *rand.Rand, id int64, format export.Format) sample {
	text := func() string { return randomText(r) }
	number := func() int64 { return randomInt(r, 64) }
	in := func() inner { return inner{number(), maybe(r, text())} }
	const hour = time.Hour
	s := sample{base: base{text()}, ID: id, Bool: r.IntN(2) == 0, Int: int(number()),
		I8: int8(randomInt(r, 8)), I16: int16(randomInt(r, 16)),
		I32: int32(randomInt(r, 32)), I64: number(), U8: uint8(randomUint(r, 8)), U16: uint16(randomUint(r,
			16)), U32: uint32(randomUint(r, 32)),
		U64: randomUint(r, 63), Large: randomUint(r, 64), F32: float32(r.NormFloat64()), F64: randomFloat(r,
			format), Text: text(), Mood: mood(text()),
		Bytes: []byte(text() + "\xff\x00"), Micros: randomTime(r, time.Microsecond), Millis: randomTime(r,
			time.Millisecond),
		Nanos: randomTime(r, 1), Local: randomTime(r, time.Microsecond), Day: randomTime(r, 24*hour),
		OfDay:  time.Duration(r.Int64N(int64(24 * hour))).Truncate(time.Microsecond),
		OfDay3: time.Duration(r.Int64N(int64(24 * hour))).Truncate(time.Millisecond),
		Took:   time.Duration(number()), Cents: number() % 1e18, Dec: decimalOf(number()), Dict: text(),
		Delta: number(), Split: randomFloat(r, format),
		NoBool: maybe(r, true), NoInt: maybe(r, number()),
		NoF64: maybe(r, randomFloat(r, format)), NoText: maybe(r, text()), NoTime: maybe(r,
			randomTime(r, time.Microsecond)),
		NoDay: maybe(r, randomTime(r, 24*hour)), NoInner: maybe(r, in()), Inner: in(), Ints: some(r,
			number), Plain: some(r, text),
		Inners: some(r, in), Matrix: some(r, func() []int64 { return some(r, number) }), Blobs: some(r,
			func() []byte { return []byte(text()) }),
		Nulls: some(r, func() *string {
			return maybe(r,
				text())
		}), MapInt: map[string]int64{}, MapIn: map[string]*inner{}, MapAll: map[string][]int64{},
		NoNo: maybe(r, maybe(r, number())),
		Raw:  json.RawMessage(`{"a":` + strconv.Itoa(r.IntN(100)) + `}`)}
	if r.IntN(5) == 0 {
		s.Bytes = [][]byte{nil, {}}[r.IntN(2)]
	}
	for i := range s.Fixed {
		s.Fixed[i] = byte(r.Uint32())
	}
	for i := range s.UUID {
		s.UUID[i] = byte(r.Uint32())
	}
	u := hex.EncodeToString(s.UUID[:])
	s.UUIDText = strings.Join([]string{u[:8], u[8:12], u[12:16], u[16:20], u[20:]}, "-")
	s.Rat = maybe(r, *big.NewRat(number(), 10000))
	s.Big.Mul(big.NewInt(number()), big.NewInt(number()))
	if r.IntN(2) == 0 {
		s.BigPtr = new(big.Int).Set(&s.Big)
	}
	if s.Addr = netip.AddrFrom4([4]byte(s.Fixed[:4])); r.IntN(2) == 0 {
		s.Addr = netip.AddrFrom16(s.UUID)
	}
	for range r.IntN(3) {
		s.MapInt[text()] = number()
		s.MapIn[text()] = maybe(r, in())
		s.MapAll[text()] = some(r, number)
	}
	return s
}

// canonical converts a value to the form in which readers print it. A struct is a list of pairs of
// a name and a value, and a number is an exact text.
func canonical(v reflect.Value, tag reflect.StructTag) any {
	unit, _ := strconv.ParseInt(tag.Get("unit"), 10, 64)
	switch x := v.Interface().(type) {
	case time.Time:
		at := x.UTC()
		if strings.Contains(string(tag), "local") {
			at = time.Date(x.Year(), x.Month(), x.Day(), x.Hour(), x.Minute(), x.Second(), x.Nanosecond(), time.UTC)
		}
		n := new(big.Int).Add(new(big.Int).Mul(big.NewInt(at.Unix()), big.NewInt(1e9)),
			big.NewInt(int64(at.Nanosecond())))
		return "n:" + n.Div(n, big.NewInt(unit)).String()
	case time.Duration:
		return fmt.Sprint("n:", int64(x)/max(unit, 1))
	case big.Int, big.Rat:
		p := reflect.New(v.Type())
		p.Elem().Set(v)
		if rat, ok := p.Interface().(*big.Rat); ok {
			return "n:" + new(big.Rat).Mul(rat, big.NewRat(10000, 1)).Num().String()
		}
		text, _ := p.Interface().(encoding.TextMarshaler).MarshalText()
		return "t:" + string(text)
	case encoding.TextMarshaler:
		if v.Kind() != reflect.Pointer {
			text, _ := x.MarshalText()
			return "t:" + string(text)
		}
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return canonical(v.Elem(), tag)
	case reflect.Bool:
		return v.Bool()
	case reflect.Float32, reflect.Float64:
		return canonicalFloat(v.Float())
	case reflect.String:
		return "t:" + v.String()
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			b := make([]byte, v.Len())
			reflect.Copy(reflect.ValueOf(b), v)
			return "b:" + hex.EncodeToString(b)
		}
		all := []any{}
		for i := range v.Len() {
			all = append(all, canonical(v.Index(i), ""))
		}
		return all
	case reflect.Map:
		all := []any{}
		keys := slices.SortedFunc(slices.Values(v.MapKeys()), func(a,
			b reflect.Value) int {
			return utf16Compare(a.String(), b.String())
		})
		for _, k := range keys {
			all = append(all, []any{"t:" + k.String(), canonical(v.MapIndex(k), "")})
		}
		return all
	case reflect.Struct:
		return columnsOf(v)
	}
	return fmt.Sprint("n:", v.Interface())
}

func columnsOf(v reflect.Value) []any {
	all := []any{}
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.Anonymous {
			all = append(all, columnsOf(v.Field(i))...)
		} else {
			all = append(all, []any{f.Name, canonical(v.Field(i), f.Tag)})
		}
	}
	return all
}

// utf16Compare compares strings by their UTF-16 code units, as JavaScript does.
func utf16Compare(a, b string) int { return slices.Compare(utf16Of(a), utf16Of(b)) }

func utf16Of(s string) (all []uint16) {
	for _, c := range s {
		if c >= 0x10000 {
			all = append(all, uint16(0xd800+(c-0x10000)>>10), uint16(0xdc00+(c-0x10000)&0x3ff))
		} else {
			all = append(all, uint16(c))
		}
	}
	return all
}

func canonicalFloat(f float64) any {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case f == 0 && math.Signbit(f):
		return "n:-0"
	case f == math.Trunc(f) && !math.IsInf(f, 0):
		n, _ := new(big.Float).SetFloat64(f).Int(nil)
		return "n:" + n.String()
	}
	return fmt.Sprintf("f:%016x", math.Float64bits(f))
}

// parsed converts a value that a reader has read from CSV or JSON to the type of the field.
func parsed(t *testing.T, got any, of reflect.Type, tag reflect.StructTag, format export.Format) any {
	t.Helper()
	isPointer := of.Kind() == reflect.Pointer
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	s, _ := got.(string)
	text, isText := strings.CutPrefix(s, "t:")
	number := func(v any, err error) any {
		if err != nil {
			t.Errorf("%q is no %v: %v", text, of, err)
		}
		return canonical(reflect.ValueOf(v).Convert(of), tag)
	}
	switch {
	case got == nil:
		return nil
	case of == reflect.TypeFor[time.Time]() && text != "":
		return number(time.Parse(time.RFC3339Nano, text))
	case of.Kind() == reflect.Slice && of.Elem().Kind() == reflect.Uint8:
		return number(base64.StdEncoding.DecodeString(text))
	case of == reflect.TypeFor[time.Duration](): // durations are integers in nanoseconds
		n, err := strconv.ParseInt(strings.TrimPrefix(strings.TrimPrefix(s, "t:"), "n:"), 10, 64)
		return number(n, err)
	case of == reflect.TypeFor[big.Int]() && !isText: // a big.Int is a number in JSON
		return "t:" + strings.TrimPrefix(s, "n:")
	case of.Kind() == reflect.Slice:
		all := []any{}
		for _, e := range got.([]any) {
			all = append(all, parsed(t, e, of.Elem(), "", format))
		}
		return all
	case of.Kind() == reflect.Map:
		return parsedMap(t, got.([]any), of, format)
	case (of.Kind() == reflect.Float32 || of.Kind() == reflect.Float64) && format == export.JSONLines:
		return number(floatOf(s))
	case format != export.CSV || !isText || text == "" && isPointer:
		return got
	}
	return parsedText(text, got, of, number)
}

// parsedMap converts the pairs of a key and a value that a reader returns for a map, and sorts them
// by key.
func parsedMap(t *testing.T, pairs []any, of reflect.Type, format export.Format) any {
	t.Helper()
	all := []any{}
	for _, pair := range pairs {
		p := pair.([]any)
		all = append(all, []any{"t:" + p[0].(string), parsed(t, p[1], of.Elem(), "", format)})
	}
	slices.SortFunc(all, func(a, b any) int { return utf16Compare(a.([]any)[0].(string), b.([]any)[0].(string)) })
	return all
}

// parsedText parses a cell of CSV, where all values are texts.
func parsedText(text string, got any, of reflect.Type, number func(any, error) any) any {
	switch {
	case of.Kind() == reflect.Bool:
		return number(strconv.ParseBool(text))
	case of.Kind() == reflect.Float32:
		return number(strconv.ParseFloat(text, 32))
	case of.Kind() == reflect.Float64:
		return number(strconv.ParseFloat(text, 64))
	case of.Kind() >= reflect.Int && of.Kind() <= reflect.Uint64:
		return "n:" + text
	}
	return got
}

// TestReaders exports random records with fields of all types in each format, and reads them with
// independent readers. Each record must equal the original, with its columns in the same order.
func TestReaders(t *testing.T) {
	seed := rand.Uint64()
	if of, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64); err == nil {
		seed = of
	}
	t.Logf("seed %d (SEED=%d go test ./export -run TestReaders)", seed, seed)
	count := 300
	for i, format := range []export.Format{export.Parquet, export.Avro, export.CSV, export.JSONLines} {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		compression := []export.Compression{export.Uncompressed, export.Gzip}[r.IntN(2)]
		if format == export.CSV || format == export.JSONLines {
			compression = export.Uncompressed
		}
		records := make([]sample, count)
		for id := range records {
			records[id] = randomSample(r, int64(id), format)
		}
		file := exportAll(t, export.Options{Format: format, Compression: compression, Files: 1}, records)
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, file, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, reader := range readers {
			if reader.format != format {
				continue
			}
			t.Run(reader.name, func(t *testing.T) {
				compare(t, reader, reader.read(t, path), records)
			})
		}
	}
}

// compare compares the rows that a reader has read with the records that were written.
func compare(t *testing.T, r reader, rows [][][2]any, records []sample) {
	t.Helper()
	if len(rows) != len(records) {
		t.Fatalf("%d records, want %d", len(rows), len(records))
	}
	fields := make(map[string]reflect.StructField)
	for _, f := range reflect.VisibleFields(reflect.TypeFor[sample]()) {
		fields[f.Name] = f
	}
	seen := make(map[string]bool)
	tag := map[export.Format]string{export.JSONLines: "json"}[r.format]
	if tag == "" {
		tag = string(r.format)
	}
	for _, row := range rows {
		got := make(map[string]any)
		for _, column := range row {
			name := column[0].(string)
			got[name] = column[1]
			if f := fields[name]; r.format == export.CSV || r.format == export.JSONLines {
				got[name] = parsed(t, column[1], f.Type, f.Tag, r.format)
			}
		}
		id, err := strconv.Atoi(strings.TrimPrefix(fmt.Sprint(got["ID"]), "n:"))
		if err != nil || seen[fmt.Sprint(id)] {
			t.Fatalf("the ID %v: %v", got["ID"], err)
		}
		seen[fmt.Sprint(id)] = true
		i := 0
		for _, pair := range canonical(reflect.ValueOf(records[id]), "").([]any) {
			name, want := pair.([]any)[0].(string), pair.([]any)[1]
			if fields[name].Tag.Get(tag) == "-" {
				continue
			}
			if i >= len(row) || row[i][0] != name {
				t.Fatalf("column %d is %v, want %s", i, row[min(i, len(row)-1)][0], name)
			}
			i++
			if slices.Contains(r.drops, name) {
				continue
			}
			have := got[name]
			want, have = lenient(r, name, want, have, records[id])
			if diff := cmp.Diff(plainJSON(want), plainJSON(have)); diff != "" {
				t.Errorf("record %d, %s: (-want +got)\n%s", id, name, diff)
			}
		}
		if i != len(row) {
			t.Errorf("%d columns, want %d: %v", len(row), i, slices.Collect(maps.Keys(got)))
		}
	}
}

// floatOf converts a number in JSON as readers do: to the nearest float64.
func floatOf(s string) (float64, error) {
	if bits, ok := strings.CutPrefix(s, "f:"); ok {
		n, err := strconv.ParseUint(bits, 16, 64)
		return math.Float64frombits(n), err
	}
	return strconv.ParseFloat(strings.TrimPrefix(s, "n:"), 64)
}

func plainJSON(v any) (plain any) {
	text, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(text, &plain)
	}
	if err != nil {
		return err.Error()
	}
	return plain
}

// lenient changes values before they are compared, if a format or a reader can't express their
// difference.
func lenient(r reader, name string, want, have any, s sample) (any, any) {
	switch {
	case name == "Bytes" && s.Bytes == nil && r.format != export.Avro:
		want = nil // in Avro, bytes are never null
	case name == "Raw" && r.format == export.Parquet:
		want = "t:" + string(s.Raw)
	case name == "Mood" && r.name == "hyparquet": // hyparquet returns enums as bytes
		want = "b:" + hex.EncodeToString([]byte(s.Mood))
	case name == "Dec":
		n := new(big.Int).SetBytes(s.Dec[:])
		if s.Dec[0] >= 0x80 {
			n.Sub(n, new(big.Int).Lsh(big.NewInt(1), 72))
		}
		want = "n:" + n.String()
	case strings.HasPrefix(name, "UUID") && !strings.HasPrefix(r.name, "python"):
		want = "b:" + hex.EncodeToString(s.UUID[:])
	}
	if r.name == "duckdb-parquet" {
		want = micros(name, want, have)
	}
	if r.name == "python-csv" && (have == "t:" || have == "b:") && want == nil {
		have = nil // Python's csv does not tell whether a cell has quotes
	}
	return want, have
}

// micros changes the expected value of a time, for a reader that rounds to microseconds.
func micros(name string, want, have any) any {
	unit := map[string]int64{"Millis": 1e6, "OfDay3": 1e6, "Nanos": 1}[name]
	units, ok := new(big.Int).SetString(strings.TrimPrefix(fmt.Sprint(want), "n:"), 10)
	if !ok || unit == 0 {
		return want
	}
	n := new(big.Int).Mul(big.NewInt(unit), units)
	n.Div(n, big.NewInt(1000))
	if text := "n:" + n.String(); name != "Nanos" || text == have || units.Sign() >= 0 {
		return text
	}
	return "n:" + n.Add(n, big.NewInt(1)).String() // the reader rounds towards 0
}

// exportAll exports records to one file, and returns its content.
func exportAll[R any](t *testing.T, o export.Options, records []R) (file []byte) {
	t.Helper()
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	x := must(export.New("all", bucket, func(_ context.Context, e *mapper.Entity[order], _ mapper.NoParams) (R, error) {
		return records[e.Key.ID-1], nil
	}, &o))
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		for i := range records {
			if _, err := w.Client.Put(t.Context(), datastore.IDKey("Order", int64(i+1), nil), &order{}); err != nil {
				t.Fatal(err)
			}
		}
		run, err := startIn(t, w, x, "all", "f")
		if err != nil {
			t.Fatal(err)
		}
		m, err := run.Wait(t.Context())
		if err != nil {
			failures, _, _ := run.Jobs()[0].FailuresPage(t.Context(), "")
			t.Fatal(err, failures)
		}
		if file, err = bucket.ReadAll(t.Context(), "f/"+m.Files[0].Name); err != nil {
			t.Fatal(err)
		}
	})
	return file
}

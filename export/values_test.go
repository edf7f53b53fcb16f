package export_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"context"

	"cloud.google.com/go/datastore"
	"gocloud.dev/blob/memblob"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

var everyFormat = []export.Format{export.JSONLines, export.JSON, export.CSV, export.Avro, export.Parquet}

// startOf returns the error of New or Start for records of type R. The engine is nil, because a
// type is refused before the engine is used.
func startOf[R any](t *testing.T, format export.Format) error {
	t.Helper()
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	x, err := export.New("one", bucket, func(context.Context, *mapper.Entity[order], mapper.NoParams) (R, error) {
		return *new(R), nil
	}, &export.Options{Format: format})
	if err != nil {
		return err
	}
	_, err = x.Start(t.Context(), nil, mapper.Query{Kind: "Order"}, mapper.NoParams{}, nil)
	if err != nil && strings.Contains(err.Error(), "there is no engine") {
		return nil // the type was accepted: the start got as far as the engine
	}
	return err
}

// refusedBy checks that the given formats refuse the type R of records when an export starts. The
// other formats must accept it.
func refusedBy[R any](t *testing.T, formats []export.Format, want ...string) {
	t.Helper()
	for _, format := range everyFormat {
		err := startOf[R](t, format)
		refused := false
		for _, f := range formats {
			refused = refused || f == format
		}
		if !refused {
			if err != nil {
				t.Errorf("%s: %v is refused: %v", format, *new(R), err)
			}
			continue
		}
		for _, w := range want {
			wantRefused(t, err, w)
		}
	}
}

type (
	marked struct{ N int } // MarshalJSON and MarshalText have pointer receivers
	outer  struct {
		Name string
		time.Time
	}
	timeIn   struct{ time.Time }
	hidden   struct{ n int } //nolint:unused // nobody sees it
	loop     []loop
	embedded struct{ Name string }
	pointed  struct{ *embedded }
)

func (m *marked) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, `"m%d"`, m.N), nil }
func (m *marked) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "m%d", m.N), nil }
func (m *marked) UnmarshalText(b []byte) error {
	_, err := fmt.Sscanf(string(b), "m%d", &m.N)
	return err
}
func (hidden) String() string { return "" }

// TestRefusedTypes checks that a start refuses types which the format can't hold, with an error
// that names the field. Other formats must accept these types.
func TestRefusedTypes(t *testing.T) {
	const jsonl, jsons, csv, avro, parquet = export.JSONLines, export.JSON, export.CSV, export.Avro, export.Parquet
	type formats = []export.Format
	all, js := formats{jsonl, jsons, csv, avro, parquet}, formats{jsonl, jsons}

	// Names: two fields have the same name, or names that differ only in case, at any depth.
	type twice struct {
		First string `csv:"name" avro:"name" parquet:"name"`
		Last  string `csv:"name" avro:"name" parquet:"name"`
	}
	refusedBy[twice](t, formats{csv, avro, parquet}, "fields First and Last of export_test.twice", `"name"`)
	type cases struct {
		A string `json:"id" csv:"id" avro:"id" parquet:"id"`
		B string `json:"ID" csv:"ID" avro:"ID" parquet:"ID"`
	}
	refusedBy[cases](t, all, "fields A and B of export_test.cases", `"id" and "ID"`)
	type tagged struct {
		Name  string
		Other string `json:"Name" csv:"Name" avro:"Name" parquet:"Name"`
	}
	refusedBy[tagged](t, all, "fields Name and Other")
	type above struct {
		embedded
		Name string
	}
	refusedBy[above](t, all, "fields embedded.Name and Name")
	type other struct{ Name string }
	type both struct {
		embedded
		other
	}
	refusedBy[both](t, all, "fields embedded.Name and other.Name")
	type within struct {
		All []twice `csv:"-"`
		N   int
	}
	refusedBy[within](t, formats{avro, parquet}, "field All of export_test.within", "First and Last")
	type apart struct {
		First string `json:"name" csv:"name" avro:"name" parquet:"name"`
		Last  string `json:"-" csv:"-" avro:"-" parquet:"-"`
	}
	refusedBy[apart](t, nil)
	type odd struct {
		A int `json:"a\"b"` //nolint:staticcheck // the name is on purpose
	}
	refusedBy[odd](t, js, "field A of export_test.odd", "name")

	// Types that have no value in a format.
	type channel struct {
		N int
		C chan int
	}
	refusedBy[channel](t, all, "field C of export_test.channel", "chan int")
	type deep struct {
		P *channel `csv:"-"`
		N int
	}
	refusedBy[deep](t, formats{jsonl, jsons, avro, parquet}, "field P of export_test.deep", "chan int")
	type complexes struct{ C []complex128 }
	refusedBy[complexes](t, all, "field C of", "complex128")
	type keys struct{ M map[[2]int]string }
	refusedBy[keys](t, all, "M")
	type unexported struct{ H hidden }
	refusedBy[unexported](t, all, "field H of")
	type loops struct{ L loop }
	refusedBy[loops](t, formats{csv, avro, parquet}, "field L of")
	type arrays struct{ A [3]int }
	refusedBy[arrays](t, formats{csv, parquet}, "field A of", "[3]int")
	type lists struct{ L [][]int }
	refusedBy[lists](t, formats{csv, parquet}, "field L of")
	type listed struct {
		L [][][]int `parquet:",list"`
	}
	refusedBy[listed](t, formats{csv}, "field L of")

	// Methods that encoding/json does not call in this place, or that come from an embedded field.
	type byValue struct{ M map[string]marked }
	refusedBy[byValue](t, formats{jsonl, jsons, csv}, "M")
	if err := startOf[byValue](t, jsonl); err == nil || !strings.Contains(err.Error(),
		"field M of export_test.byValue: the MarshalJSON of") {
		t.Error(err)
	}
	refusedBy[outer](t, formats{jsonl, jsons, avro, parquet}, "Time") // CSV writes the embedded time as a column
	type inOuter struct {
		O outer `avro:"-" parquet:"-"`
		N int
	}
	refusedBy[inOuter](t, formats{jsonl, jsons, csv}, "field O of export_test.inOuter",
		"its field Name would be left out")
	type inTime struct {
		O timeIn `avro:"-" parquet:"-"`
		N int
	}
	refusedBy[inTime](t, nil)
	refusedBy[pointed](t, formats{parquet}, "field embedded of export_test.pointed")

	// Times and durations to which no tag applies, or whose tag is for another type.
	type times struct {
		T []time.Time `avro:",timestamp-micros" parquet:",list"`
	}
	refusedBy[times](t, formats{csv, avro, parquet}, "field T of")
	if err := startOf[times](t, avro); err == nil || !strings.Contains(err.Error(), "no tag says") {
		t.Error(err)
	}
	type elements struct {
		T []time.Time `avro:"-" csv:"-" parquet:",list" parquet-element:",timestamp(microsecond)"`
		N int
	}
	refusedBy[elements](t, nil)
	type took struct{ D time.Duration }
	refusedBy[took](t, formats{avro}, "field D of export_test.took", "int64", "time of day")
	type zero struct {
		N int64 `parquet:",optional"`
	}
	refusedBy[zero](t, formats{parquet}, "field N of export_test.zero", "null", "*int64")
	type anything struct{ A any }
	refusedBy[anything](t, formats{csv, avro, parquet}, "field A of")
	type fits struct {
		A []byte            `parquet:",optional"`
		B []int             `csv:"-" parquet:",list,optional"`
		C map[string]string `csv:"-" parquet:",optional"`
		D *int64
	}
	refusedBy[fits](t, nil)
	type missing struct{}
	refusedBy[missing](t, formats{csv, parquet}, "has no fields")
	refusedBy[hidden](t, all, "fields")
	type around struct{ hidden }
	refusedBy[around](t, all, "fields")
	type nothing struct {
		A missing `csv:"-"`
		N int
	}
	refusedBy[nothing](t, formats{parquet}, "field A of", "has no fields")
}

type record[T any] struct{ V T }

type maß struct{ N int }

// TestSchemaTypes checks the errors for names that are invalid in Avro, and for lists and maps that
// Parquet's specification does not allow. They must say what to do.
func TestSchemaTypes(t *testing.T) {
	const csv, avro, parquet = export.CSV, export.Avro, export.Parquet
	type formats = []export.Format
	onlyAvro, inParquet, nested := formats{avro}, formats{parquet}, formats{csv, parquet}
	refusedBy[record[int]](t, onlyAvro, "record[int] is of a generic type", "`type Name record[…]`")
	type concrete record[int]
	refusedBy[concrete](t, nil)
	type within struct {
		All []record[string] `csv:"-"`
		N   int
	}
	refusedBy[within](t, onlyAvro, "field All of", "is of a generic type")
	refusedBy[maß](t, onlyAvro, "the name of export_test.maß")
	type null struct{ N int }
	refusedBy[null](t, onlyAvro, "the name of export_test.null", "give it another one")
	type fields struct{ Größe int }
	refusedBy[fields](t, onlyAvro, "field Größe of", "`avro:\"name\"`")
	type dashed struct {
		A int `avro:"my-name"`
	}
	refusedBy[dashed](t, onlyAvro, "field A of", `"my-name"`, "`avro:\"name\"`")
	type anonymous struct {
		A []struct{ N int } `csv:"-"`
		N int
	}
	refusedBy[anonymous](t, onlyAvro, "field A of", "has no name", "declare a type for it")

	type lists struct{ A map[string][]string }
	refusedBy[lists](t, nested, "field A of")
	if err := startOf[lists](t, parquet); err == nil || !strings.Contains(err.Error(), "`parquet-value:\",list\"`") {
		t.Error(err)
	}
	type deep struct {
		A []map[string][]string `csv:"-" parquet:",list"`
		N int
	}
	refusedBy[deep](t, inParquet, "field A of", "map of lists")
	type maps struct {
		A []map[string]int `csv:"-"`
		N int
	}
	refusedBy[maps](t, inParquet, "field A of", "`parquet:\",list\"`")
	type toList struct {
		A *[]string `csv:"-"`
		N int
	}
	refusedBy[toList](t, inParquet, "field A of", "pointer to a list", "`parquet:\",list,optional\"`")
	type toMap struct {
		A **map[string]int `csv:"-"`
		N int
	}
	refusedBy[toMap](t, inParquet, "field A of", "pointer to a map", "`parquet:\",optional\"`")
	type fits struct {
		A map[string][]string          `csv:"-" parquet-value:",list"`
		B []map[string]int             `csv:"-" parquet:",list"`
		C map[string]map[string]int    `csv:"-"`
		D map[string][][]string        `csv:"-" parquet-value:",list"`
		E map[string][]byte            `csv:"-"`
		F []struct{ All []string }     `csv:"-" avro:"-"`
		G map[string]struct{ A []int } `csv:"-" avro:"-"`
		N int
	}
	refusedBy[fits](t, nil)
	type pointers struct{ A, B ***int64 }
	n := int64(1)
	p, none := &n, (*int64)(nil)
	pp, toNone := &p, &none
	written(t, pointers{&pp, &toNone}, export.JSONLines, csv, avro, parquet)
}

// failureOf exports one record, and returns the error of the failure, or "".
func failureOf[R any](t *testing.T, format export.Format, record R) (failure string) {
	t.Helper()
	return failuresOf(t, record, format)[0]
}

// failuresOf exports one record in each of several formats, all in one world. It returns the error of
// the failure in each format, or "".
func failuresOf[R any](t *testing.T, record R, formats ...export.Format) []string {
	t.Helper()
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	exports := make([]*export.Export[mapper.NoParams], len(formats))
	var mappers []mapper.AnyMapper
	for i, format := range formats {
		exports[i] = must(export.New(fmt.Sprint("one-", i), bucket, func(context.Context, *mapper.Entity[order],
			mapper.NoParams) (R, error) {
			return record, nil
		}, &export.Options{Format: format, AllowFailures: true}))
		mappers = append(mappers, exports[i].Mappers()...)
	}
	said := make([]string, len(formats))
	mappertest.Run(t, mappers, nil, func(t *testing.T, w *mappertest.Env) {
		if _, err := w.Client.Put(t.Context(), datastore.IDKey("Order", 1, nil), &order{}); err != nil {
			t.Fatal(err)
		}
		for i, x := range exports {
			run, err := startIn(t, w, x, fmt.Sprint("one-", i), fmt.Sprint("f-", i))
			if err != nil {
				t.Fatal(formats[i], err)
			}
			if _, err = run.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			failures, _, err := run.Jobs()[0].FailuresPage(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range failures {
				said[i] = f.Error
			}
		}
	})
	return said
}

// failing checks that a record becomes a failure in the given formats, with an error that names the
// field.
func failing[R any](t *testing.T, record R, field string, formats ...export.Format) {
	t.Helper()
	for i, said := range failuresOf(t, record, formats...) {
		if !strings.Contains(said, "field "+field+": ") || strings.Contains(said, "secret") {
			t.Errorf("%s: %T fails with %q, want an error that names the field %s", formats[i], record, said, field)
		}
	}
}

func written[R any](t *testing.T, record R, formats ...export.Format) {
	t.Helper()
	for i, said := range failuresOf(t, record, formats...) {
		if said != "" {
			t.Errorf("%s: %T fails with %q", formats[i], record, said)
		}
	}
}

// TestRefusedValues checks that an entity becomes a failure if the format can't hold a value of its
// record. The error must name the field, and must not contain the value.
func TestRefusedValues(t *testing.T) {
	const jsonl, csv, avro, parquet = export.JSONLines, export.CSV, export.Avro, export.Parquet
	type floats struct {
		F  float64
		In struct{ All []float32 } `csv:"-" avro:"-"`
	}
	failing(t, floats{F: math.NaN()}, "F", jsonl)
	failing(t, floats{F: math.Inf(-1)}, "F", jsonl)
	infinite := floats{}
	infinite.In.All = []float32{0, float32(math.Inf(1))}
	failing(t, infinite, "In.All[1]", jsonl)
	written(t, floats{F: math.NaN()}, csv, avro, parquet)

	type texts struct {
		T string
		P *string
	}
	bad := "secret\xff"
	failing(t, texts{T: bad}, "T", jsonl, csv, avro, parquet)
	failing(t, texts{P: &bad}, "P", jsonl, csv, avro, parquet)
	type maps struct{ M map[string]string }
	failing(t, maps{map[string]string{bad: ""}}, "M", jsonl, avro)
	failing(t, maps{map[string]string{bad: ""}}, "M[…]", parquet)
	failing(t, maps{map[string]string{"a": bad}}, "M[…]", jsonl, avro, parquet)
	type dynamic struct{ A any }
	failing(t, dynamic{map[string]any{"a": []any{1, bad}}}, "A[…][1]", jsonl)
	failing(t, dynamic{make(chan int)}, "A", jsonl)
	type raw struct {
		R json.RawMessage `parquet:",json"`
		N json.Number     `avro:"-"`
	}
	failing(t, raw{R: json.RawMessage(`{"secret"`), N: "1"}, "R", jsonl, parquet)
	failing(t, raw{R: json.RawMessage(`1`)}, "N", jsonl) // the empty N fails, because encoding/json would write 0

	// Times that a format can't hold.
	type micros struct {
		T time.Time `avro:",timestamp-micros" parquet:",timestamp(microsecond)"`
	}
	fine := time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.UTC)
	failing(t, micros{fine}, "T", avro, parquet)
	written(t, micros{fine}, jsonl, csv)
	written(t, micros{}, jsonl, csv, avro, parquet)
	failing(t, micros{time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}, "T", jsonl, csv)
	failing(t, micros{time.Date(300000, 1, 1, 0, 0, 0, 0, time.UTC)}, "T", jsonl, csv, avro, parquet)
	failing(t, micros{time.Date(1890, 1, 1, 0, 0, 0, 0, time.FixedZone("LMT", 3208))}, "T", jsonl, csv)
	type nanos struct {
		T time.Time `avro:",timestamp-nanos" parquet:",timestamp(nanosecond)"`
	}
	for _, at := range []time.Time{{}, time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC),
		time.Unix(0, math.MaxInt64).Add(1), time.Unix(0, math.MinInt64).Add(-1)} {
		failing(t, nanos{at}, "T", avro, parquet)
	}
	for _, at := range []time.Time{fine, time.Unix(0, math.MaxInt64), time.Unix(0, math.MinInt64)} {
		written(t, nanos{at}, avro, parquet)
	}
	type millis struct {
		T *time.Time `avro:",timestamp-millis" parquet:",timestamp(millisecond)"`
	}
	failing(t, millis{&fine}, "T", avro, parquet)
	type days struct {
		T time.Time `avro:",date" parquet:",date"`
	}
	failing(t, days{fine}, "T", avro, parquet)
	failing(t, days{time.Date(2026, 1, 2, 0, 0, 0, 0, time.FixedZone("", 3600))}, "T", avro, parquet)

	// Durations that are not a time of day.
	type ofDay struct {
		D time.Duration `avro:",time-micros" parquet:",time(microsecond)"`
	}
	for _, d := range []time.Duration{-1000, 24 * time.Hour, 36 * time.Hour, 1500} {
		failing(t, ofDay{d}, "D", avro, parquet)
	}
	written(t, ofDay{24*time.Hour - time.Microsecond}, avro, parquet)

	// Numbers that a format can't hold.
	type unsigned struct{ U uint64 }
	failing(t, unsigned{1 << 63}, "U", avro)
	written(t, unsigned{math.MaxUint64}, jsonl, csv, parquet)
	type narrow struct {
		N int64 `parquet:",int(8)"`
		U int   `parquet:",uint(16)"`
		D int64 `parquet:",decimal(2:10)"`
	}
	failing(t, narrow{N: 128}, "N", parquet)
	failing(t, narrow{U: -1}, "U", parquet)
	failing(t, narrow{D: 1e10}, "D", parquet)
	written(t, narrow{-128, 65535, 1e10 - 1}, parquet)
	type decimals struct {
		R *big.Rat `avro:",decimal(5,2)"`
	}
	failing(t, decimals{big.NewRat(1, 3)}, "R", avro)
	failing(t, decimals{big.NewRat(100000, 100)}, "R", avro)
	type precise struct{ F *big.Float }
	written(t, precise{big.NewFloat(1234.5)}, jsonl, csv, avro)

	// Nil in places where a format has no null.
	type list struct{ L []*int64 }
	failing(t, list{[]*int64{nil}}, "L[0]", parquet)
	written(t, list{[]*int64{nil}}, jsonl, avro)
	type inner struct{ N int }
	type pointer struct{ *inner }
	failing(t, pointer{}, "N", avro)
	written(t, pointer{}, jsonl, csv)
	type circle struct {
		N    int
		Next *circle
	}
	c := &circle{}
	c.Next = c
	for _, format := range []export.Format{jsonl, avro} {
		if said := failureOf(t, format, *c); !strings.Contains(said, "deep") {
			t.Errorf("%s: %q", format, said)
		}
	}
}

// TestPointerMethods checks that methods with pointer receivers are called. By default
// encoding/json writes {} for a field of type big.Int.
func TestPointerMethods(t *testing.T) {
	type record struct {
		Big  big.Int
		Mark marked
		All  []marked
	}
	r := record{Mark: marked{7}, All: []marked{{8}}}
	r.Big.SetString("123456789012345678901234567890", 10)
	file, err := one(t, export.Options{}, r)
	if want := `{"Big":123456789012345678901234567890,"Mark":"m7","All":["m8"]}` + "\n"; err != nil ||
		string(file) != want {
		t.Errorf("%q, want %q; %v", file, want, err)
	}
}

// TestNullCells checks that null and the empty text differ in CSV, in every column of a line. A
// file must not mix such lines with lines of an older build, which did not distinguish them.
func TestNullCells(t *testing.T) {
	type cells struct {
		A *string
		B []byte
		C *marked
		D string
	}
	empty := ""
	for want, record := range map[string]cells{
		",,,\"\"\r\n":        {},
		"\"\",\"\",m1,a\r\n": {&empty, []byte{}, &marked{1}, "a"},
		",\"\",,\" a\"\r\n":  {B: []byte{}, D: " a"},
	} {
		file, err := one(t, export.Options{Format: export.CSV}, record)
		if err != nil || string(file) != "A,B,C,D\r\n"+want {
			t.Errorf("%q, want %q; %v", file, want, err)
		}
	}
	type single struct{ A *string }
	file, err := one(t, export.Options{Format: export.CSV}, single{})
	if err != nil || string(file) != "A\r\n\r\n" {
		t.Errorf("%q; %v", file, err)
	}
	type flat struct {
		embedded
		N int
	}
	file, err = one(t, export.Options{Format: export.CSV}, flat{embedded{"a"}, 1})
	if err != nil || string(file) != "Name,N\r\na,1\r\n" {
		t.Errorf("%q; %v", file, err)
	}
}

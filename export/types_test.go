package export_test

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"math/big"
	"net/netip"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"
	"github.com/twmb/avro/ocf"
	"gocloud.dev/blob/memblob"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// one exports one record, and returns the file, or the error of the failure.
func one[R any](t *testing.T, o export.Options, record R) (file []byte, failed error) {
	t.Helper()
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	x, err := export.New("one", bucket, func(context.Context, *mapper.Entity[order], mapper.NoParams) (R, error) {
		return record, nil
	}, &o)
	if err != nil {
		return nil, err
	}
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		_, err := w.Client.Put(t.Context(), datastore.IDKey("Order", 1, nil), &order{})
		if err != nil {
			t.Fatal(err)
		}
		run, err := startIn(t, w, x, "one", "f")
		if err != nil {
			failed = err
			return
		}
		m, err := run.Wait(t.Context())
		if err == nil {
			file, err = bucket.ReadAll(t.Context(), "f/"+m.Files[0].Name)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	return file, failed
}

// refused checks that records of a type are refused, with an error that names the field.
func refused[R any](t *testing.T, format export.Format, want ...string) {
	t.Helper()
	_, err := one(t, export.Options{Format: format}, *new(R))
	for _, w := range want {
		wantRefused(t, err, w)
	}
}

// TestTypes checks that a start refuses a type if the format would silently drop a part of its
// values. Values of other types must be read back unchanged.
func TestTypes(t *testing.T) {
	type address struct {
		A netip.Addr
		B int
	}
	type number struct{ A *big.Int }
	type anything struct{ A any }
	type circle struct {
		A    int
		Next *circle
	}
	type inside struct{ C []circle }
	refused[address](t, export.Parquet, "field A of export_test.address", "netip.Addr")
	refused[number](t, export.Parquet, "field A of", "big.Int")
	refused[anything](t, export.Parquet, "field A of", "interface {}")
	refused[anything](t, export.Avro, "field A of", "interface {}")
	refused[circle](t, export.Parquet, "circle is inside itself")
	refused[inside](t, export.Parquet, "field C of", "circle is inside itself")
	refused[struct{ A int }](t, export.Avro, "whose type has a name")
	refused[int](t, export.Parquet, "are structs")

	// Types with times and durations, for which a tag must give the precision.
	type bare struct{ At time.Time }
	type other struct {
		At time.Time `avro:"at,omitzero" parquet:"at,optional"`
	}
	type short struct {
		At time.Time `parquet:"at,timestamp"`
	}
	type byName struct {
		At map[string]time.Time `avro:"at,timestamp-micros" parquet:"at,timestamp(microsecond)"`
	}
	type within struct{ All []*bare }
	type took struct{ Took time.Duration }
	for _, format := range []export.Format{export.Avro, export.Parquet} {
		tag := map[export.Format]string{export.Avro: "timestamp-micros",
			export.Parquet: "timestamp(microsecond)"}[format]
		refused[bare](t, format, "field At of", tag)
		refused[other](t, format, "field At of", tag)
		refused[byName](t, format, "field At of", "no tag says")
		refused[within](t, format, "field All of", "field At of", tag)
	}
	refused[short](t, export.Parquet, "field At of")
	refused[took](t, export.Avro, "field Took of", "time-micros")

	type all struct {
		Text   string
		Raw    json.RawMessage
		Amount uint32
		Times  *time.Time    `avro:"times,timestamp-micros" parquet:"times,timestamp(microsecond)"`
		Took   time.Duration `avro:"took,time-micros" parquet:"took"`
		Lists  []string
		Left   any `avro:"-" parquet:"-"`
	}
	record := all{Text: "a", Raw: json.RawMessage(`{"b":1}`), Amount: 1 << 31, Times: &begun,
		Took: 5 * time.Microsecond, Lists: []string{"x", ""}}
	file, err := one(t, export.Options{Format: export.Parquet}, record)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := parquet.Read[all](bytes.NewReader(file), int64(len(file)))
	if err != nil || len(rows) != 1 || cmp.Diff(rows[0], record) != "" {
		t.Errorf("Parquet has %+v, want %+v; %v", rows, record, err)
	}
	if file, err = one(t, export.Options{Format: export.Avro}, record); err != nil {
		t.Fatal(err)
	}
	r, err := ocf.NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	var got all
	if err := r.Decode(&got); err != nil || cmp.Diff(got, record) != "" {
		t.Errorf("Avro has %+v, want %+v; %v", got, record, err)
	}
	if _, err := one(t, export.Options{Format: export.Avro}, circle{1, &circle{}}); err != nil {
		t.Errorf("Avro has types that are inside themselves: %v", err)
	}
	if _, err := one(t, export.Options{Format: export.Avro}, address{A: netip.MustParseAddr("10.0.0.1")}); err != nil {
		t.Errorf("Avro has texts: %v", err)
	}
}

type (
	tree struct {
		N    int
		Left *tree
	}
	node struct {
		N    int
		Kids []node
	}
	ring   struct{ By map[string][]*ring }
	listOf []listOf
)

// TestInsideThemselves writes values of recursive types to Avro, up to 1,000 levels deep. The other
// formats must refuse these types.
func TestInsideThemselves(t *testing.T) {
	type forest struct {
		Value   tree
		Pointer *tree
		Twice   **tree
		Slice   []node
		Pointed []*node
		Array   [1]node
		Map     map[string]*tree
		Ring    map[string][]*ring
	}
	type lists struct{ L listOf }
	leaf := &tree{3, &tree{N: 4}}
	record := forest{
		Value: *leaf, Pointer: leaf, Twice: &leaf, Slice: []node{{1, []node{{2, []node{}}}}},
		Pointed: []*node{{1, []node{}}},
		Array:   [1]node{{1, []node{}}}, Map: map[string]*tree{"a": leaf},
		Ring: map[string][]*ring{"a": {{By: map[string][]*ring{}}}},
	}
	file, err := one(t, export.Options{Format: export.Avro}, record)
	if err != nil {
		t.Fatal(err)
	}
	r, err := ocf.NewReader(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	var got forest
	if err := r.Decode(&got); err != nil || cmp.Diff(got, record) != "" {
		t.Errorf("%v: %s", err, cmp.Diff(got, record))
	}
	deep := func(levels int) *tree {
		var top *tree
		for range levels {
			top = &tree{Left: top}
		}
		return top
	}
	if _, err := one(t, export.Options{Format: export.Avro}, *deep(1000)); err != nil {
		t.Errorf("1,000 levels: %v", err)
	}
	refused[lists](t, export.Avro, "field L of", "inside itself")
	refused[forest](t, export.Parquet, "tree is inside itself")
}

// TestLineEnds checks that line ends inside values of CSV stay unchanged.
func TestLineEnds(t *testing.T) {
	type cells struct{ A, B string }
	file, err := one(t, export.Options{Format: export.CSV}, cells{"a\rb\nc\r\n", "d"})
	if want := "A,B\r\n\"a\rb\nc\r\n\",d\r\n"; err != nil || string(file) != want {
		t.Errorf("the file is %q, want %q; %v", file, want, err)
	}
	// Go's csv.Reader changes line ends inside values.
	rows, err := csv.NewReader(strings.NewReader(strings.ReplaceAll(string(file), "c\r\n", "c"))).ReadAll()
	if err != nil || len(rows) != 2 || rows[1][0] != "a\rb\nc" {
		t.Errorf("%q, %v", rows, err)
	}
}

// TestEmptyFiles checks that a file without records is valid in each format.
func TestEmptyFiles(t *testing.T) {
	for _, compression := range []export.Compression{export.Gzip, export.Zstd} {
		bucket := memblob.OpenBucket(nil)
		defer bucket.Close()
		x := newExport(bucket, &export.Options{Compression: compression, Files: 3})
		mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
			if _, err := w.Client.Put(t.Context(), datastore.IDKey("Order", 1, nil), &order{N: 1}); err != nil {
				t.Fatal(err)
			}
			m := runExport(t, w, x)
			if len(m.Files) != 3 || m.Records != 1 {
				t.Errorf("%+v", m)
			}
			records := 0
			for _, f := range m.Files {
				if f.Bytes == 0 {
					t.Errorf("%s has no bytes", f.Name)
				}
				records += len(readLines(t, m, bucket, f.Name))
			}
			if records != 1 {
				t.Errorf("%d records", records)
			}
		})
	}
}

// TestNilGroup writes a record in which the pointer to the struct with a map and a list is nil.
func TestNilGroup(t *testing.T) {
	type inner struct {
		M map[string]int64
		L []int64
	}
	type outer struct{ P *inner }
	written(t, outer{}, export.Parquet, export.JSONLines)
	written(t, outer{&inner{}}, export.Parquet, export.JSONLines)
	written(t, outer{&inner{map[string]int64{"a": 1}, []int64{1}}}, export.Parquet, export.JSONLines)
}

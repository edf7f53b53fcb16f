package export

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
)

// TestRowGroups checks the groups of rows in a Parquet file, which a task holds in memory. A group
// must end when it has reached the maximum size. Until then, it must take the rows of several
// parts.
func TestRowGroups(t *testing.T) {
	type record struct{ A string }
	p, err := parquetEncoding[record](Uncompressed)
	if err != nil {
		t.Fatal(err)
	}
	row, err := p.encode(record{strings.Repeat("a", 100_000)})
	if err != nil {
		t.Fatal(err)
	}
	part, err := p.part([]any{row})
	if err != nil {
		t.Fatal(err)
	}
	size, err := p.add(p.writer(io.Discard), io.NopCloser(bytes.NewReader(part)))
	if err != nil || size < 100_000 {
		t.Fatalf("a part has %d bytes, %v", size, err)
	}
	join := func(w io.Writer) error {
		n := 0
		return p.join(w, File{}, func() (io.ReadCloser, error) {
			if n++; n > 5 {
				return nil, io.EOF
			}
			return io.NopCloser(bytes.NewReader(part)), nil
		})
	}
	for most, want := range map[int64][]int64{
		size: {1, 1, 1, 1, 1}, size + 1: {2, 2, 1}, 2 * size: {2, 2, 1}, 2*size + 1: {3, 2}, 1 << 30: {5},
	} {
		p.group = most
		var file bytes.Buffer
		if err := join(&file); err != nil {
			t.Fatal(err)
		}
		f, err := parquet.OpenFile(bytes.NewReader(file.Bytes()), int64(file.Len()))
		if err != nil {
			t.Fatal(err)
		}
		var got []int64
		for _, g := range f.RowGroups() {
			got = append(got, g.NumRows())
		}
		if !slices.Equal(got, want) {
			t.Errorf("groups of up to %d bytes have %v rows, want %v", most, got, want)
		}
	}
	p.group = size
	breakEachWrite(t, join)
}

// breakEachWrite lets each write of a join fail, one after the other. The join must return the
// error.
func breakEachWrite(t *testing.T, join func(io.Writer) error) {
	t.Helper()
	calls := &pipe{1 << 30}
	if err := join(calls); err != nil {
		t.Fatal(err)
	}
	for n := range 1<<30 - calls.left {
		if err := join(&pipe{n}); !errors.Is(err, errPipe) {
			t.Errorf("%v after %d writes, want an error", err, n)
		}
	}
}

// TestFullRowGroups lets writes fail in a file whose parts have more rows than a group may have.
// The join must return the error.
func TestFullRowGroups(t *testing.T) {
	p, err := parquetEncoding[oneField](Uncompressed)
	if err != nil {
		t.Fatal(err)
	}
	rows := make([]any, rowGroup/4)
	for i := range rows {
		if rows[i], err = p.encode(oneField{int64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	part, err := p.part(rows)
	if err != nil {
		t.Fatal(err)
	}
	join := func(w io.Writer) error {
		n := 0
		return p.join(w, File{}, func() (io.ReadCloser, error) {
			if n++; n > 5 {
				return nil, io.EOF
			}
			return io.NopCloser(bytes.NewReader(part)), nil
		})
	}
	var file bytes.Buffer
	if err := join(&file); err != nil {
		t.Fatal(err)
	}
	f, err := parquet.OpenFile(bytes.NewReader(file.Bytes()), int64(file.Len()))
	if err != nil || len(f.RowGroups()) != 2 || f.RowGroups()[0].NumRows() != rowGroup {
		t.Errorf("%v, want two groups, the first of %d rows", err, rowGroup)
	}
	breakEachWrite(t, join)
}

// TestNoParquetSchema checks that types for which package parquet has no schema are refused.
func TestNoParquetSchema(t *testing.T) {
	type tagged struct {
		A int `parquet:",uuid"`
	}
	refusedIn[tagged](t, []Format{Parquet}, "export.tagged has no Parquet schema")
	type none struct {
		A int `parquet:"-"`
	}
	refusedIn[none](t, []Format{Parquet}, "export.none has no fields")
	if fmt.Sprint(parquetCodecs[Gzip], parquetCodecs[Zstd], parquetCodecs[Uncompressed]) != "GZIP ZSTD UNCOMPRESSED" {
		t.Error("compressions have other codecs")
	}
}

// TestBoundsOfGroups checks the bounds of pages in a file of several groups. A page of decimals has
// the least and the greatest number as bounds, and a page of nulls has none.
func TestBoundsOfGroups(t *testing.T) {
	type record struct {
		Dec [2]byte  `parquet:",decimal(0:4)"`
		Opt *[2]byte `parquet:",decimal(0:4)"`
		Fix *[3]byte
	}
	p, err := parquetEncoding[record](Uncompressed)
	if err != nil {
		t.Fatal(err)
	}
	p.group = 1 // each part has its own
	parts := [][]record{
		{{Fix: &[3]byte{1, 2, 3}}, {Dec: [2]byte{0xff, 0xff}, Fix: &[3]byte{0, 9, 9}}, {}},
		{{Opt: &[2]byte{0, 1}}, {}},
	}
	var file bytes.Buffer
	err = p.join(&file, File{}, func() (io.ReadCloser, error) {
		if len(parts) == 0 {
			return nil, io.EOF
		}
		var rows []any
		for _, r := range parts[0] {
			row, err := p.encode(r)
			if err != nil {
				return nil, err
			}
			rows = append(rows, row)
		}
		parts = parts[1:]
		part, err := p.part(rows)
		return io.NopCloser(bytes.NewReader(part)), err
	})
	if err != nil {
		t.Fatal(err)
	}
	f, err := parquet.OpenFile(bytes.NewReader(file.Bytes()), int64(file.Len()))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, x := range f.ColumnIndexes() {
		got = append(got, fmt.Sprintf("%t %d %x %x", x.NullPages, x.NullCounts, x.MinValues, x.MaxValues))
	}
	want := []string{
		"[false] [0] [8000] [7fff]", "[true] [3] [] []", "[false] [1] [000909] [010203]",
		"[false] [0] [8000] [7fff]", "[false] [1] [8000] [7fff]", "[true] [2] [] []",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the bounds are %q, want %q", got, want)
	}
}

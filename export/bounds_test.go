package export_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/scattermap/scattermap/export"
)

// bounded is a record with columns of fixed-length bytes. Parquet readers use the bounds (minimum
// and maximum) of such columns to skip rows.
type bounded struct {
	ID   int64
	Dec  [9]byte   `parquet:",decimal(2:20)"`
	Dict [9]byte   `parquet:",decimal(2:20),dict"`
	List [][9]byte `parquet:",list" parquet-element:",decimal(2:20)"`
	Opt  *[9]byte  `parquet:",decimal(2:20)"`
	UUID [16]byte  `parquet:",uuid"`
	None *[16]byte
	Fix  *[20]byte
	Left *[5]byte
}

// TestBounds compares the bounds in a Parquet file with the values, also for signed decimals and
// for pages of nulls. It checks that queries give the same results with and without bounds.
func TestBounds(t *testing.T) {
	values := []int64{0, -5, 7, -300, 12, 1 << 40, -1 << 40}
	records := make([]bounded, len(values))
	for i, v := range values {
		d := decimalOf(v)
		records[i] = bounded{ID: int64(i), Dec: d, Dict: d, List: [][9]byte{d}, Opt: &d, UUID: [16]byte{byte(v), 1}}
		if i%2 == 0 {
			records[i].Fix = &[20]byte{byte(200 + i)}
		}
	}
	file := exportAll(t, export.Options{Format: export.Parquet, Files: 1}, records)
	f, err := parquet.OpenFile(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	wantBounds(t, f)
	path := filepath.Join(t.TempDir(), "file.parquet")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, column := range []string{"Dec", "Dict", "Opt"} {
		for op, meets := range map[string]func(v int64) bool{
			"<": func(v int64) bool { return v < 0 }, ">": func(v int64) bool { return v > 0 },
		} {
			var want []int
			for i, v := range values {
				if meets(v) {
					want = append(want, i)
				}
			}
			query := map[string]string{"<": "$lt", ">": "$gt"}[op]
			for reader, condition := range map[string]string{"query-hyparquet": fmt.Sprintf(`{%q: {%q: 0}}`, column,
				query),
				"query-duckdb": column + op + "0"} {
				t.Run(reader+column+op, func(t *testing.T) {
					var got []int
					runReader(t, reader, nodeReader(t, reader, path, condition), &got)
					if !slices.Equal(got, want) {
						t.Errorf("%s %s 0 finds %v, want %v", column, op, got, want)
					}
				})
			}
		}
	}
}

// wantBounds checks the bounds in a file. Each page has bounds, unless it has only nulls. In groups
// of rows, decimals have no bounds.
func wantBounds(t *testing.T, f *parquet.File) {
	t.Helper()
	for i, index := range f.ColumnIndexes() {
		pages := len(f.OffsetIndexes()[i].PageLocations)
		column := f.Schema().Columns()[i%len(f.Schema().Columns())]
		if len(index.NullPages) != pages || len(index.MinValues) != pages || len(index.MaxValues) != pages {
			t.Errorf("%v has %d pages, and bounds of %d and %d", column, pages, len(index.MinValues),
				len(index.MaxValues))
			continue
		}
		for j, null := range index.NullPages {
			if null != (len(index.MinValues[j]) == 0) && column[0] != "ID" {
				t.Errorf("page %d of %v has the bounds %x and %x", j, column, index.MinValues[j], index.MaxValues[j])
			}
		}
	}
	for _, c := range f.Metadata().RowGroups[0].Columns {
		name, s := c.MetaData.PathInSchema[0], c.MetaData.Statistics
		if decimal := slices.Contains([]string{"Dec", "Dict", "List", "Opt"}, name); decimal != (s.MinValue == nil) &&
			name != "None" && name != "Left" {
			t.Errorf("%s has the bounds %x and %x", name, s.MinValue, s.MaxValue)
		}
	}
}

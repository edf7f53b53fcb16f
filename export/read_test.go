package export_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"
	"github.com/twmb/avro/ocf"
	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// TestFormats exports in each format and compression, and reads the files with other libraries than
// the ones that write them.
func TestFormats(t *testing.T) {
	for _, format := range []export.Format{export.JSONLines, export.JSON, export.CSV, export.Avro, export.Parquet} {
		for _, compression := range []export.Compression{export.Uncompressed, export.Gzip, export.Zstd} {
			t.Run(fmt.Sprintf("%s/%s", format, compression), func(t *testing.T) {
				bucket := memblob.OpenBucket(nil)
				defer bucket.Close()
				x := newExport(bucket, &export.Options{Format: format, Compression: compression, Files: 3})
				mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
					putOrders(t, w.Client)
					m := runExport(t, w, x)
					if len(m.Files) != 3 {
						t.Errorf("%d files, want 3", len(m.Files))
					}
					checkRecords(t, bucket, m)
					checkTidy(t, w.Client, bucket, m)
				})
			})
		}
	}
}

// checkRecords checks that the files of a manifest together have each record once.
func checkRecords(t *testing.T, bucket *blob.Bucket, m *export.Manifest) {
	t.Helper()
	seen := make(map[int64]int)
	records := int64(0)
	for _, f := range m.Files {
		lines := readLines(t, m, bucket, f.Name)
		if int64(len(lines)) != f.Records {
			t.Errorf("%s has %d records, and the manifest says %d", f.Name, len(lines), f.Records)
		}
		for _, l := range lines {
			if want := lineOf(l.N); l.Name != want.Name || !l.At.Equal(want.At) {
				t.Fatalf("%s: record %+v, want %+v", f.Name, l, want)
			}
			seen[l.N]++
		}
		records += f.Records
	}
	for n := range int64(orders) {
		want := 1
		if n%100 == 7 {
			want = 0
		}
		if seen[n] != want {
			t.Errorf("record %d is there %d times, want %d", n, seen[n], want)
		}
	}
	if m.Coverage == nil || m.Coverage.Pending > 0 || m.Coverage.Ranges == 0 || len(m.Coverage.Problems) > 0 {
		t.Errorf("the coverage is %+v", m.Coverage)
	}
	if m.Records != records {
		t.Errorf("the manifest has %d records, and its files %d", m.Records, records)
	}
}

// readLines reads a file of a manifest with a library for its format, and returns its records.
func readLines(t *testing.T, m *export.Manifest, bucket *blob.Bucket, name string) (all []line) {
	t.Helper()
	return readLinesIn(t, folder, m, bucket, name)
}

func readLinesIn(t *testing.T, folder string, m *export.Manifest, bucket *blob.Bucket, name string) (all []line) {
	t.Helper()
	fail := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	text, err := bucket.ReadAll(t.Context(), folder+"/"+name)
	fail(err)
	sum := sha256.Sum256(text)
	for _, f := range m.Files {
		if f.Name == name && (f.Bytes != int64(len(text)) || f.SHA256 != hex.EncodeToString(sum[:])) {
			t.Errorf("%s has %d bytes, and the manifest says %+v", name, len(text), f)
		}
	}
	switch m.Format {
	case export.Avro:
		return readAvro(t, text)
	case export.Parquet:
		all, err := parquet.Read[line](bytes.NewReader(text), int64(len(text)))
		fail(err)
		return all
	case export.JSON, export.JSONLines, export.CSV:
	}
	var r io.Reader = bytes.NewReader(text)
	switch m.Compression {
	case export.Gzip:
		r, err = gzip.NewReader(r)
		fail(err)
	case export.Zstd:
		z, err := zstd.NewReader(r)
		fail(err)
		defer z.Close()
		r = z
	case export.Uncompressed:
	}
	switch m.Format {
	case export.JSON:
		fail(json.NewDecoder(r).Decode(&all))
	case export.JSONLines:
		for s := bufio.NewScanner(r); s.Scan(); {
			var l line
			fail(json.Unmarshal(s.Bytes(), &l))
			all = append(all, l)
		}
	case export.CSV:
		rows, err := csv.NewReader(r).ReadAll()
		fail(err)
		if !slices.Equal(rows[0], []string{"n", "name", "at"}) {
			t.Errorf("the first line is %q", rows[0])
		}
		for _, row := range rows[1:] {
			n, err := strconv.ParseInt(row[0], 10, 64)
			fail(err)
			at, err := time.Parse(time.RFC3339Nano, row[2])
			fail(err)
			all = append(all, line{n, row[1], at})
		}
	case export.Avro, export.Parquet:
	}
	return all
}

func readAvro(t *testing.T, text []byte) (all []line) {
	t.Helper()
	r, err := ocf.NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for {
		var l line
		err := r.Decode(&l)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
}

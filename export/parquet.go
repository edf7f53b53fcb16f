package export

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
)

// parquetFormat writes Parquet files. A part is a small Parquet file with one group of rows. A file
// of the export is written anew from the rows of its parts, in larger groups, because small groups
// make readers slow.
type parquetFormat[R any] struct {
	schema  *parquet.Schema
	options []parquet.WriterOption
	write   parquetWriter
	codec   compress.Codec
	rev     string
	group   int64 // maximum size of a group of rows in bytes; rowGroupBytes except in tests
}

// Limits of a group of rows: the number of rows, and about the bytes before compression. A group is
// in memory until it is complete.
const (
	rowGroup      = 20_000
	rowGroupBytes = 64 << 20
)

var parquetCodecs = map[Compression]compress.Codec{
	Uncompressed: &parquet.Uncompressed, Gzip: &parquet.Gzip, Zstd: &parquet.Zstd,
}

func parquetEncoding[R any](c Compression) (p *parquetFormat[R], err error) {
	t := reflect.TypeFor[R]()
	if err := ofParquet.check(t); err != nil {
		return nil, err
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v has no Parquet schema: %v", t, r)
		}
	}()
	p = &parquetFormat[R]{schema: parquet.SchemaOf(new(R)), codec: parquetCodecs[c], group: rowGroupBytes}
	w := new(parquetWriters)
	if p.write, err = w.of(p.schema, t); err != nil {
		return nil, err
	}
	p.schema, p.options = boundsOf(p.schema)
	if w.ofDay {
		p.rev = secondRevision
	}
	if len(p.schema.Columns()) == 0 {
		return nil, fmt.Errorf("%v has no fields that %q could write", t, Parquet)
	}
	return p, nil
}

// extra returns the size of the footer, which has about 200 bytes for each column of a group.
func (p *parquetFormat[R]) extra(File) (file, part int64) {
	return int64(1000 + 200*len(p.schema.Columns())), 0
}

func (*parquetFormat[R]) extension() string { return ".parquet" }

func (p *parquetFormat[R]) revision() string { return p.rev }

// encode converts a record into a row. If it returns an error, the entity of the record becomes a
// failure.
func (p *parquetFormat[R]) encode(record any) (any, error) {
	columns := make([][]parquet.Value, len(p.schema.Columns()))
	if err := p.write(columns, parquetLevels{}, addressable(record)); err != nil {
		return nil, err
	}
	return parquet.Row(slices.Concat(columns...)), nil
}

func (p *parquetFormat[R]) writer(w io.Writer) *parquet.GenericWriter[R] {
	options := []parquet.WriterOption{p.schema, parquet.Compression(p.codec), parquet.MaxRowsPerRowGroup(rowGroup),
		parquet.CreatedBy("scattermap", "1", "")}
	return parquet.NewGenericWriter[R](w, append(options, p.options...)...)
}

func (p *parquetFormat[R]) part(encoded []any) ([]byte, error) {
	rows := make([]parquet.Row, len(encoded))
	for i, row := range encoded {
		rows[i] = row.(parquet.Row)
	}
	var b bytes.Buffer
	w := p.writer(&b)
	if _, err := w.WriteRows(rows); err != nil {
		return nil, err
	}
	err := w.Close()
	return b.Bytes(), err
}

func (p *parquetFormat[R]) join(w io.Writer, _ File, next func() (io.ReadCloser, error)) error {
	out := p.writer(w)
	buffered := int64(0)
	for {
		part, err := next()
		if errors.Is(err, io.EOF) {
			return out.Close()
		}
		if err != nil {
			return err
		}
		n, err := p.add(out, part)
		if err != nil {
			return err
		}
		if buffered += n; buffered >= p.group {
			if err := out.Flush(); err != nil {
				return err
			}
			buffered = 0
		}
	}
}

// add writes the rows of a part to out, and returns how many bytes they have before compression.
func (p *parquetFormat[R]) add(out *parquet.GenericWriter[R], part io.ReadCloser) (n int64, err error) {
	text, err := io.ReadAll(part)
	if err = errors.Join(err, part.Close()); err != nil {
		return 0, err
	}
	in, err := parquet.OpenFile(bytes.NewReader(text), int64(len(text)))
	if err != nil {
		return 0, err
	}
	for _, group := range in.Metadata().RowGroups {
		n += group.TotalByteSize
	}
	for _, group := range in.RowGroups() {
		rows := group.Rows()
		_, err := parquet.CopyRows(out, rows)
		if err = errors.Join(err, rows.Close()); err != nil {
			return 0, err
		}
	}
	return n, nil
}

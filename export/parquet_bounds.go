package export

import (
	"slices"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding"
	"github.com/parquet-go/parquet-go/format"
)

// A Parquet file has bounds, the minimum and maximum, for each page and each group of rows, so that
// readers can skip them. For columns of fixed-length bytes, package parquet writes wrong bounds. It
// compares signed decimals as unsigned bytes. It also leaves out pages of nulls, so that the bounds
// of later pages shift. This file replaces its index of pages for such columns, and leaves out the
// bounds of decimals in groups.

// boundsOf returns a schema that writes correct bounds of pages for columns of fixed-length bytes.
// Package parquet would also write wrong bounds of row groups for some of these columns. The
// returned options make its writer leave them out.
func boundsOf(schema *parquet.Schema) (*parquet.Schema, []parquet.WriterOption) {
	root := boundedNode{schema, boundedFields(schema)}
	var options []parquet.WriterOption
	for _, path := range schema.Columns() {
		if leaf, _ := schema.Lookup(path...); isFixed(leaf.Node) && !bytesInOrder(leaf.Node) {
			options = append(options, parquet.SkipPageBounds(path...), parquet.SkipPageStatistics(path...))
		}
	}
	return parquet.NewSchema(schema.Name(), root), options
}

func isFixed(n parquet.Node) bool { return n.Leaf() && n.Type().Kind() == parquet.FixedLenByteArray }

// bytesInOrder reports whether the values in a column of fixed-length bytes sort like unsigned
// bytes.
func bytesInOrder(n parquet.Node) bool {
	switch logicalOf(n).(type) {
	case nil:
		return n.Type().ConvertedType() == nil // Parquet defines no order for intervals
	case *format.UUIDType:
		return true
	}
	return false
}

type boundedNode struct {
	parquet.Node
	fields []parquet.Field
}

func (n boundedNode) Fields() []parquet.Field { return n.fields }

type boundedField struct {
	parquet.Field
	fields []parquet.Field
}

func boundedFields(n parquet.Node) (fields []parquet.Field) {
	for _, f := range n.Fields() {
		fields = append(fields, boundedField{f, boundedFields(f)})
	}
	return fields
}

func (f boundedField) Fields() []parquet.Field { return f.fields }

func (f boundedField) Type() parquet.Type {
	if isFixed(f.Field) {
		return boundedType{f.Field.Type(), bytesInOrder(f.Field)}
	}
	return f.Field.Type()
}

// Encoding returns the encoding in the field's tag. Columns of fixed-length bytes must not use a
// dictionary, because a dictionary has an index of its own.
func (f boundedField) Encoding() encoding.Encoding {
	e := f.Field.Encoding()
	if e == nil || !isFixed(f.Field) {
		return e
	}
	switch e.Encoding() {
	case format.RLEDictionary, format.PlainDictionary: //nolint:staticcheck // the older one is also a dictionary
		return &parquet.Plain
	}
	return e
}

type boundedType struct {
	parquet.Type
	ordered bool
}

func (t boundedType) NewColumnIndexer(int) parquet.ColumnIndexer {
	return &fixedIndexer{size: t.Length(), ordered: t.ordered}
}

// A fixedIndexer records the bounds of each page of a column of fixed-length bytes. The bytes of
// decimals are not in the order of the numbers. For decimals it therefore records the smallest and
// the greatest possible number, so that readers skip no page.
type fixedIndexer struct {
	size    int
	ordered bool
	index   format.ColumnIndex
}

func (x *fixedIndexer) Reset() { x.index = format.ColumnIndex{} }

func (x *fixedIndexer) IndexPage(values, nulls int64, least, most parquet.Value) {
	low, high := []byte{}, []byte{}
	switch {
	case values == nulls:
	case x.ordered:
		low, high = slices.Clone(least.ByteArray()), slices.Clone(most.ByteArray())
	default:
		low, high = make([]byte, x.size), slices.Repeat([]byte{0xff}, x.size)
		low[0], high[0] = 0x80, 0x7f
	}
	x.index.NullPages = append(x.index.NullPages, values == nulls)
	x.index.NullCounts = append(x.index.NullCounts, nulls)
	x.index.MinValues = append(x.index.MinValues, low)
	x.index.MaxValues = append(x.index.MaxValues, high)
}

func (x *fixedIndexer) ColumnIndex() format.ColumnIndex { return x.index }

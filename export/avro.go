package export

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"reflect"

	"github.com/klauspost/compress/flate"
	"github.com/twmb/avro"
	"github.com/twmb/avro/ocf"
)

// avroFormat writes Avro's object container files. A part is one block of such a file. A file
// consists of a header and the blocks of its parts.
type avroFormat struct {
	frames
	codec ocf.Codec
}

// avroSync is the marker after each block of a file. The Avro specification asks for a random value
// for each file, so that readers can find the start of a block anywhere in it. Here it is constant,
// because parts are written before their file is known.
var avroSync = [16]byte{0x5c, 0xa7, 0x7e, 0x12, 0x9b, 0x31, 0xd8, 0x44, 0xe6, 0x0f, 0xb3, 0x2a, 0x71, 0xc5, 0x98, 0xed}

func avroEncoding[R any](c Compression) (coder, error) {
	if err := ofAvro.check(reflect.TypeFor[R]()); err != nil {
		return nil, err
	}
	schema, err := avro.SchemaFor[R]()
	if err != nil {
		return nil, fmt.Errorf("%v has no Avro schema: %w", reflect.TypeFor[R](), err)
	}
	w := &avroWriters{named: make(map[string]*avro.SchemaNode), made: make(map[avroPlace]*avroWriter)}
	write, err := w.of(schema.Root(), reflect.TypeFor[R]())
	if err != nil {
		return nil, err
	}
	a := new(avroFormat)
	switch c {
	case Gzip:
		a.codec = ocf.NopCloser(ocf.DeflateCodec(flate.DefaultCompression))
	case Zstd:
		a.codec = ocf.NopCloser(ocf.MustZstdCodec(nil, nil))
	case Uncompressed:
	}
	var header bytes.Buffer
	_, err = ocf.NewWriter(&header, schema, ocf.WithCodec(a.codec), ocf.WithSyncMarker(avroSync))
	a.frames = frames{ext: ".avro", head: func(File) string { return header.String() },
		line: func(record any) ([]byte, error) { return write(nil, addressable(record), 0) }}
	return a, err
}

func (a *avroFormat) part(encoded []any) ([]byte, error) {
	records := a.lines(encoded)
	var err error
	if a.codec != nil {
		records, err = a.codec.Compress(records)
	}
	block := binary.AppendVarint(nil, int64(len(encoded)))
	block = binary.AppendVarint(block, int64(len(records)))
	return append(append(block, records...), avroSync[:]...), err
}

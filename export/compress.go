package export

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// A Compression is the compression of an export's files.
type Compression string

const (
	// Uncompressed is no compression.
	Uncompressed Compression = ""
	// Gzip compresses text in gzip members, one for each part, as RFC 1952 allows. It compresses
	// blocks of Avro and pages of Parquet with its DEFLATE.
	Gzip Compression = "gzip"
	// Zstd compresses text in Zstandard frames, one for each part, as RFC 8878 allows. It also
	// compresses blocks of Avro and pages of Parquet.
	Zstd Compression = "zstd"
)

// A squeezer compresses texts. The concatenation of two compressed texts decompresses to both.
type squeezer struct {
	how  Compression
	zstd *zstd.Encoder
}

// gzips are idle writers. Each takes a megabyte of memory.
var gzips = sync.Pool{New: func() any { return gzip.NewWriter(nil) }}

func squeezerOf(c Compression) (squeezer, error) {
	switch c {
	case Uncompressed, Gzip:
		return squeezer{how: c}, nil
	case Zstd:
		w, err := zstd.NewWriter(nil, zstd.WithZeroFrames(true))
		return squeezer{c, w}, err
	}
	return squeezer{}, fmt.Errorf("Options.Compression is %q, want one of %q, %q and %q", c, Uncompressed, Gzip, Zstd)
}

func (s squeezer) extension() string {
	switch s.how {
	case Gzip:
		return ".gz"
	case Zstd:
		return ".zst"
	case Uncompressed:
	}
	return ""
}

func (s squeezer) squeeze(text []byte) ([]byte, error) {
	switch s.how {
	case Zstd:
		return s.zstd.EncodeAll(text, nil), nil // can be called concurrently
	case Gzip:
		var b bytes.Buffer
		w := gzips.Get().(*gzip.Writer)
		defer gzips.Put(w)
		w.Reset(&b)
		if _, err := w.Write(text); err != nil {
			return nil, err
		}
		if err := w.Close(); err != nil {
			return nil, err
		}
		return b.Bytes(), nil
	case Uncompressed:
	}
	return text, nil
}

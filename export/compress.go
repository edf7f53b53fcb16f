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
	// blocks of Avro and pages of Parquet with DEFLATE, the algorithm of gzip.
	Gzip Compression = "gzip"
	// Zstd compresses text in Zstandard frames, one for each part, as RFC 8878 allows. It also
	// compresses blocks of Avro and pages of Parquet.
	Zstd Compression = "zstd"
)

// A squeezer compresses texts. If compressed texts are concatenated, they decompress to the
// concatenation of the texts.
type squeezer struct {
	how  Compression
	zstd *zstd.Encoder
}

// gzips is a pool of gzip writers, because each takes a megabyte of memory.
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
	return map[Compression]string{Uncompressed: "", Gzip: ".gz", Zstd: ".zst"}[s.how]
}

// squeeze returns the compressed text.
func (s squeezer) squeeze(text []byte) []byte {
	switch s.how {
	case Zstd:
		return s.zstd.EncodeAll(text, nil) // EncodeAll can be called concurrently
	case Gzip:
		var b bytes.Buffer // writes to it never fail
		w := gzips.Get().(*gzip.Writer)
		defer gzips.Put(w)
		w.Reset(&b)
		_, _ = w.Write(text)
		_ = w.Close()
		return b.Bytes()
	case Uncompressed:
	}
	return text
}

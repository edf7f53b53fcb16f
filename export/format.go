package export

import (
	"errors"
	"fmt"
	"io"
)

// A Format is the format of an export's files.
type Format string

const (
	// JSONLines has a JSON value on each line.
	JSONLines Format = "jsonl"
	// JSON has one JSON value in each file: an array of all records, or what Options.Wrap makes of
	// them.
	JSON Format = "json"
	// CSV has a line of column names, and then a line for each record, as in RFC 4180. Records are
	// structs; [Options] describes their columns.
	CSV Format = "csv"
	// Avro has object container files. The schema is derived from the Go type; package
	// github.com/twmb/avro describes the tags of fields.
	Avro Format = "avro"
	// Parquet has a schema derived from the Go type; package github.com/parquet-go/parquet-go
	// describes the tags of fields.
	Parquet Format = "parquet"
)

// A coder writes records of one Go type in one format. Records are encoded and compressed once, as
// parts. Parts are then joined into files.
type coder interface {
	// encode returns a record in the form that part takes, or an error if the format can't hold it.
	encode(record any) (any, error)
	// part returns a compressed part of encoded records.
	part(encoded []any) ([]byte, error)
	// join writes a file from parts. The function next returns the parts in their order, and io.EOF
	// after the last one.
	join(w io.Writer, f File, next func() (io.ReadCloser, error)) error
	// extra returns how many bytes a file has beyond its parts, and how many bytes each part adds
	// beyond its own size. Both are estimates.
	extra(f File) (file, part int64)
	// extension returns the extension of the files' names.
	extension() string
	// revision returns a text that identifies how the coder encodes values. It changes if a newer
	// build encodes the same records differently. A file never has parts of two revisions.
	revision() string
}

const secondRevision = "/2"

// A frames is a coder for text formats. A file is a concatenation of compressed texts: a head, the
// parts with separators between them, and a tail. So parts are joined without decompressing them.
type frames struct {
	squeezer
	line  func(record any) ([]byte, error) // returns the text of one record
	ends  string                           // the text after each record
	apart string                           // the text between two records
	head  func(f File) string
	tail  func(f File) string
	ext   string
	rev   string
}

func (e *frames) revision() string { return e.rev }

func (e *frames) extension() string { return e.ext + e.squeezer.extension() }

func (e *frames) extra(f File) (file, part int64) {
	return int64(len(e.frame(e.head, f)) + len(e.frame(e.tail, f))), int64(len(e.frame(e.between, f)))
}

func (e *frames) between(File) string { return e.apart }

// frame compresses a text of a file, such as its head. The parameter of is a function that returns
// the text. If that function is nil, or the text is empty, the result is nil.
func (e *frames) frame(of func(File) string, f File) []byte {
	if of == nil {
		return nil
	}
	text := of(f)
	if text == "" {
		return nil
	}
	return e.squeeze([]byte(text))
}

func (e *frames) encode(record any) (any, error) { return e.line(record) }

func (e *frames) part(encoded []any) ([]byte, error) { return e.squeeze(e.lines(encoded)), nil }

// lines concatenates the texts of encoded records, with separators between them.
func (e *frames) lines(encoded []any) []byte {
	size := len(encoded) * (len(e.apart) + len(e.ends))
	for _, line := range encoded {
		size += len(line.([]byte))
	}
	all := make([]byte, 0, size)
	for i, line := range encoded {
		if i > 0 {
			all = append(all, e.apart...)
		}
		all = append(append(all, line.([]byte)...), e.ends...)
	}
	return all
}

func (e *frames) join(w io.Writer, f File, next func() (io.ReadCloser, error)) error {
	head := e.frame(e.head, f)
	if _, err := w.Write(head); err != nil {
		return err
	}
	empty := len(head) == 0
	for between := []byte(nil); ; between = e.frame(e.between, f) {
		part, err := next()
		if errors.Is(err, io.EOF) {
			tail := e.frame(e.tail, f)
			if empty && len(tail) == 0 {
				tail = e.squeeze(nil) // an empty file is not valid gzip, so compress an empty text
			}
			_, err = w.Write(tail)
			return err
		}
		if err != nil {
			return err
		}
		empty = false
		_, err = w.Write(between)
		if err == nil {
			_, err = io.Copy(w, part)
		}
		if err = errors.Join(err, part.Close()); err != nil {
			return err
		}
	}
}

// coderOf returns the coder for records of type R, with the format and the compression of the
// options.
func coderOf[R any](o *Options) (coder, error) {
	s, err := squeezerOf(o.Compression)
	if err != nil {
		return nil, err
	}
	if o.Wrap != nil && o.Format != JSON {
		return nil, fmt.Errorf("Options.Wrap is for the format %q, and not for %q", JSON, o.Format)
	}
	switch o.Format {
	case JSONLines, JSON:
		line, rev, err := jsonLine[R]()
		if err != nil {
			return nil, err
		}
		if o.Format == JSON {
			return jsonEncoding(s, line, rev, o.Wrap), nil
		}
		return &frames{squeezer: s, line: line, ends: "\n", ext: ".jsonl", rev: rev}, nil
	case CSV:
		return csvEncoding[R](s)
	case Avro:
		return avroEncoding[R](o.Compression)
	case Parquet:
		return parquetEncoding[R](o.Compression)
	}
	return nil, fmt.Errorf("Options.Format is %q, want one of %q, %q, %q, %q and %q", o.Format, JSONLines, JSON, CSV,
		Avro, Parquet)
}

// jsonEncoding returns the coder whose files each have one JSON value: the records, with the text
// from wrap around them. The function line encodes a record, and rev is the coder's revision.
func jsonEncoding(s squeezer, line func(any) ([]byte, error), rev string, wrap func(File) (head, tail string)) coder {
	if wrap == nil {
		wrap = func(File) (head, tail string) { return "[\n", "\n]\n" }
	}
	return &frames{squeezer: s, line: line, apart: ",\n", ext: ".json", rev: rev,
		head: func(f File) string { head, _ := wrap(f); return head },
		tail: func(f File) string { _, tail := wrap(f); return tail }}
}

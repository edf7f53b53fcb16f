package export

import (
	"errors"
	"fmt"
	"io"
)

// A Format is how records are written to files.
type Format string

const (
	// JSONLines has a JSON value on each line.
	JSONLines Format = "jsonl"
	// JSON has one JSON value for each file: an array of all records, unless Options.Wrap makes
	// something else of it.
	JSON Format = "json"
	// CSV has a line of names, and then a line for each record, as in RFC 4180. Records are
	// structs; [Options] describes their fields.
	CSV Format = "csv"
	// Avro has object container files. The schema is derived from the Go type; package
	// github.com/twmb/avro describes the tags of fields.
	Avro Format = "avro"
	// Parquet has a schema derived from the Go type; package github.com/parquet-go/parquet-go
	// describes the tags of fields.
	Parquet Format = "parquet"
)

// A coder writes records of one type in one format. What of encode and part is done for an entity
// is done once; frames are written in the order head, parts with between between them, tail, each
// of them compressed by itself.
type coder interface {
	// encode returns what a record is in a part, or an error if it can't be written.
	encode(record any) (any, error)
	// part returns a part of some records that were encoded, compressed.
	part(encoded []any) ([]byte, error)
	// join writes a file of parts, which next returns in their order, and io.EOF behind the last
	// one.
	join(w io.Writer, f File, next func() (io.ReadCloser, error)) error
	// extra returns how many bytes a file has besides its parts, about, and how many each part
	// takes more.
	extra(f File) (file, part int64, err error)
	// extension returns what the names of files end with.
	extension() string
	// revision is different where an older build writes other values of the same records, which one
	// file must not have both of.
	revision() string
}

const secondRevision = "/2"

// A frames is a coder whose files are frames, one behind the other: what joins them need not know
// what is in them.
type frames struct {
	squeezer
	line  func(record any) ([]byte, error) // one record
	ends  string                           // each of them
	apart string                           // two of them
	head  func(f File) ([]byte, error)
	tail  func(f File) ([]byte, error)
	ext   string
	rev   string
}

func (e *frames) revision() string { return e.rev }

func (e *frames) extension() string { return e.ext + e.squeezer.extension() }

func (e *frames) extra(f File) (file, part int64, err error) {
	for _, of := range []func(File) ([]byte, error){e.head, e.tail} {
		text, err := e.frame(of, f)
		if err != nil {
			return 0, 0, err
		}
		file += int64(len(text))
	}
	between, err := e.frame(e.between, f)
	return file, int64(len(between)), err
}

func (e *frames) between(File) ([]byte, error) { return []byte(e.apart), nil }

// frame returns a text as a frame by itself; nothing, if it is empty.
func (e *frames) frame(of func(File) ([]byte, error), f File) ([]byte, error) {
	if of == nil {
		return nil, nil
	}
	text, err := of(f)
	if err != nil || len(text) == 0 {
		return nil, err
	}
	return e.squeeze(text)
}

func (e *frames) encode(record any) (any, error) { return e.line(record) }

func (e *frames) part(encoded []any) ([]byte, error) {
	var all []byte
	for i, line := range encoded {
		if i > 0 {
			all = append(all, e.apart...)
		}
		all = append(append(all, line.([]byte)...), e.ends...)
	}
	return e.squeeze(all)
}

func (e *frames) join(w io.Writer, f File, next func() (io.ReadCloser, error)) error {
	empty := true
	frame := func(of func(File) ([]byte, error)) error {
		text, err := e.frame(of, f)
		if err != nil {
			return err
		}
		empty = empty && len(text) == 0
		_, err = w.Write(text)
		return err
	}
	if err := frame(e.head); err != nil {
		return err
	}
	for first := true; ; first = false {
		part, err := next()
		if errors.Is(err, io.EOF) {
			if err := frame(e.tail); err != nil || !empty {
				return err
			}
			text, err := e.squeeze(nil) // no bytes at all are no gzip
			if err == nil {
				_, err = w.Write(text)
			}
			return err
		}
		if err != nil {
			return err
		}
		empty = false
		if !first {
			err = frame(e.between)
		}
		if err == nil {
			_, err = io.Copy(w, part)
		}
		if closing := part.Close(); err == nil {
			err = closing
		}
		if err != nil {
			return err
		}
	}
}

// coderOf returns the coder of records of a type.
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

// jsonEncoding returns the encoding of files of one value.
func jsonEncoding(s squeezer, line func(any) ([]byte, error), rev string, wrap func(File) (head, tail string)) coder {
	if wrap == nil {
		wrap = func(File) (head, tail string) { return "[\n", "\n]\n" }
	}
	return &frames{squeezer: s, line: line, apart: ",\n", ext: ".json", rev: rev,
		head: func(f File) ([]byte, error) { head, _ := wrap(f); return []byte(head), nil },
		tail: func(f File) ([]byte, error) { _, tail := wrap(f); return []byte(tail), nil }}
}

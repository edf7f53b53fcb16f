package tally

import (
	"bytes"
	"cmp"
	"compress/flate"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// plainBytes is the largest size of a text that is stored uncompressed, in bytes.
const plainBytes = 512 << 10

// packed is the first byte of a compressed text. No JSON text starts with it.
const packed = 0

// Pack returns a JSON text in the form in which it is stored: compressed if it is large.
func Pack(text []byte) []byte {
	if len(text) <= plainBytes {
		return text
	}
	return Compress(text)
}

// Compress returns a compressed JSON text, which [Unpack] can read.
func Compress(text []byte) []byte {
	b := bytes.NewBuffer([]byte{packed})
	w, _ := flate.NewWriter(b, flate.DefaultCompression) // the level is valid
	_, _ = w.Write(text)                                 // a write to memory does not fail
	_ = w.Close()
	return b.Bytes()
}

// Unpack returns a JSON text from its stored form, which Pack or Compress has returned.
func Unpack(stored []byte) ([]byte, error) {
	if len(stored) == 0 || stored[0] != packed {
		return stored, nil
	}
	text, err := io.ReadAll(flate.NewReader(bytes.NewReader(stored[1:])))
	if err != nil {
		return nil, fmt.Errorf("a compressed text: %w", err)
	}
	return text, nil
}

// A Grouped is a map whose keys are names of counters. Its JSON has names with the same end next to
// each other, such as "cents/AT" and "min(cents/AT)", because this compresses well.
type Grouped[V any] map[string]V

// few is the largest number of counters for which the JSON is sorted by name. Older builds can read
// only this form.
const few = 10_000

// MarshalJSON returns the map as a JSON object. Its names are sorted as usual if there are at most
// few, and otherwise by their ends.
func (g Grouped[V]) MarshalJSON() ([]byte, error) {
	if len(g) <= few {
		return json.Marshal(map[string]V(g))
	}
	names := slices.Collect(maps.Keys(g))
	ends := make(map[string]string, len(names))
	for _, name := range names {
		b := []byte(strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(name, least), most), ")"))
		slices.Reverse(b)
		ends[name] = string(b)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(strings.Compare(ends[a], ends[b]), strings.Compare(a, b))
	})
	b := []byte{'{'}
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		quoted, err := json.Marshal(name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(g[name])
		if err != nil {
			return nil, err
		}
		b = append(append(append(b, quoted...), ':'), value...)
	}
	return append(b, '}'), nil
}

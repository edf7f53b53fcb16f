package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/scattermap/scattermap/export"
)

// A shard is a file of a feed, as it was found.
type shard struct {
	name     string
	kind     kind
	stamp    int64 // in the name,
	number   int   // from 1 on,
	of       int   // and how many there are
	metadata Metadata
	bytes    int64
	records  map[recordHash]int // how often each is there
}

// A recordHash is that of a record's JSON, so that a feed need not be in memory.
type recordHash [16]byte

// A Report says what a folder of feeds has.
type Report struct {
	Feeds    []FeedReport `json:"feeds"`
	Problems []string     `json:"problems,omitempty"`
}

// A FeedReport says what one feed has.
type FeedReport struct {
	Name    string  `json:"name"`
	Shards  int     `json:"shards"`
	Records int64   `json:"records"`
	Bytes   int64   `json:"bytes"`
	Largest float64 `json:"largest"` // shard, as times the mean
}

// checkFolder checks all feeds in a folder and those below it against the rules of sharded feeds.
func checkFolder(dir string, maxBytes int64, most int) (*Report, error) {
	r := new(Report)
	byFeed := make(map[string][]*shard)
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || isNoted(d.Name()) {
			return err
		}
		s, err := readShard(path)
		if err != nil {
			r.problem("%s: %v", filepath.Base(path), err)
			return nil
		}
		if s.bytes > maxBytes {
			r.problem("%s has %d bytes, want up to %d", s.name, s.bytes, maxBytes)
		}
		feed := fmt.Sprintf("%s_feed_%d", s.kind.name, s.stamp)
		byFeed[feed] = append(byFeed[feed], s)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(byFeed) == 0 && len(r.Problems) == 0 {
		r.problem("there is no feed in %s", dir)
	}
	for _, k := range kinds {
		for _, name := range slices.Sorted(maps.Keys(byFeed)) {
			if shards := byFeed[name]; shards[0].kind == k {
				r.feed(name, shards, most)
			}
		}
	}
	return r, nil
}

// isNoted reports whether a file is no part of a feed, but says of an export that it is done: a manifest, of which
// there are several in the folder of several exports, or the mark of success.
func isNoted(name string) bool {
	return name == export.SuccessName || strings.HasPrefix(name, "manifest") && strings.HasSuffix(name, ".json")
}

func (r *Report) problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

// fewBytes is how much a shard may have above 1.15 of the mean: where shards are small, a part of an export is a good part of one.
const fewBytes = 64 << 10

// feed checks the shards of a feed against each other.
func (r *Report) feed(name string, shards []*shard, most int) {
	f := FeedReport{Name: name, Shards: len(shards)}
	first, seen, records, largest := shards[0].metadata, make(map[int]string), make(map[recordHash]string), int64(0)
	for _, s := range shards {
		m := s.metadata
		if m.Nonce != first.Nonce || m.GenerationTimestamp != first.GenerationTimestamp || m.TotalShards != first.TotalShards {
			r.problem("%s: its nonce, generation_timestamp or total_shards is not that of %s", s.name, shards[0].name)
		}
		if other := seen[m.ShardNumber]; other != "" {
			r.problem("%s: its shard_number %d is that of %s, too", s.name, m.ShardNumber, other)
		}
		seen[m.ShardNumber] = s.name
		for record, n := range s.records {
			if n > 1 {
				r.problem("%s has a record %d times", s.name, n)
			}
			if other := records[record]; other != "" {
				r.problem("%s has a record that %s has, too", s.name, other)
			}
			records[record] = s.name
			f.Records += int64(n)
		}
		f.Bytes += s.bytes
		largest = max(largest, s.bytes)
	}
	for i := range first.TotalShards {
		if seen[i] == "" {
			r.problem("%s: there is no shard_number %d, of %d shards", name, i, first.TotalShards)
		}
	}
	if len(shards) > most {
		r.problem("%s has %d shards, want up to %d", name, len(shards), most)
	}
	if mean := f.Bytes / int64(len(shards)); largest > mean+mean*3/20+fewBytes {
		r.problem("%s is not filled evenly: its largest shard has %d bytes, and the mean is %d", name, largest, mean)
	}
	f.Largest = float64(largest) * float64(len(shards)) / float64(max(1, f.Bytes))
	r.Feeds = append(r.Feeds, f)
}

var shardName = regexp.MustCompile(`^([a-z]+)_feed_([0-9]+)_([0-9]{3})_of_([0-9]{3})\.json\.gz$`)

// readShard reads a file, and checks what it says of itself.
func readShard(path string) (*shard, error) {
	s := &shard{name: filepath.Base(path), records: make(map[recordHash]int)}
	m := shardName.FindStringSubmatch(s.name)
	if m == nil {
		return nil, errors.New("its name is not like availability_feed_1574117613_001_of_002.json.gz")
	}
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == m[1] })
	if i < 0 {
		return nil, fmt.Errorf("there are no feeds of %q", m[1])
	}
	s.kind = kinds[i]
	var err error
	if s.stamp, err = strconv.ParseInt(m[2], 10, 64); err != nil {
		return nil, err
	}
	s.number, _ = strconv.Atoi(m[3])
	s.of, _ = strconv.Atoi(m[4])
	if err := s.read(path); err != nil {
		return nil, err
	}
	d := s.metadata
	switch {
	case d.ProcessingInstruction != instruction:
		return nil, fmt.Errorf("its processing_instruction is %q, want %q", d.ProcessingInstruction, instruction)
	case d.ShardNumber != s.number-1 || d.TotalShards != s.of || d.GenerationTimestamp != s.stamp:
		return nil, fmt.Errorf("its metadata %+v is not what its name says", d)
	case d.ShardNumber < 0 || d.ShardNumber >= d.TotalShards:
		return nil, fmt.Errorf("its shard_number is %d, want 0 to %d", d.ShardNumber, d.TotalShards-1)
	}
	return s, nil
}

// read reads the metadata and the records, one after the other.
func (s *shard) read(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was read
	info, err := f.Stat()
	if err != nil {
		return err
	}
	s.bytes = info.Size()
	z, err := gzip.NewReader(bufio.NewReader(f))
	if err != nil {
		return err
	}
	d := json.NewDecoder(z)
	found := 0
	err = eachKey(d, func(name string) error {
		found++
		switch {
		case name == "metadata" && found == 1:
			return s.metadata.read(d)
		case name == s.kind.list && found == 2:
			return s.readRecords(d)
		}
		return fmt.Errorf("it has %q, want the metadata and then %q", name, s.kind.list)
	})
	if err == nil && found < 2 {
		err = fmt.Errorf("it has no %q", s.kind.list)
	}
	if err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is something behind its value")
	}
	return nil
}

// read reads metadata, which has each of its properties once, and no others.
func (m *Metadata) read(d *json.Decoder) error {
	into := map[string]any{
		"processing_instruction": &m.ProcessingInstruction, "shard_number": &m.ShardNumber, "total_shards": &m.TotalShards,
		"nonce": &m.Nonce, "generation_timestamp": &m.GenerationTimestamp,
	}
	err := eachKey(d, func(name string) error {
		field, known := into[name]
		if !known {
			return fmt.Errorf("its metadata has %q twice, or should not have it", name)
		}
		delete(into, name)
		var value json.RawMessage
		err := d.Decode(&value)
		if err == nil && string(value) == "null" {
			err = errors.New("it is null")
		}
		if err == nil {
			err = json.Unmarshal(value, field)
		}
		if err != nil {
			return fmt.Errorf("its metadata's %s: %w", name, err)
		}
		return nil
	})
	if err == nil && len(into) > 0 {
		err = fmt.Errorf("its metadata has no %s", strings.Join(slices.Sorted(maps.Keys(into)), ", and no "))
	}
	if err == nil && m.Nonce == 0 {
		err = errors.New("its nonce is 0")
	}
	return err
}

func (s *shard) readRecords(d *json.Decoder) error {
	if err := expect(d, json.Delim('[')); err != nil {
		return err
	}
	for i := 0; d.More(); i++ {
		var text json.RawMessage
		if err := d.Decode(&text); err != nil {
			return err
		}
		if !utf8.Valid(text) {
			return fmt.Errorf("record %d is no UTF-8", i)
		}
		var record map[string]any
		exact := json.NewDecoder(bytes.NewReader(text))
		exact.UseNumber()
		if err := exact.Decode(&record); err != nil || record == nil {
			return fmt.Errorf("record %d is no object", i)
		}
		text, err := json.Marshal(record) // in the order of names
		if err != nil {
			return err
		}
		sum := sha256.Sum256(text)
		s.records[recordHash(sum[:16])]++
	}
	return expect(d, json.Delim(']'))
}

// eachKey reads an object, and has value read each of its values.
func eachKey(d *json.Decoder, value func(name string) error) error {
	if err := expect(d, json.Delim('{')); err != nil {
		return err
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		if err := value(fmt.Sprint(name)); err != nil {
			return err
		}
	}
	return expect(d, json.Delim('}'))
}

func expect(d *json.Decoder, want json.Delim) error {
	got, err := d.Token()
	if err == nil && got != want {
		err = fmt.Errorf("it has %v, want %v", got, want)
	}
	return err
}

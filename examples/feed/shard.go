package main

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A shard is a file of a feed, as the check has read it.
type shard struct {
	name     string // name of the file, relative to the checked folder
	kind     kind   // the kind of feed, from the file's list of records; zero if the file has no list
	metadata *Metadata
	bytes    int64 // the size of the file after compression
	records  map[recordHash]int
	lacks    map[string]int // number of records that lack each field
	failed   int            // number of records with an error

	problems []string
	advice   []string
}

// errNoFeed is the error for a file that is not part of a feed.
var errNoFeed = errors.New("it is no feed")

func (s *shard) problem(format string, args ...any) {
	s.problems = append(s.problems, s.name+": "+fmt.Sprintf(format, args...))
}

func (s *shard) advise(what string) { s.advice = append(s.advice, what) }

// readShard reads a file of a feed. It recognises the file by its content, because the file's name
// is only a recommendation.
func readShard(path, name string) (*shard, error) {
	s := &shard{name: name, records: make(map[recordHash]int), lacks: make(map[string]int)}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || strings.HasPrefix(filepath.Base(name), ".") {
		return nil, errNoFeed
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // an error does not matter after reading
	buffered := bufio.NewReader(f)
	var content *bufio.Reader
	zipped := &counter{}
	if magic, _ := buffered.Peek(2); string(magic) == "\x1f\x8b" {
		zipped.n = info.Size()
		z, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, fmt.Errorf("read its gzip: %w", err)
		}
		content = bufio.NewReader(z)
	} else { // compress the file, because the limit is for the compressed size
		z := gzip.NewWriter(zipped)
		content = bufio.NewReader(io.TeeReader(buffered, z))
		defer func() {
			_ = z.Close() // writing to a counter does not fail
			s.bytes = zipped.n
		}()
	}
	start, err := firstByte(content)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, fmt.Errorf("read its gzip: %w", err)
	case start != '{' && !strings.Contains(strings.ToLower(name), ".json"):
		return nil, errNoFeed
	case err != nil:
		return nil, errors.New("it is empty")
	case start != '{':
		return nil, fmt.Errorf("it begins with %q, want a JSON object, or the gzip of one", start)
	}
	if err := s.read(json.NewDecoder(content)); err != nil {
		return nil, err
	}
	s.bytes = zipped.n
	return s, nil
}

// firstByte returns the first byte after white space, and does not consume it.
func firstByte(r *bufio.Reader) (byte, error) {
	for {
		b, err := r.ReadByte()
		if err != nil {
			return 0, err
		}
		if !strings.ContainsRune(" \t\r\n", rune(b)) {
			return b, r.UnreadByte()
		}
	}
}

// A counter counts the bytes that are written to it.
type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

// lists has the names of the lists of all kinds, for errors.
const lists = `"merchant", "service" and "service_availability"`

// read reads the metadata and the records of a file, in any order.
func (s *shard) read(d *json.Decoder) error {
	if _, err := d.Token(); err != nil {
		return err
	}
	var others []string
	seen := false
	err := eachKey(d, func(name string) error {
		i := slices.IndexFunc(kinds, func(k kind) bool { return k.list == protoName(name) })
		switch {
		case name == "metadata" && seen:
			return errors.New("it has metadata twice")
		case name == "metadata":
			seen = true
			return s.readMetadata(d)
		case i >= 0 && s.kind.list != "":
			return fmt.Errorf("it has both %q and %q: a file is of one feed, and has one list", s.kind.list, name)
		case i >= 0:
			s.kind = kinds[i]
			return s.readRecords(d)
		}
		others = append(others, fmt.Sprintf("%q", name))
		_, err := next(d)
		return err
	})
	if err != nil {
		return atEnd(err)
	}
	if _, err := d.Token(); err == nil {
		return errors.New("something follows its JSON object: each shard is a file")
	} else if !errors.Is(err, io.EOF) {
		return atEnd(err)
	}
	switch {
	case !seen && s.kind.list == "":
		return errNoFeed
	case !seen:
		return errors.New("it has no metadata")
	case s.kind.list == "" && len(others) > 0:
		return fmt.Errorf("it has %s, and none of the lists %s", strings.Join(others, ", "), lists)
	case len(others) > 0:
		s.advise(fmt.Sprintf("files have %s, which no feed has", strings.Join(others, ", ")))
	}
	return nil
}

// atEnd returns an error that says that the file ends too early, if err is the error at the end of
// a file. It returns other errors unchanged.
func atEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("it ends in the middle (unexpected EOF)")
	}
	return err
}

// metadataType checks the metadata in a file, which the documentation calls FeedMetadata:
// https://developers.google.com/actions-center/verticals/reservations/e2e/reference/feeds/feed-metadata.
var metadataType = message(map[string]valueType{
	"processing_instruction": enum("PROCESS_UNKNOWN", instruction, "PROCESS_AS_INCREMENTAL"),
	"shard_number":           integer(0, math.MaxInt32),
	"total_shards":           integer(1, math.MaxInt32),
	"nonce":                  unsigned,
	"generation_timestamp":   seconds,
})

// readMetadata reads and checks the metadata of a file. A feed in one file may leave out the fields
// about shards.
func (s *shard) readMetadata(d *json.Decoder) error {
	given, err := next(d)
	if err != nil {
		return fmt.Errorf("its metadata: %w", err)
	}
	read, err := metadataType(given)
	if err != nil {
		return fmt.Errorf("its metadata: %w", err)
	}
	fields := read.(map[string]any)
	get := func(name string) (n int64, there bool) {
		n, there = fields[name].(int64)
		return n, there
	}
	m := &Metadata{TotalShards: 1}
	m.ProcessingInstruction, _ = fields["processing_instruction"].(string)
	m.Nonce, _ = fields["nonce"].(string)
	if m.Nonce == "0" { // a nonce of 0 is the default, so it is missing
		m.Nonce = ""
	}
	number, numbered := get("shard_number")
	total, counted := get("total_shards")
	m.ShardNumber = int(number)
	if counted {
		m.TotalShards = int(total)
	}
	m.GenerationTimestamp, _ = get("generation_timestamp")
	for name := range fields {
		if !slices.Contains([]string{"processing_instruction", "shard_number", "total_shards", "nonce",
			"generation_timestamp"}, name) {
			return fmt.Errorf("its metadata has %q, which FeedMetadata has not", name)
		}
	}
	s.metadata = m
	if m.ProcessingInstruction != instruction {
		s.problem("its processing_instruction is %q, want %q", m.ProcessingInstruction, instruction)
	}
	if m.GenerationTimestamp == 0 {
		s.problem("its metadata has no generation_timestamp")
	}
	if m.Nonce == "" && m.TotalShards > 1 {
		s.problem("its metadata has no nonce, or 0: it tells which shards belong together")
	}
	switch {
	case m.ShardNumber > 0 && !counted:
		s.problem("its shard_number is %d, and there is no total_shards", m.ShardNumber)
	case m.ShardNumber >= m.TotalShards:
		s.problem("its shard_number is %d, want 0 to %d: they count from 0, although the numbers in names count from 1",
			m.ShardNumber, m.TotalShards-1)
	case !numbered && m.TotalShards > 1:
		s.advise("files have no shard_number, which is taken for 0")
	}
	if raw, isNumber := rawNonce(given).(json.Number); isNumber && len(m.Nonce) > 15 {
		if f, err := raw.Float64(); err != nil || f > 1<<53 {
			s.advise("files have a nonce that is a number above 2^53, at which some readers lose digits: " +
				"write it as a string")
		}
	}
	return nil
}

func rawNonce(metadata any) any {
	fields, _ := metadata.(map[string]any)
	return fields["nonce"]
}

// readRecords reads the list of records in a file.
func (s *shard) readRecords(d *json.Decoder) error {
	start, err := d.Token()
	if err != nil {
		return err
	}
	if start == nil { // null means an empty list
		return nil
	}
	if start != json.Delim('[') {
		return fmt.Errorf("its %s is %v, want a list", s.kind.list, start)
	}
	for i := 0; d.More(); i++ {
		var text json.RawMessage
		if err := d.Decode(&text); err != nil {
			return fmt.Errorf("%s[%d]: %w", s.kind.list, i, atEnd(err))
		}
		element, err := parseValue(text)
		if err == nil {
			element, err = s.kind.element(element)
		}
		if err != nil {
			s.wrongRecord(i, err)
			continue
		}
		for _, record := range s.kind.records(element) {
			s.records[s.kind.hash(record)]++
			for _, field := range s.kind.lacks(record) {
				s.lacks[field]++
			}
		}
	}
	_, err = d.Token()
	return err
}

// shownRecords is the number of wrong records in a file that a report describes.
const shownRecords = 3

func (s *shard) wrongRecord(i int, err error) {
	if s.failed++; s.failed <= shownRecords {
		s.problem("%s[%d]: %v", s.kind.list, i, err)
	}
}

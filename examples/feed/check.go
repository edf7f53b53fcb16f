package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/scattermap/scattermap/export"
)

// A Report has the results of the check of all feeds in a folder.
type Report struct {
	Feeds    []FeedReport `json:"feeds"`
	Problems []string     `json:"problems,omitempty"` // rules that the feeds break
	Advice   []string     `json:"advice,omitempty"`   // recommendations that the feeds do not follow
}

// A FeedReport has the numbers of one feed.
type FeedReport struct {
	Name      string  `json:"name"`
	Kind      string  `json:"kind"`
	Nonce     string  `json:"nonce,omitempty"`
	Timestamp int64   `json:"generation_timestamp"`
	Shards    int     `json:"shards"`
	Records   int64   `json:"records"`
	Bytes     int64   `json:"bytes"`   // size of the compressed files
	Largest   float64 `json:"largest"` // size of the largest shard, as a multiple of the mean
}

// A checker checks the feeds in a folder, and collects problems and advice.
type checker struct {
	report   Report
	maxBytes int64
	most     int // the largest number of shards of a feed without advice
	now      time.Time

	advice map[string][]string // the files to which each recommendation applies
	order  []string            // the recommendations, in the order in which they were found
}

// checkFolder checks all feeds in a folder and its subfolders against the rules of sharded feeds.
// If a feed has more than 20 shards, and more than the number most, the report advises against it.
func checkFolder(dir string, maxBytes int64, most int, now time.Time) (*Report, error) {
	c := &checker{maxBytes: maxBytes, most: max(most, maxShards), now: now, advice: make(map[string][]string)}
	shards, err := c.readFolder(dir)
	if err != nil {
		return nil, err
	}
	c.adopt(shards)
	feeds := make(map[feedID][]*shard)
	for _, s := range shards {
		if s.kind.name != "" {
			feeds[s.feed()] = append(feeds[s.feed()], s)
		}
	}
	if len(feeds) == 0 && len(c.report.Problems) == 0 {
		c.problem("there is no feed in %s", dir)
	}
	ids := slices.SortedFunc(maps.Keys(feeds), compareFeeds)
	for _, id := range ids {
		c.feed(id, feeds[id], feeds)
	}
	c.compare(ids, feeds)
	for _, what := range c.order {
		c.report.Advice = append(c.report.Advice, what+some(c.advice[what]))
	}
	return &c.report, nil
}

func (c *checker) problem(format string, args ...any) {
	c.report.Problems = append(c.report.Problems, fmt.Sprintf(format, args...))
}

// advise adds a recommendation, the text what, to the report. It is about a file, or about all
// files if file is empty.
func (c *checker) advise(file, what string) {
	if c.advice[what] == nil {
		c.order = append(c.order, what)
		c.advice[what] = []string{}
	}
	if file != "" {
		c.advice[what] = append(c.advice[what], file)
	}
}

// some returns a text with a colon and the names of the first three files, and with the number of
// further ones. It is "" if there are no files.
func some(files []string) string {
	const shown = 3
	switch {
	case len(files) == 0:
		return ""
	case len(files) > shown:
		return fmt.Sprintf(": %s and %d more", strings.Join(files[:shown], ", "), len(files)-shown)
	}
	return ": " + strings.Join(files, ", ")
}

// readFolder reads the files in a folder that belong to a feed.
func (c *checker) readFolder(dir string) (shards []*shard, err error) {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	names := make(map[string]string)
	err = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil || name == "." {
			name = d.Name()
		}
		s, err := readShard(path, name)
		switch base := filepath.Base(name); {
		case errors.Is(err, errNoFeed):
			// export writes these two blobs beside its files
			if base != export.SuccessName && base != export.ManifestName {
				c.advise(name, "files that are no JSON with metadata are passed over")
			}
			return nil
		case err != nil:
			c.problem("%s: %v", name, err)
			return nil
		}
		if other := names[filepath.Base(name)]; other != "" {
			c.advise(name, "files of different folders have one name, so uploads replace each other")
		}
		names[filepath.Base(name)] = name
		c.file(s)
		if s.metadata != nil {
			shards = append(shards, s)
		}
		return nil
	})
	return shards, err
}

// file checks one file, without comparing it with the other files of its feed.
func (c *checker) file(s *shard) {
	for _, p := range s.problems {
		c.problem("%s", p)
	}
	if more := s.failed - shownRecords; more > 0 {
		c.problem("%s: %s more, wrong as well", s.name, recordsOf(more))
	}
	for _, what := range s.advice {
		c.advise(s.name, what)
	}
	if s.bytes > c.maxBytes {
		c.problem("%s: it has %d bytes after gzip, want up to %d", s.name, s.bytes, c.maxBytes)
	}
}

// A feedID identifies a feed. Google recognises the shards of a feed by the nonce and the
// generation_timestamp.
type feedID struct {
	kind      string
	timestamp int64
	nonce     string
	file      string // the file's name, if the feed is a single file without a nonce
}

func (s *shard) feed() feedID {
	id := feedID{s.kind.name, s.metadata.GenerationTimestamp, s.metadata.Nonce, ""}
	if id.nonce == "" && s.metadata.TotalShards == 1 {
		id.file = s.name
	}
	return id
}

func (id feedID) String() string { return fmt.Sprintf("%s_feed_%d", id.kind, id.timestamp) }

// long returns the name of a feed with its nonce.
func (id feedID) long() string {
	if id.nonce == "" {
		return id.String()
	}
	return fmt.Sprintf("%v with the nonce %s", id, id.nonce)
}

func compareFeeds(a, b feedID) int {
	rank := func(id feedID) int { return slices.IndexFunc(kinds, func(k kind) bool { return k.name == id.kind }) }
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.timestamp, b.timestamp),
		cmp.Compare(a.nonce, b.nonce), cmp.Compare(a.file, b.file))
}

// adopt finds the feeds of files without a list of records, because JSON may leave out an empty
// list. The feed has the same nonce, or the same name.
func (c *checker) adopt(shards []*shard) {
	for _, s := range shards {
		if s.kind.name != "" {
			continue
		}
		found := make(map[string]kind)
		for _, other := range shards {
			if other.kind.name != "" && other.metadata.Nonce == s.metadata.Nonce && s.metadata.Nonce != "" {
				found[other.kind.name] = other.kind
			}
		}
		if m := shardName.FindStringSubmatch(filepath.Base(s.name)); len(found) != 1 && m != nil {
			clear(found)
			found[m[1]] = kindOf(m[1])
		}
		if len(found) != 1 {
			c.problem("%s: it has none of the lists %s, so its feed is unknown", s.name, lists)
			continue
		}
		for _, k := range found {
			s.kind = k
		}
	}
}

func kindOf(name string) kind {
	if i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == name }); i >= 0 {
		return kinds[i]
	}
	return kind{}
}

var shardName = regexp.MustCompile(
	`^(merchant|service|availability)s?_feed_([0-9]+)(?:_([0-9]{3,})_of_([0-9]{3,}))?\.json\.gz$`)

// checkName adds a recommendation if a file's name does not fit its metadata. No rule requires
// that.
func (c *checker) checkName(s *shard) {
	m, d := shardName.FindStringSubmatch(filepath.Base(s.name)), s.metadata
	if m == nil || m[3] == "" && d.TotalShards > 1 {
		c.advise(s.name, "names that say the feed, time and shard are recommended, such as "+
			"availability_feed_1574117613_001_of_002.json.gz; others are")
		return
	}
	is := func(digits string, n int64) bool {
		got, err := strconv.ParseInt(digits, 10, 64)
		return err == nil && got == n
	}
	if m[1] != s.kind.name || !is(m[2], d.GenerationTimestamp) ||
		m[3] != "" && (!is(m[3], int64(d.ShardNumber)+1) || !is(m[4], int64(d.TotalShards))) {
		c.advise(s.name, "the metadata decides, and names say something else")
	}
}

// feed checks whether the shards of a feed fit together.
func (c *checker) feed(id feedID, shards []*shard, feeds map[feedID][]*shard) {
	f := FeedReport{Name: id.String(), Kind: id.kind, Nonce: id.nonce, Timestamp: id.timestamp, Shards: len(shards)}
	total, byNumber, largest := shards[0].metadata.TotalShards, make(map[int]string), int64(0)
	lacks := make(map[string]int)
	for _, s := range shards {
		c.checkName(s)
		if m := s.metadata; m.TotalShards != total {
			c.problem("%s: its total_shards is %d, and that of %s is %d", s.name, m.TotalShards, shards[0].name, total)
		}
		if other := byNumber[s.metadata.ShardNumber]; other != "" {
			c.problem("%s: its shard_number %d is that of %s, too", s.name, s.metadata.ShardNumber, other)
		}
		byNumber[s.metadata.ShardNumber] = s.name
		for field, n := range s.lacks {
			lacks[field] += n
		}
		f.Bytes += s.bytes
		largest = max(largest, s.bytes)
	}
	f.Records = c.records(shards)
	if missing := missingNumbers(byNumber, total); missing != "" {
		c.problem("%s: there is no shard_number %s, of %d shards: a feed is processed when all are there%s", id.long(),
			missing, total, alike(id, feeds))
	}
	if n := max(total, len(shards)); n > c.most {
		c.advise("",
			fmt.Sprintf("%v has %d shards, and up to %d are recommended: agree on more with Google's support, "+
				"and then say -max-shards", id, n, maxShards))
	}
	for _, field := range slices.Sorted(maps.Keys(lacks)) {
		c.advise("", fmt.Sprintf("%v: %d of %s without %s", id, lacks[field], recordsOf(int(f.Records)), field))
	}
	mean := f.Bytes / int64(len(shards))
	if largest > mean+mean*3/20+fewBytes {
		c.advise("", fmt.Sprintf("%v is not filled evenly: its largest shard has %d bytes, and the mean is %d: "+
			"even shards are faster", id, largest, mean))
	}
	if f.Records == 0 {
		c.advise("", fmt.Sprintf("%v has no records: with %s it removes all that was delivered before", id,
			instruction))
	}
	c.checkTime(id)
	f.Largest = float64(largest) * float64(len(shards)) / float64(max(1, f.Bytes))
	c.report.Feeds = append(c.report.Feeds, f)
}

// fewBytes is by how many bytes a shard may exceed 1.15 times the mean size without advice. In
// small shards a single part of the export makes a large difference.
const fewBytes = 64 << 10

// records checks that each record of a feed is in only one shard, and only once. It returns the
// number of records.
func (c *checker) records(shards []*shard) (all int64) {
	in := make(map[recordHash]*shard)
	for _, s := range shards {
		twice, also := 0, make(map[string]int)
		for record, n := range s.records {
			all += int64(n)
			if n > 1 {
				twice++
			}
			if other := in[record]; other != nil {
				also[other.name]++
			}
			in[record] = s
		}
		if twice > 0 {
			c.problem("%s: it has %s more than once (the same %s)", s.name, recordsOf(twice), s.kind.tells())
		}
		for _, other := range slices.Sorted(maps.Keys(also)) {
			c.problem("%s: it has %s that %s has, too (the same %s): a record is in one shard", s.name,
				recordsOf(also[other]), other, s.kind.tells())
		}
	}
	return all
}

func recordsOf(n int) string {
	if n == 1 {
		return "1 record"
	}
	return fmt.Sprintf("%d records", n)
}

// missingNumbers returns a text with the numbers that no shard has, or "".
func missingNumbers(byNumber map[int]string, total int) string {
	var missing []string
	more := 0
	for i := range min(total, 10_000) {
		if byNumber[i] != "" {
			continue
		}
		if len(missing) == 5 {
			more++
			continue
		}
		missing = append(missing, strconv.Itoa(i))
	}
	if more > 0 {
		missing = append(missing, "and others")
	}
	return strings.Join(missing, ", ")
}

// alike finds another feed that is probably meant to be the same feed, but has another nonce or
// time. It returns a text for an error, which names a file of that feed and the difference, or "".
func alike(id feedID, feeds map[feedID][]*shard) string {
	for _, other := range slices.SortedFunc(maps.Keys(feeds), compareFeeds) {
		if other == id || other.kind != id.kind {
			continue
		}
		if other.timestamp == id.timestamp {
			return fmt.Sprintf("; %s has another nonce: all shards of a feed have one", feeds[other][0].name)
		}
		if other.nonce == id.nonce {
			return fmt.Sprintf("; %s has another generation_timestamp: all shards of a feed have one",
				feeds[other][0].name)
		}
	}
	return ""
}

// checkTime adds a recommendation if the time of a feed, which is the time of its data, is too old
// or in the future.
func (c *checker) checkTime(id feedID) {
	at := time.Unix(id.timestamp, 0).UTC()
	switch age := c.now.Sub(at); {
	case id.timestamp == 0:
	case age < -5*time.Minute:
		c.advise("", fmt.Sprintf("%v: its generation_timestamp %s is in the future", id, at.Format(time.RFC3339)))
	case age > 24*time.Hour:
		c.advise("", fmt.Sprintf("%v: its generation_timestamp %s is %.0f days ago, and should be recent", id,
			at.Format(time.RFC3339), age.Hours()/24))
	}
}

// compare checks that no two feeds have the same nonce, or the same kind and time.
func (c *checker) compare(ids []feedID, feeds map[feedID][]*shard) {
	byNonce, byTime := make(map[string]feedID), make(map[feedID]feedID)
	for _, id := range ids {
		if other, used := byNonce[id.nonce]; used {
			more := "each feed has one of its own"
			if other.kind == id.kind {
				more += ", and all shards of a feed have one generation_timestamp"
			}
			c.problem("the nonce %s is that of both %v (%s) and %v (%s): %s", id.nonce, other, feeds[other][0].name, id,
				feeds[id][0].name, more)
		} else if id.nonce != "" {
			byNonce[id.nonce] = id
		}
		at := feedID{kind: id.kind, timestamp: id.timestamp}
		if other, there := byTime[at]; there {
			c.problem("%s and %s are of two %s feeds with one generation_timestamp, and one replaces the other: "+
				"shards "+
				"of one feed have one nonce, different shard_numbers, and their number as total_shards",
				feeds[other][0].name, feeds[id][0].name, id.kind)
		}
		byTime[at] = id
	}
}

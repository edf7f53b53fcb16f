package mapper

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
)

var writeScale = flag.Bool("scale", false, "write the table of TestScale to docs/scale.md")

// A virtualKind is a kind of any size that is nowhere in memory: its keys are
// calculated from their ranks.
type virtualKind struct {
	n   int64
	key func(rank int64) *datastore.Key // in key order
}

// virtualKinds are the ways in which keys lie in their space.
var virtualKinds = []struct {
	name string
	key  func(n int64) func(rank int64) *datastore.Key
}{
	{"sequential", func(int64) func(int64) *datastore.Key {
		return func(i int64) *datastore.Key { return datastore.IDKey("K", i+1, nil) }
	}},
	{"uuid", func(n int64) func(int64) *datastore.Key {
		gap := math.MaxUint64 / uint64(n)
		return func(i int64) *datastore.Key {
			high := gap*uint64(i) + uint64(i)*0x9e3779b97f4a7c15%gap
			return datastore.NameKey("K", fmt.Sprintf("%08x-%04x-4000-8000-%012x", high>>32, high>>16&0xffff, high&0xffff), nil)
		}
	}},
	{"ancestors", func(n int64) func(int64) *datastore.Key {
		return func(i int64) *datastore.Key { // half of them are in one group
			customer := i / 20
			if i >= n/4 && i < n*3/4 {
				customer = n / 4 / 20
			}
			return datastore.IDKey("K", i+1, datastore.IDKey("Customer", customer+1, datastore.NameKey("Region", "eu-west", nil)))
		}
	}},
}

// rank returns how many keys are before one. nil is the end.
func (v virtualKind) rank(k *datastore.Key) int64 {
	if k == nil {
		return v.n
	}
	return int64(sort.Search(int(v.n), func(i int) bool { return compareKeys(v.key(int64(i)), k) >= 0 }))
}

func (v virtualKind) start(k *datastore.Key) int64 {
	if k == nil {
		return 0
	}
	return v.rank(k)
}

// sample returns n random keys, in order.
func (v virtualKind) sample(rng *rand.Rand, n int) []*datastore.Key {
	ranks := make(map[int64]bool, n)
	for len(ranks) < n && int64(len(ranks)) < v.n {
		ranks[rng.Int64N(v.n)] = true
	}
	keys := make([]*datastore.Key, 0, n)
	for rank := range ranks {
		keys = append(keys, v.key(rank))
	}
	return sortKeys(keys)
}

// What calls take in the model of a job's start: as in package bench.
const (
	modelQuery    = 20 * time.Millisecond // and of a lookup
	modelKey      = 5 * time.Microsecond
	modelCommit   = 55 * time.Millisecond // begin, read the record, commit
	modelEnqueue  = 5 * time.Millisecond
	modelDispatch = 50 * time.Millisecond
	modelPage     = 1100 * time.Millisecond // 500 entities of 2 ms each
	modelBatch    = 300                     // keys of a query
)

// Cloud Tasks, as its quotas page has it.
const (
	queueDispatches = 500 // a second
	queueInFlight   = 5000
)

// A scaleModel is what became of a job over a kind.
type scaleModel struct {
	v              virtualKind
	page           int64
	tasks, pages   int64
	depth          int64
	record, commit int             // the largest, in bytes
	starts         []time.Duration // of tasks, if the queue had no limits
	entities       int64
}

// runScale does with a kind what tasks do with ranges, but for their pages.
func runScale(v virtualKind, workers, page int64) *scaleModel {
	m := &scaleModel{v: v, page: page}
	rng := rand.New(rand.NewPCG(1, 0))
	var sp Splitting
	root := &rangeRecord{Job: "model", ID: rangeID("model", 0), PageSize: page}
	s := stretch{samples: v.sample(rng, sp.sampleSize(workers)), workers: workers}
	var marks []mark
	for _, pages := range markPages {
		at := mark{rank: pages * page}
		if at.rank < v.n {
			at.key = v.key(at.rank)
		}
		marks = append(marks, at)
	}
	counted := time.Duration(0)
	if at := further(s.samples, marks); at != nil {
		marks = append(marks, mark{key: at, rank: min(mostCounted, v.rank(at))})
		counted = modelQuery
	}
	s.estimate = estimateFrom(s.samples, marks)
	if more := samplesFor(s.estimate, page, workers); more > len(s.samples) {
		s.samples = v.sample(rng, more)
		counted += time.Duration(more/modelBatch+1) * modelQuery
	}
	s.portion = s.estimate / workers
	batches := time.Duration(len(s.samples)/modelBatch + 1)
	lookAround := max(batches*modelQuery, time.Duration(markPages[len(markPages)-1]*page)*modelKey+modelQuery)
	m.task(sp, root, s, modelDispatch+modelQuery+lookAround+counted, true)
	return m
}

// task does one task: its range begins to be cut at a time.
func (m *scaleModel) task(sp Splitting, r *rangeRecord, s stretch, at time.Duration, root bool) {
	m.tasks++
	m.depth = max(m.depth, r.Depth)
	first, end := m.v.start(s.start), m.v.rank(s.end)
	begun := false
	type child struct {
		record *rangeRecord
		piece  stretch
		at     time.Duration
	}
	var children []child
	divided := false
	for more := true; more; {
		left := end - first
		more = left > m.page
		if more && s.estimate <= m.page {
			s.estimate = 0
		}
		var c cutting
		if more && !(divided && s.estimate > 0 && s.workers <= 1) {
			c = sp.cut(s, root, m.page, m.page)
		}
		if !c.first && !begun {
			m.starts = append(m.starts, at)
			begun = true
		}
		if c.pieces > 1 {
			pieces, _ := c.apply(s, func(from *datastore.Key, n int64) (*datastore.Key, error) {
				if rank := m.v.start(from) + n; rank < end {
					return m.v.key(rank), nil
				}
				return nil, nil
			})
			if !c.samples { // queries of one key behind others, some at once
				at += time.Duration(len(pieces)/findParallel+1) * modelQuery
			}
			enqueued, size := at+modelCommit, 0
			if !c.first {
				enqueued += modelPage
			}
			for _, piece := range pieces[1:] {
				record := r.child(piece, time.Time{})
				bytes := recordBytes(record)
				size += bytes
				m.record = max(m.record, bytes)
				enqueued += modelEnqueue / 16
				piece.samples = record.Samples
				children = append(children, child{record, piece, enqueued + modelEnqueue + modelDispatch + modelQuery})
			}
			m.commit = max(m.commit, size)
			if c.first {
				at = enqueued
			}
			s = pieces[0]
			end = m.v.rank(s.end)
			root = false
			if c.first && len(pieces) > 1 {
				continue
			}
		}
		m.pages++
		m.entities += min(m.page, end-first)
		if first += m.page; first < end {
			s = s.from(m.v.key(first), s.estimate-m.page)
		}
		more = first < end
		divided = true
	}
	for _, c := range children {
		m.task(sp, c.record, c.piece, c.at, false)
	}
}

func recordBytes(r *rangeRecord) int {
	properties, err := datastore.SaveStruct(r)
	if err != nil {
		panic(err)
	}
	return propertiesSize(properties)
}

// full returns when so many tasks have begun, if the queue dispatches as many a second
// as it can.
func (m *scaleModel) full(workers int64) time.Duration {
	slices.Sort(m.starts)
	var last time.Duration
	for i, at := range m.starts {
		last = max(at, last+time.Second/queueDispatches)
		if int64(i+1) == workers {
			break
		}
	}
	return last
}

const scaleHeader = `| keys | entities | workers | pages | tasks | depth | largest record | largest commit | all at work after | job takes | dispatches/s | page writes/s |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
`

// TestScale runs splitting over kinds of up to a billion entities, and checks what
// docs/scale.md says of it.
func TestScale(t *testing.T) {
	const page = 500
	var table strings.Builder
	table.WriteString(scaleHeader)
	for _, kind := range virtualKinds {
		for _, n := range []int64{1e4, 1e5, 1e6, 1e7, 1e8, 1e9} {
			if n > 1e7 && testing.Short() || n > 1e8 && !*writeScale && kind.name != "sequential" {
				continue
			}
			for _, workers := range []int64{100, 1000, 5000} {
				m := runScale(virtualKind{n, kind.key(n)}, workers, page)
				pages := float64(n) / page
				deepest := int64(math.Log(pages)/math.Log(maxFanOut)) + 3
				if m.entities != n || m.depth > deepest || float64(m.pages) > 1.1*pages+20 || m.tasks > m.pages {
					t.Errorf("%s, %d entities, %d workers: %d entities in %d pages of %d tasks, depth %d, want at most %d",
						kind.name, n, workers, m.entities, m.pages, m.tasks, m.depth, deepest)
				}
				if m.record > maxSampleBytes+1<<10 || m.commit > 8<<20 {
					t.Errorf("%s, %d entities, %d workers: a record of %d bytes, a commit of %d", kind.name, n, workers, m.record, m.commit)
				}
				busy := min(workers, m.tasks)
				start := m.full(busy)
				takes := start + time.Duration(float64(m.pages)/float64(busy)*float64(modelPage))
				rate := float64(m.pages) / takes.Seconds()
				fmt.Fprintf(&table, "| %s | %d | %d | %d | %d | %d | %d B | %.1f KiB | %.1f s | %v | %.1f | %.0f |\n", kind.name, n, workers,
					m.pages, m.tasks, m.depth, m.record, float64(m.commit)/1024, start.Seconds(), takes.Round(time.Second), float64(m.tasks)/takes.Seconds(), 2*rate)
			}
		}
	}
	const file, begin, end = "../docs/scale.md", "<!-- table: begin -->\n", "<!-- table: end -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(text), begin)
	old, after, found := strings.Cut(rest, end)
	switch {
	case !found:
		t.Fatalf("%s has no %s", file, strings.TrimSpace(end))
	case *writeScale:
		if err := os.WriteFile(file, []byte(before+begin+table.String()+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	for row := range strings.Lines(table.String()) {
		if !strings.Contains(old, row) {
			t.Errorf("%s does not have %q; write its table again: go test ./mapper -run TestScale -args -scale", file, row)
		}
	}
}

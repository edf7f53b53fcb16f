package query

import (
	"container/heap"
	"slices"
	"strings"

	"github.com/scattermap/scattermap/emulator/internal/collate"
	"github.com/scattermap/scattermap/emulator/internal/model"
	"github.com/scattermap/scattermap/emulator/internal/store"
)

// A Pause lets other calls run during a scan. A scan may look at millions of entries.
type Pause interface {
	Wanted() bool // reports whether another caller waits for the database
	Pause()       // lets waiting calls run; they may change the maps that the scan reads
}

// pauseEvery is the number of entries after which a scan checks for waiting callers.
const pauseEvery = 64

// A Need is an index that a query needs for its scan.
type Need struct {
	Definition store.Definition

	query *Query
	of    *conjunction
}

// Needs returns the indexes that the query needs for its scan.
func (q *Query) Needs() []Need {
	var all []Need
	if q.byScatter() {
		return nil
	}
	for _, c := range q.anyOf {
		if s := q.plan(c); !c.never && len(s.definition) > 0 {
			all = append(all, Need{s.definition, q, c})
		}
	}
	return all
}

// Narrow makes the query use an index with fewer equalities, because an entity has too many entries
// in the present one. counts has the entity's numbers of values for the present index's properties.
// It returns false if no equality is left to drop.
func (n Need) Narrow(counts []int) bool { return n.query.narrow(n.of, counts) }

// ByKey reports whether the results are in ascending key order. If so, it returns the range of
// paths that contains the results: from (included) and to (excluded). An empty to is no bound.
func (q *Query) ByKey() (from, to string, ok bool) {
	byKey := store.Order{Property: model.KeyProperty}
	if len(q.Projected) > 0 || q.Distinct > 0 || len(q.orders) > 1 || len(q.orders) == 1 && q.orders[0] != byKey {
		return "", "", false
	}
	for i, c := range q.anyOf {
		if i == 0 {
			from, to = c.lo, c.hi
			continue
		}
		from = min(from, c.lo)
		if to == "" || c.hi == "" {
			to = ""
		} else {
			to = max(to, c.hi)
		}
	}
	return max(from, q.From), lower(to, q.To), true
}

// Scan calls visit for the rows of a query, in order, until visit returns false. It reads the state
// at the time at. If other calls wait, it pauses. During a pause, the caller must keep the versions
// of that time.
//
// For each conjunction, Scan reads an index in the order of the query, from the start cursor on. It
// merges these rows. A query without a kind merges the rows of all kinds.
func (q *Query) Scan(kinds []*store.Kind, at int64, p Pause, visit func(Row) bool) {
	m := &merge{pause: p}
	defer m.close()
	for _, k := range kinds {
		m.look(1)
		if q.byScatter() {
			m.add(q.source(k.Scattered(), scan{}, at))
			continue
		}
		for _, c := range q.anyOf {
			if c.never {
				continue
			}
			s := q.plan(c)
			if len(s.definition) == 0 {
				m.add(q.source(k.Keys(), s, at))
			} else {
				m.add(q.source(k.Entries(s.definition), s, at))
			}
		}
	}
	last := ""
	group, grouped := "", false
	for {
		r, ok := m.least()
		if !ok || q.To != "" && r.SortKey >= q.To {
			return
		}
		if r.SortKey == last {
			continue // another conjunction has already returned this row
		}
		last = r.SortKey
		if q.Distinct > 0 {
			if grouped && r.SortKey[:r.Group] == group {
				continue
			}
			group, grouped = r.SortKey[:r.Group], true
		}
		if !visit(r) {
			q.Scanned-- // visit did not use the last row
			return
		}
	}
}

// A merge merges the rows of several sources in the order of the query.
type merge struct {
	sources []*source
	byRow   byRow // the sources that have a next row, as a heap; nil before the first row
	pause   Pause
	looked  int // number of entries since the last check for waiting callers
}

func (m *merge) add(s *source) {
	s.merge = m
	m.sources = append(m.sources, s)
}

func (m *merge) close() {
	for _, s := range m.sources {
		s.iter.Close()
	}
}

// look counts work: 1 for an entry, and more for slower steps. Each time the count exceeds
// pauseEvery, it checks for waiting callers, and pauses for them.
func (m *merge) look(work int) {
	if m.looked += work; m.looked < pauseEvery {
		return
	}
	m.looked = 0
	if !m.pause.Wanted() {
		return
	}
	for _, s := range m.sources {
		if s.first && !s.paused {
			s.paused, s.entry = true, s.iter.Key()
		}
	}
	m.pause.Pause()
}

// least returns the lowest next row of all sources, and removes it from its source.
func (m *merge) least() (Row, bool) {
	switch {
	case m.byRow == nil:
		m.byRow = make(byRow, 0, len(m.sources))
		for _, s := range m.sources {
			if s.peek() {
				m.byRow = append(m.byRow, s)
			}
		}
		heap.Init(&m.byRow)
	case len(m.byRow) > 0: // the first source's row was removed, so its next row belongs elsewhere in the heap
		if m.byRow[0].peek() {
			heap.Fix(&m.byRow, 0)
		} else {
			heap.Pop(&m.byRow)
		}
	}
	if len(m.byRow) == 0 {
		return Row{}, false
	}
	first := m.byRow[0]
	first.next++
	return first.rows[first.next-1], true
}

// byRow is a heap of the sources that have a next row, ordered by that row.
type byRow []*source

func (h byRow) Len() int { return len(h) }
func (h byRow) Less(i, j int) bool {
	return h[i].rows[h[i].next].SortKey < h[j].rows[h[j].next].SortKey
}
func (h byRow) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *byRow) Push(s any)   { *h = append(*h, s.(*source)) }
func (h *byRow) Pop() any {
	last := len(*h) - 1
	s := (*h)[last]
	*h = (*h)[:last]
	return s
}

// A source returns the rows of one scan, in order, to the merge of all scans.
type source struct {
	query  *Query
	merge  *merge
	at     int64
	prefix string
	end    string // the end of the entries to read; empty: the end of the index
	iter   store.Iterator
	down   bool
	keys   bool                     // whether rows can be computed from keys alone
	first  bool                     // whether the iterator is at an entry that was not used yet
	paused bool                     // whether there was a pause, so that the iterator must seek its entry again
	entry  string                   // the entry before the pause
	rows   []Row                    // the rows of the present entry
	next   int                      // index in rows of the next row to return
	sorts  map[*store.Record]string // sort keys of entities with many values; "" if the entity has no row
}

// manyValues is the number of values from which on an entity's sort key is stored in the source.
// Otherwise it would be computed again for each of the entity's entries in the index.
const manyValues = 32

func (q *Query) source(iter store.Iterator, s scan, at int64) *source {
	src := &source{query: q, at: at, prefix: s.prefix, iter: iter, down: s.reverse, keys: !q.needsProperties() &&
		q.Distinct == 0}
	if s.reverse {
		src.end = s.lo
		from := s.hi
		if q.From != "" { // the bound of the path in From, which peek may skip
			from = lower(from, collate.Invert(strings.TrimSuffix(q.From, "\x00"))+"\x00")
		}
		// Seek goes to the first entry at or above the key. A reverse scan starts at the entry
		// below it.
		switch {
		case from == "":
			src.first = src.iter.Last()
		case src.iter.Seek(from):
			src.first = src.iter.Prev()
		default:
			src.first = src.iter.Last()
		}
		return src
	}
	if s.hi != "" {
		src.end = s.prefix + s.hi
	}
	src.first = src.iter.Seek(s.prefix + max(s.lo, q.From))
	return src
}

// resume continues after a pause. The parameter next is the entry at which the source was before
// the pause. If this entry no longer exists, resume continues at the one that follows it in the
// scan.
func (s *source) resume(next string) {
	s.iter.Renew()
	switch found := s.iter.Seek(next); {
	case !s.down:
		s.first = found
	case !found:
		s.iter.Renew()
		s.first = s.iter.Last()
	default:
		s.first = s.iter.Key() == next || s.iter.Prev()
	}
}

// peek finds the next row, and reports whether there is one.
func (s *source) peek() bool {
	q := s.query
	for s.next == len(s.rows) && s.first {
		if s.paused {
			s.paused = false
			if s.resume(s.entry); !s.first {
				break
			}
		}
		s.rows, s.next = s.rows[:0], 0
		entry, r := s.iter.Key(), s.iter.Record()
		if s.ends(entry) {
			break
		}
		s.first = s.step()
		v, ok := r.At(s.at)
		if !ok {
			s.merge.look(1)
			continue
		}
		s.merge.look(1 + s.work(v))
		q.Scanned++
		key := entry[len(s.prefix):]
		if s.down {
			key = collate.Invert(entry)
		}
		if key < q.From {
			continue
		}
		if s.keys {
			if q.holdsPath(r.Path) {
				s.rows = append(s.rows, Row{SortKey: key, Version: v})
			}
			continue
		}
		// The entry may belong to another version of the entity. It may also be of another value
		// than that by which the entity sorts.
		many := len(q.Projected) == 0 && v.Indexed() > manyValues
		if many {
			if sortKey, known := s.sorts[r]; known && sortKey != key {
				continue
			}
		}
		wanted := key
		if many {
			wanted = ""
		}
		s.rows = q.Rows(s.rows, r, v, wanted)
		if many {
			s.keep(r)
		}
		s.rows = slices.DeleteFunc(s.rows, func(r Row) bool { return r.SortKey != key })
	}
	return s.next < len(s.rows)
}

// ends reports whether an entry is after the end of the scan.
func (s *source) ends(entry string) bool {
	if s.down {
		return entry < s.end
	}
	return s.end != "" && entry >= s.end || !strings.HasPrefix(entry, s.prefix)
}

// step goes to the next entry, and returns false if there is none.
func (s *source) step() bool {
	if s.down {
		return s.iter.Prev()
	}
	return s.iter.Next()
}

// work returns the amount of work for computing the rows of a version.
func (s *source) work(v store.Version) int {
	const valuesPerEntry = 16
	if s.keys {
		return 0
	}
	return v.Indexed() / valuesPerEntry
}

// keep stores the sort key of an entity with many values.
func (s *source) keep(r *store.Record) {
	if s.sorts == nil {
		s.sorts = make(map[*store.Record]string)
	}
	s.sorts[r] = ""
	if len(s.rows) > 0 {
		s.sorts[r] = s.rows[0].SortKey
	}
}

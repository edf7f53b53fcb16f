package dsemu

import (
	"slices"
	"strings"

	"github.com/tidwall/btree"

	"github.com/scattermap/scattermap/emulator/internal/collate"
)

// scan visits the rows of a query as of a time, in order, until visit returns
// false.
//
// Each conjunction is a scan of an index that has its results in the order of
// the query, from the start cursor on. Several are merged; so are all kinds, for
// a query without one.
func (q *query) scan(kinds []*kind, at int64, visit func(row) bool) {
	var sources []*source
	for _, k := range kinds {
		if q.byScatter() {
			sources = append(sources, q.source(keysOf(&k.scatter), scan{}, at))
			continue
		}
		for _, c := range q.anyOf {
			s := q.plan(c)
			if len(s.definition) == 0 {
				sources = append(sources, q.source(keysOf(&k.records), s, at))
			} else {
				sources = append(sources, q.source(entriesOf(k.index(s.definition)), s, at))
			}
		}
	}
	last := ""
	// The group that a cursor was made in has had its row.
	group, grouped := q.afterGroup, q.after != ""
	for {
		r, ok := least(sources)
		if !ok || q.bounded && r.sortKey > q.until {
			return
		}
		if r.sortKey == last {
			continue // another conjunction's
		}
		last = r.sortKey
		if q.distinct > 0 {
			if grouped && r.sortKey[:r.group] == group {
				continue
			}
			group, grouped = r.sortKey[:r.group], true
		}
		if !visit(r) {
			q.scanned-- // the row that was one too many
			return
		}
	}
}

// least takes the next row of the source whose next row comes first.
func least(sources []*source) (row, bool) {
	var first *source
	for _, s := range sources {
		if !s.peek() {
			continue
		}
		if first == nil || s.rows[s.next].sortKey < first.rows[first.next].sortKey {
			first = s
		}
	}
	if first == nil {
		return row{}, false
	}
	first.next++
	return first.rows[first.next-1], true
}

// An iterator goes over a map of records, or over an index.
type iterator interface {
	Seek(key string) bool // to the first at or above it
	Last() bool
	Next() bool
	Prev() bool
	Key() string
	record() *record
}

type keyIterator struct{ btree.MapIter[string, *record] }

func (i *keyIterator) record() *record { return i.Value() }

type entryIterator struct{ btree.MapIter[string, entry] }

func (i *entryIterator) record() *record { return i.Value().record }

func keysOf(m *btree.Map[string, *record]) iterator { return &keyIterator{m.Iter()} }
func entriesOf(idx *index) iterator                 { return &entryIterator{idx.entries.Iter()} }

// A source returns the rows of one scan.
type source struct {
	query  *query
	at     int64
	prefix string
	end    string // of the entries; empty: none
	iter   iterator
	down   bool
	keys   bool  // rows depend on keys only
	first  bool  // the iterator is at an entry that is still to be looked at
	rows   []row // of the last entry
	next   int   // of them
}

func (q *query) source(iter iterator, s scan, at int64) *source {
	src := &source{query: q, at: at, prefix: s.prefix, iter: iter, down: s.reverse, keys: !q.needsProperties() && q.distinct == 0}
	if s.reverse {
		src.end = s.lo
		from := s.hi
		if q.after != "" {
			from = lower(from, collate.Invert(q.after))
		}
		// The iterator goes to the first entry at or above: what is wanted is below.
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
	src.first = src.iter.Seek(s.prefix + max(s.lo, q.after))
	return src
}

// peek makes sure that the next row is known, if there is one.
func (s *source) peek() bool {
	q := s.query
	for s.next == len(s.rows) && s.first {
		s.rows, s.next = s.rows[:0], 0
		entry, r := s.iter.Key(), s.iter.record()
		if s.down {
			if entry < s.end {
				break
			}
			s.first = s.iter.Prev()
		} else {
			if s.end != "" && entry >= s.end || !strings.HasPrefix(entry, s.prefix) {
				break
			}
			s.first = s.iter.Next()
		}
		v, ok := r.at(s.at)
		if !ok {
			continue
		}
		q.scanned++
		key := entry[len(s.prefix):]
		if s.down {
			key = collate.Invert(entry)
		}
		if key <= q.after {
			continue
		}
		if s.keys {
			if q.holdsPath(r.path) {
				s.rows = append(s.rows, row{sortKey: key, version: v})
			}
			continue
		}
		// An entry may be of another version of the entity, or of another value of
		// it than that by which it sorts.
		s.rows = q.rows(s.rows, r, v)
		s.rows = slices.DeleteFunc(s.rows, func(r row) bool { return r.sortKey != key })
	}
	return s.next < len(s.rows)
}

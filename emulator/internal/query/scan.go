package query

import (
	"slices"
	"strings"

	"github.com/scattermap/scattermap/emulator/internal/collate"
	"github.com/scattermap/scattermap/emulator/internal/store"
)

// Scan visits the rows of a query as of a time, in order, until visit returns
// false.
//
// Each conjunction is a scan of an index that has its results in the order of
// the query, from the start cursor on. Several are merged; so are all kinds, for
// a query without one.
func (q *Query) Scan(kinds []*store.Kind, at int64, visit func(Row) bool) {
	var sources []*source
	for _, k := range kinds {
		if q.byScatter() {
			sources = append(sources, q.source(k.Scattered(), scan{}, at))
			continue
		}
		for _, c := range q.anyOf {
			s := q.plan(c)
			if len(s.definition) == 0 {
				sources = append(sources, q.source(k.Keys(), s, at))
			} else {
				sources = append(sources, q.source(k.Entries(s.definition), s, at))
			}
		}
	}
	last := ""
	// The group that a cursor was made in has had its row.
	group, grouped := q.AfterGroup, q.After != ""
	for {
		r, ok := least(sources)
		if !ok || q.Bounded && r.SortKey > q.Until {
			return
		}
		if r.SortKey == last {
			continue // another conjunction's
		}
		last = r.SortKey
		if q.Distinct > 0 {
			if grouped && r.SortKey[:r.Group] == group {
				continue
			}
			group, grouped = r.SortKey[:r.Group], true
		}
		if !visit(r) {
			q.Scanned-- // the row that was one too many
			return
		}
	}
}

// least takes the next row of the source whose next row comes first.
func least(sources []*source) (Row, bool) {
	var first *source
	for _, s := range sources {
		if !s.peek() {
			continue
		}
		if first == nil || s.rows[s.next].SortKey < first.rows[first.next].SortKey {
			first = s
		}
	}
	if first == nil {
		return Row{}, false
	}
	first.next++
	return first.rows[first.next-1], true
}

// A source returns the rows of one scan.
type source struct {
	query  *Query
	at     int64
	prefix string
	end    string // of the entries; empty: none
	iter   store.Iterator
	down   bool
	keys   bool  // rows depend on keys only
	first  bool  // the iterator is at an entry that is still to be looked at
	rows   []Row // of the last entry
	next   int   // of them
}

func (q *Query) source(iter store.Iterator, s scan, at int64) *source {
	src := &source{query: q, at: at, prefix: s.prefix, iter: iter, down: s.reverse, keys: !q.needsProperties() && q.Distinct == 0}
	if s.reverse {
		src.end = s.lo
		from := s.hi
		if q.After != "" {
			from = lower(from, collate.Invert(q.After))
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
	src.first = src.iter.Seek(s.prefix + max(s.lo, q.After))
	return src
}

// peek makes sure that the next row is known, if there is one.
func (s *source) peek() bool {
	q := s.query
	for s.next == len(s.rows) && s.first {
		s.rows, s.next = s.rows[:0], 0
		entry, r := s.iter.Key(), s.iter.Record()
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
		v, ok := r.At(s.at)
		if !ok {
			continue
		}
		q.Scanned++
		key := entry[len(s.prefix):]
		if s.down {
			key = collate.Invert(entry)
		}
		if key <= q.After {
			continue
		}
		if s.keys {
			if q.holdsPath(r.Path) {
				s.rows = append(s.rows, Row{SortKey: key, Version: v})
			}
			continue
		}
		// An entry may be of another version of the entity, or of another value of
		// it than that by which it sorts.
		s.rows = q.Rows(s.rows, r, v)
		s.rows = slices.DeleteFunc(s.rows, func(r Row) bool { return r.SortKey != key })
	}
	return s.next < len(s.rows)
}

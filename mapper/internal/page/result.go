package page

import (
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/tally"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// A result is what became of one of a page's entities. What the page comes to is folded from the
// results, in the order of the entities: so one of them can be replaced.
type result struct {
	at      *keyspace.Position
	read    wire.Stamp       // what the function got
	compare bool             // it was read, and so it can be told whether others have changed it
	effect  *function.Effect // nil: it has failed, or is none of the query's any more
	failure *record.Failure  // nil: it has not failed
	bytes   int              // of what was collected of it

	incomplete function.Effect // what it puts under keys that the database has to complete
	completed  []*datastore.Key

	ran   bool // the function has returned
	moves int  // how often it was found changed
}

// A sum is what results come to.
type sum struct {
	Processed int64
	Written   int64 // of them, entities that the function has saved or deleted
	Counters  tally.Counters
	Failures  []record.Failure
	Bytes     int   // of the mutations, and of entities of which something was collected
	Collected []any // by the function

	// What is written of the page's own entities, and what of others; and what is left as it is, by
	// an undo.
	Own, Others []*datastore.Key
	Gone        []*datastore.Key // of Own: those that are deleted
	// when those of Own had been written, in microseconds after 1970, as they were read; 0: unknown
	OwnAt    []int64
	Left     []undolog.Left
	Examples []record.Example // of what a rehearsal would do

	written  map[string]bool // entities that others put or deleted
	inserted map[string]bool // of these, entities that must not have been there
	writes   int             // mutations
	compared int             // entities that are read and not written, on which these rely
}

// add adds the next result.
func (s *sum) add(r *result) {
	if r.failure != nil {
		s.Failures = append(s.Failures, *r.failure)
	}
	e := r.effect
	if e == nil {
		return
	}
	s.Processed++
	s.Counters.Merge(e.Counters)
	s.Bytes += e.Bytes + r.bytes
	s.Collected = append(s.Collected, e.Collected...)
	s.Left = append(s.Left, e.Left...)
	if e.Example != nil && len(s.Examples) < record.PageExamples {
		s.Examples = append(s.Examples, e.Example()...)
	}
	writes := s.writes
	s.writes += len(e.Mutations) + len(r.incomplete.Mutations)
	own := len(s.Own)
	defer func() {
		if r.compare && s.writes > writes && len(s.Own) == own {
			s.compared++
		}
	}()
	for _, seen := range e.Seen {
		if r.compare && s.writes > writes && !seen.OfPage {
			s.compared++
		}
	}
	for _, m := range e.Mutations {
		if m.Key.Equal(r.at.Key) {
			s.Written++
			s.Own, s.OwnAt = append(s.Own, m.Key), append(s.OwnAt, r.read.At)
			if m.Deletes {
				s.Gone = append(s.Gone, m.Key)
			}
			continue
		}
		if s.written == nil {
			s.written = make(map[string]bool)
		}
		s.written[m.Key.Encode()] = true
		if m.Inserts {
			if s.inserted == nil {
				s.inserted = make(map[string]bool)
			}
			s.inserted[m.Key.Encode()] = true
		}
		s.Others = append(s.Others, m.Key)
	}
	s.Others = append(s.Others, r.completed...)
}

// takes reports whether a page can have another entity, after those of a sum: not if they write
// that, which has to be read after that, or something that the entity writes on a condition, or
// writes too and they on one, as one commit can't have both.
func (s *sum) takes(at *datastore.Key, e *function.Effect) bool {
	if len(s.written) == 0 {
		return true
	}
	if s.written[at.Encode()] {
		return false
	}
	if e == nil {
		return true
	}
	for _, m := range e.Mutations {
		if m.Key.Incomplete() {
			continue
		}
		name := m.Key.Encode()
		if s.written[name] && (m.Inserts || m.On != (wire.Condition{}) && !m.On.Free) || s.inserted[name] {
			return false
		}
	}
	return true
}

// A Guard is an entity that has to be as it was when the page's commit takes effect.
type Guard struct {
	Key  *datastore.Key
	Was  wire.Stamp
	Free bool // nothing is written of it, whose condition would say that

	of int // the place of the page's entity that needs it
}

// Guards returns what the page's commit relies on: entities that it writes over what was read of
// them, and those that were read and of which something is put or deleted elsewhere.
func (o *Results) Guards() (all []Guard) {
	written := make(map[string]bool) // by the entities before: such a guard is theirs
	for i := range o.results {
		if i > 0 && !o.visits {
			for _, name := range o.results[i-1].writes() {
				written[name] = true
			}
		}
		r := &o.results[i]
		if o.visits || r.effect == nil {
			continue
		}
		own := false
		for _, m := range r.effect.Mutations {
			switch {
			case m.Inserts:
				if !written[m.Key.Encode()] {
					all = append(all, Guard{Key: m.Key, Was: wire.Stamp{Gone: true}, of: i})
				}
			case m.Key.Equal(r.at.Key) && (m.On == (wire.Condition{}) || m.On.Free):
				own = true
			case m.On != (wire.Condition{}) && !m.On.Free:
				all = append(all, Guard{Key: m.Key, Was: wire.Stamp{Version: m.On.Version, Gone: m.On.Version == 0},
					of: i})
			}
		}
		if len(r.effect.Mutations)+len(r.incomplete.Mutations) == 0 {
			continue
		}
		if r.compare {
			all = append(all, Guard{Key: r.at.Key, Was: r.read, Free: !own, of: i})
		}
		for _, s := range r.effect.Seen {
			if !s.OfPage {
				all = append(all, Guard{Key: s.Key, Was: s.Stamp, Free: true, of: i})
			}
		}
	}
	return all
}

// Mutations returns what the page's commit writes, besides the record of its range. Of several
// mutations of one entity the last one counts.
func (o *Results) Mutations() []wire.Mutation {
	all := make([]wire.Mutation, 0, o.Writes())
	var last map[string]int // by key, of those of other entities than the page's own
	add := func(m wire.Mutation, key *datastore.Key) {
		name := key.Encode()
		if i, ok := last[name]; ok {
			all[i] = m
			return
		}
		if last == nil {
			last = make(map[string]int)
		}
		last[name] = len(all)
		all = append(all, m)
	}
	for i := range o.results {
		r := &o.results[i]
		if o.visits || r.effect == nil {
			continue
		}
		for _, m := range r.effect.Mutations {
			switch w := m.Wire(); {
			case !m.Key.Equal(r.at.Key):
				add(w, m.Key)
			case r.compare && (w.Condition == (wire.Condition{}) || w.Free):
				w.Version, w.Free = r.read.Version, false
				all = append(all, w)
			default:
				all = append(all, w)
			}
		}
		for _, m := range r.incomplete.Mutations {
			all = append(all, m.Wire())
		}
	}
	for _, m := range o.Page.Mutations {
		if m.Key.Incomplete() {
			all = append(all, m.Wire())
		} else {
			add(m.Wire(), m.Key)
		}
	}
	return all
}

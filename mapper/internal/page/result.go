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

// A result is the outcome of one entity of a page. A page's sum is computed from its results in
// the order of the entities, so a single result can be replaced.
type result struct {
	at      *keyspace.Position
	read    wire.Stamp       // the entity as the function got it
	compare bool             // it was read, so the commit can check that nobody has changed it
	effect  *function.Effect // nil: the function has failed or did not run
	failure *record.Failure  // nil: it has not failed
	bytes   int              // size of the entity, if the function has collected something

	incomplete function.Effect // puts under keys that the database has to complete
	completed  []*datastore.Key

	ran   bool // the function has returned
	moves int  // how often the entity was found changed
}

// A sum is the total of a page's results.
type sum struct {
	Processed int64
	Written   int64 // entities of the page that were saved or deleted
	Counters  tally.Counters
	Failures  []record.Failure
	Bytes     int   // size of the mutations, and of entities with collected values
	Collected []any // by the function
	Compared  int   // number of entities that are read but not written, and that the commit compares

	// Own are the written entities of the page, and Others are other written entities.
	Own, Others []*datastore.Key
	Gone        []*datastore.Key // the deleted ones of Own
	// OwnAt are the times of the last write to each of Own before this page, in microseconds
	// since 1970; 0: unknown.
	OwnAt    []int64
	Left     []undolog.Left   // entities that an undo does not restore
	Examples []record.Example // of the writes of a rehearsal

	written  map[string]bool // other entities that were put or deleted
	inserted map[string]bool // those that must not have existed
	writes   int             // number of mutations
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
			s.Compared++
		}
	}()
	for _, seen := range e.Seen {
		if r.compare && s.writes > writes && !seen.OfPage {
			s.Compared++
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

// takes reports whether a page with this sum can take another entity into the same commit. It can't
// in two cases:
//
//   - The page has written the entity, so it must be read after that commit.
//   - Both write the same other entity, and one of the writes depends on the entity's earlier
//     state: the new write has a condition, or the page's write is an insert.
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
		name := m.Key.Encode()
		if s.written[name] && (m.Inserts || m.On != (wire.Condition{}) && !m.On.Free) || s.inserted[name] {
			return false
		}
	}
	return true
}

// A Guard is an entity that must be unchanged when the page's commit takes effect.
type Guard struct {
	Key  *datastore.Key
	Was  wire.Stamp
	Free bool // the commit does not write it, so no mutation checks it

	of int // the place of the page's entity that needs the guard
}

// Guards returns the entities on which the page's commit depends. These are entities that it
// inserts, or overwrites after reading them. If an entity writes anything, everything that its
// function has read is guarded, too.
func (o *Results) Guards() (all []Guard) {
	if o.visits {
		return nil
	}
	for i := range o.results {
		r := &o.results[i]
		if r.effect == nil {
			continue
		}
		own := false
		for _, m := range r.effect.Mutations {
			switch {
			case m.Inserts:
				if o.writer(i, m.Key.Encode()) < 0 { // otherwise an earlier entity has the guard
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

// Mutations returns the writes of the page's commit except the range's record. The last mutation
// of an entity replaces earlier ones.
func (o *Results) Mutations() []wire.Mutation {
	all := make([]wire.Mutation, 0, o.Writes())
	var last map[string]int // by key: index of the mutation of an entity besides the page's own
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

package page

import (
	"cmp"
	"iter"
	"slices"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/tally"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// A result is what a call of the function has produced for one entity of a page. The page's totals
// are calculated from the results in the order of the entities, so that a single result can be
// replaced.
type result struct {
	at   *keyspace.Position
	read wire.Stamp // the entity's state that the function got
	// compare says that the entity was read, so that the commit must check that it is unchanged.
	compare bool
	effect  *function.Effect // the writes that the function has asked for; nil: it has failed, or did not run
	failure *record.Failure  // the failure; nil: there is none
	saw     []function.Seen  // the states of other entities that the call has got
	bytes   int              // size of the entity if the function has collected a value from it, otherwise 0

	incomplete function.Effect // puts with incomplete keys, which the database has to complete
	completed  []*datastore.Key

	ran   bool // whether the function has run to its end
	moves int  // number of times that the function ran again because other clients had changed the entity
}

// A sum has the totals of a page's results.
type sum struct {
	Processed int64
	Written   int64 // number of the page's entities that were saved or deleted
	Counters  tally.Counters
	Failures  []record.Failure
	Bytes     int   // size of the mutations, and of the entities from which values were collected
	Collected []any // values that the function has collected
	Compared  int   // number of entities that the commit does not write, but must find unchanged

	// Own has the page's entities that are written, and Others the other entities that are written.
	Own, Others []*datastore.Key
	Gone        []*datastore.Key // the entities in Own that are deleted
	// OwnAt has the time of the last write to each entity in Own before this page, in microseconds
	// since 1970. 0 means unknown.
	OwnAt    []int64
	Left     []undolog.Left   // entities that the page of an undo does not restore
	Examples []record.Example // examples of what a rehearsal would write

	compared map[string]bool // keys of the entities that Compared counts

	written map[string]bool // keys of other entities that are put or deleted
	// inserted has the keys of other entities that are inserted. The commit requires that they do
	// not exist.
	inserted map[string]bool
	writes   int // total number of mutations
}

// add adds the result of the next entity to the sum.
func (s *sum) add(r *result) {
	if r.failure != nil {
		s.Failures = append(s.Failures, *r.failure)
	}
	s.compares(r)
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
	s.writes += len(e.Mutations) + len(r.incomplete.Mutations)
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

// compares counts the entities that the commit compares for a result.
func (s *sum) compares(r *result) {
	for g := range r.guards(0) {
		if !g.Free { // the usual case, in which encoding the key would take time
			continue
		}
		if name := g.Key.Encode(); !s.compared[name] {
			if s.compared == nil {
				s.compared = make(map[string]bool)
			}
			s.compared[name] = true
			s.Compared++
		}
	}
}

// takes reports whether the commit of a page with this sum can include one more entity of the page.
// The argument at is the entity's key, and e is its effect, or nil if that is unknown. There are
// two reasons why it can't:
//
//   - The page has already written the entity, so the function must read it after the commit.
//   - The page and e write the same other entity, and one of the writes depends on that entity's
//     earlier state. This is so if the write in e has a condition, or if the page's write is an
//     insert.
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

// A Guard is an entity that must be unchanged when the page's commit takes effect. Otherwise the
// commit fails.
type Guard struct {
	Key  *datastore.Key
	Was  wire.Stamp
	Free bool // whether the commit does not write the entity, so that no mutation can check its version

	of int // the place of the page's entity whose result depends on the guarded entity
}

// nothing is the effect of a call that has failed.
var nothing = new(function.Effect)

// seen returns the states of other entities on which the result depends.
func (r *result) seen() []function.Seen {
	if r.effect != nil {
		return r.effect.Seen
	}
	return r.saw // the call has failed
}

// guards returns the entities that a call has read, if they must be unchanged when the page commits.
// The argument place is the entity's index in the page. A call that has read only its own entity,
// and writes nothing, has none, because it has seen a single state of the database.
func (r *result) guards(place int) iter.Seq[Guard] {
	return func(yield func(Guard) bool) {
		e, seen := cmp.Or(r.effect, nothing), r.seen()
		for _, s := range seen {
			if !s.OfPage {
				if !yield(Guard{Key: s.Key, Was: s.Stamp, Free: true, of: place}) {
					return
				}
			}
		}
		if r.compare && len(seen)+len(e.Mutations)+len(r.incomplete.Mutations) > 0 {
			own := Guard{Key: r.at.Key, Was: r.read, Free: true, of: place}
			for _, m := range e.Mutations {
				if m.Key.Equal(r.at.Key) {
					own.Free = m.On != (wire.Condition{}) && !m.On.Free
				}
			}
			yield(own)
		}
	}
}

// Guards returns the entities that must be unchanged when the page commits. These are entities that
// the page inserts, or overwrites after it has read them, and the entities that calls have read.
func (o *Results) Guards() (all []Guard) {
	if o.visits {
		return nil
	}
	for i := range o.results {
		r := &o.results[i]
		for _, m := range cmp.Or(r.effect, nothing).Mutations {
			switch {
			case m.Inserts:
				if o.writer(i, m.Key.Encode()) < 0 { // otherwise the result of an earlier entity has this guard
					all = append(all, Guard{Key: m.Key, Was: wire.Stamp{Gone: true}, of: i})
				}
			case m.On != (wire.Condition{}) && !m.On.Free:
				all = append(all, Guard{Key: m.Key, Was: wire.Stamp{Version: m.On.Version, Gone: m.On.Version == 0},
					of: i})
			}
		}
		all = slices.AppendSeq(all, r.guards(i))
	}
	return all
}

// Mutations returns the writes of the page's commit, without the record of the page's range. If
// several results write the same entity, the last mutation replaces the earlier ones.
func (o *Results) Mutations() []wire.Mutation {
	all := make([]wire.Mutation, 0, o.Writes())
	var last map[string]int // indexes of the mutations of other entities, by encoded key
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

package page

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// others has the other entities that calls of the function have read, with their states in the
// database. It also says which results of the page write which entities.
type others struct {
	stamps map[string]wire.Stamp // states in the database, by encoded key
	reads  atomic.Int64          // number of entities that were read for stamps

	// wrote has, for each encoded key, the places (indexes in the page) of the results that write
	// this entity.
	wrote map[string][]int
	upTo  int // number of results that wrote includes
}

// note records the state of an entity in the database.
func (o *others) note(key *datastore.Key, s wire.Stamp) {
	if o.stamps == nil {
		o.stamps = make(map[string]wire.Stamp)
	}
	o.stamps[key.Encode()] = s
}

// OtherReads returns the number of reads of other entities: for the function, and by the commit,
// which compares them.
func (o *Results) OtherReads() int {
	if o.visits { // the commit compares nothing
		return int(o.known.reads.Load())
	}
	return o.Compared + int(o.known.reads.Load())
}

// before returns the state of an entity that the function sees when it runs on the page's entity at
// place, an index in the page. This includes the page's writes for earlier entities. The bool is
// false if the state is not known yet and must be read.
func (o *Results) before(place int, key *datastore.Key) (s function.Seen, ok bool, err error) {
	name := key.Encode()
	if by := o.writer(place, name); by >= 0 {
		for _, m := range o.results[by].effect.Mutations {
			if m.Key.Equal(key) {
				after, err := m.After()
				return function.Seen{Key: key, Stamp: after, OfPage: true}, true, err
			}
		}
	}
	stamp, ok := o.known.stamps[name]
	return function.Seen{Key: key, Stamp: stamp}, ok, nil
}

// writer returns the place (index in the page) of the last result before place that writes the
// entity with the encoded key name, or -1 if none does.
func (o *Results) writer(place int, name string) int {
	if o.known.wrote == nil {
		o.known.wrote = make(map[string][]int)
	}
	for ; o.known.upTo < len(o.results); o.known.upTo++ {
		for _, name := range o.results[o.known.upTo].writes() {
			o.known.wrote[name] = append(o.known.wrote[name], o.known.upTo)
		}
	}
	all := o.known.wrote[name]
	if n, _ := slices.BinarySearch(all, place); n > 0 {
		return all[n-1]
	}
	return -1
}

// writes returns the encoded keys of all entities that the function writes in a result.
func (r *result) writes() (names []string) {
	if r.effect == nil {
		return nil
	}
	for _, m := range r.effect.Mutations {
		if !m.Key.Incomplete() {
			names = append(names, m.Key.Encode())
		}
	}
	return names
}

// replace sets the result at the place i to r. A place is an index in the page. Calls for later
// entities may have read or inserted something that the old or the new result writes. The function must run
// again on these entities. So replace adds their places to todo, which it returns, and adds the
// stamps with which they were read to now.
func (o *Results) replace(i int, r result, todo []int, now map[int]wire.Stamp) []int {
	was := &o.results[i]
	changed := make(map[string]bool)
	for _, name := range append(was.writes(), r.writes()...) {
		changed[name] = true
	}
	r.moves = was.moves
	*was = r
	if r.ran || r.failure != nil { // otherwise the entity is gone, or has left the query
		o.Again++
	}
	o.known.wrote, o.known.upTo = nil, 0
	for j := i + 1; j < len(o.results); j++ {
		later := &o.results[j]
		if !slices.Contains(todo, j) && later.dependsOn(changed) {
			todo, now[j] = append(todo, j), later.read
		}
	}
	slices.Sort(todo)
	return todo
}

// dependsOn reports whether the function has read or inserted one of the entities with these encoded
// keys.
func (r *result) dependsOn(names map[string]bool) bool {
	for _, s := range r.seen() {
		if names[s.Key.Encode()] {
			return true
		}
	}
	if r.effect == nil {
		return false
	}
	for _, m := range r.effect.Mutations {
		if m.Inserts && names[m.Key.Encode()] {
			return true
		}
	}
	return false
}

// A view is the access that a call of the function has to other entities. It shows the page's
// writes for earlier entities. It is closed when the call has returned or was abandoned. Results.mu
// guards everything that it shares with the page and with other calls.
type view struct {
	get     source.Get
	outcome *Results
	place   int  // the call's entity, as an index in the page
	notes   bool // whether to record what the call reads

	closed bool
	reads  []reading
	saw    []function.Seen // the states that the call has got
}

// A reading records that a call of the function has read an entity. The field name is the entity's
// encoded key. The field by is the place in the page of the result that had written it, or -1 if
// the state came from the database.
type reading struct {
	name string
	by   int
}

// before returns the state of an entity that the call must see, including the page's writes for
// earlier entities. The bool is false if the state is not known yet. If v.notes is set, before
// records the reading.
func (v *view) before(key *datastore.Key) (function.Seen, bool, error) {
	if v.notes {
		name := key.Encode()
		v.reads = append(v.reads, reading{name, v.outcome.writer(v.place, name)})
	}
	return v.outcome.before(v.place, key)
}

// stale reports whether the call has read something that is outdated: after the read, the call for
// an earlier entity of the page has written it.
func (v *view) stale() bool {
	v.outcome.mu.Lock()
	defer v.outcome.mu.Unlock()
	return slices.ContainsFunc(v.reads, func(r reading) bool { return v.outcome.writer(v.place, r.name) > r.by })
}

// hasRead reports whether the call has read one of the entities with these encoded keys.
func (v *view) hasRead(names map[string]bool) bool {
	v.outcome.mu.Lock()
	defer v.outcome.mu.Unlock()
	return slices.ContainsFunc(v.reads, func(r reading) bool { return names[r.name] })
}

var errClosed = errors.New("the function has taken too long, or has returned")

// close makes further reads fail, and returns the states that the call has got.
func (v *view) close() (saw []function.Seen) {
	v.outcome.mu.Lock()
	defer v.outcome.mu.Unlock()
	v.closed = true
	return v.saw
}

// Known returns the state of an entity, and true if it is known without a read from the database.
func (v *view) Known(key *datastore.Key) (function.Seen, bool) {
	v.outcome.mu.Lock()
	defer v.outcome.mu.Unlock()
	if v.closed {
		return function.Seen{}, false
	}
	s, ok, err := v.before(key)
	if ok = ok && err == nil; ok {
		v.saw = append(v.saw, s)
	}
	return s, ok
}

// Look returns the states of entities. It reads from the database the ones that are not known yet.
func (v *view) Look(ctx context.Context, keys []*datastore.Key) ([]function.Seen, error) {
	all := make([]function.Seen, len(keys))
	unknown, err := v.seen(keys, all)
	if err != nil {
		return nil, err
	}
	ask := make([]*datastore.Key, len(unknown))
	for i, at := range unknown {
		ask[i] = keys[at]
	}
	stamps, err := v.outcome.known.lookUp(ctx, v.get, ask)
	if err != nil {
		return nil, err
	}
	v.outcome.mu.Lock()
	defer v.outcome.mu.Unlock()
	if v.closed {
		return nil, errClosed
	}
	for i, at := range unknown {
		stamp, ok := v.outcome.known.stamps[ask[i].Encode()]
		if !ok { // otherwise another call has read it meanwhile, and all calls must see the same state
			stamp = stamps[i]
			v.outcome.known.note(ask[i], stamp)
		}
		all[at] = function.Seen{Key: ask[i], Stamp: stamp}
	}
	v.saw = append(v.saw, all...)
	return all, nil
}

// seen sets the elements of all to the states of the entities with these keys. It returns the
// indexes of entities whose states are not known and must be read.
func (v *view) seen(keys []*datastore.Key, all []function.Seen) (unknown []int, err error) {
	v.outcome.mu.Lock()
	defer v.outcome.mu.Unlock()
	if v.closed {
		return nil, errClosed
	}
	for i, key := range keys {
		s, ok, err := v.before(key)
		if err != nil {
			return nil, err
		}
		if all[i] = s; !ok {
			unknown = append(unknown, i)
		}
	}
	return unknown, nil
}

// lookUp reads entities from the database. If a key occurs several times, its entity is read once.
func (o *others) lookUp(ctx context.Context, get source.Get, keys []*datastore.Key) ([]wire.Stamp, error) {
	places := make(map[string]int, len(keys))
	var once []*datastore.Key
	for _, key := range keys {
		if name := key.Encode(); !has(places, name) {
			places[name] = len(once)
			once = append(once, key)
		}
	}
	var found []wire.Stamp
	for some := range slices.Chunk(once, record.MaxPageSize) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		stamps, err := get(some)
		if err != nil {
			return nil, err
		}
		found = append(found, stamps...)
		o.reads.Add(int64(len(some)))
	}
	all := make([]wire.Stamp, len(keys))
	for i, key := range keys {
		all[i] = found[places[key.Encode()]]
	}
	return all, nil
}

func has[V any](m map[string]V, name string) bool {
	_, ok := m[name]
	return ok
}

// lookAhead reads other entities that the function will need for a chunk of the page, in one call
// of the database. If the mapper does not name their keys (Page.Keys), it does nothing. It ignores
// an error, because the function then reads again, and gets the error.
func (p *Page) lookAhead(ctx context.Context, o *Results, c *chunk) {
	if p.Keys == nil {
		return
	}
	var keys []*datastore.Key
	err := function.Calls(ctx, time.Duration(p.Job.Timeout), p.Strays, func(runner *function.Runner) {
		for i, at := range c.at {
			if c.entities[i].Gone {
				continue
			}
			var of []*datastore.Key
			var err error
			if !runner.Call(func(context.Context) { of, err = p.Keys(at.Key, c.entities[i].Entity) }) {
				return
			}
			for _, key := range of {
				if err == nil && key != nil && !key.Incomplete() && !has(o.known.stamps, key.Encode()) {
					keys = append(keys, key)
				}
			}
		}
	})
	if err != nil {
		return
	}
	stamps, err := o.known.lookUp(ctx, p.Others, keys)
	if err != nil {
		return
	}
	for i, key := range keys {
		o.known.note(key, stamps[i])
	}
}

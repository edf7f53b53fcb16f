package page

import (
	"context"
	"errors"
	"slices"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// others are the entities besides their own that the functions of a page have read, and what the
// page has written so far.
type others struct {
	stamps map[string]wire.Stamp // as the database had them, by key

	wrote map[string][]int // by key: the places of the results that write it
	upTo  int              // how many results that is known of
}

// note notes how the database has an entity.
func (o *others) note(key *datastore.Key, s wire.Stamp) {
	if o.stamps == nil {
		o.stamps = make(map[string]wire.Stamp)
	}
	o.stamps[key.Encode()] = s
}

// before returns how an entity is before the one at a place is dealt with, as far as that is known.
func (o *Results) before(place int, key *datastore.Key) (s function.Seen, ok bool, err error) {
	name := key.Encode()
	if by := o.writer(place, name); by >= 0 {
		for _, m := range o.results[by].effect.Mutations {
			if !m.Key.Incomplete() && m.Key.Equal(key) {
				after, err := m.After()
				return function.Seen{Key: key, Stamp: after, OfPage: true}, true, err
			}
		}
	}
	stamp, ok := o.known.stamps[name]
	return function.Seen{Key: key, Stamp: stamp}, ok, nil
}

// writer returns the place of the last entity before a place that writes another one, as far as
// they are dealt with; negative: none does.
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

// writes returns the names of the keys that a result writes.
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

// replace replaces a result, and returns what is still to be run again: also later entities that
// have read what it writes, or has written before.
func (o *Results) replace(i int, r result, todo []int, now map[int]wire.Stamp) []int {
	was := &o.results[i]
	changed := make(map[string]bool)
	for _, name := range append(was.writes(), r.writes()...) {
		changed[name] = true
	}
	r.moves = was.moves
	*was = r
	o.Again++
	o.known.wrote, o.known.upTo = nil, 0
	for j := i + 1; j < len(o.results) && len(changed) > 0; j++ {
		later := &o.results[j]
		if later.effect == nil || slices.Contains(todo, j) {
			continue
		}
		if slices.ContainsFunc(later.effect.Seen, func(s function.Seen) bool { return changed[s.Key.Encode()] }) {
			todo, now[j] = append(todo, j), later.read
		}
	}
	slices.Sort(todo)
	return todo
}

// mayPass reports whether an entity has failed in a call that may not fail if what it has read,
// which nobody knows any more, has changed.
func (r *result) mayPass() bool { return r.failure != nil && r.ran }

// A view is how a function sees other entities. It is closed when the function has returned, or is
// left behind. Results.mu guards what it shares with its page, and with other functions.
type view struct {
	get     source.Get
	outcome *Results
	place   int  // of the function's entity
	notes   bool // what the function reads

	closed bool
	reads  []reading
}

// A reading is an entity that a function has read, as the entity at a place had left it; negative:
// as the database had it.
type reading struct {
	name string
	by   int
}

// before returns how an entity is before the function's own, and notes who has written it.
func (v *view) before(key *datastore.Key) (function.Seen, bool, error) {
	if v.notes {
		name := key.Encode()
		v.reads = append(v.reads, reading{name, v.outcome.writer(v.place, name)})
	}
	return v.outcome.before(v.place, key)
}

// stale reports whether an earlier entity of the page has written what the function has read, after
// that.
func (v *view) stale() bool {
	v.outcome.mu.Lock()
	defer v.outcome.mu.Unlock()
	return slices.ContainsFunc(v.reads, func(r reading) bool { return v.outcome.writer(v.place, r.name) != r.by })
}

var errClosed = errors.New("the function has taken too long, or has returned")

func (v *view) close() {
	v.outcome.mu.Lock()
	defer v.outcome.mu.Unlock()
	v.closed = true
}

// Known returns how an entity is, if that is known without a call.
func (v *view) Known(key *datastore.Key) (function.Seen, bool) {
	v.outcome.mu.Lock()
	defer v.outcome.mu.Unlock()
	if v.closed {
		return function.Seen{}, false
	}
	s, ok, err := v.before(key)
	return s, ok && err == nil
}

// Look returns how entities are.
func (v *view) Look(ctx context.Context, keys []*datastore.Key) ([]function.Seen, error) {
	all := make([]function.Seen, len(keys))
	unknown, err := v.seen(keys, all)
	if err != nil || len(unknown) == 0 {
		return all, err
	}
	ask := make([]*datastore.Key, len(unknown))
	for i, at := range unknown {
		ask[i] = keys[at]
	}
	stamps, err := lookUp(ctx, v.get, ask)
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
		if !ok { // else another function has looked it up meanwhile: all see the same
			stamp = stamps[i]
			v.outcome.known.note(ask[i], stamp)
		}
		all[at] = function.Seen{Key: ask[i], Stamp: stamp}
	}
	return all, nil
}

// seen puts what is known of entities in their places, and returns the places of the others.
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

// lookUp looks up entities, some of which may be the same.
func lookUp(ctx context.Context, get source.Get, keys []*datastore.Key) ([]wire.Stamp, error) {
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

// lookAhead looks up what the functions of a chunk are going to read, if that is known, in one
// call. What goes wrong with that shows when they read it.
func (p *Page) lookAhead(ctx context.Context, o *Results, c *chunk) error {
	if p.Keys == nil {
		return nil
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
	if err != nil || len(keys) == 0 {
		return ctx.Err()
	}
	stamps, err := lookUp(ctx, p.Others, keys)
	if err != nil {
		return nil //nolint:nilerr // the function asks again, and gets the error
	}
	for i, key := range keys {
		o.known.note(key, stamps[i])
	}
	return nil
}

package page

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// A Page runs a function over its entities. The fields say how.
type Page struct {
	Job   *record.Job
	Query query.Query
	Mode  function.Mode
	Call  function.Func

	At   []*keyspace.Position // positions of its entities
	Read source.Reader        // reads the entities for the function

	Others source.Get    // reads other entities
	Keys   function.Keys // names the other entities to read ahead; nil: unknown

	// Complete completes keys. An Update needs it, because its page must know every key that it
	// puts.
	Complete func(context.Context, []*datastore.Key) ([]*datastore.Key, error)

	AtOnce int // maximum number of concurrent calls of the function; up to 1: one after the other

	Alone     bool        // the page has only one entity, which has failed before; no other range has it
	Attempts  int64       // number of attempts on it, including this one
	Impatient bool        // its range has waited long for a service: the first entity may fail
	Late      Late        // ends a page early to share its work; nil: never
	Ends      func() bool // reports whether the page must end after the current entity

	// Progress is called after each entity with the function's time so far, and whether half of
	// the page is done. It may be nil.
	Progress func(ran time.Duration, half bool)

	Begin   time.Time     // start of the first call, by the job's rate
	Spacing time.Duration // time between calls, by the job's rate; 0: no rate

	Paces  *pace.Book[record.Ref] // gets the observed throughput of the job
	Pause  time.Duration          // longest wait of a call while the brake slows the job
	Strays *atomic.Int64          // counts the abandoned calls of the process
}

// A TooSlowError says that the function took too long on an entity. The entity has failed.
type TooSlowError struct{ limit time.Duration }

func (e TooSlowError) Error() string {
	return fmt.Sprintf("the function took too long on an entity: more than %v", e.limit)
}

// Kind returns the kind of the error, see fault.Kind.
func (e TooSlowError) Kind() string { return "timeout" }

// maxRead is the number of entities in the page's first read. With the range's record, it fills
// one lookup.
const maxRead = record.MaxPageSize - 1

// A chunk is a part of a page whose entities are read at once.
type chunk struct {
	at       []*keyspace.Position
	entities []wire.Stamp
	next     int // index of the next entity to handle
	bytes    int // size of the entities handled so far

	// These fields are the state at the last report to the job's throughput.
	told                 time.Time
	known, writes        int
	knownBytes, compared int
}

// tell reports the chunk's progress since the last report to the job's throughput.
func (p *Page) tell(o *Results, c *chunk, now time.Time) {
	p.Paces.Add(p.Job.Ref(), pace.Throughput{Entities: int64(c.next - c.known), Bytes: int64(c.bytes - c.knownBytes),
		Writes:   int64(o.writes - c.writes),
		Compared: int64(o.compared - c.compared), Spent: now.Sub(c.told)})
	c.told, c.known, c.knownBytes, c.writes, c.compared = now, c.next, c.bytes, o.writes, o.compared
}

// tellEvery is the minimum time between two reports while a chunk runs.
const tellEvery = 200 * time.Millisecond

// Run runs the function over the entities until they are done, or the page's limit of time or
// bytes is reached. It always handles at least one entity.
func (p *Page) Run(ctx context.Context) (*Results, error) {
	o := &Results{late: p.Late, visits: p.Mode != function.Update}
	begun := time.Now()
	for first := true; first || o.Reached < len(p.At); first = false {
		size := p.Paces.Get(p.Job.Ref()).Chunk(len(p.At) - o.Reached)
		if first {
			size = min(size, maxRead)
		}
		c := &chunk{at: p.At[o.Reached : o.Reached+size]}
		var err error
		if c.entities, err = p.Read(c.at); err != nil {
			return nil, err
		}
		if err := p.lookAhead(ctx, o, c); err != nil {
			return nil, err
		}
		c.told, c.writes, c.compared = time.Now(), o.writes, o.compared
		o.Spent = time.Since(begun)
		run := p.runChunk
		if p.AtOnce > 1 {
			run = p.runTogether
		}
		full, err := run(ctx, o, c, begun)
		if err != nil {
			return nil, err
		}
		p.tell(o, c, time.Now())
		if full {
			break
		}
	}
	return o, p.complete(ctx, o)
}

// complete completes the keys of entities that the function has put under incomplete keys.
func (p *Page) complete(ctx context.Context, o *Results) error {
	var keys []*datastore.Key
	for i := range o.results {
		if r := &o.results[i]; r.completed == nil {
			keys = append(keys, r.incomplete.Keys()...)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	complete := make([]*datastore.Key, 0, len(keys))
	for some := range slices.Chunk(keys, mostAllocated) {
		of, err := p.Complete(ctx, some)
		if err != nil {
			return fmt.Errorf("have the database complete keys: %w", err)
		}
		complete = append(complete, of...)
	}
	for i := range o.results {
		r := &o.results[i]
		if n := len(r.incomplete.Mutations); r.completed == nil && n > 0 {
			r.completed, complete = complete[:n:n], complete[n:]
			r.incomplete.Complete(r.completed)
		}
	}
	o.fold()
	return nil
}

// mostAllocated is the maximum number of keys in a call of Complete. It is below the 1,000 keys
// of a lookup.
const mostAllocated = 500

// runChunk runs the function over the entities of a chunk, of a page that has started at the given
// time. It reports whether the page is full before the end of the chunk.
func (p *Page) runChunk(ctx context.Context, o *Results, c *chunk, begun time.Time) (full bool, err error) {
	size := len(p.At)
	dealt := func(r result, hung time.Duration) {
		now := time.Now()
		o.took(now.Sub(begun)-o.Spent, hung)
		p.dealt(o, c, r, now)
	}
	limit := time.Duration(p.Job.Timeout)
	for c.next < len(c.at) && !full && err == nil {
		left := function.Calls(ctx, limit, p.Strays, func(runner *function.Runner) {
			for c.next < len(c.at) {
				at, read := c.at[c.next], c.entities[c.next]
				full, err = o.full(at.Key, o.Reached, size-o.Reached, time.Duration(p.Job.PageTime)) ||
					o.Reached > 0 && p.Ends(), ctx.Err()
				if full || err != nil {
					return
				}
				c.bytes += keyspace.EntitySize(read.Entity)
				r, counts := p.look(at, read)
				paused := time.Duration(0)
				if counts {
					o.inHand = hand{place: o.Reached}
					then, waited, failed := p.call(ctx, runner, o, &o.inHand, &r)
					if then == abandoned {
						return
					}
					if paused, err = waited, failed; err != nil {
						return
					}
					if full = then == endsPage || o.Reached > 0 && !o.takes(at.Key, r.effect); full {
						return
					}
				}
				dealt(r, paused)
			}
		})
		if left != nil {
			hung := time.Duration(0)
			if errors.Is(left, function.ErrTimeout) {
				hung = limit
				full = p.Mode == function.Update // the entities that it has read are old by now
			}
			dealt(p.left(&o.inHand, left, c.at[c.next], c.entities[c.next]), hung)
		}
	}
	return full, err
}

// dealt adds the result of the chunk's next entity, and reports the progress of the page.
func (p *Page) dealt(o *Results, c *chunk, r result, now time.Time) {
	c.next++
	o.add(r)
	if now.Sub(c.told) >= tellEvery {
		p.tell(o, c, now)
	}
	if p.Progress != nil {
		p.Progress(o.Ran, 2*o.Reached >= len(p.At))
	}
}

// A Moved is an entity that somebody else has changed, with its new state.
type Moved struct {
	Guard
	Now wire.Stamp
}

// Again runs the function again on entities of the page that somebody else has changed, and on
// entities that have read what these write. It also runs again on failed entities, because what
// they had read may be the cause. The new results replace the old ones.
//
// If aside returns an error for an entity, the function does not run again. The entity fails with
// that error, and the current attempt does not count. Again neither reports to the brake nor adds
// to the entities' time.
func (p *Page) Again(ctx context.Context, o *Results, moved []Moved, aside func(Moved) error) error {
	out := make(map[int]error)
	now := make(map[int]wire.Stamp) // by place: entities for the function
	for _, m := range moved {
		r := &o.results[m.of]
		o.known.note(m.Key, m.Now)
		if _, twice := now[m.of]; !twice {
			r.moves++
			now[m.of] = r.read
		}
		if m.Key.Equal(r.at.Key) {
			now[m.of] = m.Now
		}
		if err := aside(m); err != nil {
			out[m.of] = err
		}
	}
	for i := range o.results {
		if _, ok := now[i]; !ok && o.results[i].mayPass() {
			now[i] = o.results[i].read
		}
	}
	var err error
	todo := slices.Sorted(maps.Keys(now))
	for len(todo) > 0 && err == nil {
		left := function.Calls(ctx, time.Duration(p.Job.Timeout), p.Strays, func(runner *function.Runner) {
			for len(todo) > 0 {
				i := todo[0]
				if why := out[i]; why != nil {
					r := p.fails(o.results[i].at, now[i], why)
					r.failure.Attempts = p.Attempts - 1
					todo = o.replace(i, r, todo[1:], now)
					continue
				}
				if err = ctx.Err(); err != nil {
					return
				}
				r, counts := p.look(o.results[i].at, now[i])
				o.inHand = hand{place: i}
				if counts && !p.runEntity(runner, o, &o.inHand, &r) {
					return
				}
				todo = o.replace(i, r, todo[1:], now)
			}
		})
		if left == nil {
			continue
		}
		if errors.Is(left, function.ErrTimeout) {
			o.inHand.view.close()
			left = TooSlowError{time.Duration(p.Job.Timeout)}
		}
		i := todo[0]
		todo = o.replace(i, p.fails(o.results[i].at, now[i], left), todo[1:], now)
	}
	if err != nil {
		return err
	}
	o.fold()
	return p.complete(ctx, o)
}

// look prepares the result of an entity before the function runs. It reports whether the function
// has to run.
func (p *Page) look(at *keyspace.Position, read wire.Stamp) (r result, counts bool) {
	r = result{at: at, read: read, compare: p.Mode == function.Update && !p.Query.Unread(true)}
	counts, wrong := p.counts(at, read)
	if wrong != nil {
		r.failure = &record.Failure{At: at, Err: fault.Permanent(wrong), Attempts: 1, Permanent: true}
		return r, false
	}
	return r, counts
}

// fails returns the result of a failed entity.
func (p *Page) fails(at *keyspace.Position, read wire.Stamp, err error) result {
	f := &record.Failure{At: at, Err: err, Attempts: p.Attempts, Permanent: fault.IsPermanent(err)}
	return result{at: at, read: read, failure: f}
}

// counts reports whether an entity still belongs to the query at its position in the page. It may
// have changed since its key was read.
func (p *Page) counts(at *keyspace.Position, read wire.Stamp) (bool, error) {
	if read.Gone || p.Query.Whole() || p.Query.Unread(p.Mode == function.Update) {
		return !read.Gone, nil
	}
	now, err := p.Query.In(at.Space()).Position(at.Key, read.Entity)
	if now == nil || !now.Equal(at) && !p.Alone {
		return false, nil
	}
	return true, err
}

// A hand is the state of an entity for which the function is called, perhaps several times.
type hand struct {
	place int       // of the entity in the page
	first bool      // the first call may start at once: the page has waited for it
	notes bool      // record what it reads: earlier entities are still running
	view  *view     // the current call's view of other entities
	pass  pace.Pass // the current call's pass from the brake
}

// runEntity runs the function on an entity and stores the outcome in r. It returns false if the
// call timed out and was abandoned: then do not touch anything shared.
func (p *Page) runEntity(runner *function.Runner, o *Results, h *hand, r *result) (awaited bool) {
	var e *function.Effect
	var err error
	key, entity := r.at.Key, r.read.Entity
	view := &view{get: p.Others, outcome: o, place: h.place, notes: h.notes}
	h.view = view
	job, call := function.Job{Ref: p.Job.Ref(), Masks: p.Job.Masks, Others: view}, p.Call
	if !runner.Call(func(ctx context.Context) { e, err = call(ctx, job, key, entity) }) {
		return false
	}
	view.close()
	r.ran = true
	if err == nil {
		err = p.keepsPlace(key, entity, e)
	}
	if err != nil {
		r.failure = p.fails(r.at, r.read, err).failure
		return true
	}
	if p.Mode == function.Update {
		r.incomplete = e.Incomplete()
	}
	if r.effect = e; len(e.Collected) > 0 {
		r.bytes = keyspace.EntitySize(entity)
	}
	return true
}

// keepsPlace returns an error if the function's change would move its entity in the order of the
// query.
func (p *Page) keepsPlace(key *datastore.Key, before *pb.Entity, e *function.Effect) error {
	for _, m := range e.Mutations {
		if !m.Deletes && m.Key.Equal(key) {
			return p.Query.Keeps(before, m.Changed, m.On.Writes)
		}
	}
	return nil
}

// pause waits for d and returns the time that it waited.
func pause(ctx context.Context, d time.Duration) (time.Duration, error) {
	if d <= 0 {
		return 0, nil
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(d):
		return d, nil
	}
}

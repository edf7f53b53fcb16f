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

// A Page is what the function runs over, and how.
type Page struct {
	Job   *record.Job
	Query query.Query
	Mode  function.Mode
	Call  function.Func

	At   []*keyspace.Position // its entities, as they were read
	Read source.Reader        // what the function gets

	Others source.Get    // looks up other entities
	Keys   function.Keys // says which ones the function reads; nil: nobody knows

	// Complete completes keys. That is for an Update, whose page has to know what it puts.
	Complete func(context.Context, []*datastore.Key) ([]*datastore.Key, error)

	AtOnce int // calls of the function that are under way at once, at most; up to 1: one after the other

	Alone     bool        // its one entity has failed before, and is nobody else's
	Attempts  int64       // that have been made on it, with this one
	Impatient bool        // its first entity has waited for a service for long
	Late      Late        // nil: it never ends for the sake of others
	Ends      func() bool // reports whether the page has to end after the entity in hand

	// Progress is called behind each entity with what the function took so far, and whether half of
	// the page is done; nil: nothing is.
	Progress func(ran time.Duration, half bool)

	Begin   time.Time     // of the first call, at the job's rate
	Spacing time.Duration // of the calls, at the job's rate; 0: it has none

	Paces  *pace.Book[record.Ref] // is told how fast the job goes
	Pause  time.Duration          // the longest that a call waits where too many fail
	Strays *atomic.Int64          // of the process
}

// A TooSlowError says that the function took too long on an entity, which has failed.
type TooSlowError struct{ limit time.Duration }

func (e TooSlowError) Error() string {
	return fmt.Sprintf("the function took too long on an entity: more than %v", e.limit)
}

// Kind returns of which kind the error is, see fault.Kind.
func (e TooSlowError) Kind() string { return "timeout" }

// maxRead is as many entities as a lookup can have, with the range's record.
const maxRead = record.MaxPageSize - 1

// A chunk is what is read of a page at once.
type chunk struct {
	at       []*keyspace.Position
	entities []wire.Stamp
	next     int // the first one that is not dealt with
	bytes    int // of those that were looked at

	// What the job's throughput was told last: when, and what the chunk had come to then.
	told                 time.Time
	known, writes        int
	knownBytes, compared int
}

// tell adds what a chunk has come to since the last time to the job's throughput.
func (p *Page) tell(o *Results, c *chunk, now time.Time) {
	p.Paces.Add(p.Job.Ref(), pace.Throughput{Entities: int64(c.next - c.known), Bytes: int64(c.bytes - c.knownBytes),
		Writes:   int64(o.writes - c.writes),
		Compared: int64(o.compared - c.compared), Spent: now.Sub(c.told)})
	c.told, c.known, c.knownBytes, c.writes, c.compared = now, c.next, c.bytes, o.writes, o.compared
}

// tellEvery is how often it is told.
const tellEvery = 200 * time.Millisecond

// Run runs the function over the entities until they are done, or the page has taken its time or
// its bytes. It always deals with at least one.
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

// complete has what is put under incomplete keys be put under keys that the database gives.
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

// mostAllocated is how many keys a call completes, below the 1,000 of a lookup.
const mostAllocated = 500

// runChunk runs the function over entities that were read, of a page that was begun at a time. It
// reports whether the page is full before that.
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
		switch {
		case errors.Is(left, function.ErrTimeout):
			o.inHand.view.close()
			p.Paces.Brake(p.Job.Ref()).Done(time.Now(), o.inHand.pass, pace.End{Took: limit, Failed: true, Busy: true})
			dealt(p.fails(c.at[c.next], c.entities[c.next], TooSlowError{limit}), limit)
			full = p.Mode == function.Update // what it has read is old by now
		case left != nil:
			dealt(p.fails(c.at[c.next], c.entities[c.next], left), 0)
		}
	}
	return full, err
}

// dealt adds the result of the chunk's next entity, and tells how far the page is.
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

// A Moved is an entity that others have changed, as it was found.
type Moved struct {
	Guard
	Now wire.Stamp
}

// Again runs the function once more on entities of the page that others have changed, and on those
// that have read what these write, and replaces their results; and those whose function has failed,
// as that may be because of what it has read. Those that are set aside become failures, of which no
// attempt is counted. It neither tells the brake nor counts as time that entities take.
func (p *Page) Again(ctx context.Context, o *Results, moved []Moved, aside func(Moved) error) error {
	out := make(map[int]error)
	now := make(map[int]wire.Stamp) // by place, what the function gets
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

// look returns what is known of an entity before the function runs, and whether that has to.
func (p *Page) look(at *keyspace.Position, read wire.Stamp) (r result, counts bool) {
	r = result{at: at, read: read, compare: p.Mode == function.Update && !p.Query.Unread(true)}
	counts, wrong := p.counts(at, read)
	if wrong != nil {
		r.failure = &record.Failure{At: at, Err: fault.Permanent(wrong), Attempts: 1, Permanent: true}
		return r, false
	}
	return r, counts
}

// fails returns the result of an entity that has failed.
func (p *Page) fails(at *keyspace.Position, read wire.Stamp, err error) result {
	f := &record.Failure{At: at, Err: err, Attempts: p.Attempts, Permanent: fault.IsPermanent(err)}
	return result{at: at, read: read, failure: f}
}

// counts reports whether an entity that was read is one of the query, and where the page has it: it
// may have changed since its key was read.
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

// A hand is a call of the function, or several of them on one entity.
type hand struct {
	place int       // of the entity in the page
	first bool      // it may begin at once: the page has waited for it
	notes bool      // it notes what it reads: earlier entities of the page are not all dealt with
	view  *view     // of the function, since it was called,
	pass  pace.Pass // with which it was called
}

// runEntity runs the function on an entity, and has its result say what became of it. It returns
// false if the call timed out and was abandoned: touch nothing shared then.
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

// keepsPlace returns an error if the function moves its entity in the order of the query.
func (p *Page) keepsPlace(key *datastore.Key, before *pb.Entity, e *function.Effect) error {
	for _, m := range e.Mutations {
		if !m.Deletes && m.Key.Equal(key) {
			return p.Query.Keeps(before, m.Changed, m.On.Writes)
		}
	}
	return nil
}

// pause waits, and returns for how long.
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

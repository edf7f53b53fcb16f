package page

import (
	"context"
	"errors"
	"fmt"
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
)

// A Page is what the function runs over, and how.
type Page struct {
	Job   *record.Job
	Query query.Query
	Mode  function.Mode
	Call  function.Func

	At     []*keyspace.Position                             // its entities, as they were read
	Read   source.Reader                                    // what the function gets
	Accept func(*keyspace.Position, *function.Effect) error // takes over what the function asks for on an entity

	// Complete completes keys. That is for an Update, whose page has to know what it puts.
	Complete func(context.Context, []*datastore.Key) ([]*datastore.Key, error)

	Alone    bool             // its one entity has failed before, and is nobody else's
	Attempts int64            // that have been made on it, with this one
	Late     Late             // nil: it never ends for the sake of others
	TooSlow  map[string]error // by key: entities that took too long in this delivery
	Ends     func() bool      // reports whether the page has to end behind the entity in hand

	// Progress is called behind each entity with what the function took so far, and whether half of the
	// page is done; nil: nothing is.
	Progress func(ran time.Duration, half bool)

	Paces  *pace.Book[record.Ref] // is told how fast the job goes
	Pause  time.Duration          // the longest that a call waits where too many fail
	Strays *atomic.Int64          // of the process
}

// A TooSlowError says that the function took too long on an entity, which has failed. The page of an
// Update has to be tried again without it, and ends behind it: the transaction has waited long enough,
// and so has the delivery.
type TooSlowError struct {
	Key     *datastore.Key
	Reached int // the entity's place in the page, counted from 1
	limit   time.Duration
}

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
	entities []*pb.Entity
	missing  []bool
	next     int // the first one that is not dealt with
	bytes    int // of those that were looked at

	// What the job's throughput was told last: when, and what the chunk had come to then.
	told          time.Time
	known, writes int
	knownBytes    int
}

// tell adds what a chunk has come to since the last time to the job's throughput.
func (p *Page) tell(o *Outcome, c *chunk, now time.Time) {
	p.Paces.Add(p.Job.Ref(), pace.Throughput{Entities: int64(c.next - c.known), Bytes: int64(c.bytes - c.knownBytes), Writes: int64(o.writes - c.writes), Spent: now.Sub(c.told)})
	c.told, c.known, c.knownBytes, c.writes = now, c.next, c.bytes, o.writes
}

// tellEvery is how often it is told.
const tellEvery = 200 * time.Millisecond

// Run runs the function over the entities until they are done, or the page has taken its time or its
// bytes. It always deals with at least one.
func (p *Page) Run(ctx context.Context) (*Outcome, error) {
	o := &Outcome{written: make(map[string]bool), late: p.Late}
	begun := time.Now()
	for first := true; first || o.Reached < len(p.At); first = false {
		size := p.Paces.Get(p.Job.Ref()).Chunk(len(p.At) - o.Reached)
		if first {
			size = min(size, maxRead)
		}
		c := &chunk{at: p.At[o.Reached : o.Reached+size]}
		var err error
		if c.entities, c.missing, err = p.Read(c.at); err != nil {
			return nil, err
		}
		c.told, c.writes = time.Now(), o.writes
		o.Spent = time.Since(begun)
		full, err := p.runChunk(ctx, o, c, begun)
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

// complete has what was put under incomplete keys be accepted, under keys that the database gives.
func (p *Page) complete(ctx context.Context, o *Outcome) error {
	e := &o.incomplete
	for keys := range slices.Chunk(e.Keys(), mostAllocated) {
		complete, err := p.Complete(ctx, keys)
		if err != nil {
			return fmt.Errorf("have the database complete keys: %w", err)
		}
		o.Others = append(o.Others, complete...)
	}
	if len(e.Mutations) == 0 {
		return nil
	}
	e.Complete(o.Others[len(o.Others)-len(e.Mutations):])
	return p.Accept(p.At[0], e)
}

// mostAllocated is how many keys a call completes, below the 1,000 of a lookup.
const mostAllocated = 500

// runChunk runs the function over entities that were read, of a page that was begun at a time. It reports
// whether the page is full before that.
func (p *Page) runChunk(ctx context.Context, o *Outcome, c *chunk, begun time.Time) (full bool, err error) {
	size := len(p.At)
	dealt := func(hung time.Duration) {
		c.next++
		o.Reached++
		now := time.Now()
		o.took(now.Sub(begun)-o.Spent, hung)
		if now.Sub(c.told) >= tellEvery {
			p.tell(o, c, now)
		}
		if p.Progress != nil {
			p.Progress(o.Ran, 2*o.Reached >= size)
		}
	}
	limit, brake := time.Duration(p.Job.Timeout), p.Paces.Brake(p.Job.Ref())
	for c.next < len(c.at) && !full && err == nil {
		left := function.Calls(ctx, limit, p.Strays, func(r *function.Runner) {
			for c.next < len(c.at) {
				at, entity := c.at[c.next], c.entities[c.next]
				full, err = o.full(at.Key, size-o.Reached, time.Duration(p.Job.PageTime)) || o.Reached > 0 && p.Ends(), ctx.Err()
				if full || err != nil {
					return
				}
				c.bytes += keyspace.EntitySize(entity)
				counts, wrong := p.counts(at, entity, c.missing[c.next])
				paused := time.Duration(0)
				if wrong != nil {
					o.fail(at, fault.Permanent(wrong), 1)
				} else if counts {
					failed := len(o.Failures)
					if paused, err = pause(ctx, brake.Wait(time.Now(), p.Pause)); err != nil || !p.runEntity(r, o, at, entity) {
						return
					}
					failing := len(o.Failures) > failed
					brake.Done(time.Now(), failing, failing && !o.Failures[failed].Permanent)
					if full = o.collides; full {
						return
					}
				}
				dealt(paused)
			}
		})
		switch {
		case errors.Is(left, function.ErrTimeout):
			at := c.at[c.next]
			slow := TooSlowError{Key: at.Key, Reached: o.Reached + 1, limit: limit}
			if p.Mode == function.Update {
				return false, slow
			}
			o.fail(at, slow, p.Attempts)
			brake.Done(time.Now(), true, true)
			dealt(limit)
		case left != nil:
			o.fail(c.at[c.next], left, p.Attempts)
			dealt(0)
		}
	}
	return full, err
}

// counts reports whether an entity that was read is one of the query, and where the page has it: it may
// have changed since its key was read.
func (p *Page) counts(at *keyspace.Position, stored *pb.Entity, missing bool) (bool, error) {
	if missing || p.Query.Whole() || p.Query.Unread(p.Mode == function.Update) {
		return !missing, nil
	}
	now, err := p.Query.In(at.Space()).Position(at.Key, stored)
	if now == nil || !now.Equal(at) && !p.Alone {
		return false, nil
	}
	return true, err
}

// runEntity runs the function on an entity. It returns false if the call timed out and was abandoned:
// touch nothing shared then.
func (p *Page) runEntity(r *function.Runner, o *Outcome, at *keyspace.Position, entity *pb.Entity) (awaited bool) {
	key := at.Key
	if len(p.TooSlow) > 0 {
		if err := p.TooSlow[key.Encode()]; err != nil {
			o.fail(at, err, p.Attempts)
			return true
		}
	}
	var e *function.Effect
	var err error
	job, call := function.Job{Ref: p.Job.Ref(), Masks: p.Job.Masks}, p.Call
	if !r.Call(func(ctx context.Context) { e, err = call(ctx, job, key, entity) }) {
		return false
	}
	if err == nil {
		err = p.keepsPlace(key, entity, e)
	}
	if o.collides = err == nil && o.collide(e); o.collides {
		return true
	}
	var incomplete function.Effect
	if err == nil {
		if p.Mode == function.Update {
			incomplete = e.Incomplete()
		}
		err = fault.Permanent(o.accept(at, e, p.Accept))
	}
	if err != nil {
		o.fail(at, err, p.Attempts)
		return true
	}
	o.Processed++
	o.Bytes += e.Bytes
	if len(e.Collected) > 0 {
		o.Collected = append(o.Collected, e.Collected...)
		o.Bytes += keyspace.EntitySize(entity)
	}
	o.writes += len(e.Mutations) + len(incomplete.Mutations)
	o.incomplete.Mutations = append(o.incomplete.Mutations, incomplete.Mutations...)
	o.Left = append(o.Left, e.Left...)
	if e.Example != nil && len(o.Examples) < record.PageExamples {
		o.Examples = append(o.Examples, e.Example()...)
	}
	for _, m := range e.Mutations {
		switch {
		case m.Key.Equal(key):
			o.Written++
			if o.Own = append(o.Own, key); m.Deletes {
				o.Gone = append(o.Gone, key)
			}
		case !m.Key.Incomplete():
			o.written[m.Key.Encode()] = true
			o.Others = append(o.Others, m.Key)
		}
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
	if d == 0 {
		return 0, nil
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(d):
		return d, nil
	}
}

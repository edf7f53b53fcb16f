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
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// A Page runs a mapper's function over a group of entities that are committed together. Its fields
// say how.
type Page struct {
	Job   *record.Job
	Range *datastore.Key // the record of the page's range
	Query query.Query
	Mode  function.Mode
	function.Functions

	At   []*keyspace.Position // positions of the page's entities
	Read source.Reader        // reads the entities for the function

	Others source.Get // reads other entities

	// Complete completes incomplete keys. An Update needs it, because its page must know every key
	// that it puts.
	Complete func(context.Context, []*datastore.Key) ([]*datastore.Key, error)

	AtOnce int // maximum number of calls of the function that overlap; 0 or 1: calls do not overlap

	// Alone says that the page has a single entity, in a range of its own, because it has failed
	// before.
	Alone    bool
	Attempts int64 // number of attempts on that entity, including this one
	// Impatient says that the range has waited for a service for so long that its first entity may
	// now fail.
	Impatient bool
	Late      Late        // reports whether the page should end early for idle workers; nil: never
	Ends      func() bool // reports whether the page must end after the current entity, because the process will end

	// Progress is called after each entity. The argument ran is how long the function has run so
	// far, and nearly says whether three quarters of the page are done. Progress may be nil.
	Progress func(ran time.Duration, nearly bool)

	// Calls waits until the job's rate allows a call of the function to make n calls of a service.
	// The argument before is the number of calls that this call of the function has already
	// announced, and first is set for the page's first entity. If Calls returns an error, the page
	// ends before the entities of the call. If Calls is nil, there is no limit.
	Calls     func(ctx context.Context, n int, before int64, first bool) error
	Announced *atomic.Int64 // the total number of calls of a service that Calls has allowed
	calls     *callers

	Begin   time.Time     // when the function may first be called, by the job's rate
	Spacing time.Duration // time between the starts of calls, by the job's rate; 0: no rate

	Paces  *pace.Book[record.Ref] // receives the measured speed of the job
	Pause  time.Duration          // how long a call may wait while the brake (pace.Brake) slows the job
	Strays *atomic.Int64          // number of abandoned calls in the process
}

// A TooSlowError is the failure of an entity on which the function took longer than the job's
// timeout.
type TooSlowError struct{ limit time.Duration }

func (e TooSlowError) Error() string {
	return fmt.Sprintf("the function took too long on an entity: more than %v", e.limit)
}

// Kind returns the kind of the error, see fault.Kind.
func (e TooSlowError) Kind() string { return "timeout" }

// maxRead is the number of entities in the page's first read. Together with the range's record,
// they fill one lookup of the database.
const maxRead = record.MaxPageSize - 1

// A chunk is a part of a page whose entities are read in one call of the database. Its counters
// tell which of them are processed.
type chunk struct {
	at       []*keyspace.Position
	entities []wire.Stamp
	next     int // index of the next entity to handle
	bytes    int // total size of the entities handled so far

	// The values of the counters at the last report of the job's speed.
	told               time.Time
	known, writes      int
	knownBytes, others int
}

// tell adds the speed of the job in this chunk, since the last report, to the process's
// measurements.
func (p *Page) tell(o *Results, c *chunk, now time.Time) {
	p.Paces.Add(p.Job.Ref(), pace.Throughput{Entities: int64(c.next - c.known), Bytes: int64(c.bytes - c.knownBytes),
		Writes: int64(o.Writes() - c.writes), Others: int64(o.OtherReads() - c.others), Spent: now.Sub(c.told)})
	c.told, c.known, c.knownBytes, c.writes, c.others = now, c.next, c.bytes, o.Writes(), o.OtherReads()
}

// tellEvery is the minimum time between two reports of the job's speed during a chunk.
const tellEvery = 200 * time.Millisecond

// Run runs the function over the entities until all are done, or the page's limit of time or bytes
// is reached. It always processes at least one entity.
func (p *Page) Run(ctx context.Context) (*Results, error) {
	p.calls = new(callers)
	o := &Results{late: p.Late, visits: p.Mode != function.Update, results: make([]result, 0, len(p.At))}
	begun := time.Now()
	for first := true; first || o.Reached < len(p.At); first = false {
		size := p.Paces.Get(p.Job.Ref()).Chunk(len(p.At) - o.Reached)
		if first {
			size = min(size, maxRead)
		}
		c := &chunk{at: p.At[o.Reached : o.Reached+size], others: o.OtherReads()}
		var err error
		if c.entities, err = p.Read(c.at); err != nil {
			return nil, err
		}
		p.lookAhead(ctx, o, c)
		c.told, c.writes = time.Now(), o.Writes()
		o.Spent = time.Since(begun)
		run := p.runChunk
		if p.AtOnce > 1 || p.BatchSize > 0 {
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

// inCall returns the largest number of entities in a call of the function.
func (p *Page) inCall() int { return max(1, p.BatchSize) }

// complete gets IDs from the database for entities that the function has put with incomplete keys.
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
		if n := len(r.incomplete.Mutations); r.completed == nil {
			r.completed, complete = complete[:n:n], complete[n:]
			r.incomplete.Complete(r.completed)
		}
	}
	o.fold()
	return nil
}

// mostAllocated is the largest number of keys in a call of Complete. It is less than 1,000, the
// limit of keys in a lookup.
const mostAllocated = 500

// runChunk runs the function over the entities of a chunk. The last argument is the start of the
// page. The bool full says that the page must end before the end of the chunk.
func (p *Page) runChunk(ctx context.Context, o *Results, c *chunk, begun time.Time) (full bool, err error) {
	size := len(p.At)
	dealt := func(r result, hung time.Duration) {
		now := time.Now()
		o.took(now.Sub(begun)-o.Spent, hung)
		p.dealt(o, c, r, now)
	}
	limit := time.Duration(p.Job.Timeout)
	h := new(hand)
	g := &group{hands: []*hand{h}, pass: new(pace.Pass)}
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
				*h = hand{place: o.Reached, r: r}
				paused := time.Duration(0)
				if counts {
					got := p.call(ctx, runner, o, g)
					if got.abandoned {
						return
					}
					if paused, err = got.waited, got.err; err != nil {
						return
					}
					if full = got.end != nil || !o.takes(at.Key, h.r.effect); full {
						return
					}
				}
				dealt(h.r, paused)
			}
		})
		if left != nil {
			hung := time.Duration(0)
			if errors.Is(left, function.ErrTimeout) {
				hung = limit
				// The entities that were read with this chunk may have changed while the call hung.
				full = p.Mode == function.Update
			}
			dealt(p.fails(c.at[c.next], c.entities[c.next], p.left(g, left)), hung)
		}
	}
	return full, err
}

// dealt adds the result of the chunk's next entity to the page, and reports the page's progress.
func (p *Page) dealt(o *Results, c *chunk, r result, now time.Time) {
	c.next++
	o.add(r)
	if now.Sub(c.told) >= tellEvery {
		p.tell(o, c, now)
	}
	if p.Progress != nil {
		p.Progress(o.Ran, 4*o.Reached >= 3*len(p.At))
	}
}

// look prepares the result of an entity, and reports whether the function must run on it. The
// entity may have changed since its key was read. If it is no longer at its position in the query,
// the function must not run.
func (p *Page) look(at *keyspace.Position, read wire.Stamp) (r result, runs bool) {
	r = result{at: at, read: read, compare: p.Mode == function.Update && !p.Query.Unread(true)}
	if read.Gone || p.Query.Whole() || p.Query.Unread(p.Mode.Updates()) {
		return r, !read.Gone
	}
	now, err := p.Query.In(at.Space()).Position(at.Key, read.Entity)
	switch {
	case now == nil || !now.Equal(at) && !p.Alone:
		return r, false
	case err != nil:
		r.failure = &record.Failure{At: at, Err: fault.Permanent(err), Attempts: 1, Permanent: true}
		return r, false
	}
	return r, true
}

// fails returns the result of an entity that fails with the error err. The argument read is the
// state of the entity that the function got.
func (p *Page) fails(at *keyspace.Position, read wire.Stamp, err error) result {
	f := &record.Failure{At: at, Err: err, Attempts: p.Attempts, Permanent: fault.IsPermanent(err)}
	return result{at: at, read: read, failure: f}
}

// keepsPlace returns an error if the effect e of the function would move an entity to another place
// in the query's order. The argument before is the entity's state before the change.
func (p *Page) keepsPlace(key *datastore.Key, before *pb.Entity, e *function.Effect) error {
	for _, m := range e.Mutations {
		if !m.Deletes && m.Key.Equal(key) {
			return p.Query.Keeps(before, m.Edit.Changed, m.On.Writes)
		}
	}
	return nil
}

// pause waits for d, or until ctx ends, and returns how long it has waited.
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

package mapper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// maxPageBytes bounds the mutations of a page, well below the 10 MiB that a
// commit can have.
const maxPageBytes = 4 << 20

// processPage runs the function over the page's entities, and commits what it
// did together with the range's record. For an [Update] that is one
// transaction, which reads the entities, too.
func (w *work) processPage(ctx context.Context, p page) error {
	if w.mode == function.Visit {
		read := w.reader(w.source.Get(ctx))
		if w.keys != nil && w.keys.Whole {
			read = w.keys.Read
		}
		o, err := w.runPage(ctx, p.at, read, func(*function.Effect) error { return nil })
		if err != nil {
			return err
		}
		return w.commit(ctx, p, o)
	}
	attempts := pageAttempts
	if len(p.at) <= 1 {
		attempts = store.Attempts
	}
	var settled *record.Range
	var final *outcome
	ready := false // all that is left is the commit
	err := w.transact(ctx, attempts, func(tx *datastore.Transaction) error {
		settled, ready = new(record.Range), false
		read := w.fencedReader(tx, settled)
		o, err := w.runPage(ctx, p.at, read, func(e *function.Effect) error { return store.Mutate(tx, e) })
		if err != nil {
			return err
		}
		if err := w.putOutcome(tx, settled, p, o); err != nil {
			return err
		}
		ready, final = true, o
		return store.Write(tx, settled.Update())
	})
	switch {
	case errors.Is(err, errTooSlow):
		return w.processPage(ctx, p) // without the entity that it was
	case err != nil && ready:
		return fault.AsCommitRefusal(err)
	case err != nil:
		return err
	}
	w.record = settled
	w.committed(final)
	return nil
}

// errTooSlow says that the function took too long on an entity, which has failed.
// The page of an [Update] is tried again without it, as its transaction has waited
// long enough, and ends behind it: the delivery has, too.
var errTooSlow = errors.New("the function took too long on an entity")

func tooSlow(limit time.Duration) error { return fmt.Errorf("%w: more than %v", errTooSlow, limit) }

// reader returns a reader of what the function gets: nothing, if the query is KeysOnly.
func (w *work) reader(get func([]*datastore.Key, any) error) source.Reader {
	if !w.query.KeysOnly {
		return source.EntityReader(get)
	}
	return func(at []*keyspace.Position) ([]datastore.PropertyList, []bool, error) {
		return make([]datastore.PropertyList, len(at)), make([]bool, len(at)), nil
	}
}

// fencedReader reads in a transaction. The first call reads the range's record
// along, and checks that it is this task's.
func (w *work) fencedReader(tx *datastore.Transaction, r *record.Range) source.Reader {
	first := true
	return func(at []*keyspace.Position) ([]datastore.PropertyList, []bool, error) {
		if !first {
			return w.reader(tx.GetMulti)(at)
		}
		first = false
		known := len(at) // how many entities are not read
		if !w.query.KeysOnly {
			known = 0
		}
		entities := make([]datastore.PropertyList, len(at))
		keys := append([]*datastore.Key{w.record.Key()}, keyspace.Keys(at[known:])...)
		missing, err := source.Lookup(tx.GetMulti, keys, append([]any{r}, source.Into(entities[known:])...))
		if err != nil {
			return nil, nil, err
		}
		if missing[0] {
			return nil, nil, errSuperseded // the job's records were deleted
		}
		return entities, append(missing[1:], make([]bool, known)...), w.fence(r)
	}
}

// A chunk is what is read of a page at once.
type chunk struct {
	at       []*keyspace.Position
	entities []datastore.PropertyList
	missing  []bool
	next     int // the first one that is not dealt with
	bytes    int // of those that were looked at
}

// runPage runs the function over entities until they are done, or the page has
// taken its time or its bytes. It always deals with at least one.
func (w *work) runPage(ctx context.Context, at []*keyspace.Position, read source.Reader, accept func(*function.Effect) error) (*outcome, error) {
	o := &outcome{written: make(map[string]bool)}
	begun := time.Now()
	if w.stop > 0 {
		at = at[:w.stop]
	}
	for first := true; first || o.reached < len(at); first = false {
		size := w.engine.paces.Get(w.job.Ref()).Chunk(len(at) - o.reached)
		if first {
			size = min(size, maxPageSize-1) // with the range's record, as many as a lookup can have
		}
		c := &chunk{at: at[o.reached : o.reached+size]}
		var err error
		if c.entities, c.missing, err = read(c.at); err != nil {
			return nil, err
		}
		writes, squares, began := o.writes, o.squares, time.Now()
		o.spent = time.Since(begun)
		full, err := w.runChunk(ctx, o, c, len(at), begun, accept)
		if err != nil {
			return nil, err
		}
		if full {
			break
		}
		w.engine.paces.Add(w.job.Ref(), pace.Throughput{Entities: int64(size), Bytes: int64(c.bytes), Writes: int64(o.writes - writes), Spent: time.Since(began), Squares: o.squares - squares})
	}
	return o, w.tolerable(ctx, o)
}

// runChunk runs the function over entities that were read, of a page of size that was begun at a
// time. It reports whether the page is full before that.
func (w *work) runChunk(ctx context.Context, o *outcome, c *chunk, size int, begun time.Time, accept func(*function.Effect) error) (full bool, err error) {
	halfway := w.halfway
	dealt := func(hung time.Duration) {
		c.next++
		if o.reached++; halfway != nil && 2*o.reached >= size {
			halfway()
		}
		o.took(time.Since(begun)-o.spent, hung, w.slowEntity())
	}
	limit := time.Duration(w.job.Timeout)
	for c.next < len(c.at) && !full && err == nil {
		left := function.Calls(ctx, limit, &w.engine.gate.Strays, func(r *function.Runner) {
			for c.next < len(c.at) {
				p, entity := c.at[c.next], c.entities[c.next]
				full, err = o.full(p.Key, size-o.reached, w.surprising(o), time.Duration(w.job.PageTime)), ctx.Err()
				if full || err != nil {
					return
				}
				c.bytes += keyspace.PropertiesSize(entity)
				counts, wrong := w.counted(p, entity, c.missing[c.next])
				if wrong != nil {
					o.fail(p, fault.Permanent(wrong), 1)
				} else if counts && !w.runEntity(r, o, p, entity, accept) {
					return
				}
				dealt(0)
			}
		})
		switch {
		case errors.Is(left, function.ErrTimeout) && w.mode == function.Update:
			if w.slow == nil {
				w.slow = make(map[string]error)
			}
			w.slow[c.at[c.next].Key.Encode()], w.stop = tooSlow(limit), o.reached+1
			return false, errTooSlow
		case errors.Is(left, function.ErrTimeout):
			o.fail(c.at[c.next], tooSlow(limit), w.attempts())
			dealt(limit)
		case left != nil:
			o.fail(c.at[c.next], left, w.attempts())
			dealt(0)
		}
	}
	return full, err
}

// counted reports whether an entity that was read is one of the query, and where the page has
// it: it may have changed since its key was read.
func (w *work) counted(p *keyspace.Position, properties datastore.PropertyList, missing bool) (bool, error) {
	if missing || w.query.Whole() || w.query.KeysOnly {
		return !missing, nil
	}
	now, err := w.query.In(p.Space()).Position(p.Key, properties)
	if now == nil || !now.Equal(p) && !w.record.Alone { // one that has failed is nobody else's
		return false, nil
	}
	return true, err
}

// slowEntity returns how long the function takes for an entity if three pages of such entities
// would be needed for one.
func (w *work) slowEntity() time.Duration {
	return 3 * time.Duration(w.job.PageTime) / time.Duration(max(1, w.record.PageSize))
}

// surprising reports whether the entities of a page take so much longer than the pages
// before that all workers should share what is left: as a whole, or suddenly. The dearest
// one says nothing, as it may be the only one.
func (w *work) surprising(o *outcome) bool {
	if o.reached < 3 || !w.splitting.Adaptive() {
		return false
	}
	mean := (o.ran - o.hung - o.dearest) / time.Duration(o.reached-1)
	return o.inRow >= sudden || mean > 0 && mean >= w.slowEntity()
}

// runEntity runs the function on an entity. It reports whether somebody still waits for that.
func (w *work) runEntity(r *function.Runner, o *outcome, p *keyspace.Position, entity datastore.PropertyList, accept func(*function.Effect) error) (awaited bool) {
	key := p.Key
	if len(w.slow) > 0 {
		if err := w.slow[key.Encode()]; err != nil {
			o.fail(p, err, w.attempts())
			return true
		}
	}
	sharded := w.query.Sharded(entity) // the function may change it in place
	var e *function.Effect
	var err error
	job, apply := function.Job{Ref: w.job.Ref(), Masks: w.job.Masks}, w.apply // a call that is left behind sees nothing of what the task does next
	if !r.Call(func(ctx context.Context) { e, err = apply(ctx, job, key, entity) }) {
		return false
	}
	if err == nil {
		err = w.keepsPlace(key, sharded, e)
	}
	if err == nil {
		err = fault.Permanent(o.accept(e, accept))
	}
	if err != nil {
		o.fail(p, err, w.attempts())
		return true
	}
	o.processed++
	o.bytes += e.Bytes
	o.writes += len(e.Mutations)
	for _, m := range e.Mutations {
		if !m.Key.Incomplete() && !m.Key.Equal(key) {
			o.written[m.Key.Encode()] = true
		}
	}
	return true
}

// keepsPlace returns an error if the function moves its entity in the order of the query, in which
// it had some values before.
func (w *work) keepsPlace(key *datastore.Key, before []any, e *function.Effect) error {
	for _, m := range e.Mutations {
		if !m.Deletes && m.Key.Equal(key) {
			return w.query.Keeps(before, m.Changed, m.Properties)
		}
	}
	return nil
}

// attempts returns how often the function was tried on an entity that fails now.
func (w *work) attempts() int64 { return 1 + w.record.RefusalsIn(w.job) }

// tolerable returns an error if so much fails that its entities can't be blamed: of
// a full page, or of what the job has done so far. A tolerant job has them recorded
// after their last attempt.
func (w *work) tolerable(ctx context.Context, o *outcome) error {
	failed := len(o.failures)
	if failed == 0 || w.record.Alone || w.job.Tolerant && !slices.ContainsFunc(o.failures, func(f failure) bool { return !f.last() }) {
		return nil
	}
	r := fault.Refusal{Cause: o.failures[0].err, Final: true}
	switch {
	case tooMany(failed, max(o.reached, int(w.job.PageSize))):
		r.Summary = fmt.Sprintf("the function failed on %d of %d entities of a page", failed, o.reached)
	case failed*20 > o.reached: // a small page, or one that took its time, says little by itself
		sum, _, err := w.engine.store().SampleTotals(ctx, w.job)
		if err != nil {
			return err
		}
		failed, tried := failed+int(sum.Failing()), o.reached+int(sum.Failing()+sum.Processed)
		if !tooMany(failed, tried) {
			return nil
		}
		r.Summary = fmt.Sprintf("the function failed on %d of %d entities so far", failed, tried)
	default:
		return nil
	}
	for _, f := range o.failures {
		r.Final = r.Final && f.permanent
		r.After = max(r.After, fault.After(f.err))
	}
	return r
}

package mapper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/tasks"
)

// MaxAttempts is how often a mapper's function is tried on an entity that it
// returns an error for, and how often a page is tried that fails as a whole.
const MaxAttempts = 5

var validRangeID = regexp.MustCompile(`^[0-9a-f]{32}$`)

// A work is one delivery of a range's task.
type work struct {
	engine *Engine
	job    *jobRecord
	query  Query
	mode   mode
	apply  entityFunc
	task   rangeTask

	// record is the range as this delivery knows it. Transactions read it anew.
	record   *rangeRecord
	enqueued int64 // of its children, the first
}

// What a transaction finds of the range that another delivery had in hand
// meanwhile. The record that it found is then the work's.
var (
	errDone       = errors.New("another delivery has done the range")
	errChanged    = errors.New("another delivery has cut the range")
	errSuperseded = errors.New("the range has another task")
)

// run does what a task asks for:
//
//  1. load the job and the range;
//  2. look at the keys, and cut what lies behind the page into children;
//  3. a large range: record the children and enqueue them, before its page;
//  4. process the page and commit it with the record, in one transaction;
//  5. enqueue the children that came of the page;
//  6. see whether the job is complete.
//
// A delivery that finds the range done goes to 5: the one before may have died
// there. 6 is for ranges with children, too: those of 3 may have ended before
// their parent.
func (e *Engine) run(ctx context.Context, t rangeTask, redelivered bool) error {
	w, err := e.load(ctx, t)
	if err != nil || w == nil {
		return err
	}
	if w.record.State == pending && redelivered {
		err = w.recordAttempt(ctx)
	}
	for err == nil && w.record.State == pending {
		if err = w.process(ctx); errors.Is(err, errChanged) {
			err = nil // with what it has become
		}
	}
	switch {
	case errors.Is(err, errSuperseded):
		return nil
	case err != nil && !errors.Is(err, errDone):
		return w.giveUp(ctx, err)
	}
	if err := w.enqueueChildren(ctx); err != nil {
		return err
	}
	return e.complete(ctx, w.job)
}

// load reads the job and the range of a task. It returns no work if there is
// nothing to do.
func (e *Engine) load(ctx context.Context, t rangeTask) (*work, error) {
	w := &work{engine: e, task: t, job: &jobRecord{ID: t.Job}, record: new(rangeRecord)}
	missing, err := lookup(
		func(keys []*datastore.Key, dst any) error { return e.client.GetMulti(ctx, keys, dst) },
		[]*datastore.Key{jobKey(t.Job), rangeKey(t.Job, t.Range)}, []any{w.job, w.record})
	if err != nil {
		return nil, fmt.Errorf("load range %s of job %s: %w", t.Range, t.Job, err)
	}
	if missing[0] || missing[1] {
		return nil, tasks.Drop(fmt.Errorf("there is no range %s of a job %s", t.Range, t.Job))
	}
	if State(w.job.State).Ended() || w.record.State == pending && w.record.Generation != t.Generation {
		return nil, nil
	}
	def := e.mappers[w.job.Mapper]
	if def == nil {
		// Another build may have it: the queue tries again.
		return nil, fmt.Errorf("job %s: %w %q", t.Job, ErrUnknownMapper, w.job.Mapper)
	}
	w.mode = def.mode
	if w.query, err = w.job.query(); err != nil {
		return nil, fmt.Errorf("job %s: query: %w", t.Job, err)
	}
	if w.apply, err = def.prepare(w.job.Params); err != nil {
		return nil, fmt.Errorf("job %s: %w", t.Job, err)
	}
	return w, nil
}

// process does a pending range.
func (w *work) process(ctx context.Context) error {
	if w.record.Alone {
		return w.processPage(ctx, page{keys: []*datastore.Key{w.record.Start}})
	}
	p, err := w.plan(ctx)
	if err != nil {
		return err
	}
	if len(p.children) > 0 && !w.record.Cut {
		if err := w.recordSplit(ctx, p); err != nil {
			return err
		}
		if err := w.enqueueChildren(ctx); err != nil {
			return err
		}
		p.children = nil
	}
	return w.processPage(ctx, p)
}

// A page is what a task is about to process.
type page struct {
	keys     []*datastore.Key // of its entities, as they were read
	end      *datastore.Key   // of the range that is left for it
	children []stretch        // what lies behind it, unless the record has that already
}

// plan reads the keys of the page and maybe more, and cuts what lies behind.
func (w *work) plan(ctx context.Context) (page, error) {
	r := w.record
	root := r.Depth == 0 && !r.Cut
	// A page that was tried in vain gets smaller: it may be too much for a
	// transaction or for the memory of the process.
	size := max(1, int(r.PageSize)>>max(0, r.Attempts-1))
	s := r.stretch()
	limit := size + 1
	if !r.Cut {
		limit = lookAhead(s, root, size)
	}
	q := w.query.within(r.Start, r.End)
	seen, err := w.engine.readKeys(ctx, q, limit)
	if err != nil {
		return page{}, fmt.Errorf("read the keys of range %s: %w", r.ID, err)
	}
	if root && !seen.all {
		if seen, s, err = w.sampleRoot(ctx, q, seen, s, size); err != nil {
			return page{}, err
		}
	}
	if err := w.checkOrder(seen.keys); err != nil {
		return page{}, err
	}
	var p page
	if root {
		p.end, p.children = splitRoot(s, seen, int(w.job.Workers), size)
	} else {
		p.end, p.children = split(s, seen, size)
	}
	p.keys = seen.keys[:min(size, len(seen.keys))]
	return p, nil
}

// sampleRoot draws the sample of a kind that is larger than the root's
// look-ahead. A kind without samples is looked at further.
func (w *work) sampleRoot(ctx context.Context, q *datastore.Query, seen view, s stretch, size int) (view, stretch, error) {
	sample, err := w.engine.sample(ctx, w.query, sampleSize(int(w.job.Workers)))
	if err != nil {
		return view{}, stretch{}, fmt.Errorf("sample %q by __scatter__: %w", w.query.Kind, err)
	}
	s.samples = capSamples(sample, maxSampleBytes*maxFanOut/2)
	s.estimate = estimateFrom(s.samples, seen)
	if len(s.samples) > 0 {
		return seen, s, nil
	}
	seen, err = w.engine.readKeys(ctx, q, lookAheadPages*size+1)
	if err != nil {
		return view{}, stretch{}, fmt.Errorf("look ahead in the root: %w", err)
	}
	return seen, s, nil
}

// errOrder is a fault of the database that no retry mends.
var errOrder = errors.New("the database orders keys in another way than Datastore does, so ranges of keys can't be trusted")

// checkOrder checks that keys are where this package thinks they are: in order,
// and inside the range. Otherwise ranges might overlap or leave gaps.
func (w *work) checkOrder(keys []*datastore.Key) error {
	for i, k := range keys {
		if !w.record.contains(k) || i > 0 && compareKeys(keys[i-1], k) >= 0 {
			return Permanent(errOrder)
		}
	}
	return nil
}

// fence checks a range that a transaction has read. It is this task's only if
// it is still pending, at the generation that the task names, and as it was when
// the task looked at it.
func (w *work) fence(r *rangeRecord) error {
	known := w.record
	switch {
	case r.State == done:
		w.record = r
		return errDone
	case r.Generation != w.task.Generation:
		return errSuperseded
	case r.Cut != known.Cut || r.Children != known.Children:
		w.record = r
		return errChanged
	}
	return nil
}

// change changes the range in a transaction of its own.
func (w *work) change(ctx context.Context, f func(tx *datastore.Transaction, r *rangeRecord) error) error {
	var changed *rangeRecord
	err := w.transact(ctx, func(tx *datastore.Transaction) error {
		changed = new(rangeRecord)
		if err := recordError(tx.Get(w.record.key(), changed)); err != nil {
			return err
		}
		if err := w.fence(changed); err != nil {
			return err
		}
		if err := f(tx, changed); err != nil {
			return err
		}
		_, err := tx.Mutate(datastore.NewUpdate(changed.key(), changed))
		return err
	})
	if err == nil {
		w.record = changed
	}
	return err
}

// recordAttempt records that the range is tried again, before it is.
func (w *work) recordAttempt(ctx context.Context) error {
	return w.change(ctx, func(_ *datastore.Transaction, r *rangeRecord) error {
		r.Attempts++
		return nil
	})
}

// recordSplit records the children of a range, which keeps its page.
func (w *work) recordSplit(ctx context.Context, p page) error {
	return w.change(ctx, func(tx *datastore.Transaction, r *rangeRecord) error {
		_, err := tx.Mutate(w.cut(r, p)...)
		return err
	})
}

// cut takes the children out of a range, and returns their inserts.
func (w *work) cut(r *rangeRecord, p page) []*datastore.Mutation {
	now := time.Now().UTC().Truncate(time.Microsecond)
	mutations := make([]*datastore.Mutation, 0, len(p.children))
	for _, s := range p.children {
		child := r.child(s, now)
		mutations = append(mutations, datastore.NewInsert(child.key(), child))
	}
	r.End, r.Samples, r.Estimate, r.Cut = p.end, nil, int64(len(p.keys)), true
	return mutations
}

// transact runs a transaction on the range. A commit whose answer was lost shows
// as any error; what the record says since counts.
func (w *work) transact(ctx context.Context, f func(*datastore.Transaction) error) error {
	_, err := w.engine.client.RunInTransaction(ctx, f, datastore.MaxAttempts(transactionAttempts))
	if err == nil || errors.Is(err, errDone) || errors.Is(err, errChanged) || errors.Is(err, errSuperseded) {
		return err
	}
	r, lookup := w.engine.loadRange(ctx, w.job.ID, w.record.ID)
	if lookup != nil {
		return err
	}
	if found := w.fence(r); found != nil {
		return found
	}
	return err
}

// enqueueChildren enqueues the tasks of the children that this delivery has not
// enqueued yet. The last ones are entities to try again, which wait a little.
func (w *work) enqueueChildren(ctx context.Context) error {
	r := w.record
	now := time.Now()
	var all []tasks.Task
	for ; w.enqueued < r.Children; w.enqueued++ {
		child := &rangeRecord{Job: r.Job, ID: rangeID(r.ID, w.enqueued)}
		at := time.Time{}
		if w.enqueued >= r.Children-r.Retries {
			at = now.Add(retryDelay)
		}
		all = append(all, child.task(w.job, at))
	}
	if err := w.engine.queue.EnqueueAll(ctx, all); err != nil {
		w.enqueued = 0
		return fmt.Errorf("enqueue the children of range %s of job %s: %w", r.ID, r.Job, err)
	}
	return nil
}

// retryDelay is how long an entity that failed waits for its next attempt. The
// ones after that are up to the queue's back-off.
const retryDelay = time.Second

// giveUp decides what becomes of a task that failed. The queue tries it again,
// unless that is pointless: then the job fails, and keeps what it has recorded.
func (w *work) giveUp(ctx context.Context, cause error) error {
	cause = fmt.Errorf("job %s: range %s: %w", w.job.ID, w.record.ID, cause)
	if !isPermanent(cause) {
		if !refused(cause) {
			return cause
		}
		if err := w.recordRefusal(ctx); err != nil || w.record.Refusals < MaxAttempts {
			return errors.Join(cause, err)
		}
	}
	w.engine.log.LogAttrs(ctx, slog.LevelError, "job failed", slog.String("job", w.job.ID), slog.String("range", w.record.ID))
	return w.engine.fail(ctx, w.job, cause)
}

// recordRefusal records that an attempt was refused.
func (w *work) recordRefusal(ctx context.Context) error {
	return w.change(ctx, func(_ *datastore.Transaction, r *rangeRecord) error {
		r.Refusals++
		return nil
	})
}

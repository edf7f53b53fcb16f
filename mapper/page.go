package mapper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"cloud.google.com/go/datastore"
)

// maxPageBytes bounds the mutations of a page, well below the 10 MiB that a
// commit can have.
const maxPageBytes = 4 << 20

// tooMany reports whether so many entities failed that it is the function that is
// at fault, or the world, and not the entities: more than 10, and more than 5%.
func tooMany(failed, tried int) bool { return failed > 10 && failed*20 > tried }

// An outcome is what became of a page's entities.
type outcome struct {
	reached   int           // how many of its keys were dealt with
	spent     time.Duration // on them, with reading them
	ran       time.Duration // of that, by the function
	hung      time.Duration // of that, by calls that took too long
	dearest   time.Duration // of that, by one entity
	squares   float64       // of the seconds that each took
	inRow     int           // of the last ones, how many were slow, each
	rowTime   time.Duration // and what they took
	processed int64
	counters  counters
	failures  []failure
	waiting   map[string]time.Time // the ranges of those to try again, and when
	bytes     int                  // of the mutations
	written   map[string]bool      // entities that others put or deleted
	writes    int                  // mutations
	next      *rangeRecord         // what is left of the range, for the same task
}

type failure struct {
	at        *position
	err       error
	attempts  int64 // that were made
	permanent bool  // another would only repeat it
	suspected bool  // of killing its process; nothing more is known
}

// A reader gets entities that are at some positions.
type reader func(at []*position) (entities []datastore.PropertyList, missing []bool, err error)

// processPage runs the function over the page's entities, and commits what it
// did together with the range's record. For an [Update] that is one
// transaction, which reads the entities, too.
func (w *work) processPage(ctx context.Context, p page) error {
	if w.mode == visit {
		read := entityReader(w.engine.get(ctx))
		if w.keys != nil && w.keys.whole {
			read = w.keys.read
		}
		o, err := w.runPage(ctx, p.at, read, func(*effect) error { return nil })
		if err != nil {
			return err
		}
		return w.commit(ctx, p, o)
	}
	attempts := pageAttempts
	if len(p.at) <= 1 {
		attempts = transactionAttempts
	}
	var settled *rangeRecord
	var final *outcome
	ready := false // all that is left is the commit
	err := w.transact(ctx, attempts, func(tx *datastore.Transaction) error {
		settled, ready = new(rangeRecord), false
		read := w.fencedReader(tx, settled)
		o, err := w.runPage(ctx, p.at, read, func(e *effect) error { return mutate(tx, e) })
		if err != nil {
			return err
		}
		if err := w.settle(tx, settled, p, o); err != nil {
			return err
		}
		ready, final = true, o
		return settled.update(tx)
	})
	switch {
	case errors.Is(err, errTooSlow):
		return w.processPage(ctx, p) // without the entity that it was
	case err != nil && ready:
		return asCommitRefusal(err)
	case err != nil:
		return err
	}
	w.record = settled
	w.settled(final)
	return nil
}

// commit records what became of a page, in a transaction of its own.
func (w *work) commit(ctx context.Context, p page, o *outcome) error {
	err := w.change(ctx, func(tx *datastore.Transaction, r *rangeRecord) error { return w.settle(tx, r, p, o) })
	if err == nil {
		w.settled(o)
	}
	return err
}

// settled takes over what the delivery has to do after its commit.
func (w *work) settled(o *outcome) {
	w.waiting, w.next = o.waiting, o.next
	for _, f := range o.failures {
		if f.last() {
			w.failed++
		}
	}
}

// last reports whether there are no attempts left.
func (f failure) last() bool { return f.permanent || f.attempts >= MaxAttempts }

// errTooSlow says that the function took too long on an entity, which has failed.
// The page of an [Update] is tried again without it, as its transaction has waited
// long enough, and ends behind it: the delivery has, too.
var errTooSlow = errors.New("the function took too long on an entity")

// get returns a function that looks entities up outside transactions.
func (e *Engine) get(ctx context.Context) func([]*datastore.Key, any) error {
	return func(keys []*datastore.Key, dst any) error { return e.client.GetMulti(ctx, keys, dst) }
}

func entityReader(get func([]*datastore.Key, any) error) reader {
	return func(at []*position) ([]datastore.PropertyList, []bool, error) {
		keys := keysOf(at)
		entities := make([]datastore.PropertyList, len(keys))
		missing, err := lookup(get, keys, into(entities))
		return entities, missing, err
	}
}

// fencedReader reads in a transaction. The first call reads the range's record
// along, and checks that it is this task's.
func (w *work) fencedReader(tx *datastore.Transaction, r *rangeRecord) reader {
	first := true
	return func(at []*position) ([]datastore.PropertyList, []bool, error) {
		if !first {
			return entityReader(tx.GetMulti)(at)
		}
		first = false
		entities := make([]datastore.PropertyList, len(at))
		keys := append([]*datastore.Key{w.record.key()}, keysOf(at)...)
		missing, err := lookup(tx.GetMulti, keys, append([]any{r}, into(entities)...))
		if err != nil {
			return nil, nil, err
		}
		if missing[0] {
			return nil, nil, errSuperseded // the job's records were deleted
		}
		return entities, missing[1:], w.fence(r)
	}
}

// mutate adds an entity's mutations to a transaction: all, or none if one of
// them is invalid.
func mutate(tx *datastore.Transaction, e *effect) error {
	keys := make([]*datastore.Key, len(e.mutations))
	for i, m := range e.mutations {
		keys[i] = m.key
	}
	groups := apart(keys)
	if len(groups) > 1 {
		// The client would drop one of two deletes. See lookup.
		return fmt.Errorf("%d of the keys that the function puts or deletes can't be told apart by the client", len(groups))
	}
	all := make([]*datastore.Mutation, len(e.mutations))
	for i, m := range e.mutations {
		all[i] = m.Mutation
	}
	_, err := tx.Mutate(all...)
	return err
}

// runPage runs the function over entities until they are done, or the page has
// taken its time or its bytes. It always deals with at least one.
func (w *work) runPage(ctx context.Context, at []*position, read reader, accept func(*effect) error) (*outcome, error) {
	o := &outcome{written: make(map[string]bool)}
	begun := time.Now()
	if w.stop > 0 {
		at = at[:w.stop]
	}
	for first := true; first || o.reached < len(at); first = false {
		size := w.engine.paces.get(w.job.ID).chunk(len(at) - o.reached)
		if first {
			size = min(size, maxPageSize-1) // with the range's record, as many as a lookup can have
		}
		chunk := at[o.reached : o.reached+size]
		entities, missing, err := read(chunk)
		if err != nil {
			return nil, err
		}
		bytes, writes, squares, began := 0, o.writes, o.squares, time.Now()
		o.spent = time.Since(begun)
		for i, p := range chunk {
			bytes += propertiesSize(entities[i])
			if o.full(p.Key, len(at)-o.reached, w.surprising(o), time.Duration(w.job.PageTime)) {
				return o, w.tolerable(ctx, o)
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			hung := o.hung
			counts, err := w.counted(p, entities[i], missing[i])
			if err != nil {
				o.failures = append(o.failures, failure{at: p, err: err, attempts: 1, permanent: true})
			} else if counts {
				if err := w.runEntity(ctx, o, p, entities[i], accept); err != nil {
					return nil, err
				}
			}
			o.reached++
			o.took(time.Since(begun)-o.spent, hung, w.slowEntity())
		}
		w.engine.paces.add(w.job.ID, pace{entities: int64(len(chunk)), bytes: int64(bytes), writes: int64(o.writes - writes), spent: time.Since(began), squares: o.squares - squares})
	}
	return o, w.tolerable(ctx, o)
}

// counted reports whether an entity that was read is one of the query, and where the page has
// it: it may have changed since its key was read.
func (w *work) counted(p *position, properties datastore.PropertyList, missing bool) (bool, error) {
	if missing || w.query.whole() {
		return !missing, nil
	}
	now, err := w.query.in(p.space()).position(p.Key, properties)
	if now == nil || !now.equal(p) && !w.record.Alone { // one that has failed is nobody else's
		return false, nil
	}
	return true, err
}

// sudden is how many slow entities in a row are a surprise. Of entities whose times are those of
// a heavy tail, Pareto's with an exponent of 1.2, a page of 500 has so many that are nine times
// as slow as the fastest ones less than once in a thousand.
const sudden = 5

// slowEntity returns how long the function takes for an entity if three pages of such entities
// would be needed for one.
func (w *work) slowEntity() time.Duration {
	return 3 * time.Duration(w.job.PageTime) / time.Duration(max(1, w.record.PageSize))
}

// took notes how long the function took for the last entity, and whether it was slow. How long
// it hung before that does not count.
func (o *outcome) took(t, hung, slow time.Duration) {
	own := t - (o.hung - hung)
	if o.inRow, o.rowTime = o.inRow+1, o.rowTime+own; own < slow {
		o.inRow, o.rowTime = 0, 0
	}
	o.spent += t
	o.ran += t
	o.dearest = max(o.dearest, t)
	o.squares += t.Seconds() * t.Seconds()
}

// surprising reports whether the entities of a page take so much longer than the pages
// before that all workers should share what is left: as a whole, or suddenly. The dearest
// one says nothing, as it may be the only one.
func (w *work) surprising(o *outcome) bool {
	if o.reached < 3 || !w.splitting.adaptive() {
		return false
	}
	mean := (o.ran - o.hung - o.dearest) / time.Duration(o.reached-1)
	return o.inRow >= sudden || mean > 0 && mean >= w.slowEntity()
}

// full reports whether a page has to end before an entity, with so many left to do. One that
// is surprising ends early, so that the others begin; and one that needs little more time
// goes on. What the page has put or deleted itself is for the next transaction to read.
func (o *outcome) full(next *datastore.Key, left int, surprising bool, budget time.Duration) bool {
	if o.reached == 0 {
		return false
	}
	if surprising {
		budget /= 3
	} else if needs := o.ran / time.Duration(o.reached) * time.Duration(left); o.spent+needs <= longer(budget) {
		budget = longer(budget)
	}
	return o.spent >= budget || o.bytes >= maxPageBytes || len(o.written) > 0 && o.written[next.Encode()]
}

// longer returns how long a page may take that then has nothing left: twice as long. What is
// left would be a page of its own, and cost as much as a full one.
func longer(budget time.Duration) time.Duration { return max(budget, min(2*budget, maxPageTime)) }

// nextPage returns the size of the next pages: as many entities as fit the budget at
// the pace of those that were dealt with. The dearest one says little of the others. If that
// is about the usual pace of the job, the latter counts: ranges that are cut into pages of a
// size that does not change have fewer that are not full.
func (o *outcome) nextPage(most int64, budget, usual time.Duration) int64 {
	ran, n := o.ran-o.hung, o.reached
	if n > 1 {
		ran, n = ran-o.dearest, n-1
	}
	if o.inRow >= sudden {
		ran, n = o.rowTime-o.dearest, o.inRow-1
	}
	each := max(1, ran/time.Duration(max(1, n)))
	if each < 2*usual && usual < 2*each {
		each = usual
	}
	return max(1, min(int64(budget/each), most))
}

func (w *work) runEntity(ctx context.Context, o *outcome, p *position, entity datastore.PropertyList, accept func(*effect) error) error {
	key := p.Key
	fail := func(err error) error {
		attempts := 1 + w.record.refusals(w.job)
		o.failures = append(o.failures, failure{at: p, err: err, attempts: attempts, permanent: isPermanent(err)})
		return nil
	}
	if len(w.slow) > 0 {
		if err := w.slow[key.Encode()]; err != nil {
			return fail(err)
		}
	}
	e, err := w.call(ctx, key, entity)
	if errors.Is(err, errTooSlow) && w.mode == update {
		if w.slow == nil {
			w.slow = make(map[string]error)
		}
		w.slow[key.Encode()], w.stop = err, o.reached+1
		return errTooSlow
	}
	if errors.Is(err, errTooSlow) {
		o.hung += time.Duration(w.job.Timeout)
	}
	if err == nil {
		err = w.query.keeps(p, entity, e)
	}
	if err == nil {
		err = Permanent(o.accept(e, accept))
	}
	if err != nil {
		return fail(err)
	}
	o.processed++
	o.bytes += e.bytes
	o.writes += len(e.mutations)
	for _, m := range e.mutations {
		if !m.key.Incomplete() && !m.key.Equal(key) {
			o.written[m.key.Encode()] = true
		}
	}
	return nil
}

// call calls the function, for as long as the job lets it.
func (w *work) call(ctx context.Context, key *datastore.Key, entity datastore.PropertyList) (*effect, error) {
	type result struct {
		effect *effect
		err    error
	}
	var r result
	limit := time.Duration(w.job.Timeout)
	switch err := w.runner.run(ctx, limit, func(ctx context.Context) { r.effect, r.err = w.apply(ctx, w.job, key, entity) }); {
	case errors.Is(err, errTimeout):
		return nil, fmt.Errorf("%w: more than %v", errTooSlow, limit)
	case err != nil:
		return nil, err
	}
	return r.effect, r.err
}

// accept takes over what an entity counted, if its mutations are accepted.
func (o *outcome) accept(e *effect, mutations func(*effect) error) error {
	if len(e.counters) == 0 {
		return mutations(e)
	}
	merged := o.counters.clone()
	if err := merged.merge(e.counters); err != nil {
		return err
	}
	if err := mutations(e); err != nil {
		return err
	}
	o.counters = merged
	return nil
}

// tolerable returns an error if so much fails that its entities can't be blamed: of
// a full page, or of what the job has done so far. A tolerant job has them recorded
// after their last attempt.
func (w *work) tolerable(ctx context.Context, o *outcome) error {
	failed := len(o.failures)
	if failed == 0 || w.record.Alone || w.job.Tolerant && !slices.ContainsFunc(o.failures, func(f failure) bool { return !f.last() }) {
		return nil
	}
	r := refusal{cause: o.failures[0].err, final: true}
	switch {
	case tooMany(failed, max(o.reached, int(w.job.PageSize))):
		r.summary = fmt.Sprintf("the function failed on %d of %d entities of a page", failed, o.reached)
	case failed*20 > o.reached: // a small page, or one that took its time, says little by itself
		sum, _, err := w.engine.glance(ctx, w.job.ID)
		if err != nil {
			return err
		}
		failed, tried := failed+int(sum.failing()), o.reached+int(sum.failing()+sum.Processed)
		if !tooMany(failed, tried) {
			return nil
		}
		r.summary = fmt.Sprintf("the function failed on %d of %d entities so far", failed, tried)
	default:
		return nil
	}
	for _, f := range o.failures {
		r.final = r.final && f.permanent
		r.after = max(r.after, retryAfter(f.err))
	}
	return r
}

// errOverlap is a mistake in this package: a page reaches into another range, whose task
// would do its entities once more.
var errOverlap = errors.New("the page ends behind its range: this is a mistake in scattermap, please report it")

// settle puts the outcome into the range's record, which the transaction has
// read, and inserts the children that come of it.
func (w *work) settle(tx *datastore.Transaction, r *rangeRecord, p page, o *outcome) error {
	now := time.Now().UTC().Truncate(time.Microsecond)
	r.RefusedIn = w.job.Generation
	reaches := w.record.Kind == "" // into other spaces, perhaps; planSpaces may have found out
	if w.query.many() && len(p.at) > 0 {
		r.in(p.at[0].space())
	}
	var inserts []*datastore.Mutation
	add := func(child *rangeRecord) { inserts = append(inserts, datastore.NewInsert(child.key(), child)) }
	if p.pieces != nil {
		switch pieces, err := p.pieces(); {
		case errors.Is(err, errCut):
			return err
		case err == nil && len(pieces) > 1 && pieces[0].holds(p.at[len(p.at)-1]): // otherwise the next page tries again
			inserts = w.cut(r, pieces)
		}
	}
	o.next = nil
	size := o.nextPage(w.job.PageSize, time.Duration(w.job.PageTime), w.engine.paces.get(w.job.ID).each())
	if rest, ok := w.left(r, p, o); ok {
		if w.query.many() && reaches {
			rest.space, rest.survey = space{}, true
		}
		child := r.rest(rest, now)
		child.PageSize = size
		r.End = child.Start
		if w.goesOn(child) {
			child.Depth, child.Continued = r.Depth, true
			o.next = child
		}
		add(child)
	}
	if o.reached > 0 && !r.contains(p.at[o.reached-1]) {
		return errOverlap
	}
	o.waiting = make(map[string]time.Time)
	for _, f := range o.failures {
		switch {
		case r.Alone && !f.last():
			return refusal{summary: "the function failed on an entity", cause: f.err, after: retryAfter(f.err)}
		case !r.Alone && !f.last():
			child := r.alone(f, now)
			if f.attempts > 0 {
				child.NotBefore = now.Add(max(retryDelay(f.attempts), retryAfter(f.err)))
			}
			add(child)
			r.Retries++
			o.waiting[child.ID] = child.NotBefore
		}
	}
	for _, f := range o.failures {
		switch {
		case f.last() && r.Alone:
			r.Refusals = f.attempts
			r.fail(f.err, now)
		case f.last():
			child := r.alone(f, now)
			child.fail(f.err, now)
			add(child)
			r.Recorded++
		}
	}
	r.Processed = o.processed
	if r.ID == w.job.root() && w.unsharded != nil {
		r.Unsharded = w.unsharded()
	}
	r.Full = o.reached >= int(r.PageSize) || o.bytes >= maxPageBytes || o.spent >= time.Duration(w.job.PageTime)
	if len(o.counters) > 0 {
		encoded, err := json.Marshal(o.counters)
		if err != nil {
			return err
		}
		r.Counters = encoded
	}
	r.finish(now)
	_, err := tx.Mutate(inserts...)
	return err
}

// left returns what is left of a range behind what was dealt with, if anything is. If the
// function takes longer there than expected, all workers may share it.
func (w *work) left(r *rangeRecord, p page, o *outcome) (rest stretch, ok bool) {
	start := p.next
	if o.reached < len(p.at) {
		start = p.at[o.reached]
	}
	if start == nil || !r.contains(start) { // it is a child's
		return stretch{}, false
	}
	s := r.stretch()
	rest = s.from(start, s.estimate-int64(o.reached))
	if w.surprising(o) {
		rest.workers, rest.portion = w.job.Workers, 0
	}
	return rest, true
}

// alone returns the record of a range's next child, for an entity that failed.
func (r *rangeRecord) alone(f failure, now time.Time) *rangeRecord {
	child := r.child(stretch{start: f.at, estimate: 1}, now)
	if r.Kind != "" {
		child.in(f.at.space())
	}
	child.Alone, child.Refusals, child.RefusedIn = true, f.attempts, r.RefusedIn
	child.Solo = f.suspected
	return child
}

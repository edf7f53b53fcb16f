package record

import (
	"cmp"
	"errors"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/split"
	"github.com/scattermap/scattermap/mapper/internal/tally"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
)

// An Outcome says what a page has done. [Range.Commit] stores it in the record of the page's range,
// and makes the records of the range's children.
type Outcome struct {
	Done []*keyspace.Position // the page's entities that were processed or have failed, in order
	Next *keyspace.Position   // the range's first entity after Done; nil: there is none
	// Cut has the pieces into which the range is cut: first its own piece, then its children's
	// pieces. The range is not cut if there are fewer than two, or if the page reaches beyond the
	// first.
	Cut     []split.Piece
	GoesOn  bool          // whether the delivery itself continues with the rest of the range
	Failed  []Failure     // the entities in Done on which the function has failed
	Backoff fault.Backoff // how long to wait before failed entities are retried

	JobGeneration int64 // the job's generation
	// Space is the kind and namespace of the page's entities. It is nil if the query has only one
	// of each.
	Space      *keyspace.Space
	Beyond     bool          // whether the rest of the range may have other kinds or namespaces
	EntitySize int64         // average size of an entity in bytes; 0: unknown
	NextPage   int64         // the page size of the range's children, in entities
	Each       time.Duration // the function's mean time for an entity

	Processed, Written int64
	// Calls is the number of calls of a service that the function has announced since the record
	// was last written.
	Calls     int64
	Conflicts int64         // number of repeated runs of the function, because other clients had changed an entity
	Ran       time.Duration // how long the function ran
	// Yielded is how long the page waited in favour of other clients, because the job is a
	// background job.
	Yielded   time.Duration
	Full      bool           // whether the page ended at a limit of count, bytes or time
	Counters  []byte         // the function's counters as JSON
	Unsharded int64          // number of entities that lack the property in ShardBy, see [Range]
	Wrote     []byte         // which entities the page writes, see [undolog.Wrote]
	Left      []undolog.Left // entities that an undo did not restore
	Examples  []Example      // changes that a rehearsal would make
}

// A Failure is an entity on which the function has failed.
type Failure struct {
	At        *keyspace.Position
	Err       error
	Attempts  int64 // the number of attempts so far
	Permanent bool  // whether another attempt would fail in the same way
	// Suspected says that the entity may have killed the process that ran the function on it. Then
	// there is no error.
	Suspected bool
}

// Last reports whether the failure is final. The parameter most is the largest number of attempts
// for an entity.
func (f Failure) Last(most int64) bool { return f.Permanent || f.Attempts >= most }

// A Follow says what the delivery must do after its page has been committed.
type Follow struct {
	Next *Range // the child range with which the delivery continues; nil: none
	// Waits has the times when children with an entity to retry are due, by the children's IDs.
	Waits  map[string]time.Time
	Failed int   // number of failed entities that are not retried
	CutOff int64 // number of child ranges that the page has cut off for other workers
}

// ErrOverlap says that a page goes beyond the end of its range, so another task would process some
// entities again. This is a bug in scattermap.
var ErrOverlap = fault.Fatal(errors.New("the page ends after its range: this is a mistake in scattermap, " +
	"please report it"))

// Commit marks a pending range as done, and stores the outcome of its page. It only changes records
// in memory, which the caller then writes. After an error, the caller must not use the range.
//
// Commit returns the new children in the order of their indexes. First come pieces that were cut
// off, then the rest of the range's own piece, entities to retry, and final failures.
func (r *Range) Commit(o Outcome, now time.Time) (children []*Range, f Follow, err error) {
	r.RefusedIn, r.Pace = o.JobGeneration, o.Each // isolate copies RefusedIn to the entities' own ranges
	if o.Space != nil {
		r.In(*o.Space)
	}
	// If the page has processed entities after the first piece, the range is not cut now. The next
	// page may cut it.
	if at := o.reached(); len(o.Cut) > 1 && at != nil && o.Cut[0].Holds(at) {
		r.EntitySize = cmp.Or(o.EntitySize, r.EntitySize)
		children = r.Divide(o.Cut, o.NextPage, o.Space != nil, now)
		f.CutOff = int64(len(children))
	}
	if rest := r.rest(o, now); rest != nil {
		children = append(children, rest)
		if rest.Continued {
			f.Next = rest
		}
	}
	// the children have the rest now, so the page must lie in what the range keeps
	if n := len(o.Done); n > 0 && !r.Contains(o.Done[n-1]) {
		return nil, f, ErrOverlap
	}
	children = append(children, r.isolate(o, &f, now)...)
	r.Entities, r.Keys = int64(len(o.Done)), KeysDigest(o.Done)
	r.Processed, r.Written, r.Conflicts = o.Processed, o.Written, o.Conflicts
	r.Calls += o.Calls // added, because earlier runs without effect may have announced calls, too
	r.Ran, r.Full = o.Ran, o.Full
	r.Yielded = o.Yielded
	r.Unsharded, r.Counters, r.Wrote = cmp.Or(o.Unsharded, r.Unsharded), o.Counters, o.Wrote
	r.Leave(o.Left)
	r.Exemplify(o.Examples)
	r.Finish(now)
	return children, f, nil
}

// Leave stores in the record of an undo's page which entities it could not restore.
func (r *Range) Leave(all []undolog.Left) {
	if len(all) > 0 {
		r.LeftOf, r.Left = r.Job, undolog.EncodeLeft(all)
	}
}

// reached returns the last position that the page has processed. If it has processed no entity, it
// returns the first position after the page, or nil if the range is empty.
func (o *Outcome) reached() *keyspace.Position {
	if n := len(o.Done); n > 0 {
		return o.Done[n-1]
	}
	return o.Next
}

// Divide cuts the range into the given pieces. The range keeps the first piece. Divide returns new
// children for the other pieces, with the given page size. The argument many says that the query
// has several kinds or namespaces. Then the range gets the kind and namespace of its piece.
func (r *Range) Divide(pieces []split.Piece, pageSize int64, many bool, now time.Time) []*Range {
	children := make([]*Range, 0, len(pieces)-1)
	for _, s := range pieces[1:] {
		child := r.Child(s, now)
		child.PageSize = pageSize
		children = append(children, child)
	}
	own := pieces[0]
	r.End, r.Samples = own.End, split.CapSamples(own.Samples, split.MaxSampleBytes)
	r.Estimate, r.Exact, r.Workers, r.FairShare = own.Estimate, own.Exact, own.Workers, own.FairShare
	r.Cut, r.Resample = !own.Resample, own.Resample // a piece with several spaces is surveyed, and may be cut again
	if many {
		r.In(own.Space)
	}
	return children
}

// rest shortens the range to its page, and returns a new child for the rest of its own piece. It
// returns nil if nothing remains, or if children already have the rest. If the range runs
// exclusively (its process does nothing else) and its page was halved, the child also runs
// exclusively, because it may contain the entity that kills the process.
func (r *Range) rest(o Outcome, now time.Time) *Range {
	if o.Next == nil || !r.Contains(o.Next) {
		return nil
	}
	s := r.Piece()
	s = s.From(o.Next, s.Estimate-int64(len(o.Done)))
	if o.Beyond {
		s.Space, s.Resample = keyspace.Space{}, true
	}
	child := r.Child(s, now)
	if r.Solo && r.Narrowed > 0 {
		child.Solo = true
		child.Halve(int(min(max(2, s.Estimate), child.PageSize)))
	}
	child.PageSize = o.NextPage
	r.End = child.Start
	if o.GoesOn && !child.Solo {
		child.Depth, child.Continued = r.Depth, true
	}
	return child
}

// isolate makes a child for each failed entity: first for the entities to retry, then for the final
// failures. If the range itself has only a single entity, its own record stores the failure.
// isolate stores in f when the retries are due, and the number of final failures.
func (r *Range) isolate(o Outcome, f *Follow, now time.Time) (children []*Range) {
	f.Waits = make(map[string]time.Time)
	var singles tally.Sum
	single := func(e Failure) *Range {
		child := r.AloneChild(e.At, e.Attempts, e.Suspected, now)
		children = append(children, child)
		return child
	}
	final := func(e Failure) bool { return e.Last(o.Backoff.Attempts) }
	for _, e := range o.Failed {
		if final(e) {
			continue
		}
		child := single(e)
		after := fault.After(e.Err)
		if e.Attempts > 0 {
			after = max(after, o.Backoff.Delay(e.Attempts))
		}
		if after > 0 {
			child.NotBefore = now.Add(after)
		}
		f.Waits[child.ID] = child.NotBefore
		singles = singles.Plus(child.SingleSum())
		r.Retries++
	}
	for _, e := range o.Failed {
		if !final(e) {
			continue
		}
		if f.Failed++; r.Alone {
			r.Refusals = e.Attempts
			r.Fail(e.Err, now)
			continue
		}
		child := single(e)
		child.Fail(e.Err, now)
		singles = singles.Plus(child.SingleSum())
		r.Recorded++
	}
	if r.Retries+r.Recorded > 0 {
		r.Single = singles.Bytes()
	}
	return children
}

package record

import (
	"cmp"
	"errors"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/split"
	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// An Outcome is what a page has come to: what [Range.Commit] makes of a range's record, and of new
// records for what is left.
type Outcome struct {
	Done    []*keyspace.Position // the entities that the page has dealt with, in order
	Next    *keyspace.Position   // the first entity that it has not; nil: the range has no more
	Cut     []split.Piece        // the range's own piece, and those that become children; none: it is not cut
	GoesOn  bool                 // the task of this range goes on with what is left
	Failed  []Failure            // of those that are done
	Backoff fault.Backoff        // of entities that have failed

	Generation int64           // of the job
	Space      *keyspace.Space // of the page; nil: the query is over one space
	Beyond     bool            // what is left may be in other spaces
	EntitySize int64           // on average, in bytes; 0: nothing new is known
	NextPage   int64           // how many entities the pages after this one are to have
	Each       time.Duration   // what the function takes for an entity

	Processed, Written int64
	Conflicts          int64         // how often the function ran again
	Ran                time.Duration // of the function
	Full               bool          // by count, bytes or time
	Counters           []byte        // JSON
	Unsharded          int64         // see Range
	Wrote              []byte        // see [Wrote]
	Left               []Left        // of an undo
	Examples           []Example     // of a rehearsal
}

// A Failure is an entity that could not be processed.
type Failure struct {
	At        *keyspace.Position
	Err       error
	Attempts  int64 // that were made
	Permanent bool  // another would only repeat it
	Suspected bool  // of killing its process; nothing more is known
}

// Last reports whether there are no attempts left, of so many.
func (f Failure) Last(most int64) bool { return f.Permanent || f.Attempts >= most }

// A Follow is what a task has to do after the commit of its page.
type Follow struct {
	Next   *Range               // the child that it goes on with; nil: none
	Waits  map[string]time.Time // the children that are tried again, by ID, and when
	Failed int                  // how many entities have failed for good
	CutOff int64                // how many children the range was cut into
}

// ErrOverlap is a mistake in this module: a page reaches into another range, whose task would do
// its entities once more.
var ErrOverlap = fault.Fatal(errors.New("the page ends after its range: this is a mistake in scattermap, " +
	"please report it"))

// Commit ends a pending range with the outcome of its page, and returns its new children, in the
// order of their IDs: the pieces that the rest is cut into; what is left of the range's own piece;
// entities to try again; entities that have failed for good. It decides all that the records say,
// and has neither a clock nor a client. On an error the range is not to be used.
func (r *Range) Commit(o Outcome, now time.Time) (children []*Range, f Follow, err error) {
	r.RefusedIn, r.Pace = o.Generation, o.Each
	if o.Space != nil {
		r.In(*o.Space)
	}
	if last := o.last(); len(o.Cut) > 1 && last != nil && o.Cut[0].Holds(last) { // otherwise the next page tries again
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
	if n := len(o.Done); n > 0 && !r.Contains(o.Done[n-1]) {
		return nil, f, ErrOverlap
	}
	children = append(children, r.fail(o, &f, now)...)
	r.Entities, r.Keys = int64(len(o.Done)), KeysDigest(o.Done)
	r.Processed, r.Written, r.Conflicts, r.Ran, r.Full = o.Processed, o.Written, o.Conflicts, o.Ran, o.Full
	r.Unsharded, r.Counters, r.Wrote = cmp.Or(o.Unsharded, r.Unsharded), o.Counters, o.Wrote
	Leave(r, o.Left)
	Exemplify(r, o.Examples)
	r.Finish(now)
	return children, f, nil
}

// last returns the last entity that was dealt with, or that was to be; nil: there was
// none.
func (o *Outcome) last() *keyspace.Position {
	if n := len(o.Done); n > 0 {
		return o.Done[n-1]
	}
	return o.Next
}

// Divide takes the pieces after the first one out of the range, and returns them as its children,
// whose pages are to have so many entities. If the query is over many spaces, the range is in that
// of its own piece from then on.
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
	r.Cut, r.Resample = !own.Resample, own.Resample
	if many {
		r.In(own.Space)
	}
	return children
}

// rest ends the range before what is left of its own piece, and returns that as its child; nil if
// nothing is left, or a child has it.
func (r *Range) rest(o Outcome, now time.Time) *Range {
	if o.Next == nil || !r.Contains(o.Next) {
		return nil
	}
	s := r.Piece()
	s = s.From(o.Next, s.Estimate-int64(len(o.Done)))
	if o.Beyond {
		s.Space, s.Resample = keyspace.Space{}, true
	}
	child := r.Rest(s, now)
	child.PageSize = o.NextPage
	r.End = child.Start
	if o.GoesOn && !child.Solo {
		child.Depth, child.Continued = r.Depth, true
	}
	return child
}

// fail gives each entity that has failed a range of its own: those to try again first. A range of a
// single entity records its failure itself.
func (r *Range) fail(o Outcome, f *Follow, now time.Time) (children []*Range) {
	f.Waits = make(map[string]time.Time)
	var singles tally.Sum
	single := func(e Failure) *Range {
		child := r.AloneChild(e.At, e.Attempts, e.Suspected, now)
		children = append(children, child)
		return child
	}
	final := func(e Failure) bool { return e.Last(o.Backoff.Attempts) }
	for _, e := range o.Failed {
		if r.Alone || final(e) {
			continue
		}
		child := single(e)
		if e.Attempts > 0 {
			child.NotBefore = now.Add(max(o.Backoff.Delay(e.Attempts), fault.After(e.Err)))
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

package record

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// RangeKind is the kind of the records of ranges.
const RangeKind = "ScattermapRange"

// A RangeState is what has become of a range. It is stored.
type RangeState string

// States of a range.
const (
	Pending   RangeState = "pending"
	Done      RangeState = "done"
	Abandoned RangeState = "abandoned" // it was pending when its job was cleaned up
)

// A Range is the record of one range: what a task has to do, and once it is done, what it did. Only
// open, failed, left_of, examples_of and expires are indexed, and exist only while the range is
// pending, its entity has failed, its undo has left something, its rehearsal has an example, or it
// has been cleaned up: a finished job costs no index entries otherwise. What is empty is not saved,
// as most of it is in most records, but for what tells them apart.
type Range struct {
	Job         string             `datastore:"job,noindex"`
	Incarnation string             `datastore:"incarnation,noindex"` // of the job
	ID          string             `datastore:"id,noindex"`
	Open        string             `datastore:"open,omitempty"`   // the job's ID, while it is pending
	Failed      string             `datastore:"failed,omitempty"` // the job's ID, while its entity has failed
	State       RangeState         `datastore:"state,noindex"`
	Generation  int64              `datastore:"generation,noindex"`
	Depth       int64              `datastore:"depth,noindex"`           // the root has 0
	Start       *keyspace.Position `datastore:"start,omitempty,noindex"` // nil: from the beginning
	End         *keyspace.Position `datastore:"end,omitempty,noindex"`   // nil: to the end
	// with Kind: the space that its entities are in, if the query has several
	Namespace string `datastore:"namespace,omitempty,noindex"`
	Kind      string `datastore:"kind,omitempty,noindex"` // empty: it may reach into several
	// its task has to survey it, as that of the root does
	Resample bool                 `datastore:"survey,omitempty,noindex"`
	Alone    bool                 `datastore:"alone,omitempty,noindex"` // only the entity at Start
	Samples  []*keyspace.Position `datastore:"samples,omitempty,noindex"`
	Estimate int64                `datastore:"estimate,omitempty,noindex"` // of its entities; 0: unknown
	Exact    bool                 `datastore:"exact,omitempty,noindex"`    // they were counted
	Workers  int64                `datastore:"workers,omitempty,noindex"`  // that should share it; 0 is one
	// how many entities are one worker's portion; 0: all of them
	FairShare int64 `datastore:"portion,omitempty,noindex"`
	// bytes of an entity of the kind, on average; 0: unknown
	EntitySize int64 `datastore:"entity_size,omitempty,noindex"`
	PageSize   int64 `datastore:"page_size,omitempty,noindex"`
	// what became of PageSize for this page; 0: it is as it was
	Narrowed int64 `datastore:"narrowed,omitempty,noindex"`
	Attempts int64 `datastore:"attempts,omitempty,noindex"` // deliveries after the first one
	// attempts that the function or the database refused
	Refusals int64 `datastore:"refusals,omitempty,noindex"`
	// when the service that the function calls began to refuse calls
	LaterFrom time.Time `datastore:"later_from,omitempty,noindex"`
	// the job's generation in which attempts were refused; Resume raises that
	RefusedIn int64     `datastore:"refused_in,omitempty,noindex"`
	NotBefore time.Time `datastore:"not_before,omitempty,noindex"` // of its task
	// its last task was gone while it was pending
	Lost bool `datastore:"lost,omitempty,noindex"`
	// the part behind its page is with its children
	Cut       bool  `datastore:"cut,omitempty,noindex"`
	Children  int64 `datastore:"children,omitempty,noindex"`
	Continued bool  `datastore:"continued,omitempty,noindex"` // its parent's task went on with it
	// of the children: entities that failed, and are tried again
	Retries int64 `datastore:"retries,omitempty,noindex"`
	// the last of the children: entities that have failed for good
	Recorded int64 `datastore:"recorded,omitempty,noindex"`
	// with Retries or Recorded: a sum of hashes of those children and their entities
	Single []byte `datastore:"single,omitempty,noindex"`
	// that its page came to: all that were in the range then
	Entities int64  `datastore:"entities,omitempty,noindex"`
	Keys     []byte `datastore:"keys,omitempty,noindex"` // a digest of theirs
	// a digest of what is above and below, once it is done
	Seal      []byte `datastore:"seal,omitempty,noindex"`
	Processed int64  `datastore:"processed,omitempty,noindex"`
	// of those, entities that it has saved or deleted
	Written int64 `datastore:"written,omitempty,noindex"`
	// how often its function ran again on what others had changed
	Conflicts int64         `datastore:"conflicts,omitempty,noindex"`
	Ran       time.Duration `datastore:"ran,omitempty,noindex"` // by the function, on its page
	// of the function, for an entity, where the range was cut off; 0: unknown
	Pace time.Duration `datastore:"pace,omitempty,noindex"`
	// its page was full by count, bytes or time
	Full bool `datastore:"full,omitempty,noindex"`
	// of the root: entities without the property that the job is sharded by; negative: unknown
	Unsharded int64  `datastore:"unsharded,omitempty,noindex"`
	Counters  []byte `datastore:"counters,omitempty,noindex"` // JSON
	Wrote     []byte `datastore:"wrote,omitempty,noindex"`    // by its page, see [undolog.Wrote]
	Left      []byte `datastore:"left,omitempty,noindex"`     // by the page of an undo, see [Leave]
	LeftOf    string `datastore:"left_of,omitempty"`          // the job's ID, if it has left something
	// JSON: of what the page of a rehearsal would do
	Examples   []byte    `datastore:"examples,omitempty,noindex"`
	ExamplesOf string    `datastore:"examples_of,omitempty"`   // the job's ID, if it has some
	Error      string    `datastore:"error,omitempty,noindex"` // of its entity, if that has failed
	Created    time.Time `datastore:"created,omitempty,noindex"`
	Done       time.Time `datastore:"done,omitempty,noindex"`
	// for a time-to-live policy, see mapper.Job.CleanUp
	Expires time.Time `datastore:"expires,omitempty"`

	Suspicion // that it kills its process

	Stored  *datastore.Key `datastore:"-"` // that a query has found it under
	Version int64          `datastore:"-"` // of the record, as the database has it; 0: unknown, see package wire
}

// MaxPageSize is the most entities of a page: as many as a lookup can have [the limits page of
// Datastore].
const MaxPageSize = 1000

// MaxDeaths is how often a process may die while it does nothing but one entity, or a job's
// finalizer, see mapper.MaxDeaths.
const MaxDeaths = 5

// RangeID derives the ID of a range from its parent's and its place among the
// children. That of a root is derived from its job.
func RangeID(parent string, index int64) string {
	h := sha256.Sum256([]byte(parent + "/" + strconv.FormatInt(index, 10)))
	return hex.EncodeToString(h[:16])
}

// Hash returns a number from a range's ID that is spread evenly.
func Hash(id string) (uint64, error) { return strconv.ParseUint(id[:min(16, len(id))], 16, 64) }

// RangePrefix begins the names of the records of a job's ranges. It starts with a hash,
// so that jobs with similar IDs are apart, and so are the records of one job,
// whose IDs are hashes.
func RangePrefix(job Ref) string {
	h := sha256.Sum256([]byte(job.String()))
	return hex.EncodeToString(h[:4]) + "." + job.String() + "."
}

// Forestalled returns a record in place of the root of a job that was about to be recorded: that is
// refused then. It belongs to no job, and expires when nobody can be about to record it any more.
func Forestalled(job Ref, now time.Time) (*datastore.Key, *Range) {
	now = now.UTC().Truncate(time.Microsecond)
	r := &Range{ID: RangeID(job.String(), 0), State: Abandoned, Created: now, Expires: now.Add(30 * 24 * time.Hour)}
	return RangeKey(job, r.ID), r
}

// RangeKey returns the key of the record of a range.
func RangeKey(job Ref, id string) *datastore.Key {
	return datastore.NameKey(RangeKind, RangePrefix(job)+id, nil)
}

// Ref returns the job that the range belongs to.
func (r *Range) Ref() Ref { return Ref{r.Job, r.Incarnation} }

// Key returns the key of the record.
func (r *Range) Key() *datastore.Key { return RangeKey(r.Ref(), r.ID) }

// Due returns when the task of a pending range is, or was, to be delivered.
func (r *Range) Due() time.Time {
	if r.NotBefore.After(r.Created) {
		return r.NotBefore
	}
	return r.Created
}

// Piece returns the range as splitting sees it.
func (r *Range) Piece() split.Piece {
	return split.Piece{Start: r.Start, End: r.End, Samples: r.Samples, Estimate: r.Estimate, Exact: r.Exact,
		Workers: r.Workers, FairShare: r.FairShare, Space: r.Space()}
}

// Space returns the space that all entities of the range are in, if that is known.
func (r *Range) Space() keyspace.Space {
	return keyspace.Space{Namespace: r.Namespace, Kind: r.Kind}
}

// In notes that all entities of the range are in a space.
func (r *Range) In(s keyspace.Space) { r.Namespace, r.Kind = s.Namespace, s.Kind }

// Insert returns the mutation that writes the record, of a new range.
func (r *Range) Insert() *datastore.Mutation { return datastore.NewInsert(r.Key(), r) }

// Update returns the mutation that writes the record.
func (r *Range) Update() *datastore.Mutation { return datastore.NewUpdate(r.Key(), r) }

// Contains reports whether a position is in the range.
func (r *Range) Contains(p *keyspace.Position) bool {
	if r.Alone {
		return p.Equal(r.Start)
	}
	return (r.Start == nil || keyspace.Compare(r.Start, p) <= 0) && (r.End == nil || keyspace.Compare(p, r.End) < 0)
}

// Child returns the record of the range's next child.
func (r *Range) Child(s split.Piece, now time.Time) *Range {
	c := &Range{
		Job:         r.Job,
		Incarnation: r.Incarnation,
		ID:          RangeID(r.ID, r.Children),
		Open:        r.Job,
		State:       Pending,
		Depth:       r.Depth + 1,
		Start:       s.Start,
		End:         s.End,
		Samples:     split.CapSamples(s.Samples, split.MaxSampleBytes),
		Estimate:    s.Estimate,
		Exact:       s.Exact,
		Workers:     s.Workers,
		FairShare:   s.FairShare,
		PageSize:    r.PageSize,
		EntitySize:  r.EntitySize,
		Pace:        r.Pace,
		Namespace:   s.Space.Namespace,
		Kind:        s.Space.Kind,
		Resample:    s.Resample,
		Created:     now,
	}
	if s.Far {
		c.Pace = 0
	}
	r.Children++
	return c
}

// Rest returns the record of the next child, for a part of the range's own page. If
// the page is suspected, whoever kills the process may be in there.
func (r *Range) Rest(s split.Piece, now time.Time) *Range {
	c := r.Child(s, now)
	if r.Solo && r.Narrowed > 0 {
		c.Solo = true
		c.Narrow(int(min(max(2, s.Estimate), c.PageSize)))
	}
	return c
}

// RefusalsIn returns how many attempts were refused since the job was resumed.
func (r *Range) RefusalsIn(j *Job) int64 {
	if r.RefusedIn != j.Generation {
		return 0
	}
	return r.Refusals
}

// Refuse notes that the range was refused, and has another task when the job's back-off says, but
// not before a delay: the last one, if the refusal is final or one of too many. Then the job fails,
// and whoever resumes it begins anew.
func (r *Range) Refuse(j *Job, delay time.Duration, final bool, now time.Time) (last bool) {
	r.Refusals, r.RefusedIn, r.LaterFrom = r.RefusalsIn(j)+1, j.Generation, time.Time{}
	r.NotBefore = now.Add(max(delay, j.Backoff().Delay(r.Refusals))).UTC().Truncate(time.Microsecond)
	if last = final || r.Refusals >= j.Backoff().Attempts; last {
		r.Refusals, r.NotBefore = 0, time.Time{}
	}
	r.Generation++
	return last
}

// patience is for how long a range waits for a service that says "later", until that is a failed
// attempt on its first entity: so that a job goes on after a service was away, and one whose function
// always says "later" ends.
const patience = time.Hour

// Later notes that the range has another task after a delay, as the service that the function calls
// refuses calls.
func (r *Range) Later(delay time.Duration, now time.Time) {
	if r.LaterFrom.IsZero() {
		r.LaterFrom = now.UTC().Truncate(time.Microsecond)
	}
	r.NotBefore = now.Add(delay).UTC().Truncate(time.Microsecond)
	r.Generation++
}

// Impatient reports whether a service has said "later" for so long that the next time is a failed
// attempt.
func (r *Range) Impatient(now time.Time) bool {
	return !r.LaterFrom.IsZero() && now.Sub(r.LaterFrom) >= patience
}

// Postpone notes that the range has another task, once its deaths are certain. The delivery that
// notes it has ended. Clocks differ, so the task waits for a while even if they seem to be.
func (r *Range) Postpone(now time.Time) {
	r.NotBefore = r.Certain()
	if soon := now.Add(10 * time.Second).UTC().Truncate(time.Microsecond); soon.After(r.NotBefore) {
		r.NotBefore = soon
	}
	r.Generation++
	r.Calm()
}

// PageLimit returns the most entities that the range's page may have.
func (r *Range) PageLimit() int {
	switch {
	case r.Alone:
		return 1
	case r.Narrowed > 0:
		return int(r.Narrowed)
	}
	return int(r.PageSize)
}

// Expected returns how many entities the range's page has, at most.
func (r *Range) Expected() int {
	if r.Estimate > 0 {
		return int(min(int64(r.PageLimit()), r.Estimate))
	}
	return r.PageLimit()
}

// Narrow halves a page of n entities. What it leaves behind starts over.
func (r *Range) Narrow(n int) { r.Narrowed = int64(max(1, n/2)) }

// Finish marks the range as done. Nothing of it changes after that, but for a failure that is
// retried.
func (r *Range) Finish(now time.Time) {
	r.State, r.Open, r.Done = Done, "", now
	r.Calm()
	r.Samples = nil // its children have them
	r.Seal = r.Digest()
}

// AloneChild returns the record of the next child, for a single entity that has failed after some
// attempts, or that may have killed its process.
func (r *Range) AloneChild(at *keyspace.Position, attempts int64, suspected bool, now time.Time) *Range {
	child := r.Child(split.Piece{Start: at, Estimate: 1}, now)
	if r.Kind != "" {
		child.In(at.Space())
	}
	child.Alone, child.Refusals, child.RefusedIn = true, attempts, r.RefusedIn
	child.Solo = suspected
	return child
}

// Fail records that the range's entity, which it has for itself, has failed.
func (r *Range) Fail(cause error, now time.Time) {
	r.Error, r.Failed = fault.Text(cause), r.Job
	r.Entities, r.Keys = 1, KeysDigest([]*keyspace.Position{r.Start})
	r.Finish(now)
}

// Cause returns what the error of a failure has in common with those of others, see fault.Cause.
func (r *Range) Cause() string {
	return fault.Cause(r.Error, r.Start.Names()...)
}

// Reopen makes a failure a pending range again, with as many attempts as at first.
func (r *Range) Reopen(now time.Time) {
	r.State, r.Open, r.Created, r.Done = Pending, r.Job, now, time.Time{}
	r.Failed, r.Error = "", ""
	r.Entities, r.Keys, r.Seal = 0, nil, nil
	r.Refusals, r.Deaths, r.DeathsCountAt, r.NotBefore = 0, nil, nil, time.Time{}
	r.Generation++
}

// Clone returns a copy that shares nothing with the range that a method changes in place.
func (r *Range) Clone() *Range {
	c := *r
	c.Deaths, c.DeathsCountAt = slices.Clone(r.Deaths), slices.Clone(r.DeathsCountAt)
	return &c
}

// Size returns how many bytes the record takes.
func (r *Range) Size() int {
	properties, err := datastore.SaveStruct(r)
	if err != nil {
		panic("record: a range can't be saved: " + err.Error())
	}
	return keyspace.PropertiesSize(properties)
}

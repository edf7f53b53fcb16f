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

// A RangeState is the state of a range. The texts are stored.
type RangeState string

// States of a range.
const (
	Pending   RangeState = "pending"
	Done      RangeState = "done"
	Abandoned RangeState = "abandoned" // its job was cleaned up while it was pending
)

// A Range is the record of a range: the work of a task, and later its results.
//
// Five properties are indexed, each only while it is needed: open, failed, left_of, examples_of and
// expires. So a job that has ended has almost no index entries. Most fields of most records are
// empty; fields that don't identify the record are not saved if they are empty.
type Range struct {
	Job         string             `datastore:"job,noindex"`
	Incarnation string             `datastore:"incarnation,noindex"` // of the job
	ID          string             `datastore:"id,noindex"`
	Open        string             `datastore:"open,omitempty"`   // the job's ID while the range is pending
	Failed      string             `datastore:"failed,omitempty"` // the job's ID if its single entity has failed
	State       RangeState         `datastore:"state,noindex"`
	Generation  int64              `datastore:"generation,noindex"`
	Depth       int64              `datastore:"depth,noindex"`           // 0: the root
	Start       *keyspace.Position `datastore:"start,omitempty,noindex"` // nil: the start of the query
	End         *keyspace.Position `datastore:"end,omitempty,noindex"`   // nil: the end of the query
	// with Kind: the space of all its entities, if the query is over several spaces
	Namespace string `datastore:"namespace,omitempty,noindex"`
	Kind      string `datastore:"kind,omitempty,noindex"` // empty: it may reach into several spaces
	// its task surveys it before cutting, as the root's task does
	Resample bool                 `datastore:"survey,omitempty,noindex"`
	Alone    bool                 `datastore:"alone,omitempty,noindex"` // only the entity at Start
	Samples  []*keyspace.Position `datastore:"samples,omitempty,noindex"`
	Estimate int64                `datastore:"estimate,omitempty,noindex"` // how many entities it has; 0: unknown
	Exact    bool                 `datastore:"exact,omitempty,noindex"`    // the estimate is a count
	Workers  int64                `datastore:"workers,omitempty,noindex"`  // how many workers should share it; 0: one
	// how many entities are one worker's fair share; 0: all
	FairShare int64 `datastore:"portion,omitempty,noindex"`
	// average size of an entity in bytes; 0: unknown
	EntitySize int64 `datastore:"entity_size,omitempty,noindex"`
	PageSize   int64 `datastore:"page_size,omitempty,noindex"`
	// page size after halvings, for this page only; 0: PageSize
	Narrowed int64 `datastore:"narrowed,omitempty,noindex"`
	Attempts int64 `datastore:"attempts,omitempty,noindex"` // deliveries after the first
	// attempts that failed because of the function or the database
	Refusals int64 `datastore:"refusals,omitempty,noindex"`
	// since when the service that the function calls has refused calls
	LaterFrom time.Time `datastore:"later_from,omitempty,noindex"`
	// the job's generation in which Refusals were counted; Resume starts a new one
	RefusedIn int64     `datastore:"refused_in,omitempty,noindex"`
	NotBefore time.Time `datastore:"not_before,omitempty,noindex"` // when its task is due
	// a sweep found it pending without a task
	Lost bool `datastore:"lost,omitempty,noindex"`
	// the part after its page has been cut off for its children
	Cut      bool  `datastore:"cut,omitempty,noindex"`
	Children int64 `datastore:"children,omitempty,noindex"`
	// in the root: the number of its first children that the start recorded, and gave tasks
	Given     int64 `datastore:"given,omitempty,noindex"`
	Continued bool  `datastore:"continued,omitempty,noindex"` // its parent's delivery continued with it
	// number of children with a failed entity that is retried
	Retries int64 `datastore:"retries,omitempty,noindex"`
	// number of children with a final failure; they are the last ones
	Recorded int64 `datastore:"recorded,omitempty,noindex"`
	// if Retries or Recorded is set: the sum of the SingleSum of those children
	Single []byte `datastore:"single,omitempty,noindex"`
	// number of entities that its page came to: all in the range at that time
	Entities int64  `datastore:"entities,omitempty,noindex"`
	Keys     []byte `datastore:"keys,omitempty,noindex"` // a digest of these entities' keys
	// the digest of this record once it is done, see [Range.Digest]
	Seal      []byte `datastore:"seal,omitempty,noindex"`
	Processed int64  `datastore:"processed,omitempty,noindex"`
	// number of entities that its page wrote or deleted
	Written int64 `datastore:"written,omitempty,noindex"`
	// number of calls of a service that the function announced on its page, also in runs that had
	// no effect
	Calls int64 `datastore:"calls,omitempty,noindex"`
	// how often the function ran again on entities that others had changed
	Conflicts int64         `datastore:"conflicts,omitempty,noindex"`
	Ran       time.Duration `datastore:"ran,omitempty,noindex"` // how long the function ran on its page
	// how long the function takes for an entity, seen where the range was cut off; 0: unknown
	Pace time.Duration `datastore:"pace,omitempty,noindex"`
	// how long its page waited because the job is a background job
	Yielded time.Duration `datastore:"yielded,omitempty,noindex"`
	// its page was full by count, bytes or time
	Full bool `datastore:"full,omitempty,noindex"`
	// in the root: how many entities lack the property that the job is sharded by; negative:
	// unknown
	Unsharded int64  `datastore:"unsharded,omitempty,noindex"`
	Counters  []byte `datastore:"counters,omitempty,noindex"` // JSON
	Wrote     []byte `datastore:"wrote,omitempty,noindex"`    // entities that its page wrote, see [undolog.Wrote]
	// entities that a page of an undo did not restore, see [Range.Leave]
	Left   []byte `datastore:"left,omitempty,noindex"`
	LeftOf string `datastore:"left_of,omitempty"` // the job's ID if Left is set
	// JSON: changes that a page of a rehearsal would make
	Examples   []byte    `datastore:"examples,omitempty,noindex"`
	ExamplesOf string    `datastore:"examples_of,omitempty"`   // the job's ID if Examples is set
	Error      string    `datastore:"error,omitempty,noindex"` // of its single entity, if that has failed
	Created    time.Time `datastore:"created,omitempty,noindex"`
	Done       time.Time `datastore:"done,omitempty,noindex"`
	// for a time-to-live policy, see mapper.Job.CleanUp
	Expires time.Time `datastore:"expires,omitempty"`

	Suspicion // about the function

	Stored  *datastore.Key `datastore:"-"` // the key under which a query found the record
	Version int64          `datastore:"-"` // the record's version in the database; 0: unknown, see package wire
}

// MaxPageSize is the most entities of a page: as many as one lookup may have [the limits page of
// Datastore].
const MaxPageSize = 1000

// MaxDeaths is how often a process may die while it runs only the function on one entity, or only a
// job's finalizer. See mapper.MaxDeaths.
const MaxDeaths = 5

// RangeID derives a range's ID from its parent's ID and its index among the children. A root's ID
// is derived from its job.
func RangeID(parent string, index int64) string {
	h := sha256.Sum256([]byte(parent + "/" + strconv.FormatInt(index, 10)))
	return hex.EncodeToString(h[:16])
}

// Hash returns a number derived from a range's ID. The numbers are evenly distributed.
func Hash(id string) (uint64, error) { return strconv.ParseUint(id[:min(16, len(id))], 16, 64) }

// RangePrefix returns the start of the names of a job's range records. First comes a hash, so
// jobs with similar IDs are far apart. The IDs that follow are hashes, so a job's records are
// spread, too.
func RangePrefix(job Ref) string {
	h := sha256.Sum256([]byte(job.String()))
	return hex.EncodeToString(h[:4]) + "." + job.String() + "."
}

// Forestalled returns a record that takes the key of a job's root. A process that is about to
// insert the root is then refused. The record belongs to no job. It expires after 30 days, when no
// process can still be about to insert the root.
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

// Due returns when the task of a pending range is due.
func (r *Range) Due() time.Time {
	if r.NotBefore.After(r.Created) {
		return r.NotBefore
	}
	return r.Created
}

// Piece returns the range in the form that package split uses.
func (r *Range) Piece() split.Piece {
	return split.Piece{Start: r.Start, End: r.End, Samples: r.Samples, Estimate: r.Estimate, Exact: r.Exact,
		Workers: r.Workers, FairShare: r.FairShare, Space: r.Space()}
}

// Space returns the space of all entities of the range; zero if it may reach into several.
func (r *Range) Space() keyspace.Space {
	return keyspace.Space{Namespace: r.Namespace, Kind: r.Kind}
}

// In sets the space of all entities of the range.
func (r *Range) In(s keyspace.Space) { r.Namespace, r.Kind = s.Namespace, s.Kind }

// Insert returns the mutation that creates the record.
func (r *Range) Insert() *datastore.Mutation { return datastore.NewInsert(r.Key(), r) }

// Update returns the mutation that replaces the record.
func (r *Range) Update() *datastore.Mutation { return datastore.NewUpdate(r.Key(), r) }

// Contains reports whether a position is in the range.
func (r *Range) Contains(p *keyspace.Position) bool {
	if r.Alone {
		return p.Equal(r.Start)
	}
	return (r.Start == nil || keyspace.Compare(r.Start, p) <= 0) && (r.End == nil || keyspace.Compare(p, r.End) < 0)
}

// Child returns the record of the range's next child, for a piece, and counts it.
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

// RefusalsIn returns how many attempts have failed since the job was last resumed.
func (r *Range) RefusalsIn(j *Job) int64 {
	if r.RefusedIn != j.Generation {
		return 0
	}
	return r.Refusals
}

// Refuse records a failed attempt. The range's next task is due after the job's back-off, and not
// before delay. It reports whether this was the last attempt: the error is final, or no attempts
// remain. Then the caller fails the job, and a Resume gives the range all attempts again.
func (r *Range) Refuse(j *Job, delay time.Duration, final bool, now time.Time) (last bool) {
	r.Refusals, r.RefusedIn, r.LaterFrom = r.RefusalsIn(j)+1, j.Generation, time.Time{}
	r.NotBefore = now.Add(max(delay, j.Backoff().Delay(r.Refusals))).UTC().Truncate(time.Microsecond)
	if last = final || r.Refusals >= j.Backoff().Attempts; last {
		r.Refusals, r.NotBefore = 0, time.Time{}
	}
	r.Generation++
	return last
}

// longestOutage is how long a range waits for a service that answers "later". After that each such
// answer is a failed attempt. So a job survives an outage of the service, and a job whose function
// always answers "later" ends.
const longestOutage = time.Hour

// Later gives the range another task after a delay, because the service that the function calls
// refuses calls at present. It does not count as an attempt.
func (r *Range) Later(delay time.Duration, now time.Time) {
	if r.LaterFrom.IsZero() {
		r.LaterFrom = now.UTC().Truncate(time.Microsecond)
	}
	r.NotBefore = now.Add(delay).UTC().Truncate(time.Microsecond)
	r.Generation++
}

// Impatient reports whether the service has answered "later" for as long as longestOutage allows.
func (r *Range) Impatient(now time.Time) bool {
	return !r.LaterFrom.IsZero() && now.Sub(r.LaterFrom) >= longestOutage
}

// Postpone gives the range another task. The task is due when the range's deaths are certain, but
// not within ten seconds, because clocks differ. It removes the calling delivery's mark.
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

// Expected returns the most entities that the range's page is expected to have.
func (r *Range) Expected() int {
	if r.Estimate > 0 {
		return int(min(int64(r.PageLimit()), r.Estimate))
	}
	return r.PageLimit()
}

// Narrow halves a page of n entities. The rest of the range is not affected.
func (r *Range) Narrow(n int) { r.Narrowed = int64(max(1, n/2)) }

// Finish marks the range as done, and seals its record. After that only a retry of its failure
// changes it.
func (r *Range) Finish(now time.Time) {
	r.State, r.Open, r.Done = Done, "", now
	r.Calm()
	r.Samples = nil // its children have them
	r.Seal = r.Digest()
}

// AloneChild returns the record of the next child, for a single entity. The entity has failed the
// given number of attempts. If suspected, it may have killed its process.
func (r *Range) AloneChild(at *keyspace.Position, attempts int64, suspected bool, now time.Time) *Range {
	child := r.Child(split.Piece{Start: at, Estimate: 1}, now)
	if r.Kind != "" {
		child.In(at.Space())
	}
	child.Alone, child.Refusals, child.RefusedIn = true, attempts, r.RefusedIn
	child.Solo = suspected
	return child
}

// Fail ends a range of a single entity: the entity has failed, for the given cause.
func (r *Range) Fail(cause error, now time.Time) {
	r.Error, r.Failed = fault.Text(cause), r.Job
	r.Entities, r.Keys = 1, KeysDigest([]*keyspace.Position{r.Start})
	r.Finish(now)
}

// Cause returns the text by which a failure is grouped with similar ones, see fault.Cause.
func (r *Range) Cause() string {
	return fault.Cause(r.Error, r.Start.Names()...)
}

// Reopen makes the range of a failed entity pending again, with all its attempts.
func (r *Range) Reopen(now time.Time) {
	r.State, r.Open, r.Created, r.Done = Pending, r.Job, now, time.Time{}
	r.Failed, r.Error = "", ""
	r.Entities, r.Keys, r.Seal = 0, nil, nil
	r.Refusals, r.Deaths, r.DeathsCountAt, r.NotBefore = 0, nil, nil, time.Time{}
	r.Generation++
}

// Clone returns a copy. It shares no slice that a method of Range changes in place.
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

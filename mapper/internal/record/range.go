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

// A RangeState is the state of a range. Its text is stored in the record.
type RangeState string

// States of a range.
const (
	Pending   RangeState = "pending"
	Done      RangeState = "done"
	Abandoned RangeState = "abandoned" // the job was cleaned up while the range was pending
)

// A Range is the record of a range, a part of a job's query. At first it describes the work of a
// task, and later its results.
//
// Five properties are indexed: open, failed, left_of, examples_of and expires. Each is set only
// while it is needed, so a job that has ended has almost no index entries. Most fields of most
// records are empty, and are then not stored.
type Range struct {
	Job         string `datastore:"job,noindex"`
	Incarnation string `datastore:"incarnation,noindex"` // the job's incarnation, see [Ref]
	ID          string `datastore:"id,noindex"`
	// Open is the job's ID while the range is pending, and otherwise empty.
	Open string `datastore:"open,omitempty"`
	// Failed is the job's ID if the range is a single entity that has failed, and otherwise empty.
	Failed     string     `datastore:"failed,omitempty"`
	State      RangeState `datastore:"state,noindex"`
	Generation int64      `datastore:"generation,noindex"`
	// Depth is 0 in the root. A child has its parent's depth plus one, or the same depth if
	// Continued is set.
	Depth int64 `datastore:"depth,noindex"`
	// Start is the first position of the range; nil: the start of the query.
	Start *keyspace.Position `datastore:"start,omitempty,noindex"`
	// End is the position after the range; nil: the end of the query.
	End *keyspace.Position `datastore:"end,omitempty,noindex"`
	// Namespace and Kind are set if the query is over several, and all entities of the range have
	// the same namespace and kind.
	Namespace string `datastore:"namespace,omitempty,noindex"`
	// If Kind is empty, the entities may have several kinds or namespaces.
	Kind string `datastore:"kind,omitempty,noindex"`
	// Resample says that the range's task samples and counts the entities before it cuts the range,
	// as the root's task does.
	Resample bool `datastore:"survey,omitempty,noindex"`
	// Alone says that the range is only the entity at Start, which has failed before.
	Alone   bool                 `datastore:"alone,omitempty,noindex"`
	Samples []*keyspace.Position `datastore:"samples,omitempty,noindex"`
	// Estimate is the number of entities in the range; 0: unknown.
	Estimate int64 `datastore:"estimate,omitempty,noindex"`
	Exact    bool  `datastore:"exact,omitempty,noindex"` // whether Estimate was counted
	// Workers is the number of workers that should share the range; 0: one.
	Workers int64 `datastore:"workers,omitempty,noindex"`
	// FairShare is the number of entities that one worker should process; 0: all.
	FairShare int64 `datastore:"portion,omitempty,noindex"`
	// EntitySize is the average size of an entity in bytes; 0: unknown.
	EntitySize int64 `datastore:"entity_size,omitempty,noindex"`
	PageSize   int64 `datastore:"page_size,omitempty,noindex"`
	// Narrowed replaces PageSize in this range only, after a page was halved because it had failed;
	// 0: PageSize applies.
	Narrowed int64 `datastore:"narrowed,omitempty,noindex"`
	Attempts int64 `datastore:"attempts,omitempty,noindex"` // number of deliveries after the first one
	// Refusals is the number of failed attempts, because of an error of the function or the
	// database.
	Refusals int64 `datastore:"refusals,omitempty,noindex"`
	// LaterFrom is the time since when the service that the function calls has answered "later";
	// zero: it has not.
	LaterFrom time.Time `datastore:"later_from,omitempty,noindex"`
	// RefusedIn is the job's generation in which Refusals were counted. After a Resume, they count
	// from 0 again.
	RefusedIn int64     `datastore:"refused_in,omitempty,noindex"`
	NotBefore time.Time `datastore:"not_before,omitempty,noindex"` // when the range's task is due
	// Lost says that a sweep, which looks for lost tasks, has found the range pending without a
	// task.
	Lost bool `datastore:"lost,omitempty,noindex"`
	// Cut says that the range was cut, before its page ran or in the page's commit: children have
	// the part after the range's own piece.
	Cut      bool  `datastore:"cut,omitempty,noindex"`
	Children int64 `datastore:"children,omitempty,noindex"`
	// Given is set in the root: the number of its first children, which the job's start has
	// recorded and given tasks.
	Given int64 `datastore:"given,omitempty,noindex"`
	// Continued says that the delivery of the parent continued with this range itself. So the range
	// has no task.
	Continued bool `datastore:"continued,omitempty,noindex"`
	// Retries is the number of the range's last children that are failed entities to retry.
	Retries int64 `datastore:"retries,omitempty,noindex"`
	// Recorded is the number of the range's last children that are final failures. They come after
	// the ones to retry.
	Recorded int64 `datastore:"recorded,omitempty,noindex"`
	// Single is the sum of SingleSum over the children that Retries and Recorded count.
	Single []byte `datastore:"single,omitempty,noindex"`
	// Entities is the number of entities that the range's page had. A range that is done has no
	// others.
	Entities int64  `datastore:"entities,omitempty,noindex"`
	Keys     []byte `datastore:"keys,omitempty,noindex"` // a digest of the keys of the page's entities
	// Seal is the digest of this record when it was done, see [Range.Digest].
	Seal      []byte `datastore:"seal,omitempty,noindex"`
	Processed int64  `datastore:"processed,omitempty,noindex"`
	// Written is the number of entities that the range's page wrote or deleted.
	Written int64 `datastore:"written,omitempty,noindex"`
	// Calls is the number of calls of a service that the function announced on the range's page,
	// even in runs that had no effect.
	Calls int64 `datastore:"calls,omitempty,noindex"`
	// Conflicts is the number of repeated runs of the function on the range's page, because others
	// had changed an entity.
	Conflicts int64         `datastore:"conflicts,omitempty,noindex"`
	Ran       time.Duration `datastore:"ran,omitempty,noindex"` // how long the function ran on the range's page
	// Pace is the function's mean time for an entity; 0: unknown. It was measured on the range's page
	// if the range is done, and otherwise on the page from which the range was cut off.
	Pace time.Duration `datastore:"pace,omitempty,noindex"`
	// Yielded is how long the range's page waited in favour of other clients, because the job is a
	// background job.
	Yielded time.Duration `datastore:"yielded,omitempty,noindex"`
	// Full says that the range's page ended at a limit of count, bytes or time.
	Full bool `datastore:"full,omitempty,noindex"`
	// Unsharded is set in the root: the number of entities that lack the property in the query's
	// ShardBy; negative: unknown.
	Unsharded int64  `datastore:"unsharded,omitempty,noindex"`
	Counters  []byte `datastore:"counters,omitempty,noindex"` // the function's counters of the range's page as JSON
	// Wrote says which entities the range's page wrote, see [undolog.Wrote].
	Wrote []byte `datastore:"wrote,omitempty,noindex"`
	// Left has the entities that a page of an undo did not restore, see [Range.Leave].
	Left   []byte `datastore:"left,omitempty,noindex"`
	LeftOf string `datastore:"left_of,omitempty"` // the job's ID if Left is set
	// Examples is JSON of the changes that a page of a rehearsal (a dry run) would make, see
	// [Example].
	Examples   []byte `datastore:"examples,omitempty,noindex"`
	ExamplesOf string `datastore:"examples_of,omitempty"` // the job's ID if Examples is set
	// Error is the error of the range's single entity, if that has failed.
	Error   string    `datastore:"error,omitempty,noindex"`
	Created time.Time `datastore:"created,omitempty,noindex"`
	Done    time.Time `datastore:"done,omitempty,noindex"`
	// Expires is when a time-to-live policy may delete the record, see mapper.Job.CleanUp.
	Expires time.Time `datastore:"expires,omitempty"`

	Suspicion // about deliveries that may have died while they ran the function

	Stored  *datastore.Key `datastore:"-"` // the key under which a query found the record
	Version int64          `datastore:"-"` // the record's version in the database, see package wire; 0: unknown
}

// MaxPageSize is the largest number of entities in a page. It is the limit of keys in one lookup
// [the limits page of Datastore].
const MaxPageSize = 1000

// MaxDeaths is the number of processes that may die while they run the function on one entity and
// do nothing else. After that, the entity becomes a failure. The same limit applies to a job's
// finalizer. See mapper.MaxDeaths.
const MaxDeaths = 5

// RangeID returns the ID of a range: a hash of its parent's ID and of its index among the parent's
// children. For a root, the parent is the text of the job's [Ref].
func RangeID(parent string, index int64) string {
	h := sha256.Sum256([]byte(parent + "/" + strconv.FormatInt(index, 10)))
	return hex.EncodeToString(h[:16])
}

// Hash returns a number that is derived from a range's ID. The numbers of all ranges are evenly
// distributed.
func Hash(id string) (uint64, error) { return strconv.ParseUint(id[:min(16, len(id))], 16, 64) }

// RangePrefix returns the text with which the names of a job's range records start. It starts with
// a hash, so that jobs with similar IDs are far apart in the order of keys. The rest of each name
// is also a hash, so that the records of one job are evenly spread.
func RangePrefix(job Ref) string {
	h := sha256.Sum256([]byte(job.String()))
	return hex.EncodeToString(h[:4]) + "." + job.String() + "."
}

// BlockedRoot returns a record with the key of a job's root, its first range. Once it is stored,
// the start of this job fails, because it can't insert the root. The record belongs to no job. It
// expires after 30 days, when no process can still be starting the job.
func BlockedRoot(job Ref, now time.Time) (*datastore.Key, *Range) {
	now = now.UTC().Truncate(time.Microsecond)
	r := &Range{ID: RangeID(job.String(), 0), State: Abandoned, Created: now, Expires: now.Add(30 * 24 * time.Hour)}
	return RangeKey(job, r.ID), r
}

// RangeKey returns the key of the record of a range.
func RangeKey(job Ref, id string) *datastore.Key {
	return datastore.NameKey(RangeKind, RangePrefix(job)+id, nil)
}

// Ref returns the ID and incarnation of the job that the range belongs to.
func (r *Range) Ref() Ref { return Ref{r.Job, r.Incarnation} }

// Key returns the key of the record.
func (r *Range) Key() *datastore.Key { return RangeKey(r.Ref(), r.ID) }

// Due returns the earliest time at which the task of a pending range may run.
func (r *Range) Due() time.Time {
	if r.NotBefore.After(r.Created) {
		return r.NotBefore
	}
	return r.Created
}

// InDelivery reports whether the delivery of the page before has continued with a pending range, so
// that the range has no task of its own. It gets one after a failed attempt, and after a Resume or
// move of the job. The argument resumed is the time of the last one, see [Job.Resumed].
func (r *Range) InDelivery(resumed time.Time) bool {
	return r.Continued && r.Generation == 0 && !r.Created.Before(resumed)
}

// Piece returns the range in the form that package split uses.
func (r *Range) Piece() split.Piece {
	return split.Piece{Start: r.Start, End: r.End, Samples: r.Samples, Estimate: r.Estimate, Exact: r.Exact,
		Workers: r.Workers, FairShare: r.FairShare, Space: r.Space()}
}

// Space returns the kind and namespace of all entities in the range. It is zero if they may have
// several.
func (r *Range) Space() keyspace.Space {
	return keyspace.Space{Namespace: r.Namespace, Kind: r.Kind}
}

// In sets the kind and namespace which all entities in the range have.
func (r *Range) In(s keyspace.Space) { r.Namespace, r.Kind = s.Namespace, s.Kind }

// Insert returns the mutation that creates the range's record.
func (r *Range) Insert() *datastore.Mutation { return datastore.NewInsert(r.Key(), r) }

// Update returns the mutation that overwrites the range's record.
func (r *Range) Update() *datastore.Mutation { return datastore.NewUpdate(r.Key(), r) }

// Contains reports whether a position lies in the range: at its start or after it, and before its
// end.
func (r *Range) Contains(p *keyspace.Position) bool {
	if r.Alone {
		return p.Equal(r.Start)
	}
	return (r.Start == nil || keyspace.Compare(r.Start, p) <= 0) && (r.End == nil || keyspace.Compare(p, r.End) < 0)
}

// Child returns the record of a new child range with the piece s, and increments the number of
// children in r.
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

// RefusalsIn returns how many attempts on the range have failed since the job was last resumed.
func (r *Range) RefusalsIn(j *Job) int64 {
	if r.RefusedIn != j.Generation {
		return 0
	}
	return r.Refusals
}

// Refuse records a failed attempt on the range. The next task is due after the wait that the job's
// settings say, but not before delay has passed. The argument final says that another attempt can't
// succeed.
//
// Refuse returns true if no attempt remains: final is set, or all are used up. The caller then
// fails the job. After a Resume of the job, the range has all its attempts again.
func (r *Range) Refuse(j *Job, delay time.Duration, final bool, now time.Time) (last bool) {
	r.Refusals, r.RefusedIn, r.LaterFrom = r.RefusalsIn(j)+1, j.Generation, time.Time{}
	r.NotBefore = now.Add(max(delay, j.Backoff().Delay(r.Refusals))).UTC().Truncate(time.Microsecond)
	if last = final || r.Refusals >= j.Backoff().Attempts; last {
		r.Refusals, r.NotBefore = 0, time.Time{}
	}
	r.Generation++
	return last
}

// longestOutage is how long a service may answer "later" ([mapper.RetryAfter]) before its answers
// count as failed attempts. So a job survives an outage of the service for an hour, but ends if the
// service always refuses its calls.
const longestOutage = time.Hour

// Later gives the range a new task after a delay, because a service refuses the function's calls at
// present. It does not count a failed attempt.
func (r *Range) Later(delay time.Duration, now time.Time) {
	if r.LaterFrom.IsZero() {
		r.LaterFrom = now.UTC().Truncate(time.Microsecond)
	}
	r.NotBefore = now.Add(delay).UTC().Truncate(time.Microsecond)
	r.Generation++
}

// Impatient reports whether the service has refused the function's calls for longer than
// longestOutage, so that its refusals now count as failed attempts.
func (r *Range) Impatient(now time.Time) bool {
	return !r.LaterFrom.IsZero() && now.Sub(r.LaterFrom) >= longestOutage
}

// Postpone gives the range a new task, because processes may have died on it. The task is due when
// all recorded deaths are certain, and in ten seconds at the earliest, because clocks differ.
// Postpone also removes the crash mark of the delivery that calls it (see [Suspicion]).
func (r *Range) Postpone(now time.Time) {
	r.NotBefore = r.Certain()
	if soon := now.Add(10 * time.Second).UTC().Truncate(time.Microsecond); soon.After(r.NotBefore) {
		r.NotBefore = soon
	}
	r.Generation++
	r.Calm()
}

// PageLimit returns the largest number of entities that the range's page may have.
func (r *Range) PageLimit() int {
	switch {
	case r.Alone:
		return 1
	case r.Narrowed > 0:
		return int(r.Narrowed)
	}
	return int(r.PageSize)
}

// Expected returns how many entities the range's page will probably have at most: the page's limit,
// or the range's estimate if that is less.
func (r *Range) Expected() int {
	if r.Estimate > 0 {
		return int(min(int64(r.PageLimit()), r.Estimate))
	}
	return r.PageLimit()
}

// Halve limits the range's next page to half of n entities, because a page of n entities has
// failed. The rest of the range keeps its page size.
func (r *Range) Halve(n int) { r.Narrowed = int64(max(1, n/2)) }

// Finish marks the range as done, and stores its seal (see [Range.Digest]). After that, the record
// changes only if the range is a failed entity that is retried.
func (r *Range) Finish(now time.Time) {
	r.State, r.Open, r.Done = Done, "", now
	r.Calm()
	r.Samples = nil // the children have their own samples
	r.Seal = r.Digest()
}

// AloneChild returns the record of a new child for a single entity, on which this number of
// attempts have failed. The argument suspected says that the entity may have killed its process.
func (r *Range) AloneChild(at *keyspace.Position, attempts int64, suspected bool, now time.Time) *Range {
	child := r.Child(split.Piece{Start: at, Estimate: 1}, now)
	if r.Kind != "" {
		child.In(at.Space())
	}
	child.Alone, child.Refusals, child.RefusedIn = true, attempts, r.RefusedIn
	child.Solo = suspected
	return child
}

// Fail ends a range of a single entity as failed, for the given cause.
func (r *Range) Fail(cause error, now time.Time) {
	r.Error, r.Failed = fault.Text(cause), r.Job
	r.Entities, r.Keys = 1, KeysDigest([]*keyspace.Position{r.Start})
	r.Finish(now)
}

// Cause returns the range's error without names and numbers, so that it is equal for similar
// failures, see fault.Cause.
func (r *Range) Cause() string {
	return fault.Cause(r.Error, r.Start.Names()...)
}

// Reopen makes the range of a failed entity pending again, for a retry. The entity then has all its
// attempts again.
func (r *Range) Reopen(now time.Time) {
	r.State, r.Open, r.Created, r.Done = Pending, r.Job, now, time.Time{}
	r.Failed, r.Error = "", ""
	r.Entities, r.Keys, r.Seal = 0, nil, nil
	r.Refusals, r.Deaths, r.DeathsCountAt, r.NotBefore = 0, nil, nil, time.Time{}
	r.Generation++
}

// Clone returns a copy of the record. It can be changed by the methods of Range without changing r.
func (r *Range) Clone() *Range {
	c := *r
	c.Deaths, c.DeathsCountAt = slices.Clone(r.Deaths), slices.Clone(r.DeathsCountAt)
	return &c
}

// Size returns how many bytes the record takes in the database.
func (r *Range) Size() int {
	properties, err := datastore.SaveStruct(r)
	if err != nil {
		panic("record: a range can't be saved: " + err.Error())
	}
	return keyspace.PropertiesSize(properties)
}

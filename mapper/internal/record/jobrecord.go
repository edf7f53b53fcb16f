package record

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"
)

// JobKind is the kind of the records of jobs.
const JobKind = "ScattermapJob"

// A JobState is the state of a job. The texts are stored.
type JobState string

// States of a job.
const (
	Running               JobState = "running"
	Succeeded             JobState = "succeeded"
	SucceededWithFailures JobState = "succeeded with failures"
	Failed                JobState = "failed"
	Paused                JobState = "paused"
	Aborted               JobState = "aborted"
)

// ErrNoSuchJob says that no job has the ID.
var ErrNoSuchJob = errors.New("no such job")

// A Job is the record of a job. It is written when the job starts, is controlled or ends, and when
// there is something new to show. No task writes it for each page: a job has too many tasks for
// that.
type Job struct {
	ID          string `datastore:"-"`
	Incarnation string `datastore:"incarnation,noindex"` // see [Ref]
	Mapper      string `datastore:"mapper,noindex"`
	Queue       Owner  `datastore:"queue,omitempty,noindex"`
	Schedule    string `datastore:"schedule,omitempty,noindex"` // that started it, see [Schedule]
	// it takes no [Slot], so it may run beside other jobs of its mapper and kind
	Beside bool `datastore:"beside,omitempty,noindex"`
	// it gives way to other clients of the database, see pace.Background
	Background bool `datastore:"background,omitempty,noindex"`
	// features of the query that a build must know to run the job, see query.Of
	Needs      []string `datastore:"needs,omitempty,noindex"`
	Query      []byte   `datastore:"query,noindex"`  // JSON
	Params     []byte   `datastore:"params,noindex"` // JSON
	State      JobState `datastore:"state,noindex"`
	Active     bool     `datastore:"active,omitempty"`   // indexed: HasTasks, so it needs sweeps
	Generation int64    `datastore:"generation,noindex"` // part of its tasks' names
	Listed     []string `datastore:"listed,omitempty"`   // indexed: see [Listing]
	// raised whenever ranges appear outside their parent's commit
	Epoch int64 `datastore:"epoch,noindex"`
	// raised to refuse moves to another queue that are under way, see [Owner.Forestall]
	Forestalled int64 `datastore:"forestalled,omitempty,noindex"`
	PageSize    int64 `datastore:"page_size,noindex"`
	PageTime    int64 `datastore:"page_time,noindex"` // nanoseconds
	Timeout     int64 `datastore:"timeout,noindex"`   // nanoseconds
	Workers     int64 `datastore:"workers,noindex"`
	// calls of the function at once, in a page; 0: one
	Concurrency int64 `datastore:"concurrency,omitempty,noindex"`
	// how many tasks the queue delivers at the same time; 0: unknown
	Concurrent int64     `datastore:"concurrent,noindex"`
	Splitting  []byte    `datastore:"splitting,noindex"`            // JSON
	Rate       []byte    `datastore:"rate,noindex"`                 // JSON; empty: no limit
	RateUntil  time.Time `datastore:"rate_until,omitempty,noindex"` // when Rate ends; zero: never
	RateThen   []byte    `datastore:"rate_then,omitempty,noindex"`  // the rate after RateUntil
	RampFrom   time.Time `datastore:"ramp_from,noindex"`            // when the rate's ramp started
	Masks      bool      `datastore:"masks,noindex"`                // the database supports property masks
	Times      bool      `datastore:"times,noindex"`                // the property that it is sharded by has times
	// the first Limit; each Resume allows this many more failures
	LimitStep  int64   `datastore:"limit_step,noindex"`
	Limit      int64   `datastore:"limit,noindex"` // on failures; negative: none
	LimitShare float64 `datastore:"limit_share,noindex"`
	Limited    bool    `datastore:"limited,noindex"` // a failure limit has paused it

	Budget []byte `datastore:"budget,omitempty,noindex"` // JSON; empty: none
	Poor   bool   `datastore:"poor,omitempty,noindex"`   // the budget has paused it
	// share of the budget that is spent by pages, or reserved by processes for their next pages
	Spent float64 `datastore:"spent,omitempty,noindex"`

	Allowance int64 `datastore:"allowance,omitempty,noindex"` // how often a Resume has renewed the budget

	// CountersLost says that the job failed because its counters became too large to keep.
	// CountersDropped says that it was resumed after that, and has no counters.
	CountersLost    bool `datastore:"counters_lost,omitempty,noindex"`
	CountersDropped bool `datastore:"counters_dropped,omitempty,noindex"`

	// it was resumed after it had failed: now a page that fails as a whole records its failures
	Tolerant  bool  `datastore:"tolerant,noindex"`
	Failures  int64 `datastore:"failures,noindex"`  // when LimitShare last paused it: failures, about
	Tried     int64 `datastore:"tried,noindex"`     // and processed or failed entities, about
	Finalizes bool  `datastore:"finalizes,noindex"` // the build that ended it has a finalizer
	Finalized int64 `datastore:"finalized,noindex"` // the epoch in which the finalizer took effect
	Retrying  bool  `datastore:"replaying,noindex"` // a retry is opening failures;
	// only failures of this cause, see [Range.Cause]; empty: all
	RetryOf string    `datastore:"replaying_of,omitempty,noindex"`
	Created time.Time `datastore:"created,noindex"`
	Ended   time.Time `datastore:"ended,noindex"`
	Error   string    `datastore:"error,noindex"`
	Trouble string    `datastore:"trouble,omitempty,noindex"` // why something is tried again
	Totals  []byte    `datastore:"totals,noindex"`            // packed JSON of [Totals], once it has ended
	// while it runs again after it had succeeded: the numbers of Totals then
	Before []byte `datastore:"before,omitempty,noindex"`
	// it has a draft of its ledger, perhaps of an earlier epoch
	Drafted bool `datastore:"drafted,omitempty,noindex"`

	History History `datastore:"history,omitempty,noindex"`
	Undo    string  `datastore:"undo,omitempty,noindex"` // the ID of the job that undoes it

	Cleaning string    `datastore:"cleaning,noindex"`  // JSON: how it is being cleaned up; empty: it is not
	Cleaned  bool      `datastore:"cleaned,noindex"`   // some of its records are deleted or will expire
	Expires  time.Time `datastore:"expires,omitempty"` // for a time-to-live policy, see mapper.Job.CleanUp

	// how long its records are kept after its end; 0: until a clean-up
	Retain time.Duration `datastore:"retain,omitempty,noindex"`
	// indexed while its retention has not started a clean-up, see retires
	Retires   string    `datastore:"retires,omitempty"`
	Retired   bool      `datastore:"retired,omitempty,noindex"`    // its retention has started a clean-up,
	CleanedAt time.Time `datastore:"cleaned_at,omitempty,noindex"` // at this time

	// JSON of [Closing]; empty: it does not delete its records before its end
	Closing []byte `datastore:"closing,omitempty,noindex"`
	// when [Redact] removed what the job was about
	Erased time.Time `datastore:"erased,omitempty,noindex"`

	AttemptSettings
	Suspicion // about its finalizer

	Version int64 `datastore:"-"` // the record's version in the database; 0: unknown, see package wire
}

// Insert returns the mutation that creates the record.
func (j *Job) Insert() *datastore.Mutation { return j.mutation(datastore.NewInsert) }

// Update returns the mutation that replaces the record.
func (j *Job) Update() *datastore.Mutation { return j.mutation(datastore.NewUpdate) }

func (j *Job) mutation(mutation func(*datastore.Key, any) *datastore.Mutation) *datastore.Mutation {
	j.Active, j.Listed, j.Retires = j.HasTasks(), listed(j), retires(j)
	return mutation(JobKey(j.ID), j)
}

// HasTasks reports whether the job needs tasks: it runs, or a clean-up is under way.
func (j *Job) HasTasks() bool { return j.State == Running || j.Cleaning != "" }

// Unfinished reports whether the job runs or is paused.
func (j *Job) Unfinished() bool { return j.State == Running || j.State == Paused }

// Root returns the ID of the job's root range.
func (j *Job) Root() string { return RangeID(j.Ref().String(), 0) }

// JobKey returns the key of the record of a job.
func JobKey(id string) *datastore.Key { return datastore.NameKey(JobKind, id, nil) }

// A Ref names a job by its ID and its incarnation. The incarnation tells the job from earlier jobs
// with the same ID. A Ref without an incarnation means the job that has the ID now.
//
// Both are part of the names of everything that belongs to the job: records of ranges, tasks,
// idempotency keys. So a process that wakes after the job's end can't touch a later job with its
// ID.
type Ref struct{ ID, Incarnation string }

// Ref returns the name of the job.
func (j *Job) Ref() Ref { return Ref{j.ID, j.Incarnation} }

// String returns a text that no other Ref has: a job's ID contains no dot.
func (r Ref) String() string { return r.ID + "." + r.Incarnation }

// Is returns an error if a record that was read belongs to another incarnation of the job.
func (r Ref) Is(j *Job) error {
	if r.Incarnation != "" && r.Incarnation != j.Incarnation {
		return fmt.Errorf("%w: %s was cleaned up, and another job has its ID", ErrNoSuchJob, r.ID)
	}
	return nil
}

// Incarnate gives a new job its incarnation: the given random number, followed by a hash of that
// number with the job's ID, mapper, query and parameters.
func (j *Job) Incarnate(number uint64) {
	j.Incarnation = incarnationOf(j, fmt.Sprintf("%016x", number))
}

// AsStarted reports whether the job's mapper, query and parameters are unchanged since its start,
// according to the hash in its incarnation.
func (j *Job) AsStarted() bool {
	return incarnationOf(j, j.Incarnation[:min(len(j.Incarnation), 16)]) == j.Incarnation
}

// incarnationOf returns the incarnation of a job with a given random number.
func incarnationOf(j *Job, number string) string {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(number), []byte(j.ID), []byte(j.Mapper), j.Query, j.Params} {
		fmt.Fprintf(h, "%d ", len(part))
		h.Write(part)
	}
	return number + hex.EncodeToString(h.Sum(nil)[:4])
}

// RampBegan returns when the rate's ramp started. Jobs of older builds have no RampFrom until they
// are resumed.
func (j *Job) RampBegan() time.Time {
	if j.RampFrom.IsZero() {
		return j.Created
	}
	return j.RampFrom
}

// AtOnce returns how many of the job's tasks may run at the same time, as far as that is known.
func (j *Job) AtOnce() int64 { return max(j.Workers, j.Concurrent) }

// goOn sets the job running, in a new epoch and with new names for its tasks.
func (j *Job) goOn(now time.Time) {
	j.Tolerant = j.Tolerant || j.State == Failed
	j.CountersDropped = j.CountersDropped || j.CountersLost
	j.Limited, j.Poor, j.CountersLost = false, false, false
	if j.State != Running {
		j.RampFrom = now.UTC().Truncate(time.Microsecond)
	}
	if j.State == Succeeded || j.State == SucceededWithFailures {
		j.keepBefore()
	}
	j.State, j.Error, j.Trouble, j.Ended = Running, "", "", time.Time{}
	if len(j.Closing) == 0 {
		j.Totals = nil
	}
	j.Suspicion = Suspicion{}
	j.Generation++
	j.Epoch++
}

// Succeed ends the job with its totals. The caller then sets Finalizes if the mapper has a
// finalizer.
func (j *Job) Succeed(sum Totals, now time.Time) error {
	j.Finalizes, j.Before = false, nil
	j.Suspicion = Suspicion{}
	j.State, j.Error, j.Trouble, j.Ended = Succeeded, "", "", now.UTC().Truncate(time.Microsecond)
	if sum.Failures > 0 {
		j.State = SucceededWithFailures
	}
	return sum.RecordIn(j)
}

// EndsAtOnce reports whether a job that has no open range can end in one commit, which requires the
// record's version. An undo can't: it also looks at the job that it undoes.
func (j *Job) EndsAtOnce() bool {
	ref, _ := j.Undone()
	return j.Version != 0 && j.State == Running && !j.Retrying && !j.Drafted && len(j.Closing) == 0 && ref.ID == ""
}

// RootRange returns the root range of a new job.
func (j *Job) RootRange() *Range {
	return &Range{Job: j.ID, Incarnation: j.Incarnation, ID: j.Root(), Open: j.ID, State: Pending, PageSize: j.PageSize,
		Created: j.Created}
}

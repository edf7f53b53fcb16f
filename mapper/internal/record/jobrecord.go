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

// A JobState is the state of a job. Its text is stored in the record.
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

// A Job is the record of a job. It is written when the job starts, ends or is controlled, and when
// its status has something new to show. The commits of pages do not write it: Datastore limits how
// often a single record can be written.
type Job struct {
	ID string `datastore:"-"`
	// Incarnation distinguishes the job from earlier jobs with the same ID, see [Ref].
	Incarnation string `datastore:"incarnation,noindex"`
	Mapper      string `datastore:"mapper,noindex"`
	Queue       Owner  `datastore:"queue,omitempty,noindex"`
	// Schedule is the name of the [Schedule] that started the job. It is empty if none did.
	Schedule string `datastore:"schedule,omitempty,noindex"`
	// Beside says that the job may run at the same time as other jobs of its mapper and kind. So it
	// takes no [Slot].
	Beside bool `datastore:"beside,omitempty,noindex"`
	// Background says that the job slows down in favour of other clients of the database, see
	// pace.Background.
	Background bool `datastore:"background,omitempty,noindex"`
	// Needs names features of the query that a build must support to run the job, see query.Of.
	Needs  []string `datastore:"needs,omitempty,noindex"`
	Query  []byte   `datastore:"query,noindex"`  // the query as JSON
	Params []byte   `datastore:"params,noindex"` // the parameters as JSON
	State  JobState `datastore:"state,noindex"`
	Active bool     `datastore:"active,omitempty"` // whether the job needs sweeps; indexed
	// Generation is part of the names of the job's tasks. Raising it gives the tasks new names.
	Generation int64 `datastore:"generation,noindex"`
	// Listed has one entry for each way to list the job, see [Listing]. It is indexed.
	Listed []string `datastore:"listed,omitempty"`
	// Epoch is raised by each change that makes ranges pending, for example by a retry. Only the
	// commit of a parent makes ranges pending without raising it.
	Epoch int64 `datastore:"epoch,noindex"`
	// RefusedMoves is raised to make moves to another queue fail that are about to commit, see
	// [Owner.RefuseMoves].
	RefusedMoves int64 `datastore:"forestalled,omitempty,noindex"`
	PageSize     int64 `datastore:"page_size,noindex"`
	PageTime     int64 `datastore:"page_time,noindex"` // the setting PageTime in nanoseconds
	Timeout      int64 `datastore:"timeout,noindex"`   // the time limit for one entity, in nanoseconds
	Workers      int64 `datastore:"workers,noindex"`
	// Concurrency is the number of calls of the function that run at the same time in a page; 0:
	// one.
	Concurrency int64 `datastore:"concurrency,omitempty,noindex"`
	// Concurrent is the number of tasks that the queue delivers at the same time; 0: unknown.
	Concurrent int64  `datastore:"concurrent,noindex"`
	Splitting  []byte `datastore:"splitting,noindex"` // the setting Splitting as JSON
	Rate       []byte `datastore:"rate,noindex"`      // the rate limit as JSON; empty: none
	// RateUntil is the time when Rate ends and RateThen starts to apply; zero: never.
	RateUntil time.Time `datastore:"rate_until,omitempty,noindex"`
	RateThen  []byte    `datastore:"rate_then,omitempty,noindex"` // the rate after RateUntil
	RampFrom  time.Time `datastore:"ramp_from,noindex"`           // when the ramp of the rate started, see pace.Limit
	Masks     bool      `datastore:"masks,noindex"`               // whether the database supports property masks
	// Times says that the values of the property in the query's ShardBy are times.
	Times bool `datastore:"times,noindex"`
	// LimitStep is the first value of Limit. Each Resume allows this number of further failures.
	LimitStep  int64   `datastore:"limit_step,noindex"`
	Limit      int64   `datastore:"limit,noindex"` // the job is paused if it has more failures; negative: no limit
	LimitShare float64 `datastore:"limit_share,noindex"`
	Limited    bool    `datastore:"limited,noindex"` // whether a failure limit has paused the job

	Budget     []byte `datastore:"budget,omitempty,noindex"` // the budget as JSON; empty: none
	OverBudget bool   `datastore:"poor,omitempty,noindex"`   // whether the budget has paused the job
	// Spent is the share of the budget that pages have spent, or that processes have reserved for
	// their next pages.
	Spent float64 `datastore:"spent,omitempty,noindex"`

	// Allowance counts how many times a Resume has renewed the budget, or a user has replaced it.
	Allowance int64 `datastore:"allowance,omitempty,noindex"`

	// CountersLost says that the job failed because its counters became too large to keep.
	// CountersDropped says that it was resumed after that, and has no counters.
	CountersLost    bool `datastore:"counters_lost,omitempty,noindex"`
	CountersDropped bool `datastore:"counters_dropped,omitempty,noindex"`

	// Tolerant says that the job was resumed after it had failed. Since then, if a page fails as a
	// whole, its entities are recorded as failures.
	Tolerant bool `datastore:"tolerant,noindex"`
	// Failures is the approximate number of failures when LimitShare last paused the job.
	Failures int64 `datastore:"failures,noindex"`
	// Tried is the approximate number of processed and failed entities at that time.
	Tried int64 `datastore:"tried,noindex"`
	// Finalizes says that the build that ended the job has a finalizer for its mapper.
	Finalizes bool  `datastore:"finalizes,noindex"`
	Finalized int64 `datastore:"finalized,noindex"` // the epoch in which the finalizer last took effect
	Retrying  bool  `datastore:"replaying,noindex"` // whether a retry is still making ranges of failures pending
	// RetryOf is the [Range.Cause] of the failures that a retry processes again; empty: all
	// failures.
	RetryOf string    `datastore:"replaying_of,omitempty,noindex"`
	Created time.Time `datastore:"created,noindex"`
	Ended   time.Time `datastore:"ended,noindex"`
	Error   string    `datastore:"error,noindex"`
	// Trouble is a text that says why a page is being retried; empty: no page is.
	Trouble string `datastore:"trouble,omitempty,noindex"`
	Totals  []byte `datastore:"totals,noindex"` // packed JSON of [Totals]; empty before the job's end
	// Before has the numbers of Totals from the job's success, if the job runs again after it.
	Before []byte `datastore:"before,omitempty,noindex"`
	// Drafted says that a draft of the job's ledger (a partial sum of its records) is stored. It
	// may be from an earlier epoch.
	Drafted bool `datastore:"drafted,omitempty,noindex"`

	History History `datastore:"history,omitempty,noindex"`
	Undo    string  `datastore:"undo,omitempty,noindex"` // the ID of the job that undoes this one; empty: none

	// Cleaning is JSON that says which records the current clean-up deletes; empty: no clean-up is
	// under way.
	Cleaning string `datastore:"cleaning,noindex"`
	// Cleaned says that some of the job's records are deleted or will expire.
	Cleaned bool `datastore:"cleaned,noindex"`
	// Expires is when a time-to-live policy may delete the record, see mapper.Job.CleanUp.
	Expires time.Time `datastore:"expires,omitempty"`

	// Retain is how long the job's records are kept after its end; 0: without limit.
	Retain time.Duration `datastore:"retain,omitempty,noindex"`
	// Retires is the job's queue and the time of its automatic clean-up, see retires. It is
	// indexed, and empty if there is no automatic clean-up.
	Retires string `datastore:"retires,omitempty"`
	// Retired says that the clean-up was started automatically, because the job's retention was
	// over.
	Retired   bool      `datastore:"retired,omitempty,noindex"`
	CleanedAt time.Time `datastore:"cleaned_at,omitempty,noindex"` // when this clean-up was started

	// Closing is the JSON of a [Closing]. It is empty unless the job deletes its records before its
	// end.
	Closing []byte `datastore:"closing,omitempty,noindex"`
	// Erased is when [Job.Redact] removed the query and other texts; zero: never.
	Erased time.Time `datastore:"erased,omitempty,noindex"`

	AttemptSettings
	Suspicion // about deliveries that may have died while they ran the finalizer

	Version int64 `datastore:"-"` // the record's version in the database, see package wire; 0: unknown
}

// Insert returns the mutation that creates the job's record in the database.
func (j *Job) Insert() *datastore.Mutation { return j.mutation(datastore.NewInsert) }

// Update returns the mutation that overwrites the job's record in the database.
func (j *Job) Update() *datastore.Mutation { return j.mutation(datastore.NewUpdate) }

func (j *Job) mutation(mutation func(*datastore.Key, any) *datastore.Mutation) *datastore.Mutation {
	j.Active, j.Listed, j.Retires = j.HasTasks(), listed(j), retires(j)
	return mutation(JobKey(j.ID), j)
}

// HasTasks reports whether the job needs tasks: it runs, or a clean-up is under way.
func (j *Job) HasTasks() bool { return j.State == Running || j.Cleaning != "" }

// Unfinished reports whether the job runs or is paused.
func (j *Job) Unfinished() bool { return j.State == Running || j.State == Paused }

// Root returns the ID of the job's root, the range that starts as the whole query.
func (j *Job) Root() string { return RangeID(j.Ref().String(), 0) }

// JobKey returns the key of the record of a job.
func JobKey(id string) *datastore.Key { return datastore.NameKey(JobKind, id, nil) }

// A Ref names a job by its ID and its incarnation. The incarnation distinguishes the job from
// earlier jobs with the same ID. A Ref without an incarnation means the job that has the ID now.
//
// Both are part of the names of everything that belongs to the job: records of ranges, tasks,
// idempotency keys. So a process that continues late, after the job's end, can't affect a later job
// with the same ID.
type Ref struct{ ID, Incarnation string }

// Ref returns the ID and the incarnation of the job.
func (j *Job) Ref() Ref { return Ref{j.ID, j.Incarnation} }

// String returns the ID and the incarnation, separated by a dot. An ID contains no dot, so no other
// Ref has this text.
func (r Ref) String() string { return r.ID + "." + r.Incarnation }

// Is returns an error if the record j belongs to another incarnation of the job.
func (r Ref) Is(j *Job) error {
	if r.Incarnation != "" && r.Incarnation != j.Incarnation {
		return fmt.Errorf("%w: %s was cleaned up, and another job has its ID", ErrNoSuchJob, r.ID)
	}
	return nil
}

// Incarnate sets the incarnation of a new job: the given random number, followed by a hash over the
// number and the job's ID, mapper, query and parameters.
func (j *Job) Incarnate(number uint64) {
	j.Incarnation = incarnationOf(j, fmt.Sprintf("%016x", number))
}

// AsStarted reports whether the job's mapper, query and parameters are the same as at its start. It
// compares them with the hash in the job's incarnation.
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

// RampBegan returns when the ramp of the job's rate started. Jobs of older builds have no RampFrom
// until they are resumed. For these it returns the start of the job.
func (j *Job) RampBegan() time.Time {
	if j.RampFrom.IsZero() {
		return j.Created
	}
	return j.RampFrom
}

// Resumed returns when the job's open ranges last got new tasks, by its history: it was resumed,
// moved, or retried after its end. It is zero if that is unknown, or if this never happened.
func (j *Job) Resumed() (at time.Time) {
	acts, _ := j.History.Acts() // without a history the time is unknown
	for i, a := range acts {
		if a.To == Running && (a.What == Again || a.What == Moved || i > 0 && acts[i-1].To != Running) {
			at = a.At
		}
	}
	return at
}

// Overdue returns the pending range whose task has been due longest, of some ranges of the job. It
// is nil if none of them has a task of its own.
func (j *Job) Overdue(open []*Range) (first *Range) {
	resumed := j.Resumed()
	for _, r := range open {
		if r.State == Pending && !r.InDelivery(resumed) && (first == nil || r.Due().Before(first.Due())) {
			first = r
		}
	}
	return first
}

// AtOnce returns how many of the job's tasks may run at the same time: the number of workers, or
// the queue's limit if that is known and larger.
func (j *Job) AtOnce() int64 { return max(j.Workers, j.Concurrent) }

// goOn makes the job run again, in a new epoch and with a new generation, so that its tasks get new
// names.
func (j *Job) goOn(now time.Time) {
	j.Tolerant = j.Tolerant || j.State == Failed
	j.CountersDropped = j.CountersDropped || j.CountersLost
	j.Limited, j.OverBudget, j.CountersLost = false, false, false
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

// Succeed ends the job as succeeded, and stores its totals. If the mapper has a finalizer, the
// caller must also set Finalizes afterwards.
func (j *Job) Succeed(sum Totals, now time.Time) error {
	j.Finalizes, j.Before = false, nil
	j.Suspicion = Suspicion{}
	j.State, j.Error, j.Trouble, j.Ended = Succeeded, "", "", now.UTC().Truncate(time.Microsecond)
	if sum.Failures > 0 {
		j.State = SucceededWithFailures
	}
	return sum.RecordIn(j)
}

// EndsAtOnce reports whether a single conditional write of the job's record can end the job when no
// range is pending. An undo needs more, because its end also reads the job that it undoes.
func (j *Job) EndsAtOnce() bool {
	ref, _ := j.Undone()
	return j.Version != 0 && j.State == Running && !j.Retrying && !j.Drafted && len(j.Closing) == 0 && ref.ID == ""
}

// RootRange returns the record of the root range of a new job, which covers the whole query.
func (j *Job) RootRange() *Range {
	return &Range{Job: j.ID, Incarnation: j.Incarnation, ID: j.Root(), Open: j.ID, State: Pending, PageSize: j.PageSize,
		Created: j.Created}
}

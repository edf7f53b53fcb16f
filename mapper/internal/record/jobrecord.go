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

// A JobState is what has become of a job. It is stored.
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

// ErrNoSuchJob says that there is no job of that ID.
var ErrNoSuchJob = errors.New("no such job")

// A Job is the record of a job. It is written when the job starts, ends or is controlled, and when
// there is something to show. No task writes it just because it runs: there are too many.
type Job struct {
	ID          string `datastore:"-"`
	Incarnation string `datastore:"incarnation,noindex"` // see [Ref]
	Mapper      string `datastore:"mapper,noindex"`
	Queue       Owner  `datastore:"queue,omitempty,noindex"`
	Schedule    string `datastore:"schedule,omitempty,noindex"` // whose run it is, see [Schedule]
	// it may run beside others of its mapper and kind, see [Slot]
	Beside bool `datastore:"beside,omitempty,noindex"`
	// what a build has to know to run it, see query.Of; none so far
	Needs      []string `datastore:"needs,omitempty,noindex"`
	Query      []byte   `datastore:"query,noindex"`  // JSON
	Params     []byte   `datastore:"params,noindex"` // JSON
	State      JobState `datastore:"state,noindex"`
	Active     bool     `datastore:"active,omitempty"`   // indexed: it needs sweeps
	Generation int64    `datastore:"generation,noindex"` // of the names of its tasks
	Listed     []string `datastore:"listed,omitempty"`   // indexed: see [Listing]
	// counts ranges that appear outside a parent's commit
	Epoch int64 `datastore:"epoch,noindex"`
	// counts moves to another queue that were too late
	Forestalled int64 `datastore:"forestalled,omitempty,noindex"`
	PageSize    int64 `datastore:"page_size,noindex"`
	PageTime    int64 `datastore:"page_time,noindex"` // nanoseconds
	Timeout     int64 `datastore:"timeout,noindex"`   // nanoseconds
	Workers     int64 `datastore:"workers,noindex"`
	// calls of the function at once, in a page; 0: one
	Concurrency int64 `datastore:"concurrency,omitempty,noindex"`
	// how many tasks the queue delivers at once; 0: unknown
	Concurrent int64     `datastore:"concurrent,noindex"`
	Splitting  []byte    `datastore:"splitting,noindex"`            // JSON
	Rate       []byte    `datastore:"rate,noindex"`                 // JSON; empty: no limit
	RateUntil  time.Time `datastore:"rate_until,omitempty,noindex"` // when Rate ends; zero: it does not
	RateThen   []byte    `datastore:"rate_then,omitempty,noindex"`  // what it is from then on
	RampFrom   time.Time `datastore:"ramp_from,noindex"`            // when its ramp began
	Masks      bool      `datastore:"masks,noindex"`                // the database honours property masks
	Times      bool      `datastore:"times,noindex"`                // the property that it is sharded by has times
	// what Limit began with; each resume allows as many again
	LimitStep  int64   `datastore:"limit_step,noindex"`
	Limit      int64   `datastore:"limit,noindex"` // of failures; negative: none
	LimitShare float64 `datastore:"limit_share,noindex"`
	Limited    bool    `datastore:"limited,noindex"` // a limit has paused it

	Budget []byte `datastore:"budget,omitempty,noindex"` // JSON; empty: none
	Poor   bool   `datastore:"poor,omitempty,noindex"`   // it has paused the job
	// of it, as a share: by pages, or taken out by processes for theirs
	Spent float64 `datastore:"spent,omitempty,noindex"`

	Allowance int64 `datastore:"allowance,omitempty,noindex"` // counts the resumes that have allowed as much again

	// CountersLost says that it has failed because its counters can't be kept, and CountersDropped
	// that it was resumed since, and has none.
	CountersLost    bool `datastore:"counters_lost,omitempty,noindex"`
	CountersDropped bool `datastore:"counters_dropped,omitempty,noindex"`

	// it records the failures of pages that fail as a whole
	Tolerant  bool  `datastore:"tolerant,noindex"`
	Failures  int64 `datastore:"failures,noindex"`  // when LimitShare has paused it, about
	Tried     int64 `datastore:"tried,noindex"`     // as many entities were processed or had failed
	Finalizes bool  `datastore:"finalizes,noindex"` // the build that ended it has a finalizer
	Finalized int64 `datastore:"finalized,noindex"` // the epoch in which that took effect
	Retrying  bool  `datastore:"replaying,noindex"` // failures are becoming ranges again:
	// those of this cause, see [Range.Cause]; empty: all
	RetryOf string    `datastore:"replaying_of,omitempty,noindex"`
	Created time.Time `datastore:"created,noindex"`
	Ended   time.Time `datastore:"ended,noindex"`
	Error   string    `datastore:"error,noindex"`
	Trouble string    `datastore:"trouble,omitempty,noindex"` // why something is tried again
	Totals  []byte    `datastore:"totals,noindex"`            // JSON, as tally.Pack has it, once it has ended
	Drafted bool      `datastore:"drafted,omitempty,noindex"` // it has a [Draft], perhaps of an epoch that is over

	History History `datastore:"history,omitempty,noindex"`
	Undo    string  `datastore:"undo,omitempty,noindex"` // the ID of the job that undoes it

	Cleaning string    `datastore:"cleaning,noindex"`  // JSON: how its records are being cleaned up
	Cleaned  bool      `datastore:"cleaned,noindex"`   // some of its records are gone, or expire
	Expires  time.Time `datastore:"expires,omitempty"` // for a time-to-live policy, see mapper.Job.CleanUp

	// how long its records are kept once it has ended; 0: until somebody cleans them up
	Retain time.Duration `datastore:"retain,omitempty,noindex"`
	// indexed, while they will be cleaned up for that: see retires
	Retires   string    `datastore:"retires,omitempty"`
	Retired   bool      `datastore:"retired,omitempty,noindex"`    // they were, or are being cleaned up,
	CleanedAt time.Time `datastore:"cleaned_at,omitempty,noindex"` // since then

	// JSON, see [Closing]; empty: it does not delete its records before its end
	Closing []byte `datastore:"closing,omitempty,noindex"`
	// when what it was about was taken out of the record, see [Redact]
	Erased time.Time `datastore:"erased,omitempty,noindex"`

	AttemptSettings
	Suspicion // that its finalizer kills its process
}

// Insert returns the mutation that writes the record, of a new job.
func (j *Job) Insert() *datastore.Mutation { return j.mutation(datastore.NewInsert) }

// Update returns the mutation that writes the record.
func (j *Job) Update() *datastore.Mutation { return j.mutation(datastore.NewUpdate) }

func (j *Job) mutation(mutation func(*datastore.Key, any) *datastore.Mutation) *datastore.Mutation {
	j.Active, j.Listed, j.Retires = j.HasTasks(), listed(j), retires(j)
	return mutation(JobKey(j.ID), j)
}

// HasTasks reports whether the job needs tasks: it runs, or is being cleaned up.
func (j *Job) HasTasks() bool { return j.State == Running || j.Cleaning != "" }

// Unfinished reports whether the job runs, or is paused.
func (j *Job) Unfinished() bool { return j.State == Running || j.State == Paused }

// Root returns the ID of the job's first range.
func (j *Job) Root() string { return RangeID(j.Ref().String(), 0) }

// JobKey returns the key of the record of a job.
func JobKey(id string) *datastore.Key { return datastore.NameKey(JobKind, id, nil) }

// A Ref names a job by its ID, and by the incarnation that tells it from the jobs that had the ID
// before. Both are in the names of all that belongs to the job: records of ranges, tasks,
// idempotency keys. So a process that wakes after the job's end finds nothing of the next job of
// that ID. A Ref without an incarnation is the job that has the ID now.
type Ref struct{ ID, Incarnation string }

// Ref returns the name of the job.
func (j *Job) Ref() Ref { return Ref{j.ID, j.Incarnation} }

// String returns the reference as a text that no other one has: a dot can't be in a job's ID.
func (r Ref) String() string { return r.ID + "." + r.Incarnation }

// Is checks that a record that was read is that of the job.
func (r Ref) Is(j *Job) error {
	if r.Incarnation != "" && r.Incarnation != j.Incarnation {
		return fmt.Errorf("%w: %s was cleaned up, and another job has its ID", ErrNoSuchJob, r.ID)
	}
	return nil
}

// Incarnate gives a new job its incarnation: a random number, and a hash that ties it to what
// the job is about.
func (j *Job) Incarnate(number uint64) {
	j.Incarnation = incarnationOf(j, fmt.Sprintf("%016x", number))
}

// AsStarted reports whether the job's mapper, query and parameters are those that it was started
// with.
func (j *Job) AsStarted() bool {
	return incarnationOf(j, j.Incarnation[:min(len(j.Incarnation), 16)]) == j.Incarnation
}

// incarnationOf returns the incarnation of a job that begins with a number.
func incarnationOf(j *Job, number string) string {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(number), []byte(j.ID), []byte(j.Mapper), j.Query, j.Params} {
		fmt.Fprintf(h, "%d ", len(part))
		h.Write(part)
	}
	return number + hex.EncodeToString(h.Sum(nil)[:4])
}

// RampBegan returns when the ramp began. A job of an older build has none until it is resumed.
func (j *Job) RampBegan() time.Time {
	if j.RampFrom.IsZero() {
		return j.Created
	}
	return j.RampFrom
}

// AtOnce returns how many of the job's tasks may run at once, as far as that is known.
func (j *Job) AtOnce() int64 { return max(j.Workers, j.Concurrent) }

// goOn has a job run again, or anew, under new names.
func (j *Job) goOn(now time.Time) {
	j.Tolerant = j.Tolerant || j.State == Failed
	j.CountersDropped = j.CountersDropped || j.CountersLost
	j.Limited, j.Poor, j.CountersLost = false, false, false
	if j.State != Running {
		j.RampFrom = now.UTC().Truncate(time.Microsecond)
	}
	j.State, j.Error, j.Trouble, j.Ended = Running, "", "", time.Time{}
	if len(j.Closing) == 0 {
		j.Totals = nil
	}
	j.Suspicion = Suspicion{}
	j.Generation++
	j.Epoch++
}

// Succeed marks a job as ended. Its finalizer, if it has one, comes in addition.
func (j *Job) Succeed(sum Totals, now time.Time) error {
	j.Finalizes = false
	j.Suspicion = Suspicion{}
	j.State, j.Error, j.Trouble, j.Ended = Succeeded, "", "", now.UTC().Truncate(time.Microsecond)
	if sum.Failures > 0 {
		j.State = SucceededWithFailures
	}
	return sum.RecordIn(j)
}

// RootRange returns the root of a new job.
func (j *Job) RootRange() *Range {
	return &Range{Job: j.ID, Incarnation: j.Incarnation, ID: j.Root(), Open: j.ID, State: Pending, PageSize: j.PageSize,
		Created: j.Created}
}

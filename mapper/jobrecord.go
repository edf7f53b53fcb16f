package mapper

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"
)

// jobKind is the kind of the records of jobs.
const jobKind = "ScattermapJob"

// States of a job.
const (
	running               = "running"
	succeeded             = "succeeded"
	succeededWithFailures = "succeeded with failures"
	failed                = "failed"
	paused                = "paused"
	aborted               = "aborted"
)

// errNoSuchJob says that there is no job of that ID.
var errNoSuchJob = errors.New("no such job")

// A jobRecord is the record of a job. It is written at the job's start and end, when
// somebody controls it, and when there is something to show; never by each task.
type jobRecord struct {
	ID          string    `datastore:"-"`
	Incarnation string    `datastore:"incarnation,noindex"` // see jobRef
	Mapper      string    `datastore:"mapper,noindex"`
	Query       []byte    `datastore:"query,noindex"`  // JSON
	Params      []byte    `datastore:"params,noindex"` // JSON
	State       string    `datastore:"state,noindex"`
	Active      bool      `datastore:"active,omitempty"`   // indexed: it needs sweeps
	Generation  int64     `datastore:"generation,noindex"` // of the names of its tasks
	Epoch       int64     `datastore:"epoch,noindex"`      // counts ranges that appear outside a parent's commit
	PageSize    int64     `datastore:"page_size,noindex"`
	PageTime    int64     `datastore:"page_time,noindex"` // nanoseconds
	Timeout     int64     `datastore:"timeout,noindex"`   // nanoseconds
	Workers     int64     `datastore:"workers,noindex"`
	Concurrent  int64     `datastore:"concurrent,noindex"` // how many tasks the queue delivers at once; 0: unknown
	Splitting   []byte    `datastore:"splitting,noindex"`  // JSON
	Rate        []byte    `datastore:"rate,noindex"`       // JSON; empty: no limit
	RampFrom    time.Time `datastore:"ramp_from,noindex"`  // when its ramp began
	Masks       bool      `datastore:"masks,noindex"`      // the database honours property masks
	Times       bool      `datastore:"times,noindex"`      // the property that it is sharded by has times
	LimitStep   int64     `datastore:"limit_step,noindex"` // what Limit began with; each resume allows as many again
	Limit       int64     `datastore:"limit,noindex"`      // of failures; negative: none
	LimitShare  float64   `datastore:"limit_share,noindex"`
	Limited     bool      `datastore:"limited,noindex"` // a limit has paused it

	// CountersLost says that it has failed because its counters can't be kept, and CountersDropped
	// that it was resumed since, and has none.
	CountersLost    bool `datastore:"counters_lost,omitempty,noindex"`
	CountersDropped bool `datastore:"counters_dropped,omitempty,noindex"`

	Tolerant  bool      `datastore:"tolerant,noindex"`  // it records the failures of pages that fail as a whole
	Failures  int64     `datastore:"failures,noindex"`  // when LimitShare has paused it, about
	Tried     int64     `datastore:"tried,noindex"`     // as many entities were processed or had failed
	Finalizes bool      `datastore:"finalizes,noindex"` // the build that ended it has a finalizer
	Finalized int64     `datastore:"finalized,noindex"` // the epoch in which that took effect
	Replaying bool      `datastore:"replaying,noindex"` // failures are becoming ranges again
	Created   time.Time `datastore:"created,noindex"`
	Ended     time.Time `datastore:"ended,noindex"`
	Error     string    `datastore:"error,noindex"`
	Totals    []byte    `datastore:"totals,noindex"` // JSON, once it has ended

	Cleaning string    `datastore:"cleaning,noindex"`  // JSON: how its records are being cleaned up
	Cleaned  bool      `datastore:"cleaned,noindex"`   // some of its records are gone, or expire
	Expires  time.Time `datastore:"expires,omitempty"` // for a time-to-live policy, see [Job.CleanUp]

	suspicion // that its finalizer kills its process
}

// insert and update return the mutations that write the record.
func (j *jobRecord) insert() *datastore.Mutation { return j.write(datastore.NewInsert) }
func (j *jobRecord) update() *datastore.Mutation { return j.write(datastore.NewUpdate) }

func (j *jobRecord) write(mutation func(*datastore.Key, any) *datastore.Mutation) *datastore.Mutation {
	j.Active = j.State == running || j.Cleaning != ""
	return mutation(jobKey(j.ID), j)
}

// root returns the ID of the job's first range.
func (j *jobRecord) root() string { return rangeID(j.ref().String(), 0) }

func jobKey(id string) *datastore.Key { return datastore.NameKey(jobKind, id, nil) }

// A jobRef names a job: by its ID, and by the incarnation that tells it from the jobs that had the
// ID before. Whatever belongs to a job (its ranges' records, its tasks, what it tells the world)
// is named by both, so that a process which wakes behind a job's end finds nothing of the next
// one. Without an incarnation it is the job that has the ID now.
type jobRef struct{ ID, Incarnation string }

func (j *jobRecord) ref() jobRef { return jobRef{j.ID, j.Incarnation} }

// String returns the reference as a text that no other one has: a dot can't be in a job's ID.
func (r jobRef) String() string { return r.ID + "." + r.Incarnation }

// is checks that a record that was read is that of the job.
func (r jobRef) is(j *jobRecord) error {
	if r.Incarnation != "" && r.Incarnation != j.Incarnation {
		return fmt.Errorf("%w: %s was cleaned up, and another job has its ID", errNoSuchJob, r.ID)
	}
	return nil
}

// incarnate gives a new job its incarnation: a random number, and a hash that ties it to what
// the job is about.
func (j *jobRecord) incarnate(number uint64) {
	j.Incarnation = j.incarnation(fmt.Sprintf("%016x", number))
}

// incarnation returns the incarnation that begins with a number.
func (j *jobRecord) incarnation(number string) string {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(number), []byte(j.ID), []byte(j.Mapper), j.Query, j.Params} {
		fmt.Fprintf(h, "%d ", len(part))
		h.Write(part)
	}
	return number + hex.EncodeToString(h.Sum(nil)[:4])
}

// rampFrom returns when the ramp began. A job of an older build has none until it is resumed.
func (j *jobRecord) rampFrom() time.Time {
	if j.RampFrom.IsZero() {
		return j.Created
	}
	return j.RampFrom
}

// atOnce returns how many of the job's tasks may run at once, as far as that is known.
func (j *jobRecord) atOnce() int64 { return max(j.Workers, j.Concurrent) }

// goOn has a job run again, or anew, under new names.
func (j *jobRecord) goOn(now time.Time) {
	j.Tolerant = j.Tolerant || j.State == failed
	j.CountersDropped = j.CountersDropped || j.CountersLost
	j.Limited, j.CountersLost = false, false
	if j.State != running {
		j.RampFrom = now.UTC().Truncate(time.Microsecond)
	}
	j.State, j.Error, j.Ended, j.Totals = running, "", time.Time{}, nil
	j.suspicion = suspicion{}
	j.Generation++
	j.Epoch++
}

// succeed marks a job as ended. Its finalizer, if it has one, comes in addition.
func (j *jobRecord) succeed(sum totals, now time.Time) (err error) {
	j.Finalizes = false
	j.suspicion = suspicion{}
	j.State, j.Error, j.Ended = succeeded, "", now.UTC().Truncate(time.Microsecond)
	if sum.Failures > 0 {
		j.State = succeededWithFailures
	}
	j.Totals, err = json.Marshal(sum)
	return err
}

// rootRange returns the root of a new job.
func (j *jobRecord) rootRange() *rangeRecord {
	return &rangeRecord{Job: j.ID, Incarnation: j.Incarnation, ID: j.root(), Open: j.ID, State: pending, PageSize: j.PageSize, Created: j.Created}
}

// totals returns what the records of a job that has ended add up to.
func (j *jobRecord) totals() (sum totals, err error) {
	return sum, json.Unmarshal(j.Totals, &sum)
}

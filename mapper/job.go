package mapper

import (
	"cmp"
	"math/rand/v2"
	"strconv"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A State is where a job stands.
type State string

const (
	// StateRunning is the state of a job that has ranges left.
	StateRunning State = "running"
	// StateSucceeded is the end of a job that has processed every entity.
	StateSucceeded State = "succeeded"
	// StateSucceededWithFailures is the end of a job that has processed every entity
	// but some, which are recorded as failures.
	StateSucceededWithFailures State = "succeeded with failures"
	// StateFailed is the end of a job that gave up: Status.Error says why. What was
	// not processed is still recorded as pending, and [Job.Resume] goes on with it.
	StateFailed State = "failed"
	// StatePaused is the state of a job that waits for [Job.Resume]. Status.Error says
	// why, if it was not paused by somebody but by its failure limit.
	StatePaused State = "paused"
	// StateAborted is the end of a job that somebody has ended.
	StateAborted State = "aborted"
)

// Ended reports whether a job in this state does nothing more, unless it is
// resumed or its failures are retried.
func (s State) Ended() bool { return s != StateRunning && s != StatePaused }

// Errors of starting and finding jobs.
var (
	// ErrIDTaken says that a job of that ID was started with another
	// mapper, query or parameters.
	ErrIDTaken = record.ErrOtherArguments

	// ErrUnknownMapper says that a mapper is not among the engine's
	// [EngineOptions.Mappers].
	ErrUnknownMapper = function.ErrUnknownMapper

	// ErrInvalidArgument says that something can't be done with such arguments; the error
	// names the one that is wrong.
	ErrInvalidArgument = fault.ErrArguments

	// ErrNoSuchJob says that there is no job of that ID.
	ErrNoSuchJob = record.ErrNoSuchJob

	// ErrNewer says that a newer version of this package has started the job, with a query or a
	// setting that this one does not know. The job's tasks wait for that version.
	ErrNewer = query.ErrNewer
)

// StartOptions are the settings of a job. In JSON, durations are nanoseconds, as their names say.
type StartOptions struct {
	// ID names the job: 1 to 100 letters, digits, '-' and '_', but not __x__.
	// Starting a job with the ID of one that exists returns that one, whatever state
	// it is in, if mapper, query and parameters are the same, and is refused with
	// [ErrIDTaken] otherwise; the settings are those of the first start.
	// Defaults to a new ID, with which every start is another job.
	ID string `json:"id,omitempty"`

	// DryRun has the function of an [Update] run, and nothing be written: the job counts what it
	// would have done, under the counters "would(change)", "would(change PROPERTY)" for each
	// property, "would(delete)", "would(put another entity)" and "would(delete another entity)",
	// [Job.Examples] shows some, and Status.Written is how many entities it would have changed or
	// deleted. What the function counts, counts; its errors are failures; there is no finalizer. It
	// locks nothing, and conflicts with nobody. It is a job of the mapper "rehearsal:NAME" and
	// can't become another one: start the mapper under another ID for that. A rehearsal does not
	// notice what only the database would refuse, such as an entity that is too large. Default is
	// false.
	DryRun bool `json:"dry_run,omitempty"`

	// AllowOverlap has the job run beside others of its mapper over the same kind. By default a
	// start, a resume or a retry is refused with [ErrWrongState] while another one runs that does
	// not run beside others, also a run of a [Schedule]; the error names it. Undos, and jobs that
	// are started by functions and finalizers of others ([EngineFromContext]), run beside others in
	// any case.
	AllowOverlap bool `json:"allow_overlap,omitempty"`

	// AllowEmpty has a job start over a kind that has no entities, or with a filter by a
	// property that none has in an index. By default that is an error, if it is so in all of the
	// query's namespaces (of which 1,000 are looked at for a kind, 20 for a property), as the name
	// may be a mistake. A query that matches none of a kind's entities is none.
	AllowEmpty bool `json:"allow_empty,omitempty"`

	// Queue is the name of one of the engine's queues, or the last part of it: the job belongs to
	// that. Defaults to that of [Mapper.WithQueue], or the engine's first one. A start under the ID
	// of a job that belongs to another queue is refused with [ErrWrongQueue].
	Queue string `json:"queue,omitempty"`

	// PageSize is the most entities that are processed and committed together,
	// in [1, 1000]. Defaults to 500.
	PageSize int `json:"page_size,omitempty"`

	// PageTime is how long the function may take on the entities of one page together, in (0, 25s].
	// What it does not reach becomes ranges of their own; where nothing is left then it may take
	// twice as long, and up to 25s. Others that change the same entities of an [Update] meanwhile
	// conflict with it. Defaults to 3s, at which the transaction's own round trips are a few
	// percent.
	PageTime time.Duration `json:"page_time_ns,omitempty"`

	// ExpectedWorkers is how many tasks run at once, in [1, 5000]. It is a setting of the
	// queue, which the job does not change: its first split is made for it. Defaults to
	// how many the queue delivers at once, or to 100 if the caller may not know that, for
	// which it needs the permission cloudtasks.queues.get.
	ExpectedWorkers int `json:"expected_workers,omitempty"`

	// Splitting says how the job's ranges are cut. Defaults to adaptive.
	Splitting Splitting `json:"splitting,omitzero"`

	// Rate is how fast the job goes at most. [Job.SetRate] changes it. Defaults to no
	// limit.
	Rate Rate `json:"rate,omitzero"`

	// Budget is the most that the job's pages may cost. Defaults to no limit.
	Budget Budget `json:"budget,omitzero"`

	// EntityTimeout is how long the function may take on one entity: up to half of the
	// queue's Deadline, and for an [Update] up to 30s. Then its context
	// is done, the entity has failed, as if the function had returned an error, and
	// the others go on; a function that does not look at its context is left to itself,
	// with all that it holds. What a function leaves running when it returns can't rely on
	// its context either, which ends soon after. Defaults to 30s, or half of the Deadline if
	// that is less.
	EntityTimeout time.Duration `json:"entity_timeout_ns,omitempty"`

	// Retries say how often the function is tried, and when. Defaults to those of the mapper.
	Retries RetryPolicy `json:"retries,omitzero"`

	// FailureLimit is how many entities may fail for good before the job is paused, so
	// that somebody looks at them while the rest is untouched. The job may pass it by
	// what is under way, by the failures of one page, and by 1%. -1 is no limit: then
	// pages that fail as a whole have their failures recorded, too. Defaults to 1000.
	FailureLimit int `json:"failure_limit,omitempty"`

	// FailureShare is which share of the entities may fail for good before the job is
	// paused, in (0, 1]. It counts from the eleventh failure on, by an estimate from up
	// to 250 ranges. Defaults to 1: FailureLimit alone decides.
	FailureShare float64 `json:"failure_share,omitempty"`

	// Retain is how long the records of the job's ranges are kept after its end, with the keys and
	// errors that are in them: at least [MinRetain]. Then they are cleaned up as [Job.CleanUp] does
	// with CleanUpOptions.IncludeFailures, and the job's own record stays, so that a start of its
	// ID returns the job. What goes on again, by [Job.Resume] or [Job.Retry], is kept until so long
	// after its next end. Defaults to [EngineOptions.Retain]; [RetainAlways] is until somebody
	// cleans up. [Job.SetRetain] changes it.
	Retain time.Duration `json:"retain_ns,omitempty"`
}

// RetainAlways is the retention of a job whose records are kept until somebody cleans them up.
const RetainAlways time.Duration = -1

// MinRetain is the shortest retention: longer than an undo is possible. Point-in-time recovery
// keeps what was there for seven days (https://cloud.google.com/datastore/docs/pitr), and a day
// more is for clocks that differ, and for whoever undoes at the last moment.
const MinRetain = 8 * 24 * time.Hour

// checkRetain returns an error if a retention can't be kept to; zero is the default.
func checkRetain(name setting.Name, d time.Duration) error {
	if d > 0 && d < MinRetain {
		return setting.Errorf("%s has to be at least %v, as an undo needs the records for seven days, or "+
			"RetainAlways; it is %v",
			name, MinRetain, d)
	}
	return nil
}

// settingsOf returns the settings of a job, as they are in force.
func settingsOf(j *record.Job) (StartOptions, error) {
	strategy, err := j.Strategy()
	limit, bad := j.RateLimit()
	budget, worse := record.BudgetOf(j)
	return StartOptions{
		ID: j.ID, AllowOverlap: j.Beside, PageSize: int(j.PageSize), PageTime: time.Duration(j.PageTime),
		ExpectedWorkers: int(j.Workers), Splitting: Splitting(strategy), Rate: Rate(limit), Budget: Budget(budget),
		EntityTimeout: time.Duration(j.Timeout), FailureLimit: int(j.LimitStep), FailureShare: j.LimitShare,
		Retries: retriesOf(j), Retain: j.Retain,
	}, cmp.Or(err, bad, worse)
}

// Bounds of StartOptions. A lookup has at most 1,000 keys, as the limits page of
// Datastore has it; its transactions page gives a transaction up after a minute
// without a request; and the quotas page of Cloud Tasks allows a queue 5,000
// deliveries at once.
const (
	maxWorkers = 5000

	defaultWorkers = 100

	maxPageTime = page.MaxTime // with what a function can take, below that minute
)

func (o *StartOptions) withDefaults(longest time.Duration) StartOptions {
	var opts StartOptions
	if o != nil {
		opts = *o
	}
	if opts.ID == "" {
		opts.ID = time.Now().UTC().Format("20060102-150405-") + strconv.FormatUint(rand.Uint64(), 36)
	}
	if opts.PageSize == 0 {
		opts.PageSize = 500
	}
	if opts.PageTime == 0 {
		opts.PageTime = 3 * time.Second
	}
	if opts.EntityTimeout == 0 {
		opts.EntityTimeout = min(30*time.Second, longest)
	}
	if opts.FailureLimit == 0 {
		opts.FailureLimit = 1000
	}
	if opts.FailureShare == 0 {
		opts.FailureShare = 1
	}
	return opts
}

// validate checks the settings for a mapper that can take longest on an entity, and
// a page until deadline.
func (o StartOptions) validate(longest, deadline time.Duration) error {
	switch {
	case names.Reserved(o.ID):
		return setting.Errorf("StartOptions.ID %q is reserved by Datastore", o.ID)
	case !record.ValidJobID(o.ID):
		return setting.Errorf("StartOptions.ID %q is not 1 to 100 letters, digits, '-' and '_', or is one like __x__",
			o.ID)
	case o.PageSize < 1 || o.PageSize > record.MaxPageSize:
		return setting.Errorf("StartOptions.PageSize has to be in [1, %d], it is %d", record.MaxPageSize, o.PageSize)
	case o.PageTime < 0 || o.PageTime > maxPageTime:
		return setting.Errorf("StartOptions.PageTime has to be in (0, %v], it is %v", maxPageTime, o.PageTime)
	case o.EntityTimeout < 0 || o.EntityTimeout > longest:
		return setting.Errorf("StartOptions.EntityTimeout has to be in (0, %v] for this mapper and queue, it is %v",
			longest,
			o.EntityTimeout)
	case 2*o.PageTime+o.EntityTimeout > deadline*9/10: // as long a page may take of which one entity hangs
		return setting.Errorf("StartOptions.EntityTimeout and twice StartOptions.PageTime have to be at most 9/10 of "+
			"the queue's dispatch deadline of %v together, they are %v", deadline, 2*o.PageTime+o.EntityTimeout)
	case !(o.FailureShare > 0 && o.FailureShare <= 1): // not a number, too
		return setting.Errorf("StartOptions.FailureShare has to be in (0, 1], it is %v", o.FailureShare)
	case o.FailureLimit < -1:
		return setting.Errorf("StartOptions.FailureLimit has to be at least 1, or -1 for none, it is %d",
			o.FailureLimit)
	case o.ExpectedWorkers < 0 || o.ExpectedWorkers > maxWorkers: // 0: what the queue delivers at once
		return setting.Errorf("StartOptions.ExpectedWorkers has to be in [1, %d], it is %d", maxWorkers,
			o.ExpectedWorkers)
	}
	err := cmp.Or(o.Retries.validate("StartOptions.Retries"), checkRetain("StartOptions.Retain", o.Retain))
	if err != nil {
		return err
	}
	return o.Splitting.strategy().Validate()
}

// A Job is a handle on one run of a mapper.
//
// The handle that a start returns stands for that job: once it has been cleaned up with its own
// record, its methods return [ErrNoSuchJob], also if another job has the ID.
type Job struct {
	// ID is the job's ID.
	ID string

	incarnation string // empty: of whichever job has the ID
	engine      *Engine
}

// JobKey returns the key of a job's record, for transactions that have to know whether there is a
// job of an ID.
func JobKey(id string) *datastore.Key { return record.JobKey(id) }

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

// A State is the state of a job.
type State string

const (
	// StateRunning means that the job processes entities, or that its finalizer runs.
	StateRunning State = "running"
	// StateSucceeded means that the job has ended and processed every entity.
	StateSucceeded State = "succeeded"
	// StateSucceededWithFailures means that the job has ended, and some entities are recorded as
	// failures. [Job.Retry] processes them again.
	StateSucceededWithFailures State = "succeeded with failures"
	// StateFailed means that the job has stopped because of an error, which Status.Error has.
	// [Job.Resume] continues with the entities that were not processed.
	StateFailed State = "failed"
	// StatePaused means that the job waits for [Job.Resume]. If one of its limits paused it,
	// Status.Error says so.
	StatePaused State = "paused"
	// StateAborted means that a caller has ended the job with [Job.Abort].
	StateAborted State = "aborted"
)

// A Phase says what a job does or waits for. It is more detailed than a [State].
type Phase string

// The phases of a running job.
const (
	// PhaseStarting means that no page is done yet.
	PhaseStarting Phase = "starting"
	// PhaseProcessing means that tasks process pages.
	PhaseProcessing Phase = "processing"
	// PhaseQueued means that tasks are due, but the queue does not deliver them: it delivers tasks
	// of other jobs first, or is paused.
	PhaseQueued Phase = "queued"
	// PhaseRateLimited means that the job goes about as fast as its Rate allows.
	PhaseRateLimited Phase = "rate limited"
	// PhaseGivingWay means that a background job mostly waits, so that the database stays fast for
	// other clients: see [StartOptions].Background.
	PhaseGivingWay Phase = "giving way"
	// PhaseSlowed means that the function, or what it calls, has become slow. The job's workers are
	// busy, but the job has less than a fifth of its earlier speed.
	PhaseSlowed Phase = "slowed"
	// PhaseRetrying means that all remaining entities and pages have failed before, and wait for
	// their next attempts, or that [Job.Retry] looks for the failures.
	PhaseRetrying Phase = "retrying"
	// PhaseStuck means that the job's tasks can't be delivered or carried out.
	PhaseStuck Phase = "stuck"
	// PhaseFinishing means that all entities are done. The job adds up its records and runs the
	// finalizer.
	PhaseFinishing Phase = "finishing"
)

// The phases of a paused job, and of one that has ended.
const (
	// PhaseDraining means that the job is paused, and that pages may still be under way.
	PhaseDraining Phase = "draining"
	// PhasePaused means that a caller has paused the job.
	PhasePaused Phase = "paused"
	// PhaseOverBudget means that the job's budget has paused it.
	PhaseOverBudget Phase = "over budget"
	// PhaseTooManyFailures means that FailureLimit or FailureShare has paused the job.
	PhaseTooManyFailures Phase = "too many failures"
	// PhaseEnded means that the job has ended, as its State says.
	PhaseEnded Phase = "ended"
)

// Ended reports whether the job has succeeded, has failed or was aborted. A paused job has not
// ended. [Job.Resume] and [Job.Retry] can make an ended job run again.
func (s State) Ended() bool { return s != StateRunning && s != StatePaused }

// Errors of starting and finding jobs.
var (
	// ErrIDTaken says that a job with the same ID exists, but with another mapper, query or
	// parameters.
	ErrIDTaken = record.ErrOtherArguments

	// ErrUnknownMapper says that a mapper is not in [EngineOptions].Mappers.
	ErrUnknownMapper = function.ErrUnknownMapper

	// ErrInvalidArgument says that an argument is wrong. The error names it.
	ErrInvalidArgument = fault.ErrArguments

	// ErrNoSuchJob says that no job has the ID.
	ErrNoSuchJob = record.ErrNoSuchJob

	// ErrNewer says that the job was started by a newer version of this package, with a query or
	// setting that this version does not know. The job's tasks wait for a process with the newer
	// version.
	ErrNewer = query.ErrNewer
)

// StartOptions are the settings of a job. The zero value has all defaults. In JSON, a duration is a
// number of nanoseconds, and its name ends with "_ns".
type StartOptions struct {
	// ID names the job: 1 to 100 letters, digits, '-' and '_', but not with "__" at both its start
	// and its end. A new job can't be called mappers or plan, because the jobs API uses these
	// words. If a job with the ID exists, in any state, a start with the same mapper, query and
	// parameters returns it, and does not change its settings. With other arguments the error is
	// [ErrIDTaken]. Defaults to a new random ID, so that every start is another job.
	ID string `json:"id,omitempty"`

	// DryRun makes the job a rehearsal: the function of an [Update] runs, but its changes are not
	// written. For other mappers the error is [ErrInvalidArgument].
	//
	// Counters say what the job would do: "would(change)", "would(change PROPERTY)" for each
	// property, "would(delete)", "would(put another entity)" and "would(delete another entity)".
	// Status.Written counts the entities that it would change or delete, and [Job.Examples] shows
	// some changes. The function's counts and errors are treated as in a real job, but no finalizer
	// runs.
	//
	// A rehearsal locks nothing and conflicts with nobody. It does not notice errors that only the
	// database finds, such as an entity that is too large. Its mapper is "rehearsal:NAME", so the
	// real job needs another ID.
	DryRun bool `json:"dry_run,omitempty"`

	// AllowOverlap lets the job run at the same time as other jobs with the same mapper and one of
	// the same kinds, in any namespace. By default, a start, resume or retry is refused with
	// [ErrWrongState] while such a job runs; the error names it. Undos, and jobs that a function or
	// finalizer starts ([EngineFromContext]), may always overlap.
	AllowOverlap bool `json:"allow_overlap,omitempty"`

	// AllowEmpty lets a job start even if a kind has no entities, or if no entity has the property
	// of a filter or of [Query].ShardBy in an index. By default that is an [ErrInvalidArgument],
	// because the name may be mistyped. The start checks kinds in up to 1,000 of the query's
	// namespaces, and properties in up to 20. It does not check whether any entity matches the
	// filters.
	AllowEmpty bool `json:"allow_empty,omitempty"`

	// Queue is the queue of the job: the name of one of the engine's queues, or the last part of
	// the name. Defaults to the queue of [Mapper.WithQueue], or else to the engine's first queue.
	// If a job with the ID exists in another queue, the error is [ErrWrongQueue].
	Queue string `json:"queue,omitempty"`

	// PageSize is how many entities are processed and committed together at most, in [1, 1000].
	// Defaults to 500.
	PageSize int `json:"page_size,omitempty"`

	// PageTime is how long the function may take for all entities of a page together, in (0, 25s].
	// When the time has passed, the page ends after its current entity, and the remaining entities
	// form other pages. The last page of a range may take twice as long, up to 25s.
	//
	// A longer time means more conflicts: others change more entities before the page is committed,
	// and the function of an [Update] runs again on these. A shorter time means more overhead.
	// Defaults to 3s; the commit takes a few percent of that.
	PageTime time.Duration `json:"page_time_ns,omitempty"`

	// ExpectedWorkers is the number of tasks for which the job makes its first split, in [1, 5000].
	// Set it to the number of the job's tasks that can run at once. It is not a limit: the queue's
	// max-concurrent-dispatches limits the tasks. Defaults to that setting, or to 100 if the caller
	// lacks the permission cloudtasks.queues.get.
	ExpectedWorkers int `json:"expected_workers,omitempty"`

	// Splitting says how the job's ranges are cut. Use it only for comparisons. Defaults to
	// adaptive.
	Splitting Splitting `json:"splitting,omitzero"`

	// Rate limits the speed of the job. [Job.SetRate] changes it. Defaults to no limit.
	Rate Rate `json:"rate,omitzero"`

	// Background makes the job give way to other clients of the database. About once a second, each
	// process measures how long the lookup of a key takes. While a lookup takes longer than without
	// the job's load, the process runs fewer pages at once. At its slowest it runs one page at a
	// time, and none for three quarters of the time. To measure without the job's load, no page
	// starts in the first four seconds of each minute.
	//
	// Use it for jobs of minutes or hours beside production traffic. A job starts with one page at
	// a time, and takes up to half a minute to find its speed. Each lookup is billed as a read,
	// which does not count for the Budget. Defaults to false.
	Background bool `json:"background,omitempty"`

	// Budget limits the cost of the job's pages. Defaults to no limit.
	Budget Budget `json:"budget,omitzero"`

	// EntityTimeout is how long the function may take for one entity, or for a batch. Defaults to
	// 30s, or half of the queue's DispatchDeadline if that is less. It must be at most half of the
	// DispatchDeadline, and at most 30s for an [Update]. EntityTimeout plus twice the PageTime must
	// be at most 9/10 of the DispatchDeadline.
	//
	// After EntityTimeout, the function's context is cancelled and the attempt has failed. The job
	// continues with other entities. A function that ignores its context keeps running and keeps
	// its resources. When the function returns, its context is cancelled soon, also for goroutines
	// that it has started.
	EntityTimeout time.Duration `json:"entity_timeout_ns,omitempty"`

	// Concurrency is how many calls of the function run at once in one page, in [1, 1000]. Use it
	// for a function that waits for other services. For example, 500 calls of 100 ms take 50 s with
	// one call at a time, and 1 s with 50. Defaults to the value of [Mapper.WithConcurrency], or to
	// 1.
	Concurrency int `json:"concurrency,omitempty"`

	// Retries say how often and when the function is retried. Defaults to the policy of the mapper.
	Retries RetryPolicy `json:"retries,omitzero"`

	// FailureLimit pauses the job when more entities than this have failed all attempts, so that an
	// operator can look at the failures first. The job may exceed the limit by 1%, and by the
	// failures of the pages under way and of one more page. With [Unlimited] there is no limit, and
	// pages that fail as a whole do not fail the job: their entities become failures. Defaults to
	// 1000, also for 0: the lowest limit is 1. The jobs API and the command line refuse 0.
	FailureLimit int `json:"failure_limit,omitempty"`

	// FailureShare pauses the job when more than this share of its entities so far has failed all
	// attempts, in (0, 1]. It applies from the eleventh failure. The share is estimated from up to
	// 250 ranges. Defaults to 1, so that only FailureLimit applies.
	FailureShare float64 `json:"failure_share,omitempty"`

	// Retain is how long the records of the job's ranges, with the keys and errors in them, are
	// kept after the job's end: at least [MinRetain], or [RetainAlways]. After that time they are
	// cleaned up, as by [Job.CleanUp] with IncludeFailures. The job's own record stays, so a start
	// of its ID still returns the job. After [Job.Resume] or [Job.Retry] the time starts again at
	// the next end. [Job.SetRetain] changes it. Defaults to [EngineOptions.Retain].
	Retain time.Duration `json:"retain_ns,omitempty"`
}

// RetainAlways keeps the records of a job until a caller cleans them up: see [StartOptions].Retain.
const RetainAlways time.Duration = -1

// MinRetain is the shortest retention: see [StartOptions].Retain. An undo needs the records, and is
// possible for the seven days of point-in-time recovery
// (https://cloud.google.com/datastore/docs/pitr). One more day is for clocks that differ, and for
// an undo at the last moment.
const MinRetain = 8 * 24 * time.Hour

// checkRetain returns an error if the retention d is too short. The parameter name is the setting's
// name in that error. Zero, for the default, is valid.
func checkRetain(name setting.Name, d time.Duration) error {
	if d != 0 && d != RetainAlways && d < MinRetain {
		return setting.Errorf("%s has to be at least %v, as an undo needs the records for seven days, or "+
			"RetainAlways; it is %v",
			name, MinRetain, d)
	}
	return nil
}

// settingsOf returns a job's current settings from its record.
func settingsOf(j *record.Job) (StartOptions, error) {
	strategy, err := j.Strategy()
	limit, bad := j.RateLimit()
	budget, worse := j.BudgetLimit()
	return StartOptions{
		ID: j.ID, AllowOverlap: j.Beside, Background: j.Background,
		PageSize: int(j.PageSize), PageTime: time.Duration(j.PageTime),
		ExpectedWorkers: int(j.Workers), Splitting: Splitting(strategy), Rate: Rate(limit), Budget: Budget(budget),
		EntityTimeout: time.Duration(j.Timeout), Concurrency: int(max(1, j.Concurrency)),
		FailureLimit: int(j.LimitStep), FailureShare: j.LimitShare,
		Retries: retriesOf(j), Retain: cmp.Or(j.Retain, RetainAlways),
	}, cmp.Or(err, bad, worse)
}

// Bounds of StartOptions. They come from limits of Datastore and Cloud Tasks. A lookup has up to
// 1,000 keys. A transaction ends after a minute without a request. A queue makes up to 5,000
// deliveries at once.
const (
	maxWorkers = 5000

	defaultWorkers = 100

	maxPageTime = page.MaxTime // a page and a timeout fit into a transaction's minute
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

// validate returns an error if a setting is invalid. The parameter longest is the upper limit of
// EntityTimeout for the mapper and the queue. The parameter deadline is the queue's dispatch
// deadline.
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
	case 2*o.PageTime+o.EntityTimeout > deadline*9/10: // the longest page: one entity hangs at its end
		return setting.Errorf("StartOptions.EntityTimeout and twice StartOptions.PageTime have to be at most 9/10 of "+
			"the queue's dispatch deadline of %v together, they are %v", deadline, 2*o.PageTime+o.EntityTimeout)
	case o.Concurrency < 0 || o.Concurrency > record.MaxPageSize: // 0: the mapper's number
		return setting.Errorf("StartOptions.Concurrency has to be in [1, %d], it is %d", record.MaxPageSize,
			o.Concurrency)
	case !(o.FailureShare > 0 && o.FailureShare <= 1): // also NaN
		return setting.Errorf("StartOptions.FailureShare has to be in (0, 1], it is %v", o.FailureShare)
	case o.FailureLimit < -1:
		return setting.Errorf("StartOptions.FailureLimit has to be at least 1, or -1 for none, it is %d",
			o.FailureLimit)
	case o.ExpectedWorkers < 0 || o.ExpectedWorkers > maxWorkers: // 0: the queue's setting
		return setting.Errorf("StartOptions.ExpectedWorkers has to be in [1, %d], it is %d", maxWorkers,
			o.ExpectedWorkers)
	}
	err := cmp.Or(o.Retries.validate("StartOptions.Retries"), checkRetain("StartOptions.Retain", o.Retain))
	if err != nil {
		return err
	}
	return o.Splitting.strategy().Validate()
}

// checkNewID returns an error if no new job can have an ID because the jobs API uses it as a word.
// Jobs of earlier builds may have the ID.
func checkNewID(id string) error {
	if !names.Word(id) {
		return nil
	}
	return setting.Errorf("%w: StartOptions.ID is %q, which the jobs API uses as a word: choose another ID",
		ErrInvalidArgument, id)
}

// A Job is a handle on one run of a mapper. [Mapper.Start] and [Engine.Job] return one. It is safe
// for concurrent use.
//
// A handle from [Mapper.Start] stands for that run only. If the job's own record was deleted
// ([CleanUpOptions].IncludeJob), its methods return [ErrNoSuchJob], even if another job has the ID
// by then.
type Job struct {
	// ID is the job's ID.
	ID string `json:"id"`

	incarnation string // identifies one run; empty: any job that has the ID
	engine      *Engine
}

// JobKey returns the key of a job's record in the engine's database. With it, your own transaction
// can check whether a job exists.
func JobKey(id string) *datastore.Key { return record.JobKey(id) }

package mapper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/tasks"
)

// jobKind is the kind of the records of jobs.
const jobKind = "ScattermapJob"

// A State is where a job stands.
type State string

const (
	// Running is the state of a job that has ranges left.
	Running State = "running"
	// Succeeded is the end of a job that has processed every entity.
	Succeeded State = "succeeded"
	// SucceededWithFailures is the end of a job that has processed every entity
	// but some, which are recorded as failures.
	SucceededWithFailures State = "succeeded with failures"
	// Failed is the end of a job that gave up: Status.Error says why. What was
	// not processed is still recorded as pending.
	Failed State = "failed"
)

// Ended reports whether a job in this state does nothing more.
func (s State) Ended() bool { return s != Running }

// A jobRecord is the record of a job. It is written at the job's start and end,
// and never by the tasks in between.
type jobRecord struct {
	ID         string    `datastore:"-"`
	Mapper     string    `datastore:"mapper,noindex"`
	Query      []byte    `datastore:"query,noindex"`  // JSON
	Params     []byte    `datastore:"params,noindex"` // JSON
	State      string    `datastore:"state,noindex"`
	Generation int64     `datastore:"generation,noindex"` // of the names of its tasks
	Epoch      int64     `datastore:"epoch,noindex"`      // counts ranges that appear outside a parent's commit
	PageSize   int64     `datastore:"page_size,noindex"`
	PageTime   int64     `datastore:"page_time,noindex"` // nanoseconds
	Workers    int64     `datastore:"workers,noindex"`
	Masks      bool      `datastore:"masks,noindex"` // the database honours property masks
	Created    time.Time `datastore:"created,noindex"`
	Ended      time.Time `datastore:"ended,noindex"`
	Error      string    `datastore:"error,noindex"`
	Totals     []byte    `datastore:"totals,noindex"` // JSON, once it has ended
}

func jobKey(id string) *datastore.Key { return datastore.NameKey(jobKind, id, nil) }

func (j *jobRecord) query() (Query, error) {
	var q Query
	err := json.Unmarshal(j.Query, &q)
	return q, err
}

// sameArguments says why a start with other arguments is not this job's.
func (j *jobRecord) sameArguments(o *jobRecord) error {
	switch {
	case j.Mapper != o.Mapper:
		return fmt.Errorf("%w: it runs the mapper %q", ErrOtherArguments, j.Mapper)
	case string(j.Query) != string(o.Query):
		return fmt.Errorf("%w: its query is %s", ErrOtherArguments, j.Query)
	case string(j.Params) != string(o.Params):
		return fmt.Errorf("%w: its params are different", ErrOtherArguments)
	}
	return nil
}

// Errors of starting and finding jobs.
var (
	// ErrOtherArguments says that a job of that ID was started with another
	// mapper, query or parameters.
	ErrOtherArguments = errors.New("a job of this ID has other arguments")

	// ErrUnknownMapper says that a mapper is not among the engine's
	// [Options.Mappers].
	ErrUnknownMapper = errors.New("unknown mapper")

	// ErrArguments says that a job can't be started with such arguments; the
	// error names the one that is wrong.
	ErrArguments = errors.New("bad arguments")

	// ErrNoSuchJob says that there is no job of that ID.
	ErrNoSuchJob = errors.New("no such job")
)

// StartOptions are the settings of a job.
type StartOptions struct {
	// ID names the job: 1 to 100 letters, digits, '-' and '_'. Starting a job
	// with the ID of one that exists returns that one, whatever state it is in,
	// if mapper, query and parameters are the same, and is refused with
	// [ErrOtherArguments] otherwise; the settings are those of the first start.
	// Defaults to a new ID, with which every start is another job.
	ID string

	// PageSize is the most entities that are processed and committed together,
	// in [1, 1000]. Defaults to 500.
	PageSize int

	// PageTime is how long the functions of one page may take together. What
	// they don't reach becomes a range of its own. Transactions are open for
	// that long, so keep it well below a minute. Defaults to 3s.
	PageTime time.Duration

	// Workers is how many tasks run at once, which is a setting of the queue: the
	// first split is made for it. Defaults to 100.
	Workers int
}

const maxPageSize = 1000 // a lookup's keys, as the limits page of Datastore has it

var jobID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`)

func (o *StartOptions) withDefaults() StartOptions {
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
	if opts.Workers == 0 {
		opts.Workers = 100
	}
	return opts
}

func (o StartOptions) validate() error {
	switch {
	case !jobID.MatchString(o.ID):
		return fmt.Errorf("StartOptions.ID %q is not 1 to 100 letters, digits, '-' and '_'", o.ID)
	case o.PageSize < 1 || o.PageSize > maxPageSize:
		return fmt.Errorf("StartOptions.PageSize has to be in [1, %d], it is %d", maxPageSize, o.PageSize)
	case o.PageTime < 0 || o.PageTime > time.Minute:
		return fmt.Errorf("StartOptions.PageTime has to be in (0, 1m], it is %v", o.PageTime)
	case o.Workers < 1:
		return fmt.Errorf("StartOptions.Workers has to be at least 1, it is %d", o.Workers)
	}
	return nil
}

// A Job is a handle on one run of a mapper.
type Job struct {
	// ID is the job's ID.
	ID string

	engine *Engine
}

// Job returns the job of an ID, for instance in another process than the one
// that started it. Its methods say whether it exists.
func (e *Engine) Job(id string) *Job { return &Job{ID: id, engine: e} }

// StartNamed starts a job by the name of its mapper and with parameters in
// JSON, for callers that don't have the mapper's value: command lines, pages,
// schedules. No parameters are written as {}.
func (e *Engine) StartNamed(ctx context.Context, mapper string, q Query, params json.RawMessage, o *StartOptions) (*Job, error) {
	def, ok := e.mappers[mapper]
	if !ok {
		return nil, fmt.Errorf("mapper: start: %w %q: have %s", ErrUnknownMapper, mapper, e.names())
	}
	return e.start(ctx, def, q, params, o)
}

func (e *Engine) start(ctx context.Context, def *definition, q Query, params json.RawMessage, o *StartOptions) (*Job, error) {
	opts := o.withDefaults()
	fail := func(err error) (*Job, error) {
		return nil, fmt.Errorf("mapper: start %s of %q: %w", opts.ID, def.name, err)
	}
	if e.mappers[def.name] != def {
		return fail(fmt.Errorf("%w: it is not in Options.Mappers of this engine", ErrUnknownMapper))
	}
	if err := opts.validate(); err != nil {
		return fail(fmt.Errorf("%w: %w", ErrArguments, err))
	}
	if err := q.validate(); err != nil {
		return fail(fmt.Errorf("%w: %w", ErrArguments, err))
	}
	params, err := def.canonical(params)
	if err != nil {
		return fail(fmt.Errorf("%w: %w", ErrArguments, err))
	}
	query, err := json.Marshal(q)
	if err != nil {
		return fail(err)
	}
	now := time.Now().UTC().Truncate(time.Microsecond)
	job := &jobRecord{
		ID: opts.ID, Mapper: def.name, Query: query, Params: params, State: string(Running),
		PageSize: int64(opts.PageSize), PageTime: int64(opts.PageTime), Workers: int64(opts.Workers), Created: now,
	}
	root := &rangeRecord{
		Job: job.ID, ID: rangeID(job.ID, 0), Open: job.ID, State: pending, PageSize: job.PageSize, Created: now,
	}
	if job.Masks, err = e.honoursMasks(ctx); err != nil {
		return fail(err)
	}
	job, err = e.create(ctx, job, root)
	if err != nil {
		return fail(err)
	}
	if !State(job.State).Ended() {
		if err := e.ensureTask(ctx, job, root.ID); err != nil {
			return fail(err)
		}
	}
	return e.Job(opts.ID), nil
}

// honoursMasks reports whether a property mask keeps what it does not name.
// Google's classic emulator drops it: there entities are written as a whole. That
// emulator is the one that does not implement aggregations.
func (e *Engine) honoursMasks(ctx context.Context) (bool, error) {
	nothing := datastore.NewQuery(jobKind).Limit(1).KeysOnly().NewAggregationQuery().WithCount("n")
	_, err := e.client.RunAggregationQuery(ctx, nothing)
	if status.Code(err) == codes.Unimplemented {
		return false, nil
	}
	return err == nil, err
}

// create writes a job and its root in one transaction, unless the job exists.
// It returns the job as it stands.
func (e *Engine) create(ctx context.Context, job *jobRecord, root *rangeRecord) (*jobRecord, error) {
	var current *jobRecord
	_, err := e.client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
		current = job
		existing := &jobRecord{ID: job.ID}
		switch err := recordError(tx.Get(jobKey(job.ID), existing)); {
		case err == nil:
			current = existing
			return existing.sameArguments(job)
		case !errors.Is(err, datastore.ErrNoSuchEntity):
			return err
		}
		_, err := tx.Mutate(datastore.NewInsert(jobKey(job.ID), job), datastore.NewInsert(root.key(), root))
		return err
	}, datastore.MaxAttempts(transactionAttempts))
	if err == nil || errors.Is(err, ErrOtherArguments) {
		return current, err
	}
	// The commit may have taken place though its answer was lost.
	existing, lookup := e.loadJob(ctx, job.ID)
	if lookup != nil {
		return nil, err
	}
	return existing, existing.sameArguments(job)
}

// ensureTask makes sure that a pending range has a task.
func (e *Engine) ensureTask(ctx context.Context, job *jobRecord, id string) error {
	r, err := e.loadRange(ctx, job.ID, id)
	if err != nil || r.State != pending {
		return err
	}
	task := r.task(job, time.Time{})
	if err := e.queue.Enqueue(ctx, task); !errors.Is(err, tasks.ErrExists) {
		return err
	}
	if exists, err := e.queue.Exists(ctx, task.ID); err != nil || exists {
		return err
	}
	// The task is gone and its name is still taken: it needs another one. If it
	// was done just now, the range is not pending any more.
	stale := r.Generation
	_, err = e.client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
		r = new(rangeRecord)
		if err := recordError(tx.Get(rangeKey(job.ID, id), r)); err != nil {
			return err
		}
		if r.State != pending || r.Generation != stale {
			return nil
		}
		r.Generation++
		_, err := tx.Put(r.key(), r)
		return err
	}, datastore.MaxAttempts(transactionAttempts))
	if err != nil || r.State != pending {
		return err
	}
	if err := e.queue.Enqueue(ctx, r.task(job, time.Time{})); !errors.Is(err, tasks.ErrExists) {
		return err
	}
	return nil
}

// transactionAttempts is how often a transaction that meets another one is
// tried within a task, before the queue's back-off takes over.
const transactionAttempts = 5

func (e *Engine) loadJob(ctx context.Context, id string) (*jobRecord, error) {
	j := &jobRecord{ID: id}
	err := recordError(e.client.Get(ctx, jobKey(id), j))
	if errors.Is(err, datastore.ErrNoSuchEntity) {
		return nil, fmt.Errorf("%w: %s", ErrNoSuchJob, id)
	}
	return j, err
}

func (e *Engine) loadRange(ctx context.Context, job, id string) (*rangeRecord, error) {
	r := new(rangeRecord)
	return r, recordError(e.client.Get(ctx, rangeKey(job, id), r))
}

// recordError returns the error of reading a record of ours. A newer version of
// this package may have written properties that this one does not know.
func recordError(err error) error {
	if mismatch := new(datastore.ErrFieldMismatch); errors.As(err, &mismatch) && mismatch.Reason == noField {
		return nil
	}
	return err
}

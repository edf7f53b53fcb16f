package mapper

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/internal/oldnames"
	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/observe"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// An Overlap says what a tick of a [Schedule] does if one of these jobs prevents its run:
//
//   - the schedule's last run, if it still runs or is paused
//   - any other job that runs the same mapper over one of the same kinds, no matter who started it,
//     unless one of the two has [StartOptions].AllowOverlap
type Overlap string

const (
	// OverlapSkip makes the tick start nothing.
	OverlapSkip Overlap = "skip"
	// OverlapQueue makes the tick wait until nothing prevents its run. Only one tick of a schedule
	// waits: a later tick that has to wait takes its place.
	OverlapQueue Overlap = "queue"
	// OverlapReplace aborts the schedule's last run, and starts the tick's run. Pages of the
	// aborted run that are under way still commit.
	//
	// It never aborts other jobs. While another job prevents the run, the tick waits as with
	// OverlapQueue. The last run is aborted when no other job prevents the tick's run.
	OverlapReplace Overlap = "replace"
)

// A TickOutcome is what happened to a tick of a [Schedule].
type TickOutcome string

// Outcomes of a tick.
const (
	TickStarted TickOutcome = "started" // the tick has started a run
	// TickSkipped means that the tick starts no run. A job prevented it, a later tick was called
	// before it, or a later tick replaced it while it waited.
	TickSkipped TickOutcome = "skipped"
	TickQueued  TickOutcome = "queued"  // the tick waits for the end of a job
	TickRefused TickOutcome = "refused" // the tick waited, and then its start was refused: the log says why
)

// A Schedule runs a mapper regularly, one run after the other. A tick is the request to start the
// run that is due at a given time. The schedule has no clock: let a scheduler, such as Cloud
// Scheduler, cause a call of [Schedule.Tick] for each tick.
//
// A tick has at most one run, even if its call is repeated, or made in several processes at once.
// No run starts while the last one runs or is paused; the [Overlap] says what the tick does then.
// The transaction that records the run's job guarantees both.
//
// A run is an ordinary job of its mapper. So it can't start, be resumed or be retried while another
// job runs the same mapper over one of its kinds ([StartOptions].AllowOverlap). If an earlier run
// is resumed or retried, it becomes the schedule's last run. That is refused with [ErrWrongState]
// while another run is unfinished.
//
// If you deploy another overlap, a tick that already waits keeps waiting. If you deploy another
// mapper, such a tick is refused, because its query and parameters were not meant for that mapper.
type Schedule[P any] struct {
	name    string
	mapper  *Mapper[P]
	overlap Overlap
}

// NewSchedule defines a schedule. Its name has 1 to 70 letters, digits, '-' and '_', and is part of
// the IDs of its jobs. All services on a database share these names. If the last run is in a queue
// that the engine does not have, another service has the schedule. Then a tick is refused with
// [ErrWrongQueue], unless that run has ended and the tick is later than all earlier ones.
//
// List the schedule in [EngineOptions].Schedules: [NewEngine] then checks it,
// and the engine starts the runs of waiting ticks. An engine that does not list the schedule
// accepts its ticks only with [OverlapSkip].
func NewSchedule[P any](name string, m *Mapper[P], overlap Overlap) *Schedule[P] {
	return &Schedule[P]{name, m, overlap}
}

// An AnySchedule is a *[Schedule] with any type of parameters. Other types can't implement it. It
// is the type of the schedules in [EngineOptions].
type AnySchedule interface {
	// Name returns the schedule's name.
	Name() string

	// defined returns an error if the schedule is invalid, or if the engine lacks its mapper.
	defined(e *Engine) error

	// Advance starts the run for which the schedule waits: see [Schedule.Advance].
	Advance(ctx context.Context, e *Engine) error
}

// A TickResult is what [Schedule.Tick] has done.
type TickResult struct {
	Outcome TickOutcome `json:"outcome"`
	// Job is the job that the tick has started. If it has started none, Job is the job that
	// prevented the run. If a later tick was called first, Job is that tick's job. If an erasure
	// has removed that job's ID, Job.ID is a hash of it.
	Job *Job `json:"job"`
}

// Name returns the schedule's name.
func (s *Schedule[P]) Name() string { return s.name }

// JobID returns the ID of the job that a tick at the given time starts. It consists of the
// schedule's name and the time in UTC, such as "nightly-20261127T030000Z".
func (s *Schedule[P]) JobID(at time.Time) string {
	return s.name + "-" + at.UTC().Format(inID)
}

// inID is the format of a tick's time in the ID of its job.
const inID = "20060102T150405Z"

// Tick starts a run of the schedule's mapper. If another job prevents the run, Tick does what the
// [Overlap] says. The argument at is the time when the run was due, in whole seconds, and not the
// time of the call. It may be up to 48 hours in the future. StartOptions.ID must be empty.
//
// A second call for the same time starts nothing, and returns the same outcome. So after an error,
// call Tick again. The outcomes of the last 100 ticks are kept; for an older tick without a job,
// the outcome is [TickSkipped]. Errors are the same as for [Mapper.Start].
func (s *Schedule[P]) Tick(
	ctx context.Context, e *Engine, at time.Time, q Query, params P, o *StartOptions,
) (*TickResult, error) {
	at = at.UTC().Truncate(time.Second)
	fail := func(err error) (*TickResult, error) {
		return nil, fmt.Errorf("mapper: tick %v of schedule %q: %w", at.Format(time.RFC3339), s.name, err)
	}
	t := tick{At: at, Query: q}
	if o != nil {
		t.Options = *o
	}
	// This is also true if the tick waits, and another engine starts its run later.
	t.Options.AllowOverlap = t.Options.AllowOverlap || EngineFromContext(ctx) != nil
	if err := s.check(e, t); err != nil {
		return fail(fmt.Errorf("%w: %w", ErrInvalidArgument, err))
	}
	var err error
	if t.Params, err = function.EncodeParams(params); err != nil {
		return fail(fmt.Errorf("%w: %w", ErrInvalidArgument, err))
	}
	ticked, err := s.tick(apart(ctx), e, t)
	if err != nil {
		return fail(err)
	}
	return ticked, nil
}

// defined returns an error if the schedule is invalid, or if the engine lacks its mapper.
func (s *Schedule[P]) defined(e *Engine) error {
	switch {
	case s == nil:
		return errors.New("the schedule is nil")
	case s.mapper == nil || s.mapper.def.Prepare == nil:
		return errors.New("the mapper is nil, or was not made by a function of this package, such as Update")
	case len(s.name) > 70 || !record.ValidJobID(s.name):
		return fmt.Errorf("the name %q is not 1 to 70 letters, digits, '-' and '_'", s.name)
	case s.overlap != OverlapSkip && s.overlap != OverlapQueue && s.overlap != OverlapReplace:
		return fmt.Errorf("the overlap is %q, want %q, %q or %q", s.overlap, OverlapSkip, OverlapQueue, OverlapReplace)
	case e.mappers[s.mapper.def.Name] == nil:
		return fmt.Errorf("%w %q: have %s", ErrUnknownMapper, s.mapper.def.Name, e.names())
	}
	return nil
}

// check returns an error if the schedule or the arguments of a tick are invalid.
func (s *Schedule[P]) check(e *Engine, t tick) error {
	if e == nil || e.client == nil {
		return errNoEngine
	}
	if err := s.defined(e); err != nil {
		return err
	}
	switch {
	case s.overlap != OverlapSkip && !slices.Contains(e.schedules, s.name):
		return fmt.Errorf("the schedule is not among the engine's EngineOptions.Schedules, and nothing would start a "+
			"tick that waits, as it may with the overlap %q", s.overlap)
	case t.At.Year() <= 1: // the time is zero
		return errors.New("the tick has no time")
	case time.Until(t.At) > mostAhead:
		return fmt.Errorf("the tick is at %v, which is more than %v from now: all that come before it would be skipped",
			t.At.Format(time.RFC3339), mostAhead)
	case t.Options.ID != "":
		return setting.Errorf("StartOptions.ID is %q, but a run has the ID of its tick: %s", t.Options.ID,
			s.JobID(t.At))
	}
	return nil
}

// mostAhead is how far in the future a tick may be.
const mostAhead = 48 * time.Hour

// A tick is a time at which a schedule's run is due, with the arguments of the run. If the run has
// to wait, the tick is stored as a [storedTick].
type tick struct {
	At      time.Time       `json:"at"`
	Query   Query           `json:"query"`
	Params  json.RawMessage `json:"params"`
	Options StartOptions    `json:"options"`

	waited bool // whether the tick has waited, and its run is started only now
}

// A storedTick is a waiting tick as it is stored, in JSON.
type storedTick struct {
	tick
	Mapper  string      `json:"mapper,omitempty"` // the tick's mapper; older builds store none
	Options tickOptions `json:"options"`
}

// tickOptions are the settings in a stored tick. They have two sets of names in the JSON: the
// current names, and the old names that processes of an older build read.
type tickOptions struct {
	StartOptions
	oldnames.Start
}

// newOptions returns settings with both sets of names.
func newOptions(o StartOptions) tickOptions {
	return tickOptions{o, oldnames.Start{Rehearse: o.DryRun, Beside: o.AllowOverlap, Workers: o.ExpectedWorkers,
		Timeout: o.EntityTimeout}}
}

// current returns the settings, whichever names they were stored under.
func (o tickOptions) current() StartOptions {
	now, old := o.StartOptions, o.Start
	now.DryRun, now.AllowOverlap = now.DryRun || old.Rehearse, now.AllowOverlap || old.Beside
	now.ExpectedWorkers = cmp.Or(now.ExpectedWorkers, old.Workers)
	now.EntityTimeout = cmp.Or(now.EntityTimeout, old.Timeout)
	return now
}

// turns returns the store's access to the schedule's record. The argument waited says that the tick
// has waited. If start is not nil, its mapper and kinds determine which other jobs prevent the run.
func (s *Schedule[P]) turns(e *Engine, start *starting, waited bool) store.Turns {
	t := store.Turns{Store: store.New(e.client), Name: s.name, RunID: s.JobID, Jumps: s.overlap == OverlapReplace,
		Queues: e.queues.owners(), Waited: waited}
	if start != nil && !start.opts.AllowOverlap {
		t.Mapper, t.Kinds = start.def.Name, start.query.AllKinds()
	}
	return t
}

// decides is how many times a tick checks whether its run may start. It checks again if the jobs
// that prevent the run have changed meanwhile.
const decides = 5

// tick starts the run of a tick. If another job prevents the run, it does what the schedule's
// [Overlap] says.
func (s *Schedule[P]) tick(ctx context.Context, e *Engine, t tick) (_ *TickResult, failed error) {
	t.Options.ID = s.JobID(t.At)
	start, err := e.prepare(&s.mapper.def, t.Query, t.Params, &t.Options)
	if err != nil {
		return nil, err
	}
	ctx, ended := start.traced(ctx)
	defer func() { ended(failed) }()
	turns := s.turns(e, start, t.waited)
	for range decides {
		var waits store.WaitsError
		err = turns.May(ctx, t.At) // before any task is enqueued
		replaces := errors.As(err, &waits) && s.replaces(waits)
		if waits.Waits && !replaces { // the arguments were checked before the tick waited
			return &TickResult{TickQueued, e.Job(waits.Other())}, nil
		}
		if err == nil || s.overlap != OverlapSkip {
			// Before the tick waits, or another job is aborted for it, check that the run could
			// start.
			if err := s.ready(ctx, start, err); err != nil {
				return nil, err
			}
		}
		if err == nil {
			var job *Job
			if job, err = s.run(ctx, e, start, t); err == nil {
				return &TickResult{TickStarted, job}, nil
			}
			waits = store.WaitsError{}
		}
		switch {
		case errors.As(err, new(store.HeldError)): // another job was started meanwhile
			continue
		case !errors.As(err, &waits):
			return nil, err
		case waits.Became != "":
			return s.decided(ctx, e, waits)
		case waits.First || replaces:
			if err := s.makeWay(ctx, e, turns, t.At, waits); err != nil {
				return nil, err
			}
			continue
		}
		t.Options.Queue = start.on.queue.Name() // so that no other service can start the waiting run
		decided, err := s.wait(ctx, turns, t)
		if err != nil {
			return nil, err
		}
		if decided.Became != "" {
			return s.decided(ctx, e, decided)
		}
	}
	return nil, fmt.Errorf("other jobs start and end too often to decide this tick, so call again: %w", err)
}

// decided returns what was decided earlier about a tick. If the tick has started a run, it first
// makes sure that the run has tasks. A call of Cloud Tasks may have failed after the start, or the
// process may have died.
func (s *Schedule[P]) decided(ctx context.Context, e *Engine, past store.WaitsError) (*TickResult, error) {
	outcome := TickOutcome(past.Became)
	if outcome == TickStarted {
		if err := e.ensureTasks(ctx, past.Job); err != nil {
			return nil, err
		}
	}
	return &TickResult{outcome, e.Job(past.Job)}, nil
}

// ensureTasks makes sure that a run has tasks, if it was just started.
func (e *Engine) ensureTasks(ctx context.Context, run string) error {
	job, err := e.store().LoadJob(ctx, record.Ref{ID: run})
	if err == nil {
		err = e.queues.of(job.Queue).jobs.Asked().EnsureTasks(ctx, job)
	}
	if err != nil && !errors.Is(err, ErrNoSuchJob) {
		return fmt.Errorf("give the run %s tasks: %w", run, err)
	}
	return nil
}

// replaces reports whether a tick may abort the job that prevents its run. With [OverlapReplace] it
// may abort the schedule's last run, but no other job.
func (s *Schedule[P]) replaces(waits store.WaitsError) bool {
	return s.overlap == OverlapReplace && waits.Run.ID != "" && waits.Held.ID == ""
}

// makeWay removes what prevents a tick's run. If an earlier tick waits, makeWay starts that tick's
// run. If no earlier tick waits, makeWay aborts the schedule's last run. If the earlier tick waits
// for a queue that this engine does not have, its run is refused, because that queue may no longer
// exist. The parameter at is the time of the tick, and waits says what prevents its run.
func (s *Schedule[P]) makeWay(ctx context.Context, e *Engine, turns store.Turns, at time.Time,
	waits store.WaitsError,
) error {
	if waits.First {
		why := s.Advance(ctx, e)
		if !errors.Is(why, ErrWrongQueue) {
			return why
		}
		r, err := turns.Read(ctx)
		if err != nil {
			return err
		}
		return s.refuse(ctx, e, turns, r.Waits, at, why)
	}
	if err := s.replace(ctx, e, turns, at, waits.Run); err != nil && !errors.Is(err, ErrWrongState) {
		return fmt.Errorf("replace job %s: %w", waits.Run.ID, err)
	}
	return nil
}

// wait records that a tick waits, together with the arguments of its run. With [OverlapSkip], it
// records that the tick was skipped. If another outcome of the tick is already recorded, the result
// decided has that outcome.
func (s *Schedule[P]) wait(ctx context.Context, turns store.Turns, t tick) (decided store.WaitsError, err error) {
	var what []byte
	if s.overlap != OverlapSkip {
		if what, err = json.Marshal(storedTick{t, s.mapper.def.Name, newOptions(t.Options)}); err != nil {
			return decided, err
		}
	}
	return turns.Wait(ctx, t.At, what)
}

// ready reads from the database and the queue what the run needs, unless the parameter start
// already has it. The argument may is the store's answer to whether the run may start. If this
// answer is final, ready reads nothing.
func (s *Schedule[P]) ready(ctx context.Context, start *starting, may error) error {
	var waits store.WaitsError
	if start.created != nil || may != nil && (!errors.As(may, &waits) || waits.Became != "") {
		return nil
	}
	return start.findOut(ctx)
}

// replace aborts the schedule's last run, so that the run of another tick can start. The argument
// run is the last run, and at is the time of the other tick. The same transaction checks that
// nothing else prevents the other tick's run. If the caller has given no reason, the job's history
// names the tick as the reason.
func (s *Schedule[P]) replace(ctx context.Context, e *Engine, turns store.Turns, at time.Time, run record.Ref) error {
	if observe.Why(ctx) == "" {
		ctx = WithReason(ctx, "replaced by the run of "+s.Name()+" that was due at "+at.UTC().Format(time.RFC3339))
	}
	job := &Job{ID: run.ID, incarnation: run.Incarnation, engine: e}
	jobs := *job.control(ctx)
	jobs.Store = store.When(jobs.Store, func(tx *datastore.Transaction) error { return turns.Replaces(tx, at, run) })
	return jobs.Abort(ctx, job.ref())
}

// errTaken says that a tick can never start a run, because another job has the run's ID.
var errTaken = fmt.Errorf("%w: the schedule has not started the job that has the ID of the run", ErrWrongState)

// run starts the job of a tick. The same transaction records the tick's outcome.
func (s *Schedule[P]) run(ctx context.Context, e *Engine, start *starting, t tick) (*Job, error) {
	turns := s.turns(e, start, t.waited)
	began := &turn{s.name, func(tx *datastore.Transaction) error { return turns.Begin(tx, t.At, t.Options.ID) }}
	job, err := start.run(ctx, began)
	if err == nil && job.incarnation != start.created.Incarnation { // a job with this ID existed already
		if err = turns.May(ctx, t.At); err == nil {
			err = fmt.Errorf("job %s: %w", t.Options.ID, errTaken)
		}
	}
	return job, err
}

// hopeless are the errors after which a waiting tick will never be able to start a run.
var hopeless = []error{ErrInvalidArgument, ErrIDTaken, ErrWrongQueue, errTaken}

// Advance starts the run of the waiting tick, if there is one and nothing prevents it any more.
// Engines with the schedule in [EngineOptions].Schedules call it whenever any job stops running in
// their process, and in [Engine.ReviveJobs]. So you need it only after another process has ended a
// job.
//
// If the run's arguments are refused, its ID belongs to another job, or the schedule has another
// mapper by now, the tick's outcome is [TickRefused], and the log says why.
func (s *Schedule[P]) Advance(ctx context.Context, e *Engine) error {
	fail := func(err error) error { return fmt.Errorf("mapper: advance schedule %q: %w", s.name, err) }
	if e == nil || e.client == nil {
		return fail(errNoEngine)
	}
	turns := s.turns(e, nil, true)
	r, err := turns.Read(ctx)
	if err != nil {
		return fail(err)
	}
	if len(r.Queued) == 0 {
		if err := e.ensureTasks(ctx, r.Run); err != nil { // an earlier call may have started it, and then failed
			return fail(err)
		}
		return nil
	}
	var stored storedTick
	d := json.NewDecoder(bytes.NewReader(r.Queued))
	d.DisallowUnknownFields() // without such a field, the run could process the wrong entities
	if err := d.Decode(&stored); err != nil {
		return fail(fmt.Errorf("the waiting tick can't be read: %w: perhaps a newer build has stored it: deploy that "+
			"build, or delete the entity %s %q once the schedule's last run has ended, to give up the tick", err,
			record.ScheduleKind, s.name))
	}
	t := stored.tick
	t.At, t.Options, t.waited = t.At.UTC(), stored.Options.current(), true
	if _, err := e.queues.forStart(&s.mapper.def, &t.Options); err != nil {
		return fail(fmt.Errorf("%w: %w", ErrWrongQueue, err)) // another engine may have that queue
	}
	if err = s.of(stored.Mapper); err == nil {
		_, err = s.tick(apart(ctx), e, t)
	}
	if why := err; slices.ContainsFunc(hopeless, func(e error) bool { return errors.Is(why, e) }) {
		err = s.refuse(ctx, e, turns, t.At, t.At, why)
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// refuse records that the run of a waiting tick can't start, and logs why. The argument waiting is
// the time of that tick. The argument at is the time of the tick that is being handled, which is
// the same or later.
func (s *Schedule[P]) refuse(
	ctx context.Context, e *Engine, turns store.Turns, waiting, at time.Time, why error,
) error {
	refused, err := turns.Refuse(ctx, waiting, at)
	if refused {
		e.log.LogAttrs(ctx, slog.LevelWarn, "a tick that has waited can't start a run",
			slog.String("schedule", s.name), slog.Time("tick", waiting), slog.Any("error", why))
	}
	return err
}

// of returns an error if a waiting tick was called for another mapper than the schedule has now.
// The tick's query and parameters belong to the old mapper.
func (s *Schedule[P]) of(mapper string) error {
	if mapper == "" || mapper == s.mapper.def.Name {
		return nil
	}
	return fmt.Errorf("%w: the tick was called for the mapper %q, and the schedule now has %q", ErrInvalidArgument,
		mapper, s.mapper.def.Name)
}

// apart returns a context in which [EngineFromContext] finds no engine. A task that ends a job may
// also start the run of a waiting tick. This start must not be treated as one that the job's
// finalizer makes.
func apart(ctx context.Context) context.Context {
	return context.WithValue(ctx, engineKey{}, (*Engine)(nil))
}

// advance calls [Schedule.Advance] for the schedules that have a waiting tick. The schedule whose
// last run is oldest comes first. Otherwise a schedule that always has a waiting tick could prevent
// the runs of another schedule forever.
func advance(ctx context.Context, e *Engine, all []AnySchedule) error {
	var failed []error
	var waiting []AnySchedule
	last := make(map[AnySchedule]time.Time)
	for _, s := range all {
		var r *record.Schedule
		err := twice(ctx, func() (err error) {
			r, err = store.Turns{Store: e.store(), Name: s.Name()}.Read(ctx)
			return err
		})
		if err != nil {
			failed = append(failed, fmt.Errorf("mapper: advance schedule %q: %w", s.Name(), err))
		} else if len(r.Queued) > 0 {
			waiting = append(waiting, s)
			// if there was no run, the time is zero
			last[s], _ = time.Parse(inID, strings.TrimPrefix(r.Run, s.Name()+"-"))
		}
	}
	slices.SortStableFunc(waiting, func(a, b AnySchedule) int { return last[a].Compare(last[b]) })
	for _, s := range waiting {
		failed = append(failed, twice(ctx, func() error { return s.Advance(ctx, e) }))
	}
	return errors.Join(failed...)
}

// twice calls do. If the database or the queue refuses a call, it calls do once more after a
// second. Otherwise a waiting tick would wait for the next call of ReviveJobs.
func twice(ctx context.Context, do func() error) error {
	err := do()
	if code := status.Code(err); code == codes.OK || code == codes.Unknown && !fault.Contended(err) {
		return err
	}
	select {
	case <-ctx.Done():
		return err
	case <-time.After(time.Second):
		return do()
	}
}

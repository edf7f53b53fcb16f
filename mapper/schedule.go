package mapper

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/oldnames"
	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// An Overlap says what becomes of a tick of a [Schedule] while a job is in its way. That is the
// schedule's last run while it runs or is paused. It is also any other job, started by hand or by
// another schedule, that runs the same mapper over one of the kinds; a paused one is in nobody's
// way, as for [Mapper.Start].
type Overlap string

const (
	// OverlapSkip has the tick start nothing.
	OverlapSkip Overlap = "skip"
	// OverlapQueue has it wait until nothing is in its way, and start a run then, before any later
	// tick does. Of several that come meanwhile, the last one waits.
	OverlapQueue Overlap = "queue"
	// OverlapReplace has the schedule's last run be aborted, and the tick start another one, if
	// that can start. Pages of the first that are under way come to their end. No other job is ever
	// aborted: while one is in the way the tick waits as with OverlapQueue, and the last run, if it
	// is paused meanwhile, is aborted when the tick can start.
	OverlapReplace Overlap = "replace"
)

// A TickOutcome is what becomes of a tick.
type TickOutcome string

// What becomes of a tick.
const (
	TickStarted TickOutcome = "started" // it has started a run
	// it starts nothing: a job was in its way, or a later tick came first or took its place
	TickSkipped TickOutcome = "skipped"
	TickQueued  TickOutcome = "queued"  // it waits for the end of a job
	TickRefused TickOutcome = "refused" // it has waited, and could not start a run then: the log says why
)

// A Schedule has a mapper run at times, with one run after the other. Whatever calls it, such as
// Cloud Scheduler, may call several times for a tick, and several processes may be called at once:
// a tick is one run, and no run starts while the last one is unfinished. Both are decided in the
// transaction that records the run's job. A run that had ended, and is resumed or retried, is the
// last one from then on; while another is unfinished that is refused, by ErrState.
//
// A run also counts among the jobs of its mapper as any other one does: none starts, and none is
// resumed or retried, while another job runs the mapper over one of its kinds, unless one of them
// may run beside others ([StartOptions].AllowOverlap). A tick that waits goes on waiting if a
// deployment changes the overlap.
type Schedule[P any] struct {
	name    string
	mapper  *Mapper[P]
	overlap Overlap
}

// NewSchedule defines a schedule. Its name is part of the IDs of its jobs: 1 to 70 letters, digits,
// '-' and '_'. List it in [EngineOptions].Schedules: [NewEngine] refuses one that is wrong, and an
// engine that does not have a schedule whose ticks may wait refuses these.
func NewSchedule[P any](name string, m *Mapper[P], overlap Overlap) *Schedule[P] {
	return &Schedule[P]{name, m, overlap}
}

// A AnySchedule is a [Schedule] of any parameters.
type AnySchedule interface {
	// Name returns the schedule's name.
	Name() string

	// defined returns what is wrong with the schedule in an engine.
	defined(e *Engine) error

	// Advance starts the run of a tick that waits, if nothing is in its way any more.
	Advance(ctx context.Context, e *Engine) error
}

// A TickResult is what became of a tick.
type TickResult struct {
	Outcome TickOutcome
	// that the tick has started; otherwise the one that was, or is, in its way, or was started
	// last; of one that an erasure has taken out, a hash
	Job *Job
}

// Name returns the schedule's name.
func (s *Schedule[P]) Name() string { return s.name }

// JobID returns the ID of the job of a tick.
func (s *Schedule[P]) JobID(at time.Time) string {
	return s.name + "-" + at.UTC().Format("20060102T150405Z")
}

// Tick starts a run of the schedule's mapper, for a time that the caller gives, in seconds: that at
// which it was due, and not that at which the call came. A second call for the same time does no
// more, and says what became of it; so a caller that gets an error calls again. StartOptions.ID has
// to be empty. What became of the last 100 ticks is remembered; of older ones, those that have no
// job were skipped.
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
	// also if it waits, and somebody else starts it
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

// defined returns what is wrong with the schedule in an engine.
func (s *Schedule[P]) defined(e *Engine) error {
	switch {
	case s == nil:
		return errors.New("the schedule is nil")
	case s.mapper == nil || s.mapper.def.Prepare == nil:
		return errors.New("the mapper is nil, or was not made by Update, Visit or Collect")
	case len(s.name) > 70 || !record.ValidJobID(s.name):
		return fmt.Errorf("the name %q is not 1 to 70 letters, digits, '-' and '_'", s.name)
	case s.overlap != OverlapSkip && s.overlap != OverlapQueue && s.overlap != OverlapReplace:
		return fmt.Errorf("the overlap is %q, want %q, %q or %q", s.overlap, OverlapSkip, OverlapQueue, OverlapReplace)
	case e.mappers[s.mapper.def.Name] == nil:
		return fmt.Errorf("%w %q: have %s", ErrUnknownMapper, s.mapper.def.Name, e.names())
	}
	return nil
}

// check returns what is wrong with a schedule, or with a tick.
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
	case t.At.IsZero() || t.At.Year() < 1:
		return errors.New("the tick has no time")
	case time.Until(t.At) > mostAhead:
		return fmt.Errorf("the tick is at %v, which is more than %v from now: all that come before it would be skipped",
			t.At.Format(time.RFC3339), mostAhead)
	case t.Options.ID != "":
		return setting.Errorf("StartOptions.ID is %q, and the ID of a run is that of its tick: %s", t.Options.ID,
			s.JobID(t.At))
	}
	return nil
}

// mostAhead is how far in the future a tick may be.
const mostAhead = 48 * time.Hour

// A tick is what a run is started with. One that waits is stored as the JSON of a [storedTick].
type tick struct {
	At      time.Time       `json:"at"`
	Query   Query           `json:"query"`
	Params  json.RawMessage `json:"params"`
	Options StartOptions    `json:"options"`
}

// A storedTick is a tick that waits.
type storedTick struct {
	tick
	Options tickOptions `json:"options"`
}

// tickOptions are settings that are stored under the names of before, too, for processes of a build
// that knows no others.
type tickOptions struct {
	StartOptions
	oldnames.Start
}

// newOptions returns settings in both forms.
func newOptions(o StartOptions) tickOptions {
	return tickOptions{o, oldnames.Start{Rehearse: o.DryRun, Beside: o.AllowOverlap, Workers: o.ExpectedWorkers,
		Timeout: o.EntityTimeout}}
}

// current returns the settings, of whichever form they are.
func (o tickOptions) current() StartOptions {
	now, old := o.StartOptions, o.Start
	now.DryRun, now.AllowOverlap = now.DryRun || old.Rehearse, now.AllowOverlap || old.Beside
	now.ExpectedWorkers = cmp.Or(now.ExpectedWorkers, old.Workers)
	now.EntityTimeout = cmp.Or(now.EntityTimeout, old.Timeout)
	return now
}

// turns are those of the schedule's runs, of which a tick would start one.
func (s *Schedule[P]) turns(e *Engine, start *starting) store.Turns {
	t := store.Turns{Store: store.New(e.client), Name: s.name, RunID: s.JobID, Jumps: s.overlap == OverlapReplace}
	if start != nil && !start.opts.AllowOverlap {
		t.Mapper, t.Kinds = start.def.Name, start.query.AllKinds()
	}
	return t
}

// decides is how often a tick is decided about anew, because the job that is in its way has ended
// meanwhile.
const decides = 5

// tick starts the run of a tick, or does what the overlap says.
func (s *Schedule[P]) tick(ctx context.Context, e *Engine, t tick) (_ *TickResult, failed error) {
	t.Options.ID = s.JobID(t.At)
	start, err := e.prepare(&s.mapper.def, t.Query, t.Params, &t.Options)
	if err != nil {
		return nil, err
	}
	ctx, ended := start.traced(ctx)
	defer func() { ended(failed) }()
	turns := s.turns(e, start)
	for range decides {
		var waits store.WaitsError
		err = turns.May(ctx, t.At) // before anything is enqueued
		replaces := errors.As(err, &waits) && s.replaces(waits)
		if waits.Waits && !replaces { // it was able to start before it waited
			return &TickResult{TickQueued, e.Job(waits.Other())}, nil
		}
		if err == nil || s.overlap != OverlapSkip {
			// Before anything waits for this run, or is aborted for it, it has to be able to start.
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
		case errors.As(err, new(store.HeldError)): // somebody was faster
			continue
		case !errors.As(err, &waits):
			return nil, err
		case waits.Became != "":
			return &TickResult{TickOutcome(waits.Became), e.Job(waits.Job)}, nil
		case waits.First || replaces:
			if err := s.makeWay(ctx, e, turns, t.At, waits); err != nil {
				return nil, err
			}
			continue
		}
		decided, err := s.wait(ctx, turns, t)
		if err != nil {
			return nil, err
		}
		if decided.Became != "" {
			return &TickResult{TickOutcome(decided.Became), e.Job(decided.Job)}, nil
		}
	}
	return nil, fmt.Errorf("jobs begin and end all the time: %w", err)
}

// replaces reports whether a tick's run replaces what is in its way: only the last run is.
func (s *Schedule[P]) replaces(waits store.WaitsError) bool {
	return s.overlap == OverlapReplace && waits.Run.ID != "" && waits.Held.ID == ""
}

// makeWay has the tick that comes before one start its run, or aborts the run that it replaces.
func (s *Schedule[P]) makeWay(ctx context.Context, e *Engine, turns store.Turns, at time.Time,
	waits store.WaitsError,
) error {
	if waits.First {
		return s.Advance(ctx, e)
	}
	if err := s.replace(ctx, e, turns, at, waits.Run); err != nil && !errors.Is(err, ErrWrongState) {
		return fmt.Errorf("replace job %s: %w", waits.Run.ID, err)
	}
	return nil
}

// wait has a tick wait for its turn, with what it takes to start its run then, or be skipped.
func (s *Schedule[P]) wait(ctx context.Context, turns store.Turns, t tick) (decided store.WaitsError, err error) {
	var what []byte
	if s.overlap != OverlapSkip {
		if what, err = json.Marshal(storedTick{t, newOptions(t.Options)}); err != nil {
			return decided, err
		}
	}
	return turns.Wait(ctx, t.At, what)
}

// ready finds out what a run needs, unless it was found out before, or the tick starts none.
func (s *Schedule[P]) ready(ctx context.Context, start *starting, may error) error {
	var waits store.WaitsError
	if start.created != nil || may != nil && (!errors.As(may, &waits) || waits.Became != "") {
		return nil
	}
	return start.findOut(ctx)
}

// replace aborts the last run for a tick: only while it is all that is in the tick's way, as the
// transaction that aborts it finds.
func (s *Schedule[P]) replace(ctx context.Context, e *Engine, turns store.Turns, at time.Time, run record.Ref) error {
	job := &Job{ID: run.ID, incarnation: run.Incarnation, engine: e}
	jobs := *job.control(ctx)
	jobs.Store = store.When(jobs.Store, func(tx *datastore.Transaction) error { return turns.Replaces(tx, at, run) })
	return jobs.Abort(ctx, job.ref())
}

// errTaken says that a tick can never start a run, as its ID is another job's.
var errTaken = fmt.Errorf("%w: the schedule has not started the job that has the ID of the run", ErrWrongState)

// run starts the run of a tick.
func (s *Schedule[P]) run(ctx context.Context, e *Engine, start *starting, t tick) (*Job, error) {
	turns := s.turns(e, start)
	began := &turn{s.name, func(tx *datastore.Transaction) error { return turns.Begin(tx, t.At, t.Options.ID) }}
	job, err := start.run(ctx, began)
	if err == nil && job.incarnation != start.created.Incarnation { // there was one of its ID
		if err = turns.May(ctx, t.At); err == nil {
			err = fmt.Errorf("job %s: %w", t.Options.ID, errTaken)
		}
	}
	return job, err
}

// hopeless are the errors with which a tick that waits can never start a run.
var hopeless = []error{ErrInvalidArgument, ErrIDTaken, ErrWrongQueue, errTaken}

// Advance starts the run of a tick that waits, if nothing is in its way any more. Engines whose
// EngineOptions.Schedules have the schedule do so whenever a job of any mapper stops running in
// their process, and in [Engine.ReviveJobs]. A tick that can't start a run any more, because its
// arguments are refused or its ID is another job's, is refused, and the log says why.
func (s *Schedule[P]) Advance(ctx context.Context, e *Engine) error {
	fail := func(err error) error { return fmt.Errorf("mapper: advance schedule %q: %w", s.name, err) }
	if e == nil || e.client == nil {
		return fail(errNoEngine)
	}
	turns := s.turns(e, nil)
	r, err := turns.Read(ctx)
	if err != nil {
		return fail(err)
	}
	if len(r.Queued) == 0 {
		return nil
	}
	var stored storedTick
	if err := json.Unmarshal(r.Queued, &stored); err != nil {
		return fail(err)
	}
	t := stored.tick
	t.At, t.Options = t.At.UTC(), stored.Options.current()
	if _, err := e.queues.forStart(&s.mapper.def, &t.Options); err != nil {
		return fail(err) // another engine may have the queue
	}
	_, err = s.tick(apart(ctx), e, t)
	if why := err; slices.ContainsFunc(hopeless, func(e error) bool { return errors.Is(why, e) }) {
		var refused bool
		if refused, err = turns.Refuse(ctx, t.At); refused {
			e.log.LogAttrs(ctx, slog.LevelWarn, "a tick that has waited can't start a run",
				slog.String("schedule", s.name), slog.Time("tick", t.At), slog.Any("error", why))
		}
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// apart returns the context of a start that no function and no finalizer asks for: a tick may be
// advanced in the task that ends a job.
func apart(ctx context.Context) context.Context {
	return context.WithValue(ctx, engineKey{}, (*Engine)(nil))
}

// advance advances schedules.
func advance(ctx context.Context, e *Engine, all []AnySchedule) error {
	var failed []error
	for _, s := range all {
		failed = append(failed, s.Advance(ctx, e))
	}
	return errors.Join(failed...)
}

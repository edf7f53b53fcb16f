package mapper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// An Overlap says what becomes of a tick of a [Schedule] while its last run is unfinished: while its job runs or is paused.
type Overlap string

const (
	// SkipTick has the tick start nothing.
	SkipTick Overlap = "skip"
	// QueueTick has it wait for the end of the run, and start one then, before any later tick does. Of several that come while
	// a run is unfinished, the last one waits.
	QueueTick Overlap = "queue"
	// ReplaceRun has the run be aborted, and the tick start another one, if that can start. Pages of the first that are under way come
	// to their end.
	ReplaceRun Overlap = "replace"
)

// What becomes of a tick.
const (
	TickStarted = record.TickStarted // it has started a run
	TickSkipped = record.TickSkipped // it starts nothing: a run is unfinished, or another tick is later
	TickQueued  = record.TickQueued  // it waits for the end of a run
	TickRefused = record.TickRefused // it has waited, and could not start a run then: the log says why
)

// A Schedule has a mapper run at times, with one run after the other. Whatever calls it, such as Cloud Scheduler, may call several
// times for a tick, and several processes may be called at once: a tick is one run, and no run starts while the last one is
// unfinished. Both are decided in the transaction that records the run's job. A run that had ended, and is resumed or retried, is the last
// one from then on; while another is unfinished that is refused, by ErrState.
type Schedule[P any] struct {
	name    string
	mapper  *Mapper[P]
	overlap Overlap
}

// NewSchedule defines a schedule. Its name is part of the IDs of its jobs: 1 to 70 letters, digits, '-' and '_'.
func NewSchedule[P any](name string, m *Mapper[P], overlap Overlap) *Schedule[P] {
	return &Schedule[P]{name, m, overlap}
}

// A ScheduleDefinition is a [Schedule] of any parameters.
type ScheduleDefinition interface {
	// Advance starts the run of a tick that waits, if the one before has ended.
	Advance(ctx context.Context, e *Engine) error
}

// A Ticked is what became of a tick.
type Ticked struct {
	Outcome string // TickStarted, TickSkipped or TickQueued
	Job     *Job   // that the tick has started; otherwise the one that is unfinished, or was started last
}

// RunID returns the ID of the job of a tick.
func (s *Schedule[P]) RunID(at time.Time) string {
	return s.name + "-" + at.UTC().Format("20060102T150405Z")
}

// Tick starts a run of the schedule's mapper, for a time that the caller gives, in seconds: that at which it was due, and not that at
// which the call came. A second call for the same time does no more, and says what became of it; so a caller that gets an error
// calls again. StartOptions.ID has to be empty.
func (s *Schedule[P]) Tick(ctx context.Context, e *Engine, at time.Time, q Query, params P, o *StartOptions) (*Ticked, error) {
	at = at.UTC().Truncate(time.Second)
	fail := func(err error) (*Ticked, error) {
		return nil, fmt.Errorf("mapper: tick %v of schedule %q: %w", at.Format(time.RFC3339), s.name, err)
	}
	t := tick{At: at, Query: q}
	if o != nil {
		t.Options = *o
	}
	if err := s.check(e, t); err != nil {
		return fail(fmt.Errorf("%w: %w", ErrArguments, err))
	}
	var err error
	if t.Params, err = function.EncodeParams(params); err != nil {
		return fail(fmt.Errorf("%w: %w", ErrArguments, err))
	}
	ticked, err := s.tick(ctx, e, t)
	if err != nil {
		return fail(err)
	}
	return ticked, nil
}

// check returns what is wrong with a schedule, or with a tick.
func (s *Schedule[P]) check(e *Engine, t tick) error {
	switch {
	case e == nil || e.client == nil:
		return errNoEngine
	case s.mapper == nil || s.mapper.def.Prepare == nil:
		return errors.New("the mapper is nil, or was not made by Update, Visit or Collect")
	case len(s.name) > 70 || !record.ValidJobID(s.name):
		return fmt.Errorf("the name %q is not 1 to 70 letters, digits, '-' and '_'", s.name)
	case s.overlap != SkipTick && s.overlap != QueueTick && s.overlap != ReplaceRun:
		return fmt.Errorf("the overlap is %q, want %q, %q or %q", s.overlap, SkipTick, QueueTick, ReplaceRun)
	case t.At.IsZero() || t.At.Year() < 1:
		return errors.New("the tick has no time")
	case time.Until(t.At) > mostAhead:
		return fmt.Errorf("the tick is at %v, which is more than %v from now: all that come before it would be skipped", t.At.Format(time.RFC3339), mostAhead)
	case t.Options.ID != "":
		return fmt.Errorf("StartOptions.ID is %q, and the ID of a run is that of its tick: %s", t.Options.ID, s.RunID(t.At))
	}
	return nil
}

// mostAhead is how far in the future a tick may be.
const mostAhead = 48 * time.Hour

// A tick is what a run is started with. One that waits is kept as JSON.
type tick struct {
	At      time.Time       `json:"at"`
	Query   Query           `json:"query"`
	Params  json.RawMessage `json:"params"`
	Options StartOptions    `json:"options"`
}

// turns are those of the schedule's runs.
func (s *Schedule[P]) turns(e *Engine) store.Turns {
	return store.Turns{Store: store.New(e.client), Name: s.name, Jumps: s.overlap == ReplaceRun}
}

// decides is how often a tick is decided about anew, because the run that it waits for has ended meanwhile.
const decides = 5

// tick starts the run of a tick, or does what the overlap says.
func (s *Schedule[P]) tick(ctx context.Context, e *Engine, t tick) (_ *Ticked, failed error) {
	t.Options.ID = s.RunID(t.At)
	start, err := e.prepare(&s.mapper.def, t.Query, t.Params, &t.Options)
	if err != nil {
		return nil, err
	}
	ctx, ended := start.traced(ctx)
	defer func() { ended(failed) }()
	turns := s.turns(e)
	for range decides {
		var waits store.WaitsError
		err = turns.May(ctx, t.At) // before anything is enqueued
		if err == nil || s.overlap != SkipTick {
			// Before anything waits for this run, or is aborted for it, it has to be able to start.
			if err := s.ready(ctx, start, err); err != nil {
				return nil, err
			}
		}
		if err == nil {
			var job *Job
			if job, err = s.run(ctx, e, start, t); err == nil {
				return &Ticked{TickStarted, job}, nil
			}
		}
		switch {
		case !errors.As(err, &waits):
			return nil, err
		case waits.Became != "":
			return &Ticked{waits.Became, e.Job(waits.Run)}, nil
		case waits.First:
			if err := s.Advance(ctx, e); err != nil {
				return nil, err
			}
			continue
		case s.overlap == ReplaceRun:
			if err := e.Job(waits.Run).Abort(ctx); err != nil && !errors.Is(err, ErrState) {
				return nil, fmt.Errorf("replace job %s: %w", waits.Run, err)
			}
			continue
		}
		var what []byte
		if s.overlap == QueueTick {
			if what, err = json.Marshal(t); err != nil {
				return nil, err
			}
		}
		decided, err := turns.Wait(ctx, t.At, what)
		if decided != "" || err != nil {
			return &Ticked{decided, e.Job(waits.Run)}, err
		}
	}
	return nil, fmt.Errorf("runs begin and end all the time: %w", err)
}

// ready finds out what a run needs, unless it was found out before, or the tick starts none.
func (s *Schedule[P]) ready(ctx context.Context, start *starting, may error) error {
	var waits store.WaitsError
	if start.created != nil || may != nil && (!errors.As(may, &waits) || waits.Became != "") {
		return nil
	}
	return start.findOut(ctx)
}

// run starts the run of a tick.
func (s *Schedule[P]) run(ctx context.Context, e *Engine, start *starting, t tick) (*Job, error) {
	turns := s.turns(e)
	job, err := start.run(ctx, &turn{s.name, func(tx *datastore.Transaction) error { return turns.Begin(tx, t.At, t.Options.ID) }})
	if err == nil && job.incarnation != start.created.Incarnation { // there was one of its ID
		if err = turns.May(ctx, t.At); err == nil {
			err = fmt.Errorf("%w: there is a job %s that the schedule has not started", ErrState, t.Options.ID)
		}
	}
	return job, err
}

// Advance starts the run of a tick that waits, if the run before it has ended. Engines whose Options.Schedules have the schedule do so
// when a job ends in their process, and in [Engine.Revive].
func (s *Schedule[P]) Advance(ctx context.Context, e *Engine) error {
	fail := func(err error) error { return fmt.Errorf("mapper: advance schedule %q: %w", s.name, err) }
	if e == nil || e.client == nil {
		return fail(errNoEngine)
	}
	turns := s.turns(e)
	r, err := turns.Read(ctx)
	if err != nil {
		return fail(err)
	}
	if len(r.Queued) == 0 {
		return nil
	}
	var t tick
	if err := json.Unmarshal(r.Queued, &t); err != nil {
		return fail(err)
	}
	t.At = t.At.UTC()
	t.Options.ID = s.RunID(t.At)
	if err := turns.May(ctx, t.At); errors.As(err, new(store.WaitsError)) {
		return nil
	}
	_, err = s.tick(ctx, e, t)
	if why := err; errors.Is(err, ErrArguments) {
		refused := false
		if refused, err = turns.Refuse(ctx, t.At); refused {
			e.log.LogAttrs(ctx, slog.LevelWarn, "a tick that has waited can't start a run", slog.String("schedule", s.name), slog.Time("tick", t.At), slog.Any("error", why))
		}
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// advance advances schedules.
func advance(ctx context.Context, e *Engine, all []ScheduleDefinition) error {
	var failed []error
	for _, s := range all {
		failed = append(failed, s.Advance(ctx, e))
	}
	return errors.Join(failed...)
}

package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Schedule reads the record of a schedule, and the job of its last run. The job is nil if it has
// ended, or if there was no run.
func Schedule(get get, name string) (s *record.Schedule, unfinished *record.Job, err error) {
	s, run, err := lastRun(get, name)
	if run == nil || !run.Unfinished() { // always so after an error
		return s, nil, err
	}
	return s, run, nil
}

// lastRun reads the record of a schedule, and the job of its last run. The job is nil if it was
// deleted, or if there was no run.
func lastRun(get get, name string) (s *record.Schedule, run *record.Job, err error) {
	s = new(record.Schedule)
	if _, err := found(get, record.ScheduleKey(name), s); err != nil || s.Run == "" {
		return s, nil, err
	}
	run, there, err := runOf(get, name, s.Run)
	if err != nil || !there {
		return s, nil, err
	}
	return s, run, nil
}

// runOf reads the job with the ID id, which is a run of the schedule. The bool is false if this
// run's record was deleted, even if another job has the ID now.
func runOf(get get, name, id string) (run *record.Job, there bool, err error) {
	run = &record.Job{ID: id}
	_, err = found(get, record.JobKey(id), run)
	return run, run.Schedule == name, err
}

// found reads an entity into dst. It returns false without an error if there is no such entity.
func found(get get, key *datastore.Key, dst any) (bool, error) {
	err := property.IgnoreUndeclared(get(key, dst))
	if errors.Is(err, datastore.ErrNoSuchEntity) {
		return false, nil
	}
	return err == nil, err
}

// takeTurn makes a job, which had ended and now runs again, the last run of its schedule. It
// returns an error if another run of the schedule has not ended.
func takeTurn(tx *datastore.Transaction, job *record.Job) error {
	if job.Schedule == "" {
		return nil
	}
	s, unfinished, err := Schedule(tx.Get, job.Schedule)
	switch {
	case err != nil || s.Run == job.ID || s.Run == "":
		return err
	case unfinished != nil:
		return fmt.Errorf("%w: run %s of its schedule %q has not ended, and only one run may go on at a time",
			record.ErrState, s.Run, job.Schedule)
	}
	s.Run = job.ID
	_, err = tx.Put(record.ScheduleKey(job.Schedule), s)
	return err
}

// A Turns decides when a run of a schedule may start. A tick is the time at which a run should
// start. The runs come one after the other, in the order of their ticks. Like any job, a run also
// needs a lock for its mapper on each of its kinds ([record.Slot]).
type Turns struct {
	Store Store
	Name  string                 // the schedule's name
	RunID func(time.Time) string // returns the ID of the job that a tick would start
	// Jumps says that a tick may abort the last run, and need not wait for an earlier tick.
	Jumps  bool
	Queues []record.Owner // the queues that the caller's engine uses; see own
	// Waited says that the tick was recorded as waiting, and that the caller has the queue in which
	// it waited.
	Waited bool
	Mapper string   // the mapper of the run that a tick would start
	Kinds  []string // the kinds of that run; empty: it takes no locks
}

// A WaitsError says why a tick (the planned time of a run) can't start its run now.
type WaitsError struct {
	Became string     // the outcome, if the tick was decided earlier; otherwise empty
	Job    string     // the job of that outcome: the tick's run, or the job that prevented it
	Run    record.Ref // the schedule's last run, if it has not ended
	Held   record.Ref // another job that runs the same mapper over one of the kinds
	First  bool       // whether an earlier tick is waiting, and could start its run now
	Waits  bool       // whether this tick is recorded as waiting
}

func (w WaitsError) Error() string {
	switch {
	case w.Became != "":
		return "the tick is " + w.Became
	case w.First:
		return "another tick waits, and comes first"
	}
	return fmt.Sprintf("job %s is unfinished", w.Other())
}

// Other returns the ID of the job that prevents the tick's run from starting.
func (w WaitsError) Other() string {
	if w.Held.ID != "" {
		return w.Held.ID
	}
	return w.Run.ID
}

// Read reads the record of the schedule.
func (t Turns) Read(ctx context.Context) (*record.Schedule, error) {
	s, _, err := Schedule(t.get(ctx), t.Name)
	return s, err
}

func (t Turns) get(ctx context.Context) get {
	return func(key *datastore.Key, dst any) error { return t.Store.client.Get(ctx, key, dst) }
}

// slots returns the names of the locks ([record.Slot]) that a run of the schedule takes, one for
// each kind.
func (t Turns) slots() (names []string) {
	for _, key := range slotKeys(t.Mapper, t.Kinds) {
		names = append(names, key.Name)
	}
	return names
}

// May returns nil if a tick, the planned time of a run, could start this run now. Otherwise it
// returns a [WaitsError], or an error of the database. It changes nothing.
func (t Turns) May(ctx context.Context, at time.Time) error {
	_, err := t.look(t.get(ctx), at, t.slots())
	return err
}

// Begin records that a tick, the planned time of a run, starts the run with this job ID. If it
// can't start now, it returns a [WaitsError]. The caller creates the run's job in the same
// transaction.
func (t Turns) Begin(tx *datastore.Transaction, at time.Time, run string) error {
	s, err := t.look(tx.Get, at, nil)
	if err != nil {
		return err
	}
	s.Start(at, run)
	_, err = tx.Put(record.ScheduleKey(t.Name), s)
	return err
}

// Replaces returns nil if only the given run of the schedule prevents a tick (the planned time of
// the next run) from starting a run. The caller is about to abort the given run for this. If
// something else prevents the tick's run, Replaces returns an error.
func (t Turns) Replaces(tx *datastore.Transaction, at time.Time, run record.Ref) error {
	_, err := t.look(tx.Get, at, t.slots())
	var waits WaitsError
	if err != nil && !errors.As(err, &waits) {
		return err
	}
	if waits.Run == run && waits.Held.ID == "" {
		return nil
	}
	return fmt.Errorf("%w: it is not in the way of the tick any more", record.ErrState)
}

// own reads the schedule's record and the job of its last run, to decide about the tick at. If the
// last run is in a queue that the caller does not have, the schedule belongs to another service,
// and own returns an error. There are two exceptions after the end of the last run. One is a tick
// later than the schedule's last tick. The other is a tick that has waited in one of the caller's
// queues.
func (t Turns) own(get get, at time.Time) (*record.Schedule, *record.Job, error) {
	s, run, err := lastRun(get, t.Name)
	if run == nil || run.Queue == "" || slices.Contains(t.Queues, run.Queue) ||
		!run.Unfinished() && (at.After(s.Tick) || t.Waited) {
		return s, run, err
	}
	return nil, nil, setting.Errorf("%w: the schedule's last run %s is in %s. If another service has a schedule of "+
		"this name, choose another name; if the queue was replaced, Job.Move would move the run", record.ErrOtherQueue,
		run.ID, run.Queue)
}

// look reads the schedule's record. If a tick, the planned time of a run, can't start its run now,
// look also returns a [WaitsError]. The argument slots has the names of the locks that the run
// needs.
func (t Turns) look(get get, at time.Time, slots []string) (*record.Schedule, error) {
	s, run, err := t.own(get, at)
	if err != nil {
		return nil, err
	}
	w := WaitsError{Waits: s.Has(at) && slices.Equal(s.Slots, t.slots())}
	if !s.Has(at) {
		past, known, err := t.became(get, s, at)
		switch {
		case err != nil:
			return nil, err
		case known:
			return s, WaitsError{Became: past.Outcome, Job: past.Job}
		}
	}
	running := run != nil && run.Unfinished()
	if running {
		w.Run = run.Ref()
	} else if len(s.Queued) > 0 && !s.Has(at) && !t.Jumps {
		var held record.Ref
		if held, err = heldBy(get, s.Slots, w.Run); err != nil {
			return nil, err
		}
		w.First = held.ID == ""
	}
	if !running || t.Jumps {
		if w.Held, err = heldBy(get, slots, w.Run); err != nil {
			return nil, err
		}
	}
	if w.Run.ID != "" || w.Held.ID != "" || w.First {
		return s, w
	}
	return s, nil
}

// became returns what was decided earlier about a tick, the planned time of a run, that does not
// wait. The record keeps only the decisions on the last ticks. An older tick counts as started if
// its run exists, and otherwise as skipped.
func (t Turns) became(get get, s *record.Schedule, at time.Time) (past record.PastTick, known bool, err error) {
	if past, known = s.Became(at); known || !at.Before(s.Tick) {
		return past, known, nil
	}
	run, started, err := runOf(get, t.Name, t.RunID(at))
	if err != nil {
		return past, false, err
	}
	if started {
		return record.PastTick{At: at, Outcome: record.TickStarted, Job: run.ID}, true, nil
	}
	last, _ := s.Became(s.Tick)
	return record.PastTick{At: at, Outcome: record.TickSkipped, Job: last.Job}, true, nil
}

// heldBy returns the first running job that holds one of the locks with these names. It ignores the
// job except. If there is no such job, it returns a zero Ref.
func heldBy(get get, slots []string, except record.Ref) (record.Ref, error) {
	for _, name := range slots {
		err := checkSlot(get, datastore.NameKey(record.SlotKind, name, nil), except)
		var held HeldError
		if errors.As(err, &held) {
			return held.Job, nil
		}
		if err != nil {
			return record.Ref{}, err
		}
	}
	return record.Ref{}, nil
}

// Wait records that a tick, the planned time of a run, waits for the end of the job that prevents
// this run. The argument what has the encoded arguments of the run. If it is empty, the tick is
// skipped instead. A tick that already waits continues to wait. If no job prevents the run any
// more, Wait changes nothing.
func (t Turns) Wait(ctx context.Context, at time.Time, what []byte) (decided WaitsError, err error) {
	err = t.Store.Transact(ctx, func(tx *datastore.Transaction) error {
		decided = WaitsError{}
		s, err := t.look(tx.Get, at, t.slots())
		var waits WaitsError
		switch {
		case !errors.As(err, &waits): // without an error the run may start now
			return cmp.Or(err, ErrNothing)
		case waits.Became != "":
			decided = waits
			return ErrNothing
		// the run of an earlier tick may start now, or the run of this tick
		case waits.First, t.Jumps && waits.Held.ID == "":
			return ErrNothing
		}
		decided.Job = waits.Other()
		switch {
		case s.Has(at): // written again, because older builds store no slots
			s.Slots = t.slots()
			decided.Became = record.TickQueued
		case what != nil:
			s.Queue(at, what, t.slots(), waits.Other())
			decided.Became = record.TickQueued
		default:
			s.Skip(at, waits.Other())
			decided.Became = record.TickSkipped
		}
		_, err = tx.Put(record.ScheduleKey(t.Name), s)
		return err
	})
	return decided, err
}

// Refuse records that the run of a waiting tick, its planned time, can't start. So the tick no
// longer waits. The argument at is the tick about which the caller decides: the waiting one, or a
// later one. Refuse returns false if the tick did not wait.
func (t Turns) Refuse(ctx context.Context, waiting, at time.Time) (refused bool, err error) {
	err = t.Store.Transact(ctx, func(tx *datastore.Transaction) error {
		s, _, err := t.own(tx.Get, at)
		if err != nil {
			return err
		}
		if refused = s.Has(waiting); !refused {
			return nil
		}
		s.Refuse(waiting)
		_, err = tx.Put(record.ScheduleKey(t.Name), s)
		return err
	})
	if refused && err != nil { // the commit may have taken effect although its answer was lost
		s, _ := t.Read(ctx) // after an error, s is empty, so no tick waits in it
		past, known := s.Became(waiting)
		return known && past.Outcome == record.TickRefused, err
	}
	return refused, err
}

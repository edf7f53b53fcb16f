package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Schedule reads the record of a schedule, and whether its last run is unfinished. Get reads an entity, of a transaction or not.
func Schedule(get func(*datastore.Key, any) error, name string) (s *record.Schedule, unfinished bool, err error) {
	s = new(record.Schedule)
	if _, err := found(get, record.ScheduleKey(name), s); err != nil || s.Run == "" {
		return s, false, err
	}
	run := &record.Job{ID: s.Run}
	there, err := found(get, record.JobKey(s.Run), run) // it may have been cleaned up
	return s, there && run.Unfinished(), err
}

// found reads an entity, and reports whether it is there.
func found(get func(*datastore.Key, any) error, key *datastore.Key, dst any) (bool, error) {
	err := property.IgnoreUndeclared(get(key, dst))
	if errors.Is(err, datastore.ErrNoSuchEntity) {
		return false, nil
	}
	return err == nil, err
}

// takeTurn has a run of a schedule that had ended go on: unless another one is unfinished. From here on it is the schedule's last.
func takeTurn(tx *datastore.Transaction, job *record.Job) error {
	if job.Schedule == "" {
		return nil
	}
	s, unfinished, err := Schedule(tx.Get, job.Schedule)
	switch {
	case err != nil || s.Run == job.ID || s.Run == "":
		return err
	case unfinished:
		return fmt.Errorf("%w: run %s of its schedule %q is unfinished, and one of them runs at a time", record.ErrState, s.Run, job.Schedule)
	}
	s.Run = job.ID
	_, err = tx.Put(record.ScheduleKey(job.Schedule), s)
	return err
}

// Turns are those of the runs of a schedule, one after the other, as the record of that has them.
type Turns struct {
	Store Store
	Name  string // of the schedule
	Jumps bool   // a tick does not wait for another one that waits
}

// A WaitsError says that a tick can't start a run now.
type WaitsError struct {
	Became string // of it, before; empty: nothing yet
	Run    string // the last one, which is unfinished
	First  bool   // or it has ended, and another tick waits for that
}

func (w WaitsError) Error() string {
	switch {
	case w.Became != "":
		return "the tick is " + w.Became
	case w.First:
		return fmt.Sprintf("another tick waits for the end of job %s", w.Run)
	}
	return fmt.Sprintf("job %s is unfinished", w.Run)
}

// Read reads the record of the schedule.
func (t Turns) Read(ctx context.Context) (*record.Schedule, error) {
	s, _, err := Schedule(t.get(ctx), t.Name)
	return s, err
}

func (t Turns) get(ctx context.Context) func(*datastore.Key, any) error {
	return func(key *datastore.Key, dst any) error { return t.Store.client.Get(ctx, key, dst) }
}

// May says whether a tick could start a run now, without deciding it.
func (t Turns) May(ctx context.Context, at time.Time) error {
	_, err := t.look(t.get(ctx), at)
	return err
}

// Begin has a tick start a run, in the transaction that records the run's job.
func (t Turns) Begin(tx *datastore.Transaction, at time.Time, run string) error {
	s, err := t.look(tx.Get, at)
	if err != nil {
		return err
	}
	s.Start(at, run)
	_, err = tx.Put(record.ScheduleKey(t.Name), s)
	return err
}

// look reads how the schedule stands. With it, it returns a WaitsError if a tick can't start a run.
func (t Turns) look(get func(*datastore.Key, any) error, at time.Time) (*record.Schedule, error) {
	s, unfinished, err := Schedule(get, t.Name)
	if err != nil {
		return nil, err
	}
	became, waits := s.May(at, unfinished)
	first := !unfinished && len(s.Queued) > 0 && !s.Has(at) && !t.Jumps
	if became != "" || waits || first {
		return s, WaitsError{became, s.Run, first}
	}
	return s, nil
}

// Wait has a tick wait for the end of a run, with what it then starts one with; without that it is skipped. It decides nothing if
// the run has ended meanwhile.
func (t Turns) Wait(ctx context.Context, at time.Time, what []byte) (decided string, err error) {
	_, err = t.Store.client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
		s, err := t.look(tx.Get, at)
		var waits WaitsError
		switch {
		case err != nil && !errors.As(err, &waits):
			return err
		case err == nil || waits.First: // its turn has come, or that of one before it
			decided = ""
			return nil
		case waits.Became != "":
			decided = waits.Became
			return nil
		case what != nil:
			s.Queue(at, what)
		default:
			s.Skip(at)
		}
		decided = s.Outcome
		_, err = tx.Put(record.ScheduleKey(t.Name), s)
		return err
	})
	return decided, err
}

// Refuse has a tick not wait any longer that can't start a run, and reports whether it did.
func (t Turns) Refuse(ctx context.Context, at time.Time) (refused bool, err error) {
	_, err = t.Store.client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
		s, _, err := Schedule(tx.Get, t.Name)
		if refused = err == nil && s.Has(at); !refused {
			return err
		}
		s.Refuse(at)
		_, err = tx.Put(record.ScheduleKey(t.Name), s)
		return err
	})
	return refused && err == nil, err
}

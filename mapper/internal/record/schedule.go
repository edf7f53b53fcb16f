package record

import (
	"time"

	"cloud.google.com/go/datastore"
)

// ScheduleKind is the kind of the records of schedules.
const ScheduleKind = "ScattermapSchedule"

// ScheduleKey returns the key of a schedule's record.
func ScheduleKey(name string) *datastore.Key { return datastore.NameKey(ScheduleKind, name, nil) }

// A Schedule is what is kept of a schedule: its runs come one after the other.
type Schedule struct {
	Tick    time.Time `datastore:"tick,noindex"`    // the last one that was decided about
	Outcome string    `datastore:"outcome,noindex"` // what that was
	Run     string    `datastore:"run,noindex"`     // the ID of the last job
	Queued  []byte    `datastore:"queued,noindex"`  // the tick that waits for its end; empty: none does
	Waits   time.Time `datastore:"waits,noindex"`   // when that tick was
}

// What becomes of a tick.
const (
	TickStarted = "started"
	TickSkipped = "skipped"
	TickQueued  = "queued"
	TickRefused = "refused"
)

// May returns how a tick stands to the schedule: it starts a run, if that is not empty for another reason, which is what became
// of it before, or TickSkipped for one that is older than another; or it has to wait for a run that is unfinished.
func (s *Schedule) May(at time.Time, unfinished bool) (became string, waits bool) {
	switch {
	case s.Has(at): // its turn may have come
		return "", unfinished
	case at.Equal(s.Tick):
		return s.Outcome, false
	case at.Before(s.Tick):
		return TickSkipped, false
	}
	return "", unfinished
}

// Has reports whether the tick of a time waits.
func (s *Schedule) Has(at time.Time) bool { return len(s.Queued) > 0 && at.Equal(s.Waits) }

// Start notes that a tick starts a run. One that waits and is older does not any more.
func (s *Schedule) Start(at time.Time, run string) {
	s.decide(at, TickStarted)
	s.Run = run
}

// Skip notes that a tick starts nothing.
func (s *Schedule) Skip(at time.Time) { s.Tick, s.Outcome = at, TickSkipped }

// Refuse notes that a tick that waits can't start a run.
func (s *Schedule) Refuse(at time.Time) { s.decide(at, TickRefused) }

// decide notes what becomes of a tick, behind which none waits that is not later.
func (s *Schedule) decide(at time.Time, outcome string) {
	if !at.Before(s.Waits) {
		s.Queued, s.Waits = nil, time.Time{}
	}
	if !at.Before(s.Tick) {
		s.Tick, s.Outcome = at, outcome
	}
}

// Queue notes that a tick waits for the end of a run. It takes the place of one that did before.
func (s *Schedule) Queue(at time.Time, what []byte) {
	s.Tick, s.Outcome, s.Queued, s.Waits = at, TickQueued, what, at
}

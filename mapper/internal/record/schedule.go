package record

import (
	"encoding/json"
	"slices"
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
	Queued  []byte    `datastore:"queued,noindex"`  // the tick that waits; empty: none does
	Waits   time.Time `datastore:"waits,noindex"`   // when that tick was

	// Slots are the names of the slots that the run of the tick that waits takes. Older builds note
	// none.
	Slots []string `datastore:"slots,omitempty,noindex"`

	// Past is JSON: the last ticks, see [PastTick]. An older build that decides about a tick drops
	// it.
	Past []byte `datastore:"past,omitempty,noindex"`
}

// What becomes of a tick.
const (
	TickStarted = "started"
	TickSkipped = "skipped"
	TickQueued  = "queued"
	TickRefused = "refused"
)

// A PastTick is what became of a tick, and which job that was about: its run, or the one that was
// in its way.
type PastTick struct {
	At      time.Time `json:"at"`
	Outcome string    `json:"outcome"`
	Job     string    `json:"job,omitempty"`
}

// mostPast bounds how many ticks are remembered.
const mostPast = 100

// Became returns what became of a tick, if that is known.
func (s *Schedule) Became(at time.Time) (past PastTick, known bool) {
	if i := slices.IndexFunc(s.past(), func(p PastTick) bool { return p.At.Equal(at) }); i >= 0 {
		return s.past()[i], true
	}
	return PastTick{At: at, Outcome: s.Outcome, Job: s.Run}, at.Equal(s.Tick)
}

// past returns the ticks that are remembered. What another build has encoded in another way is not.
func (s *Schedule) past() (all []PastTick) {
	if json.Unmarshal(s.Past, &all) != nil {
		return nil
	}
	return all
}

// note remembers what became of a tick.
func (s *Schedule) note(at time.Time, outcome, job string) {
	all := slices.DeleteFunc(s.past(), func(p PastTick) bool { return p.At.Equal(at) })
	all = append(all, PastTick{at.UTC(), outcome, job})
	s.Past, _ = json.Marshal(all[max(0, len(all)-mostPast):]) // texts and valid times encode
}

// Has reports whether the tick of a time waits.
func (s *Schedule) Has(at time.Time) bool { return len(s.Queued) > 0 && at.Equal(s.Waits) }

// Start notes that a tick starts a run. One that waits and is older is skipped.
func (s *Schedule) Start(at time.Time, run string) {
	s.decide(at, TickStarted, run)
	s.Run = run
}

// Skip notes that a tick starts nothing, because of a job. One that waits goes on waiting.
func (s *Schedule) Skip(at time.Time, job string) {
	s.Tick, s.Outcome = at, TickSkipped
	s.note(at, TickSkipped, job)
}

// Refuse notes that a tick that waits can't start a run.
func (s *Schedule) Refuse(at time.Time) { s.decide(at, TickRefused, s.Run) }

// decide notes what becomes of a tick, after which none waits that is not later.
func (s *Schedule) decide(at time.Time, outcome, job string) {
	s.note(at, outcome, job)
	if !at.Before(s.Waits) {
		s.replaced(at, job)
		s.Queued, s.Waits, s.Slots = nil, time.Time{}, nil
	}
	if !at.Before(s.Tick) {
		s.Tick, s.Outcome = at, outcome
	}
}

// replaced notes that a tick that waits starts nothing, as a later one takes its place.
func (s *Schedule) replaced(at time.Time, job string) {
	if len(s.Queued) > 0 && !s.Has(at) {
		s.note(s.Waits, TickSkipped, job)
	}
}

// Queue notes that a tick waits for the end of a job, to start a run that takes some slots. It
// takes the place of one that did before.
func (s *Schedule) Queue(at time.Time, what []byte, slots []string, job string) {
	s.replaced(at, job)
	s.Tick, s.Outcome, s.Queued, s.Waits, s.Slots = at, TickQueued, what, at, slots
	s.note(at, TickQueued, job)
}

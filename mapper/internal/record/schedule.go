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

// A Schedule is the record of a schedule. Its runs come one after the other.
type Schedule struct {
	Tick    time.Time `datastore:"tick,noindex"`    // the last tick that was decided
	Outcome string    `datastore:"outcome,noindex"` // the decision, see the Tick constants
	Run     string    `datastore:"run,noindex"`     // the ID of the last job
	Queued  []byte    `datastore:"queued,noindex"`  // JSON: the waiting tick; empty: none waits
	Waits   time.Time `datastore:"waits,noindex"`   // the time of the waiting tick

	// Slots are the names of the slots that the waiting tick's run will take. Older builds note
	// none.
	Slots []string `datastore:"slots,omitempty,noindex"`

	// Past is JSON: the last ticks, see [PastTick]. An older build drops it when it decides a tick.
	Past []byte `datastore:"past,omitempty,noindex"`
}

// Decisions about a tick.
const (
	TickStarted = "started"
	TickSkipped = "skipped"
	TickQueued  = "queued"
	TickRefused = "refused"
)

// A PastTick is the decision about a tick. Job is the run that it started, or the job that stood in
// its way.
type PastTick struct {
	At      time.Time `json:"at"`
	Outcome string    `json:"outcome"`
	Job     string    `json:"job,omitempty"`
}

// mostPast is how many ticks are remembered.
const mostPast = 100

// Became returns the decision about a tick, if that is known.
func (s *Schedule) Became(at time.Time) (past PastTick, known bool) {
	if i := slices.IndexFunc(s.past(), func(p PastTick) bool { return p.At.Equal(at) }); i >= 0 {
		return s.past()[i], true
	}
	return PastTick{At: at, Outcome: s.Outcome, Job: s.Run}, at.Equal(s.Tick)
}

// past returns the remembered ticks; none if another build has stored them in another format.
func (s *Schedule) past() (all []PastTick) {
	if json.Unmarshal(s.Past, &all) != nil {
		return nil
	}
	return all
}

// note remembers the decision about a tick.
func (s *Schedule) note(at time.Time, outcome, job string) {
	all := slices.DeleteFunc(s.past(), func(p PastTick) bool { return p.At.Equal(at) })
	all = append(all, PastTick{at.UTC(), outcome, job})
	s.Past, _ = json.Marshal(all[max(0, len(all)-mostPast):]) // texts and valid times encode
}

// Has reports whether the tick of the given time waits.
func (s *Schedule) Has(at time.Time) bool { return len(s.Queued) > 0 && at.Equal(s.Waits) }

// Start notes that a tick starts a run. An older waiting tick is skipped.
func (s *Schedule) Start(at time.Time, run string) {
	s.decide(at, TickStarted, run)
	s.Run = run
}

// Skip notes that a tick starts nothing, because of a job. A waiting tick goes on waiting.
func (s *Schedule) Skip(at time.Time, job string) {
	s.Tick, s.Outcome = at, TickSkipped
	s.note(at, TickSkipped, job)
}

// Refuse notes that a waiting tick can't start its run.
func (s *Schedule) Refuse(at time.Time) { s.decide(at, TickRefused, s.Run) }

// decide notes the decision about a tick. A waiting tick that is not later is dropped.
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

// replaced notes that the waiting tick is skipped, because a later one takes its place.
func (s *Schedule) replaced(at time.Time, job string) {
	if len(s.Queued) > 0 && !s.Has(at) {
		s.note(s.Waits, TickSkipped, job)
	}
}

// Queue notes that a tick waits for the end of a job, to start a run that takes some slots. It
// replaces an earlier waiting tick.
func (s *Schedule) Queue(at time.Time, what []byte, slots []string, job string) {
	s.replaced(at, job)
	s.Tick, s.Outcome, s.Queued, s.Waits, s.Slots = at, TickQueued, what, at, slots
	s.note(at, TickQueued, job)
}

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

// A Schedule is the record of a schedule. A schedule starts runs of a mapper, one after the other.
// The time at which a run should start is called a tick.
type Schedule struct {
	Tick    time.Time `datastore:"tick,noindex"`    // the last tick on which the schedule has decided
	Outcome string    `datastore:"outcome,noindex"` // what it has decided on that tick, one of the Tick constants
	Run     string    `datastore:"run,noindex"`     // the ID of the job that the schedule started last
	// Queued has the arguments of the waiting tick's run, as JSON. It is empty if no tick waits.
	Queued []byte    `datastore:"queued,noindex"`
	Waits  time.Time `datastore:"waits,noindex"` // the waiting tick

	// Slots are the names of the locks ([Slot]) that the waiting tick's run will take. Older builds
	// store none.
	Slots []string `datastore:"slots,omitempty,noindex"`

	// Past has the last ticks as JSON, see [PastTick]. If an older build decides on a tick, it
	// removes this field.
	Past []byte `datastore:"past,omitempty,noindex"`
}

// Decisions on a tick, which is the planned time of a run.
const (
	TickStarted = "started"
	TickSkipped = "skipped"
	TickQueued  = "queued"
	TickRefused = "refused"
)

// A PastTick says what a schedule has decided on a past tick, which is the planned time of a run.
// Job is the run that was started, or the job that prevented it.
type PastTick struct {
	At      time.Time `json:"at"`
	Outcome string    `json:"outcome"`
	Job     string    `json:"job,omitempty"`
}

// mostPast is the largest number of past ticks (planned times of runs) in a schedule's record.
const mostPast = 100

// Became returns what the schedule has decided on a tick, which is the planned time of a run. The
// bool known is false if the record no longer has this decision.
func (s *Schedule) Became(at time.Time) (past PastTick, known bool) {
	if i := slices.IndexFunc(s.past(), func(p PastTick) bool { return p.At.Equal(at) }); i >= 0 {
		return s.past()[i], true
	}
	return PastTick{At: at, Outcome: s.Outcome, Job: s.Run}, at.Equal(s.Tick)
}

// past decodes the past ticks (planned times of runs). It returns nil if another build has stored
// them in a format that this build does not know.
func (s *Schedule) past() (all []PastTick) {
	if json.Unmarshal(s.Past, &all) != nil {
		return nil
	}
	return all
}

// note adds the decision on a tick, the planned time of a run, to the past ticks.
func (s *Schedule) note(at time.Time, outcome, job string) {
	all := slices.DeleteFunc(s.past(), func(p PastTick) bool { return p.At.Equal(at) })
	all = append(all, PastTick{at.UTC(), outcome, job})
	s.Past, _ = json.Marshal(all[max(0, len(all)-mostPast):]) // texts and valid times can always be encoded
}

// Has reports whether the given tick waits for the end of a job. A tick is the planned time of a
// run.
func (s *Schedule) Has(at time.Time) bool { return len(s.Queued) > 0 && at.Equal(s.Waits) }

// Start records the decision that a tick, the planned time of a run, starts the run with this job
// ID. If an earlier tick waits, it is skipped.
func (s *Schedule) Start(at time.Time, run string) {
	s.decide(at, TickStarted, run)
	s.Run = run
}

// Skip records the decision that a tick, the planned time of a run, starts no run, because of the
// given job. If another tick waits, it continues to wait.
func (s *Schedule) Skip(at time.Time, job string) {
	s.Tick, s.Outcome = at, TickSkipped
	s.note(at, TickSkipped, job)
}

// Refuse records that the run of a waiting tick, the planned time of this run, can't start.
func (s *Schedule) Refuse(at time.Time) { s.decide(at, TickRefused, s.Run) }

// decide records the decision on a tick, the planned time of a run. It also removes the waiting
// tick, unless that is later than this one.
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

// replaced records that the waiting tick, the planned time of a run, is skipped because the later
// tick at has replaced it. If no other tick waits, it does nothing.
func (s *Schedule) replaced(at time.Time, job string) {
	if len(s.Queued) > 0 && !s.Has(at) {
		s.note(s.Waits, TickSkipped, job)
	}
}

// Queue records the decision that a tick, the planned time of a run, waits for the end of a job.
// The argument what has the arguments of the run, which will take the locks (slots). If an earlier
// tick waits, this one replaces it.
func (s *Schedule) Queue(at time.Time, what []byte, slots []string, job string) {
	s.replaced(at, job)
	s.Tick, s.Outcome, s.Queued, s.Waits, s.Slots = at, TickQueued, what, at, slots
	s.note(at, TickQueued, job)
}

package record

import (
	"slices"
	"time"
)

// A function may kill the process that runs it: it calls os.Exit, or takes all memory, or panics
// in a goroutine of its own. Nobody is left to say so, and what ran beside it dies, too. So that
// the others are not blamed:
//
//   - A delivery that is not the first one of its task leaves a mark in a record before it
//     begins, unless there is one, and takes it away when it ends in good order. Who finds the
//     mark of a delivery that must have ended takes its process for dead.
//   - A range whose delivery died in company is run solo: while its process does nothing else.
//     Others wait for that.
//   - One that died solo is halved, until it is one entity. What is left behind is halved, too,
//     and solo from the start.
//   - A single entity gets a range for itself. One whose process dies MaxAttempts times while it
//     does nothing else is recorded as a failure.
//   - A finalizer whose task is delivered again is run solo, too. One whose process dies
//     MaxAttempts times while it does nothing else fails its job.
//
// A death says nothing if it was not alone: also if a function that took too long was left behind
// in that process. A process that is killed for another reason, as those that are shut down are,
// has its ranges suspected, and no more: it would have to be killed MaxAttempts times, each time
// during the same entity.

// A Suspicion is what a record keeps of deliveries that may have died: of a range, in its record,
// or of the task that ends a job, in that of the job.
type Suspicion struct {
	Begun         string      `datastore:"begun,omitempty,noindex"`       // the delivery that has begun and not come to an end
	BegunAt       time.Time   `datastore:"begun_at,omitempty,noindex"`    // when that came
	BegunAlone    bool        `datastore:"begun_alone,omitempty,noindex"` // its process does nothing else
	SeenTask      string      `datastore:"seen_task,omitempty,noindex"`   // the task of the last deliveries that have left a mark, or found one of theirs
	SeenTry       int64       `datastore:"seen_try,omitempty,noindex"`    // and the most attempts that were before one of them
	Doubtful      bool        `datastore:"doubtful,omitempty,noindex"`    // the next attempt says nothing of the mark
	Solo          bool        `datastore:"solo,omitempty,noindex"`        // it is to run while its process does nothing else
	Deaths        []string    `datastore:"deaths,omitempty,noindex"`      // deliveries whose processes seem to have died of the one function that they ran
	DeathsCountAt []time.Time `datastore:"settled,omitempty,noindex"`     // when these count; until then the delivery may say that it is alive
}

// A CrashMark is what a delivery leaves in a record when it begins.
type CrashMark struct {
	Delivery string
	At       time.Time // when the delivery came
	Task     string    // that it is of
	Try      int64     // how many attempts of that task were before
	Alone    bool      // its process does nothing else
}

// Suspected reports whether deliveries have to be solo.
func (s *Suspicion) Suspected() bool { return s.Solo || s.Begun != "" }

// Begin leaves a mark, and draws conclusions from the one that it finds, if that one's
// delivery must have ended. If it need not have ended its mark stays. It returns the mark of a
// delivery whose process died while it did nothing else.
func (s *Suspicion) Begin(m CrashMark, now time.Time, deadline time.Duration) (died *CrashMark) {
	switch {
	case s.Begun == "": // the last one ended in good order, or was the first
	case !s.ended(m, now, deadline):
		s.noteBehind(m)
		return nil
	default:
		if s.BegunAlone {
			died = &CrashMark{Delivery: s.Begun, At: s.BegunAt}
		}
		s.Solo = true
	}
	s.Doubtful = s.SeenTask != "" && (s.SeenTask != m.Task || s.SeenTry >= m.Try)
	if s.SeenTask != m.Task || s.SeenTry < m.Try {
		s.SeenTask, s.SeenTry = m.Task, m.Try
	}
	s.Begun, s.BegunAt, s.BegunAlone = m.Delivery, m.At, m.Alone
	return died
}

// ended reports whether the delivery whose mark is in the record has ended, now that another
// one begins. The queue makes an attempt when the one before has been answered, or its
// deadline has passed. But it may have made that twice; and a delivery of another task, of a
// Resume for instance, says nothing. Then only the deadline does. A delivery that was answered
// before it has begun is not seen, so a mark of its twin may be taken for a death: that makes
// a range solo, and a death is taken back when the twin ends.
func (s *Suspicion) ended(m CrashMark, now time.Time, deadline time.Duration) bool {
	return s.SeenTask == m.Task && s.SeenTry < m.Try && !s.Doubtful || now.Sub(s.BegunAt) > deadline
}

// noteBehind notes a delivery that leaves no mark, as there is one of its own task: if that
// is of the same attempt, the next one says nothing of it.
func (s *Suspicion) noteBehind(m CrashMark) {
	if s.SeenTask == m.Task && s.SeenTry <= m.Try {
		s.SeenTry, s.Doubtful = m.Try, true
	}
}

// Die counts a death against the one function that the delivery ran. If the queue's deadline may
// have cut the delivery off, it may be alive, and about to say so: then the death counts later.
func (s *Suspicion) Die(m CrashMark, now time.Time, deadline time.Duration) {
	settled := now
	if now.Sub(m.At) >= deadline*9/10 { // clocks differ
		settled = m.At.Add(deadline + EndTime(deadline))
	}
	s.Deaths, s.DeathsCountAt = append(s.Deaths, m.Delivery), append(s.DeathsCountAt, settled)
}

// Died returns how many deaths count.
func (s *Suspicion) Died(now time.Time) (n int64) {
	for _, at := range s.DeathsCountAt {
		if !at.After(now) {
			n++
		}
	}
	return n
}

// Alive takes away the mark of a delivery, and its death, if it seemed to have died. It reports
// whether there was something to take away. That a range is solo, and smaller, stays.
func (s *Suspicion) Alive(delivery string) (changed bool) {
	if s.Begun == delivery {
		s.Begun, changed = "", true
	}
	if i := slices.Index(s.Deaths, delivery); i >= 0 {
		s.Deaths, s.DeathsCountAt = slices.Delete(s.Deaths, i, i+1), slices.Delete(s.DeathsCountAt, i, i+1)
		changed = true
	}
	return changed
}

// Calm takes away all marks: whoever's they are, their task is over.
func (s *Suspicion) Calm() {
	s.Begun, s.BegunAt, s.BegunAlone, s.SeenTask, s.SeenTry, s.Doubtful = "", time.Time{}, false, "", 0, false
}

// EndTime returns for how long a delivery tries to take its mark away.
func EndTime(deadline time.Duration) time.Duration { return max(deadline, 10*time.Minute) }

// Begin notes that a delivery of the range begins, and draws conclusions from the one before.
func (r *Range) Begin(m CrashMark, now time.Time, deadline time.Duration) {
	r.Lost = false
	r.Attempts++
	died := r.Suspicion.Begin(m, now, deadline)
	switch {
	case died == nil:
	case r.PageLimit() > 1:
		r.Narrow(r.Expected())
	case r.Alone:
		r.Die(*died, now, deadline)
	}
}

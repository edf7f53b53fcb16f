package record

import (
	"slices"
	"time"
)

// A function may kill the process that runs it: it calls os.Exit, takes all memory, or panics in a
// goroutine of its own. The process can't report that, and everything beside the function dies,
// too. The deadly entity is found as follows, without blame for the others:
//
//   - A delivery that is not the first one of its task leaves a mark in the record before it begins,
//     unless there is a mark already. It takes the mark away when it ends in good order. A later
//     delivery that finds the mark, and knows that its delivery must have ended, takes that process for
//     dead.
//   - A range whose delivery died in company is run exclusively: its process does nothing else meanwhile, and
//     other tasks wait.
//   - A range whose exclusive delivery died has its page halved, until the page is one entity. The rest behind
//     the page is halved, too, and exclusive from the start.
//   - A single entity gets a range for itself. If the process dies MaxDeaths times while it does
//     nothing but this entity, the entity is recorded as a failure.
//   - A finalizer whose task is delivered again is run exclusively, too. If the process dies MaxDeaths times
//     while it does nothing but the finalizer, the job fails.
//
// A death counts only if the process did nothing else. It does not count if a function that took
// too long was left behind in the process. A process that is killed for another reason, by a
// shutdown for example, makes its ranges suspected, and no more: it would have to be killed
// MaxDeaths times, each time during the same entity.

// A Suspicion is what a record keeps of deliveries that may have died: the record of a range keeps
// those of the range, and the record of a job those of its finalizer.
type Suspicion struct {
	// the delivery that has begun, and has not ended
	Begun      string    `datastore:"begun,omitempty,noindex"`
	BegunAt    time.Time `datastore:"begun_at,omitempty,noindex"`    // when that delivery came
	BegunAlone bool      `datastore:"begun_alone,omitempty,noindex"` // its process does nothing else
	// the task of the last deliveries that left a mark, or found one of their own task
	SeenTask string `datastore:"seen_task,omitempty,noindex"`
	// the most attempts that were before one of these
	SeenTry int64 `datastore:"seen_try,omitempty,noindex"`
	// that an attempt follows does not mean that the mark's delivery has ended
	Doubtful bool `datastore:"doubtful,omitempty,noindex"`
	// it has to run while its process does nothing else
	Solo bool `datastore:"solo,omitempty,noindex"`
	// deliveries that seem to have died while they ran one function and nothing else
	Deaths []string `datastore:"deaths,omitempty,noindex"`
	// when each of these counts: until then the delivery may turn out to be alive
	DeathsCountAt []time.Time `datastore:"settled,omitempty,noindex"`
}

// A CrashMark is what a delivery leaves in a record when it begins.
type CrashMark struct {
	Delivery string
	At       time.Time // when the delivery came
	Task     string    // that it is of
	Try      int64     // how many attempts of that task were before
	Alone    bool      // its process does nothing else
}

// Suspected reports whether deliveries have to be exclusive.
func (s *Suspicion) Suspected() bool { return s.Solo || s.Begun != "" }

// Begin leaves a mark. If there is one already, and its delivery must have ended, that delivery's
// process has died: then Begin makes the record Solo, and returns the old mark if that process did
// nothing else. If its delivery may be under way the old mark stays.
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

// ended reports whether the delivery whose mark is in the record must have ended, because another
// one begins. The queue makes an attempt when the attempt before was answered, or when its deadline
// has passed. But the queue may make one attempt twice; and a delivery of another task, which a
// Resume has enqueued for example, means nothing. In these cases only the deadline tells. One case
// can't be seen: of two deliveries of one attempt, the first is answered before it begins, and the
// second goes on. Its mark is taken for a death. That makes the range exclusive, and the death is
// taken back when the delivery ends.
//
// With the mark's own task and attempt alone, without SeenTask, SeenTry and Doubtful, no function
// would be condemned either, but each attempt that comes twice would make its range exclusive
// (TestTwinsAreNoDeaths).
func (s *Suspicion) ended(m CrashMark, now time.Time, deadline time.Duration) bool {
	return s.SeenTask == m.Task && s.SeenTry < m.Try && !s.Doubtful || now.Sub(s.BegunAt) > deadline
}

// noteBehind notes a delivery that leaves no mark because there is one of its own task. If the two
// are of the same attempt, a next attempt does not mean that the mark's delivery has ended.
func (s *Suspicion) noteBehind(m CrashMark) {
	if s.SeenTask == m.Task && s.SeenTry <= m.Try {
		s.SeenTry, s.Doubtful = m.Try, true
	}
}

// Die notes a death of the one function that a delivery ran. If the queue's deadline may have cut
// the delivery off, its process may be alive, and about to say so. The database answers again, as
// it does now, so that won't take long: the death counts after certainAfter.
func (s *Suspicion) Die(m CrashMark, now time.Time, deadline time.Duration) {
	settled := now
	if now.Sub(m.At) >= deadline*9/10 { // clocks differ
		settled = now.Add(certainAfter)
	}
	s.Deaths, s.DeathsCountAt = append(s.Deaths, m.Delivery), append(s.DeathsCountAt, settled)
}

// certainAfter is how long a process that is alive may need to say so once the database answers: it
// tries at least every 30 seconds, see EndTime, and may meet a lock.
const certainAfter = 2 * time.Minute

// Doomed reports whether the function would be condemned if all its deaths counted already. It is
// not run until they do, or are taken back.
func (s *Suspicion) Doomed() bool { return len(s.Deaths) >= MaxDeaths }

// Certain returns when all deaths count that are not taken back until then; zero, if there are
// none.
func (s *Suspicion) Certain() time.Time {
	return slices.MaxFunc(append([]time.Time{{}}, s.DeathsCountAt...), time.Time.Compare)
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

// Alive takes away the mark of a delivery, and its death if it was taken for dead. It reports
// whether there was something to take away. A range that was made Solo or halved stays so.
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

// Calm takes away all marks: the task of whoever left them is over.
func (s *Suspicion) Calm() {
	s.Begun, s.BegunAt, s.BegunAlone, s.SeenTask, s.SeenTry, s.Doubtful = "", time.Time{}, false, "", 0, false
}

// EndTime returns for how long a delivery tries to take its mark away.
func EndTime(deadline time.Duration) time.Duration { return max(deadline, 10*time.Minute) }

// Begin notes that a delivery of the range begins. If the one before has died while its process did
// nothing else, the page is halved, or the death is noted against its single entity.
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

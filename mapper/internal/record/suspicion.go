package record

import (
	"slices"
	"time"
)

// A function may kill the process that runs it: it calls os.Exit, uses up all memory, or panics in
// a goroutine of its own. The process can't report this, and all other work in it dies, too. The
// following rules find the deadly entity without blaming others:
//
//   - A delivery that is not the first of its task writes a crash mark into the record before it
//     runs the function. It removes the mark when it ends normally.
//   - A later delivery may find the mark, and know that the delivery which wrote it must have
//     ended. Then that delivery's process has died.
//   - If that process did other work, too, the range now runs exclusively: its process does nothing
//     else, and other tasks wait.
//   - If that process ran only this range, the page is halved, until it has one entity. The rest of
//     the range also gets halved pages, and runs exclusively from the start.
//   - A single entity gets a range of its own. If MaxDeaths processes die while they run nothing
//     but this entity, the entity is recorded as a failure.
//   - A finalizer whose task is delivered again also runs exclusively. If MaxDeaths processes die
//     while they run nothing but the finalizer, the job fails.
//
// A death counts only if the process did nothing else. It does not count if a stray ran in the
// process: a call that took too long and was abandoned. A process may also be killed for another
// reason, for example by a shutdown. This only makes its ranges suspected. An entity becomes a
// failure only if MaxDeaths processes die, each of them while it runs this entity.

// A Suspicion is the part of a record about deliveries (requests of the queue) that may have died
// together with their process. In a range's record these are deliveries of the range. In a job's
// record they are deliveries that run its finalizer.
type Suspicion struct {
	// Begun is the delivery that wrote the crash mark, see [CrashMark]. It is empty if there is no
	// mark.
	Begun   string    `datastore:"begun,omitempty,noindex"`
	BegunAt time.Time `datastore:"begun_at,omitempty,noindex"` // when the delivery that may have died arrived
	// BegunQuiet says that the process of this delivery did nothing else.
	BegunQuiet bool `datastore:"begun_alone,omitempty,noindex"`
	// SeenTask is the task of the latest deliveries that wrote a mark, or that found a mark of
	// their own task.
	SeenTask string `datastore:"seen_task,omitempty,noindex"`
	// SeenTry is the highest attempt number of these deliveries.
	SeenTry int64 `datastore:"seen_try,omitempty,noindex"`
	// Doubtful says that the delivery that wrote the mark may still run, although the queue has
	// made a later attempt.
	Doubtful bool `datastore:"doubtful,omitempty,noindex"`
	// Solo says that deliveries must run exclusively, that is, while their process does nothing
	// else.
	Solo bool `datastore:"solo,omitempty,noindex"`
	// Deaths are the deliveries that seem to have died while their process did nothing else.
	Deaths []string `datastore:"deaths,omitempty,noindex"`
	// DeathsCountAt says when each of these deaths counts. Until then, the delivery may turn out to
	// be alive.
	DeathsCountAt []time.Time `datastore:"settled,omitempty,noindex"`
}

// A CrashMark is a note that a delivery writes into a record before it runs the function or the
// finalizer, and removes afterwards. If a later delivery still finds the note, the process may have
// died: see [Suspicion].
type CrashMark struct {
	Delivery string
	At       time.Time // when the delivery arrived
	Task     string    // the delivery's task
	Try      int64     // the number of earlier attempts of the task
	Quiet    bool      // whether the process does nothing else
}

// Suspected reports whether deliveries must run exclusively, that is, while their process does
// nothing else.
func (s *Suspicion) Suspected() bool { return s.Solo || s.Begun != "" }

// Begin writes the crash mark m of a delivery that starts into the record. A later delivery that
// still finds the mark knows that the process may have died. If the record already has a mark of
// another delivery, there are two cases:
//
//   - The other delivery must have ended, so its process has died. The record becomes Solo, and m
//     replaces the old mark. If that process did nothing else, the old mark is returned.
//   - The other delivery may still run. Then its mark stays, and m is not written.
func (s *Suspicion) Begin(m CrashMark, now time.Time, deadline time.Duration) (died *CrashMark) {
	switch {
	case s.Begun == "": // the last delivery ended normally, or wrote no mark
	case !s.ended(m, now, deadline):
		s.noteBehind(m)
		return nil
	default:
		if s.BegunQuiet {
			died = &CrashMark{Delivery: s.Begun, At: s.BegunAt}
		}
		s.Solo = true
	}
	s.Doubtful = s.SeenTask != "" && (s.SeenTask != m.Task || s.SeenTry >= m.Try)
	if s.SeenTask != m.Task {
		s.SeenTask, s.SeenTry = m.Task, m.Try
	}
	s.SeenTry = max(s.SeenTry, m.Try)
	s.Begun, s.BegunAt, s.BegunQuiet = m.Delivery, m.At, m.Quiet
	return died
}

// ended reports whether the delivery that wrote the record's crash mark must have ended by now. The
// argument m is the mark of the delivery that starts now.
//
// The queue makes an attempt only after the previous attempt was answered, or its deadline has
// passed. There are two exceptions: the queue may deliver one attempt twice, and a Resume may
// enqueue a second task for the range. In these cases, only the deadline proves that the delivery
// has ended.
//
// One case looks the same as a death. An attempt is delivered twice: the first delivery is answered
// before the second one starts, and the second one still runs at the next attempt. Then the second
// one's mark looks like a death, and makes the range exclusive. When this delivery ends, it takes
// the death back.
//
// SeenTask, SeenTry and Doubtful exist only for speed. Without them, each attempt that is delivered
// twice would make its range exclusive (TestTwinsAreNoDeaths).
func (s *Suspicion) ended(m CrashMark, now time.Time, deadline time.Duration) bool {
	return s.SeenTask == m.Task && s.SeenTry < m.Try && !s.Doubtful || now.Sub(s.BegunAt) > deadline
}

// noteBehind records that the delivery with the mark m has found another delivery's mark, and has
// not replaced it. If both deliveries belong to the same attempt, one of them may still run at the
// next attempt. Then the next attempt does not prove that the other delivery has ended.
func (s *Suspicion) noteBehind(m CrashMark) {
	if s.SeenTask == m.Task && s.SeenTry <= m.Try {
		s.SeenTry, s.Doubtful = m.Try, true
	}
}

// Die records that a delivery, which wrote the mark m, has died while its process did nothing else.
// If the queue's deadline may have ended the request, the delivery may still be alive, and about to
// remove its mark. So its death counts only after certainAfter has passed.
func (s *Suspicion) Die(m CrashMark, now time.Time, deadline time.Duration) {
	settled := now
	if now.Sub(m.At) >= deadline*9/10 { // 90% of the deadline, because clocks differ
		settled = now.Add(certainAfter)
	}
	s.Deaths, s.DeathsCountAt = append(s.Deaths, m.Delivery), append(s.DeathsCountAt, settled)
}

// certainAfter is the longest time that a live process may need to remove its crash mark, while the
// database answers. The process tries at least every 30 seconds (see EndTime), and may wait for a
// lock.
const certainAfter = 2 * time.Minute

// Doomed reports whether there are enough deaths for a final failure, including deaths that are not
// certain yet. Until they are certain or taken back, the function does not run again.
func (s *Suspicion) Doomed() bool { return len(s.Deaths) >= MaxDeaths }

// Certain returns the time from which all recorded deaths count, or the zero time if there are no
// deaths. Until then, a delivery may turn out to be alive.
func (s *Suspicion) Certain() time.Time {
	return slices.MaxFunc(append([]time.Time{{}}, s.DeathsCountAt...), time.Time.Compare)
}

// Died returns how many recorded deaths count at the given time.
func (s *Suspicion) Died(now time.Time) (n int64) {
	for _, at := range s.DeathsCountAt {
		if !at.After(now) {
			n++
		}
	}
	return n
}

// Alive removes the crash mark of a delivery that ends normally. If this delivery counts as dead,
// Alive also removes its death. It reports whether it has removed anything. The range still runs
// exclusively (Solo), and its page stays halved.
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

// Calm removes the crash mark, and what is known about the task that wrote it.
func (s *Suspicion) Calm() {
	s.Begun, s.BegunAt, s.BegunQuiet, s.SeenTask, s.SeenTry, s.Doubtful = "", time.Time{}, false, "", 0, false
}

// EndTime returns for how long a delivery tries to remove its crash mark when it ends.
func EndTime(deadline time.Duration) time.Duration { return max(deadline, 10*time.Minute) }

// Begin writes the crash mark m of a delivery that starts on the range. If the previous delivery
// has died while its process did nothing else, the page is halved. If the range is a single entity,
// the death is recorded instead.
func (r *Range) Begin(m CrashMark, now time.Time, deadline time.Duration) {
	r.Lost = false
	r.Attempts++
	died := r.Suspicion.Begin(m, now, deadline)
	switch {
	case died == nil:
	case r.PageLimit() > 1:
		r.Halve(r.Expected())
	case r.Alone:
		r.Die(*died, now, deadline)
	}
}

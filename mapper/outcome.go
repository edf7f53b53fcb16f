package mapper

import (
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// tooMany reports whether so many entities failed that it is the function that is
// at fault, or the world, and not the entities: more than 10, and more than 5%.
func tooMany(failed, tried int) bool { return failed > 10 && failed*20 > tried }

// An outcome is what became of a page's entities.
type outcome struct {
	reached   int           // how many of its keys were dealt with
	spent     time.Duration // on them, with reading them
	ran       time.Duration // of that, by the function
	hung      time.Duration // of that, by calls that took too long
	dearest   time.Duration // of that, by one entity
	squares   float64       // of the seconds that each took
	inRow     int           // of the last ones, how many were slow, each
	rowTime   time.Duration // and what they took
	processed int64
	counters  tally.Counters
	failures  []failure
	waiting   map[string]time.Time // the ranges of those to try again, and when
	bytes     int                  // of the mutations
	written   map[string]bool      // entities that others put or deleted
	writes    int                  // mutations
	next      *record.Range        // what is left of the range, for the same task
}

type failure struct {
	at        *keyspace.Position
	err       error
	attempts  int64 // that were made
	permanent bool  // another would only repeat it
	suspected bool  // of killing its process; nothing more is known
}

// last reports whether there are no attempts left.
func (f failure) last() bool { return f.permanent || f.attempts >= MaxAttempts }

// fail notes that an entity has failed.
func (o *outcome) fail(p *keyspace.Position, err error, attempts int64) {
	o.failures = append(o.failures, failure{at: p, err: err, attempts: attempts, permanent: fault.IsPermanent(err)})
}

// took notes how long the function took for the last entity, of which it may have hung, and
// what is slow. How long it hung does not count.
func (o *outcome) took(t, hung, slow time.Duration) {
	if o.inRow, o.rowTime = o.inRow+1, o.rowTime+t-hung; t-hung < slow {
		o.inRow, o.rowTime = 0, 0
	}
	o.spent += t
	o.ran += t
	o.hung += hung
	o.dearest = max(o.dearest, t-hung)
	o.squares += t.Seconds() * t.Seconds()
}

// full reports whether a page has to end before an entity, with so many left to do. One that
// is surprising ends early, so that the others begin; and one that needs little more time
// goes on. What the page has put or deleted itself is for the next transaction to read.
func (o *outcome) full(next *datastore.Key, left int, surprising bool, budget time.Duration) bool {
	if o.reached == 0 {
		return false
	}
	if surprising {
		budget /= 3
	} else if needs := o.ran / time.Duration(o.reached) * time.Duration(left); o.spent+needs <= longer(budget) {
		budget = longer(budget)
	}
	return o.spent >= budget || o.bytes >= maxPageBytes || len(o.written) > 0 && o.written[next.Encode()]
}

// longer returns how long a page may take that then has nothing left: twice as long. What is
// left would be a page of its own, and cost as much as a full one.
func longer(budget time.Duration) time.Duration { return max(budget, min(2*budget, maxPageTime)) }

// nextPage returns the size of the next pages: as many entities as fit the budget at
// the pace of those that were dealt with. The dearest one says little of the others. If that
// is about the usual pace of the job, the latter counts: ranges that are cut into pages of a
// size that does not change have fewer that are not full.
func (o *outcome) nextPage(most int64, budget, usual time.Duration) int64 {
	ran, n := o.ran-o.hung, o.reached
	if n > 1 {
		ran, n = ran-o.dearest, n-1
	}
	if o.inRow >= sudden {
		ran, n = o.rowTime-o.dearest, o.inRow-1
	}
	each := max(1, ran/time.Duration(max(1, n)))
	if each < 2*usual && usual < 2*each {
		each = usual
	}
	return max(1, min(int64(budget/each), most))
}

// accept takes over what an entity counted, if its mutations are accepted.
func (o *outcome) accept(e *function.Effect, mutations func(*function.Effect) error) error {
	if err := mutations(e); err != nil {
		return err
	}
	o.counters.Merge(e.Counters)
	return nil
}

// sudden is how many slow entities in a row are a surprise. Of entities whose times are those of
// a heavy tail, Pareto's with an exponent of 1.2, a page of 500 has so many that are nine times
// as slow as the fastest ones less than once in a thousand.
const sudden = 5

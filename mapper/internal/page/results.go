package page

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Results are what the calls of the function over a page have produced: mutations, counters and
// failures, for all its entities.
type Results struct {
	sum
	Reached int           // number of entities that the page has processed
	Spent   time.Duration // time for these entities, including reads
	Ran     time.Duration // the part of Spent in which the function ran
	Again   int64         // number of repeated runs of the function, because other clients had changed an entity

	// Page has the writes that the function of a [mapper.VisitPages] mapper makes for the whole
	// page.
	Page function.Effect

	visits bool // whether the mapper is a Visit, whose function can't write

	mu      sync.Mutex // guards known and results while functions run
	known   others     // the other entities that calls may read
	results []result   // results of the processed entities; empty if the outcome is known without a call

	// shares is the time of ended calls that overlapped with others. Each call counts with its
	// share of Ran.
	shares  time.Duration
	ended   int           // number of entities in these calls
	hung    time.Duration // part of Ran in which calls waited or timed out
	dearest time.Duration // the longest time of the function for one entity
	lately  pace.Lately   // the function's time for recent entities
	late    Late          // reports whether the page should end early for idle workers; nil: never
}

// Failed returns the outcome of a page whose only entity has the failure f. It is for an entity on
// which the function need not be called. A nil f says that the entity no longer exists.
func Failed(f *record.Failure) *Results {
	o := &Results{Reached: 1}
	if f != nil {
		o.Failures = []record.Failure{*f}
	}
	return o
}

// add adds the result of the next entity to the page's results and totals.
func (o *Results) add(r result) {
	o.mu.Lock()
	o.results = append(o.results, r)
	o.mu.Unlock()
	o.sum.add(&r)
	o.Reached++
}

// fold calculates the page's totals again, after results were replaced. If the new results do not
// all fit in one commit, the page ends before the first entity that does not fit. The next page
// processes the rest.
func (o *Results) fold() {
	o.sum = sum{}
	for i := range o.results {
		r := &o.results[i]
		if !o.takes(r.at.Key, r.effect) || o.Bytes >= maxBytes { // the first entity always fits
			o.results, o.Reached = o.results[:i], i
			return
		}
		o.sum.add(r)
	}
}

// A Late is a function that reports whether the page should end before the entity at place (its
// index in the page), so that idle workers can process the rest. The argument left is the number of
// entities from there on.
type Late func(o *Results, place, left int) bool

// Each returns how long the function takes for an entity: the mean of this page or of recent
// entities, whichever is longer. It leaves out the slowest entity, because it says little about the
// others. It also leaves out the time in which calls waited or timed out.
func (o *Results) Each() time.Duration {
	ran, n := o.ran()
	ran -= o.hung
	if n > 1 {
		ran, n = ran-o.dearest, n-1
	}
	return max(ran/time.Duration(max(1, n)), o.lately.Each())
}

// ran returns how long the function ran in total, and the number of entities in this time.
// Overlapping calls share the time.
func (o *Results) ran() (time.Duration, int) {
	if o.ended > 0 {
		return o.shares, o.ended
	}
	return o.Ran, o.Reached
}

// mostKinds is the maximum number of kinds of errors in a log line.
const mostKinds = 5

// Kinds returns the kinds of the failures' errors with their counts, as one text for the log. The
// most frequent kind comes first.
func (o *Results) Kinds() string {
	n := make(map[string]int)
	for _, f := range o.Failures {
		switch {
		case f.Suspected:
			n["suspected of killing its process"]++
		case f.Err != nil:
			n[fault.Kind(f.Err, f.At.Names()...)]++
		}
	}
	kinds := slices.SortedFunc(maps.Keys(n), func(a, b string) int {
		return cmp.Or(cmp.Compare(n[b], n[a]), cmp.Compare(a, b))
	})
	var all []string
	others := 0
	for i, kind := range kinds {
		if i >= mostKinds {
			others += n[kind]
			continue
		}
		all = append(all, fmt.Sprintf("%d %s", n[kind], kind))
	}
	if others > 0 {
		all = append(all, fmt.Sprintf("%d of other kinds", others))
	}
	return strings.Join(all, ", ")
}

// Writes returns the number of mutations that the function has asked for. In a rehearsal it is 0,
// because they are not made.
func (o *Results) Writes() int {
	if o.visits {
		return len(o.Page.Mutations)
	}
	return o.writes + len(o.Page.Mutations)
}

// took adds the time that the function has needed for an entity. The argument hung is the part in
// which the call waited or timed out, which says nothing about the function's speed.
func (o *Results) took(t, hung time.Duration) {
	o.lately.Add(t - hung)
	o.Spent += t
	o.Ran += t
	o.hung += hung
	o.dearest = max(o.dearest, t-hung)
}

// shared adds the time of an ended call that overlapped with others. The argument share is its part
// of the common time, and hung is the part of share in which it waited or timed out. The argument
// first is false if the function has run on the same entity before.
func (o *Results) shared(share, hung time.Duration, first bool) {
	if first {
		o.lately.Add(share - hung)
		o.ended++
	}
	o.shares += share
	o.hung += hung
	o.dearest = max(o.dearest, share-hung)
}

// full reports whether the page must end before the entity at place, its index in the page. The
// arguments: next is the entity's key, left is the number of remaining entities, and budget is the
// setting of the page's time. The page ends if its time is over, or earlier if idle workers can
// process the rest. If only little more time is needed, it continues. The page also ends before an
// entity that it has written, because only the next commit can write this entity again.
func (o *Results) full(next *datastore.Key, place, left int, budget time.Duration) bool {
	if place == 0 {
		return false
	}
	ran, n := o.ran()
	if n > 0 && o.late != nil && o.late(o, place, left) {
		return true
	}
	return o.tookAll(ran/time.Duration(max(1, n))*time.Duration(left), budget) || o.Bytes >= maxBytes ||
		!o.takes(next, nil)
}

// tookAll reports whether the page's time is over. The argument needs is the expected time for the
// remaining entities, and budget is the setting of the page's time, see longer.
func (o *Results) tookAll(needs, budget time.Duration) bool {
	if o.Spent+needs <= longer(budget) {
		budget = longer(budget)
	}
	return o.Spent >= budget
}

// longer returns the time of a page that can finish its range in it: twice the setting budget, but
// at most MaxTime. With the usual time, the few remaining entities would need a page of their own,
// which costs as much as a full one.
func longer(budget time.Duration) time.Duration { return max(budget, min(2*budget, MaxTime)) }

// NextPage returns how many entities the next pages should have, but at most most. It is the number
// that this page would process in the time budget, without its slowest entity. The argument usual
// is the job's usual time for an entity. If this page's time for an entity is within a factor of
// two of it, the usual time counts. Then the page size stays the same, so that fewer ranges end
// with a partial page.
func (o *Results) NextPage(most int64, budget, usual time.Duration) int64 {
	each := max(1, o.Each())
	if each < 2*usual && usual < 2*each {
		each = usual
	}
	return max(1, min(int64(budget/each), most))
}

// Limits of a page. MaxTime is the largest allowed setting of its time. maxBytes limits its
// mutations to a size well below 10 MiB, the limit of a commit.
const (
	MaxTime  = 25 * time.Second
	maxBytes = 4 << 20
)

// Full reports whether the page has reached the job's page size, its time, or the limit of bytes.
func (o *Results) Full(size int64, budget time.Duration) bool {
	return o.Reached >= int(size) || o.Bytes >= maxBytes || o.Spent >= budget
}

// Moves returns how many times other clients have changed the entity of the page to which m
// belongs, since the page has read it.
func (o *Results) Moves(m Moved) int { return o.results[m.of].moves }

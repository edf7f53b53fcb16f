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

// Results are the outcome of a page.
type Results struct {
	sum
	Reached int           // number of entities handled
	Spent   time.Duration // time for these entities, including reads
	Ran     time.Duration // the part of Spent in which the function ran
	Again   int64         // how often the function ran again because an entity was changed

	// Page is what the function over the whole page asks for, in a [mapper.VisitPages] mapper.
	Page function.Effect

	visits bool // whether the mapper is a Visit, whose function can't write

	mu      sync.Mutex // guards known and results while functions run
	known   others     // the other entities that calls may read
	results []result   // results of the entities handled; empty if the outcome is known without a call

	shares  time.Duration // time of concurrent calls that have ended, each call's share of Ran
	ended   int           // the number of entities in concurrent calls that have ended
	hung    time.Duration // part of Ran in which calls waited or timed out
	dearest time.Duration // the longest time of the function for one entity
	lately  pace.Lately   // the function's time for recent entities
	late    Late          // reports whether the page ends early to share its work; nil: never
}

// Failed returns the outcome of a page whose only entity has the failure f, without a call of the
// function. A nil f says that the entity no longer exists.
func Failed(f *record.Failure) *Results {
	o := &Results{Reached: 1}
	if f != nil {
		o.Failures = []record.Failure{*f}
	}
	return o
}

// add adds the result of the next entity.
func (o *Results) add(r result) {
	o.mu.Lock()
	o.results = append(o.results, r)
	o.mu.Unlock()
	o.sum.add(&r)
	o.Reached++
}

// fold recomputes the sum after results were replaced. If the new results do not all fit into one
// commit, the page ends before the first entity that does not fit, and the next page takes the
// rest.
func (o *Results) fold() {
	o.sum = sum{}
	for i := range o.results {
		r := &o.results[i]
		if !o.takes(r.at.Key, r.effect) || o.Bytes >= maxBytes { // never the first one
			o.results, o.Reached = o.results[:i], i
			return
		}
		o.sum.add(r)
	}
}

// A Late is a function that reports whether the page has to end before the entity at place, so that
// idle workers can take the left entities that remain.
type Late func(o *Results, place, left int) bool

// Each returns the function's time per entity: the mean of this page or of recent entities,
// whichever is longer. It leaves out the slowest entity, which says little about the others, and
// time in which calls waited or timed out.
func (o *Results) Each() time.Duration {
	ran, n := o.ran()
	ran -= o.hung
	if n > 1 {
		ran, n = ran-o.dearest, n-1
	}
	return max(ran/time.Duration(max(1, n)), o.lately.Each())
}

// ran returns the function's total time, and the number of entities in it. Concurrent calls share
// the time.
func (o *Results) ran() (time.Duration, int) {
	if o.ended > 0 {
		return o.shares, o.ended
	}
	return o.Ran, o.Reached
}

// mostKinds is how many kinds of errors a log line lists at most.
const mostKinds = 5

// Kinds returns the kinds of the failures' errors with their counts as one text, the most frequent
// kind first.
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

// Writes returns the number of mutations that the function has asked for.
func (o *Results) Writes() int { return o.writes + len(o.Page.Mutations) }

// took adds the function's time for an entity. The part hung, in which the call waited or timed
// out, says nothing about the function's pace.
func (o *Results) took(t, hung time.Duration) {
	o.lately.Add(t - hung)
	o.Spent += t
	o.Ran += t
	o.hung += hung
	o.dearest = max(o.dearest, t-hung)
}

// shared adds the time of a concurrent call that has ended: its share of the common time, and the
// part of the share in which it waited or timed out. If first is not set, the function ran on the
// same entity before.
func (o *Results) shared(share, hung time.Duration, first bool) {
	if first {
		o.lately.Add(share - hung)
		o.ended++
	}
	o.shares += share
	o.hung += hung
	o.dearest = max(o.dearest, share-hung)
}

// full reports whether the page has to end before the entity at place, with left entities
// remaining. It ends if its time is over, or early if idle workers can take the rest. A page that
// needs little more time goes on. The page also ends before an entity that it has written, because
// only the next commit can change that again.
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

// tookAll reports whether the page's time is over. The remaining entities are expected to need the
// time needs.
func (o *Results) tookAll(needs, budget time.Duration) bool {
	if o.Spent+needs <= longer(budget) {
		budget = longer(budget)
	}
	return o.Spent >= budget
}

// longer returns the time for a page that can finish its range in it: twice the normal budget.
// Otherwise the few remaining entities would need a page of their own, which costs as much as a
// full one.
func longer(budget time.Duration) time.Duration { return max(budget, min(2*budget, MaxTime)) }

// NextPage returns how many entities the next pages should have: as many as fit into the budget at
// the speed of this page, without its slowest entity. If the speed is within a factor of two of the
// job's usual one, the usual one counts. With a constant page size, fewer ranges end with a partial
// page.
func (o *Results) NextPage(most int64, budget, usual time.Duration) int64 {
	each := max(1, o.Each())
	if each < 2*usual && usual < 2*each {
		each = usual
	}
	return max(1, min(int64(budget/each), most))
}

// Limits of a page. MaxTime is the longest setting for its time. maxBytes limits its mutations,
// well below the 10 MiB of a commit.
const (
	MaxTime  = 25 * time.Second
	maxBytes = 4 << 20
)

// Full reports whether the page has reached the job's page size, its time, or the limit of bytes.
func (o *Results) Full(size int64, budget time.Duration) bool {
	return o.Reached >= int(size) || o.Bytes >= maxBytes || o.Spent >= budget
}

// Moves returns how often other clients have changed the page's entity that m belongs to.
func (o *Results) Moves(m Moved) int { return o.results[m.of].moves }

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

// Results are what became of a page's entities.
type Results struct {
	sum
	Reached int           // how many of its keys were dealt with
	Spent   time.Duration // on them, with reading them
	Ran     time.Duration // of that, by the function
	Again   int64         // how often the function has run again on one of them

	// Page is what the function over the page asks for.
	Page function.Effect

	visits bool // what the function asks for is not written
	inHand hand // the call under way, of a page with one at once

	mu      sync.Mutex // of the two below, while functions run
	known   others     // that the functions may read
	results []result   // of those that were reached; none, of an outcome that is known without the function

	shares  time.Duration // of Ran, by calls that have ended, of a page with several at once
	ended   int           // entities that they are of
	hung    time.Duration // of Ran, by calls that took too long
	dearest time.Duration // of Ran, by one entity
	lately  pace.Lately   // what the function took for the last ones
	late    Late          // nil: it never ends for the sake of others
}

// Failed returns the outcome of a page of one entity, which has failed; nil: it is not there any
// more.
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

// fold adds up the results anew, some of which were replaced. What the page then can't have any
// more is for the next one.
func (o *Results) fold() {
	o.sum = sum{}
	for i := range o.results {
		r := &o.results[i]
		if i > 0 && (!o.takes(r.at.Key, r.effect) || o.Bytes >= maxBytes) {
			o.results, o.Reached = o.results[:i], i
			return
		}
		o.sum.add(r)
	}
}

// Late reports whether a page ends at a place, with so many entities left, so that others can begin
// with them.
type Late func(o *Results, place, left int) bool

// Each returns how long the function takes for an entity here: on this page or, if that is longer,
// of late. It leaves out the dearest one, which says little of the others, and the time for which
// the function hung.
func (o *Results) Each() time.Duration {
	ran, n := o.ran()
	ran -= o.hung
	if n > 1 {
		ran, n = ran-o.dearest, n-1
	}
	return max(ran/time.Duration(max(1, n)), o.lately.Each())
}

// ran returns how long the function has run, and on how many entities. Calls that are under way at
// the same time share it.
func (o *Results) ran() (time.Duration, int) {
	if o.ended > 0 {
		return o.shares, o.ended
	}
	return o.Ran, o.Reached
}

// mostKinds is how many kinds of errors are named in a line of the log.
const mostKinds = 5

// Kinds returns of which kinds the errors of the failures are, and how many of each: the most
// frequent ones first.
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

// Compared returns how many entities the page's transaction reads to compare them.
func (o *Results) Compared() int { return o.compared }

// Writes returns how many mutations the function has asked for.
func (o *Results) Writes() int { return o.writes + len(o.Page.Mutations) }

// took notes how long the function took for the last entity, of which it may have hung. How long it
// hung does not count.
func (o *Results) took(t, hung time.Duration) {
	o.lately.Add(t - hung)
	o.Spent += t
	o.Ran += t
	o.hung += hung
	o.dearest = max(o.dearest, t-hung)
}

// shared notes that a call has ended, which took a share of the time in which others ran too, and
// of which it may have hung. First is false if the function ran on its entity before.
func (o *Results) shared(share, hung time.Duration, first bool) {
	if first {
		o.lately.Add(share - hung)
		o.ended++
	}
	o.shares += share
	o.hung += hung
	o.dearest = max(o.dearest, share-hung)
}

// full reports whether a page has to end before the entity at a place, with so many left to do. One
// that is late ends early, so that the others begin; and one that needs little more time
// goes on. What the page has put or deleted itself is for the next transaction to read.
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

// tookAll reports whether a page has taken its time, which needs more for its rest.
func (o *Results) tookAll(needs, budget time.Duration) bool {
	if o.Spent+needs <= longer(budget) {
		budget = longer(budget)
	}
	return o.Spent >= budget
}

// longer returns how long a page may take that then has nothing left: twice as long. What is
// left would be a page of its own, and cost as much as a full one.
func longer(budget time.Duration) time.Duration { return max(budget, min(2*budget, MaxTime)) }

// NextPage returns the size of the next pages: as many entities as fit the budget at
// the pace of those that were dealt with. The dearest one says little of the others. If that
// is about the usual pace of the job, the latter counts: ranges that are cut into pages of a
// size that does not change have fewer that are not full.
func (o *Results) NextPage(most int64, budget, usual time.Duration) int64 {
	each := max(1, o.Each())
	if each < 2*usual && usual < 2*each {
		each = usual
	}
	return max(1, min(int64(budget/each), most))
}

// MaxTime is the longest that a page may be asked to take, and maxBytes bounds its mutations, well
// below the 10 MiB that a commit can have.
const (
	MaxTime  = 25 * time.Second
	maxBytes = 4 << 20
)

// Full reports whether the page was a full one, of a job whose pages have so many entities and take
// so long.
func (o *Results) Full(size int64, budget time.Duration) bool {
	return o.Reached >= int(size) || o.Bytes >= maxBytes || o.Spent >= budget
}

// Moves returns how often an entity of the page was found changed.
func (o *Results) Moves(m Moved) int { return o.results[m.of].moves }

package pace

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/scattermap/scattermap/internal/setting"
)

// A Limit holds the highest rates of a job: entities, writes and calls a second. A zero rate is
// unlimited. If Ramp is set, the rates of entities and writes also start low and grow with time. A
// Limit is stored as JSON in the job's record.
type Limit struct {
	EntitiesPerSecond float64 `json:"entities,omitempty"`
	WritesPerSecond   float64 `json:"writes,omitempty"`
	CallsPerSecond    float64 `json:"calls,omitempty"`
	Ramp              bool    `json:"ramp,omitempty"`
}

// A Need is an amount of work: numbers of entities, writes and calls. It is also used as a rate:
// how many of each are allowed in a second.
type Need struct{ Entities, Writes, Calls float64 }

// times returns the need multiplied by a factor.
func (n Need) times(by float64) Need { return Need{by * n.Entities, by * n.Writes, by * n.Calls} }

// parts returns the numbers of entities, writes and calls, in this order.
func (n Need) parts() [3]float64 { return [...]float64{n.Entities, n.Writes, n.Calls} }

// seconds returns how long the work n takes at a rate, in seconds: the longest of the times for
// entities, for writes and for calls.
func (n Need) seconds(rate Need) (longest float64) {
	rates := rate.parts()
	for i, part := range n.parts() {
		if !math.IsInf(rates[i], 1) {
			longest = max(longest, part/rates[i])
		}
	}
	return longest
}

// quantities are the nouns for the three numbers of a Need, for people.
var quantities = [...]string{"entities", "writes", "calls"}

// fields are the names of the fields of mapper.Rate for the three numbers of a Need.
var fields = [...]setting.Name{"EntitiesPerSecond", "WritesPerSecond", "CallsPerSecond"}

// set returns the rates that the user has set, without the ramp.
func (r Limit) set() Need { return Need{r.EntitiesPerSecond, r.WritesPerSecond, r.CallsPerSecond} }

// The ramp "500/50/5" of Datastore's best practices: start with 500 a second, and add 50% every
// five minutes.
const (
	rampFirst  = 500
	rampFactor = 1.5
	rampEvery  = 5 * time.Minute
)

// rateWait is how long a page of entities may wait for the job's rate, on average. If the queue has
// a short deadline, it is less, see WaitWithin.
const rateWait = 20 * time.Second

// WaitWithin returns how long a page of entities may wait for the job's rate, on average: rateWait,
// but at most a 20th of the queue's deadline. Then enough time is left for the page itself.
func WaitWithin(deadline time.Duration) time.Duration { return min(rateWait, deadline/20) }

// at returns the allowed rates when the time since has passed since the start of the ramp.
func (r Limit) at(since time.Duration) Need {
	ramp, no := math.Inf(1), math.Inf(1)
	if r.Ramp {
		ramp = rampFirst * math.Pow(rampFactor, math.Floor(float64(max(0, since))/float64(rampEvery)))
	}
	least := func(ramp, set float64) float64 {
		if set > 0 {
			return min(ramp, set)
		}
		return ramp
	}
	return Need{least(ramp, r.EntitiesPerSecond), least(ramp, r.WritesPerSecond), least(no, r.CallsPerSecond)}
}

// Becomes returns a text for the log and the job's history, which says that the job's rate was
// changed to this limit.
func (r Limit) Becomes() string {
	var parts []string
	for i, n := range r.set().parts() {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%g %s a second", n, quantities[i]))
		}
	}
	if r.Ramp {
		parts = append(parts, "a ramp")
	}
	if len(parts) == 0 {
		return "its rate is not limited any more"
	}
	return "its rate is set to " + strings.Join(parts, ", ")
}

// Says returns a text for people that says how fast a job with this limit may be now. The argument
// since is the time since the start of the ramp. Without a limit, Says returns "".
func (r Limit) Says(since time.Duration) string {
	now := r.at(since)
	says, rest := "it", r.set()
	if r.Ramp && !(0 < rest.Entities && rest.Entities <= now.Entities) &&
		!(0 < rest.Writes && rest.Writes <= now.Writes) {
		says += fmt.Sprintf(" is on its ramp, at %.0f entities and writes a second", now.Entities)
		if rest = (Need{Calls: rest.Calls}); rest.Calls == 0 {
			return says
		}
		says += ", and"
	}
	var parts []string
	for i, n := range rest.parts() {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%g %s", now.parts()[i], quantities[i]))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	last := len(parts) - 1
	if last > 0 {
		parts = []string{strings.Join(parts[:last], ", "), parts[last]}
	}
	return fmt.Sprintf("%s keeps to its rate of %s a second", says, strings.Join(parts, " and "))
}

// Near reports whether a job is at 70% or more of the allowed speed. It processes the given number
// of entities a second. The argument each is the work for one entity, without scattermap's own
// records, and since is the time since the start of the ramp.
func (r Limit) Near(entities float64, each Need, since time.Duration) bool {
	const near = 0.7
	return each.times(entities).seconds(r.at(since)) >= near
}

// Entities returns how many entities a second are allowed; 0: no limit. The argument each is the
// work for one entity, and since is the time since the start of the ramp.
func (r Limit) Entities(each Need, since time.Duration) float64 {
	if seconds := each.seconds(r.at(since)); seconds > 0 {
		return 1 / seconds
	}
	return 0
}

// FirstPaced is the largest number of entities in a page while writes are limited and it is unknown
// how many writes the function makes.
const FirstPaced = 10

// WritesLimited reports whether the job's writes are limited, by a rate or by a ramp.
func (r Limit) WritesLimited() bool { return r.WritesPerSecond > 0 || r.Ramp }

// RecordWrites is the number of scattermap's own records that one commit of a page of entities
// writes.
const RecordWrites = 2

// Cost returns for how long a page with these numbers of entities and writes uses the whole rate.
// It adds the writes of scattermap's own records. The argument since is the time since the start of
// the ramp.
func (r Limit) Cost(entities, writes float64, since time.Duration) time.Duration {
	return upTo(time.Hour, Need{Entities: entities, Writes: writes + RecordWrites}.seconds(r.at(since)))
}

// upTo converts seconds into a duration, which is at most most.
func upTo(most time.Duration, seconds float64) time.Duration {
	return time.Duration(min(seconds, most.Seconds()) * float64(time.Second))
}

// OfPages returns the part of the limit for which a page waits as a whole: entities and writes. It
// leaves out calls, because each call waits separately.
func (r Limit) OfPages() Limit {
	r.CallsPerSecond = 0
	return r
}

// Page returns how many entities a page may have, up to size. The argument each is the number of
// writes for one entity. The pages in q come before the page, and most is the longest time that a
// page should wait.
//
// A page should use the whole rate for a second. At a low rate it uses it for longer, until it has
// ten entities, or ten times the writes of scattermap's own records. Two bounds reduce this time.
// If all pages in q were as long as this one, none of them may wait for longer than most. And the
// page may use at most half of the time that is left of most after its own wait.
func (r Limit) Page(size int, each float64, since time.Duration, q Queue, most time.Duration) int {
	rate := r.at(since)
	entities, writes := rate.Entities, rate.Writes
	seconds := min(max(1, 10/entities, 10*RecordWrites/writes), most.Seconds()/(q.Pages+2), (most-q.Wait).Seconds()/2)
	fit := float64(size)
	if !math.IsInf(entities, 1) { // infinity times 0 seconds would be NaN
		fit = min(fit, entities*seconds)
	}
	if !math.IsInf(writes, 1) && each > 0 {
		fit = min(fit, (writes*seconds-RecordWrites)/each)
	}
	return int(max(1, fit))
}

// Validate returns an error if the limit is too low for this number of workers and the queue's
// dispatch deadline. The argument name is the name of the limit's setting, for the error.
func (r Limit) Validate(name setting.Name, workers int64, deadline time.Duration) error {
	wait := WaitWithin(deadline)
	slowest := float64(workers) / wait.Seconds()
	slowest *= 1 - 1e-9 // this allows for rounding errors
	each := Need{Entities: 1, Writes: 1 + RecordWrites, Calls: 1}.times(slowest).parts()
	for i, n := range r.set().parts() {
		switch field := name + "." + fields[i]; {
		case !(n >= 0) || math.IsInf(n, 1):
			return setting.Errorf("%s has to be at least 0, it is %v", field, n)
		case n > 0 && n < each[i]:
			return setting.Errorf("%s has to be at least %v a second for %d workers, as each waits for up to %v; "+
				"it is %v: raise it, or %s", field, setting.Up(each[i]), workers, wait, n,
				fewer(n*float64(workers)/each[i]))
		}
	}
	if least := each[1]; r.Ramp && rampFirst < least {
		return setting.Errorf("%s begins with %d a second, which is too little for %d workers, as each waits for up "+
			"to %v: it has to be at least %v; %s", name+".Ramp", rampFirst, workers, wait, setting.Up(least),
			fewer(rampFirst*float64(workers)/least))
	}
	return nil
}

// fewer returns a text that tells the user how to limit the number of workers to the argument.
func fewer(workers float64) string {
	return fmt.Sprintf("let the queue deliver at most %d tasks at once (its max-concurrent-dispatches), and expect no "+
		"more workers", max(1, int(workers)))
}

// MaxTakes is the longest time that is estimated: a hundred years.
const MaxTakes = 100 * 365 * 24 * time.Hour

// Takes returns the least time that the work need takes at this limit, from the start of the ramp
// on.
func (r Limit) Takes(need Need) time.Duration {
	after := r
	after.Ramp = false
	most := after.at(0)
	for t := time.Duration(0); ; t += rampEvery {
		now := r.at(t)
		rest := upTo(MaxTakes, need.seconds(now))
		if rest <= rampEvery || now == most { // the ramp has reached the set rates, or there is none
			return t + rest
		}
		done := rampEvery.Seconds()
		need = Need{max(0, need.Entities-now.Entities*done), max(0, need.Writes-now.Writes*done),
			max(0, need.Calls-now.Calls*done)}
	}
}

package pace

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/scattermap/scattermap/internal/setting"
)

// A Limit is the highest rate of a job, in entities and in writes a second; 0: unlimited. Ramp
// adds the limit of the ramp. A Limit is stored as JSON in the job's record.
type Limit struct {
	EntitiesPerSecond float64 `json:"entities,omitempty"`
	WritesPerSecond   float64 `json:"writes,omitempty"`
	Ramp              bool    `json:"ramp,omitempty"`
}

// These constants are the ramp of Datastore's best practices: "500/50/5".
const (
	rampFirst  = 500
	rampFactor = 1.5
	rampEvery  = 5 * time.Minute
)

// rateWait is the longest time that a page waits for the rate on average. A short deadline lowers
// it.
const rateWait = 20 * time.Second

// WaitWithin returns rateWait, lowered to a 20th of a queue's deadline, so that the page itself
// has enough time.
func WaitWithin(deadline time.Duration) time.Duration { return min(rateWait, deadline/20) }

// at returns the allowed rates at a time after the start of the ramp.
func (r Limit) at(since time.Duration) (entities, writes float64) {
	entities, writes = math.Inf(1), math.Inf(1)
	if r.Ramp {
		entities = rampFirst * math.Pow(rampFactor, math.Floor(float64(max(0, since))/float64(rampEvery)))
		writes = entities
	}
	if r.EntitiesPerSecond > 0 {
		entities = min(entities, r.EntitiesPerSecond)
	}
	if r.WritesPerSecond > 0 {
		writes = min(writes, r.WritesPerSecond)
	}
	return entities, writes
}

// Becomes returns the line of the log and of the history that says that a job's rate was changed to
// this limit.
func (r Limit) Becomes() string {
	var parts []string
	if r.EntitiesPerSecond > 0 {
		parts = append(parts, fmt.Sprintf("%g entities a second", r.EntitiesPerSecond))
	}
	if r.WritesPerSecond > 0 {
		parts = append(parts, fmt.Sprintf("%g writes a second", r.WritesPerSecond))
	}
	if r.Ramp {
		parts = append(parts, "a ramp")
	}
	if len(parts) == 0 {
		return "its rate is not limited any more"
	}
	return "its rate is set to " + strings.Join(parts, ", ")
}

// Says describes in one line how fast a job with this limit may go, at a time after the start of
// the ramp. It is empty without a limit.
func (r Limit) Says(since time.Duration) string {
	switch entities, writes := r.at(since); {
	case r.Ramp && (r.EntitiesPerSecond == 0 || r.EntitiesPerSecond > entities) &&
		(r.WritesPerSecond == 0 || r.WritesPerSecond > writes):
		return fmt.Sprintf("it is on its ramp, at %.0f entities and writes a second", entities)
	case math.IsInf(entities, 1) && math.IsInf(writes, 1):
		return ""
	case math.IsInf(writes, 1) || r.WritesPerSecond == 0:
		return fmt.Sprintf("it keeps to its rate of %g entities a second", entities)
	case math.IsInf(entities, 1) || r.EntitiesPerSecond == 0:
		return fmt.Sprintf("it keeps to its rate of %g writes a second", writes)
	default:
		return fmt.Sprintf("it keeps to its rate of %g entities and %g writes a second", entities, writes)
	}
}

// Near reports whether a job at this rate is at least at 70% of what it may reach. It has that many
// writes for each entity, without its own records.
func (r Limit) Near(entities, writesEach float64, since time.Duration) bool {
	const near = 0.7
	mostEntities, mostWrites := r.at(since)
	return entities >= near*mostEntities || entities*writesEach >= near*mostWrites
}

// Entities returns how many entities a second are allowed, with that many writes for each; 0: no
// limit.
func (r Limit) Entities(writesEach float64, since time.Duration) float64 {
	entities, writes := r.at(since)
	if writesEach > 0 {
		entities = min(entities, writes/writesEach)
	}
	if math.IsInf(entities, 1) {
		return 0
	}
	return entities
}

// FirstPaced is the highest number of entities in a page whose writes are limited, as long as the
// process does not know the function's writes for an entity.
const FirstPaced = 10

// WritesLimited reports whether writes are limited.
func (r Limit) WritesLimited() bool { return r.WritesPerSecond > 0 || r.Ramp }

// RecordWrites is the number of a page's own writes of records.
const RecordWrites = 2

// Cost returns for how long a page uses the whole rate. Writes excludes the page's own writes of
// records.
func (r Limit) Cost(entities, writes float64, since time.Duration) time.Duration {
	perSecond, writesPerSecond := r.at(since)
	seconds := max(entities/perSecond, (writes+RecordWrites)/writesPerSecond)
	return time.Duration(min(seconds, time.Hour.Seconds()) * float64(time.Second))
}

// Page returns how many of size entities a page may have after a queue of other pages. each is the
// number of writes for an entity, and most is the longest wait of a page.
//
// A page should use the rate for a second. At a low rate it uses it for longer: for ten entities,
// or for ten times the page's own writes of records. There are two bounds. If all pages in the
// queue have that size, none of them waits for longer than most. And the page uses at most half of
// the time that remains until most.
func (r Limit) Page(size int, each float64, since time.Duration, q Queue, most time.Duration) int {
	entities, writes := r.at(since)
	seconds := min(max(1, 10/entities, 10*RecordWrites/writes), most.Seconds()/(q.Pages+2), (most-q.Wait).Seconds()/2)
	fit := entities * seconds
	if !math.IsInf(writes, 1) && each > 0 {
		fit = min(fit, (writes*seconds-RecordWrites)/each)
	}
	return int(max(1, min(fit, float64(size))))
}

// Validate returns an error if a limit is invalid for this number of workers and a queue's
// deadline. Errors call the limit by the given name.
func (r Limit) Validate(name setting.Name, workers int64, deadline time.Duration) error {
	wait := WaitWithin(deadline)
	slowest := float64(workers) / wait.Seconds()
	switch {
	case !(r.EntitiesPerSecond >= 0) || math.IsInf(r.EntitiesPerSecond, 1):
		return setting.Errorf("%s has to be at least 0, it is %v", name+".EntitiesPerSecond", r.EntitiesPerSecond)
	case !(r.WritesPerSecond >= 0) || math.IsInf(r.WritesPerSecond, 1):
		return setting.Errorf("%s has to be at least 0, it is %v", name+".WritesPerSecond", r.WritesPerSecond)
	case r.EntitiesPerSecond > 0 && r.EntitiesPerSecond < slowest:
		return setting.Errorf("%s has to be at least %.3g a second for %d workers, as each waits for "+
			"up to %v; it is %v: give the job and its queue fewer workers", name+".EntitiesPerSecond", slowest, workers,
			wait,
			r.EntitiesPerSecond)
	case r.Ramp && rampFirst < (1+RecordWrites)*slowest:
		return setting.Errorf("%s begins with %d a second, which is too little for %d workers, as each waits for up "+
			"to %v: it has to be at least %.3g; give the job and its queue fewer workers", name+".Ramp", rampFirst,
			workers,
			wait, (1+RecordWrites)*slowest)
	case r.WritesPerSecond > 0 && r.WritesPerSecond < (1+RecordWrites)*slowest:
		return setting.Errorf("%s has to be at least %.3g a second for %d workers, as each waits for up "+
			"to %v; it is %v: give the job and its queue fewer workers", name+".WritesPerSecond",
			(1+RecordWrites)*slowest,
			workers, wait,
			r.WritesPerSecond)
	}
	return nil
}

// MaxTakes bounds an estimate of time: a hundred years.
const MaxTakes = 100 * 365 * 24 * time.Hour

// Takes returns how long these entities and writes take within the limit.
func (r Limit) Takes(entities, writes float64) time.Duration {
	most, mostWrites := Limit{EntitiesPerSecond: r.EntitiesPerSecond, WritesPerSecond: r.WritesPerSecond}.at(0)
	for t := time.Duration(0); ; t += rampEvery {
		perSecond, writesPerSecond := r.at(t)
		rest := time.Duration(min(max(entities/perSecond, writes/writesPerSecond),
			MaxTakes.Seconds()) * float64(time.Second))
		// the ramp is over, or there is none
		if rest <= rampEvery || perSecond == most && writesPerSecond == mostWrites {
			return t + rest
		}
		entities = max(0, entities-perSecond*rampEvery.Seconds())
		writes = max(0, writes-writesPerSecond*rampEvery.Seconds())
	}
}

package picture

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/scattermap/scattermap/mapper"
)

// A Slot is the place of a range on a strip: a line that stands for the key space. X and Width have
// the unit of the width that was passed to [Picture.Slots].
type Slot struct {
	Range int     // the index of the slot's range in Picture.Ranges
	X     float64 // the distance of the range's start from the left end
	Width float64 // the width; 0 for a range of a single entity, which is also part of a page
}

// Slots returns the places of the ranges on a strip with the given width, in the order of Ranges.
// The width of a range is proportional to its number of entities. But if there is enough room, each
// range has at least a thousandth of the strip.
func (p *Picture) Slots(width float64) []Slot {
	var weights []float64
	for i := range p.Ranges {
		if r := &p.Ranges[i]; !r.Alone {
			weights = append(weights, r.entities())
		}
	}
	slices.Sort(weights)
	least := width / float64(max(1000, 2*len(weights)))
	each, thin := perEntity(weights, width, least)
	slots, x := make([]Slot, len(p.Ranges)), 0.0
	for i := range p.Ranges {
		slots[i] = Slot{Range: i, X: x}
		if r := &p.Ranges[i]; !r.Alone {
			slots[i].Width = thin
			if w := each * r.entities(); w > thin {
				slots[i].Width = w
			}
			x += slots[i].Width
		}
	}
	return slots
}

// perEntity returns the width of one entity on a strip, each, and the smallest width of a range,
// thin. The argument weights has the sorted numbers of the ranges' entities, and width is the width
// of the strip. Ranges that would be thinner than the argument least get the width least.
func perEntity(weights []float64, width, least float64) (each, thin float64) {
	total := 0.0
	for _, w := range weights {
		total += w
	}
	if total == 0 {
		return 0, width / float64(max(1, len(weights)))
	}
	for _, w := range weights {
		if w*width/total >= least {
			break
		}
		width, total = width-least, total-w
	}
	return width / total, least
}

// Conditions for a slow page. Its time for an entity is more than slowness times the median, and it
// took at least slowLoss longer than at the median. Without the second condition, short pages would
// count as slow by chance.
const (
	slowness = 3
	slowLoss = 100 * time.Millisecond
)

// markSlow sets the state of each slow range to [Slow].
func (p *Picture) markSlow() {
	middle := quantile(p.paces(), 0.5)
	for i := range p.Ranges {
		r := &p.Ranges[i]
		if lost := r.Ran - time.Duration(middle*float64(r.Entities)); r.State == Done && middle > 0 &&
			float64(r.Pace()) > slowness*middle && lost >= slowLoss {
			r.State = Slow
		}
	}
}

// paces returns the function's mean time for an entity in each page, sorted.
func (p *Picture) paces() (all []float64) {
	for i := range p.Ranges {
		if r := &p.Ranges[i]; !r.Alone && r.Pace() > 0 {
			all = append(all, float64(r.Pace()))
		}
	}
	slices.Sort(all)
	return all
}

// quantile returns a quantile of a sorted list: the given share of the numbers is less than or
// equal to the result. It returns 0 if the list is empty.
func quantile(all []float64, share float64) float64 {
	if len(all) == 0 {
		return 0
	}
	return all[min(len(all)-1, int(share*float64(len(all))))]
}

// A Colour is a property of a range, such as its state or pace. On a strip, the range's colour
// shows this property: see [Picture.Classes].
type Colour string

// The properties that colours can show.
const (
	ByState    Colour = "state"    // colours show the states of the ranges
	ByPace     Colour = "pace"     // colours show the function's mean time for an entity of the range's page
	ByAttempts Colour = "attempts" // colours show the number of failed attempts
	ByTime     Colour = "time"     // colours show when the range was done
)

// Colours lists all properties that colours can show.
var Colours = []Colour{ByState, ByPace, ByAttempts, ByTime}

// None is the class of a range without a value of the [Colour]: it is pending, or had no entities.
const None = -1

// Classes divides the ranges into up to five classes, by state, pace, attempts or time. A program
// can give each class a colour. The class of Ranges[i] is classes[i]: an index into names, or
// [None]. The names describe the classes, such as "running" or "to 20ms".
func (p *Picture) Classes(by Colour) (classes []int, names []string) {
	classOf := p.byState
	switch by {
	case ByState:
		names = []string{string(Pending), string(Running), string(Done), string(Slow), string(Failed)}
	case ByPace:
		classOf, names = p.byPace()
	case ByAttempts:
		classOf, names = byAttempts, []string{"none", "1", "2", "3 to 5", "6 or more"}
	case ByTime:
		classOf, names = p.byTime()
	}
	classes = make([]int, len(p.Ranges))
	for i := range p.Ranges {
		classes[i] = classOf(&p.Ranges[i])
	}
	return classes, names
}

func (*Picture) byState(r *Range) int {
	return slices.Index([]State{Pending, Running, Done, Slow, Failed}, r.State)
}

// byPace returns classes by pace: the function's mean time for an entity. Each class is a doubling
// of the time, around the median. The returned function finds the class of a range, and the texts
// are the names of the classes.
func (p *Picture) byPace() (func(*Range) int, []string) {
	middle := quantile(p.paces(), 0.5)
	if middle == 0 {
		return func(*Range) int { return None }, nil
	}
	at := func(factor float64) string { return brief(time.Duration(middle * factor)) }
	names := []string{"below " + at(0.5), "to " + at(1), "to " + at(2), "to " + at(4), "above"}
	return func(r *Range) int {
		if r.Pace() == 0 {
			return None
		}
		return min(4, max(0, int(math.Ceil(math.Log2(float64(r.Pace())/middle)))+1))
	}, names
}

// brief formats a duration with about two digits.
func brief(d time.Duration) string {
	for unit := time.Duration(1); unit <= time.Second; unit *= 10 {
		if d < 100*unit {
			return d.Round(unit).String()
		}
	}
	return d.Round(time.Second).String()
}

func byAttempts(r *Range) int {
	switch n := r.FailedAttempts(); {
	case n <= 2:
		return int(n)
	case n <= 5:
		return 3
	}
	return 4
}

// parts is the number of classes of ByTime.
const parts = 5

// byTime returns classes by the time when a range was done: one for each fifth of the job's time.
// The returned function finds the class of a range, and the texts are the names of the classes.
func (p *Picture) byTime() (func(*Range) int, []string) {
	took := max(1, p.Until.Sub(p.Begun))
	var names []string
	for i := range parts {
		names = append(names, fmt.Sprintf("to %s", brief(took*time.Duration(i+1)/parts)))
	}
	return func(r *Range) int {
		if r.Done.IsZero() {
			return None
		}
		return min(parts-1, max(0, int(parts*r.Done.Sub(p.Begun)/took)))
	}, names
}

// A timing holds what is needed to estimate when the delivery of a page has arrived.
type timing struct {
	usual  time.Duration  // the median time from a page's start to its commit; 0: unknown
	halted [][2]time.Time // spans of time in which the job did not run, each from start to end
}

// timing measures the usual time of a page, from pages that followed another page of the same task.
// From the job's history it takes the times in which the job did not run.
func (p *Picture) timing() timing {
	var t timing
	var from time.Time
	for _, a := range p.History {
		switch runs := a.State == mapper.StateRunning; {
		case !runs && from.IsZero():
			from = a.Time
		case runs && !from.IsZero():
			t.halted, from = append(t.halted, [2]time.Time{from, a.Time}), time.Time{}
		}
	}
	var all []float64
	for i := range p.Ranges {
		if r := &p.Ranges[i]; r.goneOn() {
			all = append(all, float64(r.Done.Sub(t.afterHalt(r.Created, r.Done))))
		}
	}
	slices.Sort(all)
	t.usual = time.Duration(quantile(all, 0.5))
	return t
}

// goneOn reports whether the task that processed the page before also processed this range's page,
// without a failed attempt.
func (r *Range) goneOn() bool {
	return r.Continues && !r.Done.IsZero() && r.Attempts == 0 && r.Refusals == 0
}

// afterHalt returns the end of the job's last halt between the times from and to. If there was no
// halt, it returns the time from. In a halt the job did not run.
func (t *timing) afterHalt(from, to time.Time) time.Time {
	for _, h := range t.halted {
		if h[1].After(from) && h[1].Before(to) {
			from = h[1]
		}
	}
	return from
}

// began returns when the delivery of a range's page has arrived. The page must be done. If the
// range had a task of its own, the result is an estimate by the usual time of pages, because the
// task may have waited in the queue.
func (t *timing) began(r *Range) time.Time {
	first := t.afterHalt(r.Created, r.Done)
	if r.goneOn() || t.usual == 0 {
		return first
	}
	if began := r.Done.Add(-max(t.usual, r.Ran)); began.After(first) {
		return began
	}
	return first
}

// At returns the state of each range at the time t, in the order of Ranges. The times at which
// ranges started to run are estimates.
func (p *Picture) At(t time.Time) []State {
	states, timing := make([]State, len(p.Ranges)), p.timing()
	for i := range p.Ranges {
		r := &p.Ranges[i]
		switch {
		case t.Before(r.Created):
			states[i] = Uncut
		case r.Done.IsZero() && !t.Before(p.Until), !r.Done.IsZero() && !t.Before(r.Done):
			states[i] = r.State
		case !r.Done.IsZero() && !t.Before(timing.began(r)):
			states[i] = Running
		default:
			states[i] = Pending
		}
	}
	return states
}

// Frames returns n equally spaced times from the job's start to Until. With [Picture.At] they show
// how the job has developed.
func (p *Picture) Frames(n int) []time.Time {
	times := make([]time.Time, n)
	for i := range times {
		times[i] = p.Begun.Add(p.Until.Sub(p.Begun) * time.Duration(i) / time.Duration(max(1, n-1)))
	}
	return times
}

// Notable returns up to n ranges to look at, as indexes in Ranges. Failed ranges come first, up to
// a quarter of n. Then come slow ranges, ranges with failed attempts, and running ranges. In each
// group the worst one comes first.
func (p *Picture) Notable(n int) (all []int) {
	rank := map[State]int{Failed: 0, Slow: 1, Running: 3}
	worst := func(r *Range) (int, float64) {
		if rank, ok := rank[r.State]; ok && (rank < 2 || r.FailedAttempts() == 0) {
			return rank, float64(r.Pace())
		}
		return 2, float64(r.FailedAttempts())
	}
	few := 0 // number of failed ranges; failures are also listed elsewhere
	for i := range p.Ranges {
		r := &p.Ranges[i]
		_, ranked := rank[r.State]
		if r.State == Failed {
			few++
		}
		if (ranked || r.FailedAttempts() > 0) && (r.State != Failed || few <= n/4) {
			all = append(all, i)
		}
	}
	slices.SortStableFunc(all, func(a, b int) int {
		ra, na := worst(&p.Ranges[a])
		rb, nb := worst(&p.Ranges[b])
		return cmp.Or(cmp.Compare(ra, rb), cmp.Compare(nb, na))
	})
	return all[:min(n, len(all))]
}

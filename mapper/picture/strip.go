package picture

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/scattermap/scattermap/mapper"
)

// A Slot is where a range lies on a strip of the key space, from its left end on.
type Slot struct {
	Range int // its place among Picture.Ranges
	X     float64
	Width float64 // 0 for an entity by itself, which is also a part of a page
}

// Slots returns where the ranges lie on a strip of a width. A range is as wide as the entities that
// it stands for are many, but none is thinner than a thousandth of the strip where there is room
// for that.
func (p *Picture) Slots(width float64) []Slot {
	total, n := 0.0, 0
	for i := range p.Ranges {
		if r := &p.Ranges[i]; !r.Alone {
			total, n = total+r.weight(), n+1
		}
	}
	least := width / float64(max(1000, 2*n))
	rest := width - least*float64(n)
	slots, x := make([]Slot, len(p.Ranges)), 0.0
	for i := range p.Ranges {
		slots[i] = Slot{Range: i, X: x}
		if r := &p.Ranges[i]; !r.Alone {
			share := 1 / float64(n)
			if total > 0 {
				share = r.weight() / total
			}
			slots[i].Width = least + rest*share
			x += slots[i].Width
		}
	}
	return slots
}

// slowness is how many times as long as in half of the pages the function takes for an entity of a
// slow one.
const slowness = 3

// markSlow has pages be slow that are.
func (p *Picture) markSlow() {
	middle := quantile(p.paces(), 0.5)
	for i := range p.Ranges {
		if r := &p.Ranges[i]; r.State == Done && middle > 0 && float64(r.Pace()) > slowness*middle {
			r.State = Slow
		}
	}
}

// paces returns how long the function took for an entity in each page, in order.
func (p *Picture) paces() (all []float64) {
	for i := range p.Ranges {
		if r := &p.Ranges[i]; !r.Alone && r.Pace() > 0 {
			all = append(all, float64(r.Pace()))
		}
	}
	slices.Sort(all)
	return all
}

// quantile returns what a share of some numbers, which are in order, are not above; 0 if there are
// none.
func quantile(all []float64, share float64) float64 {
	if len(all) == 0 {
		return 0
	}
	return all[min(len(all)-1, int(share*float64(len(all))))]
}

// A Colour is what colours a strip.
type Colour string

// The colours of strips.
const (
	ByState    Colour = "state"    // how ranges stand
	ByPace     Colour = "pace"     // how long the function took for an entity
	ByAttempts Colour = "attempts" // how many attempts were in vain
	ByTime     Colour = "time"     // when they were done
)

// Colours are all of them.
var Colours = []Colour{ByState, ByPace, ByAttempts, ByTime}

// None is the class of a range of which nothing is to be said: it is pending, or had no entities.
const None = -1

// Classes returns of which class each range is by something, from 0 on or None, and what each class
// is called.
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

// byPace has a class for each doubling around the middle.
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

// brief writes a duration with two digits.
func brief(d time.Duration) string {
	for unit := time.Duration(1); unit <= time.Second; unit *= 10 {
		if d < 100*unit {
			return d.Round(unit).String()
		}
	}
	return d.Round(time.Second).String()
}

func byAttempts(r *Range) int {
	switch n := r.InVain(); {
	case n <= 2:
		return int(n)
	case n <= 5:
		return 3
	}
	return 4
}

// parts is in how many parts ByTime cuts the time of a job.
const parts = 5

// byTime has a class for each fifth of the job's time.
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

// A timing says when deliveries came to pages.
type timing struct {
	usual  time.Duration // that a delivery is at a page, in half of those of which it is known; 0 if it is of none
	halted [][2]time.Time
}

// timing finds out what is known of deliveries: how long they take from pages with which the task
// of another one went on, and when there were none from the job's history.
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
			all = append(all, float64(r.Done.Sub(t.behind(r.Created, r.Done))))
		}
	}
	slices.Sort(all)
	t.usual = time.Duration(quantile(all, 0.5))
	return t
}

// goneOn reports whether the task of the page before has gone on with the range's page until that
// was done.
func (r *Range) goneOn() bool {
	return r.Continues && !r.Done.IsZero() && r.Attempts == 0 && r.Refusals == 0
}

// behind returns the end of the last halt between two times, or the first of them if there was
// none.
func (t *timing) behind(from, to time.Time) time.Time {
	for _, h := range t.halted {
		if h[1].After(from) && h[1].Before(to) {
			from = h[1]
		}
	}
	return from
}

// began returns when a delivery came to a range's page, which is done. Of a range that its task
// began with that is an estimate, by how long pages usually take: it may have waited in the queue
// before.
func (t *timing) began(r *Range) time.Time {
	first := t.behind(r.Created, r.Done)
	if r.goneOn() || t.usual == 0 {
		return first
	}
	if began := r.Done.Add(-max(t.usual, r.Ran)); began.After(first) {
		return began
	}
	return first
}

// At returns how each range stood at a time.
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

// Frames returns n times, from the job's beginning to its end, or until now.
func (p *Picture) Frames(n int) []time.Time {
	times := make([]time.Time, n)
	for i := range times {
		times[i] = p.Begun.Add(p.Until.Sub(p.Begun) * time.Duration(i) / time.Duration(max(1, n-1)))
	}
	return times
}

// Notable returns up to n ranges that are worth a look, by their places: some that failed, then
// slow ones, then those with attempts in vain, then those at which tasks are. In each of these the
// worst comes first.
func (p *Picture) Notable(n int) (all []int) {
	rank := map[State]int{Failed: 0, Slow: 1, Running: 3}
	worst := func(r *Range) (int, float64) {
		if rank, ok := rank[r.State]; ok && (rank < 2 || r.InVain() == 0) {
			return rank, float64(r.Pace())
		}
		return 2, float64(r.InVain())
	}
	few := 0 // failures, which are listed elsewhere
	for i := range p.Ranges {
		r := &p.Ranges[i]
		_, ranked := rank[r.State]
		if r.State == Failed {
			few++
		}
		if (ranked || r.InVain() > 0) && (r.State != Failed || few <= n/4) {
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

package split

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/scattermap/scattermap/internal/testflag"
)

// TestKeep checks how many of its remaining entities a task keeps, and how many it gives away in
// each piece.
func TestKeep(t *testing.T) {
	const ms = time.Millisecond
	// all returns the outlook of a job whose entities need no calls to the database.
	all := func(open int64, rest time.Duration) Outlook { return Outlook{Open: open, Rest: rest} }
	for _, test := range []struct {
		name       string
		load       Load
		keep, each int64
	}{
		{"it has as much as the others",
			Load{Left: 5_000, Here: 2 * ms, Workers: 10, Outlook: all(10, 100*time.Second)}, 5_000, 0},
		{"it has a fifth more, and there is time",
			Load{Left: 6_000, Here: 2 * ms, Workers: 10, Outlook: all(10, 100*time.Second)}, 6_000, 0},
		{"it has a fifth more, and others wait",
			Load{Left: 6_000, Here: 2 * ms, Workers: 10, Outlook: all(9, 100*time.Second)}, 5_000, 5_000},
		// The numbers are rounded to eighths of what the task keeps.
		{"it is three times as slow", Load{Left: 5_000, Here: 6 * ms, Workers: 10, Outlook: all(10, 100*time.Second)},
			1_664, 1_664},
		{"all are as slow", Load{Left: 5_000, Here: 6 * ms, Workers: 10, Outlook: all(10, 300*time.Second)}, 5_000, 0},
		{"it has all that is left", Load{Left: 5_000, Here: 2 * ms, Workers: 10, Outlook: all(1, 0)}, 496, 496},
		{"what the others had is done by now",
			Load{Left: 5_000, Here: 2 * ms, Workers: 10, Outlook: all(10, 100*time.Second), Age: 10 * time.Second}, 496,
			496},
		{"what is late is not worth a task", Load{Left: 150, Here: 2 * ms, Workers: 10, Outlook: all(1, 0)}, 150, 0},
		{"where queries are slow, only what pays for them is given away",
			Load{Left: 5_000, Here: 2 * ms, Workers: 10, Query: 2 * time.Second, Outlook: all(1, 0)}, 1_000, 2_000},
		{"and nothing, if all that is left takes little longer",
			Load{Left: 5_000, Here: 2 * ms, Workers: 10, Query: 4 * time.Second, Outlook: all(1, 0)}, 5_000, 0},
		{"what is late is worth no dispatch",
			Load{Left: 1_200, Here: 2 * ms, Workers: 10, Task: time.Second, Outlook: all(1, 0)}, 1_200, 0},
		{"what is later is",
			Load{Left: 5_000, Here: 2 * ms, Workers: 10, Task: time.Second, Outlook: all(1, 0)}, 496, 992},
		{"a short dispatch changes nothing",
			Load{Left: 5_000, Here: 2 * ms, Workers: 10, Task: WorthTask, Outlook: all(1, 0)}, 496, 496},
		{"its pages are small", Load{Left: 400, Here: 300 * ms, Workers: 10, Page: 10, Outlook: all(10, 0)}, 40, 40},
		{"more than three hundred years of a worker", Load{Left: 1e9, Here: 10 * time.Second, Workers: 5000,
			Outlook: all(5000, 0)}, 63_000, 63_000},
		{"a few slow entities", Load{Left: 3, Here: 10 * time.Second, Workers: 10, Page: 1, Outlook: all(1, 0)}, 0, 1},
	} {
		test.load.Full = 1 << 40
		if test.load.Page == 0 {
			test.load.Page = 500
		}
		keep, each := test.load.Keep()
		if keep != test.keep || each != test.each {
			t.Errorf("%s: keeps %d and gives away %d each, want %d and %d", test.name, keep, each, test.keep, test.each)
		}
	}
}

// TestKeepAnything tries random loads. A task must not keep more entities than it has. Except for
// up to a page, it must give away all work that is worth a task, in a limited number of pieces.
// While a worker is idle, it must not keep much more than its even part.
func TestKeepAnything(t *testing.T) {
	rng := rand.New(rand.NewPCG(testflag.Seed(t), 0))
	some := func(most float64) int64 { return int64(math.Exp(rng.Float64() * math.Log(most))) }
	for range testflag.Size(t, 20_000, 50_000, 100_000) {
		l := Load{Left: some(1e10), Here: time.Duration(some(30e9)), Workers: some(5000),
			Age: time.Duration(some(1e12)), Full: some(1000), Query: time.Duration(some(1e10)),
			Task: time.Duration(some(1e10))}
		l.Page, l.Open, l.Entities, l.Rest = 1+rng.Int64N(l.Full), some(1e5)-1, some(1e10)-1,
			time.Duration(some(1e15)-1)
		keep, each := l.Keep()
		worth := l.worth()
		if keep < 0 || keep > l.Left || keep < l.Left && each < 1 {
			t.Fatalf("%+v: keeps %d and gives away %d each", l, keep, each)
		}
		here := l.Here + callsOf(l.Full)
		page := float64(here) * float64(l.Page)
		if takes := float64(keep) * float64(here); l.Waiting(l.Workers) && takes > float64(l.Even()+2*worth)+page {
			t.Fatalf("%+v: keeps %d, which takes %v, while others wait; an even part is %v", l, keep,
				time.Duration(takes), l.Even())
		}
		if keep == l.Left {
			continue
		}
		if given := float64(l.Left-keep) * float64(here); given < float64(worth)-page {
			t.Fatalf("%+v: gives away %d, which takes %v", l, l.Left-keep, time.Duration(given))
		}
		s := Piece{Estimate: l.Left + 7, Exact: rng.IntN(2) == 0, Workers: 1}
		c := s.Give(7, keep, each, l.Workers)
		all := c.Keep
		for _, n := range c.lengths {
			all += n
		}
		if c.Keep != 7+keep || c.Pieces != int64(len(c.lengths))+2 || c.Pieces > MaxFanOut || s.Exact &&
			all >= s.Estimate || !slices.IsSorted(c.lengths) {
			t.Fatalf("%+v: a plan %+v", l, c)
		}
	}
}

// TestEndsPage checks when a page ends early: if some of its entities are given away, or if later
// entities are and a worker is idle.
func TestEndsPage(t *testing.T) {
	busy, waiting := Outlook{Open: 10, Rest: time.Hour}, Outlook{Open: 9, Rest: time.Second}
	for _, test := range []struct {
		name string
		load Load
		ran  time.Duration
		left int64
		want bool
	}{
		{"some of it is given away", Load{Left: 1000, Here: time.Second, Outlook: waiting}, time.Second, 500, true},
		{"what is behind it is, and somebody waits", Load{Left: 1000, Here: time.Second, Outlook: waiting}, time.Second,
			20, true},
		{"what is behind it is, and nobody waits", Load{Left: 10_000, Here: time.Second, Outlook: busy}, time.Second,
			20, false},
		{"all are as busy", Load{Left: 300, Here: time.Second, Outlook: busy}, time.Second, 20, false},
		{"less is left than of the page, by the estimate",
			Load{Left: 5, Here: 2 * time.Second, Outlook: Outlook{Open: 10, Rest: 1000 * time.Second}}, 2 * time.Second,
			18, false},
		{"it has just begun", Load{Left: 1000, Here: time.Second, Outlook: waiting}, soonest - 1, 500, false},
		{"less is left of it than a dispatch takes",
			Load{Left: 10_000, Here: time.Millisecond, Task: time.Second, Outlook: waiting}, time.Second, 999, false},
		{"as much is left of it as a dispatch takes",
			Load{Left: 10_000, Here: time.Millisecond, Task: time.Second, Outlook: waiting}, time.Second, 1000, true},
		{"little is left of it", Load{Left: 1000, Here: time.Millisecond, Outlook: waiting}, time.Second, 20, false},
	} {
		test.load.Workers, test.load.Page, test.load.Full = 10, 500, 1<<40
		if got := test.load.EndsPage(test.ran, test.left); got != test.want {
			t.Errorf("%s: %t, want %t", test.name, got, test.want)
		}
	}
}

// A busy is a busy worker in the simulation of TestEnd.
type busy struct {
	until       time.Duration
	first, last int64 // first and last entity of the worker's range after its current page
	page        int64
	pace        time.Duration // the measured pace of its earlier pages
}

type workers []busy

func (w workers) Len() int           { return len(w) }
func (w workers) Less(i, j int) bool { return w[i].until < w[j].until }
func (w workers) Swap(i, j int)      { w[i], w[j] = w[j], w[i] }
func (w *workers) Push(x any)        { *w = append(*w, x.(busy)) }
func (w *workers) Pop() any {
	old := *w
	x := old[len(old)-1]
	*w = old[:len(old)-1]
	return x
}

// TestEnd simulates jobs with slow entities at unknown places. The workers only process pages, and
// give work away by the law of cutting. No worker may be idle for long while another one has much
// work.
func TestEnd(t *testing.T) {
	seed := testflag.Seed(t)
	var ratios []float64
	for i := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, i))
		const n, all, pageTime, calls = 200_000, 50, 3 * time.Second, pageCalls / 2 // the other half is the task's cost
		cost, sum := make([]time.Duration, n), time.Duration(0)
		for at := 0; at < n; { // parts of the kind, in which entities take different times
			each := time.Duration(math.Exp(rng.NormFloat64()*1.5) * float64(2*time.Millisecond))
			for end := at + 1 + rng.IntN(n/5); at < min(n, end); at++ {
				cost[at], sum = each, sum+each
			}
		}
		ideal := (sum + n/500*calls) / all
		var w workers
		type part struct {
			first, last int64
			pace        time.Duration
		}
		var queue []part
		for i := range int64(all) {
			queue = append(queue, part{i * n / all, (i + 1) * n / all, 0})
		}
		var now, spent time.Duration
		var done int64
		begin := func(first, last, page int64, pace time.Duration) {
			b := busy{until: now + calls, first: first, last: last, pace: pace}
			for b.page < min(page, last-first) && b.until < now+pageTime {
				b.until += cost[first+b.page]
				b.page++
			}
			heap.Push(&w, b)
		}
		for len(queue) > 0 || len(w) > 0 {
			for len(w) < all && len(queue) > 0 {
				p := queue[0]
				queue = queue[1:]
				begin(p.first, p.last, 500, p.pace)
			}
			b := heap.Pop(&w).(busy)
			took := time.Duration(0)
			for _, c := range cost[b.first : b.first+b.page] {
				took += c
			}
			now, spent, done = b.until, spent+took, done+b.page
			first := b.first + b.page
			if first == b.last {
				continue
			}
			here := took / time.Duration(b.page)
			page := max(1, min(500, int64(pageTime/max(1, here))))
			open := []OpenRange{{Estimate: b.last - first, Pace: here}}
			for _, other := range w {
				open = append(open, OpenRange{Estimate: other.last - other.first, Pace: other.pace})
			}
			for _, p := range queue {
				open = append(open, OpenRange{Estimate: p.last - p.first, Pace: p.pace})
			}
			l := Load{Left: b.last - first, Here: here, Page: page, Full: 500, Workers: all,
				Outlook: OutlookOf(open, 1, all, spent/time.Duration(done), 500)}
			keep, each := l.Keep()
			if keep < l.Left {
				c := Piece{Estimate: l.Left}.Give(0, keep, each, all)
				at := first + keep
				for i, n := range append(c.lengths, b.last) {
					p := part{at, min(b.last, at+n), here}
					if i >= c.near {
						p.pace = 0
					}
					queue, at = append(queue, p), p.last
				}
			}
			switch {
			case keep > 0:
				begin(first, first+keep, page, here)
			case len(queue) == 0:
				t.Fatal("what was given away is lost")
			}
		}
		if done != n {
			t.Fatalf("seed %d: %d of %d entities", i, done, n)
		}
		ratios = append(ratios, float64(now)/float64(ideal+pageTime)) // a page can't be divided
	}
	slices.Sort(ratios)
	if median, worst := ratios[100], ratios[199]; median > 1 || worst > 1.3 {
		t.Errorf("jobs take %.3f of the ideal and a page, and up to %.3f", median, worst)
	}
	t.Logf("jobs take %.3f of the ideal and a page, and up to %.3f", ratios[100], ratios[199])
}

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

// TestKeep has tasks decide how much they keep of what is left.
func TestKeep(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		name       string
		load       Load
		keep, each int64
	}{
		{"it is in time", Load{Left: 9_500, Here: 2 * ms, Job: 2 * ms, FairShare: 10_000, Elapsed: time.Second, Page: 500, Full: 500}, 9_500, 0},
		{"nothing else is known", Load{Left: 9_500, Here: 2 * ms, FairShare: 10_000, Elapsed: time.Second, Page: 500, Full: 500}, 9_500, 0},
		{"it is three times as slow as the job", Load{Left: 9_000, Here: 6 * ms, Job: 2 * ms, FairShare: 10_000, Elapsed: 3 * time.Second, Page: 500, Full: 500}, 3_000, 1_000},
		{"the job should have ended", Load{Left: 9_000, Here: 2 * ms, Job: 2 * ms, FairShare: 10_000, Elapsed: time.Hour, Page: 500, Full: 500}, 500, 2_500},
		{"all began late", Load{Left: 9_500, Here: 2 * ms, Job: 2 * ms, FairShare: 10_000, Elapsed: 5 * time.Second, Begun: 5 * time.Second, Page: 500, Full: 500}, 9_500, 0},
		{"what is late is not worth a task", Load{Left: 9_600, Here: 2 * ms, Job: 2 * ms, FairShare: 10_000, Elapsed: 1100 * ms, Page: 500, Full: 500}, 9_600, 0},
		{"its pages are small", Load{Left: 400, Here: 300 * ms, Job: 2 * ms, FairShare: 10_000, Elapsed: 10 * time.Second, Page: 10, Full: 500}, 40, 20},
		{"a range of a few entities", Load{Left: 3, Here: 10 * time.Second, Job: 2 * ms, FairShare: 10, Elapsed: time.Second, Page: 1, Full: 500}, 0, 1},
	} {
		keep, each := test.load.Keep()
		if keep != test.keep || each != test.each {
			t.Errorf("%s: keeps %d and gives away %d each, want %d and %d", test.name, keep, each, test.keep, test.each)
		}
	}
}

// TestKeepAnything has loads of all kinds: a task keeps no more than there is, and gives away whole pages that
// together are worth a task, in a bounded number of pieces.
func TestKeepAnything(t *testing.T) {
	rng := rand.New(rand.NewPCG(testflag.Seed(t), 0))
	some := func(most float64) int64 { return int64(math.Exp(rng.Float64() * math.Log(most))) }
	for range 100_000 {
		l := Load{Left: some(1e10), Here: time.Duration(some(30e9)), Job: time.Duration(some(30e9) - 1), FairShare: some(1e9) - 1, Elapsed: time.Duration(some(1e15)), Full: some(1000)}
		l.Page, l.Begun = 1+rng.Int64N(l.Full), time.Duration(rng.Int64N(int64(l.Elapsed)+1))
		keep, each := l.Keep()
		if keep < 0 || keep > l.Left || keep < l.Left && (each < 1 || each > l.Page && each%l.Page != 0) {
			t.Fatalf("%+v: keeps %d and gives away %d each", l, keep, each)
		}
		if keep == l.Left {
			continue
		}
		s := Piece{Estimate: l.Left + 7, Exact: true, Workers: 1, FairShare: l.FairShare}
		if c := s.Give(7, keep, each); c.Keep != 7+keep || c.Pieces < 2 || c.Pieces > MaxFanOut+1 || c.Keep+(c.Pieces-1)*c.each < s.Estimate {
			t.Fatalf("%+v: a plan %+v", l, c)
		}
	}
}

// A busy worker of the job that TestEnd runs.
type busy struct {
	until       time.Duration
	first, last int64 // of its range, behind the page in hand
	page        int64
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

// TestEnd runs jobs of which nobody knows where the entities are that take long, with workers that do nothing but
// pages and the law: no worker has nothing to do for long while another has much left.
func TestEnd(t *testing.T) {
	seed := testflag.Seed(t)
	var ratios []float64
	for i := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, i))
		const n, all, pageTime = 200_000, 50, 3 * time.Second
		cost, sum := make([]time.Duration, n), time.Duration(0)
		for at := 0; at < n; { // pieces, each of its own cost
			each := time.Duration(math.Exp(rng.NormFloat64()*1.5) * float64(2*time.Millisecond))
			for end := at + 1 + rng.IntN(n/5); at < min(n, end); at++ {
				cost[at], sum = each, sum+each
			}
		}
		ideal := (sum + n/500*pageCalls) / all
		var w workers
		type part struct{ first, last int64 }
		var queue []part
		for i := range int64(all) {
			queue = append(queue, part{i * n / all, (i + 1) * n / all})
		}
		var now, spent time.Duration
		var done int64
		begin := func(first, last, page int64) {
			b := busy{until: now + pageCalls, first: first, last: last}
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
				begin(p.first, p.last, 500)
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
			l := Load{Left: b.last - first, Here: here, Job: spent / time.Duration(done), FairShare: n / all, Elapsed: now, Page: page, Full: 500}
			keep, each := l.Keep()
			if keep < l.Left {
				c := Piece{Estimate: l.Left}.Give(0, keep, each)
				for at := first + keep; at < b.last; at += c.each {
					queue = append(queue, part{at, min(b.last, at+c.each)})
				}
			}
			switch {
			case keep > 0:
				begin(first, first+keep, page)
			case len(queue) == 0:
				t.Fatal("what was given away is lost")
			}
		}
		if done != n {
			t.Fatalf("seed %d: %d of %d entities", i, done, n)
		}
		ratios = append(ratios, float64(now)/float64(ideal+pageTime)) // a page is whole
	}
	slices.Sort(ratios)
	if median, worst := ratios[100], ratios[199]; median > 1 || worst > 1.3 {
		t.Errorf("jobs take %.3f of the ideal and a page, and up to %.3f", median, worst)
	}
	t.Logf("jobs take %.3f of the ideal and a page, and up to %.3f", ratios[100], ratios[199])
}

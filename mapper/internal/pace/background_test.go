package pace

import (
	"cmp"
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/scattermap/scattermap/internal/nightly"
	"github.com/scattermap/scattermap/internal/testflag"
)

// TestBackgroundSteps checks the limit after series of probes. Without pages of entities, a probe
// takes 20 ms.
func TestBackgroundSteps(t *testing.T) {
	const usual, slow = 20 * time.Millisecond, 80 * time.Millisecond
	start := time.Date(2026, 11, 27, 12, 0, 10, 0, time.UTC) // not in a pause
	for _, c := range []struct {
		name   string
		wanted int // number of pages that run or wait; 0: any number
		probes []time.Duration
		want   float64
	}{
		{"without probes", 0, nil, 1},
		{"no floor is known", 0, times(19, slow), 1},
		{"the limit doubles", 0, times(8+2*12, usual), 4},
		{"not without need", 2, times(8+3*12, usual), 2},
		{"the limit falls to the need", 2, join(join(times(8+3*12, usual), times(12, 33*time.Millisecond)),
			times(100, usual)), 2},
		{"an overload cuts the limit", 0, join(times(8+4*12, usual), times(7, slow)), 16 * farCut},
		{"a little slower ends the start", 0, join(times(8+3*12, usual), times(12, 33*time.Millisecond)), 4},
		{"the limit has a minimum", 0, join(times(8, usual), times(200, slow)), leastPages},
	} {
		var b Background
		now := start
		for _, took := range c.probes {
			b.Note(now, took, cmp.Or(c.wanted, 1000))
			now = now.Add(200 * time.Millisecond)
		}
		if got := b.Limit(); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		n, rest := b.Slots()
		if float64(n) < b.Limit() || math.Abs(float64(n)/(1+rest)-b.Limit()) > 1e-9 {
			t.Errorf("%s: %d slots rest %v of the time, want %v pages at once", c.name, n, rest, b.Limit())
		}
	}
}

func times(n int, took time.Duration) []time.Duration { return slices.Repeat([]time.Duration{took}, n) }

func join(a, b []time.Duration) []time.Duration { return append(a, b...) }

// TestBackgroundFloor checks which probes determine the floor, which is the usual time of a probe.
// At first these are probes beside a page of entities, and later probes in pauses, after settleFor.
func TestBackgroundFloor(t *testing.T) {
	minute := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	var b Background
	b.Start(minute)
	at := func(second float64, took time.Duration, n int) {
		for range n {
			b.Note(minute.Add(time.Duration(second*float64(time.Second))), took, 1)
		}
	}
	check := func(when string, want time.Duration, pauses, probes int) {
		t.Helper()
		if got := time.Duration(math.Exp(b.floor.mean) * 1e9); (got - want).Abs() > time.Millisecond/10 {
			t.Errorf("%s: the floor is %v, want %v", when, got, want)
		}
		if b.pauses != pauses || b.probes != probes {
			t.Errorf("%s: it comes from %d pauses, and %d probes were compared to it", when, b.pauses, b.probes)
		}
	}
	at(30, 50*time.Millisecond, 8)
	check("beside a page", 50*time.Millisecond, 0, 0)
	at(60.5, time.Second, 30) // the pages from before the pause are ending
	at(61, 20*time.Millisecond, 8)
	at(64, time.Second, 31) // the first pages after the pause are starting
	at(64.5, time.Second, 30)
	at(65, 30*time.Millisecond, 1)
	at(66, 30*time.Millisecond, 1)
	check("after a pause", 20*time.Millisecond, 1, 2)
	at(122, 40*time.Millisecond, 7)
	at(126, 20*time.Millisecond, 1)
	check("after a pause with few probes", 20*time.Millisecond, 1, 3)
	at(182, 21*time.Millisecond, 30)
	at(186, 30*time.Millisecond, 1)
	check("after the second pause", 21*time.Millisecond, 2, 4)
	at(242, 22*time.Millisecond, 30)
	at(246, 30*time.Millisecond, 1)
	at(247, 30*time.Millisecond, 1)
	check("after a pause that differs by chance", 21500*time.Microsecond, 3, 6)
	at(302, 60*time.Millisecond, 30)
	at(306, 90*time.Millisecond, 1)
	check("others slow the database down", 60*time.Millisecond, 4, 7)
	b.Start(minute.Add(306*time.Second + forgetFor))
	check("after a short time without jobs", 60*time.Millisecond, 4, 7)
	b.Start(minute.Add(306*time.Second + forgetFor + 1))
	if b != (Background{}) {
		t.Errorf("after minutes without a probe: %+v, want nothing", b)
	}
}

// TestBackgroundFinds checks when the start phase ends: if the process wants no more pages of
// entities, or if probes show their load. After that, the limit changes slowly with each probe.
func TestBackgroundFinds(t *testing.T) {
	for name, c := range map[string]struct {
		took   time.Duration
		wanted int
		most   float64 // the largest limit after the probes
	}{
		"no more pages":    {20 * time.Millisecond, 2, 2},
		"the load shows":   {26 * time.Millisecond, 100, 1},
		"nothing shows it": {20 * time.Millisecond, 1000, 1e6},
	} {
		b, now := Background{floor: level{n: 30, mean: math.Log(0.02)}}, time.Unix(30, 0)
		for range 10 * startProbes {
			b.Note(now, c.took, c.wanted)
		}
		if finds := c.wanted < 1000; b.found != finds || b.limit > c.most || finds && b.NextProbe(now) != probeEvery {
			t.Errorf("%s: found %v, a limit of %v, the next probe after %v", name, b.found, b.limit, b.NextProbe(now))
		}
	}
}

// TestBackgroundProbes checks how many probes are made in ten minutes.
func TestBackgroundProbes(t *testing.T) {
	start := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	b := Background{found: true}
	n, inPauses := 0, 0
	for now := start; now.Sub(start) < 10*time.Minute; now = now.Add(b.NextProbe(now)) {
		n++
		if since := sincePause(now); since >= settleFor && since < pauseFor {
			inPauses++
		}
	}
	if n < 600 || n > 720 || inPauses < 250 {
		t.Errorf("%d probes in ten minutes, %d of them in pauses; want about one a second", n, inPauses)
	}
}

// TestPauses checks when pages pause, and when the next probe is made.
func TestPauses(t *testing.T) {
	minute, ms := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC), time.Millisecond
	for _, c := range []struct {
		since  time.Duration // since the start of the minute
		pauses bool
		next   time.Duration
		starts time.Duration // the same until the limit is found
	}{
		{0, true, time.Second, time.Second}, {400 * ms, true, 600 * ms, 600 * ms},
		{time.Second, true, 100 * ms, 100 * ms},
		{pauseFor - 1, true, 100 * ms, 100 * ms}, {pauseFor, false, time.Second, time.Second},
		{4600 * ms, false, 400 * ms, 400 * ms}, {5 * time.Second, false, 1500 * ms, 200 * ms},
		{59 * time.Second, false, 1500 * ms, 200 * ms}, {59900 * ms, false, 1100 * ms, 200 * ms},
	} {
		now, found, b := minute.Add(c.since), Background{found: true}, Background{}
		if found.Pauses(now) != c.pauses || found.NextProbe(now) != c.next || b.NextProbe(now) != c.starts {
			t.Errorf("%v after the minute: pauses %v, the next probe after %v, or %v at the start", c.since,
				found.Pauses(now), found.NextProbe(now), b.NextProbe(now))
		}
	}
}

// TestBackgroundAdjust checks how a probe changes the limit of ten pages.
func TestBackgroundAdjust(t *testing.T) {
	target := math.Log1p(targetRise)
	change := func(excess, n float64) float64 { return 10 * math.Exp(n*gain*(target-excess)) }
	for _, c := range []struct {
		name           string
		b              Background
		excess, wanted float64
		limit          float64
		want           Background // the number of probes, found and the means
	}{
		{
			name: "four probes prove an overload", b: Background{found: true, probes: 3, soon: 1}, excess: 1,
			limit: 6, want: Background{found: true},
		},
		{
			name: "three do not", b: Background{found: true, probes: 2, soon: 1}, excess: 1,
			limit: change(1, faster), want: Background{found: true, probes: 3, soon: 1, late: 1. / 3},
		},
		{
			name: "nor if they are a little faster", b: Background{found: true, probes: 3, soon: 0.9}, excess: 0.9,
			limit: change(0.9, faster), want: Background{found: true, probes: 4, soon: 0.9, late: 0.9 / 4},
		},
		{
			name: "in the start phase, too", b: Background{probes: 3, soon: 1}, excess: 1, limit: 6,
			want: Background{found: true},
		},
		{
			name: "the start phase waits for 12 probes", b: Background{probes: 10, start: 0.7}, limit: 10,
			want: Background{probes: 11, start: 0.7},
		},
		{
			name: "they show an overload", b: Background{probes: 11, start: target + clearExcess + 0.001}, limit: 5,
			want: Background{found: true},
		},
		{
			name: "they show the load", b: Background{probes: 11, start: target + clearExcess}, wanted: 11, limit: 10,
			want: Background{found: true, probes: 12},
		},
		{
			name: "or hardly", b: Background{probes: 11, start: target}, wanted: 11, limit: 10,
			want: Background{found: true, probes: 12},
		},
		{
			name: "they do not show it", b: Background{probes: 23, start: target - 0.001}, wanted: 11, limit: 20,
			want: Background{probes: 24},
		},
		{
			name: "nobody wants more", b: Background{probes: 11}, wanted: 10, limit: 10,
			want: Background{found: true, probes: 12},
		},
		{
			name: "nobody wants so many", b: Background{found: true, probes: 12}, wanted: 9, limit: 9.4,
			want: Background{found: true, probes: 13},
		},
		{
			name: "as many are wanted", b: Background{found: true, probes: 12}, wanted: 10, limit: 10,
			want: Background{found: true, probes: 13},
		},
		{
			name: "the probe is as slow as it may be", excess: target, wanted: 9, limit: 10,
			b:    Background{found: true, probes: 20, soon: target, late: target},
			want: Background{found: true, probes: 21, soon: target, late: target},
		},
		{
			name: "it is slower, as were those before", b: Background{found: true, probes: 20, soon: 0.5, late: 0.5},
			excess: 0.5, wanted: 11, limit: change(0.5, faster),
			want: Background{found: true, probes: 21, soon: 0.5, late: 0.5},
		},
		{
			name: "they were not clearly so", excess: target + clearExcess, wanted: 11,
			b:     Background{found: true, probes: 20, soon: target + clearExcess, late: 0.5},
			limit: change(target+clearExcess, 1),
			want: Background{found: true, probes: 21, soon: target + clearExcess,
				late: 0.5 + (target+clearExcess-0.5)*(1-lateShare)},
		},
		{
			name: "it is faster, as were many before", b: Background{found: true, probes: 12}, wanted: 11,
			limit: change(0, faster), want: Background{found: true, probes: 13},
		},
		{
			name: "as were some", b: Background{found: true, probes: 11, start: 0.1}, wanted: 11,
			limit: change(0, 1), want: Background{found: true, probes: 12},
		},
		{
			name: "as were half", b: Background{found: true, probes: 20, late: target / 2}, excess: target / 2,
			wanted: 11, limit: change(target/2, 1),
			want: Background{found: true, probes: 21, soon: target / 2 * (1 - soonShare), late: target / 2},
		},
		{
			name: "it is faster, but the latest were slower", b: Background{found: true, probes: 20, soon: 1, late: 1},
			wanted: 11, limit: change(0, 1),
			want: Background{found: true, probes: 21, soon: soonShare, late: lateShare},
		},
		{
			name: "it is slower, but many before were faster", b: Background{found: true, probes: 20}, excess: 0.3,
			wanted: 11, limit: change(0.3, 1),
			want: Background{found: true, probes: 21, soon: 0.3 * (1 - soonShare), late: 0.3 * (1 - lateShare)},
		},
	} {
		b := c.b
		b.limit, b.floor = 10, level{n: 30, mean: math.Log(0.02)}
		b.adjust(c.excess, c.wanted)
		for what, of := range map[string][2]float64{
			"limit": {b.limit, c.limit}, "probes": {float64(b.probes), float64(c.want.probes)},
			"soon": {b.soon, c.want.soon}, "late": {b.late, c.want.late},
		} {
			if math.Abs(of[0]-of[1]) > 1e-9 {
				t.Errorf("%s: %s is %v, want %v", c.name, what, of[0], of[1])
			}
		}
		if b.found != c.want.found || !b.found && math.Abs(b.start-c.want.start) > 1e-9 ||
			b.probes%startProbes == 0 && b.start != 0 {
			t.Errorf("%s: found %v, start %v", c.name, b.found, b.start)
		}
	}
}

// TestLevel checks numbers, means and squared differences of observations.
func TestLevel(t *testing.T) {
	l := level{n: 100, mean: 1, squares: 50}
	if l.merge(level{n: 10, mean: 2, squares: 3}, 50); l != (level{60, 1 + 10./60, 25 + 3 + 500./60}) {
		t.Errorf("with at most 50 earlier observations: %+v", l)
	}
	var few level
	for _, x := range []float64{1, 2, 6} {
		few.add(x)
	}
	if few != (level{3, 3, 14}) {
		t.Errorf("of 1, 2 and 6: %+v", few)
	}
	for mean, want := range map[float64]bool{3: false, 3.01: true, -3: false, -3.01: true} {
		l, other := level{n: 2, squares: 1}, level{n: 2, mean: mean}
		if got := l.differs(other); got != want {
			t.Errorf("means that are %v apart differ: %v", mean, got)
		}
	}
}

// TestBackgroundBesideOthers simulates a database with background jobs and other clients for nine
// minutes. The numbers are means over two random seeds. BenchmarkGuest measures real jobs. Only
// .ci/nightly simulates one process with a steady load: the quick run ends so after a change.
func TestBackgroundBesideOthers(t *testing.T) {
	testflag.Sequential(t)
	for _, c := range []struct {
		name      string
		load      float64 // load of other clients, as a share of the database servers' time
		processes int
		later     func(*queueModel) // a change after five minutes
		rise      float64           // most that the other clients' 99th percentile may rise, in the last three minutes
		share     float64           // least share of the servers' spare time that the background jobs must use
	}{
		{"one process", 0.3, 1, nil, 0.15, 0.7},
		{"three processes", 0.3, 3, nil, 0.15, 0.75},
		{"busy, one process", 0.6, 1, nil, 0.15, 0.6},
		{"busy, three processes", 0.6, 3, nil, 0.15, 0.7},
		{"others become busy", 0.3, 1, func(q *queueModel) { q.load = 0.6 }, 0.2, 0.6},
		{"others become idle", 0.6, 1, func(q *queueModel) { q.load = 0.3 }, 0.2, 0.6},
		{"all calls take longer", 0.3, 1, func(q *queueModel) { q.slower = 2 }, 0.2, 0.5},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.processes == 1 && c.later == nil {
				nightly.Leave(t)
			}
			t.Parallel()
			const seeds = 2
			var rise, share float64
			for seed := range uint64(seeds) {
				alone := simulate(seed, c.load, c.later)
				beside := simulate(seed, c.load, c.later, guests(c.processes)...)
				rise += (beside.p99()/alone.p99() - 1) / seeds
				share += beside.share() / seeds
			}
			t.Logf("the 99th percentile rises by %.0f%%, and the job has %.0f%% of the spare time", rise*100, share*100)
			if rise > c.rise || share < c.share {
				t.Errorf("want at most %.0f%%, and at least %.0f%%", c.rise*100, c.share*100)
			}
		})
	}
}

// TestBackgroundOverload checks that background jobs continue slowly while other clients overload
// the database. Soon after the overload they must be as fast as before.
func TestBackgroundOverload(t *testing.T) {
	all := guests(1)
	q := newQueueModel(1, 0.3, all...)
	q.run(4 * time.Minute)
	before := all[0].pages
	q.load = 1.5
	q.run(2 * time.Minute)
	during := all[0].pages - before
	q.load = 0.1
	q.run(4 * time.Minute) // the waiting calls of the overload are handled, and the floor falls
	least := all[0].pages
	q.run(2 * time.Minute)
	if after := all[0].pages - least; during < 1 || after < before/4 {
		t.Errorf("%d pages in four minutes before the overload, %d in two minutes of it, %d in two minutes after it",
			before, during, after)
	}
}

// A queueModel simulates a database that becomes slow under load. Each of its servers handles one
// call at a time. Other calls wait in a queue, first come, first served.
type queueModel struct {
	rng    *rand.Rand
	start  time.Time
	now    time.Duration
	events events
	free   int // number of free servers
	queue  []func()

	load   float64
	slower float64 // factor by which all calls take longer

	from        time.Duration // when the measurement starts
	took        []time.Duration
	others, job time.Duration // how long servers have worked on calls of each, since then
	guests      []*guest
}

const (
	modelServers = 50
	modelLookup  = 20 * time.Millisecond // median time of a lookup
	modelSpread  = 0.69                  // standard deviation of its logarithm: the 99th percentile is five medians
)

func newQueueModel(seed uint64, load float64, guests ...*guest) *queueModel {
	q := &queueModel{rng: rand.New(rand.NewPCG(seed, 1)), start: time.Date(2026, 11, 27, 12, 0, 1, 0, time.UTC),
		free: modelServers, load: load, slower: 1, from: math.MaxInt64, guests: guests}
	q.arrive()
	for _, g := range guests {
		g.on(q)
	}
	return q
}

// simulate simulates nine minutes, and measures the last three of them. After five minutes it calls
// later, which changes the simulation.
func simulate(seed uint64, load float64, later func(*queueModel), guests ...*guest) *queueModel {
	q := newQueueModel(seed, load, guests...)
	q.run(5 * time.Minute)
	if later != nil {
		later(q)
	}
	q.run(time.Minute)
	q.from = q.now
	q.run(3 * time.Minute)
	return q
}

func (q *queueModel) p99() float64 {
	slices.Sort(q.took)
	return q.took[len(q.took)*99/100].Seconds()
}

// share returns the part of the servers' spare time that background jobs have used. Spare time is
// the time that other clients do not use.
func (q *queueModel) share() float64 {
	return q.job.Seconds() / (modelServers*(q.now-q.from).Seconds() - q.others.Seconds())
}

// run continues the simulation for the time d.
func (q *queueModel) run(d time.Duration) {
	for end := q.now + d; ; {
		e := heap.Pop(&q.events).(event)
		if e.at > end {
			heap.Push(&q.events, e)
			q.now = end
			return
		}
		q.now = e.at
		e.do()
	}
}

func (q *queueModel) after(d time.Duration, do func()) { heap.Push(&q.events, event{q.now + d, do}) }

// call simulates a call with the given median time. At its end it calls done with the time for
// which a server worked on the call.
func (q *queueModel) call(median time.Duration, done func(busy time.Duration)) {
	busy := time.Duration(q.slower * float64(median) * math.Exp(modelSpread*q.rng.NormFloat64()))
	q.queue = append(q.queue, func() { q.after(busy, func() { q.free++; done(busy); q.serve() }) })
	q.serve()
}

func (q *queueModel) serve() {
	for q.free > 0 && len(q.queue) > 0 {
		q.free--
		next := q.queue[0]
		q.queue = q.queue[1:]
		next()
	}
}

// arrive makes the lookups of the other clients, at random times.
func (q *queueModel) arrive() {
	mean := modelLookup.Seconds() * math.Exp(modelSpread*modelSpread/2)
	q.after(time.Duration(q.rng.ExpFloat64()*1e9*mean/q.load/modelServers), q.arrive)
	sent := q.now
	q.call(modelLookup, func(busy time.Duration) {
		if sent >= q.from {
			q.took = append(q.took, q.now-sent)
			q.others += busy
		}
	})
}

// An event is a function to call at a point of simulated time.
type event struct {
	at time.Duration
	do func()
}

type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// A guest is a process that runs pages of a background job.
type guest struct {
	Background
	q       *queueModel
	waiting int // number of pages that wait for their start
	inside  int
	pages   int
}

// guests returns n processes that together have two pages for each server of the database.
func guests(n int) (all []*guest) {
	for range n {
		all = append(all, &guest{waiting: 2 * modelServers / n})
	}
	return all
}

func (g *guest) on(q *queueModel) {
	g.q = q
	g.Start(g.time())
	g.probe()
}

func (g *guest) time() time.Time { return g.q.start.Add(g.q.now) }

func (g *guest) probe() {
	sent := g.time()
	g.q.call(modelLookup, func(time.Duration) {
		g.Note(sent, g.time().Sub(sent), g.waiting+g.inside)
		g.admit()
		g.q.after(max(0, g.NextProbe(sent)-g.time().Sub(sent)), g.probe)
	})
}

func (g *guest) admit() {
	n, _ := g.Slots()
	for !g.Pauses(g.time()) && g.waiting > 0 && g.inside < n {
		g.waiting--
		g.inside++
		g.page(g.q.now, modelLookup, modelLookup, 330*time.Millisecond)
	}
}

// page simulates the calls of a page of entities, one after the other, and the time for which its
// slot then stays unused.
func (g *guest) page(begun time.Duration, calls ...time.Duration) {
	if len(calls) == 0 {
		g.pages++
		g.waiting++
		_, rest := g.Slots()
		g.q.after(time.Duration(rest*float64(g.q.now-begun)), func() { g.inside--; g.admit() })
		return
	}
	g.q.call(calls[0], func(busy time.Duration) {
		if g.q.now >= g.q.from {
			g.q.job += busy
		}
		g.page(begun, calls[1:]...)
	})
}

package pace

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/scattermap/scattermap/internal/nightly"
	"github.com/scattermap/scattermap/internal/testflag"
)

// A service is a simulated service that accepts or refuses calls. The method call says whether a
// call is accepted, and how long it takes. The test calls ended when a call has ended.
type service interface {
	call(now time.Time) (took time.Duration, accepted bool)
	ended()
}

// bucket is a service with a token bucket: each call takes a token, and new tokens arrive at a
// fixed rate.
type bucket struct {
	limit  float64
	takes  time.Duration
	tokens float64
	last   time.Time
}

func (s *bucket) call(now time.Time) (time.Duration, bool) {
	s.tokens = min(max(10, s.limit/2), s.tokens+s.limit*now.Sub(s.last).Seconds())
	if s.last = now; s.tokens < 1 {
		return 0, false
	}
	s.tokens--
	return s.takes, true
}

func (s *bucket) ended() {}

// quota is a service that accepts a fixed number of calls in each second of its clock.
type quota struct {
	limit  int
	takes  time.Duration
	second int64
	calls  int // in this second
}

func (s *quota) call(now time.Time) (time.Duration, bool) {
	if now.Unix() != s.second {
		s.second, s.calls = now.Unix(), 0
	}
	s.calls++
	return s.takes, s.calls <= s.limit
}

func (s *quota) ended() {}

// crowded is a service that accepts a limited number of simultaneous calls.
type crowded struct {
	most, inside int
	takes        time.Duration
}

func (s *crowded) call(time.Time) (time.Duration, bool) {
	if s.inside >= s.most {
		s.inside++ // drive also calls ended for refused calls
		return 0, false
	}
	s.inside++
	return s.takes, true
}

func (s *crowded) ended() { s.inside-- }

// queueing is a service that handles calls one after the other at a fixed rate. It refuses calls
// that would have to wait too long.
type queueing struct {
	limit float64
	most  time.Duration
	free  time.Time
}

func (s *queueing) call(now time.Time) (time.Duration, bool) {
	if s.free.Before(now) {
		s.free = now
	}
	if s.free.Sub(now) > s.most {
		return 0, false
	}
	s.free = s.free.Add(time.Duration(float64(time.Second) / s.limit))
	return s.free.Sub(now), true
}

func (s *queueing) ended() {}

// A run is one simulated run of a mapper's function.
type run struct {
	ends   time.Time
	begun  time.Time
	pass   Pass
	called bool
	failed bool
}

type runs []run

func (r runs) Len() int           { return len(r) }
func (r runs) Less(i, k int) bool { return r[i].ends.Before(r[k].ends) }
func (r runs) Swap(i, k int)      { r[i], r[k] = r[k], r[i] }
func (r *runs) Push(x any)        { *r = append(*r, x.(run)) }
func (r *runs) Pop() any {
	last := (*r)[len(*r)-1]
	*r = (*r)[:len(*r)-1]
	return last
}

// A load simulates workers that run a function. A share of the runs calls a service. After a
// refused call, a worker waits for a second. A share of the calls, broken, fails at any rate of
// calls.
type load struct {
	workers int
	share   float64
	broken  float64
	later   bool          // whether the calls that fail at any rate ask to call later, too
	plain   float64       // the share of the service's refusals that do not ask to call later
	free    time.Duration // time of a run without a call
	random  *rand.Rand
	now     time.Time
	waiting runs // runs that wait for their start
	under   runs // runs under way
}

func newLoad(workers int, share float64, seed uint64) *load {
	l := &load{workers: workers, share: share, free: 20 * time.Microsecond, random: rand.New(rand.NewPCG(seed, 1)),
		now: time.Unix(1000, 0)}
	for range workers {
		l.waiting = append(l.waiting, run{ends: l.now})
	}
	return l
}

// startAt lets the workers start at the time now.
func (l *load) startAt(now time.Time) {
	l.now = now
	for i := range l.waiting {
		l.waiting[i].ends = now
	}
}

// drive simulates the load for the time during. It returns the numbers of calls and failed calls in
// the last part of this time, whose length is last.
func (l *load) drive(b *Brake, s service, during, last time.Duration) (calls Calls) {
	end := l.now.Add(during)
	for {
		if len(l.under) > 0 && (len(l.waiting) == 0 || !l.waiting[0].ends.Before(l.under[0].ends)) {
			r := heap.Pop(&l.under).(run)
			if l.now = r.ends; l.now.After(end) {
				heap.Push(&l.under, r)
				l.now = end
				return calls
			}
			if r.called {
				s.ended()
			}
			if r.called && end.Sub(l.now) < last {
				calls.All++
				if r.failed {
					calls.Failed++
				}
			}
			b.Done(l.now, r.pass, End{Took: r.ends.Sub(r.begun), Failed: r.failed, Busy: r.failed,
				Later: l.broken == 0 && l.random.Float64() >= l.plain || l.later})
			again := l.now
			if r.failed {
				again = again.Add(time.Second)
			}
			heap.Push(&l.waiting, run{ends: again})
			continue
		}
		r := heap.Pop(&l.waiting).(run)
		if l.now = r.ends; l.now.After(end) {
			heap.Push(&l.waiting, r)
			l.now = end
			return calls
		}
		if r.begun.IsZero() { // the run has not asked yet whether it may start
			wait, ok := b.Ask(l.now, &r.pass)
			next := run{ends: l.now.Add(wait), pass: r.pass}
			if ok {
				next.begun = l.now
			}
			heap.Push(&l.waiting, next)
			continue
		}
		if r.ends, r.called = l.now.Add(l.free), l.random.Float64() < l.share; r.called {
			took, accepted := s.call(l.now)
			r.ends, r.failed = r.ends.Add(took), !accepted || l.random.Float64() < l.broken
		}
		heap.Push(&l.under, r)
	}
}

// TestBrake simulates services that refuse calls. After a minute, the workers must use at least 85%
// of a service's capacity, and the service must refuse less than 5% of the calls.
func TestBrake(t *testing.T) {
	testflag.Sequential(t)
	measured := time.Duration(testflag.Size(t, 1, 1, 3)) * time.Minute
	for _, test := range []struct {
		name    string
		workers int
		share   float64
		service func() service
		limit   float64
	}{
		{"a token bucket", 100, 1, func() service { return &bucket{limit: 50, takes: 300 * time.Millisecond} }, 50},
		{"a token bucket that half of the runs call", 100, 0.5, func() service {
			return &bucket{limit: 50, takes: 300 * time.Millisecond}
		}, 50},
		{"a token bucket that few runs call", 100, 1. / 16, func() service {
			return &bucket{limit: 50, takes: 300 * time.Millisecond}
		}, 50},
		{"a slow token bucket", 100, 0.5, func() service { return &bucket{limit: 3, takes: time.Second} }, 3},
		{"a fast token bucket", 50, 0.2, func() service {
			return &bucket{limit: 500, takes: 5 * time.Millisecond}
		}, 500},
		{"ten calls at once", 100, 0.5, func() service {
			return &crowded{most: 10, takes: 200 * time.Millisecond}
		}, 50},
		{"it becomes slow before it refuses", 400, 0.5, func() service {
			return &queueing{limit: 100, most: 2 * time.Second}
		}, 100},
	} {
		t.Run(test.name, func(t *testing.T) {
			for seed := range uint64(1) {
				b, l, s := new(Brake), newLoad(test.workers, test.share, seed), test.service()
				l.drive(b, s, time.Minute, 0)
				calls := l.drive(b, s, measured, measured)
				accepted := float64(calls.All-calls.Failed) / measured.Seconds()
				refused := float64(calls.Failed) / float64(calls.All)
				t.Logf("seed %d: %.3f of the limit accepted, %.3f of the calls refused", seed, accepted/test.limit,
					refused)
				most := 0.05
				if test.limit < 5 {
					most = 0.08 // with few calls, more are refused by chance
				}
				if accepted < 0.85*test.limit || refused > most {
					t.Errorf("seed %d: %.2f of the limit accepted, %.3f of the calls refused: %+v", seed,
						accepted/test.limit, refused, b.braking)
				}
			}
		})
	}
}

// TestBrakeAmongProcesses simulates jobs in several processes. Each has a brake of its own, and sees
// only its own calls. Half of the processes start later. A tenth of the service's refusals do not
// ask to call later. After a minute, the processes must use at least 85% of the service's capacity.
// The service must refuse less than 5% of the calls, in the mean of the seeds. With 25 processes, one
// seed in a hundred has 6 to 12%.
func TestBrakeAmongProcesses(t *testing.T) {
	testflag.Sequential(t)
	const limit, takes, step = 50, 300 * time.Millisecond, 10 * time.Millisecond
	seeds := testflag.Size(t, 1, 1, 40)
	for name, service := range map[string]func() service{
		"tokens": func() service { return &bucket{limit: limit, takes: takes} },
		"quota":  func() service { return &quota{limit: limit, takes: takes} },
	} {
		for _, n := range []int{2, 5, 10, 25} {
			t.Run(fmt.Sprintf("%s, %d processes", name, n), func(t *testing.T) {
				var all Calls
				for seed := range uint64(seeds) {
					s, brakes, loads := service(), make([]Brake, n), make([]*load, n)
					for i := range n {
						loads[i] = newLoad(100/n, 0.5, seed+uint64(i)<<32)
						loads[i].plain = 0.1
					}
					drive := func(working int, during time.Duration) (calls Calls) {
						for range during / step {
							for i, l := range loads[:working] {
								calls = calls.plus(l.drive(&brakes[i], s, step, step))
							}
						}
						return calls
					}
					drive((n+1)/2, 20*time.Second)
					for _, l := range loads[(n+1)/2:] {
						l.startAt(loads[0].now)
					}
					drive(n, time.Minute)
					calls := drive(n, 3*time.Minute)
					if accepted := float64(calls.All-calls.Failed) / (180 * limit); accepted < 0.85 {
						t.Errorf("seed %d: %.3f of the limit accepted", seed, accepted)
					}
					all = all.plus(calls)
				}
				refused := float64(all.Failed) / float64(all.All)
				t.Logf("%.3f of the calls refused", refused)
				if refused > 0.05 {
					t.Errorf("%.3f of the calls refused", refused)
				}
			})
		}
	}
}

// TestBrakeFollows checks that the brake adapts to a service that goes down, comes back, and
// changes its capacity.
func TestBrakeFollows(t *testing.T) {
	testflag.Sequential(t)
	b, l, s := new(Brake), newLoad(100, 0.5, 1), &bucket{limit: 100, takes: 100 * time.Millisecond}
	l.drive(b, s, time.Minute, 0)
	limits := []float64{50, 100, 400, 0, 100, 25}
	if nightly.Is() {
		limits = append(limits, 800)
	}
	for _, limit := range limits {
		s.limit = limit
		first := l.drive(b, s, time.Minute, time.Minute)
		if limit == 0 {
			l.drive(b, s, time.Hour, 0)
			if calls := l.drive(b, s, time.Minute, time.Minute); calls.All > 90 {
				t.Errorf("%d calls in a minute to a service that is away", calls.All)
			}
			continue
		}
		calls := l.drive(b, s, time.Minute, time.Minute)
		accepted, refused := float64(calls.All-calls.Failed)/60, float64(calls.Failed)/float64(calls.All)
		t.Logf("%v calls a second: %.2f accepted, %.3f refused; %.2f in the first minute", limit, accepted/limit,
			refused,
			float64(first.All-first.Failed)/60/limit)
		if accepted < 0.8*limit || refused > 0.05 {
			t.Errorf("%v calls a second: %.2f of them accepted, %.3f refused: %+v", limit, accepted/limit, refused,
				b.braking)
		}
	}
}

// TestBrakeReleased checks that the brake does not limit the rate of calls for long if they fail at
// any rate.
func TestBrakeReleased(t *testing.T) {
	measured := time.Duration(testflag.Size(t, 4, 4, 10)) * time.Minute
	for _, c := range []struct {
		takes  time.Duration
		broken float64
		later  bool
		least  float64 // least number of calls, as a share of those without a brake
	}{
		{10 * time.Millisecond, 0, false, 0.6}, {10 * time.Millisecond, 0.01, false, 0.6},
		{10 * time.Millisecond, 0.1, false, 0.6}, {10 * time.Millisecond, 0.5, false, 0.6},
		{10 * time.Millisecond, 0.1, true, 0.6}, {10 * time.Millisecond, 0.2, true, 0.6},
		{10 * time.Millisecond, 0.5, true, 0.3}, {200 * time.Millisecond, 0.07, true, 0.6},
		{200 * time.Millisecond, 0.2, true, 0.6}, {time.Second, 0.07, true, 0.6}, {time.Second, 0.1, true, 0.6},
		{4 * time.Second, 0.1, true, 0.5}, {4 * time.Second, 0.2, true, 0.5},
	} {
		b, l := new(Brake), newLoad(10, 1, 1)
		l.broken, l.later = c.broken, c.later
		s := &bucket{limit: 1e6, takes: c.takes}
		l.drive(b, s, time.Minute, 0)
		calls := l.drive(b, s, measured, measured)
		// Each of ten workers waits for a second after a failed call.
		got := float64(calls.All) / (measured.Seconds() * 10 / (c.takes.Seconds() + c.broken))
		t.Logf("%+v: %.2f of the calls", c, got)
		if got < c.least {
			t.Errorf("%+v: %.2f of the calls: %+v", c, got, b.braking)
		}
	}
}

// TestBrakeReleasedTooEarly checks that a brake that has given up its rate sets one again if many
// more calls are refused than before.
func TestBrakeReleasedTooEarly(t *testing.T) {
	for _, before := range []float64{0.1, 0.9} {
		l := newLoad(100, 1, 1)
		b := &Brake{braking: braking{released: l.now.Add(releasedFor), releasedOf: before}}
		l.drive(b, &bucket{limit: 50, takes: 300 * time.Millisecond}, 20*time.Second, 0)
		if limited := b.rate > 0; limited != (before == 0.1) {
			t.Errorf("%v of the calls were refused before: the rate is %v", before, b.rate)
		}
	}
}

func TestBrakeLately(t *testing.T) {
	b, now := new(Brake), time.Unix(1000, 0)
	if b.Accepts() {
		t.Error("nobody has called")
	}
	for i := range 100 {
		var p Pass
		if _, ok := b.Ask(now, &p); !ok {
			t.Fatal("there is a rate")
		}
		b.Done(now, p, End{Took: time.Millisecond, Failed: i%4 == 0, Busy: i%8 == 0, Later: i == 96})
	}
	if got := b.Lately(); got != (Calls{100, 25, 13}) || !b.Accepts() {
		t.Errorf("%+v, accepts: %v", got, b.Accepts())
	}
}

// TestInsist simulates a service that refuses all calls. A run that has waited long may start only
// if the service has not asked to call later.
func TestInsist(t *testing.T) {
	for _, later := range []bool{false, true} {
		b, now := new(Brake), time.Unix(1000, 0)
		for i := range 30 {
			var p Pass
			b.Ask(now, &p)
			b.Done(now.Add(time.Duration(i)*10*time.Millisecond), p, End{Failed: true, Busy: true, Later: later})
		}
		var p Pass
		if got := b.Insist(&p); b.rate == 0 || got == later {
			t.Errorf("the service says later: %v, and the run starts: %v; the rate is %v", later, got, b.rate)
		}
	}
}

// TestBrakeInStep simulates 20 workers that process entities in step, so that all ask at the same
// time. Every second entity needs a call. The calls must start at the brake's rate, and not in
// bursts. Some runs give back their places.
func TestBrakeInStep(t *testing.T) {
	const rate, workers, takes = 4, 20, 300 * time.Millisecond
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	b := &Brake{later: true, braking: braking{rate: rate, at: now, released: now.Add(time.Hour)}}
	b.pattern.add(takes, true, false)
	b.pattern.runs, b.pattern.calls = 400, 200 // every second run was a call
	type worker struct {
		entity int
		pass   Pass
		free   time.Time // end of the worker's call
		calls  bool      // whether the run makes a call
	}
	all := make([]worker, workers)
	seconds := make(map[int]int) // number of calls that started in each second
	begun, total := now, 0
	for ; now.Sub(begun) < 2*time.Minute; now = now.Add(10 * time.Millisecond) {
		for i := range all {
			w := &all[i]
			switch {
			case w.calls && now.Before(w.free):
				continue
			case w.calls:
				b.Done(now, w.pass, End{Took: takes})
				w.calls, w.pass = false, Pass{}
			}
			_, begins := b.Ask(now, &w.pass)
			if !begins {
				continue
			}
			if w.entity++; w.entity%2 == 0 {
				w.calls, w.free = true, now.Add(takes)
				seconds[int(now.Sub(begun).Seconds())]++
				total++
				continue
			}
			b.Done(now, w.pass, End{})
			w.pass = Pass{}
			if w.entity%20 == 1 {
				if _, begins := b.Ask(now, &w.pass); begins {
					b.Done(now, w.pass, End{})
				} else {
					b.Leave(w.pass)
				}
				w.pass = Pass{}
			}
		}
	}
	most := 0
	for _, n := range seconds {
		most = max(most, n)
	}
	if most > 2*rate || total < 120*rate*8/10 || total > 120*rate*11/10 {
		t.Errorf("%d calls in two minutes, up to %d in one second, want %d and %d", total, most, 120*rate, rate)
	}
}

// TestBrakeCutsByHalf simulates a window in which the service has accepted only one of many calls,
// by chance. The rate must be halved. It must not fall to one call a second.
func TestBrakeCutsByHalf(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	b := &Brake{later: true, braking: braking{rate: 400, at: now, limit: 300}}
	b.now.begun, b.since = now, now
	for i := range 40 {
		var p Pass
		if _, begins := b.Ask(now, &p); !begins {
			t.Fatalf("call %d has to wait at a rate of 400", i)
		}
		now = now.Add(25 * time.Millisecond)
		b.Done(now, p, End{Took: 300 * time.Millisecond, Failed: i > 0, Busy: i > 0, Later: true})
		if b.cut > 0 {
			break
		}
	}
	if b.cut != 1 || b.rate != 200 {
		t.Errorf("%d cuts, then %v calls a second, want 200", b.cut, b.rate)
	}
}

// TestBrakeWaits checks that runs do not count as under way while they wait for something other
// than a service.
func TestBrakeWaits(t *testing.T) {
	now := time.Unix(1000, 0)
	b := new(Brake)
	b.rate, b.at = 40, now
	b.pattern.add(500*time.Millisecond, true, false)
	begin := func() bool {
		var p Pass
		_, begins := b.Ask(now, &p)
		if !begins {
			b.Leave(p)
		}
		return begins
	}
	for b.inside < 20 && begin() {
		now = now.Add(time.Second)
	}
	if b.inside != 20 || begin() {
		t.Fatalf("%d runs are under way, want 40 a second of half a second", b.inside)
	}
	b.Wait(true)
	if !begin() {
		t.Error("no run starts while another one waits")
	}
	if b.Wait(false); b.inside != 21 {
		t.Errorf("%d runs are under way", b.inside)
	}
}

// TestBrakeCancels checks runs whose results say nothing about the service. They must give back
// their places in the order of starts, and not count as calls.
func TestBrakeCancels(t *testing.T) {
	now := time.Unix(1000, 0)
	b := &Brake{braking: braking{rate: 1, at: now}, later: true}
	for range 50 {
		var p Pass
		for begins := false; !begins; {
			var wait time.Duration
			if wait, begins = b.Ask(now, &p); wait > 1001*time.Millisecond {
				t.Fatalf("a call waits for %v", wait)
			}
			now = now.Add(wait)
		}
		b.Cancel(p)
	}
	if n := b.Lately(); n != (Calls{}) || b.inside != 0 || now.Sub(time.Unix(1000, 0)) > 2*time.Second {
		t.Errorf("%+v, %d are under way after %v", n, b.inside, now.Sub(time.Unix(1000, 0)))
	}
}

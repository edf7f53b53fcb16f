package pace

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

// ended returns a window of a length in seconds, with numbers of calls and of refused calls.
func ended(took float64, calls, refused int) window {
	return window{took: took, calls: calls, accepted: calls - refused,
		answers: answers{asked: float64(calls), refused: float64(refused)}}
}

// saidOf describes the state of a brake as a short text, which leaves out what is zero.
func saidOf(b *Brake) string {
	var all []string
	for _, is := range []struct {
		what string
		n    float64
	}{
		{"rate", b.rate}, {"served", b.served}, {"cut", float64(b.cut)}, {"limit", b.limit},
		{"first rate", b.firstRate}, {"first share", b.firstOf}, {"peak", b.peak}, {"refusals", b.refusals},
		{"no effect", float64(b.noEffect)}, {"accepted", float64(b.accepted)}, {"unused", float64(b.unused)},
		{"released of", b.releasedOf},
	} {
		if is.n != 0 {
			all = append(all, fmt.Sprintf("%s %.4g", is.what, is.n))
		}
	}
	return strings.Join(all, ", ")
}

// TestAdjust checks what a brake decides at the end of a window.
func TestAdjust(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		name      string
		b         braking
		last, now window
		later     bool
		asking    float64
		inside    int
		each      float64 // the mean time of a call in seconds; 0: 0.1
		want      string
	}{
		{name: "nothing was refused", now: ended(1, 100, 0)},
		{name: "4%, and one standard deviation", now: ended(1, 100, 6)},
		{name: "more than that", now: ended(1, 100, 7), want: "refusals 7"},
		{name: "the refused windows do not follow each other", b: braking{refusals: 15}, now: ended(1, 100, 6)},
		{name: "ten refused calls", now: ended(1, 100, 10), want: "refusals 10"},
		{name: "20 in several windows", b: braking{refusals: 10}, now: ended(1, 100, 10), want: "refusals 20"},
		{
			name: "more than 20", b: braking{refusals: 11}, now: ended(1, 100, 10), later: true,
			want: "rate 81, cut 1, first rate 100, first share 0.1, peak 90, refusals 21",
		},
		{
			name: "more than ten, and calls under way", now: ended(2, 100, 20), later: true, inside: 10,
			want: "rate 40.5, cut 1, first rate 50, first share 0.2, peak 40, refusals 20",
		},
		{
			name: "the first rate is at least half of the calls, if they may fail for another reason",
			now:  ended(1, 100, 80), want: "rate 50, cut 1, first rate 100, first share 0.8, peak 20, refusals 80",
		},
		{
			name: "or less, if the service asks for it", now: ended(1, 100, 80), later: true,
			want: "rate 18, cut 1, first rate 100, first share 0.8, peak 20, refusals 80",
		},
		{
			name: "hardly any is accepted", now: ended(1, 20, 20), later: true,
			want: "rate 1, cut 1, first rate 20, first share 1, refusals 20",
		},
		{
			name: "the rate is cut, also for few refused calls", b: braking{rate: 100, firstRate: 200, firstOf: 0.5},
			now: ended(1, 100, 8), want: "rate 82.8, cut 1, limit 92, first rate 200, first share 0.5, peak 92",
		},
		{
			name: "the time before the cut had the old rate", b: braking{rate: 100, firstRate: 200, taken: 1e3},
			now: ended(1, 100, 8), want: "rate 82.8, served 100, cut 1, limit 92, first rate 200, peak 92",
		},
		{
			name: "refused calls have displaced accepted ones", b: braking{rate: 100, firstRate: 200, firstOf: 0.5},
			last: ended(3, 300, 0), now: ended(1, 100, 20),
			want: "rate 85.5, cut 1, limit 95, first rate 200, first share 0.5, peak 80",
		},
		{
			name: "many were refused before, too", b: braking{rate: 100, firstRate: 200, firstOf: 0.5},
			last: ended(3, 300, 30), now: ended(1, 100, 20),
			want: "rate 72, cut 1, limit 80, first rate 200, first share 0.5, peak 80",
		},
		{
			name: "a window may be an exception", b: braking{rate: 400, limit: 300, firstRate: 500, firstOf: 0.9},
			now: ended(1, 400, 300), want: "rate 200, cut 1, limit 210, first rate 500, first share 0.9, peak 100",
		},
		{
			name: "no call is accepted", b: braking{rate: 100, firstRate: 200, firstOf: 1}, now: ended(1, 90, 90),
			later: true, want: "rate 50, cut 1, first rate 200, first share 1",
		},
		{
			name: "no call is accepted, which the rate may not have caused", now: ended(0.5, 90, 90),
			b:    braking{rate: 100, firstRate: 200, firstOf: 1},
			want: "rate 100, cut 1, first rate 200, first share 1",
		},
		{
			name: "more calls than at the first cut", b: braking{rate: 200, firstRate: 99, firstOf: 0.5, peak: 300},
			now: ended(0.5, 50, 10), want: "rate 100, cut 1, limit 80, first rate 100, first share 0.2, peak 80",
		},
		{
			name: "as many calls as at the first cut", b: braking{rate: 200, firstRate: 100, firstOf: 0.5, peak: 300},
			now: ended(0.5, 50, 10), want: "rate 100, cut 1, limit 80, first rate 100, first share 0.5, peak 300",
		},
		{
			name: "the lower rate has no effect", asking: 1, now: ended(1, 10, 5),
			b:    braking{rate: 10, firstRate: 200, firstOf: 0.5, peak: 100, noEffect: 2},
			want: "rate 5, cut 1, limit 5, first rate 200, first share 0.5, peak 100, no effect 3",
		},
		{
			name: "that is so in a short window", asking: 1, now: ended(0.9, 9, 5),
			b:    braking{rate: 10, firstRate: 200, firstOf: 0.5, peak: 100, noEffect: 2},
			want: "rate 5, cut 1, limit 4.444, first rate 200, first share 0.5, peak 100, no effect 2",
		},
		{
			name: "it has an effect", asking: 1, now: ended(1, 100, 34),
			b:    braking{rate: 150, firstRate: 200, firstOf: 0.5, peak: 200, noEffect: 2},
			want: "rate 75, cut 1, limit 66, first rate 200, first share 0.5, peak 200, no effect 1",
		},
		{
			name: "a little less", asking: 1, now: ended(1, 100, 35),
			b:    braking{rate: 150, firstRate: 200, firstOf: 0.5, peak: 200, noEffect: 2},
			want: "rate 75, cut 1, limit 65, first rate 200, first share 0.5, peak 200, no effect 3",
		},
		{
			name: "hardly any", asking: 1, now: ended(1, 100, 50),
			b:    braking{rate: 150, firstRate: 200, firstOf: 0.625, peak: 200, noEffect: 2},
			want: "rate 75, cut 1, limit 50, first rate 200, first share 0.625, peak 200, no effect 3",
		},
		{
			name: "the service accepts almost as many as before", asking: 1, now: ended(1, 100, 40),
			b:    braking{rate: 150, firstRate: 200, firstOf: 0.5, peak: 99, noEffect: 2},
			want: "rate 75, cut 1, limit 60, first rate 200, first share 0.5, peak 99",
		},
		{
			name: "and a little less", asking: 1, now: ended(1, 100, 40),
			b:    braking{rate: 150, firstRate: 200, firstOf: 0.5, peak: 100, noEffect: 2},
			want: "rate 75, cut 1, limit 60, first rate 200, first share 0.5, peak 100, no effect 3",
		},
		{
			name: "the rate does not limit the calls", asking: 1, now: ended(1, 59, 30),
			b:    braking{rate: 100, firstRate: 200, firstOf: 0.5, peak: 100, noEffect: 2},
			want: "rate 50, cut 1, limit 29, first rate 200, first share 0.5, peak 100",
		},
		{
			name: "the service is away", asking: 1, later: true, now: ended(1, 100, 91),
			b:    braking{rate: 150, firstRate: 200, firstOf: 0.5, peak: 100, noEffect: 2},
			want: "rate 75, cut 1, limit 9, first rate 200, first share 0.5, peak 100",
		},
		{
			name: "the service was away", asking: 1, later: true, now: ended(1, 100, 90),
			b:    braking{rate: 150, firstRate: 200, firstOf: 0.91, peak: 100, noEffect: 2},
			want: "rate 75, cut 1, limit 10, first rate 200, first share 0.91, peak 100",
		},
		{
			name: "it hardly was", asking: 1, later: true, now: ended(1, 100, 90),
			b:    braking{rate: 150, firstRate: 200, firstOf: 0.9, peak: 100, noEffect: 2},
			want: "rate 75, cut 1, limit 10, first rate 200, first share 0.9, peak 100, no effect 3",
		},
		{
			name: "it does not ask to call later, so it may be the function", asking: 1, now: ended(1, 100, 91),
			b:    braking{rate: 150, firstRate: 200, firstOf: 0.5, peak: 100, noEffect: 2},
			want: "rate 75, cut 1, limit 9, first rate 200, first share 0.5, peak 100, no effect 3",
		},
		{
			name: "the rate had no effect in six windows", asking: 1, now: ended(1, 10, 5),
			b:    braking{rate: 10, cut: 7, firstRate: 200, firstOf: 0.5, peak: 100, noEffect: 5},
			want: "cut 8, released of 0.5",
		},
		{
			name: "few ask to call later: in one", asking: 0.49, now: ended(1, 10, 5),
			b:    braking{rate: 10, cut: 7, firstRate: 200, firstOf: 0.5, peak: 100},
			want: "cut 8, released of 0.5",
		},
		{
			name: "half of them ask to call later", asking: 0.5, now: ended(1, 10, 5),
			b:    braking{rate: 10, firstRate: 200, firstOf: 0.5, peak: 100},
			want: "rate 5, cut 1, limit 5, first rate 200, first share 0.5, peak 100, no effect 1",
		},
		{
			name: "the rate is hardly used", b: braking{rate: 100, limit: 200, unused: 59, accepted: 3},
			now: ended(1, 59, 0), want: "rate 100, limit 200, peak 59, accepted 3, unused 60",
		},
		{name: "for a minute", b: braking{rate: 100, limit: 200, unused: 60}, now: ended(1, 59, 0), want: "cut 1"},
		{
			name: "far below the limit, the rate grows fast", b: braking{rate: 100, limit: 200, unused: 9, taken: 1e3},
			now: ended(1, 60, 0), want: "rate 150, served 100, limit 200, peak 60",
		},
		{
			name: "up to nine tenths of it", b: braking{rate: 179, limit: 200, unused: 9, taken: 1e3},
			now: ended(1, 150, 0), want: "rate 180, served 179, limit 200, peak 150",
		},
		{
			name: "then it rests", b: braking{rate: 180, limit: 200, unused: 9, taken: 1e3},
			now: ended(1, 150, 0), want: "rate 180, served 180, limit 200, peak 150, accepted 1",
		},
		{
			name: "then it grows slowly", b: braking{rate: 200, limit: 200, accepted: 6, taken: 1e3},
			now: ended(1, 150, 0), want: "rate 204, served 200, limit 200, peak 150, accepted 7",
		},
		{
			name: "then faster", b: braking{rate: 200, limit: 200, accepted: 16, taken: 1e3},
			now: ended(1, 150, 0), want: "rate 236, served 200, limit 200, peak 150, accepted 17",
		},
		{
			name: "no limit is known", b: braking{rate: 100, unused: 9, taken: 1e3},
			now: ended(1, 150, 0), want: "rate 150, served 100, peak 150, accepted 1",
		},
		{
			name: "calls wait in the service", b: braking{rate: 100, quickest: 0.06, unused: 9, taken: 1e3},
			now: ended(1, 150, 0), want: "rate 100, peak 150",
		},
		{
			name: "they wait less", b: braking{rate: 100, quickest: 0.067, taken: 1e3},
			now: ended(1, 150, 0), want: "rate 150, served 100, peak 150, accepted 1",
		},
		{
			name: "exactly as long as is usual", each: 3, b: braking{rate: 100, quickest: 2 / 1.01, taken: 1e3},
			now: ended(1, 150, 0), want: "rate 150, served 100, peak 150, accepted 1",
		},
	} {
		b := &Brake{braking: c.b, last: c.last, now: c.now, later: c.later, asking: c.asking, inside: c.inside,
			pattern: pattern{time: cmp.Or(c.each, 0.1), accepted: 1}}
		if b.rate > 0 {
			b.at = now.Add(-time.Second)
		}
		if b.adjust(now); b.rate > 0 && b.taken == 0 {
			b.at = now
		}
		if got := saidOf(b); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
		if until := now.Add(releasedFor); b.released.Equal(until) != (b.releasedOf > 0) {
			t.Errorf("%s: released until %v", c.name, b.released)
		}
	}
}

// TestWindows checks when a window ends.
func TestWindows(t *testing.T) {
	for _, c := range []struct {
		took time.Duration
		now  window
		want bool
	}{
		{windowTime - 1, ended(0, 1000, 0), false},
		{windowTime, ended(0, windowCalls, 0), true},
		{windowTime, ended(0, windowCalls-1, 0), false},
		{windowLong - 1, ended(0, windowCalls-1, 0), false},
		{windowLong, ended(0, 1, 0), true},
		{windowLong, ended(0, 0, 0), false},
		{earlyTime, ended(0, 100, 11), true}, // many were refused
		{earlyTime - 1, ended(0, 100, 11), false},
		{earlyTime, ended(0, 100, 10), false},
		{earlyTime, ended(0, 1000, 46), false}, // as many as may be refused
	} {
		b := &Brake{now: c.now}
		if got := b.ends(c.took); got != c.want {
			t.Errorf("after %v, %+v: it ends: %v", c.took, c.now, got)
		}
	}
}

// TestHadEffect checks when a brake that has given up its rate sees that the rate had an effect.
func TestHadEffect(t *testing.T) {
	for _, c := range []struct {
		before float64 // the share of refused calls when the rate was given up
		now    window
		want   bool
	}{
		{0, ended(1, 100, fewRefused), false},
		{0, ended(1, 100, fewRefused+1), true},
		{0.1, ended(1, 90, 27), false}, // twice nine, and three standard deviations
		{0.1, ended(1, 90, 28), true},
	} {
		b := &Brake{braking: braking{releasedOf: c.before}, now: c.now}
		if got := b.hadEffect(); got != c.want {
			t.Errorf("%v were refused before, now %+v: %v", c.before, c.now.answers, got)
		}
	}
}

// TestAsk checks which runs may start at a rate of ten calls a second, and how long others wait.
func TestAsk(t *testing.T) {
	at := time.Unix(1000, 0)
	const ms = time.Millisecond
	for _, c := range []struct {
		name   string
		later  bool
		since  time.Duration // since the brake was last asked
		each   float64       // the mean time of a call in seconds
		ahead  float64       // number of calls with an earlier place
		inside int
		wait   time.Duration
		begins bool
		rate   float64
	}{
		{name: "its turn has come", begins: true, rate: 10},
		{name: "one call is before it", ahead: 1, wait: 100 * ms, rate: 10},
		{name: "it came meanwhile", ahead: 1, since: 100 * ms, begins: true, rate: 10},
		{name: "many are", ahead: 100, wait: time.Second, rate: 10},
		{name: "three at once give the rate", ahead: 1, inside: 9, each: 0.3, wait: 100 * ms, rate: 10},
		{name: "four at once give it: all are under way", inside: 4, each: 0.4, wait: 50 * ms, rate: 10},
		{name: "some of them start early", ahead: 0.7, inside: 3, each: 0.4, begins: true, rate: 10},
		{name: "but not all", ahead: 0.9, inside: 3, each: 0.4, wait: 10 * ms, rate: 10},
		{name: "nobody has asked for a minute", ahead: 1000, since: idleFor, wait: time.Second, rate: 10},
		{name: "nor for longer", ahead: 1000, since: idleFor + ms, begins: true},
		{name: "the service has asked to call later", ahead: 1000, later: true, since: idleFor + ms,
			wait: time.Second, rate: 10},
	} {
		b := &Brake{braking: braking{rate: 10, at: at, taken: c.ahead}, later: c.later, inside: c.inside,
			pattern: pattern{time: c.each, accepted: 1}, now: window{begun: at}}
		var p Pass
		wait, begins := b.Ask(at.Add(c.since), &p)
		if (wait-c.wait).Abs() > time.Microsecond || begins != c.begins || b.rate != c.rate {
			t.Errorf("%s: waits %v, begins %v, at a rate of %v", c.name, wait, begins, b.rate)
		}
		if n := b.inside - c.inside; n == 1 != begins || p.waits != (c.rate > 0) ||
			b.now.begun.IsZero() != (c.rate == 0) {
			t.Errorf("%s: %d more under way, %+v, in a window since %v", c.name, n, p, b.now.begun)
		}
	}
}

// TestLeaves checks that places of runs which do not start are used by the runs after them, in
// whichever order they are given back.
func TestLeaves(t *testing.T) {
	at := time.Unix(1000, 0)
	b := &Brake{braking: braking{rate: 1, at: at}}
	passes := make([]Pass, 6)
	for i := range passes {
		if _, begins := b.Ask(at, &passes[i]); begins != (i == 0) {
			t.Fatalf("run %d begins: %v", i, begins)
		}
	}
	b.Leave(passes[4])
	if _, begins := b.Ask(at.Add(time.Second), &passes[2]); begins {
		t.Error("run 2 begins at the turn of run 1, although only a place after it was given back")
	}
	b.Leave(passes[3])
	b.Leave(passes[1])
	b.Leave(Pass{}) // it has no place
	if _, begins := b.Ask(at.Add(time.Second), &passes[2]); !begins {
		t.Error("run 2 waits, although run 1 has given back its place")
	}
	if _, begins := b.Ask(at.Add(1999*time.Millisecond), &passes[5]); begins {
		t.Error("run 5 begins early")
	}
	if _, begins := b.Ask(at.Add(2001*time.Millisecond), &passes[5]); !begins {
		t.Error("run 5 waits, although runs 3 and 4 have given back their places")
	}
	var free Brake
	free.Leave(passes[3])
	if free.Leave(Pass{}); free.givenBack != nil {
		t.Errorf("without a rate: %+v", free.givenBack)
	}
}

// TestInsists checks that a run that starts out of turn counts as under way, and as started at the
// present rate.
func TestInsists(t *testing.T) {
	for _, c := range []struct {
		rate   float64
		later  bool
		begins bool
	}{{0, false, true}, {0, true, true}, {1, false, true}, {1, true, false}} {
		b := &Brake{braking: braking{rate: c.rate, cut: 3}, later: c.later}
		p := Pass{cut: 2}
		begins := b.Insist(&p)
		if begins != c.begins || begins != (b.inside == 1) || begins != (p.cut == 3) {
			t.Errorf("%+v: begins %v, %+v, %d under way", c, begins, p, b.inside)
		}
	}
}

// TestDoneMovesPlaces checks that the places of later runs move if a run had another number of calls
// than expected. Time in which nobody wanted a place is lost.
func TestDoneMovesPlaces(t *testing.T) {
	at := time.Unix(1000, 0)
	for _, c := range []struct {
		took   time.Duration
		taken  float64
		served float64
	}{
		{time.Second, 10, 1.5}, // two places in two seconds; half a call was expected
		{time.Second, 1, 0.5},
		{time.Millisecond, 10, 2.5}, // it was no call
	} {
		b := &Brake{braking: braking{rate: 1, at: at, taken: c.taken},
			pattern: pattern{time: 1, squares: 1, accepted: 1}}
		b.now.begun = at
		now := at.Add(2 * time.Second)
		b.Done(now, Pass{charge: 0.5}, End{Took: c.took})
		if b.serve(now); b.served != c.served {
			t.Errorf("%+v: %v served", c, b.served)
		}
	}
}

// TestAsking checks the share of recent refusals that have asked to call later.
func TestAsking(t *testing.T) {
	b, now := new(Brake), time.Unix(1000, 0)
	for i, c := range []struct {
		e    End
		want float64
	}{
		{End{Busy: true, Later: true}, 0.1}, {End{}, 0.1}, {End{Busy: true, Later: true}, 0.19},
		{End{Busy: true}, 0.171}, {End{Busy: true}, 0.1539},
	} {
		if b.Done(now, Pass{}, c.e); math.Abs(b.asking-c.want) > 1e-9 {
			t.Errorf("after run %d: %v, want %v", i+1, b.asking, c.want)
		}
	}
}

// TestGiveUp checks that only entities one after the other, all without an accepted call, show that
// the service is at fault.
func TestGiveUp(t *testing.T) {
	b, now := new(Brake), time.Unix(1000, 0)
	for i, want := range []bool{false, false, true, true} {
		if got := b.GiveUp(); got != want {
			t.Errorf("after %d entities: %v", i+1, got)
		}
	}
	b.Done(now, Pass{}, End{Took: time.Second, Failed: true, Busy: true})
	if !b.GiveUp() {
		t.Error("a refused call changes the count")
	}
	b.Done(now, Pass{}, End{Took: time.Second})
	if b.GiveUp() {
		t.Error("an accepted call does not")
	}
}

// TestLatelyOf checks that a run counts as recent in its own span and in the next one.
func TestLatelyOf(t *testing.T) {
	b, now := new(Brake), time.Unix(1000, 0)
	run := func(after time.Duration, n int, e End) {
		now = now.Add(after)
		for range n {
			b.Done(now, Pass{}, e)
		}
	}
	check := func(want Calls) {
		t.Helper()
		if got := b.Lately(); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	run(0, windowCalls-1, End{Failed: true})
	run(windowTime, 1, End{}) // in the first span, which has too few runs
	check(Calls{20, 19, 0})
	run(0, 10, End{Entities: Calls{2, 1, 1}}) // in the second
	check(Calls{40, 29, 10})
	run(windowTime-1, 1, End{}) // so is this one
	check(Calls{41, 29, 10})
	run(1, 1, End{}) // in the third, with which the first is forgotten
	check(Calls{22, 10, 10})
}

// TestPattern checks which runs count as calls of a service.
func TestPattern(t *testing.T) {
	var p pattern
	if p.share() != 1 || !p.isCall(0) {
		t.Error("of a run before any other, it is unknown")
	}
	run := func(took time.Duration) bool {
		call := p.isCall(took)
		p.add(took, call, false)
		return call
	}
	for range 100 {
		if !run(800 * time.Microsecond) {
			t.Fatal("runs that all take equally long are calls")
		}
	}
	if p.accepted < 40 {
		t.Errorf("%+v: each call forgets the ones before", p)
	}
	if run(99*time.Microsecond) || !p.isCall(100*time.Microsecond) {
		t.Error("a run is a call from an eighth of the mean time on")
	}
	one := pattern{time: 1, squares: 1, accepted: 1}
	if !one.isCall(time.Second / 8) {
		t.Error("exactly an eighth is too short")
	}
	if one.add(8*time.Second, true, false); one.accepted != 1.98 {
		t.Errorf("%+v: a call that is exactly eight times as long does not count with the others", one)
	}
	if got, want := p.share(), 1-1/p.runs; got != want {
		t.Errorf("%v of the runs have called, want %v", got, want)
	}
	before := p.accepted
	if run(6399 * time.Microsecond); p.accepted < before {
		t.Errorf("%+v: a call of less than eight times the mean is one of them", p)
	}
	if run(time.Second); p.accepted != 1 || p.time != 1 {
		t.Errorf("%+v: a much longer run shows that those before were no calls", p)
	}
	if run(time.Millisecond) {
		t.Error("a short run is no call any more")
	}
	p.add(time.Hour, true, true)
	if p.accepted != 1 {
		t.Errorf("%+v: a refused call changes the times", p)
	}
	for range 5000 {
		run(time.Millisecond)
	}
	if share := p.share(); share > 0.01 || p.runs > 501 {
		t.Errorf("%+v: %v are calls, though the last ones are long ago", p, share)
	}
}

// TestTooMany checks when so many calls have failed that single entities are not at fault.
func TestTooMany(t *testing.T) {
	for _, c := range []struct {
		failed, calls int
		want          bool
	}{{10, 10, false}, {11, 219, true}, {11, 220, false}, {100, 2000, false}, {101, 2000, true}} {
		if got := TooMany(c.failed, c.calls); got != c.want {
			t.Errorf("%d of %d: %v", c.failed, c.calls, got)
		}
	}
}

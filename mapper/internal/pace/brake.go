package pace

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"sync"
	"time"
)

// A Brake slows the calls that a job's function makes in one process, while a service refuses some
// of them because there are too many. It counts calls in windows, which are short spans of time. If
// more than 4% of a window's calls were refused, and not by chance, the brake sets a rate: 90% of
// the rate of accepted calls. The rate stays there for five windows. Then it grows, and each window
// without a cut makes it grow faster.
//
// If a much lower rate does not lower the share of refused calls, the rate is not their cause. Then
// the brake sets no rate for five minutes.
//
// The brake does not see the calls themselves. It counts a run of the function as a call if it has
// failed and may succeed later, or took about as long as other calls. A run that returns at once
// has not called a service. A call counts as refused if the run has failed and may succeed later.
//
// The method is congestion control by additive increase and multiplicative decrease (Jacobson and
// Karels, 1988). Around the last limit, the rate grows as in CUBIC (RFC 9438). The zero value does
// not brake. Several goroutines may use a Brake.
type Brake struct {
	mu sync.Mutex
	braking
	now, last window
	pattern   pattern
	lately    [2]Calls  // numbers of runs in the previous span of time, and in the current one
	since     time.Time // when the current span has started
	inside    int       // number of runs under way
	later     bool      // whether the service's last refusal asked to call later
	// number of entities, since the last accepted call, for which the service has refused all calls
	givenUp int
}

// braking is the state of a Brake while it limits the rate of calls.
type braking struct {
	rate      float64   // allowed calls a second; 0: unlimited
	served    float64   // number of calls whose turn had come by the time at
	at        time.Time // time of the last update of served
	taken     float64   // number of calls that have got a turn
	givenBack []gap     // turns of calls that will not start, in order, and have not come yet
	cut       int       // number of changes of the rate; a call counts as refused only if it started after the last one
	limit     float64   // accepted calls a second when the rate was last cut; 0: unknown
	firstRate float64   // calls a second when the service first refused calls
	firstOf   float64   // the share of refused calls at that time
	quickest  float64   // the shortest recent mean time of a call, in seconds
	peak      float64   // highest rate of accepted calls since the service first refused calls
	noEffect  int       // number of windows in a row without effect, see checkEffect
	accepted  int       // number of windows at the limit without a cut
	unused    int       // number of windows with fewer calls than the rate allows
	released  time.Time // until when the brake sets no rate
}

// A gap is the turn of a run that has got one and will not start. Another run may use it.
type gap struct{ turn, charge float64 }

// A window holds the numbers of calls in a short span of time.
type window struct {
	begun           time.Time
	took            float64 // the length of the window in seconds
	calls, accepted int     // runs that have called the service, and the accepted ones among them
	answers                 // calls that started after the last change of the rate
}

// answers counts calls of a service: all of them, and the refused ones.
type answers struct{ asked, refused float64 }

// share returns the share of refused calls.
func (a answers) share() float64 { return a.refused / max(1, a.asked) }

// tooMany reports whether the service refused more than 4% of the calls, by more than one standard
// deviation. So less than 5% of a whole job's calls are refused, even if the calls before each cut
// of the rate count.
func (a answers) tooMany() bool {
	const most = 0.04
	return a.refused > most*a.asked+math.Sqrt(most*a.asked)
}

// Calls counts runs of the mapper's function: all runs, the failed ones, and the busy ones. A busy
// run has failed with an error that is not permanent, for example because a service is busy.
type Calls struct{ All, Failed, Busy int }

func (c Calls) plus(more Calls) Calls {
	return Calls{c.All + more.All, c.Failed + more.Failed, c.Busy + more.Busy}
}

const (
	windowCalls = 20 // minimum number of calls in a window of the length windowTime
	windowTime  = time.Second
	windowLong  = 8 * time.Second // length of a window with fewer calls than that
	earlyTime   = windowTime / 10 // minimum length of a window with many refusals
	slowestRate = 1.0             // the lowest rate that the brake sets, in calls a second
	fastGrowth  = 1.5             // factor by which the rate grows after a window, if it is far below the limit
	cautious    = 0.9             // share of the rate of accepted calls that becomes the new rate
	restWindows = 5               // the number of windows before the rate grows again
	// if calls take this many times longer than the quickest ones, they wait in the service
	slower    = 1.5
	fewAtOnce = 4   // if the rate means fewer simultaneous calls than this, their number is not limited
	spare     = 0.2 // share of the simultaneous calls that may start ahead of their turn
	// number of windows with far fewer calls than the rate allows, after which the rate is removed
	idleWindows = 60
	// idleFor is the time without a call after which the rate is removed, unless the service has
	// asked to call later.
	idleFor         = time.Minute
	fewGivenUp      = 3 // number of entities in a row after which their refusals are the service's fault
	noEffectWindows = 3 // number of windows with noEffect after which the rate is removed
	releasedFor     = 5 * time.Minute
)

// TooMany reports whether more than 10 calls have failed, and more than 5% of all calls. Then the
// function or a service is probably the cause, and not single entities.
func TooMany(failed, calls int) bool { return failed > 10 && failed*20 > calls }

// A Pass holds the state of one run of the function that asks a Brake for its start. The zero value
// is for a run that has not asked yet.
type Pass struct {
	waits  bool
	turn   float64 // the number of calls that come before this run
	charge float64 // expected number of calls in the run: the share of recent runs that have made a call
	cut    int
}

// Ask reports whether a run may start now. If not, it returns how long to wait before the next Ask.
func (b *Brake) Ask(now time.Time, p *Pass) (wait time.Duration, begins bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rate > 0 && !b.later && now.Sub(b.at) > idleFor { // the cause may no longer exist
		b.free(time.Time{})
		b.now = window{}
	}
	if b.rate > 0 {
		b.serve(now)
		if !p.waits {
			p.waits, p.turn, p.charge = true, b.taken, b.pattern.share()
			b.taken += p.charge
		}
		each, ahead := b.pattern.each(), p.turn-b.served
		// By Little's law, atOnce simultaneous calls result in the rate. The service may also limit
		// simultaneous calls, so there must not be more.
		if atOnce := b.rate * each; atOnce >= fewAtOnce {
			if b.inside >= int(atOnce+0.5) {
				return soon(each / 8), false
			}
			ahead -= spare * atOnce
		}
		if ahead > 0 {
			return soon(ahead / b.rate), false
		}
	}
	p.cut = b.cut
	b.inside++
	return 0, true
}

// Insist reports whether a run may start that has waited too long for its turn. If the service has
// asked to call later, the run may not start. Other errors may be the function's own fault, so they
// do not stop the run.
func (b *Brake) Insist(p *Pass) (begins bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rate > 0 && b.later {
		return false
	}
	p.cut = b.cut
	b.inside++
	return true
}

// free removes the rate. The brake sets no new rate before the time released.
func (b *braking) free(released time.Time) {
	*b = braking{cut: b.cut + 1, served: b.taken, taken: b.taken, released: released}
}

// soon returns how long to wait until the next Ask. It is at most a second, because the rate may
// change meanwhile.
func soon(seconds float64) time.Duration {
	most := min(max(0.2, seconds/5), 1)
	return time.Duration(min(max(seconds, 0.001), most) * float64(time.Second))
}

// serve moves to the turns that have come by the time now. It skips turns that were given back. A
// turn for which no run has asked is lost.
func (b *braking) serve(now time.Time) {
	if now.After(b.at) {
		b.served += b.rate * now.Sub(b.at).Seconds()
		b.at = now
	}
	for len(b.givenBack) > 0 && b.givenBack[0].turn <= b.served {
		b.served += b.givenBack[0].charge
		b.givenBack = b.givenBack[1:]
	}
	b.served = min(b.served, b.taken)
}

// Wait records that a run waits for something other than a service. If waits is false, it records
// the end of this wait. A waiting run does not count as under way.
func (b *Brake) Wait(waits bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if waits {
		b.inside--
	} else {
		b.inside++
	}
}

// Leave gives back the turn of a run that will not start.
func (b *Brake) Leave(p Pass) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rate > 0 && p.waits {
		i := sort.Search(len(b.givenBack), func(i int) bool { return b.givenBack[i].turn >= p.turn })
		b.givenBack = slices.Insert(b.givenBack, i, gap{p.turn, p.charge})
	}
}

// Cancel records the end of a run whose result says nothing about a service.
func (b *Brake) Cancel(p Pass) {
	b.mu.Lock()
	b.inside--
	b.mu.Unlock()
	b.Leave(p)
}

// An End says how a run of the function has ended.
type End struct {
	Took   time.Duration
	Failed bool
	Busy   bool // whether the run has failed, and another attempt may succeed
	Later  bool // whether a service has asked to call later

	// Entities counts the entities of the run, if it was for several entities and did not fail as a
	// whole.
	Entities Calls
}

// Done records the end of a run.
func (b *Brake) Done(now time.Time, p Pass, e End) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.now.begun.IsZero() {
		b.now.begun, b.since = now, now
	}
	b.inside--
	b.note(now, e)
	took, busy := e.Took, e.Busy
	if busy {
		b.later = e.Later
	}
	call := busy || b.pattern.isCall(took)
	b.pattern.add(took, call, busy)
	if call {
		b.now.calls++
		if !busy {
			b.now.accepted++
			b.givenUp = 0
		}
		if p.cut == b.cut {
			b.now.asked++
			if busy {
				b.now.refused++
			}
		}
	}
	if b.rate > 0 { // the expected number of calls was wrong, so later turns come earlier or later
		b.serve(now)
		if b.served += p.charge; call {
			b.served--
		}
	}
	if took := now.Sub(b.now.begun); b.ends(took) {
		b.now.took = took.Seconds()
		if now.After(b.released) {
			b.adjust(now)
		}
		b.last, b.now = b.now, window{begun: now}
	}
}

// ends reports whether the current window is over. It has lasted for the time took. At the end of a
// window the brake decides about the rate.
func (b *Brake) ends(took time.Duration) bool {
	return took >= earlyTime && b.now.refused > 10 && b.now.tooMany() ||
		took >= windowTime && b.now.calls >= windowCalls || took >= windowLong && b.now.calls > 0
}

// adjust changes the rate by the calls of the window that ends.
func (b *Brake) adjust(now time.Time) {
	calls, accepted := float64(b.now.calls)/b.now.took, float64(b.now.accepted)/b.now.took
	b.quickest = min(b.pattern.each(), cmp.Or(1.01*b.quickest, math.Inf(1)))
	if b.rate > 0 && b.now.took >= windowTime.Seconds() {
		b.checkEffect(calls, accepted)
	}
	switch {
	case b.noEffect == noEffectWindows || b.noEffect > 0 && !b.later:
		b.free(now.Add(releasedFor))
	case b.now.tooMany() && (b.rate > 0 || b.now.refused > 10):
		b.slowDown(now, calls, accepted)
	case b.rate == 0:
	case !b.binds(calls):
		if b.unused++; b.unused > idleWindows {
			b.free(time.Time{})
		}
	case b.limit > 0 && b.rate < cautious*b.limit:
		b.serve(now)
		b.unused = 0
		b.rate = min(fastGrowth*b.rate, cautious*b.limit)
	case b.pattern.each() > slower*b.quickest: // the calls already wait in the service
		b.unused = 0
	default:
		b.serve(now)
		b.unused = 0
		b.accepted++
		b.rate *= b.growth()
	}
}

// slowDown lowers the rate after a window with too many refused calls. The arguments are calls a
// second.
func (b *Brake) slowDown(now time.Time, calls, accepted float64) {
	first := b.rate == 0
	if first || calls > b.firstRate {
		b.firstRate, b.firstOf, b.peak = calls, b.now.share(), 0
	}
	if first {
		b.at = now
	} else if b.last.took > 0 && !b.last.tooMany() { // refused calls have displaced accepted ones
		accepted = float64(b.now.accepted+b.last.accepted) / (b.now.took + b.last.took)
	}
	b.serve(now)
	b.accepted, b.unused = 0, 0
	switch {
	case first: // the limit is unknown, so calls under way count as accepted
		if b.rate = cautious * float64(b.now.accepted+b.inside) / b.now.took; !b.later { // it may be the function
			b.rate = max(b.rate, calls/2)
		}
	case accepted > 0: // the window may be an exception, so the rate is at most halved
		b.limit, b.rate = max(accepted, 0.7*b.limit), max(cautious*accepted, b.rate/2)
	case b.later:
		b.rate /= 2
	}
	b.rate = max(slowestRate, b.rate)
	b.cut++
}

// checkEffect counts the windows in a row in which a much lower rate has not lowered the share of
// refused calls. Such a window shows that the rate is not the cause: a service with a limit of
// calls a second would still accept that many. If the service asks to call later and refuses almost
// all calls, it is down or overloaded by others. Then the window does not count.
func (b *Brake) checkEffect(calls, accepted float64) {
	b.peak = max(b.peak, accepted)
	share, away := b.now.share(), b.later && max(b.now.share(), b.firstOf) > 0.9
	if b.noEffect++; away || !b.binds(calls) || accepted > 0.6*b.peak || share < 0.7*b.firstOf {
		b.noEffect = 0
	}
}

// binds reports whether the brake's rate limits the calls. The argument is the number of calls a
// second.
func (b *braking) binds(calls float64) bool { return b.rate > 0 && calls >= 0.6*b.rate }

// growth returns the factor by which the rate grows after a window. Growth is slow near the last
// known limit. It becomes faster with time, because the limit may have risen. If no limit is known,
// growth is fast.
func (b *braking) growth() float64 {
	if b.limit == 0 {
		return fastGrowth
	}
	n := b.accepted - restWindows
	if n <= 0 {
		return 1
	}
	return 1 + min(0.05, 0.01*float64(n))
}

// note counts a run among the recent runs.
func (b *Brake) note(now time.Time, e End) {
	if now.Sub(b.since) >= windowTime && b.lately[1].All >= windowCalls {
		b.lately, b.since = [2]Calls{b.lately[1]}, now
	}
	of := &b.lately[1]
	if n := e.Entities; n.All > 0 {
		*of = of.plus(n)
		return
	}
	of.All++
	if e.Failed {
		of.Failed++
	}
	if e.Busy {
		of.Busy++
	}
}

// Lately returns the numbers of recent runs. It covers at least the last 20 runs, or all runs if
// there were fewer.
func (b *Brake) Lately() Calls {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lately[0].plus(b.lately[1])
}

// Accepts reports whether services have accepted more than half of the recent calls. Then a refusal
// does not mean that a service is down or overloaded.
func (b *Brake) Accepts() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	accepted := b.last.accepted + b.now.accepted
	return 2*accepted > b.last.calls+b.now.calls
}

// GiveUp records that a service has refused all calls for an entity. If this was the third such
// entity in a row, without an accepted call, it returns true: the service is at fault, and not the
// entity.
func (b *Brake) GiveUp() (refuses bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.givenUp++
	return b.givenUp >= fewGivenUp
}

// A pattern holds means of recent runs of the function: their time, and how many of them call a
// service.
type pattern struct {
	runs, calls   float64 // number of recent runs, and of the ones among them that have called a service
	time, squares float64 // sums over runs that were not refused: of their seconds, and of the squares
	accepted      float64 // number of accepted calls in these runs
}

// each returns the mean time of an accepted call in seconds.
func (p *pattern) each() float64 { return p.time / max(1, p.accepted) }

// Factors by which the weight of older runs (forgetRuns) and older calls (forget) falls with each
// new one.
const (
	forgetRuns = 0.998
	forget     = 0.98
)

// share returns the share of recent runs that have called a service.
func (p *pattern) share() float64 {
	if p.runs == 0 {
		return 1
	}
	return p.calls / p.runs
}

// isCallOf says when a run is too short to be a call of a service: if it is this many times shorter
// than a call.
const isCallOf = 8

// isCall reports whether a run took long enough to have called a service. The threshold is an
// eighth of the expected length of the run that is under way at a random moment.
func (p *pattern) isCall(took time.Duration) bool {
	return p.time == 0 || isCallOf*took.Seconds() >= p.squares/p.time
}

func (p *pattern) add(took time.Duration, call, busy bool) {
	p.runs, p.calls = p.runs*forgetRuns+1, p.calls*forgetRuns
	if call {
		p.calls++
	}
	if s := took.Seconds(); !busy {
		if call && s > isCallOf*p.each() && p.accepted > 0 { // the earlier runs were no calls
			p.time, p.squares, p.accepted = 0, 0, 0
		}
		if call { // only calls count for the time of a call
			p.time, p.squares, p.accepted = p.time*forget, p.squares*forget, p.accepted*forget+1
		}
		p.time, p.squares = p.time+s, p.squares+s*s
	}
}

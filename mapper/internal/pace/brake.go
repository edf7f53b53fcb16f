package pace

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"sync"
	"time"
)

// A Brake slows the calls of a job's function in one process while a service refuses calls because
// there are too many. It counts calls in windows, which are short spans of time. If more than 4% of
// a window's calls were refused, beyond chance, the new rate is 90% of the accepted calls' rate.
// The rate stays there for five windows. Then it grows, faster with each window without a cut. If a
// much lower rate does not lower the share of refused calls, the rate is not the cause. The brake
// is then released for five minutes.
//
// Only calls of a service count: runs that take about as long as other calls, or that were refused.
// A function that returns at once has called no service.
//
// The method is congestion control: additive increase, multiplicative decrease (Jacobson and
// Karels, 1988), with the growth of CUBIC (RFC 9438) around the last limit. The zero value does not
// brake. Several goroutines may use a Brake.
type Brake struct {
	mu sync.Mutex
	braking
	now, last window
	pattern   pattern
	lately    [2]Calls  // numbers of runs in the previous span and in the current one
	since     time.Time // when the current span started
	inside    int       // number of runs under way
	later     bool      // whether the service, when it last refused a call, asked to call later
	// number of entities for which the service has refused all calls, since it last accepted one
	givenUp int
}

// braking is the state of a Brake that has slowed calls.
type braking struct {
	rate      float64   // allowed calls a second; 0: unlimited
	served    float64   // number of calls whose turn had come at the time at
	at        time.Time // time of the last update of served
	taken     float64   // number of calls that were given a turn
	left      []gap     // turns that were given back and have not come yet, the next one first
	cut       int       // number of cuts and releases so far; calls before the last one do not count
	limit     float64   // accepted calls a second when the rate was last cut; 0: unknown
	firstRate float64   // calls a second when the service first refused calls
	firstOf   float64   // the share of calls that the service refused at that time
	quickest  float64   // the shortest recent mean time of a call, in seconds
	peak      float64   // highest rate of accepted calls since the service first refused calls
	inVain    int       // number of windows in which a much lower rate had no effect on the share of refusals
	accepted  int       // number of windows at the limit without a cut
	unused    int       // number of windows with fewer calls than the rate allows
	released  time.Time // until when the brake does not adjust the rate
}

// A gap is the turn of a call that was allowed to start but did not. Another call may use it.
type gap struct{ turn, charge float64 }

// A window has the numbers of calls in a short span of time.
type window struct {
	begun           time.Time
	took            float64 // the length of the window in seconds
	calls, accepted int     // runs that have called the service, and those that it has accepted
	answers                 // answers to calls that started after the last cut
}

// answers counts the calls of a service: all calls, and those that it refused.
type answers struct{ asked, refused float64 }

// share returns the share of refused calls.
func (a answers) share() float64 { return a.refused / max(1, a.asked) }

// tooMany reports whether the service refused more than 4% of the calls, by more than one standard
// deviation. So the share of refused calls of a whole job stays below 5%, even with the calls
// before each cut of the rate.
func (a answers) tooMany() bool {
	const most = 0.04
	return a.refused > most*a.asked+math.Sqrt(most*a.asked)
}

// Calls counts runs of the mapper's function: all runs, the failed ones, and the busy ones. A busy
// run has failed, but may succeed in another attempt.
type Calls struct{ All, Failed, Busy int }

func (c Calls) plus(more Calls) Calls {
	return Calls{c.All + more.All, c.Failed + more.Failed, c.Busy + more.Busy}
}

const (
	windowCalls = 20 // minimum number of calls in a window that lasts windowTime
	windowTime  = time.Second
	windowLong  = 8 * time.Second // length of a window with fewer calls
	earlyTime   = windowTime / 10 // minimum length of a window with many refusals
	slowestRate = 1.0             // lowest rate to which the brake slows, in calls a second
	fastGrowth  = 1.5             // factor by which the rate grows in a window, far below the limit
	cautious    = 0.9             // share of the accepted calls that becomes the next rate
	restWindows = 5               // the number of windows for which the rate stays at that share
	// calls slower than the quickest by this factor wait for each other in the service
	slower    = 1.5
	fewAtOnce = 4   // with fewer calls at once than this, only the rate spaces them
	spare     = 0.2 // share of the calls at once that may start ahead of the rate
	// number of windows with fewer calls than the rate allows, after which the brake is released
	idleWindows = 60
	// idleFor is the time without a call after which the brake is released, unless the service has
	// asked to call later.
	idleFor     = time.Minute
	fewGivenUp  = 3 // number of entities in a row, without an accepted call, for which the service is blamed
	vainWindows = 3 // number of windows without effect after which the brake is released
	releasedFor = 5 * time.Minute
)

// TooMany reports whether more than 10 calls have failed, and more than 5% of all. Then the likely
// cause is the function or a service, and not single entities.
func TooMany(failed, calls int) bool { return failed > 10 && failed*20 > calls }

// A Pass is the brake's permission for one run of the function. The zero Pass belongs to a run that
// has not asked the brake yet.
type Pass struct {
	waits  bool
	turn   float64 // the number of calls whose turn comes before this one's
	charge float64 // expected number of service calls in the run: the share of recent runs that have made one
	cut    int
}

// Ask returns whether a run may start now. If not, it also returns how long to wait before the next
// Ask.
func (b *Brake) Ask(now time.Time, p *Pass) (wait time.Duration, begins bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rate > 0 && !b.later && now.Sub(b.at) > idleFor { // the cause may be gone
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
		// By Little's law, this many calls at once make the rate. More of them would meet a
		// service's limit of calls at once.
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

// Insist returns whether a run may start that has waited too long for its turn. If the service has
// asked to call later, the run may not start. Other errors may be the function's own, so they do
// not hold it back.
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

// free removes the limit of the rate. The brake does not adjust the rate before the time released.
func (b *braking) free(released time.Time) {
	*b = braking{cut: b.cut + 1, served: b.taken, taken: b.taken, released: released}
}

// soon returns the time after which to ask again. It is at most a second, because the rate may
// change meanwhile.
func soon(seconds float64) time.Duration {
	most := min(max(0.2, seconds/5), 1)
	return time.Duration(min(max(seconds, 0.001), most) * float64(time.Second))
}

// serve gives turns to the calls that the rate has allowed since the last update, and skips turns
// that were given back. Turns that no call has asked for are lost.
func (b *braking) serve(now time.Time) {
	if now.After(b.at) {
		b.served += b.rate * now.Sub(b.at).Seconds()
		b.at = now
	}
	for len(b.left) > 0 && b.left[0].turn <= b.served {
		b.served += b.left[0].charge
		b.left = b.left[1:]
	}
	b.served = min(b.served, b.taken)
}

// Wait records that a run waits for something other than a service, or, if waits is false, that
// this wait is over. Meanwhile the run does not count as under way.
func (b *Brake) Wait(waits bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if waits {
		b.inside--
	} else {
		b.inside++
	}
}

// Leave gives back the turn of a run that does not start.
func (b *Brake) Leave(p Pass) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rate > 0 && p.waits {
		i := sort.Search(len(b.left), func(i int) bool { return b.left[i].turn >= p.turn })
		b.left = slices.Insert(b.left, i, gap{p.turn, p.charge})
	}
}

// Cancel records the end of a run whose result says nothing about the service.
func (b *Brake) Cancel(p Pass) {
	b.mu.Lock()
	b.inside--
	b.mu.Unlock()
	b.Leave(p)
}

// An End describes how a run of the function has ended.
type End struct {
	Took   time.Duration
	Failed bool
	Busy   bool // whether the run has failed, and another attempt may succeed
	Later  bool // whether a service has asked to call later

	// Entities has the numbers for the run's entities, if it had several and did not fail as a
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
	if b.rate > 0 { // what was charged too much or too little moves all later turns
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

// ends reports whether the current window is over. The brake decides about its rate at the end of
// each window.
func (b *Brake) ends(took time.Duration) bool {
	return took >= earlyTime && b.now.refused > 10 && b.now.tooMany() ||
		took >= windowTime && b.now.calls >= windowCalls || took >= windowLong && b.now.calls > 0
}

// adjust changes the rate at the end of a window.
func (b *Brake) adjust(now time.Time) {
	calls, accepted := float64(b.now.calls)/b.now.took, float64(b.now.accepted)/b.now.took
	b.quickest = min(b.pattern.each(), cmp.Or(1.01*b.quickest, math.Inf(1)))
	if b.rate > 0 && b.now.took >= windowTime.Seconds() {
		b.lookVain(calls, accepted)
	}
	switch {
	case b.inVain == vainWindows || b.inVain > 0 && !b.later:
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
	case b.pattern.each() > slower*b.quickest: // its calls already wait for each other
		b.unused = 0
	default:
		b.serve(now)
		b.unused = 0
		b.accepted++
		b.rate *= b.growth()
	}
}

// slowDown cuts the rate after a window with too many refused calls.
func (b *Brake) slowDown(now time.Time, calls, accepted float64) {
	first := b.rate == 0
	if first || calls > b.firstRate {
		b.firstRate, b.firstOf, b.peak = calls, b.now.share(), 0
	}
	if first {
		b.at = now
	} else if b.last.took > 0 && !b.last.tooMany() { // refusals have displaced accepted calls since
		accepted = float64(b.now.accepted+b.last.accepted) / (b.now.took + b.last.took)
	}
	b.serve(now)
	b.accepted, b.unused = 0, 0
	switch {
	case first: // calls under way count as accepted, but say little about the limit
		if b.rate = cautious * float64(b.now.accepted+b.inside) / b.now.took; !b.later { // it may be the function
			b.rate = max(b.rate, calls/2)
		}
	case accepted > 0: // it may be too low by chance, or while the service recovers, so one cut halves at most
		b.limit, b.rate = max(accepted, 0.7*b.limit), max(cautious*accepted, b.rate/2)
	case b.later:
		b.rate /= 2
	}
	b.rate = max(slowestRate, b.rate)
	b.cut++
}

// lookVain counts the windows in a row in which a much lower rate has not lowered the share of
// refused calls. A service with a limit of calls a second still accepts that number at a lower
// rate, so such a window says that the rate is not the cause. If the service asks to call later and
// refuses almost all calls, it is down or overloaded by others, and the window does not count.
func (b *Brake) lookVain(calls, accepted float64) {
	b.peak = max(b.peak, accepted)
	share, away := b.now.share(), b.later && max(b.now.share(), b.firstOf) > 0.9
	if b.inVain++; away || !b.binds(calls) || accepted > 0.6*b.peak || share < 0.7*b.firstOf {
		b.inVain = 0
	}
}

// binds reports whether the brake's rate is what limits calls, in calls a second. Without it there
// would be more.
func (b *braking) binds(calls float64) bool { return b.rate > 0 && calls >= 0.6*b.rate }

// growth returns the factor by which the rate grows after windows at the limit. Growth is slow
// near the known limit and becomes faster, as the limit may have risen. Without a known limit it
// is fast.
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

// note adds a run to the numbers of runs and to the current window.
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

// Lately returns the counts of recent runs. They cover at least the last 20 runs, or all if there
// were fewer.
func (b *Brake) Lately() Calls {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lately[0].plus(b.lately[1])
}

// Accepts reports whether a service has recently accepted most calls. If so, a refusal does not
// mean that the service is away or overloaded.
func (b *Brake) Accepts() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	accepted := b.last.accepted + b.now.accepted
	return 2*accepted > b.last.calls+b.now.calls
}

// GiveUp records that a service has refused all calls for an entity. It returns true if that has
// happened to fewGivenUp entities in a row, so that the service is at fault and not an entity.
func (b *Brake) GiveUp() (refuses bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.givenUp++
	return b.givenUp >= fewGivenUp
}

// A pattern has means of how long runs of the function take, and how many of them call a service.
type pattern struct {
	runs, calls   float64 // numbers of recent runs, and of those that have called a service
	time, squares float64 // sums over runs that were not refused: of seconds, and of their squares
	accepted      float64 // number of accepted calls in that time
}

// each returns the mean time of an accepted call in seconds.
func (p *pattern) each() float64 { return p.time / max(1, p.accepted) }

// Weights that older runs (forgetRuns) and older calls (forget) keep when a new one is added.
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

// isCallOf is the factor by which a run must be shorter than a call of a service to count as none.
const isCallOf = 8

// isCall reports whether a run took long enough to have called a service. The threshold is an
// eighth of the expected length of a run that is under way at a random moment.
func (p *pattern) isCall(took time.Duration) bool {
	return p.time == 0 || isCallOf*took.Seconds() >= p.squares/p.time
}

func (p *pattern) add(took time.Duration, call, busy bool) {
	p.runs, p.calls = p.runs*forgetRuns+1, p.calls*forgetRuns
	if call {
		p.calls++
	}
	if s := took.Seconds(); !busy {
		if call && s > isCallOf*p.each() && p.accepted > 0 { // the runs before it were no calls
			p.time, p.squares, p.accepted = 0, 0, 0
		}
		if call { // other runs say nothing about the time of a call
			p.time, p.squares, p.accepted = p.time*forget, p.squares*forget, p.accepted*forget+1
		}
		p.time, p.squares = p.time+s, p.squares+s*s
	}
}

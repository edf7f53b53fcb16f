package pace

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"sync"
	"time"
)

// A Brake limits the rate at which a job's function calls a service in one process, while the
// service refuses some of the calls because there are too many. It counts calls in windows, which
// are short spans of time. If more than 4% of a window's calls were refused, and not by chance, the
// brake sets a rate: 90% of the rate of accepted calls. For the first rate, more than ten calls must
// have been refused. The rate stays the same for five windows. Then it grows, and faster with each
// window in which it need not be cut.
//
// If a much lower rate does not lower the share of refused calls, the rate is not their cause. Then
// the brake sets no rate for five minutes, or until many more calls are refused. Calls of other
// processes may also raise the share of refused calls, but not in most windows.
//
// The brake does not see the calls themselves. It sees runs of the function: the calls of the
// function for one entity or batch. A run counts as a call of the service if it has failed and may
// succeed later, or took about as long as other calls. A run that returns at once has not called a
// service. A call counts as refused if the run has failed and may succeed later.
//
// The method is congestion control by additive increase and multiplicative decrease (Jacobson and
// Karels, 1988). Around the last limit, the rate grows as in CUBIC (RFC 9438). The zero value does
// not limit anything. A Brake may be used by several goroutines.
type Brake struct {
	mu sync.Mutex
	braking
	now, last window
	pattern   pattern
	lately    [2]Calls  // numbers of runs of the function in the previous span of time, and in the current one
	since     time.Time // start of the current span
	inside    int       // number of runs under way
	later     bool      // whether the service's last refusal has asked to call later (RetryAfter)
	asking    float64   // the share of recent refusals that have asked to call later
	// givenUp is the number of entities, since the last accepted call, for which the service has
	// refused all calls.
	givenUp int
}

// braking is the state of a Brake while it limits the rate of calls.
type braking struct {
	rate   float64   // allowed calls a second; 0: unlimited
	served float64   // number of calls that had got permission to start, by the time at
	at     time.Time // time when served was last updated
	taken  float64   // number of calls that have a place in the order of starts
	// givenBack has places in the order that are free again, because their calls will not start.
	// They are sorted.
	givenBack []gap
	// cut is the number of changes of the rate. A call counts as refused only if it started after
	// the last change.
	cut       int
	limit     float64 // accepted calls a second when the rate was last cut; 0: unknown
	firstRate float64 // calls a second when the service first refused calls
	firstOf   float64 // the share of calls that it refused then
	quickest  float64 // the shortest recent mean time of a call, in seconds
	peak      float64 // highest rate of accepted calls in a window since the time of firstRate
	// refusals is the number of refused calls in the last consecutive windows with too many of
	// them, while the brake has set no rate.
	refusals   float64
	noEffect   int       // number of windows in which a lower rate had no effect, see checkEffect
	accepted   int       // number of windows without a cut, at the limit
	unused     int       // number of windows with fewer calls than the rate allows
	released   time.Time // the brake sets no rate before this time
	releasedOf float64   // the share of calls that the service refused when this rate was given up
}

// A gap is a place in the order of starts that is free, because its run will not start. Another run
// may use it.
type gap struct{ turn, charge float64 }

// A window holds the numbers of calls in a short span of time.
type window struct {
	begun           time.Time
	took            float64 // the length of the window in seconds
	calls, accepted int     // runs that have called the service, and how many of these were accepted
	answers                 // calls that have started after the last change of the rate
}

// answers counts calls of a service: all of them, and the refused ones.
type answers struct{ asked, refused float64 }

// share returns the share of refused calls.
func (a answers) share() float64 { return a.refused / max(1, a.asked) }

// tooMany reports whether the service refused more than 4% of the calls, by more than one standard
// deviation. With this limit, less than 5% of a whole job's calls are refused, including the calls
// before each cut of the rate.
func (a answers) tooMany() bool {
	const most = 0.04
	return a.refused > most*a.asked+math.Sqrt(most*a.asked)
}

// Calls counts runs of the mapper's function: all, the failed ones, and the busy ones. A busy run
// has failed with an error that may not occur again, for example because a service is busy.
type Calls struct{ All, Failed, Busy int }

func (c Calls) plus(more Calls) Calls {
	return Calls{c.All + more.All, c.Failed + more.Failed, c.Busy + more.Busy}
}

const (
	windowCalls = 20 // minimum number of calls in a window of the length windowTime
	windowTime  = time.Second
	windowLong  = 8 * time.Second // length of a window with fewer calls than windowCalls
	earlyTime   = windowTime / 10 // minimum length of a window that ends early because many calls were refused
	slowestRate = 1.0             // the lowest rate that the brake sets, in calls a second
	fastGrowth  = 1.5             // factor by which the rate grows after a window while it is far below the limit
	cautious    = 0.9             // share of the rate of accepted calls to which the rate is cut
	restWindows = 5               // number of windows after a cut before the rate grows again
	// if calls take slower times as long as the quickest ones, they wait in the service
	slower = 1.5
	// If the rate means fewer simultaneous calls than fewAtOnce, their number is not limited.
	fewAtOnce = 4
	spare     = 0.2 // share of the simultaneous calls that may start before their turn
	// number of consecutive windows, with far fewer calls than the rate allows, after which the
	// rate is removed
	idleWindows = 60
	// idleFor is the time without a call after which the rate is removed, unless the service has
	// asked to call later.
	idleFor    = time.Minute
	fewGivenUp = 3 // number of consecutive entities without an accepted call after which the service is at fault
	// The brake sets the first rate if a window has more refused calls than fewRefused, or if
	// consecutive windows with too many have more than twice as many.
	fewRefused      = 10
	noEffectWindows = 6   // number of windows without effect after which the rate is removed
	newest          = 0.1 // weight of the newest refusal in the share of refusals that ask to call later
	releasedFor     = 5 * time.Minute
)

// TooMany reports whether more than 10 calls have failed, and also more than 5% of all calls. Then
// the function or a service is probably at fault, and not single entities.
func TooMany(failed, calls int) bool { return failed > 10 && failed*20 > calls }

// A Pass holds the state of one run of the function that asks a [Brake] whether it may start. The
// zero value is for a run that has not asked yet.
type Pass struct {
	waits bool
	turn  float64 // place of the run in the order of starts: the number of calls before it
	// charge is the expected number of service calls in the run: the share of recent runs that have
	// made a call.
	charge float64
	cut    int
}

// Ask reports whether a run of the function may start now. If not, it returns how long to wait
// before the next Ask.
func (b *Brake) Ask(now time.Time, p *Pass) (wait time.Duration, begins bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rate > 0 && !b.later && now.Sub(b.at) > idleFor { // the cause of the refusals may no longer exist
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
		// the number of simultaneous calls, so there must not be more.
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

// Insist reports whether a run of the function may start although the rate does not allow it yet,
// because it has waited too long. If the service has asked to call later, it may not. Other errors
// may be the function's own fault, so they do not stop the run.
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

// soon returns how long to wait until the next Ask, for a run that can start in about this number
// of seconds. It is at most a second, because the rate may change meanwhile.
func soon(seconds float64) time.Duration {
	most := min(max(0.2, seconds/5), 1)
	return time.Duration(min(max(seconds, 0.001), most) * float64(time.Second))
}

// serve updates how many calls may have started by the time now. It skips places in the order that
// were given back. A place for which no run has asked is lost.
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

// Wait tells the brake that a run waits for something other than a service, or, if waits is false,
// that this wait is over. A waiting run does not count as under way.
func (b *Brake) Wait(waits bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if waits {
		b.inside--
	} else {
		b.inside++
	}
}

// Leave gives back the place of a run that will not start, so that another run can use it.
func (b *Brake) Leave(p Pass) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rate > 0 && p.waits {
		i := sort.Search(len(b.givenBack), func(i int) bool { return b.givenBack[i].turn >= p.turn })
		b.givenBack = slices.Insert(b.givenBack, i, gap{p.turn, p.charge})
	}
}

// Cancel records the end of a run whose result says nothing about a service, for example because
// the run was cancelled.
func (b *Brake) Cancel(p Pass) {
	b.mu.Lock()
	b.inside--
	b.mu.Unlock()
	b.Leave(p)
}

// An End says how a run of the mapper's function has ended.
type End struct {
	Took   time.Duration
	Failed bool
	Busy   bool // whether the run has failed, and another attempt may succeed
	Later  bool // whether a service has asked to call later

	// Entities counts the single entities of a run that was for several entities. It is zero if the
	// run was for one entity, or has failed as a whole.
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
		b.asking *= 1 - newest
		if e.Later {
			b.asking += newest
		}
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
	if b.rate > 0 { // the expected number of calls was wrong, so later places move
		b.serve(now)
		if b.served += p.charge; call {
			b.served--
		}
	}
	if took := now.Sub(b.now.begun); b.ends(took) {
		b.now.took = took.Seconds()
		if b.hadEffect() {
			b.released = time.Time{}
		}
		if now.After(b.released) {
			b.adjust(now)
		}
		b.last, b.now = b.now, window{begun: now}
	}
}

// ends reports whether the current window, which has lasted for the time took, is over. At the end
// of a window, the brake decides about the rate.
func (b *Brake) ends(took time.Duration) bool {
	return took >= earlyTime && b.now.refused > fewRefused && b.now.tooMany() ||
		took >= windowTime && b.now.calls >= windowCalls || took >= windowLong && b.now.calls > 0
}

// hadEffect reports whether many more calls are refused in this window than before the brake gave
// up its rate. Then the rate had an effect after all, and the brake sets one again.
func (b *Brake) hadEffect() bool {
	as := b.now.asked * b.releasedOf
	return b.now.refused > fewRefused && b.now.refused > 2*as+3*math.Sqrt(as)
}

// adjust changes the rate by the calls of the window that ends.
func (b *Brake) adjust(now time.Time) {
	calls, accepted := float64(b.now.calls)/b.now.took, float64(b.now.accepted)/b.now.took
	b.quickest = min(b.pattern.each(), cmp.Or(1.01*b.quickest, math.Inf(1)))
	if b.rate > 0 && b.now.took >= windowTime.Seconds() {
		b.checkEffect(calls, accepted)
	}
	if b.rate > 0 || !b.now.tooMany() {
		b.refusals = 0
	} else {
		b.refusals += b.now.refused
	}
	switch {
	case b.noEffect == noEffectWindows || b.noEffect > 0 && b.asking < 0.5:
		share := b.now.share()
		b.free(now.Add(releasedFor))
		b.releasedOf = share
	case b.now.tooMany() && (b.rate > 0 || b.now.refused > fewRefused || b.refusals > 2*fewRefused):
		b.slowDown(now, calls, accepted)
	case b.rate == 0:
	case !b.binds(calls):
		if b.unused++; b.unused > idleWindows {
			b.free(time.Time{})
		}
	case b.rate < cautious*b.limit:
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

// slowDown lowers the rate after a window with too many refused calls. The arguments calls and
// accepted are the rates of all calls and of accepted calls in this window, in calls a second.
func (b *Brake) slowDown(now time.Time, calls, accepted float64) {
	first := b.rate == 0
	if calls > b.firstRate {
		b.firstRate, b.firstOf, b.peak = calls, b.now.share(), accepted
	}
	if !b.last.tooMany() { // then refused calls have displaced accepted ones
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

// checkEffect counts windows in which a much lower rate has not lowered the share of refused calls.
// If there are many, the rate is not the cause: a service with a limit would still accept as many
// calls a second as before. If other processes use the limit, too, there are few such windows. So a
// window with a lower share counts against one of them, and the count starts again if the service
// accepts almost as many calls as before. It also does if the service asks to call later and
// refuses almost all calls, because then it is down or overloaded by others. If most refusals do
// not ask to call later, one such window is enough.
func (b *Brake) checkEffect(calls, accepted float64) {
	b.peak = max(b.peak, accepted)
	share, away := b.now.share(), b.later && max(b.now.share(), b.firstOf) > 0.9
	switch {
	case away || !b.binds(calls) || accepted > 0.6*b.peak:
		b.noEffect = 0
	case share < 0.7*b.firstOf:
		b.noEffect = max(0, b.noEffect-1)
	default:
		b.noEffect++
	}
}

// binds reports whether the brake's rate limits the calls. The argument is their present number a
// second.
func (b *braking) binds(calls float64) bool { return calls >= 0.6*b.rate }

// growth returns the factor by which the rate grows after a window. Near the last known limit, the
// rate grows slowly. It grows faster with each window, because the limit may have risen, or other
// processes may have stopped their calls. If no limit is known, it grows fast.
func (b *braking) growth() float64 {
	if b.limit == 0 {
		return fastGrowth
	}
	n := float64(max(0, b.accepted-restWindows))
	return 1 + min(0.2, 0.01*n*max(1, n/8))
}

// note adds a run to the numbers of recent runs.
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

// Lately returns the numbers of recent runs of the function: at least the last 20 runs, or all runs
// if there were fewer.
func (b *Brake) Lately() Calls {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lately[0].plus(b.lately[1])
}

// Accepts reports whether services have accepted more than half of the recent calls. Then a single
// refusal does not mean that a service is down or overloaded.
func (b *Brake) Accepts() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	accepted := b.last.accepted + b.now.accepted
	return 2*accepted > b.last.calls+b.now.calls
}

// GiveUp records that a service has refused all calls for an entity. It returns true if this was at
// least the third consecutive entity without an accepted call. Then the service is at fault, and
// not the entity.
func (b *Brake) GiveUp() (refuses bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.givenUp++
	return b.givenUp >= fewGivenUp
}

// A pattern holds means over recent runs of the function: how long they took, and how many of them
// have called a service.
type pattern struct {
	runs, calls   float64 // number of recent runs, and how many of them have called a service
	time, squares float64 // sums over runs that were not refused: of their seconds, and of the squares of these
	accepted      float64 // number of accepted calls in these runs
}

// each returns the mean time of an accepted call in seconds.
func (p *pattern) each() float64 { return p.time / max(1, p.accepted) }

// Factors by which the weight of older runs (forgetRuns) and older calls (forget) is multiplied
// with each new one.
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

// isCallOf sets the time below which a run is too short to have called a service: a call takes more
// than isCallOf times as long.
const isCallOf = 8

// isCall reports whether a run took long enough to have called a service. The threshold is an
// eighth of the mean length of a call, where longer calls have more weight (as if a call under way
// at a random moment were measured).
func (p *pattern) isCall(took time.Duration) bool {
	return p.time == 0 || isCallOf*took.Seconds() >= p.squares/p.time
}

func (p *pattern) add(took time.Duration, call, busy bool) {
	p.runs, p.calls = p.runs*forgetRuns+1, p.calls*forgetRuns
	if call {
		p.calls++
	}
	if s := took.Seconds(); !busy {
		if call { // only calls count in the mean time of a call
			if s > isCallOf*p.each() { // the earlier runs were too short, so they were no calls
				p.time, p.squares, p.accepted = 0, 0, 0
			}
			p.time, p.squares, p.accepted = p.time*forget, p.squares*forget, p.accepted*forget+1
		}
		p.time, p.squares = p.time+s, p.squares+s*s
	}
}

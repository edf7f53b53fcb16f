package pace

import (
	"cmp"
	"math"
	"sync"
	"time"
)

// A Brake slows the calls of a job's function in one process while a service refuses them because
// there are too many. It looks at windows of calls. If more than 5% of a window were refused, the
// rate becomes 90% of what was accepted. It stays there for some windows, and then grows, faster
// with each window that is accepted. If a much lower rate does not lower the share of refused calls,
// the rate is not their cause, and the brake is released for a while.
//
// A function that returns at once has called no service. Only calls that take as long as others, or
// are refused, count.
//
// The idea is congestion control: additive increase, multiplicative decrease (Jacobson and Karels,
// 1988), with the growth of CUBIC (RFC 9438) around the last limit. The zero value does not brake.
// A Brake is for several goroutines.
type Brake struct {
	mu sync.Mutex
	braking
	now, last window
	pattern   pattern
	lately    [2]Calls  // before, and now
	since     time.Time // of those now
	inside    int       // runs under way
	later     bool      // the service asks for the last refused call later
}

// braking is the state of a brake.
type braking struct {
	rate      float64   // calls a second; 0: as they come
	served    float64   // calls whose turn has come,
	at        time.Time // then,
	taken     float64   // and calls that have a turn
	cut       int       // how often the rate was cut
	limit     float64   // accepted calls a second when the rate was cut; 0: unknown
	firstRate float64   // calls a second when the service began to refuse,
	firstOf   float64   // and the share that it refused
	quickest  float64   // of what calls took, window by window, lately
	peak      float64   // accepted calls a second since then, at most
	inVain    int       // windows with far fewer that refused as many
	accepted  int       // windows without a cut at the limit
	unused    int       // windows whose calls were fewer than the rate
	released  time.Time // the brake does not count until then
}

// A window is the calls of some time.
type window struct {
	begun           time.Time
	took            float64 // seconds
	calls, accepted int     // of the service
	answers                 // to calls since the rate was cut
}

// Answers are of a service.
type answers struct{ asked, refused float64 }

// share returns the share of refused calls.
func (a answers) share() float64 { return a.refused / max(1, a.asked) }

// tooMany reports whether more than 4% were refused, beyond what chance makes of it: so that 5% are
// refused at most, with those after which the rate was cut.
func (a answers) tooMany() bool {
	const most = 0.04
	return a.refused > most*a.asked+math.Sqrt(most*a.asked)
}

// Calls are how many runs of the function there were, and how many failed: in any way, and so that
// another attempt may help.
type Calls struct{ All, Failed, Busy int }

const (
	windowCalls = 20 // of a window that takes windowTime
	windowTime  = time.Second
	windowLong  = 8 * time.Second // of a window with fewer calls
	earlyTime   = windowTime / 10 // of a window that has many refusals
	slowestRate = 1.0             // calls a second
	fastGrowth  = 1.5             // of the rate from one window to the next
	cautious    = 0.9             // of the accepted calls are the next rate
	restWindows = 5               // at that rate, before it grows
	slower      = 1.5             // than the quickest: calls wait for each other
	fewAtOnce   = 4               // calls: the rate spaces them, and not their number
	spare       = 0.2             // of the calls at once may begin before the rate allows it
	idleWindows = 60              // whose calls are fewer than the rate, until the brake goes
	idleFor     = time.Minute     // without a call, until a brake goes whose service did not say "later"
	vainWindows = 3               // that refuse as many at a low rate, until the brake is released
	releasedFor = 5 * time.Minute
)

// TooMany reports whether so many calls failed that it is the function that is at fault, or the
// world, and not the entities: more than 10, and more than 5%.
func TooMany(failed, calls int) bool { return failed > 10 && failed*20 > calls }

// A Pass lets a run of the function begin. Its zero value is for a run that has to ask.
type Pass struct {
	waits  bool
	turn   float64 // calls before it
	charge float64 // of a call
	cut    int
}

// Ask asks whether a run may begin now. If not, it returns how long to wait before asking again.
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
		// By Little's law, so many at once make the rate. More would meet a limit of calls at once.
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

// Force lets a run begin that has waited for long.
func (b *Brake) Force(p *Pass) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p.cut = b.cut
	b.inside++
}

// SaysLater reports whether the service that refuses calls asks for them later. Other errors may be
// the function's own.
func (b *Brake) SaysLater() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.later
}

// free lets calls begin as they come. The brake does not count until released.
func (b *braking) free(released time.Time) {
	*b = braking{cut: b.cut + 1, served: b.taken, taken: b.taken, released: released}
}

// soon returns when to ask again: the rate may change meanwhile.
func soon(seconds float64) time.Duration {
	most := min(max(0.2, seconds/5), 1)
	return time.Duration(min(max(seconds, 0.001), most) * float64(time.Second))
}

// serve lets the turns come that the rate has allowed since the last time. What nobody has taken
// is lost.
func (b *braking) serve(now time.Time) {
	if now.After(b.at) {
		b.served += b.rate * now.Sub(b.at).Seconds()
		b.at = now
	}
	b.served = min(b.served, b.taken)
}

// Leave gives back the turn of a run that does not begin.
func (b *Brake) Leave(p Pass) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rate > 0 && p.waits {
		b.taken -= p.charge
	}
}

// An End is how a run of the function has ended.
type End struct {
	Took   time.Duration
	Failed bool
	Busy   bool // it has failed so that another attempt may help,
	Later  bool // and asks for that later
}

// Done notes that a run has ended.
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
		}
		if p.cut == b.cut {
			b.now.asked++
			if busy {
				b.now.refused++
			}
		}
	}
	if b.rate > 0 {
		b.taken -= p.charge
		if call {
			b.taken++
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

// ends reports whether a window ends.
func (b *Brake) ends(took time.Duration) bool {
	return took >= earlyTime && b.now.refused > 10 && b.now.tooMany() ||
		took >= windowTime && b.now.calls >= windowCalls || took >= windowLong && b.now.calls > 0
}

// adjust sets the rate after a window.
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
		if b.rate == 0 || calls > b.firstRate {
			b.firstRate, b.firstOf, b.peak = calls, b.now.share(), 0
		}
		if b.rate > 0 && b.last.took > 0 && !b.last.tooMany() { // refusals have crowded out calls since
			accepted = float64(b.now.accepted+b.last.accepted) / (b.now.took + b.last.took)
		}
		if b.rate == 0 {
			b.at = now
		}
		b.serve(now)
		b.accepted, b.unused = 0, 0
		switch {
		case b.rate == 0: // calls under way were accepted, but say little of the limit
			if b.rate = cautious * float64(b.now.accepted+b.inside) / b.now.took; !b.later { // it may be the function
				b.rate = max(b.rate, calls/2)
			}
		case accepted > 0: // by chance, or as the service begins to accept again, it may be too few
			b.limit, b.rate = max(accepted, 0.7*b.limit), cautious*accepted
		case b.later:
			b.rate /= 2
		}
		b.rate = max(slowestRate, b.rate)
		b.cut++
	case b.rate == 0:
	case !b.binds(calls):
		if b.unused++; b.unused > idleWindows {
			b.free(time.Time{})
		}
	case b.limit > 0 && b.rate < cautious*b.limit:
		b.serve(now)
		b.unused = 0
		b.rate = min(fastGrowth*b.rate, cautious*b.limit)
	case b.pattern.each() > slower*b.quickest: // its calls wait for each other already
		b.unused = 0
	default:
		b.serve(now)
		b.unused = 0
		b.accepted++
		b.rate *= b.growth()
	}
}

// lookVain looks whether a lower rate lowers the share of refused calls. If a service takes so many
// calls a second, it accepts as many at a lower rate. One that says "later", and refuses almost all,
// is away, or has too many others; another error of almost all calls is the function's own.
func (b *Brake) lookVain(calls, accepted float64) {
	b.peak = max(b.peak, accepted)
	share, away := b.now.share(), b.later && max(b.now.share(), b.firstOf) > 0.9
	if b.inVain++; away || !b.binds(calls) || accepted > 0.6*b.peak || share < 0.7*b.firstOf {
		b.inVain = 0
	}
}

// binds reports whether it is the rate that makes so many calls a second.
func (b *braking) binds(calls float64) bool { return b.rate > 0 && calls >= 0.6*b.rate }

// growth returns by what the rate grows after windows at the limit: slowly at first, as the limit is
// near, and then faster, as it may have risen. Without a limit it grows fast.
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

// note counts a run.
func (b *Brake) note(now time.Time, e End) {
	if now.Sub(b.since) >= windowTime && b.lately[1].All >= windowCalls {
		b.lately, b.since = [2]Calls{b.lately[1]}, now
	}
	of := &b.lately[1]
	of.All++
	if e.Failed {
		of.Failed++
	}
	if e.Busy {
		of.Busy++
	}
}

// Lately returns the last runs: 20 at least, if there were so many.
func (b *Brake) Lately() Calls {
	b.mu.Lock()
	defer b.mu.Unlock()
	last, now := b.lately[0], b.lately[1]
	return Calls{last.All + now.All, last.Failed + now.Failed, last.Busy + now.Busy}
}

// Accepts reports whether a service has lately accepted most calls: if one is refused, it is not
// because the service is away or overloaded.
func (b *Brake) Accepts() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	accepted := b.last.accepted + b.now.accepted
	return 2*accepted > b.last.calls+b.now.calls
}

// A pattern is how long runs of the function take, and how many of them call a service.
type pattern struct {
	runs, calls   float64 // lately
	time, squares float64 // of runs that were not refused: seconds, and the sum of their squares
	accepted      float64 // calls of that time
}

// each returns what an accepted call takes, in seconds.
func (p *pattern) each() float64 { return p.time / max(1, p.accepted) }

// What a run, and a call, keep of their weight when another one is added.
const (
	forgetRuns = 0.998
	forget     = 0.98
)

// share returns the share of runs that are calls, lately.
func (p *pattern) share() float64 {
	if p.runs == 0 {
		return 1
	}
	return p.calls / p.runs
}

// isCallOf is how much shorter than others a run is that calls nothing.
const isCallOf = 8

// isCall reports whether a run took long enough to have called a service: an eighth of what a run
// takes that is met at a random moment.
func (p *pattern) isCall(took time.Duration) bool {
	return p.time == 0 || isCallOf*took.Seconds() >= p.squares/p.time
}

func (p *pattern) add(took time.Duration, call, busy bool) {
	p.runs, p.calls = p.runs*forgetRuns+1, p.calls*forgetRuns
	if call {
		p.calls++
	}
	if s := took.Seconds(); !busy {
		if call && s > isCallOf*p.each() && p.accepted > 0 { // those before it were no calls
			p.time, p.squares, p.accepted = 0, 0, 0
		}
		if call { // others say nothing of how long a call takes
			p.time, p.squares, p.accepted = p.time*forget, p.squares*forget, p.accepted*forget+1
		}
		p.time, p.squares = p.time+s, p.squares+s*s
	}
}

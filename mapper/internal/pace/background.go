package pace

import (
	"math"
	"time"
)

// A Background decides how many pages of background jobs a process may run at once. It compares the
// time of probes while pages run with their time while no pages run, and keeps the difference
// small. A probe is a lookup of one key.
//
// The method is congestion control by delay, as in LEDBAT (RFC 6817). All processes pause their
// pages at the same times of the clock. So each can measure the floor, which is the time of a probe
// without any load of the jobs. The floor contains the load of other clients: if these slow the
// database down, the limit rises again after the next pause.
//
// The zero value is ready for use. It is not safe for concurrent use.
type Background struct {
	limit  float64 // the number of pages that may run at once; 0: firstPages
	found  bool    // whether the limit was found, and from now on changes slowly
	floor  level   // the time of probes in pauses; observations are logarithms of seconds
	pauses int     // number of pauses from which the floor was learned
	paused level   // the time of probes in the last pause
	probed time.Time

	// Numbers about the probes beside pages since the limit was last cut: how many, and their mean
	// excess. The two means forget early probes, soon faster than late. Doubling the limit forgets
	// all.
	probes            int
	soon, late, start float64
}

// These constants say when pages pause, and when probes are made. On average there is about one
// probe a second. No page starts in a pause. Probes of a pause count only after settleFor: by then
// pages under way have ended, and the database has no queue of their calls.
const (
	pauseEvery = time.Minute
	pauseFor   = 4 * time.Second
	settleFor  = time.Second
	probeEvery = 1500 * time.Millisecond
	probeOften = 100 * time.Millisecond // the interval between probes in a pause
	probeStart = 200 * time.Millisecond // the interval between probes until the limit is found
	forgetFor  = 2 * time.Minute        // the time without probes after which everything learned is forgotten
)

// These constants control the limit. An excess is the logarithm of a probe's time as a multiple of
// the floor. Single probes vary by more than the excess to be found. So each changes the limit a
// little, or more if their mean is clear.
const (
	targetRise = 0.2 // the share by which probes may take longer beside pages
	// the time by which probes may take longer beside pages, if this is more than targetRise
	targetSlack = 2 * time.Millisecond
	mostExcess  = 1.5 // the largest excess that one probe counts as
	// the change of the limit's logarithm if probes take longer than allowed by an excess of 1
	gain        = 0.06
	faster      = 2    // the factor of gain if the mean excess is clear
	firstPages  = 1    // the limit at the start
	leastPages  = 0.25 // the lowest limit: a page runs a quarter of the time
	floorFirst  = 8    // number of probes that are enough for a first floor
	floorProbes = 60   // number of earlier probes that count in a new floor
	startProbes = 12   // number of probes after which the limit doubles, at the start
	startCut    = 0.5  // factor of the limit when the doubling ends
	clearExcess = 0.2  // a mean excess that is this much above or below the target is clear
	// the weight of earlier probes, against a new one, in the mean excess that changes faster
	soonShare = 0.85
	lateShare = 0.95
	farProbes = 4   // number of probes that can show an overload
	farExcess = 0.9 // the mean excess of farProbes probes that counts as an overload
	farCut    = 0.6 // factor of the limit in an overload
)

// Start records that the process has background jobs again, after a time without any.
func (b *Background) Start(now time.Time) {
	if now.Sub(b.probed) > forgetFor {
		*b = Background{}
	}
}

// Pauses reports whether no page may start at the time now.
func (b *Background) Pauses(now time.Time) bool { return sincePause(now) < pauseFor }

// sincePause returns the time since the start of the last pause, or of the present one.
func sincePause(now time.Time) time.Duration { return now.Sub(now.Truncate(pauseEvery)) }

// Limit returns how many pages may be under way at once, on average.
func (b *Background) Limit() float64 {
	if b.limit == 0 {
		return firstPages
	}
	return b.limit
}

// Slots converts the limit into n slots for pages, and a factor rest. After a page its slot stays
// unused for a while: rest multiplied by the page's time.
func (b *Background) Slots() (n int, rest float64) {
	up := math.Ceil(b.Limit())
	return int(up), up/b.Limit() - 1
}

// NextProbe returns the time from a probe, which was sent at the given time, to the next one.
func (b *Background) NextProbe(sent time.Time) time.Duration {
	switch since := sincePause(sent); {
	case since < settleFor:
		return settleFor - since
	case since < pauseFor:
		return probeOften
	case since < pauseFor+settleFor:
		return pauseFor + settleFor - since
	case !b.found:
		return probeStart
	default:
		return min(probeEvery, pauseEvery+settleFor-since)
	}
}

// Note takes the result of a probe. The argument wanted is the largest number of pages since the
// last probe that ran or waited. If it is below the limit, the limit falls slowly to it: nobody
// knows whether the database could take more.
func (b *Background) Note(sent time.Time, took time.Duration, wanted int) {
	if sent.Truncate(pauseEvery).After(b.probed) {
		b.paused = level{} // too few probes
	}
	b.probed = sent
	x := math.Log(max(took.Seconds(), 1e-6))
	switch since := sincePause(sent); {
	case since < settleFor:
	case since < pauseFor:
		b.paused.add(x)
	case since < pauseFor+settleFor: // the database has a queue of the first pages' calls
	default:
		b.learn()
		if b.floor.n < floorFirst {
			b.floor.add(x)
			return
		}
		b.adjust(x-b.floor.mean, float64(wanted))
	}
}

// learn computes the floor from the last pause and the pauses before.
func (b *Background) learn() {
	if b.paused.n < floorFirst {
		return
	}
	// The start of a job may have loaded the database in the first pause.
	if b.pauses < 2 || b.paused.differs(b.floor) {
		b.floor = b.paused
	} else {
		b.floor.merge(b.paused, floorProbes)
	}
	b.paused = level{}
	b.pauses++
}

// adjust changes the limit after a probe beside pages, which had the given excess.
func (b *Background) adjust(excess, wanted float64) {
	excess = max(-mostExcess, min(mostExcess, excess))
	target := math.Log1p(max(targetRise, targetSlack.Seconds()/math.Exp(b.floor.mean)))
	b.probes++
	b.soon += (excess - b.soon) * max(1-soonShare, 1/float64(b.probes))
	b.late += (excess - b.late) * max(1-lateShare, 1/float64(b.probes))
	b.start += excess / startProbes
	b.limit = b.Limit()
	switch change := math.Exp(gain * (target - excess)); {
	case b.probes >= farProbes && b.soon > farExcess:
		b.cut(farCut)
	case !b.found && b.probes%startProbes != 0:
	case !b.found && b.start > target+clearExcess:
		b.cut(startCut)
	case !b.found && b.start < target && wanted > b.limit:
		b.limit *= 2
	case !b.found: // the database shows the load, or there are no more pages
		b.found = true
	case excess < target && wanted <= b.limit:
		b.limit = max(wanted, b.limit*(1-gain))
	case excess > target && b.soon > target+clearExcess, excess < target && b.isLow(target):
		b.limit *= math.Pow(change, faster)
	default:
		b.limit *= change
	}
	if b.probes%startProbes == 0 {
		b.start = 0
	}
	b.limit = max(leastPages, b.limit)
}

// isLow reports whether the mean excess of probes has been clearly below the target for some time.
func (b *Background) isLow(target float64) bool { return b.probes > startProbes && b.late < target/2 }

// cut multiplies the limit by a factor at once, and forgets earlier probes, which say nothing about
// the new limit.
func (b *Background) cut(by float64) {
	b.limit *= by
	b.found, b.probes, b.soon, b.late, b.start = true, 0, 0, 0, 0
}

// A level is the mean of observations, with their number and the sum of their squared differences
// from the mean.
type level struct{ n, mean, squares float64 }

func (l *level) add(x float64) { l.merge(level{n: 1, mean: x}, math.Inf(1)) }

// merge adds the observations of other. Earlier observations count as up to most observations.
func (l *level) merge(other level, most float64) {
	if l.n > most {
		l.n, l.squares = most, l.squares*most/l.n
	}
	d, n := other.mean-l.mean, l.n+other.n
	l.squares += other.squares + d*d*l.n*other.n/n
	l.mean += d * other.n / n
	l.n = n
}

// differs reports whether two means differ by more than chance: by three standard deviations.
func (l *level) differs(other level) bool {
	const least = 0.01 // of an observation's variance
	variance := max(least, l.squares/max(1, l.n-1))
	d := l.mean - other.mean
	return d*d > 9*variance*(1/l.n+1/other.n)
}

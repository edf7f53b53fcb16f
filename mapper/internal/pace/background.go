package pace

import (
	"math"
	"time"
)

// A Background decides how many pages of background jobs a process may process at the same time. A
// page is a group of entities that commit together. Background jobs must not slow down other
// clients of the database. So the process makes probes: it looks up one key, as another client
// would. A Background compares how long probes take while pages run and while no pages run, and
// keeps the difference small.
//
// The method is congestion control by delay, as in LEDBAT (RFC 6817). All processes pause their
// pages at the same times of the clock. In a pause, each process measures the floor: the time of a
// probe without the load of background jobs. The floor includes the load of other clients. If these
// slow the database down, the floor rises. So the limit rises again after the next pause.
//
// The zero value is ready for use. It is not safe for concurrent use.
type Background struct {
	limit  float64 // the number of pages that may run at the same time; 0 stands for firstPages
	found  bool    // whether the start phase is over; from then on, the limit changes slowly
	floor  level   // the mean time of probes in pauses, as the logarithm of seconds
	pauses int     // number of pauses that have contributed to the floor
	paused level   // the mean time of probes in the latest pause, as the logarithm of seconds
	probed time.Time

	// About the probes while pages run, since the limit was last cut: their number, and means of
	// how much they exceed the floor. The means soon and late give less weight to early probes. In
	// soon their weight falls faster. The mean start is over up to startProbes probes, until the
	// limit is found.
	probes            int
	soon, late, start float64
}

// Times of pauses and probes. No page starts in a pause. A probe in a pause counts only if at least
// settleFor has passed. By then, the pages under way have ended, and none of their calls wait in
// the database. On average there is about one probe a second.
const (
	pauseEvery = time.Minute
	pauseFor   = 4 * time.Second
	settleFor  = time.Second
	probeEvery = 1500 * time.Millisecond
	probeOften = 100 * time.Millisecond // the interval between probes in a pause
	probeStart = 200 * time.Millisecond // the interval between probes until the limit is found
	forgetFor  = 2 * time.Minute        // after this time without probes, everything that was measured is forgotten
)

// Constants that control the limit. The excess of a probe is the logarithm of its time divided by
// the floor. A single probe varies more than the excess that should be detected. So it changes the
// limit only a little. The limit changes more if the mean of several probes is clear.
const (
	targetRise = 0.2 // the allowed rise of a probe's time while pages run, as a share of the floor
	// the allowed rise of a probe's time, if this is more than targetRise allows
	targetSlack = 2 * time.Millisecond
	mostExcess  = 1.5 // the largest excess that a single probe counts as
	// how much the logarithm of the limit changes if the excess differs from its target by 1
	gain        = 0.06
	faster      = 2    // this change is multiplied by faster if the mean excess is clear
	firstPages  = 1    // the first limit
	leastPages  = 0.25 // the lowest limit: a page runs for a quarter of the time
	floorFirst  = 8    // number of probes that are enough for the first floor
	floorProbes = 60   // the weight of earlier pauses in the floor, in probes
	startProbes = 12   // number of probes before the limit is doubled, in the start phase
	startCut    = 0.5  // factor of the limit when the start phase ends with an overload
	clearExcess = 0.2  // the mean excess is clear if it differs from the target by at least this
	// the weights of earlier probes in the two means of the excess, soon and late
	soonShare = 0.85
	lateShare = 0.95
	farProbes = 4   // number of probes that can prove an overload
	farExcess = 0.9 // the mean excess that proves an overload
	farCut    = 0.6 // factor of the limit after an overload
)

// Start tells the Background that the process has background jobs again, after a time without any.
// If it has had none for long, everything that was measured is forgotten.
func (b *Background) Start(now time.Time) {
	if now.Sub(b.probed) > forgetFor {
		*b = Background{}
	}
}

// Pauses reports whether the time now is in a pause, in which no page of entities may start.
func (b *Background) Pauses(now time.Time) bool { return sincePause(now) < pauseFor }

// sincePause returns how long ago the last pause, or the current one, has started.
func sincePause(now time.Time) time.Duration { return now.Sub(now.Truncate(pauseEvery)) }

// Limit returns how many pages of entities may run at the same time, on average. It may be a
// fraction: 0.5 means that one page runs for half of the time.
func (b *Background) Limit() float64 {
	if b.limit == 0 {
		return firstPages
	}
	return b.limit
}

// Slots expresses the limit as a number n of slots, each for one page of entities at a time. After
// a page that took the time t, its slot must stay unused for rest*t.
func (b *Background) Slots() (n int, rest float64) {
	up := math.Ceil(b.Limit())
	return int(up), up/b.Limit() - 1
}

// NextProbe returns how long to wait for the next probe, after a probe that was sent at the given
// time.
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

// Note records a probe, which was sent at the given time. The argument wanted is the largest number
// of pages that have run or waited to run at the same time since the last probe. If it is below the
// limit, the limit slowly falls to it. In that case no probe tells whether the database could bear
// more.
func (b *Background) Note(sent time.Time, took time.Duration, wanted int) {
	if sent.Truncate(pauseEvery).After(b.probed) {
		b.paused = level{} // the pause had too few probes
	}
	b.probed = sent
	x := math.Log(max(took.Seconds(), 1e-6))
	switch since := sincePause(sent); {
	case since < settleFor:
	case since < pauseFor:
		b.paused.add(x)
	case since < pauseFor+settleFor: // calls of the first pages after the pause wait in the database
	default:
		b.learn()
		if b.floor.n < floorFirst {
			b.floor.add(x)
			return
		}
		b.adjust(x-b.floor.mean, float64(wanted))
	}
}

// learn updates the floor, the mean time of probes without the load of pages, by the probes of the
// latest pause.
func (b *Background) learn() {
	if b.paused.n < floorFirst {
		return
	}
	// In the first pause, the database may still be under the load of the job's start.
	if b.pauses < 2 || b.paused.differs(b.floor) {
		b.floor = b.paused
	} else {
		b.floor.merge(b.paused, floorProbes)
	}
	b.paused = level{}
	b.pauses++
}

// adjust changes the limit after a probe while pages of entities run. The argument excess is the
// logarithm of the probe's time divided by the floor, and wanted is as in Note.
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
	case !b.found: // the probes show the pages' load, or the process wants no more pages
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

// cut multiplies the limit by a factor, and forgets earlier probes, which were measured with the
// old limit.
func (b *Background) cut(by float64) {
	b.limit *= by
	b.found, b.probes, b.soon, b.late, b.start = true, 0, 0, 0, 0
}

// A level holds observations: their number, their mean, and the sum of the squared differences from
// the mean.
type level struct{ n, mean, squares float64 }

func (l *level) add(x float64) { l.merge(level{n: 1, mean: x}, math.Inf(1)) }

// merge adds the observations of other to l. The earlier observations of l count as at most most
// ones.
func (l *level) merge(other level, most float64) {
	if l.n > most {
		l.n, l.squares = most, l.squares*most/l.n
	}
	d, n := other.mean-l.mean, l.n+other.n
	l.squares += other.squares + d*d*l.n*other.n/n
	l.mean += d * other.n / n
	l.n = n
}

// differs reports whether two means differ by at least three standard deviations.
func (l *level) differs(other level) bool {
	const least = 0.01 // the least assumed variance of an observation
	variance := max(least, l.squares/max(1, l.n-1))
	d := l.mean - other.mean
	return d*d > 9*variance*(1/l.n+1/other.n)
}

package pace

import (
	"math"
	"time"
)

// A Background decides how many pages of background jobs a process may have under way at once. It
// compares how long probes take beside the pages with how long they take without them, and keeps
// the difference small. A probe is a lookup of one key.
//
// The method is congestion control by delay, as in LEDBAT (RFC 6817). All processes pause their
// pages at the same times of the clock. So none of them learns the floor, which is the time of a
// probe without the jobs, under the jobs' own load. The floor contains the load of other clients:
// if these slow the database down, the limit rises again after the next pause.
//
// The zero value is ready for use. It is not safe for concurrent use.
type Background struct {
	limit  float64 // pages at once; 0: firstPages
	found  bool    // the limit was found: it changes slowly
	floor  level   // of probes without pages; observations are logarithms of seconds
	pauses int     // that the floor has been learned from
	paused level   // of probes in the last pause
	probed time.Time

	// Of probes beside pages since the limit was last cut: how many, and their mean excess. The
	// means forget early probes: soon, late, or when the limit is doubled.
	probes            int
	soon, late, start float64
}

// These constants say when pages pause and when probes are made. On average there is about one
// probe a second. No page starts in a pause. Probes count once it has settled: then pages that were
// under way have ended, and the database has no queue of their calls.
const (
	pauseEvery = time.Minute
	pauseFor   = 4 * time.Second
	settleFor  = time.Second
	probeEvery = 1500 * time.Millisecond
	probeOften = 100 * time.Millisecond // in a pause
	probeStart = 200 * time.Millisecond // until the limit is found
	forgetFor  = 2 * time.Minute        // without probes, after which nothing is known any more
)

// These constants belong to the control. An excess is the logarithm of a probe's time as a multiple
// of the floor. Single probes differ from each other by more than the excess to be found, so the
// limit changes a little with each, and faster if their mean is clear.
const (
	targetRise  = 0.2                  // the share by which probes may take longer beside pages
	targetSlack = 2 * time.Millisecond // or this time, if it is longer
	mostExcess  = 1.5                  // of one probe
	gain        = 0.06                 // change of the limit's logarithm for an excess of one
	faster      = 2                    // times the gain, if the mean is clear
	firstPages  = 1                    // limit at the start
	leastPages  = 0.25                 // a page is under way a quarter of the time
	floorFirst  = 8                    // probes that make a floor
	floorProbes = 60                   // earlier probes that count in a floor
	startProbes = 12                   // probes until the limit doubles, at the start
	startCut    = 0.5                  // factor of the limit at the end of the start
	clearExcess = 0.2                  // beyond the target, of the mean
	soonShare   = 0.85                 // weight of the earlier probes in the mean
	lateShare   = 0.95
	farProbes   = 4   // probes that show an overload
	farExcess   = 0.9 // their mean excess
	farCut      = 0.6 // factor of the limit in an overload
)

// Start notes that a process has background jobs again, after it had none.
func (b *Background) Start(now time.Time) {
	if now.Sub(b.probed) > forgetFor {
		*b = Background{}
	}
}

// Pauses reports whether no page may start at a time.
func (b *Background) Pauses(now time.Time) bool { return sincePause(now) < pauseFor }

// sincePause returns the time since the start of the last pause.
func sincePause(now time.Time) time.Duration { return now.Sub(now.Truncate(pauseEvery)) }

// Limit returns how many pages may be under way at once, on average.
func (b *Background) Limit() float64 {
	if b.limit == 0 {
		return firstPages
	}
	return b.limit
}

// Slots returns the limit as a number of slots, and for which share of its page's time a slot rests
// after the page.
func (b *Background) Slots() (n int, rest float64) {
	up := math.Ceil(b.Limit())
	return int(up), up/b.Limit() - 1
}

// NextProbe returns the time from a probe to the next one.
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

// Note notes a probe. Wanted is the largest number of pages since the last probe that were under
// way or waited. If it is below the limit, the limit falls slowly to it: nobody knows whether the
// database could take more.
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

// learn takes the floor from the last pause, together with the pauses before.
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

// adjust changes the limit after a probe beside pages.
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

// isLow reports whether probes have taken clearly less than the target for some time.
func (b *Background) isLow(target float64) bool { return b.probes > startProbes && b.late < target/2 }

// cut lowers the limit at once. Earlier probes say nothing about the new limit.
func (b *Background) cut(by float64) {
	b.limit *= by
	b.found, b.probes, b.soon, b.late, b.start = true, 0, 0, 0, 0
}

// A level is the mean of observations, with their number and the sum of their squared differences
// from the mean.
type level struct{ n, mean, squares float64 }

func (l *level) add(x float64) { l.merge(level{n: 1, mean: x}, math.Inf(1)) }

// merge adds the observations of other. Earlier ones count as at most most observations.
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

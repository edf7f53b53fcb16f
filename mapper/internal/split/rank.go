package split

import (
	"math"
	"slices"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// A Rank is a position of which it is known how many entities of its kind are before it. nil is
// behind the last one.
type Rank struct {
	At     *keyspace.Position
	Before int64
}

// RankPages are how many pages are before the positions whose ranks the root finds out. Production has one sample in
// 128 entities, so the last one passes some 50 of a kind that has no more than are drawn.
// Where more are needed an aggregation counts.
var RankPages = []int64{1, 5, 12}

// The entities before one of the samples are counted: before as many as have about
// refinedCount entities before them, but not fewer than the least, which make an estimate
// that is within 25% two times in three, nor more than the most, which make it 6%.
const (
	refinedCount = 1_000_000
	leastSamples = 16
	mostSamples  = 256
)

// MostCounted bounds such a count.
const MostCounted = 10_000_000

// further returns before how many of the samples entities have to be counted, as too few of
// them are before the ranks to tell the size of the kind well; 0 if there are enough.
// rough is the estimate without it.
func further(sample []*keyspace.Position, milestones []Rank, rough int64) int {
	last := milestones[len(milestones)-1]
	if last.At == nil || len(sample) < leastSamples {
		return 0
	}
	n := leastSamples
	if rough > 0 {
		n = max(leastSamples, min(mostSamples, int(refinedCount*int64(len(sample))/rough), len(sample)))
	}
	if keyspace.Compare(sample[n-1], last.At) <= 0 {
		return 0
	}
	return n
}

// EstimateBy estimates how many entities the root's range holds, and has those before a sample
// counted if that is needed. If they are more than can be counted it takes an earlier sample;
// if that is the first one the kind is at least as large as the estimate.
func EstimateBy(sample []*keyspace.Position, milestones []Rank, count func(before *keyspace.Position) (n int64, known bool)) int64 {
	estimate := EstimateFrom(sample, milestones)
	for n := further(sample, milestones, estimate); n > 0; n /= 4 {
		rank, known := count(sample[n-1])
		if !known {
			return estimate
		}
		counted := append(slices.Clip(milestones), Rank{At: sample[n-1], Before: rank})
		if estimate = EstimateFrom(sample, counted); rank < MostCounted {
			return estimate
		}
	}
	return estimate
}

// EstimateFrom estimates how many entities the root's range holds: as many for
// each of its samples as there are before the last rank for each of those before it.
// How dense samples are differs between databases, so no constant is used. The
// sample may be only the first part of all scatter keys; the ratio is the same.
// Without samples the end of a kind between two ranks says something, and otherwise
// nothing is known.
func EstimateFrom(sample []*keyspace.Position, milestones []Rank) int64 {
	least, most := int64(1), int64(math.MaxInt64)
	var last Rank
	for _, m := range milestones {
		if m.At == nil {
			most = m.Before
			break
		}
		last, least = m, m.Before+1
	}
	if last.At == nil {
		return most
	}
	passed := 0
	for passed < len(sample) && keyspace.Compare(sample[passed], last.At) <= 0 {
		passed++
	}
	switch {
	case passed > 0:
		return min(most, max(least, last.Before*int64(len(sample))/int64(passed)))
	case most < math.MaxInt64:
		return min(most, 2*least)
	}
	return 0
}

package mapper

import (
	"math"
	"slices"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// A milestone is a position whose rank in its kind is known. nil is behind the last one.
type milestone struct {
	at   *keyspace.Position
	rank int64
}

// milestonePages are the ranks of the root's milestones, in pages. Production has one sample in
// 128 entities, so the last one passes some 50 of a kind that has no more than are drawn.
// Where more are needed an aggregation counts.
var milestonePages = []int64{1, 5, 12}

// The entities before one of the samples are counted: before as many as have about
// refinedCount entities before them, but not fewer than the least, which make an estimate
// that is within 25% two times in three, nor more than the most, which make it 6%.
const (
	refinedCount = 1_000_000
	leastSamples = 16
	mostSamples  = 256
)

// mostCounted bounds such a count.
const mostCounted = 10_000_000

// further returns before how many of the samples entities have to be counted, as too few of
// them are before the milestones to tell the size of the kind well; 0 if there are enough.
// rough is the estimate without it.
func further(sample []*keyspace.Position, milestones []milestone, rough int64) int {
	last := milestones[len(milestones)-1]
	if last.at == nil || len(sample) < leastSamples {
		return 0
	}
	n := leastSamples
	if rough > 0 {
		n = max(leastSamples, min(mostSamples, int(refinedCount*int64(len(sample))/rough), len(sample)))
	}
	if keyspace.Compare(sample[n-1], last.at) <= 0 {
		return 0
	}
	return n
}

// estimateBy estimates how many entities the root's range holds, and has those before a sample
// counted if that is needed. If they are more than can be counted it takes an earlier sample;
// if that is the first one the kind is at least as large as the estimate.
func estimateBy(sample []*keyspace.Position, milestones []milestone, count func(before *keyspace.Position) (n int64, known bool)) int64 {
	estimate := estimateFrom(sample, milestones)
	for n := further(sample, milestones, estimate); n > 0; n /= 4 {
		rank, known := count(sample[n-1])
		if !known {
			return estimate
		}
		counted := append(slices.Clip(milestones), milestone{at: sample[n-1], rank: rank})
		if estimate = estimateFrom(sample, counted); rank < mostCounted {
			return estimate
		}
	}
	return estimate
}

// estimateFrom estimates how many entities the root's range holds: as many for
// each of its samples as there are before the last milestone for each of those before it.
// How dense samples are differs between databases, so no constant is used. The
// sample may be only the first part of all scatter keys; the ratio is the same.
// Without samples the end of a kind between two milestones says something, and otherwise
// nothing is known.
func estimateFrom(sample []*keyspace.Position, milestones []milestone) int64 {
	least, most := int64(1), int64(math.MaxInt64)
	var last milestone
	for _, m := range milestones {
		if m.at == nil {
			most = m.rank
			break
		}
		last, least = m, m.rank+1
	}
	if last.at == nil {
		return most
	}
	passed := 0
	for passed < len(sample) && keyspace.Compare(sample[passed], last.at) <= 0 {
		passed++
	}
	switch {
	case passed > 0:
		return min(most, max(least, last.rank*int64(len(sample))/int64(passed)))
	case most < math.MaxInt64:
		return min(most, 2*least)
	}
	return 0
}

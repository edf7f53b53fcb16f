package split

import (
	"math"
	"slices"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// A Rank is a position with a known number of entities of the query before it.
type Rank struct {
	At     *keyspace.Position // nil: behind the last entity
	Before int64
}

// RankPages says behind how many pages the root looks for a position, which then is a rank.
// Production has one sample in 128 entities, so about 50 samples are before that position if all
// samples of the kind were drawn. Where more samples are needed an aggregation counts.
const RankPages = 12

// CountedPages is up to how many pages the root counts its range at the same time. It cuts no
// shorter one at samples, and of one that was counted it looks for no boundary that is not there.
const CountedPages = 2 * RootPages

// An aggregation counts the entities before one of the samples: before the sample that has about
// refinedCount entities before it, but not before fewer than leastSamples, with which an estimate
// is within 25% two times in three, nor before more than mostSamples, with which it is within 6%.
const (
	refinedCount = 1_000_000
	leastSamples = 16
	mostSamples  = 256
)

// MostCounted bounds such a count.
const MostCounted = 10_000_000

// further returns which sample, counted from 1, the entities have to be counted before, if too few
// samples are before the known ranks for a good estimate; 0 if there are enough. rough is the
// estimate by the known ranks.
func further(sample []*keyspace.Position, ranks []Rank, rough int64) int {
	last := ranks[len(ranks)-1]
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

// EstimateBy estimates how many entities the root's range holds. If it needs to it has the entities
// before a sample counted, and before an earlier one if they are more than can be counted. If even
// the first sample has too many before it, the kind is at least as large as the estimate.
func EstimateBy(
	sample []*keyspace.Position, ranks []Rank, count func(before *keyspace.Position) (n int64, known bool),
) int64 {
	estimate := EstimateFrom(sample, ranks)
	for n := further(sample, ranks, estimate); n > 0; n /= 4 {
		rank, known := count(sample[n-1])
		if !known {
			return estimate
		}
		counted := append(slices.Clip(ranks), Rank{At: sample[n-1], Before: rank})
		if estimate = EstimateFrom(sample, counted); rank < MostCounted {
			return estimate
		}
	}
	return estimate
}

// EstimateFrom estimates how many entities the root's range holds. It assumes as many entities for
// each sample as there are before the last rank for each sample before that. It uses no constant,
// because databases differ in how dense their samples are. The samples may be the first part of all
// scatter keys: the ratio is the same. Without samples before the last rank, a kind that ends
// between two ranks has a bound; otherwise its size is unknown, and the estimate 0.
func EstimateFrom(sample []*keyspace.Position, ranks []Rank) int64 {
	least, most := int64(1), int64(math.MaxInt64)
	var last Rank
	for _, m := range ranks {
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

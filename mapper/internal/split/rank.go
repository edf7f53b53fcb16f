package split

import (
	"math"
	"slices"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// A Rank is a position, and the number of the query's entities before it.
type Rank struct {
	At     *keyspace.Position // the position; nil: after the last entity
	Before int64
}

// RankPages is the distance, in pages, at which the task of a job's first range looks for a
// position with a known number of entities before it. In production, one entity in 128 can be in a
// sample. So about 50 samples are before that position, if all of them were read. If these are too
// few for an estimate, the task counts further.
const RankPages = 12

// CountedPages is the largest number of pages of entities in a job's first range that its task
// counts completely. Such a range is not cut at samples, and no boundaries after its end are
// searched.
const CountedPages = 2 * RootPages

// Limits of a count that improves the estimated size of a kind. It counts the entities before one
// of the samples: the sample with about refinedCount entities before it, or with a quarter of the
// count's limit if that is less. With leastSamples samples before it, the estimate is within 25%
// two times in three. With mostSamples it is within 6%, and more are not used.
const (
	refinedCount = 1_000_000
	leastSamples = 16
	mostSamples  = 256
)

// Limits of such a count, in entities: MostCounted for a plan, and MostAwaited for a running job,
// whose workers wait for it. They wait for about five seconds.
const (
	MostCounted = 10_000_000
	MostAwaited = 1_000_000
)

// further returns up to which sample the entities should be counted for a good estimate of a kind's
// size. Samples are numbered from 1. It returns 0 if the ranks are enough. The argument rough is
// the estimate from the ranks, or 0, and most is the limit of the count.
func further(sample []*keyspace.Position, ranks []Rank, rough, most int64) int {
	last := ranks[len(ranks)-1]
	if last.At == nil || len(sample) < leastSamples {
		return 0
	}
	n := leastSamples
	if rough > 0 {
		n = max(leastSamples, min(mostSamples, int(min(refinedCount, most/4)*int64(len(sample))/rough), len(sample)))
	}
	if keyspace.Compare(sample[n-1], last.At) <= 0 {
		return 0
	}
	return n
}

// EstimateBy estimates how many entities a job's first range has, from ranks: positions with a
// known number of entities before them. If they are too close to the start for a good estimate, it
// calls count for the entities before another sample. If a count reaches its limit most, it counts
// up to an earlier sample. If even the first sample is too far away, the result is too low.
func EstimateBy(
	sample []*keyspace.Position, ranks []Rank, most int64, count func(before *keyspace.Position) (n int64, known bool),
) int64 {
	estimate := EstimateFrom(sample, ranks)
	for n := further(sample, ranks, estimate, most); n > 0; n /= 4 {
		rank, known := count(sample[n-1])
		if !known {
			return estimate
		}
		counted := append(slices.Clip(ranks), Rank{At: sample[n-1], Before: rank})
		if estimate = EstimateFrom(sample, counted); rank < most {
			return estimate
		}
	}
	return estimate
}

// EstimateFrom estimates how many entities a job's first range has. It divides the number of
// entities before the last rank by the number of samples before it. It multiplies the result by the
// number of all samples. It does not rely on a fixed density of samples, because databases differ.
// The samples may be incomplete, because the ratio is the same for all of them and for some.
//
// If there are no samples before the last rank, and the kind is known to end between two ranks, the
// estimate lies between these. Otherwise it is 0 (unknown).
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

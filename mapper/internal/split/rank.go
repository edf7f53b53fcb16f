package split

import (
	"math"
	"slices"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// A Rank is a position with the number of the query's entities before it.
type Rank struct {
	At     *keyspace.Position // the position; nil: after the last entity
	Before int64
}

// RankPages is the distance from the start, in pages, of the position up to which the task of a
// job's first range counts entities. In production, one entity in 128 can be in a sample. So about
// 50 samples are before this position, if all of them were read. If they are too few for an
// estimate, the task counts further.
const RankPages = 12

// CountedPages is the number of pages of entities up to which the task of a job's first range
// counts the range completely. Such a range is not cut at samples, and no boundaries after its end
// are searched.
const CountedPages = 2 * RootPages

// Limits of a count that improves the estimated size of a kind. It counts the entities before one
// of the samples. This sample is chosen such that about refinedCount entities, or a quarter of the
// count's limit if that is less, are before it. With leastSamples samples before it, the estimate
// is within 25% two times in three. With mostSamples, it is within 6%, and more are not used.
const (
	refinedCount = 1_000_000
	leastSamples = 16
	mostSamples  = 256
)

// Limits of such a count, in entities: MostCounted for the plan of a job, and MostAwaited for a
// running job. The workers of a running job wait for the count, for about five seconds.
const (
	MostCounted = 10_000_000
	MostAwaited = 1_000_000
)

// further returns the number of the sample (from 1) up to which the entities should be counted for
// a good estimate of a kind's size. It returns 0 if the ranks are good enough. The argument rough
// is the estimate from the ranks, or 0 if there is none, and most is the limit of the count.
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

// EstimateBy estimates how many entities a job's first range has, from ranks, which are positions
// with a known number of entities before them. If these are too close to the start for a good
// estimate, it calls count for the entities before a later sample. If a count reaches its limit
// most, it counts up to an earlier sample. If even the first sample is too far away, the result is
// too low.
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
// entities before the last rank by the number of samples before it, and multiplies the result by
// the number of all samples. It does not assume a density of samples, because databases differ. It
// works for any random part of the samples.
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

package split

import (
	"math"
	"slices"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// A Rank is a position and how many entities of the query come before it.
type Rank struct {
	At     *keyspace.Position // the position of the rank; nil: after the last entity
	Before int64
}

// RankPages is the number of pages after which the task of a job's first range looks for a
// position, to know how many entities are before it. In production one entity in 128 has a sample,
// so about 50 samples lie before that position if all of the kind were drawn. If that is too few,
// an aggregation counts further.
const RankPages = 12

// CountedPages is the number of pages up to which the task of a job's first range counts the
// entities. A shorter range is not cut at samples, and boundaries after its end are not searched.
const CountedPages = 2 * RootPages

// Limits of a count that improves an estimate. It counts the entities before one of the samples:
// the one with about refinedCount entities before it, or a quarter of the count's limit if that is
// less. At least leastSamples samples must lie before it: then an estimate is within 25% two times
// in three. At most mostSamples may: then it is within 6%.
const (
	refinedCount = 1_000_000
	leastSamples = 16
	mostSamples  = 256
)

// Limits of such a count, in entities: MostCounted for a plan, and MostAwaited for a job, whose
// workers wait about five seconds for it.
const (
	MostCounted = 10_000_000
	MostAwaited = 1_000_000
)

// further returns the number of the sample, from 1, before which entities have to be counted for a
// good estimate of a kind's size. It returns 0 if the ranks suffice. The estimate from the ranks is
// rough (0: none), and the limit of a count is most.
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

// EstimateBy estimates how many entities a job's first range has, from the numbers of entities
// before some of the samples. If those numbers are too small for a good estimate, it counts the
// entities before another sample, up to most. If that count reaches its limit, it counts before an
// earlier sample. If even the first sample has too many before it, the range has at least the
// estimate.
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

// EstimateFrom estimates how many entities a job's first range has. It divides the entities before
// the last rank by the samples before it, and multiplies that by the number of samples. It uses no
// constant, because databases differ in how dense their samples are. The samples may be the first
// part of all scatter keys, since the ratio is the same.
//
// Without samples before the last rank, a kind that ends between two ranks is estimated from these.
// Otherwise its size is unknown, and the estimate is 0.
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

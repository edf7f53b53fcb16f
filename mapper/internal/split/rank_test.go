package split

import (
	"slices"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// rankKey returns the key with the given rank (its place, from 0) in a kind with the IDs 1, 2, 3.
func rankKey(rank int64) *datastore.Key { return datastore.IDKey("K", rank+1, nil) }

// TestEstimateBy estimates the sizes of kinds with more entities before a sample than the limit of
// a count.
func TestEstimateBy(t *testing.T) {
	for _, n := range []int64{1e6, 1e8, 1e9, 1e10, 1e11} {
		for _, drawn := range []int64{600, 1600, 50_000} {
			for _, most := range []int64{MostCounted, MostAwaited} {
				var sample []*keyspace.Position
				for i := range drawn {
					sample = append(sample, keyspace.At(rankKey((2*i+1)*(n/drawn)/2)))
				}
				var counted []int64
				known := []Rank{{keyspace.At(rankKey(500)), 500}, {keyspace.At(rankKey(6000)), 6000}}
				got := EstimateBy(sample, known, most, func(before *keyspace.Position) (int64, bool) {
					counted = append(counted, min(most, before.Key.ID-1))
					return counted[len(counted)-1], true
				})
				if least := min(n, drawn*most); got < least*2/5 || got > n*4/3 || len(counted) > 3 {
					t.Errorf("%d samples of %d: estimated %d, want at least %d; counted %d", drawn, n, got, least,
						counted)
				}
			}
		}
	}
}

func TestEstimateFrom(t *testing.T) {
	rng := testflag.Rand(t)
	for _, density := range []int{2, 128} {
		m := newModel(rng, sequence(200000), density)
		for _, drawn := range []int{1200, 1500} {
			sample := keyspace.Sort(slices.Clone(m.scatter[:min(drawn, len(m.scatter))]))
			got := EstimateFrom(sample, m.milestones(500))
			if got < 110000 || got > 450000 {
				t.Errorf("1 in %d, %d samples: estimated %d of 200000", density, len(sample), got)
			}
		}
	}
	for _, n := range []int{0, 1, 10, 39, 49, 51, 100, 119} {
		m := newModel(rng, sequence(n), 0)
		if got := EstimateFrom(nil, m.milestones(10)); got < int64(n)/6 || got > max(10, int64(n)*6) {
			t.Errorf("no samples of %d: estimated %d", n, got)
		}
	}
	if got := EstimateFrom(nil, newModel(rng, sequence(121), 0).milestones(10)); got != 0 {
		t.Errorf("no samples: estimated %d, want 0 for unknown", got)
	}
	if got := EstimateFrom(keyspace.AtAll(sequence(1000)[999:]),
		newModel(rng, sequence(1000), 0).milestones(10)); got != 0 {
		t.Errorf("no samples among those passed: estimated %d, want 0 for unknown", got)
	}
}

package mapper_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// TestProgress looks at jobs over kinds of several shapes all the time: the progress is never above
// 100%, is between its bounds, as is what really was done, and does not go back below an earlier
// lower bound: by more than what was inserted since explains, and a hair where chance would have
// it.
func TestProgress(t *testing.T) {
	t.Parallel()
	testflag.Sequential(t)
	n := testflag.Size(t, 2000, 3000, 6000)
	slow := mapper.Visit("slow", func(_ context.Context, e *mapper.Entity[leaf], _ mapper.NoParams) error {
		time.Sleep(3 * time.Millisecond)
		return nil
	})
	rng := testflag.Rand(t)
	for name, kind := range map[string]struct {
		key    func(i int) *datastore.Key
		filter []mapper.Filter
		grows  bool
		share  float64 // that matches
		page   int
	}{
		"uuid": {func(int) *datastore.Key {
			return datastore.NameKey("Leaf", fmt.Sprintf("%016x", rng.Uint64()), nil)
		}, nil, false, 1, 20},
		"ids": {func(i int) *datastore.Key { return datastore.IDKey("Leaf", int64(i+1), nil) }, nil, false, 1, 20},
		"skewed": {func(i int) *datastore.Key { return datastore.NameKey("Leaf", skewed(rng, i), nil) }, nil, false,
			1, 20},
		"filtered": {func(i int) *datastore.Key { return datastore.IDKey("Leaf", int64(i+1), nil) },
			[]mapper.Filter{mapper.Where("N", "=", 1)}, false, 0.4, 20},
		"sampled": {func(i int) *datastore.Key { return datastore.NameKey("Leaf", skewed(rng, i), nil) }, nil, false,
			1, 4},
		"growing": {func(i int) *datastore.Key { return datastore.IDKey("Leaf", int64(i+1), nil) }, nil, true, 1, 20},
	} {
		t.Run(name, func(t *testing.T) {
			mappertest.Run(t, []mapper.AnyMapper{slow}, &mappertest.Options{Workers: 8},
				func(t *testing.T, w *mappertest.Env) {
					put := func(from, to int) {
						for ; from < to; from += 500 {
							var keys []*datastore.Key
							var all []leaf
							for i := from; i < min(from+500, to); i++ {
								value := int64(2)
								if float64(i%1000) < 1000*kind.share {
									value = 1
								}
								keys, all = append(keys, kind.key(i)), append(all, leaf{N: value})
							}
							if _, err := w.Client.PutMulti(t.Context(), keys, all); err != nil {
								t.Fatal(err)
							}
						}
					}
					put(0, n)
					job, err := slow.Start(t.Context(), w.Engine, mapper.Query{Kind: "Leaf", Filters: kind.filter},
						mapper.NoParams{}, &mapper.StartOptions{PageSize: kind.page, AllowEmpty: true})
					if err != nil {
						t.Fatal(err)
					}
					watchProgress(t, job, float64(n)*kind.share, func(look int) (more float64) {
						if !kind.grows || look >= 5 {
							return 0
						}
						put(n+300*look, n+300*(look+1))
						return 300
					})
				})
		})
	}
}

// skewed returns keys of which most are close to each other.
func skewed(rng *rand.Rand, i int) string {
	if i%10 == 0 {
		return fmt.Sprintf("%016x", rng.Uint64())
	}
	return fmt.Sprintf("8%08d", i)
}

// hair is by how much an estimate of a sample may be below an earlier bound: of 15,000 looks one
// was, by 0.0005.
const hair = 0.05

// watchProgress looks at a job over so many entities until it has ended.
func watchProgress(t *testing.T, job *mapper.Job, total float64, meanwhile func(look int) (more float64)) {
	t.Helper()
	floor, widest, grown, looks := 0.0, 0.0, 0.0, 0
	for {
		s, err := job.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p := s.Progress
		if !(0 <= p.FractionMin && p.FractionMin <= p.Fraction && p.Fraction <= p.FractionMax && p.FractionMax <= 1) {
			t.Fatalf("look %d: %+v: the bounds are not in order", looks, p)
		}
		if p.Fraction < floor-hair {
			t.Fatalf("look %d: %+v, and an earlier bound was %v", looks, p, floor)
		}
		if done := float64(s.Processed) / total; !s.Estimated && grown == 0 &&
			(done < p.FractionMin-1e-9 || done > p.FractionMax+1e-9) {
			t.Fatalf("look %d: %+v, and %v is done", looks, p, done)
		}
		floor = max(floor, p.FractionMin*total/(total+grown)) // which the job may not have found yet
		if s.State.Ended() {
			if p.FractionMin != 1 || p.EntitiesPerSecond != 0 || p.EntitiesPerSecondOverall <= 0 || s.Dollars <= 0 {
				t.Errorf("in the end: %+v, $%v", p, s.Dollars)
			}
			break
		}
		if looks > 5 && p.FractionMin > 0 {
			if widest = max(widest, p.FractionMax-p.FractionMin); p.EntitiesPerSecond <= 0 ||
				p.TimeLeft < p.TimeLeftMin || p.TimeLeftMax != 0 &&
				p.TimeLeftMax < p.TimeLeft {
				t.Errorf("look %d: %+v", looks, p)
			}
		}
		more := meanwhile(looks)
		floor *= (total + grown) / (total + grown + more)
		grown += more
		looks++
		time.Sleep(50 * time.Millisecond)
	}
	t.Logf("%d looks, the widest interval is %.2f", looks, widest)
	if looks < 8 && !testing.Short() {
		t.Errorf("%d looks", looks)
	}
}

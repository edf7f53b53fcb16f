package mapper_test

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// TestUnevenEntities has entities take between a millisecond and a second, so that pages end
// by time, become smaller, and leave parts of their ranges to others.
func TestUnevenEntities(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	seed := testflag.Seed(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	rounds := 10
	if testing.Short() {
		rounds = 2
	}
	for range rounds {
		took := make(map[string]time.Duration)
		keys := names(3000)
		for _, k := range keys {
			took[k.Name] = time.Duration(float64(time.Millisecond) * min(1000, math.Pow(1-rng.Float64(), -1/1.2)))
		}
		synctest.Test(t, func(t *testing.T) {
			m := mapper.Update("uneven", func(_ context.Context, e *mapper.Entity[account], _ mapper.NoParams) error {
				time.Sleep(took[e.Key.Name])
				e.Value.Balance++
				return nil
			})
			w := newWorld(t, setting{queue: few(20)}, m)
			w.putAccounts(keys)
			job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
				&mapper.StartOptions{PageSize: 50, PageTime: 100 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			if s := w.wait(job); s.Processed != int64(len(keys)) {
				t.Errorf("%+v", s)
			}
			w.wantBalances(keys, 1)
			proof, err := job.Verify(t.Context(), nil)
			if err != nil || len(proof.Problems) > 0 {
				t.Errorf("%+v, %v", proof, err)
			}
		})
	}
}

package mapper_test

import (
	"context"
	"fmt"
	"testing"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// TestGroups has a job aggregate over 10,000 groups, without and with a sum, a minimum and a
// maximum beside the count of each, while calls and deliveries go wrong: whatever is repeated, lost
// or killed, the aggregates that the finalizer gets are exact.
func TestGroups(t *testing.T) {
	t.Parallel()
	testflag.Sequential(t)
	first := testflag.Seed(t)
	for _, c := range []struct {
		groups int64
		four   bool
	}{{10_000, false}, {10_000, true}} {
		for i := range uint64(testflag.Size(t, 1, 1, 2)) {
			seed := first + i
			t.Run(fmt.Sprintf("%d groups/four %t/seed %d", c.groups, c.four, seed), func(t *testing.T) {
				const each = 2 // entities of a group
				n := c.groups * each
				var got map[string]int64
				m := mapper.Visit("groups", func(_ context.Context, e *mapper.Entity[leaf], _ mapper.NoParams) error {
					group := fmt.Sprint("g", e.Value.N%c.groups)
					e.Count(group, 1)
					if c.four {
						e.Count(group+" sum", e.Value.N)
						e.CountMin(group, e.Value.N)
						e.CountMax(group, e.Value.N)
					}
					return nil
				}).WithFinalizer(func(_ context.Context, d *mapper.Completion, _ mapper.NoParams) error {
					got = d.Status.Counters
					return nil
				})
				mappertest.Run(t, []mapper.AnyMapper{m}, &mappertest.Options{Seed: seed},
					func(t *testing.T, w *mappertest.Env) {
						for from := int64(0); from < n; from += 500 {
							var keys []*datastore.Key
							var all []leaf
							for i := from; i < from+500; i++ {
								keys = append(keys, datastore.IDKey("Leaf", i*7919+1, nil))
								all = append(all, leaf{N: i})
							}
							if _, err := w.Client.PutMulti(t.Context(), keys, all); err != nil {
								t.Fatal(err)
							}
						}
						start := func() (*mapper.Job, error) {
							return m.Start(t.Context(), w.Engine, mapper.Query{Kind: "Leaf"}, mapper.NoParams{},
								&mapper.StartOptions{ID: "groups", PageSize: 50})
						}
						w.ResumeFaults()
						job, err := start()
						if err != nil {
							w.PauseFaults()
							job, err = start()
						}
						if err != nil {
							t.Fatal(err)
						}
						s, err := job.Wait(t.Context())
						if err != nil || s.State != mapper.StateSucceeded || s.Processed != n {
							t.Errorf("%+v, %v", s, err)
						}
						w.PauseFaults()
					})
				want := make(map[string]int64)
				for g := range c.groups {
					name := fmt.Sprint("g", g)
					want[name] = each
					if c.four {
						want[name+" sum"], want["min("+name+")"], want["max("+name+")"] = g+g+c.groups, g, g+c.groups
					}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("aggregates (-want +got):\n%.2000s", diff)
				}
			})
		}
	}
}

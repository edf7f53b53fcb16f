package mapper_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// spentOf returns which share of its budget the record of a job says is spent.
func (w *world) spentOf(id string) float64 {
	w.Helper()
	var list datastore.PropertyList
	w.must(w.client.Get(w.Context(), datastore.NameKey(record.JobKind, id, nil), &list))
	spent, _ := propertyOf(list, "spent").(float64)
	return spent
}

// TestBudgetAmongManyJobs has a process work for more than a thousand other jobs while it has a
// page of a job with a budget in hand: nothing of that is lost.
func TestBudgetAmongManyJobs(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out a thousand jobs")
	}
	testflag.Sequential(t)
	t.Parallel()
	spent := make(map[int]float64)
	for _, others := range []int{0, 1100} {
		synctest.Test(t, func(t *testing.T) {
			tiny := mapper.Visit("tiny", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
				return nil
			})
			w, ctx := newWorld(t, setting{queue: few(50)}, steadyCredit, tiny), t.Context()
			w.putAccounts(names(60))
			w.putOthers(1)
			o := &mapper.StartOptions{ID: "budget", PageSize: 10, ExpectedWorkers: 1,
				Splitting: mapper.Splitting{First: 1, FanOut: 1}, Budget: mapper.Budget{Operations: 3000}}
			job, err := steadyCredit.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, credit{1}, o)
			w.must(err)
			time.Sleep(1500 * time.Millisecond) // the second page is under way
			var all sync.WaitGroup
			for first := range 20 {
				all.Go(func() {
					for i := first; i < others; i += 20 {
						_, err := tiny.Start(ctx, w.engine, mapper.Query{Kind: "Other"}, mapper.NoParams{},
							&mapper.StartOptions{ID: fmt.Sprint("tiny-", i), AllowOverlap: true})
						w.must(err)
					}
				})
			}
			all.Wait()
			if s := w.status(job); s.State != mapper.StateRunning || s.Processed > 20 {
				t.Fatalf("the others came too late: %+v", s)
			}
			w.wait(job)
			spent[others] = w.spentOf("budget")
		})
	}
	if math.Abs(spent[0]-spent[1100]) > 1e-9 || spent[0] == 0 {
		t.Errorf("the job has spent %v of its budget beside other jobs, and %v alone", spent[1100], spent[0])
	}
}

// TestBudgetIsGivenBack has the processes of a job with a budget drain, or an operator pause and
// resume it, again and again: what they have set aside and not spent is not lost, so the job spends
// hardly more than if it is left alone.
func TestBudgetIsGivenBack(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	var alone float64
	for _, test := range []struct {
		name string
		// of the budget, that the job spends more than alone: up to 0.09 was seen, and 0.20 where
		// nothing is given back
		most    float64
		disturb func(w *world, f *fleet, job *mapper.Job)
	}{
		{"is left alone", 0, func(*world, *fleet, *mapper.Job) {}},
		{"drains", 0.13, func(w *world, f *fleet, _ *mapper.Job) {
			w.must(f.retire(f.pick(), time.Hour))
		}},
		{"is paused and resumed", 0.13, func(w *world, _ *fleet, job *mapper.Job) {
			w.must(job.Pause(w.Context()))
			time.Sleep(10 * time.Second)
			w.must(job.Resume(w.Context()))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, ctx := newWorld(t, setting{queue: few(4)}, steadyCredit), t.Context()
				f := newFleet(w, 1, 3, steadyCredit)
				keys := names(1500)
				w.putAccounts(keys)
				o := &mapper.StartOptions{ID: "budget", PageSize: 10, ExpectedWorkers: 40,
					Budget: mapper.Budget{Operations: 40_000}}
				job, err := steadyCredit.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, credit{1}, o)
				w.must(err)
				for range 6 {
					time.Sleep(2 * time.Second)
					if s := w.status(job); s.State == mapper.StateRunning {
						test.disturb(w, f, job)
					}
				}
				w.wait(job)
				w.wantBalances(keys, 1)
				spent := w.spentOf("budget")
				if test.most == 0 {
					alone = spent
				}
				t.Logf("%.1f%% of the budget are spent", 100*spent)
				if spent > alone+test.most {
					t.Errorf("%.3f of the budget is spent, and %.3f if the job is left alone", spent, alone)
				}
			})
		})
	}
}

package mapper_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// TestBudget runs jobs of several shapes with budgets: each pauses before its pages pass that, and
// not long before, and goes on when it is resumed, until it has processed all.
func TestBudget(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	const n = 6000
	copies := mapper.Update("copies", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
		time.Sleep(time.Millisecond)
		a.Put(datastore.NameKey("Copy", a.Key.Name, nil), &a.Value)
		a.Put(datastore.NameKey("Second", a.Key.Name, nil), &a.Value)
		return nil
	})
	visits := mapper.Visit("visits", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
		time.Sleep(time.Millisecond)
		return nil
	})
	for name, test := range map[string]struct {
		mapper *mapper.Mapper[mapper.NoParams]
		budget mapper.Budget
	}{
		"operations":       {setOwner, mapper.Budget{Operations: 5000}},
		"dollars":          {setOwner, mapper.Budget{Dollars: 0.005}},
		"both":             {setOwner, mapper.Budget{Operations: 1 << 40, Dollars: 0.004}},
		"others are put":   {copies, mapper.Budget{Operations: 9000}},
		"nothing is put":   {visits, mapper.Budget{Operations: 4500}},
		"a budget for few": {setOwner, mapper.Budget{Operations: 3500}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, ctx := newWorld(t, setting{queue: few(8)}, test.mapper), t.Context()
				w.putAccounts(names(n))
				job, err := test.mapper.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
					&mapper.StartOptions{ID: "job", PageSize: 50, Budget: test.budget})
				if err != nil {
					t.Fatal(err)
				}
				pauses, looks := 0, int64(0)
				before := w.emulator.Usage() // what the start takes does not count
				for {
					for state := mapper.StateRunning; state == mapper.StateRunning; looks++ {
						time.Sleep(time.Second)
						jobs, _, err := w.engine.JobsPage(ctx, nil, "")
						if err != nil {
							t.Fatal(err)
						}
						state = jobs[0].State
					}
					time.Sleep(10 * time.Second) // for the pages under way
					used := w.emulator.Usage().Sub(before)
					used.Reads -= looks
					s := w.status(job)
					if s.State != mapper.StatePaused {
						if s.State != mapper.StateSucceeded || s.Processed != n || s.Settings.Budget != test.budget {
							t.Errorf("%+v", s)
						}
						break
					}
					if pauses++; !strings.Contains(s.Error, "paused by its budget of") || s.Bottleneck != s.Error {
						t.Errorf("%q, %q", s.Error, s.Bottleneck)
					}
					share := 0.0
					if test.budget.Operations > 0 {
						share = float64(used.Reads+used.Writes+used.Deletes+used.TaskOps) / float64(
							test.budget.Operations)
					}
					if test.budget.Dollars > 0 {
						share = max(share, billing.NAM5.Dollars(used)/test.budget.Dollars)
					}
					t.Logf("pause %d at %.0f%% of the budget", pauses, 100*share)
					if share > 1 || share < 0.15 {
						t.Errorf("pause %d at %.2f of the budget: %+v", pauses, share, used)
					}
					before, looks = w.emulator.Usage(), 0
					if err := job.Resume(ctx); err != nil {
						t.Fatal(err)
					}
				}
				t.Logf("%d pauses", pauses)
				if pauses < 2 {
					t.Errorf("%d pauses", pauses)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, setOwner)
		w.putAccounts(names(10))
		for _, b := range []mapper.Budget{{Dollars: -1}, {Dollars: math.NaN()}, {Operations: -1}, {Operations: 2000},
			{Dollars: 0.001}} {
			if _, err := setOwner.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
				&mapper.StartOptions{Budget: b}); !errors.Is(err, mapper.ErrInvalidArgument) ||
				!strings.Contains(err.Error(), "StartOptions.Budget") {
				t.Errorf("%+v: %v", b, err)
			}
		}
	})
}

// TestBudgetAndFailures has a job with a budget and a limit of failures, which pause it apart: to
// resume it after one does not renew the other.
func TestBudgetAndFailures(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		picky := mapper.Update("picky", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			if a.Value.Balance%50 == 7 {
				return mapper.Permanent(errors.New("seven"))
			}
			a.Value.Owner = "set"
			return nil
		})
		w, ctx := newWorld(t, setting{queue: few(2)}, picky), t.Context()
		w.putAccounts(names(4000))
		job, err := picky.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{PageSize: 50, FailureLimit: 20, Budget: mapper.Budget{Operations: 6000}})
		if err != nil {
			t.Fatal(err)
		}
		why := make(map[string]int)
		failures, allowed := int64(0), int64(20)
		for {
			s := w.status(job)
			for ; s.State == mapper.StateRunning; s = w.status(job) {
				time.Sleep(time.Second)
			}
			if s.State != mapper.StatePaused {
				break
			}
			cause, _, _ := strings.Cut(strings.TrimPrefix(s.Error, "paused by its "), " ")
			why[cause]++
			failed, _, err := job.FailuresPage(ctx, "")
			if failures = int64(len(failed)); err != nil || failures > allowed+10 {
				t.Fatalf("%d failures, %d are allowed: %v; paused %v", failures, allowed, err, why)
			}
			if cause == "failure" {
				allowed = failures + 20
			}
			if err := job.Resume(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if why["budget"] == 0 || why["failure"] < 2 {
			t.Errorf("paused %v, with %d failures", why, failures)
		}
	})
}

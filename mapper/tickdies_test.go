package mapper_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// eachMishap runs a test with a process of an operator that dies at each of its calls, or behind
// the answer to it: at every third of them, beginning somewhere. The test returns whether it has
// come to that.
func eachMishap(t *testing.T, test func(t *testing.T, m *mishap, operators func(*fleet))) {
	t.Helper()
	step := 3
	if testing.Short() {
		step = 12
	}
	for after, reached := rand.IntN(step), true; reached && !t.Failed(); after += step {
		m := &mishap{after: after}
		synctest.Test(t, func(t *testing.T) { test(t, m, func(f *fleet) { m.happen = f.kill }) })
		reached = m.happened
	}
}

// TestTickDies has the process die that calls Tick, while the last run goes on: behind every call
// that it makes, from the decision on what becomes of the tick to the first task of its run.
// Another process calls then, as a scheduler does. No run is lost, none starts twice, and no two of
// them run at once.
func TestTickDies(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for _, overlap := range []mapper.Overlap{mapper.OverlapSkip, mapper.OverlapQueue, mapper.OverlapReplace} {
		t.Run(string(overlap), func(t *testing.T) {
			t.Parallel()
			eachMishap(t, func(t *testing.T, m *mishap, on func(*fleet)) {
				w, ctx := newWorld(t, setting{queue: few(2)}, steadyCredit), t.Context()
				operators := newFleetOf(w, queueName, target, 1, 2, steadyCredit)
				on(operators)
				keys := names(100)
				w.putAccounts(keys)
				s := mapper.NewSchedule("nightly", steadyCredit, overlap)
				tick := func(ctx context.Context, e *mapper.Engine, at time.Time) (*mapper.TickResult, error) {
					bridge.Tick(e, s.Name())
					return s.Tick(ctx, e, at, mapper.Query{Kind: "Account"}, credit{10},
						&mapper.StartOptions{PageSize: 10})
				}
				first, second := time.Now().Truncate(time.Minute), time.Now().Truncate(time.Minute).Add(time.Minute)
				if got, err := tick(ctx, w.engine, first); err != nil || got.Outcome != mapper.TickStarted {
					t.Fatalf("%+v, %v", got, err)
				}
				time.Sleep(time.Second)
				_, _ = tick(m.with(ctx), operators.pick().engine, second) // whoever calls gets no answer, or one
				time.Sleep(time.Second)
				got, err := tick(ctx, w.engine, second)
				if err != nil {
					t.Fatal(err)
				}
				for range 20 {
					time.Sleep(time.Minute)
					if err := s.Advance(ctx, w.engine); err != nil {
						t.Fatal(err)
					}
				}
				runs := 0
				jobs, _, err := w.engine.JobsPage(ctx, nil, "")
				if err != nil {
					t.Fatal(err)
				}
				var done int64
				for _, j := range jobs {
					status := w.status(w.engine.Job(j.ID))
					if done += status.Processed; !j.State.Ended() {
						t.Errorf("%s is %s", j.ID, j.State)
					}
					if j.State == mapper.StateSucceeded {
						runs++
					}
				}
				want := map[mapper.Overlap]int{mapper.OverlapSkip: 1, mapper.OverlapQueue: 2,
					mapper.OverlapReplace: 1}[overlap]
				if got.Outcome == mapper.TickStarted && overlap == mapper.OverlapSkip {
					want = 2 // the first run had ended by then
				}
				if runs != want {
					t.Errorf("%d runs have succeeded, want %d; the tick was %s; jobs %+v", runs, want, got.Outcome,
						jobs)
				}
				balances := int64(0)
				for i, k := range keys {
					balances += w.account(k).Balance - int64(i)
				}
				if balances != 10*done {
					t.Errorf("%d credits for %d processed entities", balances/10, done)
				}
				for i := 1; i < len(jobs); i++ { // the last one first
					if before, after := jobs[i], jobs[i-1]; after.Created.Before(before.Ended) {
						t.Errorf("%s begins at %v, and %s ends at %v", after.ID, after.Created, before.ID, before.Ended)
					}
				}
			})
		})
	}
}

// TestUndoDies has the process die that calls Undo, at each of its calls. Another one calls then:
// the job is undone, once.
func TestUndoDies(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	eachMishap(t, func(t *testing.T, m *mishap, on func(*fleet)) {
		w, ctx := newWorld(t, setting{}, setOwner), t.Context()
		operators := newFleetOf(w, queueName, target, 1, 2, setOwner)
		on(operators)
		w.putAccounts(names(100))
		before := images(t, w.client, "Account")
		job, err := setOwner.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "done", PageSize: 10})
		if err != nil {
			t.Fatal(err)
		}
		w.wait(job)
		_, _ = operators.pick().engine.Job("done").Undo(m.with(ctx), nil)
		time.Sleep(time.Second)
		undo, err := job.Undo(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		if s := w.wait(undo); s.ID != "undo-done" || s.Counters["restored"] != 100 {
			t.Errorf("%+v", s)
		}
		if after := images(t, w.client, "Account"); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Error("it is not as it was")
		}
		if n, err := w.client.Count(ctx, datastore.NewQuery(record.JobKind)); err != nil || n != 2 {
			t.Errorf("%d jobs, %v", n, err)
		}
	})
}

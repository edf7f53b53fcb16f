package protocol_test

import (
	"bytes"
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

// eachMishap runs a test several times. In each run, an operator's process dies at another one of
// its calls, before it or after its answer. It tries every third call, from a random one on. The
// test passes operators the processes that may die. eachMishap stops when a run does not reach the
// call.
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

// TestTickDies calls Tick while the schedule's last run still runs, and kills the calling process.
// It dies after each of its calls, from the decision about the tick to the first task of the run.
// Then another process calls Tick, as a scheduler would. No run may be lost or start twice, and no
// two runs may overlap.
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
				// returns an error or an outcome, depending on when the process dies
				_, _ = tick(m.with(ctx), operators.pick().engine, second)
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
					want = 2 // the first run had already ended
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
				for i := 1; i < len(jobs); i++ { // in the order of time; the list is in reverse order
					if before, after := jobs[i], jobs[i-1]; after.Created.Before(before.Ended) {
						t.Errorf("%s started at %v, before %s ended at %v", after.ID, after.Created, before.ID,
							before.Ended)
					}
				}
			})
		})
	}
}

// TestUndoDies calls Undo, and kills the calling process at each of its calls. Then another process
// calls Undo. The job must be undone once.
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
			t.Errorf("status %+v", s)
		}
		if after := images(t, w.client, "Account"); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Error("the accounts differ from those before the job")
		}
		if n, err := w.client.Count(ctx, datastore.NewQuery(record.JobKind)); err != nil || n != 2 {
			t.Errorf("%d jobs, %v", n, err)
		}
	})
}

// TestOldTick checks the compatibility of waiting ticks with older builds. A tick must be stored
// also with the old names of its settings. A tick that was stored by such a build must start its
// run.
func TestOldTick(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := newWorld(t, setting{queue: few(4)}, slowCredit), t.Context()
		w.putAccounts(names(500))
		s := mapper.NewSchedule("nightly", slowCredit, mapper.OverlapQueue)
		bridge.Tick(w.engine, s.Name())
		tick := func(n int) *mapper.TickResult {
			got, err := s.Tick(ctx, w.engine, minute(n), mapper.Query{Kind: "Account"}, credit{1},
				&mapper.StartOptions{PageSize: 20, ExpectedWorkers: 7, EntityTimeout: 5 * time.Second})
			w.must(err)
			return got
		}
		first := tick(0).Job
		w.wantTick(tick(1), mapper.TickQueued, first.ID)

		var all []datastore.PropertyList
		keys, err := w.client.GetAll(ctx, datastore.NewQuery("ScattermapSchedule"), &all)
		w.must(err)
		old := 0
		for i := range all[0] {
			text, ok := all[0][i].Value.([]byte)
			if !ok || !bytes.Contains(text, []byte(`"workers":7`)) ||
				!bytes.Contains(text, []byte(`"timeout_ns":5000000000`)) {
				continue
			}
			text = bytes.Replace(text, []byte(`"expected_workers":7,`), nil, 1)
			all[0][i].Value = bytes.Replace(text, []byte(`"entity_timeout_ns":5000000000,`), nil, 1)
			old++
		}
		if old != 1 {
			t.Fatalf("%d properties have the tick under the names of before: %+v", old, all[0])
		}
		_, err = w.client.Put(ctx, keys[0], &all[0])
		w.must(err)
		w.wait(first)
		w.must(s.Advance(ctx, w.engine))
		run := w.wait(w.engine.Job(s.JobID(minute(1))))
		if o := run.Settings; o.ExpectedWorkers != 7 || o.EntityTimeout != 5*time.Second || o.PageSize != 20 {
			t.Errorf("the settings of the run are %+v", o)
		}
	})
}

package mapper_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// nightly touches entities for a while each, and notes in which runs.
var nightly = mapper.Update("nightly", func(_ context.Context, e *mapper.Entity[leaf], night string) error {
	time.Sleep(10 * time.Millisecond)
	e.Value.N++
	e.Count("nights", 1)
	return nil
})

// midnight is the first tick of tests.
var midnight = time.Date(2000, 1, 2, 0, 0, 0, 0, time.UTC)

// ticker ticks a schedule, and again after an error, as Cloud Scheduler does.
func ticker(t *testing.T, w *mappertest.Env, s *mapper.Schedule[string], at time.Time) *mapper.TickResult {
	t.Helper()
	for range 100 {
		got, err := s.Tick(t.Context(), w.Engine, at, mapper.Query{Kind: "Leaf"}, "night", nil)
		if err == nil {
			return got
		}
		if errors.Is(err, mapper.ErrInvalidArgument) {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
	}
	t.Fatal("a hundred ticks have failed")
	return nil
}

// TestTickOnce has a tick come five times at once, with and without faults, and once more when its
// run has ended: it is one run.
func TestTickOnce(t *testing.T) {
	t.Parallel()
	first := testflag.Seed(t)
	for i := range uint64(6) {
		seed := uint64(0)
		if i > 0 {
			seed = first + i
		}
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			s := mapper.NewSchedule("nightly", nightly, mapper.OverlapSkip)
			mappertest.Run(t, []mapper.AnyMapper{nightly}, &mappertest.Options{Seed: seed},
				func(t *testing.T, w *mappertest.Env) {
					putLeaves(t, w.Client)
					w.ResumeFaults()
					var all [5]*mapper.TickResult
					var group sync.WaitGroup
					for i := range all {
						group.Go(func() { all[i] = ticker(t, w, s, midnight) })
					}
					group.Wait()
					for _, got := range all {
						if got == nil || got.Outcome != mapper.TickStarted || got.Job.ID != s.JobID(midnight) {
							t.Fatalf("ticked %+v, want that it has started %s", got, s.JobID(midnight))
						}
					}
					w.PauseFaults()
					status, err := all[0].Job.Wait(t.Context())
					if err != nil || status.State != mapper.StateSucceeded || status.Counters["nights"] != leaves {
						t.Fatalf("%+v, %v", status, err)
					}
					if got := ticker(t, w, s, midnight); got.Outcome != mapper.TickStarted {
						t.Errorf("the tick comes late, and is %s", got.Outcome)
					}
					if jobs, _, err := w.Engine.JobsPage(t.Context(), nil, ""); err != nil || len(jobs) != 1 {
						t.Errorf("%d jobs, %v, want one", len(jobs), err)
					}
					checkNights(t, w.Client, 1)
				})
		})
	}
}

// checkNights checks that each leaf was touched so often.
func checkNights(t *testing.T, client *datastore.Client, nights int64) {
	t.Helper()
	var all []leaf
	keys, err := client.GetAll(t.Context(), datastore.NewQuery("Leaf"), &all)
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range all {
		if l.N != keys[i].ID-1+nights {
			t.Fatalf("leaf %d was touched %d times, want %d", keys[i].ID, l.N-keys[i].ID+1, nights)
		}
	}
}

// TestOverlap has ticks come while a run is unfinished, with and without faults.
func TestOverlap(t *testing.T) {
	t.Parallel()
	first, n := testflag.Seed(t), uint64(testflag.Size(t, 2, 2, 4))
	for _, overlap := range []mapper.Overlap{mapper.OverlapSkip, mapper.OverlapQueue, mapper.OverlapReplace} {
		for i := range n {
			seed := uint64(0)
			if i > 0 {
				seed = first + i
			}
			t.Run(fmt.Sprintf("%s/seed %d", overlap, seed), func(t *testing.T) {
				s := mapper.NewSchedule("nightly", nightly, overlap)
				mappertest.Run(t, []mapper.AnyMapper{nightly}, &mappertest.Options{Seed: seed},
					func(t *testing.T, w *mappertest.Env) {
						putLeaves(t, w.Client)
						bridge.Tick(w.Engine, "nightly")
						w.ResumeFaults()
						overlapping(t, w, s, overlap)
					})
			})
		}
	}
}

// overlapping ticks three times within the first run: at once, and again.
func overlapping(t *testing.T, w *mappertest.Env, s *mapper.Schedule[string], overlap mapper.Overlap) {
	ticker(t, w, s, midnight)
	second, third := midnight.Add(time.Minute), midnight.Add(2*time.Minute)
	var got [4]*mapper.TickResult
	var group sync.WaitGroup
	for i := range got {
		group.Go(func() { got[i] = ticker(t, w, s, []time.Time{second, second, third, third}[i]) })
	}
	group.Wait()
	w.PauseFaults()
	for range 20 { // what waits is advanced by a revival
		time.Sleep(30 * time.Minute)
		if err := s.Advance(t.Context(), w.Engine); err != nil {
			t.Fatal(err)
		}
	}
	jobs, _, err := w.Engine.JobsPage(t.Context(), nil, "")
	if err != nil {
		t.Fatal(err)
	}
	states := make(map[string]mapper.State)
	var last mapper.JobInfo // that has begun
	for i, j := range jobs {
		states[j.ID] = j.State
		if i > 0 && last.Created.Before(j.Ended) {
			t.Errorf("%s began at %v, and %s ended at %v", last.ID, last.Created, j.ID, j.Ended)
		}
		last = j
	}
	var want map[string]mapper.State
	switch overlap {
	case mapper.OverlapSkip:
		want = map[string]mapper.State{s.JobID(midnight): mapper.StateSucceeded}
	case mapper.OverlapQueue:
		want = map[string]mapper.State{s.JobID(midnight): mapper.StateSucceeded, s.JobID(third): mapper.StateSucceeded}
	case mapper.OverlapReplace:
		want = map[string]mapper.State{s.JobID(midnight): mapper.StateAborted, s.JobID(third): mapper.StateSucceeded}
		if _, ok := states[s.JobID(second)]; ok { // it came first
			want[s.JobID(second)] = mapper.StateAborted
		}
	}
	if fmt.Sprint(states) != fmt.Sprint(want) {
		t.Errorf("the runs are %v, want %v; the ticks were %v", states, want, outcomes(got[:]))
	}
}

func outcomes(all []*mapper.TickResult) (s []mapper.TickOutcome) {
	for _, t := range all {
		s = append(s, t.Outcome)
	}
	return s
}

// TestQueuedTick has an engine advance a schedule by itself when a run has ended.
func TestQueuedTick(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	s := mapper.NewSchedule("nightly", nightly, mapper.OverlapQueue)
	mappertest.Run(t, []mapper.AnyMapper{nightly}, &mappertest.Options{Schedules: []mapper.AnySchedule{s}},
		func(t *testing.T, w *mappertest.Env) {
			putLeaves(t, w.Client)
			ticker(t, w, s, midnight)
			if got := ticker(t, w, s, midnight.Add(time.Hour)); got.Outcome != mapper.TickQueued ||
				got.Job.ID != s.JobID(midnight) {
				t.Fatalf("ticked %+v", got)
			}
			time.Sleep(time.Hour)
			checkNights(t, w.Client, 2)
		})
}

// TestReplaceIsReady has a run go on if the one that would replace it can't start.
func TestReplaceIsReady(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for _, overlap := range []mapper.Overlap{mapper.OverlapReplace, mapper.OverlapQueue} {
		s := mapper.NewSchedule("nightly", nightly, overlap)
		mappertest.Run(t, []mapper.AnyMapper{nightly}, nil, func(t *testing.T, w *mappertest.Env) {
			bridge.Tick(w.Engine, "nightly")
			putLeaves(t, w.Client)
			run := ticker(t, w, s, midnight).Job
			for _, kind := range []string{"Leave", ""} { // which nobody has, and which can't be
				_, err := s.Tick(t.Context(), w.Engine, midnight.Add(time.Hour), mapper.Query{Kind: kind}, "night", nil)
				if !errors.Is(err, mapper.ErrInvalidArgument) {
					t.Errorf("%s: a tick over the kind %q: %v, want ErrArguments", overlap, kind, err)
				}
			}
			if status, err := run.Wait(t.Context()); err != nil || status.State != mapper.StateSucceeded {
				t.Errorf("%s: the run is %+v, %v", overlap, status, err)
			}
			time.Sleep(time.Hour)
			if err := s.Advance(t.Context(), w.Engine); err != nil {
				t.Error(err)
			}
			checkNights(t, w.Client, 1)
		})
	}
}

// TestWaitingGoesFirst has a tick that waits start its run before a later tick, although nobody has
// advanced the schedule meanwhile.
func TestWaitingGoesFirst(t *testing.T) {
	t.Parallel()
	s := mapper.NewSchedule("nightly", nightly, mapper.OverlapQueue)
	mappertest.Run(t, []mapper.AnyMapper{nightly}, nil, func(t *testing.T, w *mappertest.Env) {
		bridge.Tick(w.Engine, "nightly")
		putLeaves(t, w.Client)
		second, third := midnight.Add(time.Hour), midnight.Add(2*time.Hour)
		first := ticker(t, w, s, midnight).Job
		ticker(t, w, s, second)
		if _, err := first.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := ticker(t, w, s, third); got.Outcome != mapper.TickQueued || got.Job.ID != s.JobID(second) {
			t.Errorf("the third tick is %s behind %s, want that it waits for the second one's run", got.Outcome,
				got.Job.ID)
		}
		if _, err := w.Engine.Job(s.JobID(second)).Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Advance(t.Context(), w.Engine); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Engine.Job(s.JobID(third)).Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		checkNights(t, w.Client, 3)
	})
}

// TestWaitingRefused has a tick that waits, and then can't start a run, be done with, and others go
// on.
func TestWaitingRefused(t *testing.T) {
	t.Parallel()
	s := mapper.NewSchedule("nightly", nightly, mapper.OverlapQueue)
	mappertest.Run(t, []mapper.AnyMapper{nightly}, &mappertest.Options{Schedules: []mapper.AnySchedule{s}},
		func(t *testing.T, w *mappertest.Env) {
			putLeaves(t, w.Client)
			only, second := datastore.IDKey("Rare", 1, nil), midnight.Add(time.Hour)
			if _, err := w.Client.Put(t.Context(), only, &leaf{}); err != nil {
				t.Fatal(err)
			}
			first := ticker(t, w, s, midnight).Job
			tick := func() (*mapper.TickResult, error) {
				return s.Tick(t.Context(), w.Engine, second, mapper.Query{Kind: "Rare"}, "night", nil)
			}
			if got, err := tick(); err != nil || got.Outcome != mapper.TickQueued {
				t.Fatal(got, err)
			}
			if err := w.Client.Delete(t.Context(), only); err != nil {
				t.Fatal(err)
			}
			if _, err := first.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
			if err := w.Engine.ReviveJobs(t.Context()); err != nil {
				t.Errorf("a revival: %v", err)
			}
			if got, err := tick(); err != nil || got.Outcome != mapper.TickRefused {
				t.Errorf("the second tick is %+v, %v, want that it is refused", got, err)
			}
			if got := ticker(t, w, s, second.Add(time.Hour)); got.Outcome != mapper.TickStarted {
				t.Errorf("the third tick is %s", got.Outcome)
			}
		})
}

// TestOneRunGoesOn has a run that has failed not go on while the next one is unfinished, and no
// tick start one while it does.
func TestOneRunGoesOn(t *testing.T) {
	t.Parallel()
	for _, beside := range []bool{false, true} { // with it, no slot is in the way
		broken := true
		m := mapper.Update("brittle", func(_ context.Context, e *mapper.Entity[leaf], _ string) error {
			time.Sleep(10 * time.Millisecond)
			if broken && e.Key.ID%100 == 0 {
				return mapper.Permanent(errors.New("broken"))
			}
			return mapper.Skip
		})
		s := mapper.NewSchedule("nightly", m, mapper.OverlapSkip)
		mappertest.Run(t, []mapper.AnyMapper{m}, nil, func(t *testing.T, w *mappertest.Env) {
			putLeaves(t, w.Client)
			tick := func(at time.Time) *mapper.TickResult {
				got, err := s.Tick(t.Context(), w.Engine, at, mapper.Query{Kind: "Leaf"}, "night",
					&mapper.StartOptions{AllowOverlap: beside})
				if err != nil {
					t.Fatal(err)
				}
				return got
			}
			first := tick(midnight).Job
			if status, err := first.Wait(t.Context()); err != nil || status.State != mapper.StateSucceededWithFailures {
				t.Fatalf("%+v, %v", status, err)
			}
			broken = false
			second := tick(midnight.Add(time.Hour)).Job
			if err := first.Retry(t.Context()); !errors.Is(err, mapper.ErrWrongState) ||
				!strings.Contains(err.Error(), second.ID) {
				t.Errorf("beside %v: a retry beside the next run: %v, want ErrState that names it", beside, err)
			}
			if _, err := second.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := first.Retry(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := tick(midnight.Add(2 * time.Hour)); got.Outcome != mapper.TickSkipped || got.Job.ID != first.ID {
				t.Errorf("beside %v: a tick beside the retry is %s, of %s", beside, got.Outcome, got.Job.ID)
			}
			if status, err := first.Wait(t.Context()); err != nil || status.State != mapper.StateSucceeded {
				t.Errorf("%+v, %v", status, err)
			}
		})
	}
}

// TestScheduleRefused has what can't be carried out be refused, with an error that names it.
func TestScheduleRefused(t *testing.T) {
	t.Parallel()
	mappertest.Run(t, []mapper.AnyMapper{nightly}, nil, func(t *testing.T, w *mappertest.Env) {
		other := mapper.Update("other", func(context.Context, *mapper.Entity[leaf], string) error { return nil })
		for want, s := range map[string]*mapper.Schedule[string]{
			`"a b"`:             mapper.NewSchedule("a b", nightly, mapper.OverlapSkip),
			`"wait"`:            mapper.NewSchedule("nightly", nightly, "wait"),
			`overlap is ""`:     mapper.NewSchedule("nightly", nightly, ""),
			"the mapper is nil": mapper.NewSchedule[string]("nightly", nil, mapper.OverlapSkip),
			`mapper "other"`:    mapper.NewSchedule("nightly", other, mapper.OverlapSkip),
			"schedule is nil":   nil,
		} {
			_, err := mapper.NewEngine(w.Client, w.Engine.Queue(),
				&mapper.EngineOptions{Mappers: []mapper.AnyMapper{nightly},
					Schedules: []mapper.AnySchedule{s}})
			if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), want) {
				t.Errorf("an engine: %v, want an error with %s", err, want)
			}
			if s == nil {
				continue
			}
			_, err = s.Tick(t.Context(), w.Engine, midnight, mapper.Query{Kind: "Leaf"}, "", nil)
			if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want an error with %s", err, want)
			}
		}
		twice := mapper.NewSchedule("nightly", nightly, mapper.OverlapSkip)
		for _, all := range [][]mapper.AnySchedule{{nil}, {twice, twice}} {
			if _, err := mapper.NewEngine(w.Client, w.Engine.Queue(),
				&mapper.EngineOptions{Mappers: []mapper.AnyMapper{nightly},
					Schedules: all}); !errors.Is(err, mapper.ErrInvalidArgument) {
				t.Errorf("an engine with the schedules %v: %v", all, err)
			}
		}
		// nobody would start what waits
		for _, overlap := range []mapper.Overlap{mapper.OverlapQueue, mapper.OverlapReplace} {
			s := mapper.NewSchedule("elsewhere", nightly, overlap)
			if _, err := s.Tick(t.Context(), w.Engine, midnight, mapper.Query{Kind: "Leaf"}, "", nil); !errors.Is(err,
				mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), "EngineOptions.Schedules") {
				t.Errorf("%s: a tick of a schedule that the engine lacks: %v", overlap, err)
			}
		}
		s := mapper.NewSchedule("nightly", nightly, mapper.OverlapSkip)
		if _, err := s.Tick(t.Context(), w.Engine, time.Time{}, mapper.Query{Kind: "Leaf"}, "", nil); !errors.Is(err,
			mapper.ErrInvalidArgument) {
			t.Errorf("a tick without a time: %v", err)
		}
		for _, at := range []time.Time{midnight.AddDate(0, 0, 3), time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC),
			time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC)} {
			if _, err := s.Tick(t.Context(), w.Engine, at, mapper.Query{Kind: "Leaf"}, "", nil); !errors.Is(err,
				mapper.ErrInvalidArgument) {
				t.Errorf("a tick at %v: %v", at, err)
			}
		}
		if _, err := s.Tick(t.Context(), w.Engine, midnight, mapper.Query{Kind: "Leaf"}, "",
			&mapper.StartOptions{ID: "mine"}); !errors.Is(err, mapper.ErrInvalidArgument) {
			t.Errorf("a tick with an ID: %v", err)
		}
	})
}

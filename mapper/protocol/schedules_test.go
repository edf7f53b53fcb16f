package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// nightly is a mapper that takes a while for each entity, and records in the entity which runs have
// processed it.
var nightly = mapper.Update("nightly", func(_ context.Context, e *mapper.Entity[leaf], night string) error {
	time.Sleep(10 * time.Millisecond)
	e.Value.N++
	e.Count("nights", 1)
	return nil
})

// midnight is the time of the first tick in the tests.
var midnight = time.Date(2000, 1, 2, 0, 0, 0, 0, time.UTC)

// ticker calls Tick of a schedule, and repeats the call after an error, as Cloud Scheduler does. It
// returns the outcome.
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

// TestTickOnce calls Tick five times concurrently for one time, with and without faults, and once
// more after the run has ended. There must be one run.
func TestTickOnce(t *testing.T) {
	testflag.Sequential(t)
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
						t.Fatalf("status %+v, %v", status, err)
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

// checkNights checks that each leaf was processed by the given number of runs, each once.
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

// TestOverlap calls ticks while the schedule's last run has not ended, for each setting of overlap,
// with and without faults.
func TestOverlap(t *testing.T) {
	testflag.Sequential(t)
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

// overlapping calls three ticks while the first run is running. It makes some calls concurrently,
// and repeats them.
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
	for range 20 { // Advance starts the runs of waiting ticks, as ReviveJobs does
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
	var last mapper.JobInfo // the run that was started last
	for i, j := range jobs {
		states[j.ID] = j.State
		if i > 0 && last.Created.Before(j.Ended) {
			t.Errorf("%s started at %v, before %s ended at %v", last.ID, last.Created, j.ID, j.Ended)
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
		if _, ok := states[s.JobID(second)]; ok { // this run may start before or after the third tick
			want[s.JobID(second)] = mapper.StateAborted
		}
	}
	for id, state := range states {
		acts, err := w.Engine.Job(id).History(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		end := acts[len(acts)-1]
		replaced := strings.HasPrefix(end.Reason, "replaced by the run of nightly that was due at 2000-01-")
		if end.State != state || replaced != (state == mapper.StateAborted) {
			t.Errorf("the last act on %s is %+v", id, end)
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

// TestQueuedTick checks that an engine starts the run of a waiting tick without a further call,
// when the last run has ended.
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

// TestReplaceIsReady checks that a tick does not abort the last run if the run that would replace
// it can't start.
func TestReplaceIsReady(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for _, overlap := range []mapper.Overlap{mapper.OverlapReplace, mapper.OverlapQueue} {
		s := mapper.NewSchedule("nightly", nightly, overlap)
		mappertest.Run(t, []mapper.AnyMapper{nightly}, nil, func(t *testing.T, w *mappertest.Env) {
			bridge.Tick(w.Engine, "nightly")
			putLeaves(t, w.Client)
			run := ticker(t, w, s, midnight).Job
			for _, kind := range []string{"Leave", ""} { // a kind without entities, and an invalid kind
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

// TestWaitingGoesFirst checks that a waiting tick starts its run before a later tick does, even if
// nobody has called Advance in between.
func TestWaitingGoesFirst(t *testing.T) {
	testflag.Sequential(t)
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
			t.Errorf("the third tick is %s after %s, want that it waits for the second one's run", got.Outcome,
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

// TestWaitingRefused checks that a waiting tick is dropped if its run can't start, and that later
// ticks start their runs.
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

// TestTickOfAFunction calls Tick in the function of a job. The run may overlap with other jobs,
// even if the tick has to wait and another process starts its run.
func TestTickOfAFunction(t *testing.T) {
	t.Parallel()
	s := mapper.NewSchedule("nightly", nightly, mapper.OverlapQueue)
	calls := mapper.Visit("calls", func(ctx context.Context, _ *mapper.Entity[leaf], _ mapper.NoParams) error {
		for n, want := range []mapper.TickOutcome{mapper.TickStarted, mapper.TickQueued} {
			at := midnight.Add(time.Duration(n) * time.Hour)
			got, err := s.Tick(ctx, mapper.EngineFromContext(ctx), at, mapper.Query{Kind: "Leaf"}, "night", nil)
			if err == nil && got.Outcome != want {
				err = fmt.Errorf("tick %d is %s", n, got.Outcome)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	mappertest.Run(t, []mapper.AnyMapper{nightly, calls}, &mappertest.Options{Schedules: []mapper.AnySchedule{s}},
		func(t *testing.T, w *mappertest.Env) {
			putLeaves(t, w.Client)
			if _, err := w.Client.Put(t.Context(), datastore.IDKey("One", 1, nil), &leaf{}); err != nil {
				t.Fatal(err)
			}
			job, err := calls.Start(t.Context(), w.Engine, mapper.Query{Kind: "One"}, mapper.NoParams{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if status, err := job.Wait(t.Context()); err != nil || status.State != mapper.StateSucceeded {
				t.Fatalf("%+v, %v", status, err)
			}
			time.Sleep(time.Hour)
			status, err := w.Engine.Job(s.JobID(midnight.Add(time.Hour))).Status(t.Context())
			if err != nil || !status.Settings.AllowOverlap {
				t.Errorf("%+v, %v", status, err)
			}
		})
}

// TestWaitingElsewhere checks that an engine does not touch a waiting tick that it can't start.
// Such a tick can't be decoded, has a condition that the engine does not know, or is for another
// engine's queue.
func TestWaitingElsewhere(t *testing.T) {
	t.Parallel()
	s := mapper.NewSchedule("nightly", nightly, mapper.OverlapQueue)
	for what, tick := range map[string]string{
		"of another build": `{`,
		"of a newer build, with a condition": `{"at":"2000-01-02T00:00:00Z","query":{"kind":"Leaf","newest":true},` +
			`"params":"night","options":{}}`,
		"of a newer build, with a setting": `{"at":"2000-01-02T00:00:00Z","query":{"kind":"Leaf"},"params":"night",` +
			`"options":{"gently":true}}`,
		"of another queue": `{"at":"2000-01-02T00:00:00Z","query":{"kind":"Leaf"},"params":"night",` +
			`"options":{"queue":"elsewhere"}}`,
	} {
		mappertest.Run(t, []mapper.AnyMapper{nightly}, nil, func(t *testing.T, w *mappertest.Env) {
			putLeaves(t, w.Client)
			waits := &record.Schedule{Tick: midnight, Outcome: record.TickQueued, Queued: []byte(tick), Waits: midnight}
			if _, err := w.Client.Put(t.Context(), record.ScheduleKey("nightly"), waits); err != nil {
				t.Fatal(err)
			}
			bridge.Tick(w.Engine, "nightly")
			err := s.Advance(t.Context(), w.Engine)
			if err == nil || !strings.Contains(what, "queue") &&
				!strings.Contains(err.Error(), `or delete the entity ScattermapSchedule "nightly"`) {
				t.Errorf("a tick %s: %v, want an error that says what to do", what, err)
			}
			now := new(record.Schedule)
			if err := w.Client.Get(t.Context(), record.ScheduleKey("nightly"), now); err != nil || !now.Has(midnight) {
				t.Errorf("a tick %s: %+v, %v", what, now, err)
			}
			// an operator gives the tick up, as the error says
			if err := w.Client.Delete(t.Context(), record.ScheduleKey("nightly")); err != nil {
				t.Fatal(err)
			}
			next, err := s.Tick(t.Context(), w.Engine, midnight.Add(24*time.Hour), mapper.Query{Kind: "Leaf"},
				"night", nil)
			if err != nil || next.Job == nil {
				t.Fatalf("after the tick %s was given up: %+v, %v", what, next, err)
			}
			if status, err := next.Job.Wait(t.Context()); err != nil || status.State != mapper.StateSucceeded {
				t.Errorf("after the tick %s was given up: %+v, %v", what, status, err)
			}
		})
	}
}

// TestOneRunGoesOn checks that a failed run can't be resumed while the next run has not ended.
// While the resumed run is running, no tick may start another one.
func TestOneRunGoesOn(t *testing.T) {
	t.Parallel()
	// if true, the run may overlap with other jobs, so that only the schedule itself prevents this
	for _, beside := range []bool{false, true} {
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
				t.Fatalf("status %+v, %v", status, err)
			}
			broken = false
			second := tick(midnight.Add(time.Hour)).Job
			if err := first.Retry(t.Context(), nil); !errors.Is(err, mapper.ErrWrongState) ||
				!strings.Contains(err.Error(), second.ID) {
				t.Errorf("beside %v: a retry beside the next run: %v, want ErrState that names it", beside, err)
			}
			if _, err := second.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := first.Retry(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			if got := tick(midnight.Add(2 * time.Hour)); got.Outcome != mapper.TickSkipped || got.Job.ID != first.ID {
				t.Errorf("beside %v: a tick beside the retry is %s, of %s", beside, got.Outcome, got.Job.ID)
			}
			if status, err := first.Wait(t.Context()); err != nil || status.State != mapper.StateSucceeded {
				t.Errorf("status %+v, %v", status, err)
			}
		})
	}
}

// TestScheduleRefused checks that impossible definitions of schedules are refused, with an error
// that names the cause. A name of 70 letters is allowed.
func TestScheduleRefused(t *testing.T) {
	t.Parallel()
	mappertest.Run(t, []mapper.AnyMapper{nightly}, nil, func(t *testing.T, w *mappertest.Env) {
		other := mapper.Update("other", func(context.Context, *mapper.Entity[leaf], string) error { return nil })
		for want, s := range map[string]*mapper.Schedule[string]{
			`"a b"`:             mapper.NewSchedule("a b", nightly, mapper.OverlapSkip),
			`"wait"`:            mapper.NewSchedule("nightly", nightly, "wait"),
			`overlap is ""`:     mapper.NewSchedule("nightly", nightly, ""),
			"the mapper is nil": mapper.NewSchedule[string]("nightly", nil, mapper.OverlapSkip),
			"was not made by":   mapper.NewSchedule("nightly", new(mapper.Mapper[string]), mapper.OverlapSkip),
			"1 to 70 letters":   mapper.NewSchedule(strings.Repeat("s", 71), nightly, mapper.OverlapSkip),
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
		if _, err := mapper.NewEngine(w.Client, w.Engine.Queue(), &mapper.EngineOptions{
			Mappers:   []mapper.AnyMapper{nightly},
			Schedules: []mapper.AnySchedule{mapper.NewSchedule(strings.Repeat("s", 70), nightly, mapper.OverlapSkip)},
		}); err != nil {
			t.Errorf("a schedule with the longest name: %v", err)
		}
	})
}

// TestTickRefused checks which ticks are refused: without an engine, with an impossible time, with
// parameters that can't be encoded as JSON, and with an ID. If ticks of a schedule may wait, its
// ticks are also refused if the engine does not advance the schedule.
func TestTickRefused(t *testing.T) {
	t.Parallel()
	floats := mapper.Update("floats", func(context.Context, *mapper.Entity[leaf], float64) error { return nil })
	mappertest.Run(t, []mapper.AnyMapper{nightly, floats}, nil, func(t *testing.T, w *mappertest.Env) {
		// Without an engine that advances the schedule, nobody would start the runs of waiting
		// ticks.
		for _, overlap := range []mapper.Overlap{mapper.OverlapQueue, mapper.OverlapReplace} {
			s := mapper.NewSchedule("elsewhere", nightly, overlap)
			if _, err := s.Tick(t.Context(), w.Engine, midnight, mapper.Query{Kind: "Leaf"}, "", nil); !errors.Is(err,
				mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), "EngineOptions.Schedules") {
				t.Errorf("%s: a tick of a schedule that the engine lacks: %v", overlap, err)
			}
		}
		s := mapper.NewSchedule("nightly", nightly, mapper.OverlapSkip)
		for at, want := range map[time.Time]string{
			{}:                        "has no time",
			midnight.AddDate(0, 0, 3): "more than 48h0m0s from now",
			time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC): "more than 48h0m0s from now",
			time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC):    "has no time",
		} {
			if _, err := s.Tick(t.Context(), w.Engine, at, mapper.Query{Kind: "Leaf"}, "", nil); !errors.Is(err,
				mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), want) {
				t.Errorf("a tick at %v: %v, want %q", at, err, want)
			}
		}
		for _, e := range []*mapper.Engine{nil, {}} {
			_, tick := s.Tick(t.Context(), e, midnight, mapper.Query{Kind: "Leaf"}, "", nil)
			if advance := s.Advance(t.Context(), e); !errors.Is(tick, mapper.ErrInvalidArgument) ||
				!errors.Is(advance, mapper.ErrInvalidArgument) {
				t.Errorf("without an engine: %v, %v", tick, advance)
			}
		}
		if _, err := mapper.NewSchedule("floats", floats, mapper.OverlapSkip).Tick(t.Context(), w.Engine, midnight,
			mapper.Query{Kind: "Leaf"}, math.NaN(), nil); !errors.Is(err, mapper.ErrInvalidArgument) {
			t.Errorf("a tick with parameters that have no JSON: %v", err)
		}
		if _, err := s.Tick(t.Context(), w.Engine, midnight, mapper.Query{Kind: "Leaf"}, "",
			&mapper.StartOptions{ID: "mine"}); !errors.Is(err, mapper.ErrInvalidArgument) ||
			!strings.Contains(err.Error(), `StartOptions.ID is "mine"`) {
			t.Errorf("a tick with an ID: %v", err)
		}
	})
}

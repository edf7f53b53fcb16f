package protocol_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// nightly takes a while for each entity, and notes in the entity the runs that have touched it.
var nightly = mapper.Update("nightly", func(_ context.Context, e *mapper.Entity[leaf], night string) error {
	time.Sleep(10 * time.Millisecond)
	e.Value.N++
	e.Count("nights", 1)
	return nil
})

// midnight is the first tick of tests.
var midnight = time.Date(2000, 1, 2, 0, 0, 0, 0, time.UTC)

// ticker returns a function that calls a tick, and repeats it after an error, as Cloud Scheduler
// does.
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

// TestTickOnce calls a tick five times at once, with and without faults, and once more after its
// run has ended. There is one run.
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

// checkNights checks how often each leaf was touched.
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

// TestOverlap calls ticks while a run is unfinished, with and without faults.
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

// overlapping calls three ticks during the first run: some at once, and repeatedly.
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
	for range 20 { // Advance starts waiting runs, as ReviveJobs does
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
	var last mapper.JobInfo // the last run that has started
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
		if _, ok := states[s.JobID(second)]; ok { // it may come before or after the third tick
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

// TestQueuedTick checks that an engine starts the run of a waiting tick on its own when the run
// before it has ended.
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

// TestReplaceIsReady checks that a run is not aborted if the run that would replace it can't start.
func TestReplaceIsReady(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for _, overlap := range []mapper.Overlap{mapper.OverlapReplace, mapper.OverlapQueue} {
		s := mapper.NewSchedule("nightly", nightly, overlap)
		mappertest.Run(t, []mapper.AnyMapper{nightly}, nil, func(t *testing.T, w *mappertest.Env) {
			bridge.Tick(w.Engine, "nightly")
			putLeaves(t, w.Client)
			run := ticker(t, w, s, midnight).Job
			for _, kind := range []string{"Leave", ""} { // a kind without entities, and an invalid one
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

// TestWaitingGoesFirst checks that a waiting tick starts its run before a later tick, even if
// nothing has advanced the schedule in between.
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

// TestWaitingRefused checks that a waiting tick whose run can't start is dropped, and that later
// ticks start theirs.
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

// TestTickOfAFunction checks that the run of a tick which a function has called may run beside
// other jobs, also if the tick has to wait, and another process starts it.
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

// TestWaitingElsewhere checks that an engine leaves alone a waiting tick that it can't start: one
// that it can't read, or one for a queue that another engine has.
func TestWaitingElsewhere(t *testing.T) {
	t.Parallel()
	s := mapper.NewSchedule("nightly", nightly, mapper.OverlapQueue)
	for what, tick := range map[string]string{
		"of another build": `{`,
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
			if err := s.Advance(t.Context(), w.Engine); err == nil {
				t.Errorf("a tick %s: no error", what)
			}
			now := new(record.Schedule)
			if err := w.Client.Get(t.Context(), record.ScheduleKey("nightly"), now); err != nil || !now.Has(midnight) {
				t.Errorf("a tick %s: %+v, %v", what, now, err)
			}
		})
	}
}

// TestOneRunGoesOn checks that a failed run can't be resumed while the next one is unfinished, and
// that no tick starts one while it runs.
func TestOneRunGoesOn(t *testing.T) {
	t.Parallel()
	for _, beside := range []bool{false, true} { // if true, no slot prevents it
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

// TestScheduleRefused checks that impossible schedules are refused with an error that names the
// cause. A name of 70 letters is possible.
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

// TestTickRefused checks that ticks are refused without an engine, with an impossible time, with
// parameters that have no JSON, and with an ID. Where runs may wait, a tick is refused if the
// engine does not advance the schedule.
func TestTickRefused(t *testing.T) {
	t.Parallel()
	floats := mapper.Update("floats", func(context.Context, *mapper.Entity[leaf], float64) error { return nil })
	mappertest.Run(t, []mapper.AnyMapper{nightly, floats}, nil, func(t *testing.T, w *mappertest.Env) {
		// Without an engine that advances schedules, nothing would start waiting runs.
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
			&mapper.StartOptions{ID: "mine"}); !errors.Is(err, mapper.ErrInvalidArgument) {
			t.Errorf("a tick with an ID: %v", err)
		}
	})
}

// advancing gives a world an engine that advances schedules on its own.
func (w *world) advancing(log io.Writer, mappers []mapper.AnyMapper, schedules ...mapper.AnySchedule) {
	w.Helper()
	var err error
	w.engine, err = mapper.NewEngine(w.client, w.queue, &mapper.EngineOptions{Mappers: mappers, Schedules: schedules,
		Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		w.Fatal(err)
	}
	w.handler = w.engine.Handler()
}

// minute returns the time of the tick n.
func minute(n int) time.Time { return midnight.Add(time.Duration(n) * time.Minute) }

// tickOver calls a tick of a schedule of credits over kinds.
func (w *world) tickOver(s *mapper.Schedule[credit], at time.Time, kinds ...string) *mapper.TickResult {
	w.Helper()
	got, err := s.Tick(w.Context(), w.engine, at, mapper.Query{Kinds: kinds}, credit{1},
		&mapper.StartOptions{PageSize: 10})
	if err != nil {
		w.Fatal(err)
	}
	return got
}

// byHand starts a job of steadyCredit over kinds.
func (w *world) byHand(id string, kinds ...string) (*mapper.Job, error) {
	return steadyCredit.Start(w.Context(), w.engine, mapper.Query{Kinds: kinds}, credit{1},
		&mapper.StartOptions{ID: id, PageSize: 10})
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// wantTick checks the outcome of a tick, and the job that it names.
func (w *world) wantTick(got *mapper.TickResult, outcome mapper.TickOutcome, job string) {
	w.Helper()
	if got.Outcome != outcome || got.Job.ID != job {
		w.Errorf("the tick is %s, of job %s, want %s of job %s", got.Outcome, got.Job.ID, outcome, job)
	}
}

// putOthers puts entities of another kind.
func (w *world) putOthers(n int) (keys []*datastore.Key) {
	w.Helper()
	for i := range n {
		keys = append(keys, datastore.NameKey("Other", fmt.Sprintf("o-%04d", i), nil))
	}
	_, err := w.client.PutMulti(w.Context(), keys, make([]account, n))
	w.must(err)
	return keys
}

// TestTickBesideAJob calls a tick while a manually started job of its mapper runs over its kind.
// The tick is skipped, or waits for that job's end; it never aborts the job. Repeated calls get the
// same answer.
func TestTickBesideAJob(t *testing.T) {
	t.Parallel()
	for _, overlap := range []mapper.Overlap{mapper.OverlapSkip, mapper.OverlapQueue, mapper.OverlapReplace} {
		t.Run(string(overlap), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, s := newWorld(t, setting{}), mapper.NewSchedule("nightly", steadyCredit, overlap)
				w.advancing(t.Output(), []mapper.AnyMapper{steadyCredit}, s)
				w.putAccounts(names(100))
				hand, err := w.byHand("by-hand", "Account")
				w.must(err)
				outcome := mapper.TickQueued
				if overlap == mapper.OverlapSkip {
					outcome = mapper.TickSkipped
				}
				for range 2 {
					w.wantTick(w.tickOver(s, minute(1), "Account"), outcome, "by-hand")
				}
				w.wait(hand) // until it has succeeded
				time.Sleep(10 * time.Minute)
				if overlap == mapper.OverlapSkip {
					w.wantTick(w.tickOver(s, minute(1), "Account"), mapper.TickSkipped, "by-hand")
					w.wantBalances(names(100), 1)
					return
				}
				w.wantTick(w.tickOver(s, minute(1), "Account"), mapper.TickStarted, s.JobID(minute(1)))
				w.wantBalances(names(100), 2)
			})
		})
	}
}

// TestJobBesideARun starts, resumes and retries jobs by hand while a run of a schedule processes
// one of their kinds.
func TestJobBesideARun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := newWorld(t, setting{}, steadyCredit), t.Context()
		bridge.Tick(w.engine, "nightly", "hourly")
		w.putAccounts(names(100))
		w.putOthers(10)
		s, other := mapper.NewSchedule("nightly", steadyCredit, mapper.OverlapSkip),
			mapper.NewSchedule("hourly", steadyCredit, mapper.OverlapQueue)
		early, err := w.byHand("early", "Account")
		w.must(err)
		w.must(early.Pause(ctx))
		run := w.tickOver(s, minute(1), "Account").Job // a paused job blocks no other
		w.wantTick(&mapper.TickResult{Outcome: mapper.TickStarted, Job: run}, mapper.TickStarted, s.JobID(minute(1)))
		refused := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, mapper.ErrWrongState) || !strings.Contains(fmt.Sprint(err), run.ID) {
				t.Errorf("%s: %v, want that %s runs", what, err, run.ID)
			}
		}
		_, err = w.byHand("late", "Account")
		refused("a start", err)
		_, err = w.byHand("late", "Account", "Other")
		refused("a start over two kinds", err)
		refused("a resume", early.Resume(ctx))
		w.wantTick(w.tickOver(other, minute(2), "Other", "Account"), mapper.TickQueued, run.ID)
		_, err = w.byHand("free", "Other")
		w.must(err)
		w.must(run.Pause(ctx))
		w.must(early.Resume(ctx)) // nor does a paused run
		if err := run.Resume(ctx); !errors.Is(err, mapper.ErrWrongState) || !strings.Contains(err.Error(), "early") {
			t.Errorf("a resume of the run: %v, want that early runs", err)
		}
		w.wantTick(w.tickOver(s, minute(3), "Account"), mapper.TickSkipped, run.ID)
		w.wait(early)
		w.must(run.Resume(ctx))
		w.wait(run)
		w.must(other.Advance(ctx, w.engine))
		w.wait(w.engine.Job(other.JobID(minute(2))))
		w.wantBalances(names(100), 3)
	})
}

// TestTwoSchedulesAtOnce calls ticks of two schedules at once, over kinds that they partly share.
// Their runs follow each other, and none is lost.
func TestTwoSchedulesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{})
		a, b := mapper.NewSchedule("a", steadyCredit, mapper.OverlapQueue),
			mapper.NewSchedule("b", steadyCredit, mapper.OverlapReplace)
		w.advancing(t.Output(), []mapper.AnyMapper{steadyCredit}, a, b)
		w.putAccounts(names(100))
		others := w.putOthers(10)
		var group sync.WaitGroup
		got := make([]*mapper.TickResult, 4)
		for i, s := range []*mapper.Schedule[credit]{a, a, b, b} {
			kinds := []string{"Account", "Other"}[:1+i%2*i/3] // b has both or one of them, which decides who is first
			group.Go(func() {
				for got[i] == nil { // repeated, as schedulers do
					got[i], _ = s.Tick(t.Context(), w.engine, minute(1), mapper.Query{Kinds: kinds}, credit{1},
						&mapper.StartOptions{PageSize: 10})
					time.Sleep(time.Second)
				}
			})
		}
		group.Wait()
		if a, b := got[0].Outcome, got[2].Outcome; (a == mapper.TickStarted) == (b == mapper.TickStarted) {
			t.Errorf("the ticks are %s and %s, want one that waits for the other", a, b)
		}
		time.Sleep(time.Hour)
		for _, s := range []*mapper.Schedule[credit]{a, b} {
			w.wait(w.engine.Job(s.JobID(minute(1))))
		}
		w.wantBalances(names(100), 2)
		apart(w, a.JobID(minute(1)), b.JobID(minute(1)))
		if n := w.account(others[0]).Balance; n > 1 {
			t.Errorf("the other kind was credited %d", n)
		}
	})
}

// apart checks that jobs did not run at the same time.
func apart(w *world, ids ...string) {
	w.Helper()
	jobs, _, err := w.engine.JobsPage(w.Context(), nil, "")
	w.must(err)
	jobs = slices.DeleteFunc(jobs, func(j mapper.JobInfo) bool { return !slices.Contains(ids, j.ID) })
	for i := 1; i < len(jobs); i++ { // in order of time; the list has the last one first
		if before, after := jobs[i], jobs[i-1]; after.Created.Before(before.Ended) {
			w.Errorf("%s started at %v, before %s ended at %v", after.ID, after.Created, before.ID, before.Ended)
		}
	}
}

// TestPausedJobLetsATickStart pauses the job that a tick waits for. The tick then starts its run,
// without a call of ReviveJobs.
func TestPausedJobLetsATickStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, s := newWorld(t, setting{}), mapper.NewSchedule("nightly", steadyCredit, mapper.OverlapQueue)
		w.advancing(t.Output(), []mapper.AnyMapper{steadyCredit}, s)
		w.putAccounts(names(100))
		hand, err := w.byHand("by-hand", "Account")
		w.must(err)
		w.wantTick(w.tickOver(s, minute(1), "Account"), mapper.TickQueued, "by-hand")
		w.must(hand.Pause(t.Context()))
		w.wait(w.engine.Job(s.JobID(minute(1))))
		w.must(hand.Resume(t.Context()))
		w.wait(hand)
		w.wantBalances(names(100), 2)
	})
}

// TestOverlapChanges deploys another overlap for a schedule while one of its ticks waits. The tick
// still starts its run.
func TestOverlapChanges(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for _, now := range []mapper.Overlap{mapper.OverlapSkip, mapper.OverlapQueue, mapper.OverlapReplace} {
		t.Run(string(now), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, ctx := newWorld(t, setting{}, steadyCredit), t.Context()
				bridge.Tick(w.engine, "nightly")
				bridge.Tick(w.engine, "nightly", "hourly")
				w.putAccounts(names(100))
				hand, err := w.byHand("by-hand", "Account")
				w.must(err)
				w.wantTick(w.tickOver(mapper.NewSchedule("nightly", steadyCredit, mapper.OverlapQueue), minute(1),
					"Account"), mapper.TickQueued, "by-hand")
				s := mapper.NewSchedule("nightly", steadyCredit, now)
				w.must(s.Advance(ctx, w.engine))
				w.wantTick(w.tickOver(s, minute(1), "Account"), mapper.TickQueued, "by-hand")
				if now == mapper.OverlapSkip {
					w.wantTick(w.tickOver(s, minute(2), "Account"), mapper.TickSkipped, "by-hand")
				}
				w.wait(hand)
				w.must(s.Advance(ctx, w.engine))
				w.wait(w.engine.Job(s.JobID(minute(1))))
				w.wantTick(w.tickOver(s, minute(1), "Account"), mapper.TickStarted, s.JobID(minute(1)))
				if now == mapper.OverlapSkip {
					w.wantTick(w.tickOver(s, minute(2), "Account"), mapper.TickSkipped, "by-hand")
				}
				w.wantBalances(names(100), 2)
			})
		})
	}
}

// TestReplaceAbortsItsOwn calls a tick that replaces runs, while the last run is paused and a
// manually started job runs. The run is not aborted before the tick can start.
func TestReplaceAbortsItsOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx, s := newWorld(t, setting{}), t.Context(),
			mapper.NewSchedule("nightly", steadyCredit, mapper.OverlapReplace)
		w.advancing(t.Output(), []mapper.AnyMapper{steadyCredit}, s)
		w.putAccounts(names(100))
		run := w.tickOver(s, minute(1), "Account").Job
		w.must(run.Pause(ctx))
		hand, err := w.byHand("by-hand", "Account")
		w.must(err)
		w.wantTick(w.tickOver(s, minute(2), "Account"), mapper.TickQueued, "by-hand")
		w.wantTick(w.tickOver(s, minute(3), "Account"), mapper.TickQueued, "by-hand")
		if status := w.status(run); status.State != mapper.StatePaused {
			t.Errorf("the run is %s before the tick can start", status.State)
		}
		w.wait(hand)
		time.Sleep(time.Minute)
		if status := w.status(run); status.State != mapper.StateAborted {
			t.Errorf("the run is %s", status.State)
		}
		w.wait(w.engine.Job(s.JobID(minute(3))))
		for i, want := range []mapper.TickOutcome{1: mapper.TickStarted, 2: mapper.TickSkipped, 3: mapper.TickStarted} {
			if i > 0 && w.tickOver(s, minute(i), "Account").Outcome != want {
				t.Errorf("tick %d is %s, want %s", i, w.tickOver(s, minute(i), "Account").Outcome, want)
			}
		}
	})
}

// TestTakenID lets a tick wait whose job ID is then taken by a manually started job. The tick is
// refused, and the schedule continues.
func TestTakenID(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logged
		w, s := newWorld(t, setting{}), mapper.NewSchedule("nightly", steadyCredit, mapper.OverlapQueue)
		w.advancing(&log, []mapper.AnyMapper{steadyCredit}, s)
		w.putAccounts(names(100))
		hand, err := w.byHand(s.JobID(minute(1)), "Account")
		w.must(err)
		w.wantTick(w.tickOver(s, minute(1), "Account"), mapper.TickQueued, hand.ID)
		w.wait(hand)
		time.Sleep(time.Minute)
		w.must(w.engine.ReviveJobs(t.Context()))
		if got := w.tickOver(s, minute(1), "Account"); got.Outcome != mapper.TickRefused {
			t.Errorf("the tick is %s, want that it is refused", got.Outcome)
		}
		if log.count("a tick that has waited can't start a run") != 1 {
			t.Errorf("the log does not say so once:\n%s", log.String())
		}
		w.wantTick(w.tickOver(s, minute(2), "Account"), mapper.TickStarted, s.JobID(minute(2)))
	})
}

// TestTickStalls stops the process of a tick at each of its calls. Meanwhile a job of its mapper
// ends, starts or is paused, or another process decides the tick. No two jobs run at once. Only the
// run that the tick replaces is aborted. A tick waits only for a job that runs.
func TestTickStalls(t *testing.T) {
	t.Parallel()
	for _, overlap := range []mapper.Overlap{mapper.OverlapSkip, mapper.OverlapQueue, mapper.OverlapReplace} {
		for what, test := range map[string]struct {
			before    string // the job that runs before: "run", "hand" or nothing
			meanwhile func(w *world, s *mapper.Schedule[credit])
		}{
			"the run ends": {"run", func(w *world, s *mapper.Schedule[credit]) {
				w.must(w.engine.Job(s.JobID(minute(1))).Abort(w.Context()))
			}},
			"a job ends": {"hand", func(w *world, _ *mapper.Schedule[credit]) {
				w.must(w.engine.Job("by-hand").Abort(w.Context()))
			}},
			"a job begins": {"", func(w *world, _ *mapper.Schedule[credit]) { _, _ = w.byHand("by-hand", "Account") }},
			"another job takes over": {"run", func(w *world, s *mapper.Schedule[credit]) {
				_ = w.engine.Job(s.JobID(minute(1))).Pause(w.Context()) // fails if it was replaced already
				_, _ = w.byHand("by-hand", "Account")
			}},
		} {
			t.Run(fmt.Sprint(overlap, "/", what), func(t *testing.T) {
				t.Parallel()
				step := testflag.Size(t, 4, 4, 1)
				for after, reached := rand.IntN(step), true; reached && !t.Failed(); after += step {
					m := &mishap{after: after}
					synctest.Test(t, func(t *testing.T) {
						w, s := newWorld(t, setting{}, steadyCredit),
							mapper.NewSchedule("nightly", steadyCredit, overlap)
						bridge.Tick(w.engine, s.Name())
						staller := newFleetOf(w, queueName, target, 1, 1, steadyCredit)
						w.putAccounts(names(20))
						switch test.before {
						case "run":
							w.tickOver(s, minute(1), "Account")
						case "hand":
							_, err := w.byHand("by-hand", "Account")
							w.must(err)
						}
						m.happen = func(*process) { test.meanwhile(w, s) }
						q := mapper.Query{Kind: "Account"}
						e := staller.pick().engine
						bridge.Tick(e, s.Name())
						got, err := s.Tick(m.with(t.Context()), e, minute(2), q, credit{1},
							&mapper.StartOptions{PageSize: 10})
						if err != nil {
							t.Fatalf("at call %d: %v", after, err)
						}
						running := 0
						for _, id := range []string{s.JobID(minute(1)), s.JobID(minute(2)), "by-hand"} {
							if status, err := w.engine.Job(id).Status(t.Context()); err == nil &&
								status.State == mapper.StateRunning {
								running++
							}
						}
						if running > 1 || got.Outcome != mapper.TickStarted && running == 0 && m.since > 0 {
							t.Errorf("at call %d: the tick is %s, of %s; %d jobs run", after, got.Outcome, got.Job.ID,
								running)
						}
						if hand, err := w.engine.Job("by-hand").Status(t.Context()); err == nil &&
							what != "a job ends" && hand.State == mapper.StateAborted {
							t.Errorf("at call %d: a job that is no run of the schedule was aborted", after)
						}
					})
					reached = m.happened
				}
			})
		}
	}
}

// TestLateReplacement stops a process that is about to abort a run for a tick. Meanwhile another
// process decides that tick, and an operator retries the run. The run is not aborted.
func TestLateReplacement(t *testing.T) {
	t.Parallel()
	step := testflag.Size(t, 3, 3, 1)
	for after := int(testflag.Seed(t) % uint64(step)); ; after += step {
		m, aborted := &mishap{after: after}, false
		synctest.Test(t, func(t *testing.T) {
			w, ctx, s := newWorld(t, setting{}, steadyCredit), t.Context(),
				mapper.NewSchedule("nightly", steadyCredit, mapper.OverlapReplace)
			bridge.Tick(w.engine, s.Name())
			late := newFleetOf(w, queueName, target, 1, 1, steadyCredit)
			w.putAccounts(names(20))
			first := w.tickOver(s, minute(1), "Account").Job
			// Meanwhile the first run ends, and another process starts the tick's run, which ends,
			// too.
			m.happen = func(*process) {
				if aborted = w.status(first).State == mapper.StateAborted; aborted {
					return
				}
				w.wait(first)
				w.wait(w.tickOver(s, minute(2), "Account").Job)
				w.must(first.Retry(ctx, nil)) // without failures to retry it runs for a moment
			}
			e := late.pick().engine
			bridge.Tick(e, s.Name())
			_, err := s.Tick(m.with(ctx), e, minute(2), mapper.Query{Kind: "Account"}, credit{1},
				&mapper.StartOptions{PageSize: 10})
			if err != nil {
				t.Fatalf("at call %d: %v", after, err)
			}
			if !m.happened || aborted {
				return
			}
			if status, err := first.Wait(ctx); err != nil || status.State != mapper.StateSucceeded {
				t.Errorf("at call %d: the run is %+v, %v", after, status, err)
			}
		})
		if !m.happened || t.Failed() {
			return
		}
	}
}

// TestSlotOfAnIDsSecondJob gives a job the ID of one that was cleaned up, and the slot that
// belonged to it. While the job runs, no other may start.
func TestSlotOfAnIDsSecondJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, steadyCredit)
		w.putAccounts(names(100))
		for range 2 {
			job, err := w.byHand("nightly", "Account")
			w.must(err)
			if _, err := w.byHand("other", "Account"); !errors.Is(err, mapper.ErrWrongState) ||
				!strings.Contains(err.Error(), "job nightly") {
				t.Errorf("a start beside it: %v", err)
			}
			w.wait(job)
			w.must(job.CleanUp(t.Context(), &mapper.CleanUpOptions{IncludeJob: true}))
			time.Sleep(time.Hour)
		}
	})
}

// TestSlotsOfAllKinds checks that a job over two kinds blocks others from both. A start that finds
// one of two kinds busy takes neither.
func TestSlotsOfAllKinds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, steadyCredit)
		w.putAccounts(names(100))
		w.putOthers(100)
		both, err := w.byHand("both", "Account", "Other")
		w.must(err)
		for _, kind := range []string{"Account", "Other"} {
			if _, err := w.byHand("one", kind); !errors.Is(err, mapper.ErrWrongState) ||
				!strings.Contains(err.Error(), fmt.Sprintf("kind %q", kind)) {
				t.Errorf("a start over %s: %v", kind, err)
			}
		}
		w.must(both.Abort(context.Background()))
		_, err = w.byHand("other", "Other")
		w.must(err)
		if _, err := w.byHand("again", "Account", "Other"); !errors.Is(err, mapper.ErrWrongState) {
			t.Errorf("a start over both: %v", err)
		}
		_, err = w.byHand("account", "Account") // the refused start has not taken this slot
		w.must(err)
	})
}

// eachMishap runs a test in which an operator's process dies at one of its calls, or after the
// answer. It repeats the test for every third call, from a random one on. The test returns whether
// it came to that call.
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

// TestTickDies kills the process that calls Tick, while the last run goes on. It dies after each of
// its calls, from the decision on the tick to the first task of its run. Another process then calls
// Tick, as a scheduler does. No run is lost or starts twice, and no two runs overlap.
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
				_, _ = tick(m.with(ctx), operators.pick().engine, second) // it may get an error or an answer
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
				for i := 1; i < len(jobs); i++ { // in order of time; the list has the last one first
					if before, after := jobs[i], jobs[i-1]; after.Created.Before(before.Ended) {
						t.Errorf("%s started at %v, before %s ended at %v", after.ID, after.Created, before.ID,
							before.Ended)
					}
				}
			})
		})
	}
}

// TestUndoDies kills the process that calls Undo at each of its calls. Another process then calls
// Undo. The job is undone once.
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

// TestOldTick checks that a waiting tick is also stored under the old names of its settings, for
// processes of a build that knows only these. It also checks that a tick stored by such a build
// starts its run.
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

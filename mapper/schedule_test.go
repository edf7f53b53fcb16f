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
func ticker(t *testing.T, w *mappertest.World, s *mapper.Schedule[string], at time.Time) *mapper.Ticked {
	t.Helper()
	for range 100 {
		got, err := s.Tick(t.Context(), w.Engine, at, mapper.Query{Kind: "Leaf"}, "night", nil)
		if err == nil {
			return got
		}
		if errors.Is(err, mapper.ErrArguments) {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
	}
	t.Fatal("a hundred ticks have failed")
	return nil
}

// TestTickOnce has a tick come five times at once, with and without faults, and once more when its run has ended: it is one run.
func TestTickOnce(t *testing.T) {
	first := testflag.Seed(t)
	for i := range uint64(6) {
		seed := uint64(0)
		if i > 0 {
			seed = first + i
		}
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			s := mapper.NewSchedule("nightly", nightly, mapper.SkipTick)
			mappertest.Run(t, mapper.Set(nightly), &mappertest.Options{Seed: seed}, func(t *testing.T, w *mappertest.World) {
				putLeaves(t, w.Client)
				w.Trouble()
				var all [5]*mapper.Ticked
				var group sync.WaitGroup
				for i := range all {
					group.Go(func() { all[i] = ticker(t, w, s, midnight) })
				}
				group.Wait()
				for _, got := range all {
					if got == nil || got.Outcome != mapper.TickStarted || got.Job.ID != s.RunID(midnight) {
						t.Fatalf("ticked %+v, want that it has started %s", got, s.RunID(midnight))
					}
				}
				w.Calm()
				status, err := all[0].Job.Wait(t.Context())
				if err != nil || status.State != mapper.Succeeded || status.Counters["nights"] != leaves {
					t.Fatalf("%+v, %v", status, err)
				}
				if got := ticker(t, w, s, midnight); got.Outcome != mapper.TickStarted {
					t.Errorf("the tick comes late, and is %s", got.Outcome)
				}
				if jobs, _, err := w.Engine.Jobs(t.Context(), nil, ""); err != nil || len(jobs) != 1 {
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
	first, n := testflag.Seed(t), uint64(4)
	if testing.Short() {
		n = 2
	}
	for _, overlap := range []mapper.Overlap{mapper.SkipTick, mapper.QueueTick, mapper.ReplaceRun} {
		for i := range n {
			seed := uint64(0)
			if i > 0 {
				seed = first + i
			}
			t.Run(fmt.Sprintf("%s/seed %d", overlap, seed), func(t *testing.T) {
				s := mapper.NewSchedule("nightly", nightly, overlap)
				mappertest.Run(t, mapper.Set(nightly), &mappertest.Options{Seed: seed}, func(t *testing.T, w *mappertest.World) {
					putLeaves(t, w.Client)
					w.Trouble()
					overlapping(t, w, s, overlap)
				})
			})
		}
	}
}

// overlapping ticks three times within the first run: at once, and again.
func overlapping(t *testing.T, w *mappertest.World, s *mapper.Schedule[string], overlap mapper.Overlap) {
	ticker(t, w, s, midnight)
	second, third := midnight.Add(time.Minute), midnight.Add(2*time.Minute)
	var got [4]*mapper.Ticked
	var group sync.WaitGroup
	for i := range got {
		group.Go(func() { got[i] = ticker(t, w, s, []time.Time{second, second, third, third}[i]) })
	}
	group.Wait()
	w.Calm()
	for range 20 { // what waits is advanced by a revival
		time.Sleep(30 * time.Minute)
		if err := s.Advance(t.Context(), w.Engine); err != nil {
			t.Fatal(err)
		}
	}
	jobs, _, err := w.Engine.Jobs(t.Context(), nil, "")
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
	case mapper.SkipTick:
		want = map[string]mapper.State{s.RunID(midnight): mapper.Succeeded}
	case mapper.QueueTick:
		want = map[string]mapper.State{s.RunID(midnight): mapper.Succeeded, s.RunID(third): mapper.Succeeded}
	case mapper.ReplaceRun:
		want = map[string]mapper.State{s.RunID(midnight): mapper.Aborted, s.RunID(third): mapper.Succeeded}
		if _, ok := states[s.RunID(second)]; ok { // it came first
			want[s.RunID(second)] = mapper.Aborted
		}
	}
	if fmt.Sprint(states) != fmt.Sprint(want) {
		t.Errorf("the runs are %v, want %v; the ticks were %v", states, want, outcomes(got[:]))
	}
}

func outcomes(all []*mapper.Ticked) (s []string) {
	for _, t := range all {
		s = append(s, t.Outcome)
	}
	return s
}

// TestQueuedTick has an engine advance a schedule by itself when a run has ended.
func TestQueuedTick(t *testing.T) {
	s := mapper.NewSchedule("nightly", nightly, mapper.QueueTick)
	mappertest.Run(t, mapper.Set(nightly), &mappertest.Options{Schedules: []mapper.ScheduleDefinition{s}}, func(t *testing.T, w *mappertest.World) {
		putLeaves(t, w.Client)
		ticker(t, w, s, midnight)
		if got := ticker(t, w, s, midnight.Add(time.Hour)); got.Outcome != mapper.TickQueued || got.Job.ID != s.RunID(midnight) {
			t.Fatalf("ticked %+v", got)
		}
		time.Sleep(time.Hour)
		checkNights(t, w.Client, 2)
	})
}

// TestScheduleRefused has what can't be carried out be refused, with an error that names it.
func TestScheduleRefused(t *testing.T) {
	mappertest.Run(t, mapper.Set(nightly), nil, func(t *testing.T, w *mappertest.World) {
		for want, s := range map[string]*mapper.Schedule[string]{
			`"a b"`:             mapper.NewSchedule("a b", nightly, mapper.SkipTick),
			`"wait"`:            mapper.NewSchedule("nightly", nightly, "wait"),
			"the mapper is nil": mapper.NewSchedule[string]("nightly", nil, mapper.SkipTick),
		} {
			_, err := s.Tick(t.Context(), w.Engine, midnight, mapper.Query{Kind: "Leaf"}, "", nil)
			if !errors.Is(err, mapper.ErrArguments) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want an error with %s", err, want)
			}
		}
		s := mapper.NewSchedule("nightly", nightly, mapper.SkipTick)
		if _, err := s.Tick(t.Context(), w.Engine, time.Time{}, mapper.Query{Kind: "Leaf"}, "", nil); !errors.Is(err, mapper.ErrArguments) {
			t.Errorf("a tick without a time: %v", err)
		}
		if _, err := s.Tick(t.Context(), w.Engine, midnight, mapper.Query{Kind: "Leaf"}, "", &mapper.StartOptions{ID: "mine"}); !errors.Is(err, mapper.ErrArguments) {
			t.Errorf("a tick with an ID: %v", err)
		}
	})
}

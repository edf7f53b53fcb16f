package mapper_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
)

// TestNextPageReadsAnew has each entity mark the next one, which the page then leaves to the next
// page: that sees the mark, also where it was read ahead.
func TestNextPageReadsAnew(t *testing.T) {
	t.Parallel()
	key := func(i int64) *datastore.Key { return datastore.IDKey("Team", i, nil) }
	for _, size := range []int{1, 3, 100} {
		synctest.Test(t, func(t *testing.T) {
			const n = 12
			mark := mapper.Update("mark", func(ctx context.Context, e *mapper.Entity[team], _ mapper.NoParams) error {
				if e.Value.Points == 0 {
					e.Count("unmarked", 1)
					return nil
				}
				e.Count("marked", 1)
				if e.Key.ID < n {
					e.Put(key(e.Key.ID+1), &team{Points: 1})
				}
				return nil
			})
			w, ctx := newWorld(t, setting{queue: few(1)}, mark), t.Context()
			for i := range int64(n) {
				p := int64(0)
				if i == 0 {
					p = 1
				}
				_, err := w.client.Put(ctx, key(i+1), &team{Points: p})
				w.must(err)
			}
			job, err := mark.Start(ctx, w.engine, mapper.Query{Kind: "Team"}, mapper.NoParams{}, &mapper.StartOptions{
				PageSize: size, ExpectedWorkers: 1, Splitting: mapper.Splitting{First: 1, FanOut: 1},
			})
			w.must(err)
			s := w.wait(job)
			t.Logf("pages of %d: counters %v pages %d", size, s.Counters, s.Pages)
			if s.Counters["marked"] != n {
				t.Errorf("pages of %d: counters %v, want %d marked", size, s.Counters, n)
			}
		})
	}
}

// TestRefusedInsertPasses has an entity insert what the one before it has inserted, until that was
// run again and does not any more: it is no failure.
func TestRefusedInsertPasses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w *world
		calls := map[int64]int{}
		x := datastore.NameKey("Target", "x", nil)
		key := func(i int64) *datastore.Key { return datastore.IDKey("Team", i, nil) }
		m := mapper.Update("insert", func(ctx context.Context, e *mapper.Entity[team], _ mapper.NoParams) error {
			calls[e.Key.ID]++
			if e.Value.Points == 0 {
				e.Insert(x, &team{Points: e.Key.ID})
				e.Value.Name = "moved"
			}
			if e.Key.ID == 1 && calls[1] == 1 {
				_, err := w.client.Put(ctx, e.Key, &team{Points: 5})
				return err
			}
			return nil
		})
		w = newWorld(t, setting{queue: few(1)}, m)
		ctx := t.Context()
		for i := range int64(2) {
			_, err := w.client.Put(ctx, key(i+1), &team{})
			w.must(err)
		}
		job, s := overTeams(w, m)
		wantNoFailure(w, job)
		var got team
		t.Logf("calls %v, processed %d, failures %d, x: %v", calls, s.Processed, s.Failures, w.client.Get(ctx, x, &got))
	})
}

// TestErrorPasses has an entity fail because of what the one before it has put, until that was run
// again and does not any more: it is no failure.
func TestErrorPasses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w *world
		calls := map[int64]int{}
		x := datastore.NameKey("Target", "x", nil)
		key := func(i int64) *datastore.Key { return datastore.IDKey("Team", i, nil) }
		m := mapper.Update("read", func(ctx context.Context, e *mapper.Entity[team], _ mapper.NoParams) error {
			calls[e.Key.ID]++
			switch {
			case e.Key.ID == 2:
				var got team
				if err := e.Get(ctx, x, &got); err != nil {
					return err
				}
				if got.Points < 0 {
					return mapper.Permanent(errors.New("x is bad"))
				}
				e.Value.Name = "good"
			case e.Value.Points == 0:
				e.Put(x, &team{Points: -1})
				if calls[1] == 1 {
					_, err := w.client.Put(ctx, e.Key, &team{Points: 5})
					return err
				}
			}
			return nil
		})
		w = newWorld(t, setting{queue: few(1)}, m)
		ctx := t.Context()
		_, err := w.client.Put(ctx, x, &team{Points: 3})
		w.must(err)
		for i := range int64(2) {
			_, err := w.client.Put(ctx, key(i+1), &team{})
			w.must(err)
		}
		job, s := overTeams(w, m)
		wantNoFailure(w, job)
		var got team
		w.must(w.client.Get(ctx, x, &got))
		t.Logf("calls %v, processed %d, failures %d, x: %v", calls, s.Processed, s.Failures, got)
	})
}

// TestGetOfItself has an entity read itself, while others change it once: it runs twice, and sees
// one state in each.
func TestGetOfItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w *world
		calls := 0
		m := mapper.Update("itself", func(ctx context.Context, e *mapper.Entity[team], _ mapper.NoParams) error {
			calls++
			var got team
			if err := e.Get(ctx, e.Key, &got); err != nil {
				return err
			}
			if calls == 1 {
				if _, err := w.client.Put(ctx, e.Key, &team{Points: 5}); err != nil {
					return err
				}
			}
			if got != e.Value {
				t.Errorf("call %d: has %v, and gets %v", calls, e.Value, got)
			}
			e.Value.Name = fmt.Sprint(got.Points)
			return nil
		})
		w = newWorld(t, setting{queue: few(1)}, m)
		ctx := t.Context()
		_, err := w.client.Put(ctx, datastore.IDKey("Team", 1, nil), &team{Points: 1})
		w.must(err)
		_, s := overTeams(w, m)
		if calls != 2 || s.Tasks != 1 {
			t.Errorf("%d calls, %d tasks, failures %d, conflicts %d", calls, s.Tasks, s.Failures, s.Conflicts)
		}
	})
}

// TestShiftOfKeys moves each entity to the key of the one before, while others change the last one:
// only that runs again.
func TestShiftOfKeys(t *testing.T) {
	t.Parallel()
	for _, writes := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			var w *world
			calls := map[string]int{}
			const n = 20
			key := func(i int64) *datastore.Key { return datastore.IDKey("Team", i, nil) }
			m := mapper.Update("shift", func(ctx context.Context, e *mapper.Entity[team], _ mapper.NoParams) error {
				calls[e.Value.Name]++
				e.Delete(e.Key)
				if e.Key.ID > 1 {
					e.Insert(key(e.Key.ID-1), &e.Value)
				}
				if e.Key.ID == n && calls["t20"] <= writes {
					if _, err := w.client.Put(ctx, e.Key,
						&team{Name: e.Value.Name, Points: e.Value.Points + 1}); err != nil {
						return err
					}
				}
				return nil
			})
			w = newWorld(t, setting{queue: few(1)}, m)
			ctx := t.Context()
			for i := range int64(n) {
				_, err := w.client.Put(ctx, key(i+1), &team{Name: fmt.Sprint("t", i+1)})
				w.must(err)
			}
			job, err := m.Start(ctx, w.engine, mapper.Query{Kind: "Team"}, mapper.NoParams{},
				&mapper.StartOptions{ExpectedWorkers: 1, FailureLimit: -1,
					Splitting: mapper.Splitting{First: 1, FanOut: 1}})
			w.must(err)
			s, err := job.Wait(ctx)
			w.must(err)
			all, sum := 0, 0
			for _, c := range calls {
				all, sum = all+1, sum+c
			}
			left, err := w.client.Count(ctx, datastore.NewQuery("Team"))
			w.must(err)
			t.Logf("%d writes: %d calls, %d tasks, failures %d, conflicts %d, processed %d, left %d", writes, sum,
				s.Tasks, s.Failures, s.Conflicts, s.Processed, left)
			if sum > n+writes || s.Failures > 0 {
				t.Errorf("%d calls, want %d", sum, n+writes)
			}
		})
	}
}

// TestPutAfterInsert has one function insert an entity and then put it: it must not be there all
// the same.
func TestPutAfterInsert(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := datastore.NameKey("Target", "x", nil)
		m := mapper.Update("insert", func(ctx context.Context, e *mapper.Entity[team], _ mapper.NoParams) error {
			e.Insert(x, &team{Points: 1})
			e.Put(x, &team{Points: 2})
			return nil
		})
		w, ctx := newWorld(t, setting{queue: few(1)}, m), t.Context()
		_, err := w.client.Put(ctx, x, &team{Points: 100})
		w.must(err)
		_, err = w.client.Put(ctx, datastore.IDKey("Team", 1, nil), &team{})
		w.must(err)
		_, s := overTeams(w, m)
		var got team
		w.must(w.client.Get(ctx, x, &got))
		if got.Points != 100 || s.Failures != 1 {
			t.Errorf("x has %d, failures %d", got.Points, s.Failures)
		}
	})
}

// overTeams runs a job over the teams by one worker, until it has ended.
func overTeams(w *world, m *mapper.Mapper[mapper.NoParams]) (*mapper.Job, *mapper.Status) {
	w.Helper()
	job, err := m.Start(w.Context(), w.engine, mapper.Query{Kind: "Team"}, mapper.NoParams{},
		&mapper.StartOptions{ExpectedWorkers: 1, FailureLimit: -1})
	w.must(err)
	s, err := job.Wait(w.Context())
	w.must(err)
	return job, s
}

func wantNoFailure(w *world, job *mapper.Job) {
	w.Helper()
	failures, _, err := job.FailuresPage(w.Context(), "")
	w.must(err)
	for _, f := range failures {
		w.Errorf("failure: %s", f.Error)
	}
}

// TestTolerantBesideOthers has others change one entity of a page all the time, whose other
// entities fail for good. A job without a failure limit records these, and goes on.
func TestTolerantBesideOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w *world
		moves := 0
		key := func(i int64) *datastore.Key { return datastore.IDKey("Team", i, nil) }
		m := mapper.Update("bad", func(ctx context.Context, e *mapper.Entity[team], _ mapper.NoParams) error {
			if e.Key.ID > 1 {
				return mapper.Permanent(errors.New("it is bad"))
			}
			if e.Value.Name = "good"; moves < 10 {
				moves++
				_, err := w.client.Put(ctx, e.Key, &team{Points: int64(moves)})
				return err
			}
			return nil
		})
		w = newWorld(t, setting{queue: few(1)}, m)
		for i := range int64(30) {
			_, err := w.client.Put(t.Context(), key(i+1), &team{})
			w.must(err)
		}
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Team"}, mapper.NoParams{},
			&mapper.StartOptions{PageSize: 30, FailureLimit: -1})
		w.must(err)
		s, err := job.Wait(t.Context())
		w.must(err)
		var first team
		if s.State != mapper.StateSucceededWithFailures || s.Failures != 29 || s.Processed != 1 {
			t.Errorf("%d moves; the job is %s: %s; %d failures, %d processed", moves, s.State, s.Error, s.Failures,
				s.Processed)
		}
		if err := w.client.Get(t.Context(), key(1), &first); err != nil || first != (team{Name: "good", Points: 10}) {
			t.Errorf("%+v, %v", first, err)
		}
	})
}

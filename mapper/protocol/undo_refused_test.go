package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestUndoOutlived undoes a job so slowly that the database can no longer read the state before the
// last pages. Those pages must be failures, and the other ones must be restored.
func TestUndoOutlived(t *testing.T) {
	if testing.Short() {
		t.Skip("a page every 20 s, for more than an hour")
	}
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := newWorld(t, setting{queue: few(1)}, setOwner), t.Context()
		job := w.doneJob(1100)
		undo, err := job.Undo(ctx, &mapper.UndoOptions{PageSize: 1, ExpectedWorkers: 1,
			Rate: mapper.Rate{EntitiesPerSecond: 0.05}})
		if err != nil {
			t.Fatal(err)
		}
		s, err := undo.Wait(ctx)
		if err != nil || s.State != mapper.StateSucceededWithFailures || s.Failures < 2 ||
			s.Counters["restored"] < 500 {
			t.Fatalf("status %+v, %v", s, err)
		}
		if set := w.unrestored(); int64(set) != 1100-s.Counters["restored"] || int64(set) > 5*s.Failures {
			t.Errorf("%d accounts are not restored: %+v", set, s)
		}
	})
}

// TestUndoRefused makes calls of Undo that are impossible. Nothing may change, and it must still be
// possible to retry the job.
func TestUndoRefused(t *testing.T) {
	t.Parallel()
	done := func(w *world, m *mapper.Mapper[mapper.NoParams]) *mapper.Job {
		job, err := m.Start(w.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "done"})
		if err != nil {
			w.Fatal(err)
		}
		w.wait(job)
		return job
	}
	for name, test := range map[string]struct {
		setting setting
		mapper  *mapper.Mapper[mapper.NoParams]
		spoil   func(w *world, job *mapper.Job) error
		want    error
		text    string
	}{
		"no versions": {setting{plain: true}, setOwner, nil, mapper.ErrWrongState, "which versions"},
		"visit":       {setting{}, slowVisit, nil, mapper.ErrInvalidArgument, "no Update"},
		"cleaned up": {setting{}, setOwner, func(w *world, job *mapper.Job) error {
			defer time.Sleep(time.Hour / 2)
			return job.CleanUp(w.Context(), nil)
		}, mapper.ErrWrongState, "cleaned up"},
		"gone": {setting{}, setOwner, func(w *world, job *mapper.Job) error {
			defer time.Sleep(time.Hour / 2)
			return job.CleanUp(w.Context(), &mapper.CleanUpOptions{IncludeJob: true})
		}, mapper.ErrNoSuchJob, "done"},
		"old": {setting{}, setOwner, func(*world, *mapper.Job) error {
			time.Sleep(61 * time.Minute)
			return nil
		}, mapper.ErrWrongState, "can't be read as it was at"},
		"mapper gone": {setting{}, setOwner, func(w *world, _ *mapper.Job) (err error) {
			w.engine, err = mapper.NewEngine(w.client, w.queue,
				&mapper.EngineOptions{Mappers: []mapper.AnyMapper{addCredit}})
			return err
		}, mapper.ErrUnknownMapper, "set-owner"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, test.setting, test.mapper)
				w.putAccounts(names(50))
				job := done(w, test.mapper)
				if test.spoil != nil {
					if err := test.spoil(w, job); err != nil {
						t.Fatal(err)
					}
				}
				read := func() string {
					var all []account
					_, err := w.client.GetAll(t.Context(), datastore.NewQuery("Account"), &all)
					return fmt.Sprint(all, err)
				}
				before := read()
				if _, err := w.engine.Job("done").Undo(t.Context(), nil); !errors.Is(err, test.want) ||
					!strings.Contains(err.Error(), test.text) {
					t.Errorf("%v, want %v, and %q", err, test.want, test.text)
				}
				if s, err := job.Status(t.Context()); err == nil && s.UndoneBy != "" {
					t.Errorf("the job is undone by %q", s.UndoneBy)
				}
				if diff := cmp.Diff(before, read()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
	t.Run("paused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w, ctx := newWorld(t, setting{queue: few(1)}, setOwner), t.Context()
			w.putAccounts(names(50))
			job, err := setOwner.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
				&mapper.StartOptions{ID: "done", PageSize: 5, Rate: mapper.Rate{EntitiesPerSecond: 5}})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * time.Second)
			if err := job.Pause(ctx); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if _, err := job.Undo(ctx, nil); !errors.Is(err, mapper.ErrWrongState) ||
				!strings.Contains(err.Error(), "abort it first") {
				t.Errorf("the undo of a job that is paused: %v", err)
			}
			if err := job.Resume(ctx); err != nil {
				t.Fatal(err)
			}
			if s := w.wait(job); s.Processed != 50 || s.UndoneBy != "" {
				t.Errorf("status %+v", s)
			}
		})
	})
	t.Run("by name", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, setting{}, setOwner)
			for _, name := range []string{"undo:set-owner", "rehearsal:undo:set-owner"} {
				if _, err := w.engine.StartByName(t.Context(), name, mapper.Query{Kind: record.RangeKind}, []byte(`{}`),
					nil); !errors.Is(err, mapper.ErrUnknownMapper) || strings.Contains(err.Error(), "have undo") {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	})
}

// setOwner is an Update that sets the owner of each account.
var setOwner = mapper.Update("set-owner", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
	a.Value.Owner = "set"
	return nil
})

// TestUndoUnknown undoes pages whose writes were not recorded. They must be failures, and none of
// their entities may change.
func TestUndoUnknown(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil func(datastore.PropertyList) datastore.PropertyList
		text  string
	}{
		"older build": {func(l datastore.PropertyList) datastore.PropertyList {
			return slices.DeleteFunc(l, func(p datastore.Property) bool { return p.Name == "wrote" })
		}, "an older build has done the page"},
		"changed": {func(l datastore.PropertyList) datastore.PropertyList {
			return append(l, datastore.Property{Name: "mended", Value: true, NoIndex: true})
		}, "record was changed after its commit"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, ctx := newWorld(t, setting{}, setOwner), t.Context()
				w.putAccounts(names(50))
				job, err := setOwner.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
					&mapper.StartOptions{ID: "done", PageSize: 20})
				if err != nil {
					t.Fatal(err)
				}
				w.wait(job)
				after := images(t, w.client, "Account")
				var all []datastore.PropertyList
				keys, err := w.client.GetAll(ctx, datastore.NewQuery(record.RangeKind), &all)
				if err != nil {
					t.Fatal(err)
				}
				for i := range all {
					all[i] = test.spoil(all[i])
				}
				if _, err := w.client.PutMulti(ctx, keys, all); err != nil {
					t.Fatal(err)
				}
				undo, err := job.Undo(ctx, &mapper.UndoOptions{FailureLimit: -1})
				if err != nil {
					t.Fatal(err)
				}
				s, err := undo.Wait(ctx)
				failures, _, err2 := undo.FailuresPage(ctx, "")
				if err != nil || err2 != nil || s.Failures != int64(len(keys)) || len(failures) == 0 ||
					!strings.Contains(failures[0].Error, test.text) {
					t.Errorf("%+v, %v, %v %v", s, err, failures, err2)
				}
				if diff := cmp.Diff(after, images(t, w.client, "Account")); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// TestUndoRecords undoes jobs whose records cause problems: they are cleaned up during the undo, or
// another job has the same ID.
func TestUndoRecords(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := newWorld(t, setting{queue: few(2)}, setOwner), t.Context()
		w.putAccounts(names(1000))
		before := images(t, w.client, "Account")
		start := func(id string) *mapper.Job {
			t.Helper()
			job, err := setOwner.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
				&mapper.StartOptions{ID: id, PageSize: 20})
			if err != nil {
				t.Fatal(err)
			}
			w.wait(job)
			return job
		}
		job := start("nightly")
		if _, err := job.Undo(ctx, &mapper.UndoOptions{ID: "nightly"}); !errors.Is(err, mapper.ErrIDTaken) {
			t.Errorf("an undo under the ID of its job: %v", err)
		}
		if s := w.status(job); s.UndoneBy != "" {
			t.Errorf("it is undone by %q", s.UndoneBy)
		}
		if _, _, err := job.NotUndonePage(ctx, ""); !errors.Is(err, mapper.ErrInvalidArgument) {
			t.Errorf("what a job has left that is no undo: %v", err)
		}
		undo, err := job.Undo(ctx, &mapper.UndoOptions{Rate: mapper.Rate{EntitiesPerSecond: 1}, ExpectedWorkers: 2})
		if err != nil {
			t.Fatal(err)
		}
		if err := job.CleanUp(ctx, nil); !errors.Is(err, mapper.ErrWrongState) ||
			!strings.Contains(err.Error(), "undo-nightly") {
			t.Errorf("a clean-up meanwhile: %v", err)
		}
		time.Sleep(30 * time.Second)
		if s := w.status(undo); s.Counters["restored"] == 0 || s.State != mapper.StateRunning {
			t.Fatalf("status %+v", s)
		}
		if err := undo.Abort(ctx); err != nil {
			t.Fatal(err)
		}
		again, err := job.Undo(ctx, nil)
		if err != nil || again.ID == undo.ID {
			t.Fatalf("once more: %v", err)
		}
		// the first undo has not changed these entities, because they were already as before
		if s := w.wait(again); s.Counters["left"] > 0 {
			t.Errorf("%v", s.Counters)
		}
		if diff := cmp.Diff(before, images(t, w.client, "Account")); diff != "" {
			t.Errorf("%.1000s", diff)
		}
		if err := job.CleanUp(ctx, &mapper.CleanUpOptions{IncludeJob: true}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)

		// Start the next job with this ID.
		job = start("nightly")
		last, err := job.Undo(ctx, nil)
		if err != nil || last.ID == undo.ID || last.ID == again.ID {
			t.Fatalf("the next one: %v", err)
		}
		if s := w.wait(last); s.Counters["restored"] != 1000 {
			t.Errorf("counters %+v", s.Counters)
		}
		if same, err := job.Undo(ctx, nil); err != nil || same.ID != last.ID {
			t.Errorf("the same: %v", err)
		}
	})
}

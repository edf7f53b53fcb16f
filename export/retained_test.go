package export_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/internal/testbucket"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// TestStagesAreRetained checks that the jobs of all stages get the export's queue, and that their
// records are deleted after the export's retention, whatever the engine's default.
func TestStagesAreRetained(t *testing.T) {
	const month = 30 * 24 * time.Hour
	for _, c := range []struct{ engine, retain time.Duration }{
		{0, month}, {2 * month, month}, {month, mapper.RetainAlways},
	} {
		store := testbucket.New()
		x := newExport(store.Open(), nil)
		o := &mappertest.Options{Engine: mapper.EngineOptions{Retain: c.engine}}
		mappertest.Run(t, x.Mappers(), o, func(t *testing.T, w *mappertest.Env) {
			putOrders(t, w.Client)
			run, err := x.Start(t.Context(), w.Engine, mapper.Query{Kind: "Order"}, mapper.NoParams{},
				&export.StartOptions{StartOptions: mapper.StartOptions{ID: "n", PageSize: 50, Retain: c.retain}})
			if err == nil {
				_, err = run.Wait(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			first, err := w.Engine.Job("n").Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, j := range run.Jobs() {
				s, err := j.Status(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				kept := s.CleanUpAt.IsZero()
				if c.retain > 0 {
					at := s.CleanUpAt.Sub(s.Ended)
					kept = at >= c.retain && at < c.retain+month/2
				}
				if s.Settings.Retain != c.retain || !kept || s.Queue != first.Queue {
					t.Errorf("%+v: %s is retained for %v, until %v, in queue %s", c, j.ID, s.Settings.Retain,
						s.CleanUpAt, s.Queue)
				}
			}
		})
	}
}

// exportOrders puts orders, and starts the export "n" of them.
func exportOrders(t *testing.T, w *mappertest.Env, x *export.Export[mapper.NoParams]) *export.Run {
	t.Helper()
	putOrders(t, w.Client)
	run, err := x.Start(t.Context(), w.Engine, mapper.Query{Kind: "Order"}, mapper.NoParams{},
		&export.StartOptions{StartOptions: mapper.StartOptions{ID: "n", PageSize: 50}})
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// TestCleanedUpBeforeTheEnd cleans up the first job of an export while the second one writes files.
// The export ends, and its manifest lacks only the proof.
func TestCleanedUpBeforeTheEnd(t *testing.T) {
	for _, o := range []*mapper.CleanUpOptions{nil, {IncludeFailures: true}, {IncludeJob: true}} {
		store := testbucket.New()
		var cleaned atomic.Bool
		store.Hook = func(c *testbucket.Call) error {
			if c.Op == "write" && strings.HasSuffix(c.Key, ".jsonl") && !cleaned.Load() {
				return errors.New("try again later")
			}
			return c.Effect()
		}
		x := newExport(store.Open(), nil)
		mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
			run := exportOrders(t, w, x)
			first := run.Jobs()[0]
			_, err := first.Wait(t.Context())
			if err == nil {
				err = first.CleanUp(t.Context(), o)
			}
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Minute)
			cleaned.Store(true)
			time.Sleep(2 * time.Hour)
			m, err := export.ReadManifest(t.Context(), store.Open(), "n")
			if err != nil || m.Records != orders-leftOut || m.Coverage != nil {
				t.Fatalf("%+v: the manifest is %+v, %v", o, m, err)
			}
			checkFiles(t, store, "n", m)
		})
	}
}

// TestWaitAfterCleanUp waits for an export that has ended, and from which some jobs were cleaned
// up. Wait must return the manifest, as before.
func TestWaitAfterCleanUp(t *testing.T) {
	for gone := range 1 << 3 { // bit i: whether job i is cleaned up
		x := newExport(testbucket.New().Open(), nil)
		mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
			run := exportOrders(t, w, x)
			before, err := run.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for i, job := range run.Jobs() {
				if gone&(1<<i) != 0 {
					if err := job.CleanUp(t.Context(), &mapper.CleanUpOptions{IncludeJob: true}); err != nil {
						t.Fatal(err)
					}
				}
			}
			time.Sleep(time.Hour)
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			after, err := run.Wait(ctx)
			if diff := cmp.Diff(before, after); err != nil || diff != "" {
				t.Errorf("jobs %03b are cleaned up: %v\n%s", gone, err, diff)
			}
		})
	}
}

// TestWaitForNothing waits for an export whose first job was cleaned up before it ended, so that
// there is no manifest.
func TestWaitForNothing(t *testing.T) {
	store := testbucket.New()
	store.Hook = func(c *testbucket.Call) error {
		if c.Op == "write" && strings.Contains(c.Key, "/_parts/") {
			return errors.New("try again later") // so that the first job does not end
		}
		return c.Effect()
	}
	x := newExport(store.Open(), nil)
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		run := exportOrders(t, w, x)
		first := run.Jobs()[0]
		if err := first.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := first.CleanUp(t.Context(), &mapper.CleanUpOptions{IncludeJob: true}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if m, err := run.Wait(t.Context()); m != nil || !errors.Is(err, mapper.ErrNoSuchJob) {
			t.Errorf("%v, %v", m, err)
		}
		store.Hook = func(*testbucket.Call) error { return errors.New("injected") }
		if m, err := run.Wait(t.Context()); m != nil || err == nil || !strings.Contains(err.Error(), "injected") {
			t.Errorf("it can't be known whether there is a manifest: %v, %v", m, err)
		}
		store.Hook = nil
	})
}

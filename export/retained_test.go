package export_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/internal/testbucket"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// TestStagesAreRetained checks that the jobs of all stages get the export's queue, and that their
// records are deleted after the export's retention.
func TestStagesAreRetained(t *testing.T) {
	const month = 30 * 24 * time.Hour
	store := testbucket.New()
	x := newExport(store.Open(), nil)
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		putOrders(t, w.Client)
		run, err := x.Start(t.Context(), w.Engine, mapper.Query{Kind: "Order"}, mapper.NoParams{}, &export.StartOptions{
			StartOptions: mapper.StartOptions{ID: "n", PageSize: 50, Retain: month}})
		if err == nil {
			_, err = run.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		if n := len(run.Jobs()); n != 3 {
			t.Errorf("it has %d jobs", n)
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
			if s.Settings.Retain != month || s.CleanUpAt.Before(s.Ended.Add(month)) || s.Queue != first.Queue {
				t.Errorf("%s is retained for %v, until %v, in queue %s", j.ID, s.Settings.Retain, s.CleanUpAt, s.Queue)
			}
		}
	})
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
			putOrders(t, w.Client)
			run, err := x.Start(t.Context(), w.Engine, mapper.Query{Kind: "Order"}, mapper.NoParams{},
				&export.StartOptions{StartOptions: mapper.StartOptions{ID: "n", PageSize: 50}})
			if err != nil {
				t.Fatal(err)
			}
			first := run.Jobs()[0]
			if _, err = first.Wait(t.Context()); err == nil {
				err = first.CleanUp(t.Context(), o)
			}
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Minute)
			cleaned.Store(true)
			time.Sleep(2 * time.Hour)
			m, err := export.ReadManifest(t.Context(), store.Open(), "n")
			if err != nil || m.Records != orders-24 || m.Coverage != nil {
				t.Fatalf("%+v: the manifest is %+v, %v", o, m, err)
			}
			checkFiles(t, store, "n", m)
		})
	}
}

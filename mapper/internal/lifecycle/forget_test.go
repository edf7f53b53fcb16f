package lifecycle_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestForgetter removes the subject "ann-lee" from records.
func TestForgetter(t *testing.T) {
	named := keyspace.At(datastore.NameKey("K", "ann-lee", nil))
	for _, c := range []struct {
		name   string
		record func(w *world)
		wrong  bool                // a record can't be handled
		kind   string              // the kind of the record that mentions it,
		left   int                 // how many such records remain; of jobs there is one more
		is     func(w *world) bool // what else must hold then
	}{
		{name: "nothing mentions it", record: func(w *world) { w.Begin(w.NewJob("j", "m")) }, kind: record.JobKind,
			left: 2},
		{name: "a job that runs", record: func(w *world) {
			j := w.NewJob("j", "m")
			j.Params = []byte(`{"who":"ann-lee"}`)
			w.works = false
			w.Begin(j)
		}, wrong: true, kind: record.JobKind, left: 2},
		{name: "a job that has ended: it does not say any more what it was about", record: func(w *world) {
			j := w.NewJob("j", "m")
			j.Params = []byte(`{"who":"ann-lee"}`)
			j.Incarnate(7)
			w.Begin(j)
		}, kind: record.RangeKind, is: func(w *world) bool {
			j := w.Job("j")
			return j.Cleaned && !j.Erased.IsZero() && !(record.Subject{Words: []string{"ann-lee"}}).InJob(j)
		}},
		{name: "a job that has it in its name", record: func(w *world) { w.Begin(w.NewJob("ann-lee", "m")) },
			kind: record.JobKind, left: 1},
		{name: "the range of a job that is gone", record: func(w *world) {
			r := w.NewJob("gone", "m").RootRange()
			r.Start = named
			_, err := w.Client.Mutate(w.Context(), r.Insert())
			w.must(err)
		}, kind: record.RangeKind},
		{name: "the slot of a job that is gone", record: func(w *world) {
			_, err := w.Client.Put(w.Context(), datastore.NameKey(record.SlotKind, "m K", nil),
				&record.Slot{Job: "ann-lee", Incarnation: "0123456789abcdef01234567"})
			w.must(err)
		}, kind: record.SlotKind},
		{name: "a schedule whose last run is gone", record: func(w *world) {
			_, err := w.Client.Put(w.Context(), record.ScheduleKey("nightly"), &record.Schedule{Run: "ann-lee"})
			w.must(err)
		}, kind: record.ScheduleKind, left: 1},
		{name: "a schedule of its name", record: func(w *world) {
			_, err := w.Client.Put(w.Context(), record.ScheduleKey("ann-lee"), &record.Schedule{})
			w.must(err)
		}, wrong: true, kind: record.ScheduleKind, left: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, new(function.Definition), func(w *world) {
				c.record(w)
				eraser := w.NewJob("eraser", "m") // the job that forgets
				_, err := w.Client.Mutate(w.Context(), eraser.Insert())
				w.must(err)
				time.Sleep(time.Minute)
				f := lifecycle.Forgetter{Jobs: w.World.Jobs, Client: w.Client, For: eraser.Ref(),
					Subject: record.Subject{Words: []string{"ann-lee"}}}
				var looked lifecycle.Looked
				for range 10 {
					if looked, err = f.Forget(w.Context()); !errors.Is(err, lifecycle.ErrWaits) {
						break
					}
					time.Sleep(5 * time.Minute)
				}
				if c.wrong && (!errors.Is(err, record.ErrState) || !fault.IsPermanent(err)) || !c.wrong && err != nil {
					w.Errorf("%v, want an error: %v", err, c.wrong)
				}
				n, counted := w.Client.Count(w.Context(), datastore.NewQuery(c.kind))
				if counted != nil || n != c.left || !c.wrong && looked[c.kind] != int64(c.left) {
					w.Errorf("%d of %s are left, want %d, %v; looked at %v", n, c.kind, c.left, counted, looked)
				}
				if c.is != nil && !c.is(w) {
					w.Errorf("the job is %+v", w.Job("j"))
				}
			})
		})
	}
}

// TestBlockedErasure erases a subject that many records mention which can't be handled. The error
// names ten of them, and nothing is changed meanwhile.
func TestBlockedErasure(t *testing.T) {
	for _, c := range []struct {
		n    int
		more string
	}{{10, ""}, {11, "; and 1 more"}} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			f := w.eraser(ann)
			w.about("j")
			for i := range c.n {
				w.put(record.ScheduleKey(fmt.Sprintf("ann-lee-%02d", i)), &record.Schedule{})
			}
			_, err := f.Forget(w.Context())
			text := fmt.Sprint(err)
			if !errors.Is(err, record.ErrState) || !fault.IsPermanent(err) ||
				strings.Count(text, "delete its record") != 10 || !strings.Contains(text, "ann-lee-09") ||
				!strings.HasSuffix(text, "delete its record"+c.more) {
				w.Errorf("%d records: %v", c.n, err)
			}
			if j := w.Job("j"); j.Cleaned || !j.Erased.IsZero() {
				w.Error("a job was erased before all records could be")
			}
		})
	}
}

// TestErasureBeside erases a subject from a job of another queue of the same engine.
func TestErasureBeside(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		other := w.beside()
		f := w.eraser(ann)
		jobs := *f.Jobs
		jobs.Beside = []*lifecycle.Jobs{other}
		f.Jobs = &jobs
		j := w.about("j")
		w.stored(j, func(j *record.Job) { j.Queue = record.Owner(other.Queue.Name()) })
		w.about("k")
		if _, err := f.Forget(w.Context()); !errors.Is(err, lifecycle.ErrWaits) {
			w.Error(err)
		}
		for _, id := range []string{"j", "k"} {
			if w.Job(id).Cleaning == "" {
				w.Errorf("job %s is not being cleaned up", id)
			}
		}
	})
}

package lifecycle_test

import (
	"cmp"
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

// TestForgetter removes the subject "ann-lee" from different records.
func TestForgetter(t *testing.T) {
	named := keyspace.At(datastore.NameKey("K", "ann-lee", nil))
	for _, c := range []struct {
		name   string
		record func(w *world)
		wrong  bool                // whether a record can't be handled
		kind   string              // the kind of the record that mentions the subject
		left   int                 // number of records of this kind that remain; for jobs, one more remains
		is     func(w *world) bool // a further condition afterwards
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
				eraser := w.NewJob("eraser", "m") // the job that erases the subject
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

// TestBlockedErasure erases a subject that is mentioned by many records which can't be handled. The
// error must name ten of them, and no record may change.
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

// TestErasureAtEndOfSentence erases a namespace from the record of a job whose params end
// with its name. The name with the full stop is another namespace's name.
func TestErasureAtEndOfSentence(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		for _, name := range []string{"acme.", "acme-eu"} {
			other := datastore.NameKey("K", "a", nil)
			other.Namespace = name
			w.put(other, &says{})
		}
		f := w.eraser(record.Subject{Namespace: "acme"})
		w.ended("own", func(j *record.Job) { j.Params = []byte(`"Stop acme."`) })
		w.ended("other", func(j *record.Job) { j.Params = []byte(`"Stop acme-eu."`) })
		if _, err := w.forgets(f); err != nil {
			w.Fatal(err)
		}
		if own, other := w.Job("own"), w.Job("other"); own.Erased.IsZero() || !other.Erased.IsZero() {
			w.Errorf("the jobs have the params %s and %s", own.Params, other.Params)
		}
	})
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
		// a job of an older build, which did not record queues
		w.stored(w.about("old"), func(j *record.Job) { j.Queue = "" })
		if _, err := f.Forget(w.Context()); !errors.Is(err, lifecycle.ErrWaits) {
			w.Error(err)
		}
		here := make(map[string]bool)
		for _, task := range w.tasks("cleanup") {
			here[task.job.Job] = true
		}
		for id, want := range map[string]bool{"j": false, "k": true, "old": true} {
			if w.Job(id).Cleaning == "" || here[id] != want {
				w.Errorf("job %s is not being cleaned up, or in the wrong queue", id)
			}
		}
	})
}

// countsX reports whether the totals in a job's record have the counter x.
func countsX(j *record.Job) bool {
	sum, err := j.RecordedTotals()
	return err == nil && sum.Counters["x"] == 1
}

// erasureSteps are ended jobs, with the expected effects of an erasure.
var erasureSteps = []struct {
	name    string
	whom    record.Subject
	id      string
	params  string
	holds   bool                     // whether the record of its root mentions the subject
	records bool                     // whether its ranges' records exist
	change  func(j *record.Job)      // changes the job's record
	first   func(j *record.Job) bool // the expected job's record after the first search
	last    func(j *record.Job) bool // the expected job's record in the end; nil: the job is deleted
	wants   string                   // a part of the last error
}{
	{name: "it does not mention it", whom: ann, records: true, first: countsX, last: countsX},
	{name: "its parameters", whom: ann, params: `{"who":"ann-lee"}`, records: true,
		first: func(j *record.Job) bool {
			return j.Erased.IsZero() && j.Cleaning != "" && !countsX(j) && ann.InJob(j)
		}, last: func(j *record.Job) bool { return !j.Erased.IsZero() && !ann.InJob(j) }},
	{name: "its parameters, and it was cleaned up", whom: ann, params: `{"who":"ann-lee"}`,
		change: func(j *record.Job) { j.Cleaned = true },
		first:  func(j *record.Job) bool { return !j.Erased.IsZero() && j.Epoch == 0 && j.Cleaning == "" },
		last:   func(j *record.Job) bool { return !j.Erased.IsZero() && j.Epoch == 0 }},
	{name: "its parameters and a late record", whom: ann, params: `{"who":"ann-lee"}`, records: true, holds: true,
		change: func(j *record.Job) { j.Cleaned = true },
		first:  func(j *record.Job) bool { return j.Erased.IsZero() && j.Cleaning != "" && !countsX(j) },
		last:   func(j *record.Job) bool { return !j.Erased.IsZero() }},
	{name: "a record", whom: ann, records: true, holds: true,
		first: func(j *record.Job) bool { return j.Cleaning != "" && !countsX(j) },
		last:  func(j *record.Job) bool { return j.Erased.IsZero() && j.Cleaned && !countsX(j) }},
	{name: "a text", whom: ann, records: true, change: func(j *record.Job) { j.Error = "ann-lee" },
		first: func(j *record.Job) bool { return j.Error == "(erased)" && countsX(j) && !j.Cleaned },
		last:  func(j *record.Job) bool { return countsX(j) && !j.Cleaned }},
	{name: "a text, and it was cleaned up", whom: ann, change: func(j *record.Job) {
		j.Error, j.Cleaned = "ann-lee", true
	}, first: func(j *record.Job) bool { return j.Error == "(erased)" && j.Erased.IsZero() },
		last: func(j *record.Job) bool { return j.Erased.IsZero() && countsX(j) }},
	{name: "a text, and it was erased", whom: ann, change: func(j *record.Job) {
		j.Error, j.Erased, j.Cleaned = "ann-lee", time.Now(), true
	}, first: func(j *record.Job) bool { return j.Error == "(erased)" },
		last: func(j *record.Job) bool { return j.Error == "(erased)" }},
	{name: "its ID, and it was erased", whom: ann, id: "ann-lee", records: true, change: func(j *record.Job) {
		j.Erased, j.Cleaned = time.Now(), true
	}, first: func(j *record.Job) bool { return j.Cleaning != "" }},
	{name: "its ID, and it was erased and cleaned up", whom: ann, id: "ann-lee", change: func(j *record.Job) {
		j.Erased, j.Cleaned = time.Now(), true
	}, first: func(j *record.Job) bool { return j.Cleaning != "" }},
	{name: "its ID, and it was cleaned up", whom: ann, id: "ann-lee",
		change: func(j *record.Job) { j.Cleaned = true },
		first:  func(j *record.Job) bool { return j.Cleaning != "" }},
	{name: "its parameters and a record, and it was erased", whom: ann, params: `{"who":"ann-lee"}`, records: true,
		holds: true, change: func(j *record.Job) { j.Erased, j.Cleaned = time.Now(), true },
		first: func(j *record.Job) bool { return j.Cleaning != "" },
		last:  func(j *record.Job) bool { return true }, wants: "no longer says what it was about"},
	{name: "its schedule", whom: ann, change: func(j *record.Job) { j.Schedule, j.Cleaned = "ann-lee", true },
		first: func(j *record.Job) bool { return j.Erased.IsZero() },
		last:  func(j *record.Job) bool { return j.Erased.IsZero() },
		wants: "the job's state does not allow that: the record of job j still mentions the erased subject"},
	{name: "everywhere: counters, and no records", whom: record.Subject{Everywhere: true},
		first: func(j *record.Job) bool { return !countsX(j) && !j.Cleaned },
		last:  func(j *record.Job) bool { return !countsX(j) && j.CountersDropped && !j.Cleaned }},
	{name: "everywhere: its parameters", whom: record.Subject{Everywhere: true, Words: ann.Words},
		params: `{"who":"ann-lee"}`, records: true, first: func(j *record.Job) bool { return j.Cleaning != "" },
		last: func(j *record.Job) bool { return !j.Erased.IsZero() }},
}

// TestErasureSteps checks what the first search changes in an ended job, and what the erasure
// leaves after the job's records are deleted.
func TestErasureSteps(t *testing.T) {
	for _, c := range erasureSteps {
		t.Run(c.name, func(t *testing.T) {
			inTrial(t, new(function.Definition), func(w *trialWorld) {
				f := w.eraser(c.whom)
				id := cmp.Or(c.id, "j")
				j := w.NewJob(id, "m")
				j.Params = []byte(cmp.Or(c.params, `{}`))
				j.Incarnate(5)
				sum := record.Totals{Processed: 4, Counters: map[string]int64{"x": 1}}
				w.must(j.Succeed(sum, time.Now()))
				if c.change != nil {
					c.change(j)
				}
				_, err := w.Client.Mutate(w.Context(), j.Insert())
				w.must(err)
				if c.records {
					r := j.RootRange()
					r.State, r.Open = record.Done, ""
					if c.holds {
						r.Start = atAnn()
					}
					w.insert([]*record.Range{r})
				}
				_, _ = f.Forget(w.Context())
				if now := w.Job(id); !c.first(now) {
					w.Errorf("after the first search it is %+v", now)
				}
				if _, err := w.forgets(f); (err == nil) != (c.wants == "") || err != nil &&
					(!strings.Contains(err.Error(), c.wants) || strings.Contains(err.Error(), "can't forget")) {
					w.Errorf("%v, want %q", err, c.wants)
				}
				now, err := w.Store.LoadJob(w.Context(), j.Ref())
				gone := errors.Is(err, record.ErrNoSuchJob)
				if gone != (c.last == nil) || !gone && !c.last(now) {
					w.Errorf("in the end it is %+v, %v", now, err)
				}
			})
		})
	}
}

// TestUnendedErasure erases a subject while jobs continue that may still write it, although none of
// their ranges is open.
func TestUnendedErasure(t *testing.T) {
	for _, c := range []struct {
		name  string
		whom  record.Subject
		query string
		keeps bool // whether the job's records must remain
	}{
		{"everywhere, a job that is about to end", record.Subject{Everywhere: true}, `{"kind":"K"}`, false},
		{"a job that reads all namespaces", ann, `{"kind":"K","all_namespaces":true}`, true},
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			f := w.eraser(c.whom)
			j := w.running("j", func(j *record.Job) { j.Query = []byte(c.query) })
			if w.doRoot(j); !c.keeps {
				w.must(w.Client.Delete(w.Context(), record.RangeKey(j.Ref(), j.Root())))
			}
			if _, err := f.Forget(w.Context()); err == nil || !strings.Contains(err.Error(), "job j is running") {
				w.Errorf("%s: %v", c.name, err)
			}
			w.must(w.Abort(w.Context(), j.Ref()))
			w.purge()
		})
	}
}

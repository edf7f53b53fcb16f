package lifecycle_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/ledger"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

const (
	// number of the clean-up task that adds up the records; the other tasks have the numbers of
	// slices
	addUp       = 16
	perTask     = 5000 // number of records that one task cleans up
	perCommit   = 50   // number of records in one commit
	sweepsAfter = 2 * time.Minute
)

// endedJob stores the record of a job that has ended and has totals.
func (w *trialWorld) endedJob(id, mapper string) *record.Job {
	w.Helper()
	j := w.NewJob(id, mapper)
	sum := record.Totals{Processed: 4}
	w.must(j.Succeed(sum, time.Now()))
	_, err := w.Client.Mutate(w.Context(), j.Insert())
	w.must(err)
	return w.Job(id)
}

// TestCleanUpOfManyOpen abandons more open ranges than one task does, before the records of an
// aborted job are added up. The next task must have another name.
func TestCleanUpOfManyOpen(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.aborted("j")
		w.ranges(j, perTask+1, func(*record.Range) {})
		j = w.cleaning(j, lifecycle.CleanUp{})
		w.must(w.deliver(w.Context(), j, "cleanup", body.Job{Tick: addUp}, 0))
		all := w.tasks("cleanup")
		if len(all) != 1 || all[0].job.After == "" || len(w.Job("j").Totals) > 0 {
			w.Errorf("the tasks are %+v, and the totals %q", all, w.Job("j").Totals)
		}
		w.must(w.Client.Delete(w.Context(), record.JobKey("j")))
		w.purge()
	})
}

// TestLargeCleanUp cleans up more records than one task does. Each task must continue where the
// last one stopped.
func TestLargeCleanUp(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.endedJob("j", "undo:m")
		key, batch := record.NewBatch(j.Ref(), fmt.Sprintf("0%031x", 7), []*datastore.Key{atAnn().Key}, 1, 0)
		w.put(key, batch)
		slice := make([]*record.Range, perTask+1)
		for i := range slice {
			slice[i] = j.RootRange()
			slice[i].ID = fmt.Sprintf("0%031x", i)
			slice[i].State, slice[i].Open = record.Done, ""
		}
		w.insert(slice)
		j = w.cleaning(j, lifecycle.CleanUp{})
		var commits atomic.Int32
		count := under(w.Context(), nth(0, "Commit", func() { commits.Add(1) }))
		w.must(w.deliver(count, j, "cleanup", body.Job{}, 0))
		all := w.tasks("cleanup")
		if n := w.count(record.RangeKind); n != 1 || commits.Load() != perTask/perCommit || len(all) != 1 ||
			all[0].job.After != slice[perTask-1].ID || w.count(record.BatchKind) != 1 {
			w.Fatalf("%d records are left after %d commits, and the tasks are %+v", n, commits.Load(), all)
		}
		w.must(w.deliver(w.Context(), j, "cleanup", all[0].job, 0))
		if n := w.count(record.RangeKind); n != 0 || len(w.tasks("cleanup")) != 1 {
			w.Errorf("%d records are left, and the tasks are %+v", n, w.tasks("cleanup"))
		}
		w.purge()
		time.Sleep(sweepsAfter) // tasks of a later tick have other names
		w.insert(slice)
		w.must(w.deliver(w.Context(), j, "sweep", body.Job{Tick: 1}, 0))
		if n := w.count(record.RangeKind); n != 1 || len(w.tasks("cleanup")) != addUp || w.Job("j").Cleaning == "" {
			w.Errorf("%d records are left by a sweep, and %d tasks go on", n, len(w.tasks("cleanup")))
		}
		w.purge()
		w.must(w.deliver(w.Context(), j, "sweep", body.Job{Tick: 2}, 0))
		if n := w.count(record.RangeKind); n != 0 || len(w.tasks("cleanup")) != 0 || w.Job("j").Cleaning == "" {
			w.Errorf("%d records are left by the second sweep, and %d tasks go on", n, len(w.tasks("cleanup")))
		}
		w.must(w.deliver(w.Context(), j, "sweep", body.Job{Tick: 3}, 0))
		if w.Job("j").Cleaning != "" {
			w.Error("the last sweep does not end the clean-up")
		}
		w.purge()
	})
}

// TestCleanUpKeeps checks which records a clean-up leaves. These are failures that it does not
// include, and records that already expire. A clean-up that deletes at once also deletes the
// latter.
func TestCleanUpKeeps(t *testing.T) {
	t.Parallel()
	soon := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	for _, c := range []struct {
		name           string
		how            lifecycle.CleanUp
		failed, expire bool // whether the record is of a failure, and whether it already expires
		gone, keeps    bool // whether the record is deleted, and whether it keeps its time of expiry
	}{
		{"a record", lifecycle.CleanUp{}, false, false, true, false},
		{"a failure", lifecycle.CleanUp{}, true, false, false, true},
		{"a failure that is included", lifecycle.CleanUp{IncludeFailures: true}, true, false, true, false},
		{"one that expires", lifecycle.CleanUp{}, false, true, true, false},
		{"one that expires, again", lifecycle.CleanUp{ExpireAfter: time.Hour}, false, true, false, true},
		{"one that is to expire", lifecycle.CleanUp{ExpireAfter: time.Hour}, false, false, false, false},
	} {
		for _, sweep := range []bool{false, true} {
			inTrial(t, new(function.Definition), func(w *trialWorld) {
				j := w.endedJob("j", "m")
				r := j.RootRange()
				r.ID, r.State, r.Open = "00000000000000000000000000000001", record.Done, ""
				if c.failed {
					r.Failed, r.Error = j.ID, "bad"
				}
				if c.expire {
					r.Expires = soon
				}
				w.insert([]*record.Range{r})
				j = w.cleaning(j, c.how)
				time.Sleep(sweepsAfter)
				if sweep {
					w.must(w.deliver(w.Context(), j, "sweep", body.Job{Tick: 1}, 0))
				} else {
					w.must(w.deliver(w.Context(), j, "cleanup", body.Job{}, 0))
				}
				is, there := w.Records(j)[r.ID]
				if there == c.gone || there && is.Expires.Equal(r.Expires) != c.keeps {
					w.Errorf("%s, sweep %v: it is there: %v, %+v", c.name, sweep, there, is)
				}
				if ended := w.Job("j").Cleaning == ""; sweep && ended != c.keeps || len(w.tasks("cleanup")) > 0 {
					w.Errorf("%s: the sweep ends the clean-up: %v, and leaves %+v", c.name, ended, w.tasks("cleanup"))
				}
				w.purge()
			})
		}
	}
}

// TestCleanUpOvertaken changes records that a clean-up is about to let expire: it deletes one, and
// sets an earlier expiry of another. The clean-up must neither restore the first nor change the
// second.
func TestCleanUpOvertaken(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.endedJob("j", "m")
		w.ranges(j, 5, func(r *record.Range) { r.State, r.Open = record.Done, "" })
		var all []*record.Range
		for _, r := range w.Records(j) {
			all = append(all, r)
		}
		soon := time.Now().Add(time.Minute).UTC().Truncate(time.Microsecond)
		j = w.cleaning(j, lifecycle.CleanUp{ExpireAfter: time.Hour})
		w.must(w.deliver(under(w.Context(), nth(1, "BeginTransaction", func() {
			w.must(w.Client.Delete(w.Context(), all[0].Key()))
			w.changed(all[1], func(r *record.Range) { r.Expires = soon })
		})), j, "sweep", body.Job{Tick: 1}, 0))
		now := w.Records(j)
		for _, r := range now {
			if r.Expires.IsZero() || r.Expires.Equal(soon) != (r.ID == all[1].ID) {
				w.Errorf("range %s expires at %v", r.ID, r.Expires)
			}
		}
		if len(now) != 4 {
			w.Errorf("%d records", len(now))
		}
		w.purge()
	})
}

// TestCleanUpEnds checks the last sweep of a clean-up. It must leave the task of the automatic
// clean-up, which later deletes the failures. If another clean-up has started meanwhile, it must
// not end that one.
func TestCleanUpEnds(t *testing.T) {
	for _, c := range []struct {
		name    string
		other   func(j *record.Job) // changes the job's record meanwhile
		err     bool
		ends    bool
		retains int
	}{
		{"as usual", func(*record.Job) {}, false, true, 1},
		{"another sweep has ended it", func(j *record.Job) { j.Cleaning = "" }, false, true, 1},
		{"another one has begun", func(j *record.Job) { j.Epoch++ }, false, false, 1},
		{"its options are damaged", func(j *record.Job) { j.Cleaning = "{" }, true, false, 1},
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := w.stored(w.endedJob("j", "m"), func(j *record.Job) { j.Retain = 24 * time.Hour })
			w.failures(j, 1)
			j = w.cleaning(j, lifecycle.CleanUp{})
			meanwhile := nth(1, "BeginTransaction", func() { w.stored(j, c.other) })
			err := w.deliver(under(w.Context(), meanwhile), j, "sweep", body.Job{Tick: 1}, 0)
			now := w.Job("j")
			if (err != nil) != c.err || (now.Cleaning == "") != c.ends || len(w.tasks("retain")) != c.retains ||
				now.Expires.IsZero() != true {
				w.Errorf("%s: %v, cleaning %q, retained by %+v", c.name, err, now.Cleaning, w.tasks("retain"))
			}
			w.purge()
		})
	}
}

// TestCleanUpBatches cleans up the batches of an undo, and checks that another job's batches
// remain.
func TestCleanUpBatches(t *testing.T) {
	for _, c := range []struct {
		mapper  string
		n       int
		expire  bool // whether the batches already expire
		how     lifecycle.CleanUp
		left    int // number of batches that remain
		commits int32
	}{
		{"undo:m", perCommit - 1, false, lifecycle.CleanUp{}, 0, 1},
		{"undo:m", perCommit, false, lifecycle.CleanUp{}, 0, 1},
		{"undo:m", perCommit + 1, false, lifecycle.CleanUp{}, 0, 2},
		{"undo:m", perCommit + 1, true, lifecycle.CleanUp{}, 0, 2},
		{"undo:m", perCommit + 1, false, lifecycle.CleanUp{ExpireAfter: time.Hour}, perCommit + 1, 2},
		{"undo:m", 3, true, lifecycle.CleanUp{ExpireAfter: time.Hour}, 3, 0},
		{"m", 3, false, lifecycle.CleanUp{}, 3, 0},
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := w.endedJob("j", c.mapper)
			var keys []*datastore.Key
			var all []*record.Batch
			for i := range c.n {
				key, b := record.NewBatch(j.Ref(), fmt.Sprintf("0%031x", i), []*datastore.Key{atAnn().Key}, 1, 0)
				if c.expire {
					b.Expires = time.Now().Add(time.Minute)
				}
				keys, all = append(keys, key), append(all, b)
			}
			_, err := w.Client.PutMulti(w.Context(), keys, all)
			w.must(err)
			j = w.cleaning(j, c.how)
			var commits atomic.Int32
			count := under(w.Context(), nth(0, "Commit", func() { commits.Add(1) }))
			w.must(w.deliver(count, j, "cleanup", body.Job{}, 0))
			if n := w.count(record.BatchKind); n != c.left || commits.Load() != c.commits {
				w.Errorf("%s: %d of %d batches are left, want %d, after %d commits, want %d", c.mapper, n, c.n, c.left,
					commits.Load(), c.commits)
			}
			_, err = w.Client.GetAll(w.Context(), datastore.NewQuery(record.BatchKind), &all)
			w.must(err)
			for _, b := range all[c.n:] {
				if b.Expires.IsZero() == (c.how.ExpireAfter > 0 || c.expire) {
					w.Errorf("%s: a batch expires at %v", c.mapper, b.Expires)
				}
			}
			w.must(w.deliver(w.Context(), j, "sweep", body.Job{Tick: 1}, 0)) // nothing remains to be cleaned up
			if ended := w.Job("j").Cleaning == ""; !ended {
				w.Errorf("%s: the clean-up has not ended", c.mapper)
			}
			w.purge()
		})
	}
}

// TestManyBatches makes the database refuse the second query for an undo's batches. The clean-up
// must return the error.
func TestManyBatches(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.endedJob("j", "undo:m")
		var keys []*datastore.Key
		var all []*record.Batch
		for i := range 310 { // more than one answer has
			key, b := record.NewBatch(j.Ref(), fmt.Sprintf("0%031x", i), []*datastore.Key{atAnn().Key}, 1, 0)
			keys, all = append(keys, key), append(all, b)
		}
		_, err := w.Client.PutMulti(w.Context(), keys, all)
		w.must(err)
		j = w.cleaning(j, lifecycle.CleanUp{})
		if w.deliver(under(w.Context(), failThird("RunQuery")), j, "cleanup", body.Job{}, 0) == nil {
			w.Error("a refused query is no error")
		}
		w.purge()
	})
}

// TestCleanUpWaits checks that a clean-up, started by an older build, waits for an undo that needs
// the records.
func TestCleanUpWaits(t *testing.T) {
	inTrial(t, new(function.Definition), func(w *trialWorld) {
		j := w.aborted("j")
		undo := w.NewJob("undo-j", "undo:m")
		undo.State = record.Paused
		undo.Params = fmt.Appendf(nil, `{"job":%q,"incarnation":%q}`, j.ID, j.Incarnation)
		w.put(record.JobKey(undo.ID), undo)
		j = w.stored(j, func(j *record.Job) { j.Undo, j.Cleaning, j.Cleaned = undo.ID, `{"failures":true}`, true })
		w.purge()
		for _, path := range []string{"sweep", "cleanup"} {
			w.must(w.deliver(w.Context(), j, path, body.Job{Tick: addUp}, 0))
		}
		if len(w.tasks("cleanup")) > 0 || len(w.Job("j").Totals) > 0 || w.Records(j)[j.Root()].State != record.Pending {
			w.Errorf("it does not wait: %+v", w.tasks(""))
		}
		w.stored(undo, func(j *record.Job) { j.State = record.Aborted })
		w.passes(30 * time.Minute)
		if now := w.Job("j"); now.Cleaning != "" || len(w.Records(j)) > 0 || len(now.Totals) == 0 {
			w.Errorf("it has not gone on: cleaning %q, %d records", now.Cleaning, len(w.Records(j)))
		}
	})
}

// TestLateCleanUp delivers late tasks of a clean-up: the clean-up has ended, or the job's epoch was
// raised meanwhile. They must have no effect.
func TestLateCleanUp(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(j *record.Job)
		tick   int64
		err    bool
		left   int
	}{
		{"in time", func(*record.Job) {}, 0, false, 0},
		{"it has ended", func(j *record.Job) { j.Cleaning = "" }, 0, false, 1},
		{"another epoch", func(j *record.Job) { j.Epoch++ }, 0, false, 1},
		{"the records are not added up", func(j *record.Job) { j.Totals = nil }, 0, true, 1},
		{"unknown options", func(j *record.Job) { j.Cleaning = "{" }, 0, true, 1},
		{"the task that adds up, of another epoch", func(j *record.Job) { j.Epoch, j.Totals = j.Epoch+1, nil }, addUp,
			false, 1},
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := w.endedJob("j", "m")
			r := j.RootRange()
			r.ID, r.State, r.Open = "00000000000000000000000000000001", record.Done, ""
			w.insert([]*record.Range{r})
			j = w.cleaning(j, lifecycle.CleanUp{})
			w.stored(j, c.change)
			if c.name == "another epoch" {
				w.must(w.deliver(w.Context(), j, "sweep", body.Job{Tick: 1}, 0))
			}
			err := w.deliver(w.Context(), j, "cleanup", body.Job{Tick: c.tick}, 0)
			if n := w.count(record.RangeKind); (err != nil) != c.err || n != c.left || len(w.tasks("")) > 0 {
				w.Errorf("%s: %v; %d records are left, want %d; the tasks are %+v", c.name, err, n, c.left, w.tasks(""))
			}
		})
	}
}

// TestCleanUpSweeps checks when a sweep enqueues the task that adds up the records again: only if
// no task has stored a draft (the sum so far) since the last sweep.
func TestCleanUpSweeps(t *testing.T) {
	for _, c := range []struct {
		kept time.Duration // how long ago a draft was stored; negative: there is no draft
		want int
	}{{-1, 1}, {sweepsAfter - time.Microsecond, 0}, {sweepsAfter, 1}} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := w.cleaning(w.aborted("j"), lifecycle.CleanUp{})
			time.Sleep(sweepsAfter)
			if c.kept >= 0 {
				now := time.Now() // just after the time of the sweep's own tick
				d, err := w.Store.LoadDraft(w.Context(), j)
				w.must(err)
				d.Kept = now.Add(-c.kept)
				d.Encode()
				w.put(ledger.DraftKey(j.Ref()), d)
				j = w.stored(j, func(j *record.Job) { j.Drafted = true })
			}
			w.must(w.deliver(w.Context(), j, "sweep", body.Job{Tick: 1}, 0))
			if n := len(w.tasks("cleanup")); n != c.want || len(w.tasks("sweep")) != 1 {
				w.Errorf("a draft %v ago: %d tasks, want %d, and %d sweeps", c.kept, n, c.want, len(w.tasks("sweep")))
			}
			w.purge()
		})
	}
}

package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/ledger"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// interrupt calls by before each chosen call of an act, one at a time. Then it repeats the act if
// it has failed, and lets the queue deliver. The result must be the same as without the
// interruption.
func (a act) interrupt(w *trialWorld, how string, chosen func(at int) bool, by func(j *record.Job)) {
	w.Helper()
	for at, did := 0, true; did && at < 12; at++ { // at most 12, because later calls only enqueue tasks
		if !chosen(at) {
			continue
		}
		j := a.prepared(w, fmt.Sprintf("%s-%d", how, at))
		var calls atomic.Int32
		err := a.do(under(w.Context(), func(method string, call func() error) error {
			// RunQuery does not count: many queries run at the same time, and change nothing.
			if method != "RunQuery" && int(calls.Add(1)) == at+1 {
				by(j)
			}
			return call()
		}), w, j)
		did = int(calls.Load()) > at
		if err != nil {
			_ = a.do(w.Context(), w, j)
		}
		check := a.after
		if check == nil {
			check = endsWell
		}
		if now, err := w.Store.LoadJob(w.Context(), j.Ref()); err == nil && now.State == record.Paused {
			w.must(w.Resume(w.Context(), j.Ref()))
			w.passes(5 * time.Minute)
		}
		w.must(w.Revive(w.Context()))
		w.passes(5 * time.Minute)
		if wrong := check(w, j); wrong != nil {
			w.Errorf("%s before call %d: %v", how, at+1, wrong)
		}
		w.empty()
	}
}

// TestInterruptions interrupts the delivery of each task in three ways: the process is suspended
// while the queue continues, the task is delivered twice, or the job is paused. In a usual run,
// each call is interrupted in one of these ways.
func TestInterruptions(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	all := lifecycle.CleanUp{IncludeFailures: true}
	aborted := func(w *trialWorld, id string) *record.Job { return w.cleaning(w.aborted(id), all) }
	forgets := forgetting(func(context.Context, *record.Job, record.Totals) error { return nil })
	for _, c := range []struct {
		act
		m *function.Definition
	}{
		{act{name: "no position", before: (*trialWorld).allDone, do: finalizes(0)}, new(function.Definition)},
		{act{name: "a finalizer", before: (*trialWorld).allDone, do: finalizes(1), after: unmarked(hasPut)},
			&function.Definition{OnDone: putsAtEnd}},
		{act{name: "records that are deleted", before: (*trialWorld).allDone, do: finalizes(0), after: hasForgotten},
			forgets.definition()},
		{act{name: "a retry", before: (*trialWorld).retrying, do: delivers("replay", body.Job{})},
			new(function.Definition)},
		{act{name: "a sweep", before: (*trialWorld).purged, do: delivers("sweep", body.Job{Tick: 1})},
			new(function.Definition)},
		{act{name: "a clean-up", before: aborted, do: delivers("cleanup", body.Job{Tick: addUp}), after: isClean},
			new(function.Definition)},
		{act{name: "a sweep of a clean-up", before: aborted, do: delivers("sweep", body.Job{Tick: 1}), after: isClean},
			new(function.Definition)},
	} {
		t.Run(c.name, func(t *testing.T) {
			inTrial(t, c.m, func(w *trialWorld) {
				w.Portion.Records = 1 // a small limit, so that drafts are stored
				some := testflag.Part(w.T, 3)
				at := func(way int) func(int) bool { return func(i int) bool { return some(i + way) } }
				c.interrupt(w, "stands-still", at(0), func(*record.Job) {
					w.must(w.Revive(w.Context()))
					w.passes(10 * time.Minute)
				})
				c.interrupt(w, "twice", at(1), func(j *record.Job) {
					go func() { _ = c.do(w.Context(), w, j) }()
					synctest.Wait() // the second delivery may wait until the first one has ended
				})
				c.interrupt(w, "paused", at(2), func(j *record.Job) {
					if err := w.Pause(w.Context(), j.Ref()); err != nil && !errors.Is(err, record.ErrState) {
						w.Error(err)
					}
				})
			})
		})
	}
}

// TestAddUpInParts adds up the records of a clean-up in several tasks, because each has little
// time. Each record must count once. If the process drains, the next task must take over at once.
func TestAddUpInParts(t *testing.T) {
	t.Parallel()
	const longest = 15 * time.Second
	for _, c := range []struct {
		name   string
		takes  time.Duration // duration of the first query
		drains bool
		chain  bool // whether another task continues
	}{{"in time", 0, false, false}, {"just in time", longest, false, false}, {"late", longest + 1, false, true},
		{"a process that drains", 0, true, true}} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			w.Portion = lifecycle.Portion{Records: 1, Time: longest}
			j := w.aborted("j")
			w.ranges(j, 80, func(r *record.Range) { r.State, r.Open, r.Processed = record.Done, "", 1 })
			w.changed(w.Records(j)[j.Root()], func(r *record.Range) { r.State, r.Open = record.Done, "" })
			j = w.cleaning(j, lifecycle.CleanUp{IncludeFailures: true})
			// The second query is for open ranges.
			w.must(w.deliver(under(w.Context(), nth(2, "RunQuery", func() {
				if time.Sleep(c.takes); c.drains {
					go func() { _, _ = w.Gate.Drain(context.Background()) }()
					time.Sleep(time.Nanosecond)
				}
			})), j, "cleanup", body.Job{Tick: addUp}, 0))
			var links []int64
			for _, task := range w.tasks("cleanup") {
				links = append(links, task.job.Link)
			}
			now := w.Job("j")
			if chain := len(links) == 1 && links[0] == 1 && len(now.Totals) == 0 && now.Drafted; chain != c.chain {
				w.Errorf("%s: links %v, %d bytes of totals, drafted %v", c.name, links, len(now.Totals), now.Drafted)
			}
			if !c.drains {
				w.must(w.Revive(w.Context()))
				w.passes(30 * time.Minute)
				now = w.Job("j")
				sum, err := now.RecordedTotals()
				if err != nil || sum.Processed != 80 || now.Drafted || now.Cleaning != "" {
					w.Errorf("%s: %d entities, %v; drafted %v, cleaning %q", c.name, sum.Processed, err, now.Drafted,
						now.Cleaning)
				}
			}
			w.purge()
		})
	}
}

// TestLongAddUp delivers late tasks of a chain that adds up records. Each must continue from the
// draft, which is the sum so far. No two tasks of the chain may have the same name.
func TestLongAddUp(t *testing.T) {
	for _, c := range []struct{ draft, task, next int64 }{{3, 1, 3}, {3, 3, -1}, {0, 2, -1}} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := w.allDone("j")
			d, err := w.Store.LoadDraft(w.Context(), j)
			w.must(err)
			d.Link = c.draft
			d.Encode()
			w.put(ledger.DraftKey(j.Ref()), d)
			j = w.stored(j, func(j *record.Job) { j.Drafted = true })
			w.must(w.deliver(w.Context(), j, "finalize", body.Job{Link: c.task}, 0))
			next := int64(-1)
			for _, task := range w.tasks("finalize") {
				next = task.job.Link
			}
			if next != c.next || w.Job("j").Over() != (c.next < 0) {
				w.Errorf("link %d, with a draft for %d: the next task is %d, and the job is %s", c.task, c.draft, next,
					w.Job("j").State)
			}
			if now := w.Job("j"); now.Over() && (now.Drafted || w.count(record.DraftKind) > 0) {
				w.Error("the draft of a job that has ended is left")
			}
			w.purge()
			if w.must(w.Complete(w.Context(), w.Job("j"), true)); c.next > 0 {
				if all := w.tasks("finalize"); len(all) != 1 || all[0].job.Link != c.draft {
					w.Errorf("a sweep enqueues %+v", all)
				}
			}
			w.purge()
		})
	}
}

// TestOvertakenTotals changes the state of a clean-up while one of its tasks adds up the records.
func TestOvertakenTotals(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(j *record.Job)
		tasks  int  // number of tasks that continue the clean-up
		totals bool // whether the task has stored its own totals
	}{
		{"nothing", func(*record.Job) {}, 16, true},
		{"it has ended", func(j *record.Job) { j.Cleaning = "" }, 0, true},
		{"another one has begun", func(j *record.Job) { j.Epoch++ }, 0, false},
		{"another task was faster", func(j *record.Job) { j.Totals = []byte(`{"processed":7}`) }, 16, false},
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := w.cleaning(w.aborted("j"), lifecycle.CleanUp{})
			time.Sleep(sweepsAfter)
			// the first transaction abandons the open range
			w.must(w.deliver(under(w.Context(), nth(2, "BeginTransaction", func() {
				w.stored(j, c.change)
			})), j, "cleanup", body.Job{Tick: addUp}, 0))
			want := *j
			c.change(&want)
			now := w.Job("j")
			if own := string(now.Totals) != string(want.Totals); own != c.totals || len(w.tasks("cleanup")) != c.tasks {
				w.Errorf("%s: its totals are %q, and %d tasks go on", c.name, now.Totals, len(w.tasks("cleanup")))
			}
			w.purge()
		})
	}
}

// TestLateCommit lets a page commit late, while the records of its job are being deleted. The
// page's record must be deleted, too.
func TestLateCommit(t *testing.T) {
	f := forgetting(func(context.Context, *record.Job, record.Totals) error { return nil })
	inTrial(t, f.definition(), func(w *trialWorld) {
		j := w.allDone("j")
		w.must(w.deliver(under(w.Context(), nth(2, "Commit", func() { // the first commit stores the totals
			w.ranges(j, 1, func(r *record.Range) { r.State, r.Open = record.Done, "" })
		})), j, "finalize", body.Job{}, 0))
		w.want(record.Succeeded, "a page was late", len(w.Records(j)) == 0)
	})
}

// TestIncompleteUndo ends an undo that may have missed records, because an older build has cleaned
// them up. The undo must fail. If it has already failed for another reason, it must keep this
// reason.
func TestIncompleteUndo(t *testing.T) {
	for _, c := range []struct {
		cleaned, fails bool
		want           record.JobState
		error          string
	}{{false, false, record.Succeeded, ""}, {true, false, record.Failed, "an older build cleaned up"},
		{true, true, record.Failed, "bad"}} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			undone := w.stored(w.endedJob("j", "m"), func(j *record.Job) { j.Undo = "u" })
			u := w.running("u", func(j *record.Job) {
				j.Mapper, j.Params = "undo:m", fmt.Appendf(nil, `{"job":"j","incarnation":%q}`, undone.Incarnation)
			})
			w.doRoot(u)
			w.stored(undone, func(j *record.Job) { j.Cleaned = c.cleaned })
			var err error
			if c.fails {
				err = w.Fail(w.Context(), u, errBad)
			} else {
				err = w.deliver(w.Context(), u, "finalize", body.Job{}, 0)
			}
			// Without the answer, it is unknown whether the undo has missed records.
			if now := w.Job("u"); now.State == record.Succeeded {
				w.stored(now, func(j *record.Job) { j.State, j.Epoch = record.Running, j.Epoch+1 })
				lookups := 0
				err := w.deliver(under(w.Context(), func(method string, call func() error) error {
					if method == "Lookup" {
						if lookups++; lookups == 3 {
							return status.Error(codes.PermissionDenied, "refused")
						}
					}
					return call()
				}), w.Job("u"), "finalize", body.Job{}, 0)
				if again := w.Job("u"); err == nil || again.State != record.Running {
					w.Errorf("a refused lookup: %v, it is %s", err, again.State)
				}
				w.stored(now, func(j *record.Job) { j.State, j.Epoch = record.Succeeded, j.Epoch-1 })
			}
			if now := w.Job("u"); err != nil || now.State != c.want || len(now.Error) < len(c.error) ||
				now.Error[:len(c.error)] != c.error {
				w.Errorf("%+v: %v, it is %s: %q", c, err, now.State, now.Error)
			}
		}, &function.Definition{Name: "undo:m"})
	}
}

package executor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/page"
	"github.com/scattermap/scattermap/mapper/internal/planner"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
)

// refuseWrites makes the database refuse all commits that write one of the chosen entities.
func refuseWrites(w *testworld.World, code codes.Code, chosen func(id int64) bool) {
	w.Intercept(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		commit, ok := req.(*pb.CommitRequest)
		if !ok || path.Base(info.FullMethod) != "Commit" {
			return handler(ctx, req)
		}
		for _, m := range commit.Mutations {
			e := m.GetUpdate()
			if e == nil {
				e = m.GetUpsert()
			}
			if of := e.GetKey().GetPath(); len(of) > 0 && of[0].Kind == "K" && chosen(of[0].GetId()) {
				return nil, status.Error(code, "injected")
			}
		}
		return handler(ctx, req)
	})
}

// TestCommitsRefused makes the database refuse what a function writes for some entities.
func TestCommitsRefused(t *testing.T) {
	only := func(id int64) bool { return id == 12 }
	all := func(int64) bool { return true }
	for _, c := range []struct {
		name   string
		code   codes.Code
		chosen func(id int64) bool
		change func(j *record.Job)
		want   string
		failed string
	}{
		{"of one entity", codes.InvalidArgument, only, nil, "succeeded with failures, 34 processed", "failed 12"},
		{"of all", codes.InvalidArgument, all, nil, "failed, 0 processed", "failed 1 10 11 2 3 4 5 6 7 8 9"},
		{"of all, and that is what the job is for", codes.InvalidArgument, all,
			func(j *record.Job) { j.Tolerant = true },
			"succeeded with failures, 0 processed", "failed 1 10"},
		{"others change one entity all the time", codes.Aborted, only, nil, "succeeded with failures, 34 processed",
			"failed 12"},
	} {
		t.Run(c.name, func(t *testing.T) {
			made := int64(0)
			inWorld(t, 35, function.Update, func(c *testworld.Call) error {
				made++
				c.N += 100
				return c.AwaitCalls(c, 1)
			},
				func(w *testworld.World, _ *Executor) {
					j := w.NewJob("j", "m")
					if c.change != nil {
						c.change(j)
					}
					refuseWrites(w, c.code, c.chosen)
					w.Begin(j)
					time.Sleep(24 * time.Hour)
					if got := said(w, "j"); !strings.HasPrefix(got, c.want) || !strings.Contains(got, c.failed) {
						w.Errorf("%s: %s", got, w.Job("j").Error)
					}
					for _, r := range w.Records(j) {
						made -= r.Calls
					}
					if made != 0 && w.Job("j").State != record.Failed {
						w.Errorf("%d calls are not recorded", made)
					}
					if n := w.N(12); n != 12 || c.chosen(13) != (w.N(13) == 13) {
						w.Errorf("12 is %d, 13 is %d", n, w.N(13))
					}
				})
		})
	}
}

// planned returns the plan of a delivery's next page, with up to n entities.
func planned(w *testworld.World, d *delivery, n int) planner.Plan {
	w.Helper()
	p, err := d.planner.Plan(w.Context(), d.job, d.record)
	if err != nil {
		w.Fatal(err)
	}
	p.Shorten(n)
	return p
}

// TestRefused checks what a delivery does with a page that can't be committed.
func TestRefused(t *testing.T) {
	refusal := fault.AsCommitRefusal(status.Error(codes.InvalidArgument, "injected"))
	aborted := status.Error(codes.Aborted, "injected")
	for _, c := range []struct {
		name     string
		err      error
		n        int // number of entities in the page
		visit    bool
		alone    bool
		wrong    bool // whether the error is returned
		narrowed int64
		failed   bool // whether an entity becomes a failure
		retried  bool // whether an entity gets a range of its own
	}{
		{name: "another error", err: errInjected, n: 10, wrong: true},
		{name: "another error of one entity", err: errInjected, n: 1, wrong: true},
		{name: "a refusal", err: refusal, n: 10, narrowed: 5},
		{name: "a refusal of two", err: refusal, n: 2, narrowed: 1},
		{name: "a refusal of one", err: refusal, n: 1, failed: true},
		{name: "a refusal of a visit", err: refusal, n: 10, visit: true, narrowed: 5},
		{name: "a conflict", err: aborted, n: 10, narrowed: 5},
		{name: "a conflict of one", err: aborted, n: 1, retried: true},
		{name: "a conflict of one in its own range", err: aborted, n: 1, alone: true, wrong: true},
		{name: "a conflict of a visit", err: aborted, n: 10, visit: true, wrong: true},
		{name: "a conflict of a visit of one", err: aborted, n: 1, visit: true, wrong: true},
		{name: "others change an entity", err: errHot, n: 10, narrowed: 5},
		{name: "others change the only entity", err: errHot, n: 1, retried: true},
		{name: "a batch", err: page.BatchError{Entities: 6, Cause: errBad}, n: 10, narrowed: 3},
		{name: "a batch of one", err: page.BatchError{Entities: 1, Cause: errBad}, n: 10, wrong: true},
		{name: "a batch of a visit", err: page.BatchError{Entities: 6, Cause: errBad}, n: 10, visit: true, narrowed: 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			mode := function.Update
			if c.visit {
				mode = function.Visit
			}
			inWorld(t, 10, mode, nil, func(w *testworld.World, x *Executor) {
				d := loaded(w, x, w.NewJob("j", "m"), func(r *record.Range) {
					if r.Alone = c.alone; c.alone {
						r.Start = at(1)[0]
					}
				})
				defer d.planner.Close()
				s, err := d.refused(w.Context(), planned(w, d, c.n), ours, c.err)
				if (err != nil) != c.wrong || s != ours {
					w.Errorf("%d, %v", s, err)
				}
				if c.alone && !fault.Refused(err) {
					w.Errorf("%v is not tried again later", err)
				}
				failed, retried := false, false
				for _, r := range w.Records(d.job) {
					if r.ID == d.record.ID && r.Narrowed != c.narrowed {
						w.Errorf("narrowed to %d", r.Narrowed)
					}
					failed = failed || r.Failed != ""
					retried = retried || r.ID != d.record.ID && r.State == record.Pending && r.Alone
				}
				if failed != c.failed || retried != c.retried {
					w.Errorf("failed %v, tried again %v", failed, retried)
				}
			})
		})
	}
}

// TestCulpritFails makes calls fail while a delivery records the entity that the database refuses.
func TestCulpritFails(t *testing.T) {
	refusal := fault.AsCommitRefusal(status.Error(codes.InvalidArgument, "injected"))
	for _, c := range []struct {
		name, method string
		tolerant     bool
		other        bool // whether another delivery has done the range
		wrong        bool
		state        record.JobState
	}{
		{name: "nothing", wrong: false, state: record.Failed},
		{name: "the commit", method: "Commit", wrong: true, state: record.Running},
		{name: "the sum of the job's work", method: "RunQuery", wrong: true, state: record.Running},
		{name: "nothing, of a tolerant job", method: "RunQuery", tolerant: true, state: record.Running},
		{name: "nothing, as the range is done", method: "RunQuery", other: true, state: record.Running},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 1, function.Update, nil, func(w *testworld.World, x *Executor) {
				j := w.NewJob("j", "m")
				j.Tolerant = c.tolerant
				d := loaded(w, x, j)
				defer d.planner.Close()
				p := planned(w, d, 1)
				stored(w, j, 10, 20)
				if c.other {
					if _, err := x.Store.UpdateRange(w.Context(), d.record.Key(), func(r *record.Range) bool {
						r.Finish(now())
						return true
					}); err != nil {
						w.Fatal(err)
					}
				}
				if c.method != "" {
					failsOnce(c.method)(w, d)
				}
				_, err := d.refused(w.Context(), p, ours, refusal)
				w.Intercept(nil)
				if job := w.Job("j"); (err != nil) != c.wrong || job.State != c.state {
					w.Errorf("%v; %s: %s", err, job.State, job.Error)
				}
			})
		})
	}
}

// A failed is a case of TestAfterFailure: a delivery that fails.
type failed struct {
	name     string
	cause    error
	refusals int64 // failed attempts before
	alone    bool
	before   func(w *testworld.World, d *delivery)
	s        standing
	wrong    error
	after    int64 // failed attempts afterwards
	tasks    bool  // whether the range gets a new task
	state    record.JobState
	trouble  string
	logs     string
}

// TestAfterFailure checks what happens to a range after a failed delivery.
func TestAfterFailure(t *testing.T) {
	refused := fault.Refusal{Summary: "refused", Cause: errBad}
	other := func(f func(r *record.Range)) func(w *testworld.World, d *delivery) {
		return func(w *testworld.World, d *delivery) { update(w, d.record, f) }
	}
	fails := func(method string, from int) func(w *testworld.World, d *delivery) {
		return func(w *testworld.World, _ *delivery) {
			on(w, method, func(n int, call func() (any, error)) (any, error) {
				if n >= from {
					return nil, errInjected
				}
				return call()
			})
		}
	}
	for _, c := range []failed{
		{name: "the database is away", cause: errInjected, wrong: errInjected},
		{name: "the function fails", cause: refused, s: superseded, after: 1, tasks: true,
			trouble: "pages are tried again, up to 3 times: job j: ", logs: "a page is tried again"},
		{name: "the function fails on a single entity", cause: refused, alone: true, s: superseded, after: 1,
			tasks:   true,
			trouble: "an entity is tried again, up to 3 times: job j: ", logs: "1 " + fault.Kind(errBad)},
		{name: "a single entity, and the database refuses", cause: fault.AsCommitRefusal(status.Error(
			codes.InvalidArgument, "injected")), alone: true, s: superseded, after: 1, tasks: true,
			trouble: "an entity is tried again, up to 3 times: "},
		{name: "the function fails for the last time", cause: refused, refusals: 2, state: record.Failed},
		{name: "the function's error is permanent", state: record.Failed,
			cause: fault.Refusal{Summary: "refused", Cause: errBad, Final: true}},
		{name: "no task can go on", cause: fault.Fatal(errBad), state: record.Failed},
		{name: "somebody has resumed the job", cause: fault.Fatal(errBad), s: superseded, tasks: true,
			before:  func(_ *testworld.World, d *delivery) { j := *d.job; j.Epoch--; d.job = &j },
			trouble: "pages are tried again, up to 3 times: job j: "},
		{name: "a service is busy", cause: fault.Refusal{Summary: "busy", Cause: errBad, Later: true}, refusals: 2,
			s: superseded, after: 2, tasks: true,
			trouble: "job j: ", logs: "waits for a service"},
		{name: "its own rate is low", cause: fault.Refusal{Summary: "busy", Cause: errBad, Later: true, Own: true},
			s: superseded, tasks: true, logs: "waits for its calls"},
		{name: "another delivery has cut the range", cause: refused, wrong: refused,
			before: other(func(r *record.Range) { r.Cut = true })},
		{name: "the range has another task", cause: refused, s: superseded,
			before: other(func(r *record.Range) { r.Generation++ })},
		{name: "another delivery has done the range", cause: refused, s: done,
			before: other(func(r *record.Range) { r.Finish(now()) })},
		{name: "the database fails, too", cause: refused, before: fails("Commit", 1), wrong: errInjected},
		{name: "the job can't be failed", cause: fault.Fatal(errBad), before: fails("Commit", 2), wrong: errInjected},
		{name: "the failed job can't be read", cause: fault.Fatal(errBad), before: fails("Lookup", 2),
			wrong: errInjected,
			state: record.Failed},
		{name: "the queue fails", cause: refused, after: 1, before: fails("CreateTask", 1), wrong: errInjected},
		{name: "the job can't say so", cause: refused, s: superseded, after: 1, tasks: true, before: fails("Commit", 2),
			logs: "a job's status can't say what is wrong"},
	} {
		t.Run(c.name, func(t *testing.T) { inWorld(t, 0, function.Update, nil, c.fail) })
	}
}

// fail makes the delivery fail, and checks the records of its range and job.
func (c failed) fail(w *testworld.World, x *Executor) {
	w.Helper()
	var log bytes.Buffer
	x.Log = slog.New(slog.NewTextHandler(&log, nil))
	x.Observer.Log, x.Observer.Flaws = x.Log, x.Log
	got, j := take(w), w.NewJob("j", "m")
	d := loaded(w, x, j, func(r *record.Range) {
		if r.Refusals, r.Begun, r.Alone = c.refusals, "own", c.alone; c.alone {
			r.Start = at(1)[0]
		}
		r.Deaths, r.DeathsCountAt, r.SeenTask, r.SeenTry = []string{"own"}, []time.Time{now()}, "t", 3
	})
	d.state.mark = "own"
	d.announced.Store(7)
	if c.before != nil {
		c.before(w, d)
	}
	known := d.record.Generation
	s, err := d.afterFailure(w.Context(), c.cause)
	w.Intercept(nil)
	if s != c.s || (err != nil) != (c.wrong != nil) || errors.As(c.wrong, new(fault.Refusal)) &&
		!errors.As(err, new(fault.Refusal)) {
		w.Errorf("%d, %v", s, err)
	}
	time.Sleep(2 * time.Minute)
	synctest.Wait()
	r, job := w.Records(j)[j.Root()], w.Job("j")
	if r.State == record.Pending && r.Refusals != c.after || job.State != cmp.Or(c.state, record.Running) ||
		!strings.HasPrefix(job.Trouble, c.trouble) || c.trouble == "" && job.Trouble != "" {
		w.Errorf("%d refusals, %s: %q", r.Refusals, job.State, job.Trouble)
	}
	if !strings.Contains(log.String(), c.logs) {
		w.Errorf("logs %s", log.String())
	}
	got.mu.Lock()
	defer got.mu.Unlock()
	if (len(got.at[r.ID]) > 0) != c.tasks {
		w.Errorf("new tasks after %v", got.at[r.ID])
	}
	if c.tasks {
		checkRenewed(w, d, r, known)
	}
}

// checkRenewed checks the record of a range that has got a new task. It must have neither a mark
// nor a death of the delivery.
func checkRenewed(w *testworld.World, d *delivery, r *record.Range, known int64) {
	w.Helper()
	if len(r.Deaths) > 0 || r.SeenTask != "" {
		w.Errorf("%d deaths, of task %q", len(r.Deaths), r.SeenTask)
	}
	if r.Generation != known+1 || r.Begun+d.state.mark != "" || r.Calls-d.announced.Load() != 7 {
		w.Errorf("generation %d, mark %q and %q, %d calls and %d", r.Generation, r.Begun, d.state.mark, r.Calls,
			d.announced.Load())
	}
}

// TestShowTrouble checks which texts a job's status shows.
func TestShowTrouble(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(j *record.Job)
		want   string
	}{
		{"the first one", func(*record.Job) {}, "new"},
		{"after another one", func(j *record.Job) { j.Trouble = "old" }, "old"},
		{"of a paused job", func(j *record.Job) { j.State = record.Paused }, ""},
		{"before a resume", func(j *record.Job) { j.Epoch++ }, ""},
	} {
		inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
			d := loaded(w, x, w.NewJob("j", "m"))
			if _, err := x.Store.UpdateJob(w.Context(), d.job.Ref(), func(j *record.Job) (bool, error) {
				c.change(j)
				return true, nil
			}); err != nil {
				w.Fatal(err)
			}
			d.showTrouble(w.Context(), "new")
			if got := w.Job("j").Trouble; got != c.want {
				w.Errorf("%s: %q", c.name, got)
			}
		})
	}
}

// TestShowLater checks for how long a wait for a service is reported.
func TestShowLater(t *testing.T) {
	for _, c := range []struct {
		waited time.Duration
		before string
		own    bool
		shows  bool
	}{
		{waited: time.Second, shows: true}, {waited: time.Minute, shows: true}, {waited: time.Minute + 1},
		{waited: time.Second, own: true}, {waited: time.Second, before: "old"},
	} {
		inWorld(t, 0, function.Update, nil, func(w *testworld.World, x *Executor) {
			d := loaded(w, x, w.NewJob("j", "m"))
			d.job.Trouble = c.before
			d.record.LaterFrom = time.Now().Add(-c.waited)
			d.showLater(w.Context(), errBad, c.own)
			if got := w.Job("j").Trouble; (got != "") != c.shows {
				w.Errorf("%+v: %q", c, got)
			}
		})
	}
}

// TestLaterDelay checks how long a range waits for a service that refuses calls.
func TestLaterDelay(t *testing.T) {
	for _, c := range []struct{ waited, after, least, most time.Duration }{
		{0, 0, 2 * time.Second, 3 * time.Second}, {4 * time.Second, 0, 2 * time.Second, 3 * time.Second},
		{40 * time.Second, 0, 10 * time.Second, 15 * time.Second}, {time.Hour, 0, time.Minute, 90 * time.Second},
		{0, time.Hour, time.Hour, time.Hour + time.Minute},
	} {
		r := new(record.Range)
		if c.waited > 0 {
			r.LaterFrom = time.Now().Add(-c.waited)
		}
		for range 100 {
			if got := laterDelay(r, c.after); got < c.least || got > c.most+time.Second {
				t.Fatalf("%+v: %v", c, got)
			}
		}
	}
}

// TestSetApart checks the error of an entity that other clients change all the time. It tells how
// the function's last call failed, but not which call of the database was refused.
func TestSetApart(t *testing.T) {
	failed := fmt.Errorf("%w; the function's last call failed", errHot)
	for _, c := range []struct{ cause, want error }{{failed, failed}, {errInjected, errHot}} {
		inWorld(t, 1, function.Update, nil, func(w *testworld.World, x *Executor) {
			d := loaded(w, x, w.NewJob("j", "m"), func(r *record.Range) { r.Alone = true })
			_, err := d.setApart(w.Context(), planner.Plan{At: at(1)}, c.cause)
			if refusal := new(fault.Refusal); !errors.As(err, refusal) || refusal.Cause.Error() != c.want.Error() {
				w.Errorf("%v: %v, want the cause %v", c.cause, err, c.want)
			}
		})
	}
}

package mapper_test

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// An operation is something that an operator asks of the job "j".
type operation struct {
	before func(*guardWorld)                        // what has become of the job until then
	do     func(context.Context, *guardWorld) error // by one of the processes
	want   mapper.State                             // what becomes of the job; empty: it is gone
	taken  func(*mapper.Status) bool                // what the job looks like once the operation has taken effect
}

// A guardWorld is a world of two processes, and two of another service, of which none serves
// anybody who revives jobs.
type guardWorld struct {
	*world
	fleet  *fleet
	others *fleet // of a second service, with another queue
	mapper *mapper.Mapper[mapper.NoParams]
	mended atomic.Bool
	slow   atomic.Bool
}

func (w *guardWorld) begin(ctx context.Context) error {
	_, err := w.mapper.Start(ctx, w.fleet.pick().engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
		&mapper.StartOptions{ID: "j", PageSize: 10})
	return err
}

// must begins the job, and waits for a while.
func (w *guardWorld) must(while time.Duration, err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
	time.Sleep(while)
}

var operations = map[string]operation{
	"start": {
		before: func(*guardWorld) {},
		do:     func(ctx context.Context, w *guardWorld) error { return w.begin(ctx) },
		want:   mapper.StateSucceededWithFailures,
		taken:  func(s *mapper.Status) bool { return s != nil },
	},
	"resume": {
		before: func(w *guardWorld) {
			w.must(200*time.Millisecond, w.begin(w.Context()))
			w.must(time.Hour, w.engine.Job("j").Pause(w.Context()))
		},
		do:    func(ctx context.Context, w *guardWorld) error { return w.fleet.pick().engine.Job("j").Resume(ctx) },
		want:  mapper.StateSucceededWithFailures,
		taken: func(s *mapper.Status) bool { return s.State != mapper.StatePaused },
	},
	"retry": {
		before: func(w *guardWorld) {
			w.must(time.Hour, w.begin(w.Context()))
			w.mended.Store(true)
		},
		do:    func(ctx context.Context, w *guardWorld) error { return w.fleet.pick().engine.Job("j").Retry(ctx, nil) },
		want:  mapper.StateSucceeded,
		taken: func(s *mapper.Status) bool { return s.State != mapper.StateSucceededWithFailures },
	},
	"clean up": {
		before: func(w *guardWorld) { w.must(time.Hour, w.begin(w.Context())) },
		do: func(ctx context.Context, w *guardWorld) error {
			return w.fleet.pick().engine.Job("j").CleanUp(ctx, &mapper.CleanUpOptions{IncludeJob: true})
		},
		taken: func(s *mapper.Status) bool { return s == nil || s.CleaningUp },
	},
	"clean up again": { // the first one ends meanwhile
		before: func(w *guardWorld) {
			w.must(time.Hour, w.begin(w.Context()))
			w.must(0, w.engine.Job("j").CleanUp(w.Context(), &mapper.CleanUpOptions{IncludeFailures: true}))
		},
		do: func(ctx context.Context, w *guardWorld) error {
			return w.fleet.pick().engine.Job("j").CleanUp(ctx, &mapper.CleanUpOptions{IncludeFailures: true})
		},
		want:  mapper.StateSucceededWithFailures,
		taken: func(*mapper.Status) bool { return true },
	},
	"clean up what was aborted": {
		before: func(w *guardWorld) {
			w.must(200*time.Millisecond, w.begin(w.Context()))
			w.must(time.Hour, w.engine.Job("j").Abort(w.Context()))
		},
		do: func(ctx context.Context, w *guardWorld) error {
			return w.fleet.pick().engine.Job("j").CleanUp(ctx, &mapper.CleanUpOptions{IncludeJob: true})
		},
		taken: func(s *mapper.Status) bool { return s == nil || s.CleaningUp },
	},
	"move": {
		before: func(w *guardWorld) {
			w.slow.Store(true)
			w.must(10*time.Second, w.begin(w.Context()))
		},
		do:    move,
		want:  mapper.StateSucceededWithFailures,
		taken: moved,
	},
	"move what is cleaned up": {
		before: func(w *guardWorld) {
			w.must(time.Hour, w.begin(w.Context()))
			w.must(0, w.engine.Job("j").CleanUp(w.Context(), &mapper.CleanUpOptions{IncludeJob: true}))
		},
		do:    move,
		taken: func(s *mapper.Status) bool { return s == nil || moved(s) },
	},
}

func move(ctx context.Context, w *guardWorld) error { return w.others.pick().engine.Job("j").Move(ctx) }

func moved(s *mapper.Status) bool { return s.Queue == otherQueue }

// TestOperatorsDie has the process of an operator die, or stop for three hours, or stop for minutes
// and die behind the next commit: before some calls that it makes, and after some, and in
// .ci/nightly at all of them. The operator asks again only if the job is as it was before. Nobody
// revives it, and tasks are lost, but for sweeps: the job comes to its end within minutes, and
// leaves no task behind.
func TestOperatorsDie(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	die, stop := func(p *process) { p.fleet.kill(p) }, func(p *process) { p.fleet.freeze(p) }
	for name, op := range operations {
		for what, planned := range map[string]struct {
			happen  func(*process)
			stopped time.Duration
			deadly  bool
		}{
			"dies":  {happen: die},
			"stops": {happen: stop, stopped: 3 * time.Hour},
			// jobs still run, and a guard has come
			"stops and dies": {happen: stop, stopped: 4 * time.Minute, deadly: true},
		} {
			t.Run(name+" "+what, func(t *testing.T) {
				t.Parallel()
				step := 1
				if *testflag.Seeds == 0 {
					step = testflag.Size(t, 15, 5, 1) // every call and answer in so many runs, on average
				}
				reached, after := true, rand.IntN(step)
				for ; reached && !t.Failed(); after += step {
					m := &mishap{happen: planned.happen, deadly: planned.deadly, after: after}
					synctest.Test(t, func(t *testing.T) { testOperatorDies(t, op, m, planned.stopped) })
					reached = m.happened
				}
				if t.Logf("%d calls and answers", after-step); after < 8 {
					t.Errorf("a mishap behind %d calls and answers does not happen", after)
				}
			})
		}
	}
}

// TestResumeUnderWay has the process of an operator die behind the commit with which a job is
// resumed that runs: the delivery that is under way enqueues what it leaves, and nobody waits for
// the guard.
func TestResumeUnderWay(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: few(1)}, steadyCredit)
		operators := newFleetOf(w, queueName, target, 1, 1, steadyCredit)
		keys := names(300)
		w.putAccounts(keys)
		job, err := steadyCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
			&mapper.StartOptions{PageSize: 10})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(3*time.Second + 700*time.Millisecond)
		m := &mishap{happen: operators.kill, commit: true}
		if err := operators.pick().engine.Job(job.ID).Resume(m.with(t.Context())); err == nil || !m.happened {
			t.Errorf("resumed: %v", err)
		}
		s := w.wait(job)
		if took := s.Ended.Sub(s.Created); took > 40*time.Second {
			t.Errorf("300 entities of 100 ms took one worker %v", took)
		}
		w.wantBalances(keys, 10)
	})
}

// testOperatorDies has an operator meet a mishap. Processes that are stopped go on after a while.
func testOperatorDies(t *testing.T, op operation, m *mishap, stopped time.Duration) {
	planned := m.after
	w := &guardWorld{}
	w.mapper = mapper.Update("mended", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
		time.Sleep(10 * time.Millisecond)
		if w.slow.Load() {
			time.Sleep(20 * time.Second)
		}
		if strings.HasSuffix(a.Key.Name, "7") && !w.mended.Load() {
			return mapper.Permanent(errors.New("no"))
		}
		a.Value.Balance += 10
		return nil
	})
	w.world = newWorld(t, setting{queue: few(2)}, w.mapper)
	w.fleet = newFleet(w.world, 1, 2, w.mapper)
	w.others = newFleetOf(w.world, otherQueue, otherTarget, 2, 2, w.mapper)
	w.otherHandler(w.others)
	w.putAccounts(names(60))
	op.before(w)
	answer := make(chan error, 1)
	go func() { answer <- op.do(m.with(t.Context()), w) }()
	var err error
	select {
	case err = <-answer:
	case <-time.After(cmp.Or(stopped, 3*time.Hour)):
		w.fleet.thaw()
		w.others.thaw()
		err = <-answer
	}
	status := w.statusOf("j")
	if !op.taken(status) {
		if err == nil {
			t.Errorf("mishap %d: the operation says that it has taken effect, and the job is %+v", planned, status)
		}
		w.must(0, op.do(t.Context(), w))
	} else {
		if s := w.statusOf("j"); s != nil && (s.State == mapper.StateRunning || s.CleaningUp) &&
			w.tasks("/sweep") == 0 {
			t.Errorf("mishap %d: the job goes on without a sweep: %+v", planned, s)
		}
		for _, path := range []string{"range", "replay", "cleanup"} {
			w.lose("/mapper/" + path) // the sweeps have to be there, too
		}
	}
	for waited := time.Duration(0); ; waited += 5 * time.Second {
		status := w.statusOf("j")
		if op.want == "" && status == nil || status != nil && status.State == op.want && !status.CleaningUp {
			break
		}
		if waited > 15*time.Minute {
			t.Fatalf("the job is %+v, want %q", status, op.want)
		}
		time.Sleep(5 * time.Second)
	}
	time.Sleep(time.Hour)
	if n := w.tasks(""); n > 0 {
		t.Errorf("%d tasks are left", n)
	}
}

// statusOf returns the status of a job; nil: there is none.
func (w *guardWorld) statusOf(id string) *mapper.Status {
	w.Helper()
	status, err := w.engine.Job(id).Status(w.Context())
	if err != nil && !errors.Is(err, mapper.ErrNoSuchJob) {
		w.Fatal(err)
	}
	return status
}

package protocol_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// slowCredit adds an amount to accounts, and takes 10 ms for each.
var slowCredit = mapper.Update("slow-credit", func(_ context.Context, a *mapper.Entity[account], p credit) error {
	time.Sleep(10 * time.Millisecond)
	a.Value.Balance += p.Amount
	a.Count("credited", 1)
	return nil
})

func few(n int32) *cloudtaskspb.Queue {
	return &cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: n}}
}

func (w *world) startSlow() *mapper.Job {
	w.Helper()
	job, err := slowCredit.Start(w.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
		&mapper.StartOptions{ExpectedWorkers: 100, ID: "slow", PageSize: 50})
	if err != nil {
		w.Fatal(err)
	}
	return job
}

func (w *world) status(job *mapper.Job) *mapper.Status {
	w.Helper()
	s, err := job.Status(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return s
}

// TestPauseAndResume pauses a job in the middle for days, and resumes it. No entity may be lost or
// processed twice.
func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: few(4)}, slowCredit)
		keys := names(2000)
		w.putAccounts(keys)
		job := w.startSlow()
		for round := range 3 {
			time.Sleep(time.Second)
			if err := job.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second) // until pages that were running have committed
			paused := w.status(job)
			if paused.State != mapper.StatePaused || paused.Processed == 0 || paused.Processed == 2000 {
				t.Fatalf("round %d: %+v", round, paused)
			}
			time.Sleep(72 * time.Hour)
			if s := w.status(job); s.Processed != paused.Processed {
				t.Errorf("round %d: a paused job went on from %d to %d", round, paused.Processed, s.Processed)
			}
			if err := job.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if s := w.wait(job); s.Counters["credited"] != 2000 {
			t.Errorf("status %+v", s)
		}
		w.wantBalances(keys, 10)
		for name, control := range map[string]func(context.Context) error{"pause": job.Pause, "resume": job.Resume,
			"abort": job.Abort} {
			if err := control(t.Context()); !errors.Is(err, mapper.ErrWrongState) {
				t.Errorf("%s of a job that has ended: %v", name, err)
			}
			if err := w.engine.Job("none").Pause(t.Context()); !errors.Is(err, mapper.ErrNoSuchJob) {
				t.Errorf("%s of no job: %v", name, err)
			}
		}
	})
}

// TestAbort aborts a job in the middle. Each account must have been credited once or not at all,
// and nothing may run afterwards.
func TestAbort(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: few(4)}, slowCredit)
		keys := names(2000)
		w.putAccounts(keys)
		job := w.startSlow()
		time.Sleep(time.Second)
		if err := job.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		s := w.status(job)
		time.Sleep(24 * time.Hour)
		after := w.status(job)
		if after.State != mapper.StateAborted || after.Processed != s.Processed || after.Processed == 2000 ||
			after.Ended.IsZero() {
			t.Errorf("%+v, then %+v", s, after)
		}
		var credited int64
		for i, k := range keys {
			a := w.account(k)
			switch a.Balance - int64(i) {
			case 10:
				credited++
			case 0:
			default:
				t.Errorf("%v has %d", k, a.Balance)
			}
		}
		if credited != after.Processed {
			t.Errorf("%d accounts are credited, the job says %d", credited, after.Processed)
		}
		if err := job.Resume(t.Context()); !errors.Is(err, mapper.ErrWrongState) {
			t.Errorf("resume: %v", err)
		}
	})
}

// TestPurgedQueue deletes all tasks of a job, several times. The next sweep, which is a periodic
// task, or a call of Resume must enqueue new tasks.
func TestPurgedQueue(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for _, resume := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, setting{queue: few(4)}, slowCredit)
			keys := names(3000)
			w.putAccounts(keys)
			job := w.startSlow()
			purge := func() {
				client, err := w.emulator.TasksClient(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer client.Close()
				it := client.ListTasks(t.Context(), &cloudtaskspb.ListTasksRequest{Parent: queueName})
				for {
					task, err := it.Next()
					if err != nil {
						break
					}
					// Spare the tasks of sweeps, except if Resume is to replace them, too.
					if !resume && task.ScheduleTime.AsTime().After(time.Now().Add(time.Second)) {
						continue
					}
					_ = client.DeleteTask(t.Context(), &cloudtaskspb.DeleteTaskRequest{Name: task.Name})
				}
			}
			for range 3 {
				time.Sleep(time.Second)
				purge()
				if resume {
					time.Sleep(time.Hour)
					if s := w.status(job); s.State != mapper.StateRunning {
						t.Fatalf("without any task the job is %+v", s)
					}
					if err := job.Resume(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			if s := w.wait(job); s.Counters["credited"] != 3000 {
				t.Errorf("status %+v", s)
			}
			w.wantBalances(keys, 10)
		})
	}
}

// TestRevive deletes all tasks of running jobs, including their sweeps, several times. A call of
// ReviveJobs must enqueue new sweeps. A job that still has a sweep must keep only that one.
func TestRevive(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: few(4)}, slowCredit, addCredit)
		keys := names(3000)
		w.putAccounts(keys)
		w.wait(w.start(1, nil)) // ReviveJobs must not change a job that has ended
		job := w.startSlow()
		time.Sleep(time.Second)
		for range 4 { // earlier than the first sweep is due
			w.lose("") // tasks of all paths
			for range 5 {
				resp := httptest.NewRecorder()
				w.handler.ServeHTTP(resp, httptest.NewRequest(http.MethodPost, "/mapper/revive", nil))
				if resp.Code != http.StatusOK {
					t.Errorf("revive: %d", resp.Code)
				}
			}
			if n := w.tasks("/sweep"); n != 1 {
				t.Errorf("there are %d sweeps", n)
			}
		}
		if s := w.wait(job); s.Counters["credited"] != 3000 {
			t.Errorf("status %+v", s)
		}
		w.wantBalances(keys, 11)
		time.Sleep(time.Hour)
		if err := w.engine.ReviveJobs(t.Context()); err != nil || w.tasks("") > 0 {
			t.Errorf("after all have ended: %d tasks, %v", w.tasks(""), err)
		}
	})
}

// TestHandlerDownForADay makes the service unreachable for a day.
func TestHandlerDownForADay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: few(4)}, slowCredit)
		keys := names(1000)
		w.putAccounts(keys)
		up := time.Now().Add(24 * time.Hour)
		w.handler = downUntil(up, w.engine.Handler())
		job := w.startSlow()
		time.Sleep(time.Until(up))
		if err := job.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.wait(job)
		w.wantBalances(keys, 10)
	})
}

func downUntil(up time.Time, h http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if time.Now().Before(up) {
			rw.WriteHeader(http.StatusBadGateway)
			return
		}
		h.ServeHTTP(rw, r)
	})
}

// TestFailuresAndRetry lists the failures of a job, and retries them after the test has removed
// their cause.
func TestFailuresAndRetry(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	n := 2600 // enough failures that their list has two pages
	if testing.Short() {
		n = 500
	}
	failing := n / 25
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		broken.Store(true)
		m := mapper.Update("fails", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			a.Value.Balance += 10
			a.Count("seen", 1)
			if last := len(a.Key.Name) - 2; broken.Load() && strings.Contains("02 27 52 77", a.Key.Name[last:]) {
				return fmt.Errorf("%s is broken", a.Key.Name)
			}
			return nil
		})
		w := newWorld(t, setting{}, m)
		w.handler = repeat(w.engine.Handler())
		keys := names(n)
		w.putAccounts(keys)
		s := over(w, m, &mapper.StartOptions{ID: "j", PageSize: 100})
		if s.State != mapper.StateSucceededWithFailures || s.Failures != int64(failing) ||
			s.Processed != int64(n-failing) {
			t.Fatalf("status %+v", s)
		}
		job := w.engine.Job("j")
		seen := make(map[string]bool)
		pages := 0
		for cursor := ""; ; pages++ {
			failures, next, err := job.FailuresPage(t.Context(), cursor)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range failures {
				if seen[f.Key.Name] || f.Error != f.Key.Name+" is broken" ||
					f.Attempts != mapper.DefaultUpdateAttempts ||
					f.Time.IsZero() {
					t.Errorf("failure %+v", f)
				}
				seen[f.Key.Name] = true
			}
			if cursor = next; cursor == "" {
				break
			}
		}
		if len(seen) != failing || pages < failing/101 {
			t.Errorf("%d failures in %d pages", len(seen), pages)
		}
		if _, _, err := job.FailuresPage(t.Context(), "nonsense"); !errors.Is(err, mapper.ErrInvalidArgument) {
			t.Errorf("a bad cursor: %v", err)
		}
		if err := job.Retry(t.Context(), nil); err != nil { // the entities fail once more
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		if s, err := job.Wait(ctx); err != nil || s.State != mapper.StateSucceededWithFailures ||
			s.Failures != int64(failing) || s.Processed != int64(n-failing) {
			t.Errorf("after a retry that failed again: status %+v, %v", s, err)
		}
		if failures, _, err := job.FailuresPage(t.Context(), ""); err != nil || len(failures) != min(100, failing) ||
			failures[0].Attempts != mapper.DefaultUpdateAttempts {
			t.Errorf("after a retry that failed again: %d failures, %v", len(failures), err)
		}
		broken.Store(false)
		if err := job.Retry(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		w.lose(replayTasks) // the next sweep must do the work of the lost tasks
		if s := w.wait(job); s.Failures != 0 || s.Processed != int64(n) || s.Counters["seen"] != int64(n) {
			t.Errorf("after the retry: %+v", s)
		}
		w.wantBalances(keys, 10)
	})
}

const replayTasks = "/mapper/replay"

// lose deletes the tasks with a path from the queues, or all tasks if path is empty.
func (w *world) lose(path string) {
	w.Helper()
	w.eachTask(path, func(client *cloudtasks.Client, name string) {
		// an error means that the task is gone
		_ = client.DeleteTask(w.Context(), &cloudtaskspb.DeleteTaskRequest{Name: name})
	})
}

// tasks returns the number of tasks with a path in the queues.
func (w *world) tasks(path string) (n int) {
	w.Helper()
	w.eachTask(path, func(*cloudtasks.Client, string) { n++ })
	return n
}

func (w *world) eachTask(path string, f func(*cloudtasks.Client, string)) {
	w.Helper()
	client, err := w.emulator.TasksClient(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	defer client.Close()
	for _, queue := range []string{queueName, otherQueue} { // the other queue may not exist
		it := client.ListTasks(w.Context(), &cloudtaskspb.ListTasksRequest{Parent: queue})
		for task, err := it.Next(); err == nil; task, err = it.Next() {
			if strings.HasSuffix(task.GetHttpRequest().GetUrl(), path) {
				f(client, task.Name)
			}
		}
	}
}

// TestFailureLimit runs a job with more failures than its limit allows, so that it is paused. Each
// Resume must allow the same number of failures again.
func TestFailureLimit(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Update("fails", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			if a.Key.Name[len(a.Key.Name)-2:] == "77" {
				return mapper.Permanent(errors.New("broken"))
			}
			a.Value.Balance += 10
			return nil
		})
		w := newWorld(t, setting{queue: few(1)}, m)
		keys := names(10000)
		w.putAccounts(keys)
		s := over(w, m, &mapper.StartOptions{ID: "j", PageSize: 100, FailureLimit: 20})
		job := w.engine.Job("j")
		for rounds := 0; s.State == mapper.StatePaused; rounds++ {
			if s.Failures != int64(21*(rounds+1)) || s.Error == "" || rounds > 5 {
				t.Fatalf("round %d: %+v", rounds, s)
			}
			if err := job.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			var err error
			if s, err = job.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if s.State != mapper.StateSucceededWithFailures || s.Failures != 100 || s.Processed != 9900 {
			t.Errorf("status %+v", s)
		}
	})
}

// TestResumeHandsOver resumes a job whose deliveries continue from page to page. A delivery must
// leave the rest of its range to the task that Resume has enqueued. Otherwise pages would be
// processed twice.
func TestResumeHandsOver(t *testing.T) {
	t.Parallel()
	const n = 2000
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		m := mapper.Visit("look", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
			time.Sleep(10 * time.Millisecond)
			calls.Add(1)
			return nil
		})
		w := newWorld(t, setting{queue: few(20)}, m)
		w.putAccounts(names(n))
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{PageSize: 20, ExpectedWorkers: 4, Splitting: mapper.Splitting{First: 4, FanOut: 1}})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second + time.Millisecond) // so that no two deliveries end at the same time
		if err := job.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.wait(job)
		if twice := calls.Load() - n; twice > n/10 {
			t.Errorf("%d of %d accounts were visited twice", twice, n)
		}
	})
}

// An operation is a call by which an operator controls the job "j", with the state in which it is
// tested.
type operation struct {
	before func(*guardWorld)                        // brings the job into the state in which the call is made
	do     func(context.Context, *guardWorld) error // makes the call in one of the processes
	want   mapper.State                             // the job's state at the end of the test; empty: the job is deleted
	taken  func(*mapper.Status) bool                // whether a status shows that the call took effect
}

// A guardWorld has two processes of a service, and two of another service. Nobody calls ReviveJobs
// in it, so lost tasks are found only by sweeps and guards.
type guardWorld struct {
	*world
	fleet  *fleet
	others *fleet // the processes of the other service, which has another queue
	mapper *mapper.Mapper[mapper.NoParams]
	mended atomic.Bool
	slow   atomic.Bool
}

func (w *guardWorld) begin(ctx context.Context) error {
	_, err := w.mapper.Start(ctx, w.fleet.pick().engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
		&mapper.StartOptions{ID: "j", PageSize: 10})
	return err
}

// must fails the test if err is not nil. Otherwise it sleeps for the duration while.
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
	"clean up again": { // the first clean-up ends during the call
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

// TestOperatorsDie disturbs the process in which an operator's call runs, at some of the calls that
// it makes, before or after them; in .ci/nightly at all of them. The process dies, stops for three
// hours, or stops for minutes and dies after its next commit. The operator repeats the call only if
// the job is unchanged. Nobody calls ReviveJobs, and all tasks except sweeps are lost. Despite
// that, the job must end within minutes, and leave no task.
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
			// until then, jobs still run, and a guard has been delivered
			"stops and dies": {happen: stop, stopped: 4 * time.Minute, deadly: true},
		} {
			t.Run(name+" "+what, func(t *testing.T) {
				t.Parallel()
				step := 1
				if *testflag.Seeds == 0 {
					step = testflag.Size(t, 20, 20, 1) // of this many calls and answers, on average one has a mishap
				}
				reached, after := true, rand.IntN(step)
				for ; reached && !t.Failed(); after += step {
					m := &mishap{happen: planned.happen, deadly: planned.deadly, after: after}
					synctest.Test(t, func(t *testing.T) { testOperatorDies(t, op, m, planned.stopped) })
					reached = m.happened
				}
				if t.Logf("%d calls and answers", after-step); after < 8 {
					t.Errorf("the mishap after %d calls and answers did not happen", after)
				}
			})
		}
	}
}

// TestResumeUnderWay resumes a running job, and kills the operator's process after the commit. A
// delivery that still runs must enqueue the rest of its range, so that nothing waits for the guard,
// the task that would repair this.
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

// testOperatorDies runs an operation whose process has a mishap. A process that was stopped
// continues after the time stopped.
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
			w.lose("/mapper/" + path) // the sweeps' tasks must exist, too
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

// statusOf returns the status of a job, or nil if it does not exist.
func (w *guardWorld) statusOf(id string) *mapper.Status {
	w.Helper()
	status, err := w.engine.Job(id).Status(w.Context())
	if err != nil && !errors.Is(err, mapper.ErrNoSuchJob) {
		w.Fatal(err)
	}
	return status
}

package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
)

// advancing replaces the engine of a world by one that advances the given schedules: it starts the
// runs of waiting ticks.
func (w *world) advancing(log io.Writer, mappers []mapper.AnyMapper, schedules ...mapper.AnySchedule) {
	w.Helper()
	var err error
	w.engine, err = mapper.NewEngine(w.client, w.queue, &mapper.EngineOptions{Mappers: mappers, Schedules: schedules,
		Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		w.Fatal(err)
	}
	w.handler = w.engine.Handler()
}

// minute returns the time of tick n of the tests' schedules, which tick every minute.
func minute(n int) time.Time { return midnight.Add(time.Duration(n) * time.Minute) }

// tickOver calls Tick of a schedule, whose run is over the given kinds.
func (w *world) tickOver(s *mapper.Schedule[credit], at time.Time, kinds ...string) *mapper.TickResult {
	w.Helper()
	got, err := s.Tick(w.Context(), w.engine, at, mapper.Query{Kinds: kinds}, credit{1},
		&mapper.StartOptions{PageSize: 10})
	if err != nil {
		w.Fatal(err)
	}
	return got
}

// byHand starts a job of steadyCredit over kinds, as an operator does and not a schedule.
func (w *world) byHand(id string, kinds ...string) (*mapper.Job, error) {
	return steadyCredit.Start(w.Context(), w.engine, mapper.Query{Kinds: kinds}, credit{1},
		&mapper.StartOptions{ID: id, PageSize: 10})
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// wantTick checks the outcome of a tick, and the job that it names.
func (w *world) wantTick(got *mapper.TickResult, outcome mapper.TickOutcome, job string) {
	w.Helper()
	if got.Outcome != outcome || got.Job.ID != job {
		w.Errorf("the tick is %s, of job %s, want %s of job %s", got.Outcome, got.Job.ID, outcome, job)
	}
}

// putOthers puts n entities of the kind Other.
func (w *world) putOthers(n int) (keys []*datastore.Key) {
	w.Helper()
	for i := range n {
		keys = append(keys, datastore.NameKey("Other", fmt.Sprintf("o-%04d", i), nil))
	}
	_, err := w.client.PutMulti(w.Context(), keys, make([]account, n))
	w.must(err)
	return keys
}

// TestTickBesideAJob calls Tick of a schedule while a manually started job of the same mapper runs
// over the same kind. The tick must be skipped, or wait for the end of that job; it must never
// abort it. Further calls of Tick must return the same outcome.
func TestTickBesideAJob(t *testing.T) {
	t.Parallel()
	for _, overlap := range []mapper.Overlap{mapper.OverlapSkip, mapper.OverlapQueue, mapper.OverlapReplace} {
		t.Run(string(overlap), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, s := newWorld(t, setting{}), mapper.NewSchedule("nightly", steadyCredit, overlap)
				w.advancing(t.Output(), []mapper.AnyMapper{steadyCredit}, s)
				w.putAccounts(names(100))
				hand, err := w.byHand("by-hand", "Account")
				w.must(err)
				outcome := mapper.TickQueued
				if overlap == mapper.OverlapSkip {
					outcome = mapper.TickSkipped
				}
				for range 2 {
					w.wantTick(w.tickOver(s, minute(1), "Account"), outcome, "by-hand")
				}
				w.wait(hand) // until the job has succeeded
				time.Sleep(10 * time.Minute)
				if overlap == mapper.OverlapSkip {
					w.wantTick(w.tickOver(s, minute(1), "Account"), mapper.TickSkipped, "by-hand")
					w.wantBalances(names(100), 1)
					return
				}
				w.wantTick(w.tickOver(s, minute(1), "Account"), mapper.TickStarted, s.JobID(minute(1)))
				w.wantBalances(names(100), 2)
			})
		})
	}
}

// TestJobBesideARun starts, resumes and retries jobs manually while the run of a schedule processes
// one of their kinds.
func TestJobBesideARun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := newWorld(t, setting{}, steadyCredit), t.Context()
		bridge.Tick(w.engine, "nightly", "hourly")
		w.putAccounts(names(100))
		w.putOthers(10)
		s, other := mapper.NewSchedule("nightly", steadyCredit, mapper.OverlapSkip),
			mapper.NewSchedule("hourly", steadyCredit, mapper.OverlapQueue)
		early, err := w.byHand("early", "Account")
		w.must(err)
		w.must(early.Pause(ctx))
		run := w.tickOver(s, minute(1), "Account").Job // allowed, because the manual job is paused
		w.wantTick(&mapper.TickResult{Outcome: mapper.TickStarted, Job: run}, mapper.TickStarted, s.JobID(minute(1)))
		refused := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, mapper.ErrWrongState) || !strings.Contains(fmt.Sprint(err), run.ID) {
				t.Errorf("%s: %v, want that %s runs", what, err, run.ID)
			}
		}
		_, err = w.byHand("late", "Account")
		refused("a start", err)
		_, err = w.byHand("late", "Account", "Other")
		refused("a start over two kinds", err)
		refused("a resume", early.Resume(ctx))
		w.wantTick(w.tickOver(other, minute(2), "Other", "Account"), mapper.TickQueued, run.ID)
		_, err = w.byHand("free", "Other")
		w.must(err)
		w.must(run.Pause(ctx))
		w.must(early.Resume(ctx)) // allowed, because the run is paused
		if err := run.Resume(ctx); !errors.Is(err, mapper.ErrWrongState) || !strings.Contains(err.Error(), "early") {
			t.Errorf("a resume of the run: %v, want that early runs", err)
		}
		w.wantTick(w.tickOver(s, minute(3), "Account"), mapper.TickSkipped, run.ID)
		w.wait(early)
		w.must(run.Resume(ctx))
		w.wait(run)
		w.must(other.Advance(ctx, w.engine))
		w.wait(w.engine.Job(other.JobID(minute(2))))
		w.wantBalances(names(100), 3)
	})
}

// TestTwoSchedulesAtOnce calls ticks of two schedules at the same time. Their runs have some kinds
// in common. The runs must follow each other, and none may be lost.
func TestTwoSchedulesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{})
		a, b := mapper.NewSchedule("a", steadyCredit, mapper.OverlapQueue),
			mapper.NewSchedule("b", steadyCredit, mapper.OverlapReplace)
		w.advancing(t.Output(), []mapper.AnyMapper{steadyCredit}, a, b)
		w.putAccounts(names(100))
		others := w.putOthers(10)
		var group sync.WaitGroup
		got := make([]*mapper.TickResult, 4)
		for i, s := range []*mapper.Schedule[credit]{a, a, b, b} {
			// the second schedule has both kinds or one of them, which decides whose run is first
			kinds := []string{"Account", "Other"}[:1+i%2*i/3]
			group.Go(func() {
				for got[i] == nil { // repeat the call, as schedulers do
					got[i], _ = s.Tick(t.Context(), w.engine, minute(1), mapper.Query{Kinds: kinds}, credit{1},
						&mapper.StartOptions{PageSize: 10})
					time.Sleep(time.Second)
				}
			})
		}
		group.Wait()
		if a, b := got[0].Outcome, got[2].Outcome; (a == mapper.TickStarted) == (b == mapper.TickStarted) {
			t.Errorf("the ticks are %s and %s, want one that waits for the other", a, b)
		}
		time.Sleep(time.Hour)
		for _, s := range []*mapper.Schedule[credit]{a, b} {
			w.wait(w.engine.Job(s.JobID(minute(1))))
		}
		w.wantBalances(names(100), 2)
		apart(w, a.JobID(minute(1)), b.JobID(minute(1)))
		if n := w.account(others[0]).Balance; n > 1 {
			t.Errorf("the other kind was credited %d", n)
		}
	})
}

// apart checks that no two of the jobs have run at the same time.
func apart(w *world, ids ...string) {
	w.Helper()
	jobs, _, err := w.engine.JobsPage(w.Context(), nil, "")
	w.must(err)
	jobs = slices.DeleteFunc(jobs, func(j mapper.JobInfo) bool { return !slices.Contains(ids, j.ID) })
	for i := 1; i < len(jobs); i++ { // in the order of time; the list is in reverse order
		if before, after := jobs[i], jobs[i-1]; after.Created.Before(before.Ended) {
			w.Errorf("%s started at %v, before %s ended at %v", after.ID, after.Created, before.ID, before.Ended)
		}
	}
}

// TestPausedJobLetsATickStart pauses the job for whose end a tick waits. Then the tick must start
// its run, without a call of ReviveJobs.
func TestPausedJobLetsATickStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, s := newWorld(t, setting{}), mapper.NewSchedule("nightly", steadyCredit, mapper.OverlapQueue)
		w.advancing(t.Output(), []mapper.AnyMapper{steadyCredit}, s)
		w.putAccounts(names(100))
		hand, err := w.byHand("by-hand", "Account")
		w.must(err)
		w.wantTick(w.tickOver(s, minute(1), "Account"), mapper.TickQueued, "by-hand")
		w.must(hand.Pause(t.Context()))
		w.wait(w.engine.Job(s.JobID(minute(1))))
		w.must(hand.Resume(t.Context()))
		w.wait(hand)
		w.wantBalances(names(100), 2)
	})
}

// TestOverlapChanges deploys another setting for overlapping runs of a schedule, while one of its
// ticks waits. The tick must still start its run.
func TestOverlapChanges(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for _, now := range []mapper.Overlap{mapper.OverlapSkip, mapper.OverlapQueue, mapper.OverlapReplace} {
		t.Run(string(now), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, ctx := newWorld(t, setting{}, steadyCredit), t.Context()
				bridge.Tick(w.engine, "nightly")
				bridge.Tick(w.engine, "nightly", "hourly")
				w.putAccounts(names(100))
				hand, err := w.byHand("by-hand", "Account")
				w.must(err)
				w.wantTick(w.tickOver(mapper.NewSchedule("nightly", steadyCredit, mapper.OverlapQueue), minute(1),
					"Account"), mapper.TickQueued, "by-hand")
				s := mapper.NewSchedule("nightly", steadyCredit, now)
				w.must(s.Advance(ctx, w.engine))
				w.wantTick(w.tickOver(s, minute(1), "Account"), mapper.TickQueued, "by-hand")
				if now == mapper.OverlapSkip {
					w.wantTick(w.tickOver(s, minute(2), "Account"), mapper.TickSkipped, "by-hand")
				}
				w.wait(hand)
				w.must(s.Advance(ctx, w.engine))
				w.wait(w.engine.Job(s.JobID(minute(1))))
				w.wantTick(w.tickOver(s, minute(1), "Account"), mapper.TickStarted, s.JobID(minute(1)))
				if now == mapper.OverlapSkip {
					w.wantTick(w.tickOver(s, minute(2), "Account"), mapper.TickSkipped, "by-hand")
				}
				w.wantBalances(names(100), 2)
			})
		})
	}
}

// TestReplaceAbortsItsOwn calls a tick that replaces the schedule's last run, which is paused.
// Meanwhile a manually started job runs. The last run must not be aborted before the tick can start
// its own run.
func TestReplaceAbortsItsOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx, s := newWorld(t, setting{}), t.Context(),
			mapper.NewSchedule("nightly", steadyCredit, mapper.OverlapReplace)
		w.advancing(t.Output(), []mapper.AnyMapper{steadyCredit}, s)
		w.putAccounts(names(100))
		run := w.tickOver(s, minute(1), "Account").Job
		w.must(run.Pause(ctx))
		hand, err := w.byHand("by-hand", "Account")
		w.must(err)
		w.wantTick(w.tickOver(s, minute(2), "Account"), mapper.TickQueued, "by-hand")
		w.wantTick(w.tickOver(s, minute(3), "Account"), mapper.TickQueued, "by-hand")
		if status := w.status(run); status.State != mapper.StatePaused {
			t.Errorf("the run is %s before the tick can start", status.State)
		}
		w.wait(hand)
		time.Sleep(time.Minute)
		if status := w.status(run); status.State != mapper.StateAborted {
			t.Errorf("the run is %s", status.State)
		}
		w.wait(w.engine.Job(s.JobID(minute(3))))
		for i, want := range []mapper.TickOutcome{1: mapper.TickStarted, 2: mapper.TickSkipped, 3: mapper.TickStarted} {
			if i > 0 && w.tickOver(s, minute(i), "Account").Outcome != want {
				t.Errorf("tick %d is %s, want %s", i, w.tickOver(s, minute(i), "Account").Outcome, want)
			}
		}
	})
}

// TestTakenID lets a tick wait. Then a manually started job takes the ID that the tick's run would
// have. The tick must be refused, and the schedule must continue.
func TestTakenID(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logged
		w, s := newWorld(t, setting{}), mapper.NewSchedule("nightly", steadyCredit, mapper.OverlapQueue)
		w.advancing(&log, []mapper.AnyMapper{steadyCredit}, s)
		w.putAccounts(names(100))
		hand, err := w.byHand(s.JobID(minute(1)), "Account")
		w.must(err)
		w.wantTick(w.tickOver(s, minute(1), "Account"), mapper.TickQueued, hand.ID)
		w.wait(hand)
		time.Sleep(time.Minute)
		w.must(w.engine.ReviveJobs(t.Context()))
		if got := w.tickOver(s, minute(1), "Account"); got.Outcome != mapper.TickRefused {
			t.Errorf("the tick is %s, want that it is refused", got.Outcome)
		}
		if log.count("a tick that has waited can't start a run") != 1 {
			t.Errorf("the log does not say so once:\n%s", log.String())
		}
		w.wantTick(w.tickOver(s, minute(2), "Account"), mapper.TickStarted, s.JobID(minute(2)))
	})
}

// TestTickStalls stops the process that calls Tick, at each of its calls. Meanwhile a job of the
// same mapper ends, starts or is paused, or another process decides the tick. No two jobs may run
// at the same time. Only the run that the tick replaces may be aborted. A tick may wait only for a
// job that runs.
func TestTickStalls(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for _, overlap := range []mapper.Overlap{mapper.OverlapSkip, mapper.OverlapQueue, mapper.OverlapReplace} {
		for what, test := range map[string]struct {
			before    string // the job that runs before the tick: "run", "hand", or none
			meanwhile func(w *world, s *mapper.Schedule[credit])
		}{
			"the run ends": {"run", func(w *world, s *mapper.Schedule[credit]) {
				w.must(w.engine.Job(s.JobID(minute(1))).Abort(w.Context()))
			}},
			"a job ends": {"hand", func(w *world, _ *mapper.Schedule[credit]) {
				w.must(w.engine.Job("by-hand").Abort(w.Context()))
			}},
			"a job begins": {"", func(w *world, _ *mapper.Schedule[credit]) { _, _ = w.byHand("by-hand", "Account") }},
			"another job takes over": {"run", func(w *world, s *mapper.Schedule[credit]) {
				// returns an error if the run was already replaced
				_ = w.engine.Job(s.JobID(minute(1))).Pause(w.Context())
				_, _ = w.byHand("by-hand", "Account")
			}},
		} {
			t.Run(fmt.Sprint(overlap, "/", what), func(t *testing.T) {
				t.Parallel()
				step := testflag.Size(t, 4, 4, 1)
				for after, reached := rand.IntN(step), true; reached && !t.Failed(); after += step {
					m := &mishap{after: after}
					synctest.Test(t, func(t *testing.T) {
						w, s := newWorld(t, setting{}, steadyCredit),
							mapper.NewSchedule("nightly", steadyCredit, overlap)
						bridge.Tick(w.engine, s.Name())
						staller := newFleetOf(w, queueName, target, 1, 1, steadyCredit)
						w.putAccounts(names(20))
						switch test.before {
						case "run":
							w.tickOver(s, minute(1), "Account")
						case "hand":
							_, err := w.byHand("by-hand", "Account")
							w.must(err)
						}
						m.happen = func(*process) { test.meanwhile(w, s) }
						q := mapper.Query{Kind: "Account"}
						e := staller.pick().engine
						bridge.Tick(e, s.Name())
						got, err := s.Tick(m.with(t.Context()), e, minute(2), q, credit{1},
							&mapper.StartOptions{PageSize: 10})
						if err != nil {
							t.Fatalf("at call %d: %v", after, err)
						}
						running := 0
						for _, id := range []string{s.JobID(minute(1)), s.JobID(minute(2)), "by-hand"} {
							if status, err := w.engine.Job(id).Status(t.Context()); err == nil &&
								status.State == mapper.StateRunning {
								running++
							}
						}
						if running > 1 || got.Outcome != mapper.TickStarted && running == 0 && m.since > 0 {
							t.Errorf("at call %d: the tick is %s, of %s; %d jobs run", after, got.Outcome, got.Job.ID,
								running)
						}
						if hand, err := w.engine.Job("by-hand").Status(t.Context()); err == nil &&
							what != "a job ends" && hand.State == mapper.StateAborted {
							t.Errorf("at call %d: a job that is no run of the schedule was aborted", after)
						}
					})
					reached = m.happened
				}
			})
		}
	}
}

// TestTickCallsRefused refuses one call of a tick, and each in its turn. The tick first has to
// start the run of an earlier tick, which waits. After an error the caller repeats the call. No
// tick may be refused or lost because of that.
func TestTickCallsRefused(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for k, reached := int64(1), true; reached && !t.Failed(); k++ {
		synctest.Test(t, func(t *testing.T) {
			var calls atomic.Int64
			calls.Store(math.MinInt64)
			refuse := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo,
				handler grpc.UnaryHandler) (any, error) {
				if calls.Add(1) == k {
					return nil, status.Error(codes.PermissionDenied, "the caller lacks a role")
				}
				return handler(ctx, req)
			}
			w := newWorld(t, setting{emulator: emulator.Options{Interceptor: refuse}}, steadyCredit)
			s := mapper.NewSchedule("nightly", steadyCredit, mapper.OverlapQueue)
			bridge.Tick(w.engine, s.Name())
			w.putAccounts(names(20))
			w.tickOver(s, minute(1), "Account")
			w.tickOver(s, minute(2), "Account")
			w.must(w.engine.Job(s.JobID(minute(1))).Abort(t.Context()))
			tick := func(at time.Time) (*mapper.TickResult, error) {
				return s.Tick(t.Context(), w.engine, at, mapper.Query{Kind: "Account"}, credit{1},
					&mapper.StartOptions{PageSize: 10})
			}
			calls.Store(0)
			got, err := tick(minute(3))
			reached = calls.Swap(math.MinInt64) >= k
			if err != nil {
				got, err = tick(minute(3))
			}
			if err != nil || got.Outcome != mapper.TickQueued || got.Job.ID != s.JobID(minute(2)) {
				t.Errorf("after call %d was refused, the third tick is %+v, %v, want that it waits for the second", k,
					got, err)
			}
			if got, err = tick(minute(2)); err != nil || got.Outcome != mapper.TickStarted {
				t.Errorf("after call %d was refused, the second tick is %+v, %v, want that it has started", k, got, err)
			}
		})
	}
}

// TestLateReplacement stops a process that is about to abort a run, because a tick replaces it.
// Meanwhile another process decides that tick, and an operator retries the run. The run must not be
// aborted.
func TestLateReplacement(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	step := testflag.Size(t, 3, 3, 1)
	for after := int(testflag.Seed(t) % uint64(step)); ; after += step {
		m, aborted := &mishap{after: after}, false
		synctest.Test(t, func(t *testing.T) {
			var mended atomic.Bool
			brittle := mapper.Update("brittle", func(_ context.Context, a *mapper.Entity[account], _ credit) error {
				if time.Sleep(100 * time.Millisecond); a.Key.Equal(names(1)[0]) && !mended.Load() {
					return mapper.Permanent(errors.New("broken"))
				}
				return mapper.Skip
			})
			w, ctx, s := newWorld(t, setting{}, brittle), t.Context(),
				mapper.NewSchedule("nightly", brittle, mapper.OverlapReplace)
			bridge.Tick(w.engine, s.Name())
			late := newFleetOf(w, queueName, target, 1, 1, brittle)
			w.putAccounts(names(20))
			first := w.tickOver(s, minute(1), "Account").Job
			// Meanwhile the first run ends. Another process starts the tick's run, which ends, too.
			m.happen = func(*process) {
				if aborted = w.status(first).State == mapper.StateAborted; aborted {
					return
				}
				_, err := first.Wait(ctx)
				w.must(err)
				mended.Store(true)
				w.wait(w.tickOver(s, minute(2), "Account").Job)
				w.must(first.Retry(ctx, nil))
			}
			e := late.pick().engine
			bridge.Tick(e, s.Name())
			_, err := s.Tick(m.with(ctx), e, minute(2), mapper.Query{Kind: "Account"}, credit{1},
				&mapper.StartOptions{PageSize: 10})
			if err != nil {
				t.Fatalf("at call %d: %v", after, err)
			}
			if !m.happened || aborted {
				return
			}
			if status, err := first.Wait(ctx); err != nil || status.State != mapper.StateSucceeded {
				t.Errorf("at call %d: the run is %+v, %v", after, status, err)
			}
		})
		if !m.happened || t.Failed() {
			return
		}
	}
}

// TestSlotOfAnIDsSecondJob starts a job with the ID of a job that was cleaned up. A slot, the
// record that lets only one job run over a kind, still names this ID. While the second job runs, no
// other may start.
func TestSlotOfAnIDsSecondJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, steadyCredit)
		w.putAccounts(names(100))
		for range 2 {
			job, err := w.byHand("nightly", "Account")
			w.must(err)
			if _, err := w.byHand("other", "Account"); !errors.Is(err, mapper.ErrWrongState) ||
				!strings.Contains(err.Error(), "job nightly") {
				t.Errorf("a start beside it: %v", err)
			}
			w.wait(job)
			w.must(job.CleanUp(t.Context(), &mapper.CleanUpOptions{IncludeJob: true}))
			time.Sleep(time.Hour)
		}
	})
}

// TestSlotsOfAllKinds checks that a job over two kinds prevents others on both kinds. If a start
// over two kinds is refused because one has a running job, it must not block the other kind.
func TestSlotsOfAllKinds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, steadyCredit)
		w.putAccounts(names(100))
		w.putOthers(100)
		both, err := w.byHand("both", "Account", "Other")
		w.must(err)
		for _, kind := range []string{"Account", "Other"} {
			if _, err := w.byHand("one", kind); !errors.Is(err, mapper.ErrWrongState) ||
				!strings.Contains(err.Error(), fmt.Sprintf("kind %q", kind)) {
				t.Errorf("a start over %s: %v", kind, err)
			}
		}
		w.must(both.Abort(context.Background()))
		_, err = w.byHand("other", "Other")
		w.must(err)
		if _, err := w.byHand("again", "Account", "Other"); !errors.Is(err, mapper.ErrWrongState) {
			t.Errorf("a start over both: %v", err)
		}
		_, err = w.byHand("account", "Account") // the refused start does not block this kind
		w.must(err)
	})
}

// TestScheduleOfTwoServices checks that two services with one database can't share a schedule, even
// if both have a schedule with this name. The second service must get an error, and change nothing:
// neither an outcome nor a waiting tick.
func TestScheduleOfTwoServices(t *testing.T) {
	t.Parallel()
	for _, overlap := range []mapper.Overlap{mapper.OverlapSkip, mapper.OverlapQueue, mapper.OverlapReplace} {
		t.Run(string(overlap), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, s := newWorld(t, setting{}), mapper.NewSchedule("nightly", steadyCredit, overlap)
				w.advancing(t.Output(), []mapper.AnyMapper{steadyCredit}, s)
				other, theirs := w.second(addCredit, steadyCredit), mapper.NewSchedule("nightly", addCredit, overlap)
				bridge.Tick(other.engine, "nightly")
				keys := names(100)
				w.putAccounts(keys)
				w.putOthers(10)
				meddle := func(want error, ticks ...int) {
					t.Helper()
					for _, n := range ticks {
						_, err := theirs.Tick(t.Context(), other.engine, minute(n), mapper.Query{Kind: "Other"},
							credit{5}, nil)
						if !errors.Is(err, want) {
							t.Errorf("tick %d of the other service: %v, want %v", n, err, want)
						}
					}
					err := theirs.Advance(t.Context(), other.engine)
					if err != nil && !errors.Is(err, mapper.ErrWrongQueue) {
						t.Errorf("the other service advances: %v", err)
					}
				}
				first := w.tickOver(s, minute(1), "Account")
				w.wantTick(first, mapper.TickStarted, s.JobID(minute(1)))
				meddle(mapper.ErrWrongQueue, 0, 1, 2, 3)
				second := w.tickOver(s, minute(2), "Account")
				meddle(mapper.ErrWrongQueue, 0, 1, 2, 3)
				time.Sleep(time.Hour)
				meddle(mapper.ErrWrongQueue, 0, 1, 2)
				credited := int64(2)
				if overlap == mapper.OverlapSkip {
					w.wantTick(second, mapper.TickSkipped, first.Job.ID)
					credited = 1
				}
				if overlap != mapper.OverlapReplace { // OverlapReplace aborts the first run at an arbitrary page
					w.wantBalances(keys, credited)
				}
				last := w.tickOver(s, minute(3), "Account")
				w.wantTick(last, mapper.TickStarted, s.JobID(minute(3)))
				w.must(other.engine.Job(last.Job.ID).Move(t.Context())) // the schedule moves together with its last run
				meddle(nil, 0, 1, 2, 3)
				time.Sleep(time.Hour)
				// the first service takes the schedule back
				w.wantTick(w.tickOver(s, minute(4), "Account"), mapper.TickStarted, s.JobID(minute(4)))
			})
		})
	}
}

// TestWaitingTickStaysInItsService checks that a service does not touch a waiting tick whose queue
// it does not have, even if the schedule has had no run yet.
func TestWaitingTickStaysInItsService(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, s := newWorld(t, setting{}), mapper.NewSchedule("nightly", steadyCredit, mapper.OverlapQueue)
		w.advancing(t.Output(), []mapper.AnyMapper{steadyCredit})
		bridge.Tick(w.engine, "nightly") // no engine advances the schedule
		other, theirs := w.second(addCredit), mapper.NewSchedule("nightly", addCredit, mapper.OverlapQueue)
		bridge.Tick(other.engine, "nightly")
		keys := names(100)
		w.putAccounts(keys)
		job, err := w.byHand("by-hand", "Account")
		w.must(err)
		w.wantTick(w.tickOver(s, minute(1), "Account"), mapper.TickQueued, "by-hand")
		w.wait(job)
		if err := theirs.Advance(t.Context(), other.engine); !errors.Is(err, mapper.ErrWrongQueue) {
			t.Errorf("the other service advances: %v, want %v", err, mapper.ErrWrongQueue)
		}
		w.must(s.Advance(t.Context(), w.engine))
		w.wait(w.engine.Job(s.JobID(minute(1))))
		w.wantBalances(keys, 2)
	})
}

// TestQueueReplaced replaces the queue of a service whose schedule has already had a run. The next
// tick must start its run in the new queue. This must work at once, after waiting for another job,
// and while an earlier tick waits in the old queue.
func TestQueueReplaced(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name                 string
		waitsInOld, waitsNow bool
	}{{"nothing waits", false, false}, {"the tick waits", false, true}, {"an earlier tick waits", true, false}} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, s := newWorld(t, setting{}), mapper.NewSchedule("nightly", steadyCredit, mapper.OverlapQueue)
				w.advancing(t.Output(), []mapper.AnyMapper{steadyCredit})
				bridge.Tick(w.engine, "nightly") // no engine advances the schedule
				now := w.second(steadyCredit)
				bridge.Tick(now.engine, "nightly")
				keys := names(100)
				w.putAccounts(keys)
				w.wait(w.tickOver(s, minute(1), "Account").Job)
				credited := int64(2)
				if test.waitsInOld {
					credited++
					job, err := w.byHand("by-hand", "Account")
					w.must(err)
					w.wantTick(w.tickOver(s, minute(2), "Account"), mapper.TickQueued, "by-hand")
					w.wait(job)
				}
				tick := func() *mapper.TickResult {
					t.Helper()
					q := mapper.Query{Kind: "Account"}
					got, err := s.Tick(t.Context(), now.engine, minute(3), q, credit{1}, nil)
					w.must(err)
					return got
				}
				if test.waitsNow {
					credited++
					job, err := w.byHand("by-hand", "Account")
					w.must(err)
					w.wantTick(tick(), mapper.TickQueued, "by-hand")
					w.wait(job)
					w.must(s.Advance(t.Context(), now.engine))
				}
				w.wantTick(tick(), mapper.TickStarted, s.JobID(minute(3)))
				w.wait(now.engine.Job(s.JobID(minute(3))))
				w.wantBalances(keys, credited)
				if said := now.log.String(); strings.Contains(said, "can't start a run") != test.waitsInOld {
					t.Errorf("the log of the new service: %s", said)
				}
			})
		})
	}
}

// TestWaitingTickOfAnotherMapper deploys a schedule with another mapper while a tick waits. The new
// mapper must not run over the waiting tick's query. Later ticks must start their runs.
func TestWaitingTickOfAnotherMapper(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logged
		all := []mapper.AnyMapper{steadyCredit, addCredit}
		w, s := newWorld(t, setting{}), mapper.NewSchedule("nightly", steadyCredit, mapper.OverlapQueue)
		w.advancing(t.Output(), all, s)
		keys := names(100)
		w.putAccounts(keys)
		first := w.tickOver(s, minute(1), "Account")
		w.tickOver(s, minute(2), "Account")
		deployed := mapper.NewSchedule("nightly", addCredit, mapper.OverlapQueue)
		w.advancing(&log, all, deployed)
		w.wait(first.Job)
		time.Sleep(time.Minute)
		w.must(w.engine.ReviveJobs(t.Context()))
		w.wantTick(w.tickOver(deployed, minute(2), "Account"), mapper.TickRefused, first.Job.ID)
		if !strings.Contains(log.String(), `the tick was called for the mapper \"steady-credit\"`) {
			t.Errorf("the log does not say why: %s", log.String())
		}
		w.wantBalances(keys, 1)
		w.wait(w.tickOver(deployed, minute(3), "Account").Job)
		w.wantBalances(keys, 2)
	})
}

// TestSchedulesTakeTurns calls ticks of three schedules of one mapper, while each run takes longer
// than the time between ticks. So all three always have a waiting tick. Each must have its turn,
// even if a schedule has so many ticks that its record no longer has the tick of its last run.
func TestSchedulesTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: few(1)})
		var all []*mapper.Schedule[credit]
		var registered []mapper.AnySchedule
		for _, name := range []string{"a", "b", "c"} {
			s := mapper.NewSchedule(name, steadyCredit, mapper.OverlapQueue)
			all, registered = append(all, s), append(registered, s)
		}
		w.advancing(io.Discard, []mapper.AnyMapper{steadyCredit}, registered...)
		w.putAccounts(names(600)) // a run takes a minute
		for n := range 500 {
			for i, s := range all {
				if i == 0 || n%20 == i {
					w.tickOver(s, midnight.Add(time.Duration(n)*time.Second), "Account")
				}
			}
			time.Sleep(time.Second)
		}
		runs := make(map[string]int)
		jobs, _, err := w.engine.JobsPage(t.Context(), nil, "")
		w.must(err)
		for _, j := range jobs {
			name, _, _ := strings.Cut(j.ID, "-")
			runs[name]++
		}
		if len(jobs) < 8 || runs["a"] < 2 || runs["b"] < 2 || runs["c"] < 2 {
			t.Errorf("the schedules have had %v runs", runs)
		}
	})
}

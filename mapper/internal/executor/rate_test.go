package executor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/planner"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
)

// TestWaitsLetOthersBeAlone makes a task ask to run exclusively while a page waits: for calls, or
// as part of a background job. The page must leave the gate at once, and continue later.
func TestWaitsLetOthersBeAlone(t *testing.T) {
	for _, background := range []bool{false, true} {
		var begun atomic.Int64
		inWorld(t, 3, function.Visit, func(c *testworld.Call) error {
			begun.Add(1)
			return c.AwaitCalls(c, 1)
		}, func(w *testworld.World, _ *Executor) {
			j := w.NewJob("j", "m")
			if j.Background = background; !background {
				j.Rate = []byte(`{"calls":0.02}`)
			}
			w.Begin(j) // this is the start of a minute, when background jobs pause
			time.Sleep(2 * time.Second)
			// The function has run twice on the second entity.
			if n := begun.Load(); background && n > 0 || !background && n != 3 {
				w.Fatalf("background %v: %d functions have begun", background, n)
			}
			for range 2 {
				asked := time.Now()
				place, err := w.Jobs.Gate.Enter(w.Context(), true)
				if took := time.Since(asked); err != nil || took > 100*time.Millisecond {
					w.Errorf("background %v: a task waits for %v: %v", background, took, err)
				}
				time.Sleep(10 * time.Second)
				place.Leave()
				time.Sleep(10 * time.Second)
			}
			time.Sleep(time.Hour)
			if got := said(w, "j"); !strings.HasPrefix(got, "succeeded, 3 processed") {
				w.Errorf("background %v: %s: %s", background, got, w.Job("j").Error)
			}
		})
	}
}

// TestCallsInTransaction lets others change what the function has read, so that it runs again in
// the page's transaction. There its calls must not wait.
func TestCallsInTransaction(t *testing.T) {
	var w *testworld.World
	runs, other := 0, datastore.IDKey("Other", 1, nil)
	inWorld(t, 5, function.Update, func(c *testworld.Call) error {
		if c.ID == 3 {
			runs++
			_, err := c.Get(c, []*datastore.Key{other}, func(int, *pb.Entity) error { return nil })
			if err != nil {
				return err
			}
		}
		asked := time.Now()
		err := c.AwaitCalls(c, 1)
		if took := time.Since(asked); c.ID == 3 && (runs == 2) != (err != nil) || runs == 2 && took > 0 {
			w.Errorf("run %d waits for %v: %v", runs, took, err)
		}
		if err == nil && runs == 1 && c.ID == 5 {
			_, err = w.Client.Put(context.WithoutCancel(c), other, &testworld.Thing{})
		}
		c.N += 100
		return err
	}, func(world *testworld.World, _ *Executor) {
		w = world
		j := w.NewJob("j", "m")
		j.Rate, j.PageTime = []byte(`{"calls":0.2}`), int64(time.Minute)
		w.Begin(j)
		time.Sleep(time.Hour)
		if got := said(w, "j"); got != "succeeded, 5 processed by 2 pages" || w.N(3) != 103 || runs != 3 {
			w.Errorf("%s, 3 is %d after %d runs; %s", got, w.N(3), runs, w.Job("j").Error)
		}
		calls := int64(0)
		for _, r := range w.Records(j) {
			calls += r.Calls
		}
		if calls != 8 { // the entities 4 and 5 have made calls in both pages
			w.Errorf("%d calls, want 8", calls)
		}
	})
}

// TestAgainRefused lets others change the first entity of a page. When the function runs again, it
// may not make its calls for a while. The page must be retried later.
func TestAgainRefused(t *testing.T) {
	var w *testworld.World
	runs := 0
	inWorld(t, 5, function.Update, func(c *testworld.Call) error {
		if c.ID == 1 {
			if runs++; runs > 500 {
				return errBad
			}
			if err := c.AwaitCalls(c, 1); err != nil {
				return err
			}
			if runs == 1 {
				_, err := w.Client.Put(context.WithoutCancel(c), testworld.Key(1), &testworld.Thing{N: 50})
				if err != nil {
					return err
				}
			}
		}
		c.N += 100
		return nil
	}, func(world *testworld.World, _ *Executor) {
		w = world
		j := w.NewJob("j", "m")
		j.Rate = []byte(`{"calls":0.005}`)
		w.Begin(j)
		time.Sleep(time.Hour)
		for _, r := range w.Records(j) {
			if r.Alone {
				w.Error("the entity is set apart as one that others change all the time")
			}
		}
		if got := said(w, "j"); !strings.HasPrefix(got, "succeeded, 5 processed") || w.N(1) != 150 ||
			w.N(5) != 105 || runs < 3 {
			w.Errorf("%s, 1 is %d after %d runs; %s", got, w.N(1), runs, w.Job("j").Error)
		}
	})
}

// TestTooManyCalls lets an entity need more calls than the rate allows, or get too few because
// other entities call. The job must end, and no other entity may fail.
func TestTooManyCalls(t *testing.T) {
	testflag.Sequential(t)
	for _, c := range []struct {
		name  string
		calls int // number of calls for entity 3
		busy  bool
		made  int // the largest number of calls that are made for entity 3
		want  string
		cause string
	}{
		{"few enough", 290, false, 290, "succeeded, 5 processed", ""},
		{"too many", 310, false, 300, "succeeded with failures, 4 processed",
			"has announced 301 calls, and the rate of 1 calls a second allows 300 in 5m0s"},
		{"in vain", 10, true, 300, "succeeded with failures, 4 processed", "is reserved for some time"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var x *Executor
			var j *record.Job
			made := 0
			inWorld(t, 5, function.Visit, func(a *testworld.Call) error {
				if a.ID != 3 {
					return a.AwaitCalls(a, 1)
				}
				for range c.calls {
					if err := a.AwaitCalls(a, 1); err != nil {
						return err
					}
					if made++; !c.busy {
						continue
					}
					_, _, err := x.Store.ReserveRate(context.WithoutCancel(a), j, record.CallClockKey(j.Ref()),
						new(time.Duration),
						func(q pace.Queue) (time.Duration, int64) { return 1000*time.Second - q.Wait, 1 })
					if err != nil {
						return err
					}
				}
				return nil
			}, func(w *testworld.World, executor *Executor) {
				x, j = executor, w.NewJob("j", "m")
				j.Rate = []byte(`{"calls":1}`)
				w.Begin(j)
				time.Sleep(30 * time.Minute)
				if text := w.Job("j").Trouble; c.busy && text != "" {
					w.Errorf("a job that keeps to its rate has trouble: %s", text)
				}
				time.Sleep(12 * time.Hour)
				var failures []string
				for _, r := range w.Records(j) {
					if r.Failed != "" {
						failures = append(failures, fmt.Sprint(r.Start.Key.ID, ": ", r.Error))
					}
				}
				got := fmt.Sprint(failures)
				if said := said(w, "j"); !strings.HasPrefix(said, c.want) || !strings.Contains(got, c.cause) ||
					c.cause != "" && !strings.HasPrefix(got, "[3: ") || made > c.made {
					w.Errorf("%s: %s; %d calls, want at most %d", said, got, made, c.made)
				}
			})
		})
	}
}

// TestKeepRate checks when pages may start at the job's rate.
func TestKeepRate(t *testing.T) {
	change := func(f func(j *record.Job)) func(w *testworld.World, d *delivery) {
		return func(w *testworld.World, d *delivery) {
			if _, err := w.Jobs.Store.UpdateJob(w.Context(), d.job.Ref(), func(j *record.Job) (bool, error) {
				f(j)
				return true, nil
			}); err != nil {
				w.Fatal(err)
			}
			time.Sleep(2 * cachedFor)
		}
	}
	for _, c := range []struct {
		name   string
		rate   string
		before func(w *testworld.World, d *delivery)
		s      standing
		wrong  bool
		n      int // number of entities in the page
		used   *billing.Usage
		next   time.Duration // when the next page may start
	}{
		{name: "all were processed", rate: `{"entities":1}`, n: 10, used: &billing.Usage{}, next: 10 * time.Second},
		{name: "it was not committed", rate: `{"entities":1}`, n: 10, next: 10 * time.Second},
		{name: "no limit of pages", rate: `{"calls":1}`, n: 10,
			before: func(w *testworld.World, _ *delivery) { refuse(w, "Commit", errInjected) }},
		{name: "a low rate", rate: `{"entities":0.1}`, n: 1},
		{name: "the job is paused", rate: `{"entities":1}`, s: stopped,
			before: change(func(j *record.Job) { j.State = record.Paused })},
		{name: "the rate can't be read", rate: `{"entities":1}`, wrong: true,
			before: change(func(j *record.Job) { j.Rate = []byte("{") })},
		{name: "the job can't be read", rate: `{"entities":1}`, wrong: true, before: func(w *testworld.World,
			_ *delivery) {
			time.Sleep(2 * cachedFor)
			refuse(w, "Lookup", errInjected)
		}},
		{name: "the rate can't be reserved", rate: `{"entities":1}`, wrong: true,
			before: func(w *testworld.World, _ *delivery) { refuse(w, "Commit", errInjected) }},
		{name: "others reserve, too", rate: `{"entities":1}`, n: 10, next: 10 * time.Second, used: &billing.Usage{},
			before: func(w *testworld.World, _ *delivery) {
				on(w, "Commit", func(n int, call func() (any, error)) (any, error) {
					if n <= 15 {
						return nil, status.Error(codes.Aborted, "injected")
					}
					return call()
				})
			}},
		{name: "the rate has ended", rate: `{"entities":1}`, n: 10,
			before: change(func(j *record.Job) { j.RateUntil, j.RateThen = time.Now(), []byte(`{"calls":1}`) })},
		{name: "the rate has ended, and the database fails", rate: `{"entities":1}`, wrong: true,
			before: func(w *testworld.World, d *delivery) {
				change(func(j *record.Job) { j.RateUntil, j.RateThen = time.Now(), []byte(`{"calls":1}`) })(w, d)
				refuse(w, "Commit", errInjected)
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 0, function.Visit, nil, func(w *testworld.World, x *Executor) {
				j := w.NewJob("j", "m")
				j.Rate = []byte(c.rate)
				d := loaded(w, x, j)
				if c.before != nil {
					c.before(w, d)
				}
				grant, settle, s, err := d.keepRate(w.Context(), 10)
				w.Intercept(nil)
				if s != c.s || (err != nil) != c.wrong || grant.N != c.n && !c.wrong || settle == nil {
					w.Fatalf("%+v, %d, %v", grant, s, err)
				}
				d.page.used, d.page.reached = c.used, 10
				settle()
				if c.next == 0 {
					return
				}
				first := time.Now()
				next, _, _, err := d.keepRate(w.Context(), 10)
				if waits := next.At.Sub(grant.At); err != nil || waits < c.next-time.Second ||
					waits > c.next+time.Second ||
					time.Now().Before(next.At) {
					w.Errorf("the next page waits %v, until %v: %v", waits, time.Since(first), err)
				}
			})
		})
	}
}

// TestRateGivesBack lets a page process fewer entities than expected. The next page must be able to
// start earlier.
func TestRateGivesBack(t *testing.T) {
	for _, c := range []struct {
		reached int
		writes  int64
		next    time.Duration
	}{{10, 0, 10 * time.Second}, {4, 0, 4 * time.Second}, {4, 20, 10 * time.Second}} {
		inWorld(t, 0, function.Visit, nil, func(w *testworld.World, x *Executor) {
			j := w.NewJob("j", "m")
			j.Rate = []byte(`{"entities":1,"writes":2}`)
			d := loaded(w, x, j)
			grant, settle, _, err := d.keepRate(w.Context(), 10)
			if err != nil {
				w.Fatal(err)
			}
			d.page.used, d.page.reached = &billing.Usage{Writes: c.writes + 1 + pace.RecordWrites}, c.reached
			settle()
			next, _, _, err := d.keepRate(w.Context(), 4)
			if waits := next.At.Sub(grant.At); err != nil || waits.Round(time.Second) != c.next {
				w.Errorf("%+v: the next page waits %v: %v", c, waits, err)
			}
		})
	}
}

// TestWaitEnds cancels a delivery while its page waits for the rate. The page must return its
// reservation.
func TestWaitEnds(t *testing.T) {
	inWorld(t, 0, function.Visit, nil, func(w *testworld.World, x *Executor) {
		j := w.NewJob("j", "m")
		j.Rate = []byte(`{"entities":1}`)
		d := loaded(w, x, j)
		first, _, _, err := d.keepRate(w.Context(), 4)
		if err != nil {
			w.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(w.Context(), 2*time.Second)
		defer cancel()
		if _, _, _, err := d.keepRate(ctx, 4); err == nil {
			w.Error("it does not end")
		}
		next, _, _, err := d.keepRate(w.Context(), 4)
		if waits := next.At.Sub(first.At); err != nil || waits.Round(time.Second) != 4*time.Second {
			w.Errorf("the next page waits %v: %v", waits, err)
		}
	})
}

// TestReserveEnds cancels a delivery while other processes constantly reserve the rate.
func TestReserveEnds(t *testing.T) {
	inWorld(t, 0, function.Visit, nil, func(w *testworld.World, x *Executor) {
		j := w.NewJob("j", "m")
		j.Rate = []byte(`{"entities":1}`)
		d := loaded(w, x, j)
		tries := 0
		on(w, "Commit", func(n int, _ func() (any, error)) (any, error) {
			tries = n
			return nil, status.Error(codes.Aborted, "injected")
		})
		ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		if _, _, _, err := d.keepRate(ctx, 10); !errors.Is(err, context.DeadlineExceeded) &&
			status.Code(err) != codes.DeadlineExceeded {
			w.Error(err)
		}
		if tries > 2000 {
			w.Errorf("%d tries within a minute", tries)
		}
	})
}

// TestCalls checks in which cases calls wait, and for how long.
func TestCalls(t *testing.T) {
	for _, c := range []struct {
		name     string
		rate     string
		none     bool // whether there is no function that waits
		age      time.Duration
		tx       bool
		before   int64
		first    bool
		ran      int64         // number of calls of each earlier run
		reserved time.Duration // the time for which other processes have reserved the rate
		waits    time.Duration
		refused  bool
	}{
		{name: "without a rate", none: true},
		{name: "without a rate of calls", rate: `{"entities":1}`, none: true},
		{name: "a rate that can't be read", rate: `{`, none: true},
		{name: "free", rate: `{"calls":1}`},
		{name: "of the first entity", rate: `{"calls":1}`, first: true, before: 1, reserved: 100 * time.Second,
			waits: 100 * time.Second},
		{name: "of the first entity, for too long", rate: `{"calls":1}`, first: true, before: 1,
			reserved: 200 * time.Second, refused: true},
		{name: "of a later entity", rate: `{"calls":1}`, before: 1, reserved: 15 * time.Second,
			waits: 15 * time.Second},
		{name: "of a later entity, for too long", rate: `{"calls":1}`, before: 1, reserved: 25 * time.Second,
			refused: true},
		{name: "the first of ten, for too long", rate: `{"calls":1}`, ran: 10, reserved: 15 * time.Second,
			refused: true},
		{name: "in a transaction", rate: `{"calls":1}`, tx: true, before: 1, reserved: 2 * time.Second, refused: true},
		{name: "near the end of the delivery", rate: `{"calls":1}`, first: true, before: 1, age: 500 * time.Second,
			reserved: 100 * time.Second, refused: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, 0, function.Visit, nil, func(w *testworld.World, x *Executor) {
				j := w.NewJob("j", "m")
				j.Rate = []byte(c.rate)
				d := loaded(w, x, j)
				d.begunAt = time.Now().Add(-c.age)
				calls := d.calls(c.tx)
				if (calls == nil) != c.none || (awaitFirst(calls) == nil) != c.none {
					w.Fatalf("calls wait: %v", calls != nil)
				}
				if c.none {
					return
				}
				if c.reserved > 0 {
					if _, _, err := x.Store.ReserveRate(w.Context(), j, record.CallClockKey(j.Ref()),
						new(time.Duration),
						func(q pace.Queue) (time.Duration, int64) { return c.reserved - q.Wait, 1 }); err != nil {
						w.Fatal(err)
					}
				}
				if c.ran > 0 {
					x.paces.CallMeter(j.Ref()).Ran(c.ran)
				}
				asked := time.Now()
				err := calls(w.Context(), 1, c.before, c.first)
				if waited := time.Since(asked); (err != nil) != c.refused || waited < c.waits-2*time.Second ||
					waited > c.waits+2*time.Second {
					w.Errorf("after %v: %v", waited, err)
				}
			})
		})
	}
}

// TestCallsUnlimitedMeanwhile removes a job's rate of calls while its function runs.
func TestCallsUnlimitedMeanwhile(t *testing.T) {
	inWorld(t, 0, function.Visit, nil, func(w *testworld.World, x *Executor) {
		j := w.NewJob("j", "m")
		j.Rate = []byte(`{"calls":0.01}`)
		d := loaded(w, x, j)
		calls := d.calls(false)
		if _, err := x.Store.UpdateJob(w.Context(), j.Ref(), func(j *record.Job) (bool, error) {
			j.Rate = []byte(`{"entities":1}`)
			return true, nil
		}); err != nil {
			w.Fatal(err)
		}
		time.Sleep(2 * cachedFor)
		asked := time.Now()
		for range 50 {
			if err := calls(w.Context(), 1, 0, true); err != nil || time.Since(asked) > time.Second {
				w.Fatalf("after %v: %v", time.Since(asked), err)
			}
		}
	})
}

// TestRateExpires checks that a process ends a temporary rate once, when its time is over, and only
// for a running job.
func TestRateExpires(t *testing.T) {
	for _, c := range []struct {
		state record.JobState
		until time.Duration
		ends  bool
	}{{record.Running, 0, true}, {record.Paused, 0, false}, {record.Running, time.Hour, false}} {
		inWorld(t, 0, function.Visit, nil, func(w *testworld.World, x *Executor) {
			j := w.NewJob("j", "m")
			j.State, j.Rate, j.RateUntil = c.state, []byte(`{"entities":1}`), now().Add(c.until)
			insert(w, j)
			commits := 0
			on(w, "Commit", func(n int, call func() (any, error)) (any, error) {
				commits = n
				time.Sleep(time.Millisecond)
				return call()
			})
			if _, err := x.runningJob(w.Context(), j.Ref()); err != nil {
				w.Fatal(err)
			}
			w.Intercept(func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
				return nil, errInjected
			})
			_, err := x.runningJob(w.Context(), j.Ref())
			w.Intercept(nil)
			if err != nil {
				w.Errorf("%s: it asks again: %v", c.state, err)
			}
			cached, err := x.cache.load(w.Context(), x.Store, j.Ref())
			if err != nil || (len(w.Job("j").Rate) == 0) != c.ends || (len(cached.Rate) == 0) != c.ends ||
				(commits > 0) != c.ends {
				w.Errorf("%s: rates %s and %s after %d commits, %v", c.state, w.Job("j").Rate, cached.Rate, commits,
					err)
			}
		})
	}
}

// TestSeesPause checks that a process which constantly asks for its job notices that the job was
// paused.
func TestSeesPause(t *testing.T) {
	inWorld(t, 0, function.Visit, nil, func(w *testworld.World, x *Executor) {
		j := w.NewJob("j", "m")
		insert(w, j)
		state := record.Running
		for i := range 5 {
			job, err := x.runningJob(w.Context(), j.Ref())
			if err != nil {
				w.Fatal(err)
			}
			if state = job.State; i == 0 {
				if err := w.Jobs.Pause(w.Context(), j.Ref()); err != nil {
					w.Fatal(err)
				}
			}
			time.Sleep(cachedFor / 2)
		}
		if state != record.Paused {
			w.Errorf("after two seconds the job is %s", state)
		}
	})
}

// TestShortens checks that a low rate shortens a page.
func TestShortens(t *testing.T) {
	inWorld(t, 0, function.Visit, nil, func(w *testworld.World, x *Executor) {
		j := w.NewJob("j", "m")
		j.Rate = []byte(`{"entities":0.1}`)
		d, p := loaded(w, x, j), planner.Plan{At: at(1, 2, 3)}
		settle, _, err := d.admit(w.Context(), &p)
		if err != nil || len(p.At) != 1 || p.Next == nil {
			w.Fatalf("%d entities, %v", len(p.At), err)
		}
		settle()
	})
}

// TestSuspectsRunOneByOne checks that the calls of a page suspected of killing its process do not
// overlap.
func TestSuspectsRunOneByOne(t *testing.T) {
	for _, c := range []struct {
		solo, alone bool
		want        int
	}{{want: 3}, {solo: true, want: 1}, {alone: true, want: 1}} {
		inWorld(t, 5, function.Visit, nil, func(w *testworld.World, x *Executor) {
			j := w.NewJob("j", "m")
			j.Concurrency = 3
			d := loaded(w, x, j, func(r *record.Range) {
				if r.Solo, r.Alone = c.solo, c.alone; c.alone {
					r.Start = at(1)[0]
				}
			})
			defer d.planner.Close()
			if p := d.pageOf(w.Context(), planned(w, d, 5), nil); p.AtOnce != c.want || p.Alone != c.alone {
				w.Errorf("%+v: %d at once", c, p.AtOnce)
			}
		})
	}
}

package mapper_test

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

type report struct {
	Jobs, Credited int64
	State          string
}

var reportKey = datastore.NameKey("Report", "r", nil)

// reporting returns a mapper whose finalizer adds to a report.
func reporting(client func() *datastore.Client, fail func() error) *mapper.Mapper[mapper.NoParams] {
	return mapper.Update("report", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
		a.Value.Balance += 10
		a.Count("credited", 1)
		return nil
	}).WithFinalizer(func(ctx context.Context, d *mapper.Completion, _ mapper.NoParams) error {
		var r report
		if err := client().Get(ctx, reportKey, &r); err != nil && !errors.Is(err, datastore.ErrNoSuchEntity) {
			return err
		}
		r.Jobs++
		r.Credited += d.Status.Counters["credited"]
		r.State = string(d.Status.State)
		d.Put(reportKey, &r)
		return fail()
	})
}

// TestFinalizer runs the finalizer of a job with every task delivered several
// times, and calls that lose their answers: it takes effect once.
func TestFinalizer(t *testing.T) {
	t.Parallel()
	seed := testflag.Seed(t)
	seeds := uint64(20)
	if testing.Short() {
		seeds = 8
	}
	for i := range seeds {
		synctest.Test(t, func(t *testing.T) {
			var w *world
			m := reporting(func() *datastore.Client { return w.client }, func() error { return nil })
			faults := emulator.NewFaults(seed+i, trouble(rand.New(rand.NewPCG(seed+i, 0)))...)
			faults.Pause()
			w = newWorld(t, setting{emulator: emulator.Options{Faults: faults}}, m)
			w.handler = repeat(w.engine.Handler())
			w.putAccounts(names(300))
			job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
				&mapper.StartOptions{PageSize: 50})
			if err != nil {
				t.Fatal(err)
			}
			faults.Resume()
			time.Sleep(48 * time.Hour)
			faults.Pause()
			if s := w.wait(job); s.Error != "" {
				t.Errorf("status %+v", s)
			}
			var r report
			if err := w.client.Get(t.Context(), reportKey, &r); err != nil || r != (report{1, 300, "succeeded"}) {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

// TestFailingFinalizer has the finalizer fail for a while: the job goes on to run,
// says why, and ends once it succeeds.
func TestFailingFinalizer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w *world
		var broken atomic.Bool
		broken.Store(true)
		m := reporting(func() *datastore.Client { return w.client }, func() error {
			if broken.Load() {
				return errors.New("the printer is out of paper")
			}
			return nil
		})
		w = newWorld(t, setting{}, m)
		w.putAccounts(names(10))
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if s := w.status(job); s.State != mapper.StateRunning || !strings.Contains(s.Error, "out of paper") ||
			s.Processed != 10 {
			t.Errorf("status %+v", s)
		}
		broken.Store(false)
		if s := w.wait(job); s.Error != "" {
			t.Errorf("status %+v", s)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		var w *world
		m := reporting(func() *datastore.Client { return w.client }, func() error {
			return mapper.Permanent(errors.New("no printer"))
		})
		w = newWorld(t, setting{}, m)
		w.putAccounts(names(10))
		if s := over(w, m, nil); s.State != mapper.StateFailed || !strings.Contains(s.Error, "no printer") ||
			s.Processed != 10 {
			t.Errorf("status %+v", s)
		}
		var r report
		if err := w.client.Get(t.Context(), reportKey, &r); !errors.Is(err, datastore.ErrNoSuchEntity) {
			t.Errorf("a failed finalizer wrote %+v, %v", r, err)
		}
	})
}

// TestRefusedFinalizer has the database refuse what a finalizer puts, and a
// finalizer take too long: the one fails the job, the other is shown.
func TestRefusedFinalizer(t *testing.T) {
	t.Parallel()
	plain := func(onDone func(context.Context, *mapper.Completion,
		mapper.NoParams) error) *mapper.Mapper[mapper.NoParams] {
		return mapper.Update("plain", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
			return nil
		}).WithFinalizer(onDone)
	}
	type large struct {
		Text []byte `datastore:",noindex"`
	}
	for size, wants := range map[int]string{2 << 20: "the database refuses", 9 << 20: "above the maximum"} {
		synctest.Test(t, func(t *testing.T) {
			m := plain(func(_ context.Context, d *mapper.Completion, _ mapper.NoParams) error {
				d.Put(reportKey, &large{make([]byte, size)})
				return nil
			})
			w := newWorld(t, setting{}, m)
			w.putAccounts(names(10))
			if s := over(w, m, nil); s.State != mapper.StateFailed || !strings.Contains(s.Error, wants) {
				t.Errorf("status %+v", s)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int64
		m := plain(func(ctx context.Context, d *mapper.Completion, _ mapper.NoParams) error {
			if tries.Add(1) < 3 {
				<-ctx.Done()
			}
			d.Put(reportKey, &report{Jobs: 1})
			return nil
		})
		w := newWorld(t, setting{}, m)
		w.putAccounts(names(10))
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(45 * time.Second)
		if s := w.status(job); s.State != mapper.StateRunning || !strings.Contains(s.Error, "more than 30s") {
			t.Errorf("status %+v", s)
		}
		w.wait(job)
	})
}

// TestLostFinalizer loses the finalizer's task: a sweep enqueues it again.
func TestLostFinalizer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w *world
		m := reporting(func() *datastore.Client { return w.client }, func() error { return nil })
		w = newWorld(t, setting{}, m)
		inner, up := w.engine.Handler(), time.Now().Add(time.Minute)
		w.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/finalize") && time.Now().Before(up) {
				rw.WriteHeader(http.StatusBadGateway)
				return
			}
			inner.ServeHTTP(rw, r)
		})
		w.putAccounts(names(10))
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		w.lose("/finalize")
		w.wait(job)
	})
}

// TestLostEnd loses the task that ends a job without a finalizer, and the service account may not
// ask the queue for its tasks: a sweep enqueues another.
func TestLostEnd(t *testing.T) {
	t.Parallel()
	for _, mayAsk := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var set setting
			if !mayAsk {
				set.emulator.Interceptor = mayNotAsk
			}
			w := newWorld(t, set, addCredit)
			inner := w.handler
			var ends atomic.Int64
			w.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/finalize") {
					if ends.Add(1) == 1 {
						return // as if it had been purged
					}
				}
				inner.ServeHTTP(rw, r)
			})
			w.putAccounts(names(1000))
			w.wait(w.start(10, &mapper.StartOptions{PageSize: 100}))
			if ends.Load() != 2 {
				t.Errorf("may ask: %v: %d tasks came to end the job, want 2", mayAsk, ends.Load())
			}
			w.wantBalances(names(1000), 10)
		})
	}
}

// TestFailingEnd has a finalizer fail for a day, where the queue may not be asked for its tasks:
// its task is tried again, and gets no others beside it.
func TestFailingEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		var mended atomic.Bool
		var client *datastore.Client
		m := reporting(func() *datastore.Client { return client }, func() error {
			if runs.Add(1); !mended.Load() {
				return errors.New("not yet")
			}
			return nil
		})
		w := newWorld(t, setting{emulator: emulator.Options{Interceptor: mayNotAsk}}, m)
		client = w.client
		w.putAccounts(names(10))
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		if n := runs.Load(); n < 10 || n > 100 {
			t.Errorf("the finalizer runs %d times", n)
		}
		mended.Store(true)
		time.Sleep(time.Hour) // until the task is tried again
		w.wait(job)
	})
}

// TestFinalizerMarksUnanswered loses the answers to the commits in which deliveries of a finalizer
// leave their marks: no process has died, and none is said to have.
func TestFinalizerMarksUnanswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var runs, lost atomic.Int64
		losing := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			commit, ok := req.(*datastorepb.CommitRequest)
			if !ok || err != nil {
				return resp, err
			}
			for _, m := range commit.Mutations {
				job := cmp.Or(m.GetUpdate(), m.GetUpsert())
				marked := job.GetProperties()["begun"].GetStringValue() != "" && job.Key.Path[0].Kind == record.JobKind
				if marked && lost.Add(1) <= 2*mapper.MaxDeaths {
					return nil, status.Error(codes.DeadlineExceeded, "the answer is lost")
				}
			}
			return resp, nil
		}
		m := mapper.Visit("report", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
			return nil
		}).
			WithFinalizer(func(context.Context, *mapper.Completion, mapper.NoParams) error {
				if runs.Add(1) == 1 {
					return errors.New("not yet")
				}
				return nil
			})
		w := newWorld(t, setting{emulator: emulator.Options{Interceptor: losing}}, m)
		w.putAccounts(names(10))
		if s := over(w, m, nil); s.State != mapper.StateSucceeded || runs.Load() != 2 ||
			lost.Load() <= 2*mapper.MaxDeaths {
			t.Errorf("after %d runs, and %d answers: %+v", runs.Load(), lost.Load(), s)
		}
	})
}

// mayNotAsk is a queue that may not be asked for its tasks.
func mayNotAsk(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if strings.HasSuffix(info.FullMethod, "/GetTask") {
		return nil, status.Error(codes.PermissionDenied, "no cloudtasks.tasks.get")
	}
	return handler(ctx, req)
}

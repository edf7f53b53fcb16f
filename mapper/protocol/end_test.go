package protocol_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
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
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

type report struct {
	Jobs, Credited int64
	State          string
}

var reportKey = datastore.NameKey("Report", "r", nil)

// reporting returns a mapper whose finalizer adds the job's numbers to an entity, the report.
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

// TestFinalizer checks that a finalizer takes effect once, although every task is delivered several
// times and answers to calls get lost.
func TestFinalizer(t *testing.T) {
	t.Parallel()
	seed := testflag.Seed(t)
	seeds := uint64(testflag.Size(t, 8, 8, 20))
	for i := range seeds {
		synctest.Test(t, func(t *testing.T) {
			var w *world
			m := reporting(func() *datastore.Client { return w.client }, func() error { return nil })
			injected := faults.New(seed+i, trouble(rand.New(rand.NewPCG(seed+i, 0)))...)
			injected.Pause()
			w = newWorld(t, setting{emulator: emulator.Options{Faults: injected}}, m)
			w.handler = repeat(w.engine.Handler())
			w.putAccounts(names(300))
			job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
				&mapper.StartOptions{PageSize: 50})
			if err != nil {
				t.Fatal(err)
			}
			injected.Resume()
			time.Sleep(48 * time.Hour)
			injected.Pause()
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

// TestRetryWithoutFailures retries a job that has succeeded. It must be refused, and the finalizer
// must not run again.
func TestRetryWithoutFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w *world
		m := reporting(func() *datastore.Client { return w.client }, func() error { return nil })
		w = newWorld(t, setting{}, m)
		w.putAccounts(names(30))
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{}, nil)
		w.must(err)
		w.wait(job)
		if err := job.Retry(t.Context(), nil); !errors.Is(err, mapper.ErrWrongState) ||
			!strings.Contains(err.Error(), "it has no failures to retry") {
			t.Errorf("%v, want ErrWrongState that says why", err)
		}
		time.Sleep(time.Hour)
		var r report
		if err := w.client.Get(t.Context(), reportKey, &r); err != nil || r != (report{1, 30, "succeeded"}) {
			t.Errorf("%+v, %v, want one run of the finalizer", r, err)
		}
	})
}

// TestFinalizerStatus checks the numbers of entities in the status that a finalizer gets.
func TestFinalizerStatus(t *testing.T) {
	t.Parallel()
	for _, n := range []int{30, 3000} { // the small job ends in the delivery of its last page, the large one in a task
		synctest.Test(t, func(t *testing.T) {
			var got mapper.Status
			fails := func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
				if strings.HasSuffix(a.Key.Name, "7") {
					return mapper.Permanent(errors.New("seven"))
				}
				return nil
			}
			m := mapper.Update("some-fail", fails).WithFinalizer(
				func(_ context.Context, d *mapper.Completion, _ mapper.NoParams) error {
					got = *d.Status
					return nil
				})
			w := newWorld(t, setting{}, m)
			w.putAccounts(names(n))
			failures := int64(0)
			for _, key := range names(n) {
				if strings.HasSuffix(key.Name, "7") {
					failures++
				}
			}
			job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
				&mapper.StartOptions{FailureLimit: -1})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := job.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if failures == 0 || got.Failures != failures || got.Processed != int64(n)-failures ||
				got.Remaining != 0 || got.Total != int64(n) {
				t.Errorf("%d entities, %d fail: the finalizer got %d processed, %d failures, %d remaining, %d in all",
					n, failures, got.Processed, got.Failures, got.Remaining, got.Total)
			}
		})
	}
}

// TestFailingFinalizer runs a job whose finalizer fails for a while. The job must stay running, its
// status must say why, and it must end when the finalizer succeeds.
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

// TestRefusedFinalizer tests two finalizers. The first one puts an entity that the database
// refuses; its job must fail. The second one takes too long; the status must say so.
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

// TestLostFinalizer deletes the task that runs the finalizer. A sweep must enqueue it again.
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

// TestLostEnd deletes the task that ends a job. The service account may not read tasks in the
// queue. A sweep must enqueue another task.
func TestLostEnd(t *testing.T) {
	t.Parallel()
	for _, mayAsk := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var set setting
			if !mayAsk {
				set.emulator.Interceptor = mayNotAsk
			}
			w := newWorld(t, set, addCredit)
			bridge.Portion(w.engine, 100, time.Minute) // so that the job is too large to end without a task
			inner := w.handler
			var ends atomic.Int64
			w.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/finalize") {
					if ends.Add(1) == 1 {
						return // the task disappears, as if somebody had purged the queue
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

// TestSmallEnd checks that a small job ends in the delivery of its last page, without another task.
// If somebody changes the job just before this commit, the commit must have no effect.
func TestSmallEnd(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		accounts int
		beside   func(context.Context, *mapper.Job) error
		state    mapper.State // the job's state just after its last page
	}{
		{"one entity", 1, nil, mapper.StateSucceeded},
		{"a few pages", 100, nil, mapper.StateSucceeded},
		{"it is paused", 100, func(ctx context.Context, job *mapper.Job) error { return job.Pause(ctx) },
			mapper.StatePaused},
		{"it is aborted", 100, func(ctx context.Context, job *mapper.Job) error { return job.Abort(ctx) },
			mapper.StateAborted},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var job atomic.Pointer[mapper.Job]
				var tries atomic.Int64
				ends := func(
					ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
				) (any, error) {
					if endsJob(req) && tries.Add(1) == 1 && test.beside != nil {
						if err := test.beside(context.WithoutCancel(ctx), job.Load()); err != nil {
							t.Error(err)
						}
					}
					return handler(ctx, req)
				}
				// One worker, because of two concurrent last deliveries one may enqueue a task
				// while the other ends the job.
				w := newWorld(t, setting{queue: few(1), emulator: emulator.Options{Interceptor: ends}}, addCredit)
				inner := w.handler
				var tasks atomic.Int64
				w.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					if strings.HasSuffix(r.URL.Path, "/finalize") {
						tasks.Add(1)
					}
					inner.ServeHTTP(rw, r)
				})
				w.putAccounts(names(test.accounts))
				job.Store(w.engine.Job("small"))
				w.start(10, &mapper.StartOptions{ID: "small", PageSize: 20})
				time.Sleep(30 * time.Second)
				s, err := job.Load().Status(t.Context())
				if err != nil || s.State != test.state || tries.Load() != 1 || tasks.Load() > 0 {
					t.Errorf("%+v, %v; %d commits to end it, and %d tasks", s, err, tries.Load(), tasks.Load())
				}
				if s.State == mapper.StatePaused {
					if err := job.Load().Resume(t.Context()); err != nil {
						t.Fatal(err)
					}
					w.wait(job.Load())
				}
				if proof, err := job.Load().Verify(t.Context(), nil); err != nil || len(proof.Problems) > 0 {
					t.Errorf("%+v, %v", proof, err)
				}
				w.wantBalances(names(test.accounts), 10)
			})
		})
	}
}

// endsJob reports whether a request is the commit that ends a small job. It writes the job's record
// if the record still has a certain version.
func endsJob(req any) bool {
	commit, ok := req.(*datastorepb.CommitRequest)
	return ok && slices.ContainsFunc(commit.GetMutations(), func(m *datastorepb.Mutation) bool {
		path, job := m.GetUpdate().GetKey().GetPath(), m.GetUpdate()
		return len(path) > 0 && path[0].GetKind() == record.JobKind && m.GetBaseVersion() != 0 &&
			job.GetProperties()["state"].GetStringValue() == string(record.Succeeded)
	})
}

// TestFailingEnd runs a finalizer that fails for a day, in a queue whose tasks the service account
// may not read. The queue must retry its task, and no second task may be enqueued.
func TestFailingEnd(t *testing.T) {
	testflag.Sequential(t)
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
		time.Sleep(time.Hour) // until the queue retries the task
		w.wait(job)
	})
}

// TestFinalizerMarksUnanswered loses the answers to the commits by which deliveries of a finalizer
// record that they run. No process has died, so none may be counted as dead.
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

// mayNotAsk makes a queue refuse the calls that read tasks.
func mayNotAsk(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if strings.HasSuffix(info.FullMethod, "/GetTask") {
		return nil, status.Error(codes.PermissionDenied, "no cloudtasks.tasks.get")
	}
	return handler(ctx, req)
}

type leaf struct{ N int64 }

// A sheet is the entity that the function over pages puts for each page. It has the name under
// which the function has written the page to a store outside of Datastore, and the number of
// leaves.
type sheet struct {
	Name string
	N    int64
}

// A shelf is a store outside of Datastore, such as a bucket. A function over pages writes each page
// to it as a sheet.
type shelf struct {
	mu     sync.Mutex
	sheets map[string][]int64
	tried  map[int64]int
}

func (s *shelf) write(name string, all []int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.sheets[name]; ok {
		return fmt.Errorf("%s is there", name)
	}
	s.sheets[name] = all
	return nil
}

func (s *shelf) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sheets, name)
}

// tries counts an attempt at the leaf n, and returns the number of attempts so far.
func (s *shelf) tries(n int64) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tried[n]++
	return s.tried[n]
}

const leaves = 3000

// collector returns a mapper that writes leaves to a shelf, page by page. It skips some leaves.
// Some others fail permanently, or only at first.
func collector(s *shelf) *mapper.Mapper[mapper.NoParams] {
	return mapper.VisitPages("collect", func(_ context.Context, e *mapper.Entity[leaf], _ mapper.NoParams) (int64,
		error) {
		switch n := e.Value.N; {
		case n%100 == 7:
			return 0, mapper.Permanent(errors.New("seven"))
		case n%100 == 8:
			return 0, mapper.Skip
		case n%500 == 9 && s.tries(n) == 1:
			return 0, errors.New("later")
		}
		e.Count("leaves", 1)
		return e.Value.N, nil
	}, func(_ context.Context, p *mapper.Page[int64], _ mapper.NoParams) error {
		if err := s.write(p.UniqueName(), p.Records); err != nil {
			return mapper.Permanent(err)
		}
		p.OnRollback(func(context.Context) { s.remove(p.UniqueName()) })
		if s.tries(-1)%10 == 3 {
			return errors.New("the shelf is full, for now")
		}
		p.Put(datastore.NameKey("Sheet", p.RunID()+"/"+p.UniqueName(), nil),
			&sheet{p.UniqueName(), int64(len(p.Records))})
		p.Count("sheets", 1)
		return nil
	}).WithFinalizer(func(ctx context.Context, d *mapper.Completion, _ mapper.NoParams) error {
		if mapper.EngineFromContext(ctx) == nil {
			return mapper.Permanent(errors.New("no engine"))
		}
		d.Put(datastore.NameKey("Run", "it", nil), &sheet{Name: d.RunID()})
		return nil
	})
}

// TestCollect writes pages to a store outside of Datastore, with and without faults. The sheets
// whose names were committed must have each entity once. Without faults, the store must have no
// other sheets.
func TestCollect(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	first := testflag.Seed(t)
	for i := range uint64(7) {
		seed := uint64(0)
		if i > 0 {
			seed = first + i - 1
		}
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			s := &shelf{sheets: make(map[string][]int64), tried: make(map[int64]int)}
			m := collector(s)
			mappertest.Run(t, []mapper.AnyMapper{m}, &mappertest.Options{Seed: seed},
				func(t *testing.T, w *mappertest.Env) {
					putLeaves(t, w.Client)
					w.ResumeFaults()
					job, err := m.Start(t.Context(), w.Engine, mapper.Query{Kind: "Leaf"}, mapper.NoParams{},
						&mapper.StartOptions{ID: "collect", PageSize: 100})
					if err != nil {
						w.PauseFaults()
						job, err = m.Start(t.Context(), w.Engine, mapper.Query{Kind: "Leaf"}, mapper.NoParams{},
							&mapper.StartOptions{ID: "collect", PageSize: 100})
					}
					if err != nil {
						t.Fatal(err)
					}
					letRun(t.Context(), w.Engine, job)
					status, err := job.Wait(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					w.PauseFaults()
					checkSheets(t, w.Client, s, status, seed == 0)
				})
		})
	}
}

func putLeaves(t *testing.T, client *datastore.Client) {
	t.Helper()
	for from := 0; from < leaves; from += 500 {
		var keys []*datastore.Key
		var all []leaf
		for n := from; n < from+500; n++ {
			keys, all = append(keys, datastore.IDKey("Leaf", int64(n)+1, nil)), append(all, leaf{int64(n)})
		}
		if _, err := client.PutMulti(t.Context(), keys, all); err != nil {
			t.Fatal(err)
		}
	}
}

// checkSheets checks that the sheets which the job has committed have each leaf once. If calm is
// set, there were no faults, and the shelf must have no other sheets.
func checkSheets(t *testing.T, client *datastore.Client, s *shelf, status *mapper.Status, calm bool) {
	t.Helper()
	const failed, skipped = leaves / 100, leaves / 100
	if status.State != mapper.StateSucceededWithFailures || status.Failures != failed ||
		status.Processed != leaves-failed ||
		status.Counters["leaves"] != leaves-failed-skipped {
		t.Errorf("status %+v", status)
	}
	var all []sheet
	if _, err := client.GetAll(t.Context(), datastore.NewQuery("Sheet"), &all); err != nil {
		t.Fatal(err)
	}
	if n := status.Counters["sheets"]; n != int64(len(all)) {
		t.Errorf("%d sheets are counted, and there are %d", n, len(all))
	}
	seen := make(map[int64]int)
	for _, sh := range all {
		found := s.sheets[sh.Name]
		if int64(len(found)) != sh.N {
			t.Errorf("%s has %d leaves, want %d", sh.Name, len(found), sh.N)
		}
		for _, n := range found {
			seen[n]++
		}
	}
	for n := range int64(leaves) {
		want := 1
		if n%100 == 7 || n%100 == 8 {
			want = 0
		}
		if seen[n] != want {
			t.Errorf("leaf %d is there %d times, want %d", n, seen[n], want)
		}
	}
	if left := len(s.sheets) - len(all); left > 0 && calm {
		t.Errorf("%d of %d sheets are of no commit", left, len(s.sheets))
	}
	var run sheet
	if err := client.Get(t.Context(), datastore.NameKey("Run", "it", nil), &run); err != nil || len(all) > 0 &&
		run.Name == "" {
		t.Errorf("run %+v, %v", run, err)
	}
}

// TestCollectFails runs functions over pages that fail in each way that makes a job end.
func TestCollectFails(t *testing.T) {
	t.Parallel()
	testflag.Sequential(t)
	for name, page := range map[string]func(context.Context, *mapper.Page[int64], mapper.NoParams) error{
		"permanently": func(context.Context, *mapper.Page[int64], mapper.NoParams) error {
			return mapper.Permanent(errors.New("no disk"))
		},
		"each time": func(context.Context, *mapper.Page[int64], mapper.NoParams) error {
			return errors.New("no disk")
		},
		"by a panic": func(context.Context, *mapper.Page[int64], mapper.NoParams) error { panic("no disk") },
	} {
		t.Run(name, func(t *testing.T) {
			m := mapper.VisitPages("collect", func(_ context.Context, e *mapper.Entity[leaf], _ mapper.NoParams) (int64,
				error) {
				return e.Value.N, nil
			}, page)
			mappertest.Run(t, []mapper.AnyMapper{m}, nil, func(t *testing.T, w *mappertest.Env) {
				putLeaves(t, w.Client)
				job, err := m.Start(t.Context(), w.Engine, mapper.Query{Kind: "Leaf"}, mapper.NoParams{}, nil)
				if err != nil {
					t.Fatal(err)
				}
				letRun(t.Context(), w.Engine, job)
				status, err := job.Wait(t.Context())
				if err != nil || status.State != mapper.StateFailed || status.Processed != 0 {
					t.Errorf("status %+v, %v", status, err)
				}
				if status != nil && !strings.Contains(status.Error, "no disk") {
					t.Errorf("the error is %q", status.Error)
				}
			})
		})
	}
}

// TestRollbackFails registers functions with OnRollback that panic, hang or end their goroutine.
// The job must end as without them, and the other registered functions must be called.
func TestRollbackFails(t *testing.T) {
	t.Parallel()
	testflag.Sequential(t)
	for name, rollback := range map[string]func(){
		"by a panic":       func() { panic("no disk") },
		"by a hang":        func() { time.Sleep(time.Hour) },
		"by its goroutine": runtime.Goexit,
		"not at all":       func() {},
	} {
		t.Run(name, func(t *testing.T) {
			var called atomic.Int64
			m := mapper.VisitPages("collect", func(_ context.Context, e *mapper.Entity[leaf], _ mapper.NoParams) (int64,
				error) {
				return e.Value.N, nil
			}, func(_ context.Context, p *mapper.Page[int64], _ mapper.NoParams) error {
				p.OnRollback(func(context.Context) { called.Add(1) })
				p.OnRollback(func(context.Context) { rollback() })
				return errors.New("the function fails")
			})
			mappertest.Run(t, []mapper.AnyMapper{m}, nil, func(t *testing.T, w *mappertest.Env) {
				putLeaves(t, w.Client)
				job, err := m.Start(t.Context(), w.Engine, mapper.Query{Kind: "Leaf"}, mapper.NoParams{}, nil)
				if err != nil {
					t.Fatal(err)
				}
				letRun(t.Context(), w.Engine, job)
				status, err := job.Wait(t.Context())
				if err != nil || status.State != mapper.StateFailed ||
					!strings.Contains(status.Error, "the function fails") {
					t.Errorf("status %+v, %v", status, err)
				}
				if others := name == "by a panic" || name == "not at all"; others && called.Load() == 0 {
					t.Error("the other function was not called")
				}
			})
		})
	}
}

// TestCollectOfTwins delivers each task twice at nearly the same time. If both deliveries have
// written a page to the shelf, the one whose commit is refused must delete its sheet.
func TestCollectOfTwins(t *testing.T) {
	t.Parallel()
	s := &shelf{sheets: make(map[string][]int64), tried: make(map[int64]int)}
	m := collector(s)
	synctest.Test(t, func(t *testing.T) {
		twins := faults.New(1, faults.Rule{Kind: faults.DeliverTogether, Share: 1,
			Latency: faults.Uniform{Max: 10 * time.Millisecond}},
			faults.Rule{Kind: faults.SlowCall, Latency: faults.Exponential{Mean: 10 * time.Millisecond}})
		w := newWorld(t, setting{emulator: emulator.Options{Faults: twins}, queue: few(8)}, m)
		putLeaves(t, w.client)
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Leaf"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "collect", PageSize: 100})
		if err != nil {
			t.Fatal(err)
		}
		status, err := job.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // until both deliveries have ended
		checkSheets(t, w.client, s, status, true)
		if s.tried[-1] <= int(status.Counters["sheets"])*11/10 {
			t.Errorf("%d pages were written for %d that count: there were no twins", s.tried[-1],
				status.Counters["sheets"])
		}
	})
}

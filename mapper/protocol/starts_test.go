package protocol_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/mappertest"
	"github.com/scattermap/scattermap/mapper/split"
)

// TestConcurrentStarts makes five concurrent starts of one job, while answers get lost. They must
// start one job.
func TestConcurrentStarts(t *testing.T) {
	t.Parallel()
	seed, all := testflag.Seed(t), make(lostIn)
	for i := range uint64(testflag.Size(t, 4, 20, 100)) {
		synctest.Test(t, func(t *testing.T) {
			f := lost(seed+i, 0.4, "Commit", "CreateTask")
			w := newWorld(t, setting{emulator: emulator.Options{Faults: f}}, addCredit)
			keys := names(300)
			w.putAccounts(keys)
			f.Resume()
			var wg sync.WaitGroup
			var started atomic.Int64
			for range 5 {
				wg.Go(func() {
					// Repeat the start after an error, as an operator would.
					for range 20 {
						job, err := addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
							&mapper.StartOptions{ID: "once", PageSize: 50})
						if err == nil {
							started.Add(1)
							if job.ID != "once" {
								t.Errorf("job %q", job.ID)
							}
							return
						}
					}
				})
			}
			wg.Wait()
			if started.Load() != 5 {
				t.Errorf("%d of 5 starts succeeded", started.Load())
			}
			w.wait(w.engine.Job("once"))
			f.Pause()
			all.add(f)
			w.wantBalances(keys, 10)
			if jobs := records(t, w.client); len(jobs) != 1 {
				t.Errorf("there are %d jobs", len(jobs))
			}
		})
	}
	all.check(t)
}

// TestStartAgain repeats the start of a job: while it runs, after its end, and with other
// arguments.
func TestStartAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		other := mapper.Visit("other", func(context.Context, *mapper.Entity[account], credit) error { return nil })
		w := newWorld(t, setting{}, addCredit, other)
		keys := names(300)
		w.putAccounts(keys)
		o := &mapper.StartOptions{ID: "once", PageSize: 50}
		w.start(10, o)
		w.wait(w.start(10, o))
		w.wait(w.start(10, o))
		w.wantBalances(keys, 10)

		refused := func(name string, _ *mapper.Job, err error) {
			if !errors.Is(err, mapper.ErrIDTaken) {
				t.Errorf("%s: %v, want ErrIDTaken", name, err)
			}
		}
		job, err := addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{11}, o)
		refused("other params", job, err)
		job, err = addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Other"}, credit{10}, o)
		refused("another kind", job, err)
		job, err = addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account", Namespace: "n"}, credit{10}, o)
		refused("another namespace", job, err)
		job, err = other.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10}, o)
		refused("another mapper", job, err)

		if _, err := w.engine.StartByName(t.Context(), "add-credit", mapper.Query{Kind: "Account"},
			[]byte(` { "Amount" : 10 } `), o); err != nil {
			t.Errorf("the same by name: %v", err)
		}
		time.Sleep(time.Hour)
		w.wantBalances(keys, 10)
	})
}

// TestStartRevivesTheRoot loses the first task of a job. A repeated start must enqueue it again,
// although the queue does not accept the task's name twice.
func TestStartRevivesTheRoot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, addCredit)
		keys := names(300)
		w.putAccounts(keys)
		// This handler answers the first task with success, and does nothing. So the queue forgets
		// it.
		swallowed := false
		w.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if !swallowed {
				swallowed = true
				return
			}
			w.engine.Handler().ServeHTTP(rw, r)
		})
		o := &mapper.StartOptions{ID: "once", PageSize: 50}
		job := w.start(10, o)
		time.Sleep(time.Minute) // earlier than the first sweep
		if status, err := job.Status(t.Context()); err != nil || status.State != mapper.StateRunning ||
			status.OpenRanges != 1 {
			t.Errorf("without its task the job is %+v, %v", status, err)
		}
		w.wait(w.start(10, o))
		w.wantBalances(keys, 10)
	})
}

// TestStartCuts checks that a start records the first ranges of its job, one for each worker, and
// enqueues their tasks. If the answer to the commit is lost, or the process dies after it, another
// start with the same ID must enqueue the tasks. If the database can't tell how many entities there
// are, the job's first task must divide the job.
func TestStartCuts(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	const n, workers = 4000, 4
	lost := status.Error(codes.PermissionDenied, "lost")
	for _, test := range []struct {
		name   string
		fault  func(req any) (before, after error) // the error before or after a call takes effect
		failed bool                                // whether the first start fails
		ranges int                                 // number of ranges that the first start records
	}{
		{"no fault", func(any) (before, after error) { return nil, nil }, false, workers},
		{"the commit's answer is lost", func(req any) (before, after error) {
			if _, ok := req.(*datastorepb.CommitRequest); ok {
				return nil, lost
			}
			return nil, nil
		}, false, workers},
		{"it dies before it creates tasks", func(req any) (before, after error) {
			if r, ok := req.(*cloudtaskspb.CreateTaskRequest); ok &&
				strings.HasSuffix(r.GetTask().GetHttpRequest().GetUrl(), "/range") {
				return lost, nil
			}
			return nil, nil
		}, true, workers},
		{"the database does not count", func(req any) (before, after error) {
			if r, ok := req.(*datastorepb.RunAggregationQueryRequest); ok &&
				r.GetAggregationQuery().GetNestedQuery().GetKind()[0].GetName() == "Account" {
				return lost, nil
			}
			return nil, nil
		}, false, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var starts, held atomic.Bool
				w := newWorld(t, setting{queue: few(workers), emulator: emulator.Options{Interceptor: func(
					ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
				) (any, error) {
					if !starts.Load() {
						return handler(ctx, req)
					}
					before, after := test.fault(req)
					if before != nil {
						return nil, before
					}
					answer, err := handler(ctx, req)
					return answer, cmp.Or(after, err)
				}}}, addCredit)
				inner := w.handler
				w.handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					for held.Load() {
						time.Sleep(time.Millisecond)
					}
					inner.ServeHTTP(rw, r)
				})
				keys := names(n)
				w.putAccounts(keys)
				o := &mapper.StartOptions{ID: "once"}
				begin := func() (*mapper.Job, error) {
					return addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10}, o)
				}
				held.Store(true)
				starts.Store(true)
				job, err := begin()
				starts.Store(false)
				if failed := err != nil; failed != test.failed {
					t.Errorf("start: %v", err)
				}
				if got := w.count(record.RangeKind, "id"); got != test.ranges {
					t.Errorf("the start has recorded %d ranges, want %d", got, test.ranges)
				}
				held.Store(false)
				begun := time.Now()
				if test.failed {
					if job, err = begin(); err != nil {
						t.Fatal(err)
					}
				}
				w.wait(job)
				if took := time.Since(begun); took > 30*time.Second { // otherwise a range has waited for a sweep
					t.Errorf("the job takes %v", took)
				}
				w.wantBalances(keys, 10)
			})
		})
	}
}

// TestStartWithoutLookups starts a new job and an existing one while the database does not answer
// lookups. The errors must not claim that the job exists with other arguments.
func TestStartWithoutLookups(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := faults.New(1, faults.Rule{Kind: faults.LoseCall, Methods: []string{"Lookup"},
			Code: codes.PermissionDenied})
		f.Pause()
		w := newWorld(t, setting{emulator: emulator.Options{Faults: f}}, addCredit)
		w.putAccounts(names(100))
		o := &mapper.StartOptions{ID: "once"}
		w.wait(w.start(10, o))
		f.Resume()
		for _, id := range []string{"once", "new"} {
			_, err := addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
				&mapper.StartOptions{ID: id})
			if status.Code(err) != codes.PermissionDenied || errors.Is(err, mapper.ErrIDTaken) {
				t.Errorf("start of %q: %v, want PermissionDenied", id, err)
			}
		}
		f.Pause()
		w.start(10, o)
	})
}

// TestBadStartCallsNothing checks that a start with wrong arguments is refused without a call of
// the database.
func TestBadStartCallsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, addCredit)
		before := w.emulator.Usage()
		for _, start := range []func() (*mapper.Job, error){
			func() (*mapper.Job, error) {
				return addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
					&mapper.StartOptions{PageSize: -1})
			},
			func() (*mapper.Job, error) {
				return w.engine.StartByName(t.Context(), "add-credit", mapper.Query{Kind: "Account"},
					[]byte(`{"Bogus":1}`), nil)
			},
			func() (*mapper.Job, error) {
				return addCredit.Start(t.Context(), w.engine, mapper.Query{}, credit{10}, nil)
			},
		} {
			if _, err := start(); !errors.Is(err, mapper.ErrInvalidArgument) {
				t.Errorf("error %v, want ErrArguments", err)
			}
		}
		if used := w.emulator.Usage().Sub(before); len(used.RPCs) > 0 {
			t.Errorf("calls were made: %v", used.RPCs)
		}
	})
}

// TestWithoutAnswers makes every kind of call while the database is down. Each must return an error
// that says so, long before Google's client would give up.
func TestWithoutAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := faults.New(1,
			faults.Rule{Kind: faults.LoseCall, Methods: []string{"Lookup", "RunQuery", "RunAggregationQuery",
				"BeginTransaction", "Commit"}, Code: codes.Unavailable})
		f.Pause()
		w := newWorld(t, setting{emulator: emulator.Options{Faults: f}}, addCredit)
		w.putAccounts(names(100))
		q := mapper.Query{Kind: "Account"}
		job := w.start(10, nil)
		w.wait(job)
		f.Resume()
		for name, ask := range map[string]func(context.Context) error{
			"Start": func(ctx context.Context) error {
				_, err := addCredit.Start(ctx, w.engine, q, credit{10}, &mapper.StartOptions{ID: "j"})
				return err
			},
			"Plan": func(ctx context.Context) error {
				_, err := addCredit.Plan(ctx, w.engine, q, nil)
				return err
			},
			"split.Query": func(ctx context.Context) error {
				_, err := split.Query(ctx, w.client, q, 8, nil)
				return err
			},
			"Jobs": func(ctx context.Context) error {
				_, _, err := w.engine.JobsPage(ctx, nil, "")
				return err
			},
			"Status": func(ctx context.Context) error {
				_, err := job.Status(ctx)
				return err
			},
			"Failures": func(ctx context.Context) error {
				_, _, err := job.FailuresPage(ctx, "")
				return err
			},
			"Verify": func(ctx context.Context) error {
				_, err := job.Verify(ctx, nil)
				return err
			},
			"Pause":   job.Pause,
			"Resume":  job.Resume,
			"Abort":   job.Abort,
			"Retry":   func(ctx context.Context) error { return job.Retry(ctx, nil) },
			"SetRate": func(ctx context.Context) error { return job.SetRate(ctx, mapper.Rate{EntitiesPerSecond: 1}) },
			"CleanUp": func(ctx context.Context) error { return job.CleanUp(ctx, nil) },
			"Revive":  w.engine.ReviveJobs,
		} {
			begun := time.Now()
			err := ask(t.Context())
			if took := time.Since(begun); err == nil ||
				strings.Count(err.Error(), "the database does not answer (it is ") != 1 || took > 30*time.Second {
				t.Errorf("%s after %v: %v", name, took, err)
			}
		}
		f.Pause()
	})
}

// TestStartWithoutCommits starts a job while all commits fail. The error must say so, and not that
// the job does not exist.
func TestStartWithoutCommits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := faults.New(1, faults.Rule{Kind: faults.LoseCall, Methods: []string{"Commit"},
			Code: codes.PermissionDenied})
		f.Pause()
		w := newWorld(t, setting{emulator: emulator.Options{Faults: f}}, addCredit)
		f.Resume()
		for _, o := range []*mapper.StartOptions{{AllowEmpty: true}, {AllowEmpty: true, ID: "once"}} {
			_, err := addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10}, o)
			if status.Code(err) != codes.PermissionDenied || errors.Is(err, mapper.ErrNoSuchJob) {
				t.Errorf("%v, want PermissionDenied", err)
			}
		}
		f.Pause()
	})
}

// follower is a mapper whose finalizer starts one more job over the same kind.
var follower *mapper.Mapper[mapper.NoParams]

func init() {
	follower = mapper.Update("follower", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
		return nil
	})
	follower.WithFinalizer(func(ctx context.Context, d *mapper.Completion, _ mapper.NoParams) error {
		if d.Status.ID != "first" {
			return nil
		}
		_, err := follower.Start(ctx, mapper.EngineFromContext(ctx), mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "next"})
		return err
	})
}

// TestOneAtATime starts, resumes and retries jobs of a mapper over one kind. At most one of them
// may run, except for jobs with AllowOverlap.
func TestOneAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var fails atomic.Bool
		fails.Store(true)
		picky := mapper.Update("picky", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			time.Sleep(time.Millisecond)
			if fails.Load() && a.Value.Balance == 7 {
				return mapper.Permanent(errors.New("seven"))
			}
			return nil
		})
		w, ctx := newWorld(t, setting{}, picky, follower, setOwner), t.Context()
		w.putAccounts(names(300))
		if _, err := w.client.Put(ctx, datastore.NameKey("Other", "one", nil), &account{}); err != nil {
			t.Fatal(err)
		}
		start := func(id string, q mapper.Query, o mapper.StartOptions) error {
			o.ID = id
			_, err := picky.Start(ctx, w.engine, q, mapper.NoParams{}, &o)
			return err
		}
		refused := func(what, other string, err error) {
			t.Helper()
			if !errors.Is(err, mapper.ErrWrongState) || !strings.Contains(fmt.Sprint(err), "job "+other+" runs picky") {
				t.Errorf("%s: %v, want that %s runs", what, err, other)
			}
		}
		fine := func(what string, err error) {
			t.Helper()
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		accounts := mapper.Query{Kind: "Account"}
		fine("the first", start("one", accounts, mapper.StartOptions{}))
		refused("another one", "one", start("two", accounts, mapper.StartOptions{}))
		refused("one over several kinds", "one", start("two", mapper.Query{Kinds: []string{"Account", "Other"}},
			mapper.StartOptions{}))
		fine("the same again", start("one", accounts, mapper.StartOptions{}))
		fine("another kind", start("other", mapper.Query{Kind: "Other"}, mapper.StartOptions{}))
		fine("its rehearsal", start("rehearsal", accounts, mapper.StartOptions{DryRun: true}))
		fine("beside it", start("beside", accounts, mapper.StartOptions{AllowOverlap: true}))
		_, err := setOwner.Start(ctx, w.engine, accounts, mapper.NoParams{}, &mapper.StartOptions{ID: "owner"})
		fine("another mapper", err)
		fine("a pause", w.engine.Job("one").Pause(ctx))
		fine("while it is paused", start("zero", accounts, mapper.StartOptions{}))
		refused("a resume meanwhile", "zero", w.engine.Job("one").Resume(ctx))
		fine("an abort", w.engine.Job("zero").Abort(ctx))
		fine("a resume", w.engine.Job("one").Resume(ctx))
		if s, err := w.engine.Job("one").Wait(ctx); err != nil || s.Failures != 1 {
			t.Fatalf("status %+v, %v", s, err)
		}
		fine("when it has ended", start("two", accounts, mapper.StartOptions{}))
		refused("a retry meanwhile", "two", w.engine.Job("one").Retry(ctx, nil))
		fails.Store(false)
		if s, err := w.engine.Job("two").Wait(ctx); err != nil || s.State != mapper.StateSucceeded {
			t.Fatalf("status %+v, %v", s, err)
		}
		fine("a retry", w.engine.Job("one").Retry(ctx, nil))
		refused("a start while it is retried", "one", start("three", accounts, mapper.StartOptions{}))
		if s, err := w.engine.Job("one").Wait(ctx); err != nil || s.State != mapper.StateSucceeded {
			t.Errorf("status %+v, %v", s, err)
		}
		fine("its end", w.engine.Job("one").CleanUp(ctx, &mapper.CleanUpOptions{IncludeJob: true}))
		time.Sleep(time.Hour)
		fine("when it is gone", start("three", accounts, mapper.StartOptions{}))

		_, err = follower.Start(ctx, w.engine, accounts, mapper.NoParams{}, &mapper.StartOptions{ID: "first"})
		fine("one that another follows", err)
		w.wait(w.engine.Job("first"))
		w.wait(w.engine.Job("next"))
	})
}

// TestManyStarts makes many concurrent starts of jobs with different IDs over one kind. The first
// job must run, and the others must be refused.
func TestManyStarts(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for name, pessimistic := range map[string]bool{"optimistic": false, "pessimistic": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, ctx := newWorld(t, setting{emulator: emulator.Options{PessimisticConcurrency: pessimistic}},
					addCredit),
					t.Context()
				w.putAccounts(names(1000))
				var mu sync.Mutex
				var all sync.WaitGroup
				started, refused := 0, 0
				for i := range 8 {
					all.Go(func() {
						_, err := addCredit.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, credit{1},
							&mapper.StartOptions{ID: fmt.Sprint("job-", i), Rate: mapper.Rate{EntitiesPerSecond: 50}})
						mu.Lock()
						defer mu.Unlock()
						switch {
						case err == nil:
							started++
						case errors.Is(err, mapper.ErrWrongState):
							refused++
						default:
							t.Log(err) // refused because too many starts conflicted
						}
					})
				}
				all.Wait()
				if started != 1 || refused == 0 {
					t.Errorf("%d have started, and %d were refused", started, refused)
				}
			})
		})
	}
}

// TestSlotsOfReusedIDs runs a job, and then another job with the same ID over other kinds. The slot
// of the first job, the record that lets only one job run over a kind, must not count for the
// second job.
func TestSlotsOfReusedIDs(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := newWorld(t, setting{}, steadyCredit), t.Context()
		w.putAccounts(names(1000))
		other := make([]*datastore.Key, 1000)
		for i := range other {
			other[i] = datastore.NameKey("Other", fmt.Sprint(i), nil)
		}
		for first := 0; first < len(other); first += 500 {
			if _, err := w.client.PutMulti(ctx, other[first:first+500], make([]account, 500)); err != nil {
				t.Fatal(err)
			}
		}
		start := func(id, kind string) (*mapper.Job, error) {
			return steadyCredit.Start(ctx, w.engine, mapper.Query{Kind: kind}, credit{1},
				&mapper.StartOptions{ID: id, PageSize: 20})
		}
		job, err := start("nightly", "Account")
		if err != nil {
			t.Fatal(err)
		}
		w.wait(job)
		if err := job.CleanUp(ctx, &mapper.CleanUpOptions{IncludeJob: true}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if _, err := start("nightly", "Other"); err != nil {
			t.Fatal(err)
		}
		if _, err := start("another", "Account"); err != nil {
			t.Errorf("a start over a free kind: %v", err)
		}
		if _, err := start("third", "Account"); !errors.Is(err, mapper.ErrWrongState) ||
			!strings.Contains(err.Error(), "job another") {
			t.Errorf("a start over a busy kind: %v", err)
		}
	})
}

type amount struct {
	Amount int64 `json:"amount"`
}

func (p amount) Validate() error {
	if p.Amount <= 0 {
		return fmt.Errorf(`"amount" is %d, it has to be positive`, p.Amount)
	}
	return nil
}

type byPointer struct {
	Text string `json:"text"`
}

func (p *byPointer) Validate() error {
	if p.Text == "panic" {
		panic("it can't be looked at")
	}
	if p.Text == "" {
		return errors.New(`"text" is missing`)
	}
	return nil
}

// unreadable is a type of parameters whose methods for JSON panic.
type unreadable struct{ N int }

func (unreadable) MarshalJSON() ([]byte, error) { panic("it can't be written") }
func (*unreadable) UnmarshalJSON([]byte) error  { panic("it can't be read") }

// TestValidate checks that the Validate method of a job's parameters is called before the job
// starts: by value, by name, as a rehearsal, by a schedule, and in a plan. A start that is refused
// must leave no record.
func TestValidate(t *testing.T) {
	t.Parallel()
	add := mapper.Update("add", func(_ context.Context, e *mapper.Entity[account], p amount) error { return nil })
	text := mapper.Visit("text", func(context.Context, *mapper.Entity[account], byPointer) error { return nil })
	pointed := mapper.VisitPages("pointed", func(context.Context, *mapper.Entity[account], *byPointer) (int,
		error) {
		return 0, nil
	},
		func(context.Context, *mapper.Page[int], *byPointer) error { return nil })
	panicking := mapper.Visit("panicking", func(context.Context, *mapper.Entity[account], unreadable) error {
		return nil
	})
	schedule := mapper.NewSchedule("hourly", add, mapper.OverlapQueue)
	mappertest.Run(t, []mapper.AnyMapper{add, text, pointed, panicking}, &mappertest.Options{
		Schedules: []mapper.AnySchedule{schedule},
	}, func(t *testing.T, w *mappertest.Env) {
		key := datastore.NameKey("Account", "a", nil)
		if _, err := w.Client.Put(t.Context(), key, &account{}); err != nil {
			t.Fatal(err)
		}
		q := mapper.Query{Kind: "Account"}
		refused := func(what string, err error, want string) {
			t.Helper()
			if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", what, err, want)
			}
		}
		_, err := add.Start(t.Context(), w.Engine, q, amount{}, nil)
		refused("a start", err, `"amount" is 0`)
		_, err = add.Start(t.Context(), w.Engine, q, amount{-1}, &mapper.StartOptions{DryRun: true})
		refused("a rehearsal", err, `"amount" is -1`)
		_, err = schedule.Tick(t.Context(), w.Engine, time.Now(), q, amount{}, nil)
		refused("a tick", err, `"amount" is 0`)
		_, err = text.Start(t.Context(), w.Engine, q, byPointer{}, nil)
		refused("a pointer's method", err, `"text" is missing`)
		_, err = text.Start(t.Context(), w.Engine, q, byPointer{"panic"}, nil)
		refused("a panic", err, "it can't be looked at")
		_, err = pointed.Start(t.Context(), w.Engine, q, &byPointer{}, nil)
		refused("a pointer", err, `"text" is missing`)
		_, err = panicking.Start(t.Context(), w.Engine, q, unreadable{}, nil)
		refused("a panic of MarshalJSON", err, "it can't be written")
		_, err = w.Engine.StartByName(t.Context(), "panicking", q, json.RawMessage(`{"N": 1}`), nil)
		refused("a panic of UnmarshalJSON", err, "it can't be read")
		for _, c := range [][3]string{
			{"add", `{}`, `"amount" is 0`}, {"add", `{"amount": null}`, `"amount" is null`}, {"add",
				`{"amount": 1, "amount": 2}`, "twice"}, {"add", `{"amount": 1, "x": 2}`, `"x"`},
			{"text", `{}`, `"text" is missing`}, {"pointed", `{}`, `"text" is missing`}, {"pointed", `null`, "null"},
		} {
			_, err := w.Engine.StartByName(t.Context(), c[0], q, json.RawMessage(c[1]), nil)
			refused(c[0]+" "+c[1], err, c[2])
			_, err = w.Engine.PlanByName(t.Context(), c[0], q,
				&mapper.PlanOptions{Params: json.RawMessage(c[1])})
			refused("a plan of "+c[0]+" "+c[1], err, c[2])
		}
		if jobs, _, err := w.Engine.JobsPage(t.Context(), nil, ""); err != nil || len(jobs) > 0 {
			t.Errorf("there are jobs: %+v, %v", jobs, err)
		}
		if _, err := w.Engine.PlanByName(t.Context(), "add", q, nil); err != nil {
			t.Errorf("a plan without parameters: %v", err)
		}
		if job, err := add.Start(t.Context(), w.Engine, q, amount{1}, nil); err != nil {
			t.Error(err)
		} else if s, err := job.Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded {
			t.Errorf("status %+v, %v", s, err)
		}
	})
}

// TestParamsAsTheyAre checks that numbers of all sizes in parameters reach the function unchanged,
// or are refused.
func TestParamsAsTheyAre(t *testing.T) {
	t.Parallel()
	type params struct {
		Any  any            `json:"any"`
		Map  map[string]any `json:"map"`
		Int  int64          `json:"int"`
		Uint uint64         `json:"uint"`
	}
	var got params
	m := mapper.Visit("m", func(_ context.Context, _ *mapper.Entity[account], p params) error {
		got = p
		return nil
	})
	mappertest.Run(t, []mapper.AnyMapper{m}, nil, func(t *testing.T, w *mappertest.Env) {
		if _, err := w.Client.Put(t.Context(), datastore.NameKey("Account", "a", nil), &account{}); err != nil {
			t.Fatal(err)
		}
		for _, test := range []struct {
			given params
			taken bool
		}{
			{params{Any: 1.5, Map: map[string]any{"a": 1e300}, Int: 1<<63 - 1, Uint: 1<<64 - 1}, true},
			{params{Any: float64(1 << 53), Map: map[string]any{"a": []any{"9007199254740993"}}}, true},
			{params{Any: int64(1<<53 + 1)}, false},
			{params{Map: map[string]any{"a": []any{map[string]any{"b": int64(-1<<53 - 1)}}}}, false},
			{params{Any: uint64(1<<64 - 1)}, false},
			{params{Any: json.Number("0.1000000000000000000000000000000001")}, false},
		} {
			job, err := m.Start(t.Context(), w.Engine, mapper.Query{Kind: "Account"}, test.given, nil)
			if !test.taken {
				if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), "float64") {
					t.Errorf("%+v: %v, want it refused", test.given, err)
				}
				continue
			}
			if err != nil {
				t.Error(err)
				continue
			}
			if _, err := job.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, test.given) {
				t.Errorf("the function got %+v, want %+v", got, test.given)
			}
		}
	})
}

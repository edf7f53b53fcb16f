package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// A poison is an entity that the function can't process, and the way in which it fails.
type poison struct {
	name  string
	do    func(ctx context.Context, f *fleet, a *mapper.Entity[growing]) error
	wants string // a part of the error in the failure
	store any    // stored instead of an account
	few   bool   // whether to test with few accounts, because another poison is similar
}

type growing struct {
	Balance int64
	Note    string `datastore:",noindex,omitempty"`
}

var poisons = []poison{
	{name: "error", wants: "no", do: func(context.Context, *fleet, *mapper.Entity[growing]) error {
		return errors.New("no")
	}},
	{name: "permanent error", few: true, wants: "never",
		do: func(context.Context, *fleet, *mapper.Entity[growing]) error {
			return mapper.Permanent(errors.New("never"))
		}},
	{name: "retry after", few: true, wants: "later", do: func(context.Context, *fleet, *mapper.Entity[growing]) error {
		return mapper.RetryAfter(errors.New("later"), time.Hour)
	}},
	{name: "panic", wants: "panic: oh", do: func(context.Context, *fleet, *mapper.Entity[growing]) error {
		panic("oh")
	}},
	{name: "exit", wants: "the process died 5 times",
		do: func(ctx context.Context, f *fleet, _ *mapper.Entity[growing]) error {
			return f.die(ctx)
		}},
	{name: "hang", wants: "took too long", do: func(ctx context.Context, _ *fleet, _ *mapper.Entity[growing]) error {
		<-ctx.Done()
		time.Sleep(time.Hour) // ignores its context, which is cancelled
		return nil
	}},
	{name: "goexit", few: true, wants: "ended its goroutine",
		do: func(context.Context, *fleet, *mapper.Entity[growing]) error {
			runtime.Goexit()
			return nil
		}},
	{name: "undecodable", wants: "Balance", store: &struct{ Balance, Owner string }{"much", "somebody"}},
	{name: "oversize", wants: "longer than 1048487 bytes",
		do: func(_ context.Context, _ *fleet, a *mapper.Entity[growing]) error {
			a.Value.Note = strings.Repeat("x", 1<<20)
			return nil
		}},
}

// TestPoison puts one poison among many other entities. The job must end without help. All other
// entities must be processed, and only the poison must be listed as a failure. After the test has
// changed it, a retry must process it.
func TestPoison(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	many := testflag.Size(t, 500, 1000, 100_000)
	for _, p := range poisons {
		n := many
		if p.few {
			n = 500
		}
		t.Run(p.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testPoison(t, p, n) })
		})
	}
}

func testPoison(t *testing.T, p poison, n int) {
	var f *fleet
	var mended atomic.Bool
	keys := names(n)
	bad := keys[n*2/3]
	m := mapper.Update("poisoned", func(ctx context.Context, a *mapper.Entity[growing], _ mapper.NoParams) error {
		if p.do != nil && a.Key.Equal(bad) && !mended.Load() {
			return p.do(ctx, f, a)
		}
		a.Value.Balance += 10
		a.Count("credited", 1)
		return nil
	})
	w := newWorld(t, setting{queue: few(60)}, m)
	f = newFleet(w, 1, 3, m)
	w.putAccounts(keys)
	if p.store != nil {
		if _, err := w.client.Put(t.Context(), bad, p.store); err != nil {
			t.Fatal(err)
		}
	}
	job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
		&mapper.StartOptions{ID: "j"})
	if err != nil {
		t.Fatal(err)
	}
	end := func() *mapper.Status {
		ctx, cancel := context.WithTimeout(t.Context(), 48*time.Hour)
		defer cancel()
		s, err := job.Wait(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	begun := time.Now()
	if s := end(); s.State != mapper.StateSucceededWithFailures || s.Failures != 1 || s.Processed != int64(n-1) ||
		s.Counters["credited"] != int64(n-1) {
		t.Errorf("status %+v", s)
	}
	took := time.Since(begun)
	failures, next, err := job.FailuresPage(t.Context(), "")
	if err != nil || next != "" || len(failures) != 1 || !failures[0].Key.Equal(bad) ||
		!strings.Contains(failures[0].Error, p.wants) {
		t.Errorf("failures %+v, %q, %v", failures, next, err)
	}
	t.Logf("%+v; took %v, %d processes died", failures, took, f.deaths())

	mended.Store(true)
	if p.store != nil {
		if _, err := w.client.Put(t.Context(), bad,
			&account{int64(n * 2 / 3), fmt.Sprint("owner ", n*2/3)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := job.Retry(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if s := end(); s.State != mapper.StateSucceeded || s.Processed != int64(n) || s.Counters["credited"] != int64(n) {
		t.Errorf("after the retry: %+v", s)
	}
	w.wantBalances(keys, 10)
	proof, err := job.Verify(t.Context(), nil)
	if err != nil || len(proof.Problems) > 0 {
		t.Errorf("proof %+v, %v", proof, err)
	}
	time.Sleep(2 * time.Hour) // until functions that were abandoned have returned
}

// TestDeadlyEntities has entities that kill their process, in a queue that delivers each task only
// once. The job must find these entities. If one is deleted, no other entity may be blamed instead.
func TestDeadlyEntities(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out large runs")
	}
	t.Parallel()
	for name, c := range map[string]struct {
		attempts int32
		deleted  bool
	}{"each task is delivered once": {1, false}, "it is deleted": {0, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var f *fleet
				var w *world
				keys := names(100)
				bad := keys[50]
				m := mapper.Update("deadly",
					func(ctx context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
						if !a.Key.Equal(bad) {
							return nil
						}
						if c.deleted && f.deaths() == 6 {
							if err := w.client.Delete(context.Background(), bad); err != nil {
								return err
							}
						}
						return f.die(ctx)
					})
				q := few(20)
				q.RetryConfig = &cloudtaskspb.RetryConfig{MaxAttempts: c.attempts}
				w = newWorld(t, setting{queue: q}, m)
				f = newFleet(w, 1, 3, m)
				w.putAccounts(keys)
				s := over(w, m, &mapper.StartOptions{ID: "j"})
				failures, _, err := w.engine.Job("j").FailuresPage(t.Context(), "")
				if err != nil || s.Processed != 99 || len(failures) > 1 || len(failures) == 1 &&
					!failures[0].Key.Equal(bad) || c.deleted != (len(failures) == 0) {
					t.Errorf("%d died: %+v, failures %+v, %v", f.deaths(), s, failures, err)
				}
			})
		})
	}
}

// TestAbortAtTheGate aborts a job while pages wait until they may run exclusively, which means
// alone in their process. They must not start any more.
func TestAbortAtTheGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Update("slow", func(ctx context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(10 * time.Second):
			}
			a.Value.Balance += 10
			return nil
		})
		w := newWorld(t, setting{queue: few(30)}, m)
		f := newFleet(w, 1, 1, m)
		w.putAccounts(names(30))
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{PageSize: 1})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // after two deaths, all pages must run exclusively
			time.Sleep(5 * time.Second)
			f.killAny()
		}
		time.Sleep(25 * time.Second)
		if err := job.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(11 * time.Second) // until pages that still run have ended
		before := w.status(job)
		time.Sleep(time.Hour)
		if after := w.status(job); after.Processed > before.Processed || before.Processed == 0 {
			t.Errorf("%d were processed, an hour later %d", before.Processed, after.Processed)
		}
	})
}

// TestRecoveryBound kills the process at one entity, in a database whose transactions lock
// entities. The locks of a dead process stay until they expire. The job must recover within a
// bounded time.
func TestRecoveryBound(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out tests of many deaths")
	}
	testflag.Sequential(t)
	t.Parallel()
	for _, pessimistic := range []bool{false, true} {
		t.Run(fmt.Sprintf("pessimistic %v", pessimistic), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var f *fleet
				keys := names(500)
				m := mapper.Update("deadly",
					func(ctx context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
						if a.Key.Equal(keys[333]) {
							time.Sleep(time.Second)
							return f.die(ctx)
						}
						a.Value.Balance += 10
						return nil
					})
				q := few(10)
				q.RetryConfig = &cloudtaskspb.RetryConfig{MaxBackoff: durationpb.New(10 * time.Second)}
				w := newWorld(t, setting{emulator: emulator.Options{PessimisticConcurrency: pessimistic}, queue: q,
					deadline: 15 * time.Second, log: io.Discard}, m)
				f = newFleet(w, 1, 3, m)
				w.putAccounts(keys)
				s := over(w, m, &mapper.StartOptions{PageSize: 500, PageTime: time.Second,
					EntityTimeout: 5 * time.Second})
				takes := s.Ended.Sub(s.Created)
				t.Logf("it took %v, and %d processes died", takes, f.deaths())
				if s.State != mapper.StateSucceededWithFailures || s.Processed != 499 || s.Failures != 1 {
					t.Errorf("status %+v", s)
				}
				// Two deaths while other pages run, nine until the page has one entity, and five
				// deaths of this entity alone. Each death costs a delay. The expiry of locks, and
				// the time until a death is certain, count once.
				if most := 16*10*time.Second + 2*time.Minute + 2*time.Minute; takes > most {
					t.Errorf("it took %v, above %v", takes, most)
				}
			})
		})
	}
}

// TestDeadlyEntityAfterOutage kills processes at one entity, after an hour in which the database
// has refused all calls. By then, the queue waits long before it retries a task. This must not
// delay the search for the deadly entity.
func TestDeadlyEntityAfterOutage(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f *fleet
		var out atomic.Bool
		keys := names(87)
		m := mapper.Update("deadly", func(ctx context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			if a.Key.Equal(keys[50]) {
				return f.die(ctx)
			}
			return nil
		})
		w := newWorld(t,
			setting{log: io.Discard,
				emulator: emulator.Options{Interceptor: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo,
					handler grpc.UnaryHandler) (any, error) {
					if out.Load() {
						return nil, status.Error(codes.Internal, "an outage")
					}
					return handler(ctx, req)
				}}}, m)
		f = newFleet(w, 1, 3, m)
		w.putAccounts(keys)
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "j"})
		if err != nil {
			t.Fatal(err)
		}
		out.Store(true)
		time.Sleep(time.Hour)
		out.Store(false)
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 48*time.Hour)
		defer cancel()
		s, err := job.Wait(ctx)
		if err != nil {
			t.Fatal(err)
		}
		took, most := time.Since(begun), time.Hour+mapper.MaxDeaths*(10+4)*time.Minute
		if s.State != mapper.StateSucceededWithFailures || s.Failures != 1 || took > most {
			t.Errorf("%s, %d failures, after %v, want at most %v; %d processes died", s.State, s.Failures, took, most,
				f.deaths())
		}
	})
}

// A refusal makes the database refuse some commits until a certain time.
type refusal struct {
	about func(*datastorepb.CommitRequest) bool
	after time.Duration // how long each refusal takes
	until time.Time
	count atomic.Int64
}

func (r *refusal) intercept(
	ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	if commit, ok := req.(*datastorepb.CommitRequest); ok && time.Now().Before(r.until) && r.about(commit) {
		r.count.Add(1)
		time.Sleep(r.after)
		return nil, status.Error(codes.Unavailable, "not now")
	}
	return handler(ctx, req)
}

// wantNoneSuspected checks that commits were refused, and that despite this no range of a job is
// suspected of killing its process.
func (w *world) wantNoneSuspected(job string, refused *refusal) {
	w.Helper()
	if refused.count.Load() == 0 {
		w.Error("nothing was refused")
	}
	for _, r := range records(w.T, w.client)[job] {
		if r.Solo {
			w.Errorf("suspected: %+v", r)
		}
	}
}

// TestInnocents lets processes die because of one entity, and because of other causes, while each
// runs 20 pages. Only that entity may be blamed.
func TestInnocents(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out large runs")
	}
	t.Parallel()
	seeds, n := testflag.Size(t, 0, 1, 4), testflag.Size(t, 0, 5000, 20_000)
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			var f *fleet
			keys := names(n)
			bad := keys[n/3]
			m := mapper.Update("deadly", func(ctx context.Context, a *mapper.Entity[growing], _ mapper.NoParams) error {
				if a.Key.Equal(bad) {
					time.Sleep(5 * time.Millisecond)
					return f.die(ctx)
				}
				time.Sleep(time.Millisecond)
				a.Value.Balance += 10
				return nil
			})
			w := newWorld(t, setting{queue: few(60)}, m)
			f = newFleet(w, seed, 3, m)
			w.putAccounts(keys)
			job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
				&mapper.StartOptions{PageSize: 100})
			if err != nil {
				t.Fatal(err)
			}
			stop := make(chan struct{})
			go func() {
				for {
					select {
					case <-time.After(time.Duration(100+seed*200) * time.Millisecond):
						f.killAny()
					case <-stop:
						return
					}
				}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 48*time.Hour)
			defer cancel()
			s, err := job.Wait(ctx)
			if err != nil || s.Failures != 1 || s.Processed != int64(n-1) {
				t.Errorf("seed %d: %+v, %v", seed, s, err)
			}
			close(stop)
			failures, _, err := job.FailuresPage(t.Context(), "")
			if err != nil || len(failures) != 1 || !failures[0].Key.Equal(bad) {
				t.Errorf("seed %d: failures %+v, %v", seed, failures, err)
			}
			t.Logf("seed %d: %d processes died, %d tasks, %v", seed, f.deaths(), s.Tasks, s.Ended.Sub(s.Created))
			w.wantBalances(keys[:n/3], 10)
		})
	}
}

// TestInnocentsAlone lets processes die because of one entity, while they run pages of one entity
// each. Some of the other entities fail for a while. Only the deadly entity may be blamed for
// deaths.
func TestInnocentsAlone(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f *fleet
		keys := names(400)
		bad := keys[177]
		m := mapper.Update("deadly", func(ctx context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			if a.Key.Equal(bad) {
				time.Sleep(50 * time.Millisecond)
				return f.die(ctx)
			}
			time.Sleep(100 * time.Millisecond) // so that the page runs when its process dies
			a.Value.Balance += 10
			return nil
		})
		w := newWorld(t, setting{queue: &cloudtaskspb.Queue{
			RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 20},
			RetryConfig: &cloudtaskspb.RetryConfig{MinBackoff: durationpb.New(time.Millisecond),
				MaxBackoff: durationpb.New(2 * time.Millisecond)},
		}}, m)
		f = newFleet(w, 1, 1, m)
		w.putAccounts(keys)
		s := over(w, m, &mapper.StartOptions{ID: "j", PageSize: 1})
		failures, _, err := w.engine.Job("j").FailuresPage(t.Context(), "")
		if err != nil || s.Processed != 399 || len(failures) != 1 || !failures[0].Key.Equal(bad) {
			t.Errorf("status %+v, failures %+v, %v", s, failures, err)
		}
		t.Logf("%d processes died", f.deaths())
	})
}

// TestErrorsAreNoDeaths lets every delivery end with an error for a while: the database refuses to
// commit pages, and sometimes to remove crash marks, the notes that a delivery is running. No range
// may be suspected of killing its process.
func TestErrorsAreNoDeaths(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		refused := &refusal{about: func(commit *datastorepb.CommitRequest) bool {
			return changes(commit, "Account") || n.Add(1)%3 == 0
		}}
		w := newWorld(t, setting{emulator: emulator.Options{Interceptor: refused.intercept}, queue: few(4)}, addCredit)
		keys := names(20)
		w.putAccounts(keys)
		refused.until = time.Now().Add(10 * time.Minute)
		var job *mapper.Job
		for err := errors.New("not yet"); err != nil; {
			job, err = addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
				&mapper.StartOptions{ID: "j", PageSize: 1})
		}
		time.Sleep(9 * time.Minute)
		w.wantNoneSuspected("j", refused)
		time.Sleep(time.Hour)
		w.wait(job)
		w.wantBalances(keys, 10)
	})
}

// TestOverrunsAreNoDeaths makes most transactions start so slowly that deliveries exceed their
// deadline. This includes transactions that remove crash marks, the notes that a delivery is
// running. No process may be counted as dead.
func TestOverrunsAreNoDeaths(t *testing.T) {
	t.Parallel()
	n := uint64(4)
	if testing.Short() {
		n = 1
	}
	for seed := range n {
		synctest.Test(t, func(t *testing.T) {
			up := time.Now().Add(time.Hour)
			slow := faults.New(seed, faults.Rule{
				Kind: faults.SlowCall, Share: 0.8, Latency: faults.Uniform{Min: 10 * time.Second,
					Max: 100 * time.Second}, Methods: []string{"BeginTransaction"},
			})
			slow.Pause()
			q := few(4)
			q.RetryConfig = &cloudtaskspb.RetryConfig{MaxBackoff: durationpb.New(time.Second)}
			w := newWorld(t, setting{emulator: emulator.Options{Faults: slow}, queue: q, deadline: 15 * time.Second},
				addCredit)
			f := newFleet(w, 1, 10, addCredit)
			keys := names(40)
			w.putAccounts(keys)
			job, err := addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
				&mapper.StartOptions{ID: "j", PageSize: 1, PageTime: time.Second, EntityTimeout: 5 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			slow.Resume()
			time.Sleep(time.Until(up))
			slow.Pause()
			w.wait(job)
			w.wantBalances(keys, 10)
			if f.deaths() > 0 {
				t.Errorf("%d deaths", f.deaths())
			}
		})
	}
}

// TestTwinsAreNoDeaths delivers each task twice at nearly the same time, while the database does
// not commit pages. The deliveries find each other's crash marks, the notes that a delivery is
// running. No process may be counted as dead.
func TestTwinsAreNoDeaths(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for _, apart := range []time.Duration{100 * time.Millisecond, 10 * time.Second} {
		t.Run(apart.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				refused := &refusal{after: time.Second, about: func(commit *datastorepb.CommitRequest) bool {
					return changes(commit, "Account")
				}}
				twins := faults.New(1, faults.Rule{Kind: faults.DeliverTogether, Share: 1,
					Latency: faults.Uniform{Max: apart}})
				w := newWorld(t, setting{emulator: emulator.Options{Interceptor: refused.intercept, Faults: twins},
					queue: few(4)}, addCredit)
				f := newFleet(w, 1, 10, addCredit)
				keys := names(4) // so few that each range is tried often
				w.putAccounts(keys)
				refused.until = time.Now().Add(10 * time.Minute)
				job, err := addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
					&mapper.StartOptions{ID: "j", PageSize: 1})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(9 * time.Minute)
				w.wantNoneSuspected("j", refused)
				w.wait(job)
				w.wantBalances(keys, 10)
				if f.deaths() > 0 || twins.Counts()[faults.DeliverTogether] < 20 {
					t.Errorf("%d deaths, %v", f.deaths(), twins.Counts())
				}
			})
		})
	}
}

// changes reports whether a commit changes entities of the given kind.
func changes(commit *datastorepb.CommitRequest, kind string) bool {
	for _, m := range commit.Mutations {
		for _, e := range []*datastorepb.Entity{m.GetInsert(), m.GetUpdate(), m.GetUpsert()} {
			if path := e.GetKey().GetPath(); len(path) > 0 && path[len(path)-1].Kind == kind {
				return true
			}
		}
	}
	return false
}

// TestLiveDeliveriesAreNoDeaths resumes a job several times while an entity takes minutes, so that
// its range gets several tasks. Their deliveries find each other's crash marks, the notes that a
// delivery is running. No process may be counted as dead.
func TestLiveDeliveriesAreNoDeaths(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Visit("slow", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
			time.Sleep(4 * time.Minute)
			return nil
		})
		w := newWorld(t, setting{}, m)
		newFleet(w, 1, 40, m)
		// the first delivery fails, and the second one leaves a crash mark
		w.handler = downUntil(time.Now().Add(time.Second), w.handler)
		w.putAccounts(names(1))
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{PageSize: 1, EntityTimeout: 5 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		for range 8 {
			time.Sleep(20 * time.Second)
			if err := job.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		w.wait(job)
	})
}

// TestRefusedDeliveriesAreNoDeaths runs a function that refuses its entities for a while. Meanwhile
// the database does not commit failed attempts. The deliveries end normally, so no process may be
// counted as dead.
func TestRefusedDeliveriesAreNoDeaths(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mended := time.Now().Add(3 * time.Minute)
		refused := &refusal{until: mended, about: func(commit *datastorepb.CommitRequest) bool {
			return slices.ContainsFunc(commit.Mutations, func(m *datastorepb.Mutation) bool {
				p := m.GetUpdate().GetProperties()
				return p["generation"].GetIntegerValue() > 0 && p["state"].GetStringValue() == "pending"
			})
		}}
		m := mapper.Update("failing", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			if time.Now().Before(mended) {
				return mapper.RetryAfter(errors.New("not yet"), time.Minute)
			}
			a.Value.Balance += 10
			return nil
		})
		q := few(4)
		q.RetryConfig = &cloudtaskspb.RetryConfig{MaxBackoff: durationpb.New(10 * time.Second)}
		w := newWorld(t, setting{emulator: emulator.Options{Interceptor: refused.intercept}, queue: q}, m)
		f := newFleet(w, 1, 10, m)
		keys := names(10)
		w.putAccounts(keys)
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "j", PageSize: 1})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(mended))
		w.wantNoneSuspected("j", refused)
		w.wait(job)
		w.wantBalances(keys, 10)
		if f.deaths() > 0 {
			t.Errorf("%d deaths", f.deaths())
		}
	})
}

// TestSupersededDeliveriesAreNoDeaths purges the queue while a delivery runs, so that its range
// gets another task. The first delivery ends normally, so no process may be counted as dead.
func TestSupersededDeliveriesAreNoDeaths(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		up := time.Now().Add(25 * time.Minute)
		refused := &refusal{until: up, about: func(commit *datastorepb.CommitRequest) bool {
			return slices.ContainsFunc(commit.Mutations, func(m *datastorepb.Mutation) bool {
				return m.GetUpdate().GetProperties()["state"].GetStringValue() == "done"
			})
		}}
		var calls atomic.Int64
		m := mapper.Visit("slow", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
			if calls.Add(1) == 1 {
				time.Sleep(4 * time.Minute)
			}
			return nil
		})
		q := few(4)
		q.RetryConfig = &cloudtaskspb.RetryConfig{MaxBackoff: durationpb.New(20 * time.Second)}
		w := newWorld(t, setting{emulator: emulator.Options{Interceptor: refused.intercept}, queue: q}, m)
		f := newFleet(w, 1, 40, m)
		// the first delivery fails, and the second one leaves a crash mark
		w.handler = downUntil(time.Now().Add(time.Second), w.handler)
		w.putAccounts(names(1))
		job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "j", PageSize: 1, EntityTimeout: 5 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		client, err := w.emulator.TasksClient(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if _, err := client.PurgeQueue(t.Context(), &cloudtaskspb.PurgeQueueRequest{Name: queueName}); err != nil {
			t.Fatal(err)
		}
		if err := w.engine.ReviveJobs(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(up))
		w.wantNoneSuspected("j", refused)
		w.wait(job)
		if f.deaths() > 0 || calls.Load() < 2 {
			t.Errorf("%d deaths, %d calls", f.deaths(), calls.Load())
		}
	})
}

// TestUnsuspected kills, for a while, every process that starts the job's first range. Only the
// page of that range may be suspected. The rest of the kind must be processed as usual.
func TestUnsuspected(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := faults.New(1,
			faults.Rule{Kind: faults.SlowCall, Latency: faults.Uniform{Min: time.Second, Max: time.Second}})
		slow.Pause()
		q := few(20)
		q.RetryConfig = &cloudtaskspb.RetryConfig{MaxBackoff: durationpb.New(time.Second)}
		w := newWorld(t, setting{emulator: emulator.Options{Faults: slow}, queue: q}, addCredit)
		f := newFleet(w, 1, 1, addCredit)
		keys := names(2_000)
		w.putAccounts(keys)
		slow.Resume()
		job, err := addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
			&mapper.StartOptions{ID: "j", PageSize: 20})
		if err != nil {
			t.Fatal(err)
		}
		for range 12 {
			// By now the delivery has written its crash mark. No call is answered at this moment,
			// so it does not depend on chance whether the answer or the death comes first.
			time.Sleep(5500 * time.Millisecond)
			f.killAny()
		}
		slow.Pause()
		if s := w.wait(job); s.Pages > 120 || f.deaths() < 10 {
			t.Errorf("%d deaths, %d pages for 100 full ones", f.deaths(), s.Pages)
		}
		w.wantBalances(keys, 10)
	})
}

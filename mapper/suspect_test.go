package mapper_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// A poison is an entity that the function can't process, in one of many ways.
type poison struct {
	name  string
	do    func(ctx context.Context, f *fleet, a *mapper.Entity[growing]) error
	wants string // in the error that is recorded
	store any    // what is stored in place of the account
	few   bool   // it is like another one
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
		time.Sleep(time.Hour) // it does not care
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

// TestPoison puts one entity among many that the function can't process: the job
// ends by itself, the others are done, and the one is listed. It is done by a
// retry, once it is mended.
func TestPoison(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	many := testflag.Size(t, 500, 20_000, 100_000)
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
	time.Sleep(2 * time.Hour) // for functions that were left behind
}

// TestDeadlyEntities finds deadly entities on a queue that delivers each task once,
// and blames nobody in the place of one that is deleted.
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

// TestAbortAtTheGate aborts a job while pages wait until they can be solo: they do
// not begin any more.
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
		for range 2 { // then all are suspected
			time.Sleep(5 * time.Second)
			f.killAny()
		}
		time.Sleep(25 * time.Second)
		if err := job.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(11 * time.Second) // for what is under way
		before := w.status(job)
		time.Sleep(time.Hour)
		if after := w.status(job); after.Processed > before.Processed || before.Processed == 0 {
			t.Errorf("%d were processed, an hour later %d", before.Processed, after.Processed)
		}
	})
}

// TestRecoveryBound has an entity kill its processes where transactions have locks, which a dead
// process's keep until they expire, and deliveries a short deadline: the job gets over it in
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
					t.Errorf("%+v", s)
				}
				// Two deaths in company, nine until the page is one entity, and MaxDeaths: each
				// with its delay, and once the time in which locks expire, and a death becomes
				// certain.
				if most := 16*10*time.Second + 2*time.Minute + 2*time.Minute; takes > most {
					t.Errorf("it took %v, above %v", takes, most)
				}
			})
		})
	}
}

// TestDeadlyEntityAfterOutage has an entity kill its processes after an hour in which the database
// refused everything: the queue's back-off has grown by then, and does not lie between the deaths
// that halve the page.
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

package mapper_test

import (
	"context"
	"errors"
	"slices"
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
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// A refusal has the database refuse some commits, until a time.
type refusal struct {
	about func(*datastorepb.CommitRequest) bool
	after time.Duration // how long each takes
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

// wantNoneSuspected checks that no range of a job is suspected of killing its process,
// though commits were refused.
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

// TestInnocents has processes die of one entity, and of nothing that has to do with
// entities, with 20 pages in flight in each: nobody but that one is blamed.
func TestInnocents(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out large runs")
	}
	t.Parallel()
	seeds, n := testflag.Size(t, 0, 2, 4), testflag.Size(t, 0, 10_000, 20_000)
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			var f *fleet
			keys := names(n)
			bad := keys[7777]
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
			w.wantBalances(keys[:7777], 10)
		})
	}
}

// TestInnocentsAlone has processes die of one entity, beside pages of one entity
// each, of which some fail for a while: nobody but that one is blamed.
func TestInnocentsAlone(t *testing.T) {
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
			time.Sleep(100 * time.Millisecond) // it is under way when its process dies
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

// TestErrorsAreNoDeaths has every delivery end in an error for a while, as the
// database does not commit pages, and does not even take the marks away at times: no
// range is suspected of killing its process.
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

// TestOverrunsAreNoDeaths has most transactions take longer to begin than a delivery
// may last, also those that take its mark away: nobody died.
func TestOverrunsAreNoDeaths(t *testing.T) {
	t.Parallel()
	n := uint64(4)
	if testing.Short() {
		n = 1
	}
	for seed := range n {
		synctest.Test(t, func(t *testing.T) {
			up := time.Now().Add(time.Hour)
			slow := emulator.NewFaults(seed, emulator.Fault{
				Kind: emulator.SlowCall, Share: 0.8, Latency: emulator.Uniform{Min: 10 * time.Second,
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

// TestTwinsAreNoDeaths has the queue make each delivery twice at about the same time, and
// the database not commit pages for a while: the deliveries find the marks of their twins,
// and nobody died.
func TestTwinsAreNoDeaths(t *testing.T) {
	t.Parallel()
	for _, apart := range []time.Duration{100 * time.Millisecond, 10 * time.Second} {
		t.Run(apart.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				refused := &refusal{after: time.Second, about: func(commit *datastorepb.CommitRequest) bool {
					return changes(commit, "Account")
				}}
				twins := emulator.NewFaults(1, emulator.Fault{Kind: emulator.DeliverTogether, Share: 1,
					Latency: emulator.Uniform{Max: apart}})
				w := newWorld(t, setting{emulator: emulator.Options{Interceptor: refused.intercept, Faults: twins},
					queue: few(4)}, addCredit)
				f := newFleet(w, 1, 10, addCredit)
				keys := names(4) // so that each range is tried often
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
				if f.deaths() > 0 || twins.Counts()[emulator.DeliverTogether] < 20 {
					t.Errorf("%d deaths, %v", f.deaths(), twins.Counts())
				}
			})
		})
	}
}

// changes reports whether a commit changes entities of a kind.
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

// TestLiveDeliveriesAreNoDeaths has every Resume enqueue another task for an entity
// that takes minutes: their deliveries find each other's marks, and nobody died.
func TestLiveDeliveriesAreNoDeaths(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Visit("slow", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
			time.Sleep(4 * time.Minute)
			return nil
		})
		w := newWorld(t, setting{}, m)
		newFleet(w, 1, 40, m)
		w.handler = downUntil(time.Now().Add(time.Second), w.handler) // so that the next delivery leaves a mark
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

// TestRefusedDeliveriesAreNoDeaths has a function refuse its entities for a while, when the
// database does not commit that either: the deliveries end in good order, and nobody died.
func TestRefusedDeliveriesAreNoDeaths(t *testing.T) {
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

// TestSupersededDeliveriesAreNoDeaths purges the queue while a delivery is under way, so that
// its range gets another task: it ends in good order, and nobody died.
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
		w.handler = downUntil(time.Now().Add(time.Second), w.handler) // so that the next delivery leaves a mark
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

// TestUnsuspected kills every process that takes up the root of a job, for a while: only the
// root's page is suspected, and the rest of the kind is processed as usual.
func TestUnsuspected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := emulator.NewFaults(1,
			emulator.Fault{Kind: emulator.SlowCall, Latency: emulator.Uniform{Min: time.Second, Max: time.Second}})
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
			// It has left its mark, and not come further. Calls are answered at other moments, or
			// chance would say whether the answer or the death comes first.
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

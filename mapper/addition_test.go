package mapper_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// An additions watches how the records of jobs are added up.
type additions struct {
	drafts, touched, read atomic.Int64 // drafts kept, requests that are about drafts, and records read to add them up

	mu   sync.Mutex
	kept func(n int64) // is called when so many drafts were kept
}

func (a *additions) intercept(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	if m, ok := req.(proto.Message); ok && containsText(m, record.DraftKind) {
		a.touched.Add(1)
	}
	resp, err := handler(ctx, req)
	if q, ok := req.(*datastorepb.RunQueryRequest); ok && err == nil &&
		q.GetQuery().GetKind()[0].Name == record.RangeKind &&
		// without a mark
		len(q.GetQuery().GetFilter().GetCompositeFilter().GetFilters()) == 2 && len(q.GetQuery().GetProjection()) == 0 {
		a.read.Add(int64(len(resp.(*datastorepb.RunQueryResponse).Batch.EntityResults)))
	}
	if err == nil && drafts(req) {
		n := a.drafts.Add(1)
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.kept != nil {
			a.kept(n)
		}
	}
	return resp, err
}

func containsText(m proto.Message, text string) bool {
	b, err := proto.Marshal(m)
	return err == nil && bytes.Contains(b, []byte(text))
}

// TestEndInParts ends a job of many records while processes die within the addition, before and
// after each draft, in one task and in a chain of them: the totals are exact, and what was added up
// is not added up again.
func TestEndInParts(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	n, deaths := testflag.Size(t, 3000, 3000, 6000), testflag.Size(t, 3, 3, 8)
	for name, c := range map[string]struct {
		longest time.Duration
		deaths  int
	}{
		"one task": {0, 0}, "one task, deaths": {0, deaths}, "chain": {time.Nanosecond, 0},
		"chain, deaths": {time.Nanosecond, deaths},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const portion = 3
				var a additions
				w := newWorld(t, setting{emulator: emulator.Options{Interceptor: a.intercept}}, addCredit)
				w.putAccounts(names(n))
				f := newFleet(w, 1, 2, addCredit)
				f.addIn(portion, c.longest)
				f.stops.dieAdding(c.deaths, 0.5, rand.New(rand.NewPCG(1, 1)))
				job, err := addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
					&mapper.StartOptions{PageSize: 10})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour)
				read, kept := a.read.Load(), a.drafts.Load()
				s := w.status(job)
				if s.State != mapper.StateSucceeded || s.Processed != int64(n) || s.Counters["credited"] != int64(n) {
					t.Errorf("status %+v", s)
				}
				ranges := int64(w.count(record.RangeKind, "id"))
				if again := int64(f.deaths()+1) * 16 * portion; read < ranges || read > ranges+again ||
					kept < ranges/(16*portion) || f.deaths() != c.deaths {
					t.Errorf("%d records were read of %d, and %d drafts kept; %d processes died", read, ranges, kept,
						f.deaths())
				}
				if proof, err := job.Verify(t.Context()); err != nil || len(proof.Problems) > 0 {
					t.Errorf("proof %+v, %v", proof, err)
				}
				if n := w.count(record.DraftKind, "epoch"); n != 0 {
					t.Errorf("%d drafts are left", n)
				}
			})
		})
	}
}

// TestEndAtOnce ends a job of few records: no draft is kept, nor looked for.
func TestEndAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var a additions
		w := newWorld(t, setting{emulator: emulator.Options{Interceptor: a.intercept}}, addCredit)
		w.putAccounts(names(1000))
		w.wait(w.start(10, &mapper.StartOptions{PageSize: 10}))
		if a.touched.Load() > 0 || a.read.Load() != int64(w.count(record.RangeKind, "id")) {
			t.Errorf("%d requests are about drafts, and %d records were read", a.touched.Load(), a.read.Load())
		}
	})
}

// TestEndOfLostLinks has every task get lost that goes on with the end of a job: sweeps have it go
// on where it has stopped.
func TestEndOfLostLinks(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var a additions
		w := newWorld(t, setting{emulator: emulator.Options{Interceptor: a.intercept}}, addCredit)
		bridge.Portion(w.engine, 10, time.Nanosecond)
		w.putAccounts(names(6000))
		lost := 0
		var late sync.WaitGroup
		a.kept = func(int64) {
			if lost < 3 {
				lost++
				late.Go(func() { // behind the enqueueing
					time.Sleep(time.Millisecond)
					w.lose("/mapper/finalize")
				})
			}
		}
		job := w.start(10, &mapper.StartOptions{PageSize: 10})
		w.wait(job)
		late.Wait()
		if ranges := int64(w.count(record.RangeKind, "id")); lost != 3 || a.read.Load() > ranges+3*160 {
			t.Errorf("%d tasks were lost; %d records were read of %d", lost, a.read.Load(), ranges)
		}
	})
}

// TestDraftOfAnotherEpoch has failures be retried while the records of their job are added up: what
// was added up until then counts no more.
func TestDraftOfAnotherEpoch(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 6000
		var a additions
		var mended atomic.Bool
		fails := mapper.Update("fails", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			if a.Key.Name[len(a.Key.Name)-2:] == "77" && !mended.Load() {
				return mapper.Permanent(errors.New("no"))
			}
			a.Value.Balance += 10
			return nil
		})
		w := newWorld(t, setting{emulator: emulator.Options{Interceptor: a.intercept}}, fails)
		bridge.Portion(w.engine, 10, 0)
		w.putAccounts(names(n))
		job, err := fails.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{PageSize: 10, ID: "j"})
		if err != nil {
			t.Fatal(err)
		}
		retried := make(chan error, 1)
		a.kept = func(n int64) {
			if n == 3 {
				mended.Store(true)
				retried <- job.Retry(context.Background())
			}
		}
		if err := <-retried; err != nil {
			t.Fatal(err)
		}
		if s := w.wait(job); s.Processed != n || s.Failures != 0 {
			t.Errorf("status %+v", s)
		}
		w.wantBalances(names(n), 10)
	})
}

// TestAbortedInParts cleans up a job that was aborted while processes die that add up its records:
// its totals are those of what has taken effect.
func TestAbortedInParts(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 6000
		var a additions
		w := newWorld(t, setting{queue: few(4), emulator: emulator.Options{Interceptor: a.intercept}}, slowCredit)
		w.putAccounts(names(n))
		f := newFleet(w, 1, 2, slowCredit)
		f.addIn(2, 10*time.Millisecond)
		f.stops.dieAdding(5, 0.5, rand.New(rand.NewPCG(1, 1)))
		job, err := slowCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
			&mapper.StartOptions{ID: "j", PageSize: 5})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(12 * time.Second)
		if err := job.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := w.status(job)
		time.Sleep(time.Minute)
		if err := job.CleanUp(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		after, credited := w.status(job), w.credited(n)
		if after.Processed != credited || after.Counters["credited"] != credited || after.Estimated ||
			after.CleaningUp ||
			a.drafts.Load() < 5 || f.deaths() != 5 {
			t.Errorf("%d were credited, %d drafts kept, and %d processes died; status %+v", credited, a.drafts.Load(),
				f.deaths(), after)
		}
		if !before.Estimated || before.Processed < credited*3/4 || before.Processed > credited*5/4 {
			t.Errorf("before: %+v, %d were credited", before, credited)
		}
		for _, kind := range []string{record.DraftKind, record.RangeKind} {
			if n, err := w.client.Count(t.Context(), datastore.NewQuery(kind)); err != nil || n != 0 {
				t.Errorf("%d records of kind %s are left, %v", n, kind, err)
			}
		}
	})
}

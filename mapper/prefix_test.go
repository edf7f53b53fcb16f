package mapper_test

import (
	"context"
	"fmt"
	"path"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// unscattered has queries ordered by __scatter__ find nothing.
func unscattered(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	if q, ok := req.(*datastorepb.RunQueryRequest); ok && err == nil {
		if o := q.GetQuery().GetOrder(); len(o) > 0 && o[0].GetProperty().GetName() == "__scatter__" {
			b := resp.(*datastorepb.RunQueryResponse).GetBatch()
			b.EntityResults, b.MoreResults = nil, datastorepb.QueryResultBatch_NO_MORE_RESULTS
		}
	}
	return resp, err
}

// uncounted has a database that can't count, after something was counted n times.
func uncounted(n int64, code codes.Code) grpc.UnaryServerInterceptor {
	var counts atomic.Int64
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if path.Base(info.FullMethod) == "RunAggregationQuery" && counts.Add(1) > n {
			return nil, status.Error(code, "no aggregations here")
		}
		return handler(ctx, req)
	}
}

// blind neither counts nor has samples.
func blind(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	return uncounted(0, codes.Unimplemented)(ctx, req, info, func(ctx context.Context, req any) (any, error) {
		return unscattered(ctx, req, info, handler)
	})
}

// TestViewsOfTheKind runs jobs where the database has no samples, does not count, or refuses
// to: splitting does without.
func TestViewsOfTheKind(t *testing.T) {
	t.Parallel()
	n := testflag.Size(t, 2000, 2000, 5000)
	for name, interceptor := range map[string]func() grpc.UnaryServerInterceptor{
		"no samples": func() grpc.UnaryServerInterceptor { return unscattered },
		"no counts":  func() grpc.UnaryServerInterceptor { return uncounted(0, codes.Unimplemented) },
		"neither":    func() grpc.UnaryServerInterceptor { return blind },
		// Start counts once
		"not allowed": func() grpc.UnaryServerInterceptor { return uncounted(1, codes.PermissionDenied) },
		"exhausted":   func() grpc.UnaryServerInterceptor { return uncounted(1, codes.ResourceExhausted) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, m := range []*mapper.Mapper[credit]{addCredit, countBalances} {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, setting{emulator: emulator.Options{Interceptor: interceptor()}}, m)
					w.putAccounts(names(n))
					job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
						&mapper.StartOptions{PageSize: 20})
					if err != nil {
						t.Fatal(err)
					}
					begun := time.Now()
					if s := w.wait(job); s.Processed != int64(n) || time.Since(begun) > time.Minute {
						t.Errorf("%s: %+v", m.Name(), s)
					}
				})
			}
		})
	}
}

// unhurriedCredit and countBalances take their time.
var (
	unhurriedCredit = mapper.Update("unhurried-credit",
		func(_ context.Context, a *mapper.Entity[account], c credit) error {
			time.Sleep(time.Millisecond)
			a.Value.Balance += c.Amount
			return nil
		})
	countBalances = mapper.Visit("count-balances", func(_ context.Context, a *mapper.Entity[account], c credit) error {
		time.Sleep(time.Millisecond)
		a.Count("accounts", 1)
		return nil
	})
)

// TestEntitiesComeAndGo deletes all entities of a job while it runs, and puts some back
// between a query for keys and the count beside it: ranges turn out to be empty that were
// not, and the other way round.
func TestEntitiesComeAndGo(t *testing.T) {
	t.Parallel()
	for _, m := range []*mapper.Mapper[credit]{unhurriedCredit, countBalances} {
		for _, back := range []bool{false, true} {
			t.Run(fmt.Sprint(m.Name(), back), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					var w *world
					keys := names(6_000)
					var gone atomic.Bool
					putBack := func(ctx context.Context, req any, info *grpc.UnaryServerInfo,
						handler grpc.UnaryHandler) (any, error) {
						if back && path.Base(info.FullMethod) == "RunAggregationQuery" && gone.Load() {
							time.Sleep(time.Second) // after the query for keys
							if gone.CompareAndSwap(true, false) {
								w.putAccounts(keys)
							}
						}
						return handler(ctx, req)
					}
					w = newWorld(t, setting{emulator: emulator.Options{Interceptor: putBack}, queue: few(4)}, m)
					w.putAccounts(keys)
					job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
						&mapper.StartOptions{PageSize: 20, ExpectedWorkers: 100})
					if err != nil {
						t.Fatal(err)
					}
					for range 1000 {
						time.Sleep(time.Millisecond)
						if s, err := job.Status(t.Context()); err != nil || s.Processed > 100 {
							break
						}
					}
					for part := range slices.Chunk(keys, 500) {
						if err := w.client.DeleteMulti(t.Context(), part); err != nil {
							t.Fatal(err)
						}
					}
					gone.Store(true)
					s := w.wait(job)
					if s.FullPages > s.Pages || s.Tasks == 0 {
						t.Errorf("%+v", s)
					}
					proof, err := job.Verify(t.Context(), nil)
					if err != nil || len(proof.Problems) > 0 {
						t.Errorf("%+v, %v", proof, err)
					}
				})
			})
		}
	}
}

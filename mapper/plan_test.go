package mapper_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// lookAt writes nothing.
var lookAt = mapper.Visit("look-at",
	func(context.Context, *mapper.Entity[account], mapper.NoParams) error { return nil })

// TestPlan compares a plan with the job.
func TestPlan(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Update("slow", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			time.Sleep(time.Millisecond)
			a.Value.Balance++
			return nil
		})
		w := newWorld(t, setting{queue: tenWorkers}, m)
		w.putAccounts(names(20_000))
		q := mapper.Query{Kind: "Account"}
		before := w.emulator.Usage()
		plan, err := addCredit.Plan(t.Context(), w.engine, q, &mapper.PlanOptions{TimePerEntity: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		used := w.emulator.Usage().Sub(before)
		if plan.Entities != 20_000 || !plan.Exact || plan.Workers != 10 ||
			plan.Spent.Reads+1 != used.Reads /* that the kind has entities */ || used.Writes > 0 {
			t.Errorf("plan %+v, used %+v", plan, used)
		}
		before = w.emulator.Usage()
		s := over(w, m, nil)
		used = w.emulator.Usage().Sub(before)
		for _, c := range []struct {
			name      string
			plan, job int64
		}{
			{"pages", plan.Pages, s.Pages},
			{"reads", plan.Usage.Reads, used.Reads},
			{"writes", plan.Usage.Writes, used.Writes},
		} {
			if c.plan < c.job*9/10 || c.plan > c.job*11/10+2 {
				t.Errorf("%d %s planned, it was %d", c.plan, c.name, c.job)
			}
		}
		if plan.Tasks < 10 || plan.Tasks > plan.Pages || plan.Dollars < 0.04 || plan.Dollars > 0.06 ||
			plan.Duration < 2*time.Second || plan.Duration > 4*time.Second {
			t.Errorf("plan %+v", plan)
		}

		slow, err := lookAt.Plan(t.Context(), w.engine, q, &mapper.PlanOptions{
			StartOptions: mapper.StartOptions{Rate: mapper.Rate{EntitiesPerSecond: 100}, PageSize: 100},
		})
		if err != nil {
			t.Fatal(err)
		}
		if slow.Duration != 200*time.Second || slow.Usage.Writes > 2*slow.Pages || slow.Pages < 200 ||
			slow.Dollars != billing.NAM5.Dollars(slow.Usage) {
			t.Errorf("plan %+v", slow)
		}
	})
}

func TestPlanOfNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, addCredit)
		plan, err := addCredit.Plan(t.Context(), w.engine, mapper.Query{Kind: "Account"},
			&mapper.PlanOptions{StartOptions: mapper.StartOptions{AllowEmpty: true}})
		if err != nil || plan.Entities != 0 || plan.Tasks != 1 {
			t.Errorf("plan %+v, %v", plan, err)
		}
		for text, all := range map[string][]mapper.PlanOptions{
			"PlanOptions.TimePerEntity": {{TimePerEntity: -1}, {TimePerEntity: time.Hour}},
			"PlanOptions.WritesPerEntity": {{WritesPerEntity: -1}, {WritesPerEntity: 1e300},
				{WritesPerEntity: math.NaN()}},
			"StartOptions.PageSize": {{StartOptions: mapper.StartOptions{PageSize: -1}}},
			"StartOptions.Splitting": {
				{StartOptions: mapper.StartOptions{Splitting: mapper.Splitting{First: 8, FanOut: 1}}}},
		} {
			for _, o := range all {
				if _, err := addCredit.Plan(t.Context(), w.engine, mapper.Query{Kind: "Account"}, &o); !errors.Is(err,
					mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), text) {
					t.Errorf("%+v: %v", o, err)
				}
			}
		}
		for _, e := range []*mapper.Engine{nil, {}} {
			if _, err := addCredit.Plan(t.Context(), e, mapper.Query{Kind: "Account"}, nil); !errors.Is(err,
				mapper.ErrInvalidArgument) {
				t.Errorf("no engine: %v", err)
			}
		}
		if _, err := addCredit.Plan(t.Context(), w.engine, mapper.Query{}, nil); !errors.Is(err,
			mapper.ErrInvalidArgument) {
			t.Errorf("no kind: %v", err)
		}
	})
}

// TestPlanOfMany plans jobs over a billion entities, as far as the database says: what is no
// estimate is not taken for one.
func TestPlanOfMany(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	billion := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		resp, err := handler(ctx, req)
		if path.Base(info.FullMethod) != "RunAggregationQuery" || err != nil {
			return resp, err
		}
		n := int64(1_000_000_000)
		counted := req.(*datastorepb.RunAggregationQueryRequest).GetAggregationQuery().GetNestedQuery()
		if limit := counted.GetLimit(); limit != nil {
			n = min(n, int64(limit.GetValue()))
		}
		for _, r := range resp.(*datastorepb.RunAggregationQueryResponse).GetBatch().GetAggregationResults() {
			for _, v := range r.GetAggregateProperties() {
				v.ValueType = &datastorepb.Value_IntegerValue{IntegerValue: n}
			}
		}
		return resp, nil
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: tenWorkers, emulator: emulator.Options{Interceptor: billion}}, addCredit)
		w.putAccounts(names(10_000))
		for name, q := range map[string]mapper.Query{
			"property": {Kind: "Account", ShardBy: "Balance"},
			"filter":   {Kind: "Account", Filters: []mapper.Filter{mapper.Where("Owner", ">=", "owner")}},
			"bound":    {Kind: "Account", End: names(9999)[9998]},
		} {
			plan, err := addCredit.Plan(t.Context(), w.engine, q, nil)
			if err != nil || plan.Exact || !plan.LowerBound || plan.Entities < 10_000_000 {
				t.Errorf("%s: %+v, %v", name, plan, err)
			}
			var takes []time.Duration
			for _, ramp := range []bool{false, true} { // four months, so what the ramp allows passes all numbers
				plan, err := addCredit.Plan(t.Context(), w.engine, q,
					&mapper.PlanOptions{StartOptions: mapper.StartOptions{Rate: mapper.Rate{EntitiesPerSecond: 1,
						Ramp: ramp}}})
				if err != nil {
					t.Fatal(err)
				}
				takes = append(takes, plan.Duration)
			}
			if takes[0] < 100*24*time.Hour || takes[1] < takes[0] || takes[1] > takes[0]+time.Hour {
				t.Errorf("%s: an entity a second takes %v, and with a ramp %v", name, takes[0], takes[1])
			}
		}
	})
	synctest.Test(t, func(t *testing.T) { // there is no sample
		blindly := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any,
			error) {
			return unscattered(ctx, req, info, func(ctx context.Context, req any) (any, error) {
				return billion(ctx, req, info, handler)
			})
		}
		w := newWorld(t, setting{queue: tenWorkers, emulator: emulator.Options{Interceptor: blindly}}, addCredit)
		w.putAccounts(names(10_000))
		plan, err := addCredit.Plan(t.Context(), w.engine, mapper.Query{Kind: "Account"}, nil)
		if err != nil || plan.Exact || !plan.LowerBound || plan.Entities < 1_000_000 {
			t.Errorf("%+v, %v", plan, err)
		}
	})
}

// TestPlanOfSpaces plans a job over namespaces that are all shorter than a page.
func TestPlanOfSpaces(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: tenWorkers}, lookAtUser)
		var keys []*datastore.Key
		for i := range 1000 {
			keys = append(keys, &datastore.Key{Kind: "User", ID: int64(i + 1), Namespace: fmt.Sprintf("n%03d", i/5)})
		}
		for some := range slices.Chunk(keys, 500) {
			if _, err := w.client.PutMulti(t.Context(), some, make([]user, len(some))); err != nil {
				t.Fatal(err)
			}
		}
		q := mapper.Query{Kind: "User", AllNamespaces: true}
		plan, err := lookAt.Plan(t.Context(), w.engine, q, nil)
		if err != nil {
			t.Fatal(err)
		}
		before := w.emulator.Usage()
		job, err := lookAtUser.Start(t.Context(), w.engine, q, mapper.NoParams{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		s := w.wait(job)
		used := w.emulator.Usage().Sub(before)
		if plan.Pages != 200 || s.Pages != 200 || plan.Usage.Writes < used.Writes*3/4 ||
			plan.Usage.Writes > used.Writes*5/4 || plan.Usage.Reads < used.Reads/2 || plan.Usage.Reads > 2*used.Reads {
			t.Errorf("planned %+v, it was %d pages and %+v", plan, s.Pages, used)
		}
	})
}

// TestPlanKeysOnly plans and runs a job that reads no entities, and one at a low rate.
func TestPlanKeysOnly(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	look := mapper.Visit("look", func(context.Context, *mapper.Entity[account], mapper.NoParams) error { return nil })
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: tenWorkers}, look)
		w.putAccounts(names(3000))
		for name, c := range map[string]struct {
			query mapper.Query
			rate  mapper.Rate
		}{
			"keys": {query: mapper.Query{Kind: "Account", KeysOnly: true}},
			"slow": {query: mapper.Query{Kind: "Account"}, rate: mapper.Rate{EntitiesPerSecond: 10}},
		} {
			o := mapper.StartOptions{Rate: c.rate}
			plan, err := lookAt.Plan(t.Context(), w.engine, c.query, &mapper.PlanOptions{StartOptions: o})
			if err != nil {
				t.Fatal(err)
			}
			before, begun := w.emulator.Usage(), time.Now()
			job, err := look.Start(t.Context(), w.engine, c.query, mapper.NoParams{}, &o)
			if err != nil {
				t.Fatal(err)
			}
			s := w.wait(job)
			reads := w.emulator.Usage().Sub(before).Reads
			if plan.Usage.Reads < reads/4 || plan.Usage.Reads > 2*reads || plan.Pages < s.Pages/2 ||
				plan.Pages > 2*s.Pages {
				t.Errorf("%s: planned %d reads and %d pages, it was %d and %d", name, plan.Usage.Reads, plan.Pages,
					reads, s.Pages)
			}
			if took := s.Ended.Sub(begun); name == "slow" && (plan.Duration < took/2 || plan.Duration > 2*took) {
				t.Errorf("planned %v, it was %v", plan.Duration, took)
			}
		}
	})
}

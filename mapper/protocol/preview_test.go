package protocol_test

import (
	"bytes"
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
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// lookAt is a Visit that does nothing.
var lookAt = mapper.Visit("look-at",
	func(context.Context, *mapper.Entity[account], mapper.NoParams) error { return nil })

// TestPlan compares the estimates of a plan with the job that follows.
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

// TestPlanOfMany plans jobs over a billion entities, from the database's statistics. The plan must
// mark numbers that it can't estimate as unknown.
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
		w.putAccounts(names(5_000))
		for name, q := range map[string]mapper.Query{
			"property": {Kind: "Account", ShardBy: "Balance"},
			"filter":   {Kind: "Account", Filters: []mapper.Filter{mapper.Where("Owner", ">=", "owner")}},
			"bound":    {Kind: "Account", End: names(4999)[4998]},
		} {
			plan, err := addCredit.Plan(t.Context(), w.engine, q, nil)
			if err != nil || plan.Exact || !plan.LowerBound || plan.Entities < 10_000_000 {
				t.Errorf("%s: %+v, %v", name, plan, err)
			}
			var takes []time.Duration
			// the job takes four months; at that time, the ramp's limit would overflow
			for _, ramp := range []bool{false, true} {
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
	synctest.Test(t, func(t *testing.T) { // in this database, no entity has __scatter__, by which keys are sampled
		blindly := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any,
			error) {
			return unscattered(ctx, req, info, func(ctx context.Context, req any) (any, error) {
				return billion(ctx, req, info, handler)
			})
		}
		w := newWorld(t, setting{queue: tenWorkers, emulator: emulator.Options{Interceptor: blindly}}, addCredit)
		w.putAccounts(names(5_000))
		plan, err := addCredit.Plan(t.Context(), w.engine, mapper.Query{Kind: "Account"}, nil)
		if err != nil || plan.Exact || !plan.LowerBound || plan.Entities < 1_000_000 {
			t.Errorf("plan %+v, %v", plan, err)
		}
	})
}

// TestPlanOfSpaces plans a job over many namespaces that each have fewer entities than a page.
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

// TestPlanKeysOnly plans and runs a job that reads only keys, and a job with a low rate.
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

// eventful is an Update that does everything that a function can do. It changes most accounts,
// deletes some, puts and deletes other entities, leaves some accounts unchanged, and fails on some.
var eventful = mapper.Update("eventful", func(_ context.Context, a *mapper.Entity[account], p credit) error {
	a.Count("seen", 1)
	switch n := a.Value.Balance; {
	case n%10 == 3:
		a.Delete(a.Key)
	case n%10 == 4:
		a.Put(datastore.NameKey("Note", a.Key.Name, nil), &account{Balance: n})
	case n%10 == 5:
		a.Delete(datastore.NameKey("Old", a.Key.Name, nil))
	case n%10 == 6:
		a.Value.Owner = "nobody"
		fallthrough
	case n%10 < 3:
		a.Value.Balance += p.Amount
	case n%10 == 7:
		return mapper.Permanent(errors.New("seven"))
	}
	return nil
}).WithFinalizer(func(_ context.Context, d *mapper.Completion, _ credit) error {
	d.Put(datastore.NameKey("Note", "no position", nil), &account{})
	return nil
})

// TestRehearsal runs a job as a rehearsal, without writes. The report must say what the function
// would do, and the real job must then do exactly that.
func TestRehearsal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := newWorld(t, setting{}, eventful, slowVisit), t.Context()
		const n = 1000
		w.putAccounts(names(n))
		dump := func(kind string) string {
			t.Helper()
			var all []datastore.PropertyList
			keys, err := w.client.GetAll(ctx, datastore.NewQuery(kind).Order("__key__"), &all)
			if err != nil {
				t.Fatal(err)
			}
			var text bytes.Buffer
			for i, k := range keys {
				slices.SortFunc(all[i], func(a, b datastore.Property) int { return strings.Compare(a.Name, b.Name) })
				fmt.Fprintln(&text, k, all[i])
			}
			return text.String()
		}
		if _, err := w.client.Put(ctx, datastore.NameKey("Old", "user-0000005", nil), &account{}); err != nil {
			t.Fatal(err)
		}
		before := dump("Account") + dump("Note") + dump("Old")
		start := func(o mapper.StartOptions) (*mapper.Job, error) {
			o.PageSize, o.FailureLimit = 50, -1
			return eventful.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, credit{5}, &o)
		}
		job, err := start(mapper.StartOptions{ID: "tried", DryRun: true})
		if err != nil {
			t.Fatal(err)
		}
		s, err := job.Wait(ctx)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]int64{
			"seen": 900, "would(change)": 400, "would(change Balance)": 400, "would(change Owner)": 100,
			"would(delete)":             100,
			"would(put another entity)": 100, "would(delete another entity)": 100,
		}
		if diff := cmp.Diff(want, s.Counters); diff != "" || s.State != mapper.StateSucceededWithFailures ||
			s.Processed != 900 || s.Failures != 100 || s.Written != 500 || s.Mapper != "rehearsal:eventful" {
			t.Errorf("%+v; counters (-want +got):\n%s", s, diff)
		}
		examples, err := job.Examples(ctx)
		what := make(map[string]int)
		for _, x := range examples {
			what[x.What]++
			if x.What == "change" && (len(x.Properties) == 0 || x.Properties[0].Name != "Balance" ||
				x.Properties[0].Before == x.Properties[0].After || x.Properties[0].Before == "") {
				t.Errorf("%+v", x)
			}
		}
		if err != nil || len(examples) < 20 || what["change"] == 0 {
			t.Errorf("%d examples: %v, %v", len(examples), what, err)
		}
		if after := dump("Account") + dump("Note") + dump("Old"); after != before {
			t.Errorf("a rehearsal has changed something: (-before +after)\n%.2000s", cmp.Diff(before, after))
		}
		if proof, err := job.Verify(ctx, nil); err != nil || len(proof.Problems) > 0 {
			t.Errorf("proof %+v, %v", proof, err)
		}
		// The ID of a rehearsal can't be used for a real job.
		if _, err := start(mapper.StartOptions{ID: "tried"}); !errors.Is(err, mapper.ErrIDTaken) ||
			!strings.Contains(err.Error(), "it is a rehearsal: choose another StartOptions.ID") {
			t.Errorf("the job itself under the ID of its rehearsal: %v", err)
		}
		if again, err := start(mapper.StartOptions{ID: "tried", DryRun: true}); err != nil || again.ID != "tried" {
			t.Errorf("the rehearsal once more: %v", err)
		}
		if _, err := slowVisit.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{DryRun: true}); !errors.Is(err, mapper.ErrInvalidArgument) ||
			!strings.Contains(err.Error(), "only the function of a mapper.Update") {
			t.Errorf("the rehearsal of a visit: %v", err)
		}
		if _, err := w.engine.StartByName(ctx, "none", mapper.Query{Kind: "Account"}, nil, nil); err == nil ||
			strings.Contains(err.Error(), "rehearsal:") || !strings.Contains(err.Error(), "eventful") {
			t.Errorf("an unknown mapper: %v", err)
		}
		named, err := w.engine.StartByName(ctx, "eventful", mapper.Query{Kind: "Account"}, []byte(`{"Amount": 5}`),
			&mapper.StartOptions{ID: "named", DryRun: true, FailureLimit: -1})
		if err != nil {
			t.Fatal(err)
		}
		if s, err := named.Wait(ctx); err != nil || s.Counters["would(change)"] != 400 {
			t.Errorf("status %+v, %v", s, err)
		}

		done, err := start(mapper.StartOptions{ID: "done"})
		if err != nil {
			t.Fatal(err)
		}
		if s, err := done.Wait(ctx); err != nil || s.Written != 500 || s.Failures != 100 {
			t.Errorf("the job itself: %+v, %v", s, err)
		}
		if n, err := w.client.Count(ctx, datastore.NewQuery("Note")); err != nil || n != 101 {
			t.Errorf("%d notes, %v", n, err)
		}
	})
}

// slowVisit is a Visit that takes a while for each account.
var slowVisit = mapper.Visit("slow-visit", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
	return nil
})

// TestCanary runs a job over a share of the keys, and another job over the rest, while calls fail.
// Together they must process each entity once.
func TestCanary(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	first, n := testflag.Seed(t), uint64(testflag.Size(t, 1, 2, 4))
	touch := mapper.Update("touch-share", func(_ context.Context, e *mapper.Entity[leaf], _ mapper.NoParams) error {
		e.Value.N++
		e.Count("touched", 1)
		return nil
	})
	for i := range n {
		t.Run(fmt.Sprint("seed ", first+i), func(t *testing.T) {
			mappertest.Run(t, []mapper.AnyMapper{touch}, &mappertest.Options{Seed: first + i},
				func(t *testing.T, w *mappertest.Env) {
					putLeaves(t, w.Client)
					done := int64(0)
					for _, share := range []struct{ from, to int64 }{{0, 5}, {5, 40}, {40, 100}} {
						start := func() (*mapper.Job, error) {
							return touch.Start(t.Context(), w.Engine,
								mapper.Query{Kind: "Leaf",
									Filters: []mapper.Filter{mapper.Share(share.from, share.to, 100)}},
								mapper.NoParams{}, &mapper.StartOptions{ID: fmt.Sprint("share-", share.from),
									PageSize: 20})
						}
						w.ResumeFaults()
						job, err := start()
						w.PauseFaults()
						if err != nil {
							job, err = start()
						}
						if err != nil {
							t.Fatal(err)
						}
						w.ResumeFaults()
						s, err := job.Wait(t.Context())
						w.PauseFaults()
						if err != nil {
							s, err = job.Wait(t.Context())
						}
						if err != nil || s.State != mapper.StateSucceeded {
							t.Fatalf("status %+v, %v", s, err)
						}
						if about := leaves * (share.to - share.from) / 100; s.Processed < about*6/10 ||
							s.Processed > about*14/10 {
							t.Errorf("%d to %d of 100 parts are %d of %d entities", share.from, share.to, s.Processed,
								leaves)
						}
						done += s.Processed
						if proof, err := job.Verify(t.Context(), &mapper.VerifyOptions{Entities: true}); err != nil ||
							len(proof.Problems) > 0 || proof.Different > 0 {
							t.Errorf("proof %+v, %v", proof, err)
						}
					}
					if done != leaves {
						t.Errorf("%d entities were done, want %d", done, leaves)
					}
					checkNights(t, w.Client, 1)
				})
		})
	}
}

// TestCanaryCost checks that a job over 2% of the keys reads only these entities, in as few pages
// as they need.
func TestCanaryCost(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	visited := mapper.Visit("visit", func(_ context.Context, e *mapper.Entity[account], _ mapper.NoParams) error {
		return nil
	})
	update := mapper.Update("update", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
		a.Value.Balance++
		return nil
	})
	for _, start := range []func(ctx context.Context, e *mapper.Engine, q mapper.Query, o *mapper.StartOptions) (
		*mapper.Job, error){
		func(ctx context.Context, e *mapper.Engine, q mapper.Query, o *mapper.StartOptions) (*mapper.Job, error) {
			return visited.Start(ctx, e, q, mapper.NoParams{}, o)
		},
		func(ctx context.Context, e *mapper.Engine, q mapper.Query, o *mapper.StartOptions) (*mapper.Job, error) {
			return update.Start(ctx, e, q, mapper.NoParams{}, o)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, setting{queue: few(4)}, visited, update)
			const n = 20_000
			w.putAccounts(names(n))
			before := w.emulator.Usage()
			job, err := start(t.Context(), w.engine,
				mapper.Query{Kind: "Account", Filters: []mapper.Filter{mapper.Share(3, 5, 100)}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			s := w.wait(job)
			used := w.emulator.Usage().Sub(before)
			t.Logf("%d of %d entities in %d pages: %+v", s.Processed, n, s.Pages, used)
			if s.State != mapper.StateSucceeded || s.Processed < n/50*7/10 || s.Processed > n/50*13/10 {
				t.Errorf("status %+v", s)
			}
			if used.Reads > s.Processed+200 || s.Pages > 16 {
				t.Errorf("%d reads and %d pages for %d entities", used.Reads, s.Pages, s.Processed)
			}
			status, err := job.Status(t.Context())
			if err != nil || len(status.Query.Filters) != 1 || status.Query.Filters[0] != mapper.Share(3, 5, 100) {
				t.Errorf("the query is %+v, %v", status.Query, err)
			}
		})
	}
}

// TestShareCombined combines shares of the keys with all other features of queries. A share and its
// rest must together be the whole query.
func TestShareCombined(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	visit := mapper.Visit("visit", func(context.Context, *mapper.Entity[leaf], mapper.NoParams) error { return nil })
	put := mapper.Update("put", func(_ context.Context, e *mapper.Entity[leaf], _ mapper.NoParams) error {
		e.Delete(e.Key)
		return nil
	})
	mappertest.Run(t, []mapper.AnyMapper{visit, put}, nil, func(t *testing.T, w *mappertest.Env) {
		parent, child := datastore.NameKey("Root", "r", nil), []*datastore.Key(nil)
		for _, space := range []string{"", "n1", "n2"} {
			for _, kind := range []string{"Leaf", "Twig"} {
				for i := range int64(100) {
					key := datastore.IDKey(kind, i*i+1, nil)
					if key.Namespace = space; space == "" && i%2 == 0 {
						key.Parent = parent
					}
					child = append(child, key)
				}
			}
		}
		for some := range slices.Chunk(child, 400) {
			all := make([]leaf, len(some))
			for i := range all {
				all[i].N = int64(i % 5)
			}
			if _, err := w.Client.PutMulti(t.Context(), some, all); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second) // so that a job can read as of a later time
		for name, q := range map[string]mapper.Query{
			"kinds":          {Kinds: []string{"Leaf", "Twig"}},
			"all namespaces": {Kind: "Leaf", AllNamespaces: true},
			"namespaces":     {Kinds: []string{"Leaf", "Twig"}, Namespaces: []string{"n1", "n2"}},
			"ancestor":       {Kind: "Leaf", Ancestor: parent},
			"range": {Kind: "Leaf", Start: datastore.IDKey("Leaf", 100, nil),
				End: datastore.IDKey("Leaf", 5000, nil)},
			"filter":   {Kind: "Leaf", Filters: []mapper.Filter{mapper.Where("N", "in", []int{1, 3})}},
			"property": {Kind: "Leaf", ShardBy: "N", Filters: []mapper.Filter{mapper.Where("N", ">", 1)}},
			"keys":     {Kind: "Leaf", KeysOnly: true},
			"time":     {Kind: "Leaf", ReadTime: time.Now()},
		} {
			processed := func(m *mapper.Mapper[mapper.NoParams], more ...mapper.Filter) int64 {
				t.Helper()
				q := q
				q.Filters = append(q.Filters[:len(q.Filters):len(q.Filters)], more...)
				job, err := m.Start(t.Context(), w.Engine, q, mapper.NoParams{}, &mapper.StartOptions{PageSize: 7})
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				s, err := job.Wait(t.Context())
				if err != nil || s.State != mapper.StateSucceeded {
					t.Fatalf("%s: %+v, %v", name, s, err)
				}
				return s.Processed
			}
			all := processed(visit)
			if a, b := processed(visit, mapper.Share(0, 3, 10)), processed(visit, mapper.Share(3, 10, 10)); all == 0 ||
				a == 0 || b == 0 || a+b != all {
				t.Errorf("%s: shares have %d and %d entities of %d", name, a, b, all)
			}
		}
		n, err := w.Client.Count(t.Context(), datastore.NewQuery("Leaf").Namespace("n1"))
		if err != nil {
			t.Fatal(err)
		}
		job, err := put.Start(t.Context(), w.Engine, mapper.Query{Kind: "Leaf", Namespace: "n1", KeysOnly: true,
			Filters: []mapper.Filter{mapper.Share(0, 1, 2)}}, mapper.NoParams{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		s, err := job.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		left, err := w.Client.Count(t.Context(), datastore.NewQuery("Leaf").Namespace("n1"))
		if err != nil || s.Processed == 0 || int64(n)-s.Processed != int64(left) {
			t.Errorf("of %d entities %d were deleted, and %d are left, %v", n, s.Processed, left, err)
		}
	})
}

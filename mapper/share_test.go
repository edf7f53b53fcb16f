package mapper_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// TestCanary has a job go over a share of the keys, under faults, and another over the rest:
// together they do each entity once.
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
							t.Fatalf("%+v, %v", s, err)
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

// TestCanaryCost has a canary of 2% read the entities of that, and not the others, in as many pages
// as those take.
func TestCanaryCost(t *testing.T) {
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
				t.Errorf("%+v", s)
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

// TestShareRefused has shares that are none be refused.
func TestShareRefused(t *testing.T) {
	t.Parallel()
	m := mapper.Visit("visit", func(context.Context, *mapper.Entity[leaf], mapper.NoParams) error { return nil })
	mappertest.Run(t, []mapper.AnyMapper{m}, nil, func(t *testing.T, w *mappertest.Env) {
		putLeaves(t, w.Client)
		for want, filters := range map[string][]mapper.Filter{
			"from 1 to 1 of 100":      {mapper.Share(1, 1, 100)},
			"from 0 to 101 of 100":    {mapper.Share(0, 101, 100)},
			"1 of 2000 parts":         {mapper.Share(0, 1, 2000)},
			`not like "0-1/100"`:      {{Property: "__key__", Op: "share", Value: "1%"}},
			"two shares":              {mapper.Share(0, 1, 2), mapper.Share(1, 2, 2)},
			"Query.Start and Query.E": {{Property: "__key__", Op: "=", Value: "x"}},
		} {
			_, err := m.Start(t.Context(), w.Engine, mapper.Query{Kind: "Leaf", Filters: filters}, mapper.NoParams{},
				nil)
			if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want an error with %q", err, want)
			}
		}
		if _, err := (mapper.Query{Kind: "Leaf",
			Filters: []mapper.Filter{mapper.Share(0, 1, 2)}}).DatastoreQuery(); err == nil {
			t.Error("Datastore has a query for a share")
		}
	})
}

// TestShareCombined has shares go with all else that a query says: two of them together are all
// that it is over.
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
		time.Sleep(time.Second) // so that a time behind them can be read
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

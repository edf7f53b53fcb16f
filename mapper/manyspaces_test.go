package mapper_test

import (
	"context"
	"fmt"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// TestPlanManyNamespaces has a plan look at 1,000 namespaces and no more, and say so.
func TestPlanManyNamespaces(t *testing.T) {
	t.Parallel()
	m := mapper.Visit("m", func(context.Context, *mapper.Entity[account], mapper.NoParams) error { return nil })
	mappertest.Run(t, []mapper.AnyMapper{m}, nil, func(t *testing.T, w *mappertest.Env) {
		put := func(from, to int) {
			var keys []*datastore.Key
			for i := from; i < to; i++ {
				keys = append(keys, &datastore.Key{Kind: "Account", Name: "a", Namespace: fmt.Sprintf("n%04d", i)})
			}
			if _, err := w.Client.PutMulti(t.Context(), keys, make([]account, len(keys))); err != nil {
				t.Fatal(err)
			}
		}
		q := mapper.Query{Kind: "Account", AllNamespaces: true}
		put(0, 500)
		put(500, 1000)
		est, err := w.Engine.PlanByName(t.Context(), "m", q, nil)
		if err != nil || est.Entities != 1000 || !est.Exact || est.LowerBound {
			t.Errorf("1,000 namespaces: %+v, %v", est, err)
		}
		put(1000, 1100)
		more, err := w.Engine.PlanByName(t.Context(), "m", q, nil)
		if err != nil || more.Entities != 1000 || more.Exact || !more.LowerBound || more.Spent.Reads > est.Spent.Reads {
			t.Errorf("1,100 namespaces: %+v, %v, want at least 1,000 for %d reads", more, err, est.Spent.Reads)
		}
	})
}

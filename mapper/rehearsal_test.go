package mapper_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"

	"github.com/scattermap/scattermap/mapper"
)

// eventful does to accounts all that a function can do: it changes most of them, deletes some, puts
// and deletes others, leaves some alone, and fails on some.
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
	d.Put(datastore.NameKey("Note", "the end", nil), &account{})
	return nil
})

// TestRehearsal runs a function over accounts and writes nothing: it says what it would do, and
// then that is what the job does.
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
			t.Errorf("%+v, %v", proof, err)
		}
		// It is a rehearsal for good.
		if _, err := start(mapper.StartOptions{ID: "tried"}); !errors.Is(err, mapper.ErrIDTaken) {
			t.Errorf("the job itself under the ID of its rehearsal: %v", err)
		}
		if again, err := start(mapper.StartOptions{ID: "tried", DryRun: true}); err != nil || again.ID != "tried" {
			t.Errorf("the rehearsal once more: %v", err)
		}
		if _, err := slowVisit.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{DryRun: true}); !errors.Is(err, mapper.ErrInvalidArgument) ||
			!strings.Contains(err.Error(), "no Update") {
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
			t.Errorf("%+v, %v", s, err)
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

// slowVisit is a mapper that is no Update.
var slowVisit = mapper.Visit("slow-visit", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
	return nil
})

package mapper_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// TestCauses has entities fail for three reasons, and the failures of one be retried once it is
// mended: the others stay.
func TestCauses(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mended atomic.Bool
		m := mapper.Update("fragile", func(_ context.Context, a *mapper.Entity[account], p credit) error {
			switch n := a.Value.Balance; {
			case n%100 == 7:
				return mapper.Permanent(fmt.Errorf("the ledger has no %s", a.Key.Name))
			case n%100 == 8 && !mended.Load():
				return mapper.Permanent(fmt.Errorf("invoice %d of %q is open", n, a.Value.Owner))
			case n%200 == 9 && !mended.Load(): // would succeed, if it were retried
				return mapper.Permanent(errors.New("a plain error"))
			}
			a.Value.Balance += p.Amount
			return nil
		})
		w, ctx := newWorld(t, setting{queue: few(8)}, m), t.Context()
		const n = 2000
		w.putAccounts(names(n))
		job, err := m.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, credit{10_000},
			&mapper.StartOptions{ID: "one", PageSize: 100, FailureLimit: 60})
		if err != nil {
			t.Fatal(err)
		}
		wait := func(state mapper.State, failures int64) *mapper.Status {
			t.Helper()
			s, err := job.Wait(ctx)
			if err != nil || s.State != state || s.Failures != failures || s.Processed != n-failures {
				t.Fatalf("%+v, %v", s, err)
			}
			return s
		}
		wantCauses := func(want ...string) {
			t.Helper()
			causes, err := job.FailureCauses(ctx)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, c := range causes {
				got = append(got, fmt.Sprint(c.Count, " ", c.Text))
				if c.Estimated || c.Example.Key == nil || c.Example.Error == "" {
					t.Errorf("%+v", c)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("causes %q, want %q", got, want)
			}
		}
		wait(mapper.StateSucceededWithFailures, 50)
		wantCauses("20 invoice # of # is open", "20 the ledger has no #", "10 a plain error")
		for _, bad := range []string{"none"} {
			if err := job.Retry(ctx, &mapper.RetryOptions{Cause: bad}); !errors.Is(err, mapper.ErrInvalidArgument) {
				t.Errorf("a retry of %q: %v", bad, err)
			}
		}
		mended.Store(true)
		if err := job.Retry(ctx, &mapper.RetryOptions{Cause: "invoice # of # is open"}); err != nil {
			t.Fatal(err)
		}
		wait(mapper.StateSucceededWithFailures, 30)
		wantCauses("20 the ledger has no #", "10 a plain error")
		if err := job.Retry(ctx, &mapper.RetryOptions{Cause: "the ledger has no #"}); err != nil { // in vain
			t.Fatal(err)
		}
		wait(mapper.StateSucceededWithFailures, 30)
		wantHistory(t, job, "started running", "its failures of one cause are retried running",
			"its failures of one cause are retried running")
		if err := job.Retry(ctx, nil); err != nil {
			t.Fatal(err)
		}
		wait(mapper.StateSucceededWithFailures, 20)
		if proof, err := job.Verify(ctx, nil); err != nil || len(proof.Problems) > 0 {
			t.Errorf("%+v, %v", proof, err)
		}
		if right, err := w.client.Count(ctx, datastore.NewQuery("Account").FilterField("Balance", ">=",
			10_000)); err != nil || right != n-20 {
			t.Errorf("%d accounts are credited, %v", right, err)
		}
		if double, err := w.client.Count(ctx, datastore.NewQuery("Account").FilterField("Balance", ">=",
			20_000)); err != nil || double != 0 {
			t.Errorf("%d accounts are credited twice, %v", double, err)
		}
	})
}

package mapper_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// follower starts another job of its own over the same kind when it ends, once.
var follower *mapper.Mapper[mapper.NoParams]

func init() {
	follower = mapper.Update("follower", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
		return nil
	})
	follower.WithFinalizer(func(ctx context.Context, d *mapper.Completion, _ mapper.NoParams) error {
		if d.Status.ID != "first" {
			return nil
		}
		_, err := follower.Start(ctx, mapper.EngineFromContext(ctx), mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "next"})
		return err
	})
}

// TestOneAtATime starts, resumes and retries jobs of a mapper over one kind: one of them runs at
// most, unless it may run beside others.
func TestOneAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var fails atomic.Bool
		fails.Store(true)
		picky := mapper.Update("picky", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			time.Sleep(time.Millisecond)
			if fails.Load() && a.Value.Balance == 7 {
				return mapper.Permanent(errors.New("seven"))
			}
			return nil
		})
		w, ctx := newWorld(t, setting{}, picky, follower, setOwner), t.Context()
		w.putAccounts(names(300))
		if _, err := w.client.Put(ctx, datastore.NameKey("Other", "one", nil), &account{}); err != nil {
			t.Fatal(err)
		}
		start := func(id string, q mapper.Query, o mapper.StartOptions) error {
			o.ID = id
			_, err := picky.Start(ctx, w.engine, q, mapper.NoParams{}, &o)
			return err
		}
		refused := func(what, other string, err error) {
			t.Helper()
			if !errors.Is(err, mapper.ErrWrongState) || !strings.Contains(fmt.Sprint(err), "job "+other+" runs picky") {
				t.Errorf("%s: %v, want that %s runs", what, err, other)
			}
		}
		fine := func(what string, err error) {
			t.Helper()
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		accounts := mapper.Query{Kind: "Account"}
		fine("the first", start("one", accounts, mapper.StartOptions{}))
		refused("another one", "one", start("two", accounts, mapper.StartOptions{}))
		refused("one over several kinds", "one", start("two", mapper.Query{Kinds: []string{"Account", "Other"}},
			mapper.StartOptions{}))
		fine("the same again", start("one", accounts, mapper.StartOptions{}))
		fine("another kind", start("other", mapper.Query{Kind: "Other"}, mapper.StartOptions{}))
		fine("its rehearsal", start("rehearsal", accounts, mapper.StartOptions{DryRun: true}))
		fine("beside it", start("beside", accounts, mapper.StartOptions{AllowOverlap: true}))
		_, err := setOwner.Start(ctx, w.engine, accounts, mapper.NoParams{}, &mapper.StartOptions{ID: "owner"})
		fine("another mapper", err)
		fine("a pause", w.engine.Job("one").Pause(ctx))
		fine("while it is paused", start("zero", accounts, mapper.StartOptions{}))
		refused("a resume meanwhile", "zero", w.engine.Job("one").Resume(ctx))
		fine("an abort", w.engine.Job("zero").Abort(ctx))
		fine("a resume", w.engine.Job("one").Resume(ctx))
		if s, err := w.engine.Job("one").Wait(ctx); err != nil || s.Failures != 1 {
			t.Fatalf("%+v, %v", s, err)
		}
		fine("when it has ended", start("two", accounts, mapper.StartOptions{}))
		refused("a retry meanwhile", "two", w.engine.Job("one").Retry(ctx, nil))
		fails.Store(false)
		if s, err := w.engine.Job("two").Wait(ctx); err != nil || s.State != mapper.StateSucceeded {
			t.Fatalf("%+v, %v", s, err)
		}
		fine("a retry", w.engine.Job("one").Retry(ctx, nil))
		refused("a start while it is retried", "one", start("three", accounts, mapper.StartOptions{}))
		if s, err := w.engine.Job("one").Wait(ctx); err != nil || s.State != mapper.StateSucceeded {
			t.Errorf("%+v, %v", s, err)
		}
		fine("its end", w.engine.Job("one").CleanUp(ctx, &mapper.CleanUpOptions{IncludeJob: true}))
		time.Sleep(time.Hour)
		fine("when it is gone", start("three", accounts, mapper.StartOptions{}))

		_, err = follower.Start(ctx, w.engine, accounts, mapper.NoParams{}, &mapper.StartOptions{ID: "first"})
		fine("one that another follows", err)
		w.wait(w.engine.Job("first"))
		w.wait(w.engine.Job("next"))
	})
}

// TestManyStarts has many start jobs of a mapper over a kind at once: one of them is the first, and
// the others are refused.
func TestManyStarts(t *testing.T) {
	t.Parallel()
	for name, pessimistic := range map[string]bool{"optimistic": false, "pessimistic": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, ctx := newWorld(t, setting{emulator: emulator.Options{PessimisticConcurrency: pessimistic}},
					addCredit),
					t.Context()
				w.putAccounts(names(1000))
				var mu sync.Mutex
				var all sync.WaitGroup
				started, refused := 0, 0
				for i := range 8 {
					all.Go(func() {
						_, err := addCredit.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, credit{1},
							&mapper.StartOptions{ID: fmt.Sprint("job-", i), Rate: mapper.Rate{EntitiesPerSecond: 50}})
						mu.Lock()
						defer mu.Unlock()
						switch {
						case err == nil:
							started++
						case errors.Is(err, mapper.ErrWrongState):
							refused++
						default:
							t.Log(err) // too many at once
						}
					})
				}
				all.Wait()
				if started != 1 || refused == 0 {
					t.Errorf("%d have started, and %d were refused", started, refused)
				}
			})
		})
	}
}

// TestSlotsOfReusedIDs has a job's ID be taken by another job: what that runs over does not count
// for the first one's slot.
func TestSlotsOfReusedIDs(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := newWorld(t, setting{}, steadyCredit), t.Context()
		w.putAccounts(names(1000))
		other := make([]*datastore.Key, 1000)
		for i := range other {
			other[i] = datastore.NameKey("Other", fmt.Sprint(i), nil)
		}
		for first := 0; first < len(other); first += 500 {
			if _, err := w.client.PutMulti(ctx, other[first:first+500], make([]account, 500)); err != nil {
				t.Fatal(err)
			}
		}
		start := func(id, kind string) (*mapper.Job, error) {
			return steadyCredit.Start(ctx, w.engine, mapper.Query{Kind: kind}, credit{1},
				&mapper.StartOptions{ID: id, PageSize: 20})
		}
		job, err := start("nightly", "Account")
		if err != nil {
			t.Fatal(err)
		}
		w.wait(job)
		if err := job.CleanUp(ctx, &mapper.CleanUpOptions{IncludeJob: true}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if _, err := start("nightly", "Other"); err != nil {
			t.Fatal(err)
		}
		if _, err := start("another", "Account"); err != nil {
			t.Errorf("nobody is at work on the kind: %v", err)
		}
		if _, err := start("third", "Account"); !errors.Is(err, mapper.ErrWrongState) ||
			!strings.Contains(err.Error(), "job another") {
			t.Errorf("somebody is: %v", err)
		}
	})
}

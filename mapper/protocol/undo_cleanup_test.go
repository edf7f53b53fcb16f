package protocol_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// beside returns an engine in another process of the world's service. The calls of its database go
// through the interceptor f.
func (w *world) beside(f grpc.UnaryClientInterceptor, mappers ...mapper.AnyMapper) *mapper.Engine {
	w.Helper()
	client, err := w.emulator.DatastoreClient(w.Context(), "test", mapper.ClientOption(),
		option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(f)))
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { client.Close() })
	e, err := mapper.NewEngine(client, w.queue,
		&mapper.EngineOptions{Mappers: mappers, Logger: slog.New(slog.NewTextHandler(w.Output(), nil))})
	if err != nil {
		w.Fatal(err)
	}
	return e
}

// doneJob runs the job "done" of the mapper setOwner over some accounts.
func (w *world) doneJob(accounts int) *mapper.Job {
	w.Helper()
	w.putAccounts(names(accounts))
	job, err := setOwner.Start(w.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
		&mapper.StartOptions{ID: "done", PageSize: 5})
	if err != nil {
		w.Fatal(err)
	}
	w.wait(job)
	return job
}

// unrestored returns the number of accounts that still have the owner that setOwner has set.
func (w *world) unrestored() (n int) {
	w.Helper()
	var all []account
	if _, err := w.client.GetAll(w.Context(), datastore.NewQuery("Account"), &all); err != nil {
		w.Fatal(err)
	}
	for _, a := range all {
		if a.Owner == "set" {
			n++
		}
	}
	return n
}

// A deed is a call of an operator on the job "done".
type deed struct {
	name string
	do   func(ctx context.Context, e *mapper.Engine) error
}

// TestUndoBesideCleanUp lets an operator make a call on a job, and stops the operator's process at
// each of the calls of the database that it makes. Meanwhile another operator makes another call on
// the same job. Then the process continues. If a call returns success, it must have taken effect.
func TestUndoBesideCleanUp(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	cleanUp := func(o *mapper.CleanUpOptions) func(context.Context, *mapper.Engine) error {
		return func(ctx context.Context, e *mapper.Engine) error { return e.Job("done").CleanUp(ctx, o) }
	}
	undoAs := func(id string) func(context.Context, *mapper.Engine) error {
		return func(ctx context.Context, e *mapper.Engine) error {
			_, err := e.Job("done").Undo(ctx, &mapper.UndoOptions{ID: id, PageSize: 1, ExpectedWorkers: 1})
			return err
		}
	}
	undo, other := deed{"undo", undoAs("")}, deed{"another undo", undoAs("other")}
	clean, all := deed{"clean up", cleanUp(nil)},
		deed{"clean up with the job", cleanUp(&mapper.CleanUpOptions{IncludeJob: true})}
	for _, pair := range [][2]deed{{clean, undo}, {all, undo}, {undo, clean}, {undo, all}, {undo, other}, {undo, undo},
		{clean, all}} {
		t.Run(pair[0].name+" beside "+pair[1].name, func(t *testing.T) {
			step := testflag.Size(t, 3, 4, 1) // on average, each call is made in one of this many runs
			for call, stood := int(testflag.Seed(t)%uint64(step)), true; stood; call += step {
				synctest.Test(t, func(t *testing.T) {
					w, ctx := newWorld(t, setting{queue: few(2)}, setOwner), t.Context()
					w.doneJob(100)
					var calls atomic.Int64
					stands, goes := make(chan struct{}), make(chan struct{})
					wake := sync.OnceFunc(func() { close(goes) })
					defer wake() // lets the process make its remaining calls
					sleeper := w.beside(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
						invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
						if calls.Add(1)-1 == int64(call) {
							close(stands)
							<-goes
						}
						return invoker(ctx, method, req, reply, cc, opts...)
					}, setOwner)
					ended := make(chan error, 1)
					go func() { ended <- pair[0].do(ctx, sleeper) }()
					var first, second error
					select {
					case <-stands:
						second = pair[1].do(ctx, w.engine)
						time.Sleep(20 * time.Millisecond) // by then a part of the work is done
						wake()
						first = <-ended
					case first = <-ended:
						stood = false
					}
					time.Sleep(time.Hour)
					set, running := w.unrestored(), 0
					jobs, _, err := w.engine.JobsPage(ctx, nil, "")
					if err != nil {
						t.Fatal(err)
					}
					for _, j := range jobs {
						if j.Mapper != "undo:set-owner" {
							continue
						}
						running++
						s, err := w.engine.Job(j.ID).Status(ctx)
						if err != nil || s.State != mapper.StateSucceeded || s.Counters["restored"] != 100 || set > 0 {
							t.Errorf("call %d: %v, %v; %+v, %v: %d accounts are not restored", call, first, second, s,
								err, set)
						}
					}
					if undoes := pair[0].name == undo.name || stood && pair[1].name == undo.name; undoes &&
						running == 0 && (first == nil && pair[0].name == undo.name || stood && second == nil &&
						pair[1].name == undo.name) {
						t.Errorf("call %d: an undo was started and does not exist: %v, %v", call, first, second)
					}
					if running > 1 {
						t.Errorf("call %d: %d undos", call, running)
					}
				})
			}
		})
	}
}

// TestOldCleanUp lets an older build, which does not know undos, clean up a job that is being
// undone. This build must continue the clean-up only after the undo has ended. The undo can't know
// which records were deleted, so it must not succeed.
func TestOldCleanUp(t *testing.T) {
	t.Parallel()
	for name, deletes := range map[string]bool{"it has deleted nothing": false, "it has deleted some records": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, ctx := newWorld(t, setting{queue: few(2)}, setOwner), t.Context()
				job := w.doneJob(100)
				before := w.count(record.RangeKind, "wrote")
				undo, err := job.Undo(ctx, &mapper.UndoOptions{PageSize: 1, ExpectedWorkers: 1,
					Rate: mapper.Rate{EntitiesPerSecond: 2}})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Second)
				if err := undo.Pause(ctx); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				undone := w.status(undo).Processed
				if undone == 0 || undone >= int64(before) {
					t.Fatalf("%d of %d pages are undone", undone, before)
				}
				w.cleanUpAsBefore("done")
				records := w.keysOf(".done.")
				if deletes {
					if err := w.client.DeleteMulti(ctx, records[:len(records)/2]); err != nil {
						t.Fatal(err)
					}
					records = records[len(records)/2:]
				}
				if err := job.CleanUp(ctx, nil); err != nil { // enqueues the tasks of the clean-up again
					t.Fatal(err)
				}
				if err := w.engine.ReviveJobs(ctx); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Minute)
				if now := w.keysOf(".done."); len(now) != len(records) {
					t.Fatalf("%d of %d records are there still", len(now), len(records))
				}
				if err := undo.Resume(ctx); err != nil {
					t.Fatal(err)
				}
				s, err := undo.Wait(ctx)
				if err != nil || s.State != mapper.StateFailed ||
					!strings.Contains(s.Error, "an older build cleaned up the records of the job") {
					t.Errorf("the undo: %+v, %v", s, err)
				}
				if set := w.unrestored(); set > 0 != deletes {
					t.Errorf("%d accounts are not restored", set)
				}
				if err := undo.Resume(ctx); err != nil { // the undo may be able to continue
					t.Errorf("resume: %v", err)
				}
				if s, err = undo.Wait(ctx); err != nil || s.State != mapper.StateFailed {
					t.Errorf("the undo, resumed: %+v, %v", s, err)
				}
				if err := undo.Abort(ctx); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Minute)
				if now := w.keysOf(".done."); len(now) > 0 {
					t.Errorf("%d records are there still, after the undo was aborted", len(now))
				}
			})
		})
	}
}

// keysOf returns the keys of records of ranges whose names contain a text.
func (w *world) keysOf(text string) (some []*datastore.Key) {
	w.Helper()
	keys, err := w.client.GetAll(w.Context(), datastore.NewQuery(record.RangeKind).KeysOnly(), nil)
	if err != nil {
		w.Fatal(err)
	}
	for _, key := range keys {
		if strings.Contains(key.Name, text) {
			some = append(some, key)
		}
	}
	return some
}

// cleanUpAsBefore starts the clean-up of a job like older builds, which do not check whether the
// job is being undone.
func (w *world) cleanUpAsBefore(id string) {
	w.Helper()
	key := datastore.NameKey(record.JobKind, id, nil)
	_, err := w.client.RunInTransaction(w.Context(), func(tx *datastore.Transaction) error {
		var list datastore.PropertyList
		if err := tx.Get(key, &list); err != nil {
			return err
		}
		has := false
		for i := range list {
			switch p := &list[i]; p.Name {
			case "cleaning":
				p.Value = "{}"
			case "cleaned":
				p.Value = true
			case "epoch":
				p.Value = p.Value.(int64) + 1
			case "active":
				p.Value, has = true, true
			}
		}
		if !has {
			list = append(list, datastore.Property{Name: "active", Value: true})
		}
		_, err := tx.Put(key, &list)
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
}

// TestUndoAfterCleanUp tries to undo, resume and retry jobs that were cleaned up.
func TestUndoAfterCleanUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := newWorld(t, setting{}, setOwner), t.Context()
		job := w.doneJob(50)
		undo, err := job.Undo(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		w.wait(undo)
		if err := job.CleanUp(ctx, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if again, err := job.Undo(ctx, nil); err != nil || again.ID != undo.ID {
			t.Errorf("the same undo once more: %v", err)
		}
		if again, err := job.Undo(ctx, &mapper.UndoOptions{ID: undo.ID}); err != nil || again.ID != undo.ID {
			t.Errorf("the same undo by its ID: %v", err)
		}
		if _, err := job.Undo(ctx, &mapper.UndoOptions{ID: "other"}); !errors.Is(err, mapper.ErrWrongState) {
			t.Errorf("another undo: %v", err)
		}
		if err := undo.Retry(ctx, nil); !errors.Is(err, mapper.ErrWrongState) ||
			!strings.Contains(err.Error(), "no failures to retry") {
			t.Errorf("a retry of the undo: %v", err)
		}
		if s := w.status(undo); s.State != mapper.StateSucceeded {
			t.Errorf("status %+v", s)
		}
	})
}

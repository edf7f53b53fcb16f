package store

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A refuser refuses one call of a database, and counts the calls. It ignores rollbacks.
type refuser struct {
	mu    sync.Mutex
	calls int
	at    int // number of the call to refuse, from 1; 0: none
}

func (f *refuser) intercept(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	if path.Base(info.FullMethod) != "Rollback" && f.refuses() {
		return nil, status.Error(codes.PermissionDenied, "refused")
	}
	return handler(ctx, req)
}

func (f *refuser) refuses() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	return f.calls == f.at
}

func (f *refuser) refuse(call int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls, f.at = 0, call
}

func (f *refuser) made() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// An operation calls the database. A preparation stores what an operation needs, and returns the
// operation. It gets the running job j.
type (
	operation   = func(context.Context, Store) error
	preparation = func(t *testing.T, st Store, j *record.Job) operation
)

// becoming returns an operation that changes the state of a job.
func becoming(ref record.Ref, state record.JobState) operation {
	return func(ctx context.Context, st Store) error {
		_, err := st.UpdateJob(ctx, ref, func(j *record.Job) (bool, error) { j.State = state; return true, nil })
		return err
	}
}

// refuseEach runs each operation once for each call that it makes, and refuses this call. The
// operation must return the error of the refused call.
func refuseEach(t *testing.T, operations map[string]preparation) {
	t.Helper()
	for name, prepare := range operations {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := new(refuser)
				st := newStore(t, &emulator.Options{Interceptor: f.intercept})
				do := prepare(t, st, run(t, st, "j", nil))
				for call := 1; ; call++ {
					f.refuse(call)
					err := do(t.Context(), st)
					if f.made() < call {
						if err != nil || call == 1 {
							t.Errorf("with nothing refused, and %d calls: %v", call-1, err)
						}
						return
					}
					if status.Code(err) != codes.PermissionDenied {
						t.Fatalf("call %d is refused, and the error is %v", call, err)
					}
				}
			})
		})
	}
}

// TestFailedCalls refuses each call that an operation makes, one at a time. The operation must
// return the error. It must not treat data that it could not read as missing, or a failed write as
// done.
func TestFailedCalls(t *testing.T) {
	testflag.Sequential(t)
	refuseEach(t, map[string]preparation{
		"list batches": func(_ *testing.T, _ Store, j *record.Job) operation {
			return func(ctx context.Context, st Store) error {
				return st.EachBatch(ctx, Batches(j.Ref(), "", ""),
					func(*datastore.Key, *record.Batch) error { return nil })
			}
		},
		"expire batches": func(t *testing.T, st Store, j *record.Job) operation {
			key, b := record.NewBatch(j.Ref(), "aa", []*datastore.Key{datastore.IDKey("K", 1, nil)}, 1, 0)
			if _, err := st.client.Put(t.Context(), key, b); err != nil {
				t.Fatal(err)
			}
			return func(ctx context.Context, st Store) error {
				return st.ExpireBatches(ctx, []*datastore.Key{key}, time.Now())
			}
		},
		"add up": func(t *testing.T, st Store, j *record.Job) operation {
			putRanges(t, st, j, atOnce+50, thirds)
			return func(ctx context.Context, st Store) error { _, err := st.Fold(ctx, j); return err }
		},
		"add up a few": func(t *testing.T, st Store, j *record.Job) operation {
			return func(ctx context.Context, st Store) error {
				_, all, err := st.FoldFew(ctx, j, atOnce)
				if err == nil && !all {
					err = errors.New("not all are added up")
				}
				return err
			}
		},
		"keep a draft": func(_ *testing.T, _ Store, j *record.Job) operation {
			return func(ctx context.Context, st Store) error {
				d, err := st.LoadDraft(ctx, j)
				if err == nil {
					_, err = st.KeepDraft(ctx, j, d, func(*record.Job) bool { return true })
				}
				return err
			}
		},
		"estimate totals": func(t *testing.T, st Store, j *record.Job) operation {
			putRanges(t, st, j, 2*SampleSize, thirds)
			return func(ctx context.Context, st Store) error {
				_, _, sampled := st.SampleTotals(ctx, j)
				_, _, live := st.LiveTotals(ctx, j)
				_, _, _, ended := st.SampleEnded(ctx, j)
				return errors.Join(sampled, live, ended)
			}
		},
		"list failures": func(t *testing.T, st Store, j *record.Job) operation {
			putRanges(t, st, j, 30, thirds)
			return func(ctx context.Context, st Store) error {
				_, _, page := st.Page(ctx, j.Ref(), "failed", "", 3)
				_, open := st.HasOpen(ctx, j.Ref())
				_, failures := st.CountFailures(ctx, j.Ref(), 0)
				_, _, look := st.LookOpen(ctx, j.Ref(), 5)
				return errors.Join(page, open, failures, look)
			}
		},
		"reserve a rate": func(_ *testing.T, _ Store, j *record.Job) operation {
			ask := func(pace.Queue) (time.Duration, int64) { return time.Second, 1 }
			return func(ctx context.Context, st Store) error {
				for range 2 { // with a new clock, then with a stored one
					if _, _, err := st.ReserveRate(ctx, j, record.RateClockKey(j.Ref()), new(time.Duration),
						ask); err != nil {
						return err
					}
				}
				return nil
			}
		},
		"change a job": func(_ *testing.T, _ Store, j *record.Job) operation {
			return becoming(record.Ref{ID: j.ID}, record.Paused)
		},
		"change a job once": func(_ *testing.T, _ Store, j *record.Job) operation {
			return func(ctx context.Context, st Store) error {
				return st.ChangeOnce(ctx, j.Ref(), func(j *record.Job) bool { j.Failures++; return true })
			}
		},
		"change nothing": func(_ *testing.T, _ Store, j *record.Job) operation {
			return func(ctx context.Context, st Store) error {
				return st.ChangeOnce(ctx, j.Ref(), func(j *record.Job) bool { return false })
			}
		},
		"change a range": func(_ *testing.T, _ Store, j *record.Job) operation {
			return func(ctx context.Context, st Store) error {
				_, err := st.UpdateRange(ctx, record.RangeKey(j.Ref(), j.Root()), func(r *record.Range) bool {
					r.Attempts++
					return true
				})
				return err
			}
		},
		"set a job running": func(t *testing.T, st Store, j *record.Job) operation {
			becomes(t, st, j, record.Paused)
			return becoming(j.Ref(), record.Running)
		},
		"set a run running": func(t *testing.T, st Store, j *record.Job) operation {
			becomes(t, st, j, record.Succeeded)
			first, err := begin(t, turns(st, false), tick(1))
			if err != nil {
				t.Fatal(err)
			}
			becomes(t, st, first, record.Failed)
			second, err := begin(t, turns(st, false), tick(2))
			if err != nil {
				t.Fatal(err)
			}
			becomes(t, st, second, record.Succeeded)
			return becoming(first.Ref(), record.Running)
		},
		"clean up an undone job": func(t *testing.T, st Store, _ *record.Job) operation {
			of := run(t, st, "of", func(j *record.Job) {
				j.State, j.Undo, j.Beside = record.Succeeded, "u", true
			})
			becomes(t, st, run(t, st, "u", undoing(of)), record.Succeeded)
			return func(ctx context.Context, st Store) error {
				_, err := st.HoldsBack(ctx, of)
				if err == nil {
					_, err = st.UpdateJob(ctx, of.Ref(), func(j *record.Job) (bool, error) { return j.CleanUp("{}") })
				}
				return err
			}
		},
		"start an undo": func(t *testing.T, st Store, _ *record.Job) operation {
			of := run(t, st, "of", func(j *record.Job) {
				j.State, j.Undo, j.Beside = record.Succeeded, "u", true
			})
			return func(ctx context.Context, st Store) error {
				u := &record.Job{ID: "u", Query: []byte(`{"kind":"K"}`), State: record.Running}
				undoing(of)(u)
				u.Incarnate(1)
				return st.Create(ctx, u, record.First{}, func(tx *datastore.Transaction) error {
					why, err := Incomplete(tx, u)
					return errors.Join(why, err)
				})
			}
		},
		"list jobs": func(*testing.T, Store, *record.Job) operation {
			return func(ctx context.Context, st Store) error {
				queues := []record.Owner{"q", "r"}
				_, jobs := st.Jobs(ctx, queues, record.Listing{}, "", 3)
				_, count := st.CountJobs(ctx, queues, record.Listing{})
				_, active := st.Active(ctx)
				_, due := st.Due(ctx, "q", time.Now(), 3)
				return errors.Join(jobs, count, active, due)
			}
		},
		"block the start of a job": func(*testing.T, Store, *record.Job) operation {
			return func(ctx context.Context, st Store) error {
				return st.BlockStart(ctx, record.Ref{ID: "k", Incarnation: "i"}, time.Now())
			}
		},
	})
}

// TestFailedCallsOfTicks does the same as TestFailedCalls for operations on a schedule's ticks,
// which are the planned times of its runs.
func TestFailedCallsOfTicks(t *testing.T) {
	refuseEach(t, map[string]preparation{
		"let a tick wait": func(*testing.T, Store, *record.Job) operation {
			return func(ctx context.Context, st Store) error {
				tu := turns(st, false)
				may := tu.May(ctx, tick(2))
				if errors.As(may, new(WaitsError)) {
					may = nil
				}
				_, err := tu.Wait(ctx, tick(2), []byte("what"))
				return errors.Join(may, err)
			}
		},
		"ask for a tick behind one that waits": func(t *testing.T, st Store, j *record.Job) operation {
			if _, err := turns(st, false).Wait(t.Context(), tick(2), []byte("what")); err != nil {
				t.Fatal(err)
			}
			becomes(t, st, j, record.Succeeded)
			return func(ctx context.Context, st Store) error {
				err := turns(st, false).May(ctx, tick(3))
				if w := new(WaitsError); errors.As(err, w) && w.First {
					return nil
				}
				return err
			}
		},
		"ask for an old tick": func(t *testing.T, st Store, j *record.Job) operation {
			becomes(t, st, j, record.Succeeded)
			if _, err := begin(t, turns(st, false), tick(2)); err != nil {
				t.Fatal(err)
			}
			return func(ctx context.Context, st Store) error {
				err := turns(st, false).May(ctx, tick(1))
				if w := new(WaitsError); errors.As(err, w) && w.Became == record.TickSkipped {
					return nil
				}
				return err
			}
		},
		"begin a tick": func(t *testing.T, st Store, j *record.Job) operation {
			becomes(t, st, j, record.Succeeded)
			return func(ctx context.Context, st Store) error {
				r := &record.Job{ID: runID(tick(2)), Mapper: "m", Query: []byte(`{"kind":"K"}`), State: record.Running,
					Schedule: "s"}
				r.Incarnate(1)
				return st.Create(ctx, r, record.First{}, func(tx *datastore.Transaction) error {
					return turns(st, false).Begin(tx, tick(2), r.ID)
				})
			}
		},
		"replace a run": func(t *testing.T, st Store, j *record.Job) operation {
			becomes(t, st, j, record.Succeeded)
			first, err := begin(t, turns(st, true), tick(1))
			if err != nil {
				t.Fatal(err)
			}
			return func(ctx context.Context, st Store) error {
				st = When(st, func(tx *datastore.Transaction) error {
					return turns(st, true).Replaces(tx, tick(2), first.Ref())
				})
				return becoming(first.Ref(), record.Aborted)(ctx, st)
			}
		},
		"refuse a tick": func(t *testing.T, st Store, _ *record.Job) operation {
			if _, err := turns(st, false).Wait(t.Context(), tick(2), []byte("what")); err != nil {
				t.Fatal(err)
			}
			return func(ctx context.Context, st Store) error {
				refused, err := turns(st, false).Refuse(ctx, tick(2), tick(2))
				if refused != (err == nil) {
					err = fmt.Errorf("refused %v: %w", refused, err)
				}
				return err
			}
		},
	})
}

package mapper_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/tasks"
)

// A denial refuses one call of whoever has its context, as where an account lacks a role. Calls
// that run side by side come in any order: so it is one of a method.
type denial struct {
	method string // empty: none is refused
	after  int    // this many calls of it

	mu    sync.Mutex
	calls map[string]int // by method
	did   bool
}

type denialKey struct{}

// refuses counts a call, and reports whether it is the one to refuse.
func (r *denial) refuses(method string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil {
		r.calls = make(map[string]int)
	}
	r.calls[method]++
	now := method == r.method && r.calls[method] == r.after+1
	r.did = r.did || now
	return now
}

func refuse(
	ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	if r, ok := ctx.Value(denialKey{}).(*denial); ok && r.refuses(path.Base(method)) {
		return status.Error(codes.PermissionDenied, "the account lacks a role")
	}
	return invoke(ctx, method, req, reply, conn, opts...)
}

// A refusedWorld has an operator whose calls are refused.
type refusedWorld struct {
	*world
	mapper   *mapper.Mapper[mapper.NoParams]
	operator *mapper.Engine
	job      *mapper.Job // the operator's, of a job that has failures
}

func newRefusedWorld(t *testing.T) *refusedWorld {
	w := new(refusedWorld)
	w.mapper = mapper.Update("refused", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
		time.Sleep(10 * time.Millisecond)
		if strings.HasSuffix(a.Key.Name, "7") {
			return mapper.Permanent(errors.New("no"))
		}
		a.Value.Balance += 10
		return nil
	})
	w.world = newWorld(t, setting{queue: few(2)}, w.mapper)
	w.putAccounts(names(30))
	intercept := option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(refuse))
	database, err := w.emulator.DatastoreClient(t.Context(), "test", mapper.ClientOption(), intercept)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { database.Close() })
	client, err := w.emulator.TasksClient(t.Context(), intercept)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	queue, err := tasks.NewQueue(client, queueName, target, &tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	w.operator, err = mapper.NewEngine(database, queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{w.mapper},
		Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	w.job = w.operator.Job("j")
	bridge.Tick(w.engine, "refused")
	bridge.Tick(w.operator, "refused")
	return w
}

// start starts the job.
func (w *refusedWorld) start(ctx context.Context, e *mapper.Engine) error {
	o := &mapper.StartOptions{ID: "j", PageSize: 5, ExpectedWorkers: 2}
	_, err := w.mapper.Start(ctx, e, mapper.Query{Kind: "Account"}, mapper.NoParams{}, o)
	return err
}

// ran has the job run to its end.
func (w *refusedWorld) ran() {
	w.Helper()
	if err := w.start(w.Context(), w.engine); err != nil {
		w.Fatal(err)
	}
	time.Sleep(2 * time.Minute)
}

// undone has the job be undone, but for what somebody has changed since.
func (w *refusedWorld) undone() {
	w.Helper()
	w.ran()
	w.putAccounts(names(3))
	if _, err := w.engine.Job("j").Undo(w.Context(), nil); err != nil {
		w.Fatal(err)
	}
	time.Sleep(2 * time.Minute)
}

func (w *refusedWorld) schedule() *mapper.Schedule[mapper.NoParams] {
	return mapper.NewSchedule("refused", w.mapper, mapper.OverlapQueue)
}

// tick has the schedule tick on a day.
func (w *refusedWorld) tick(ctx context.Context, e *mapper.Engine, day int) error {
	_, err := w.schedule().Tick(ctx, e, midnight.AddDate(0, 0, day), mapper.Query{Kind: "Account"}, mapper.NoParams{},
		nil)
	return err
}

// ticked has a run of the schedule be under way.
func (w *refusedWorld) ticked() {
	w.Helper()
	if err := w.tick(w.Context(), w.engine, 0); err != nil {
		w.Fatal(err)
	}
}

// waits has a tick wait for the end of a run, which has ended.
func (w *refusedWorld) waits() {
	w.Helper()
	w.ticked()
	if err := w.tick(w.Context(), w.engine, 1); err != nil {
		w.Fatal(err)
	}
	time.Sleep(2 * time.Minute)
}

// running has the job be under way.
func (w *refusedWorld) running() {
	w.Helper()
	if err := w.start(w.Context(), w.engine); err != nil {
		w.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
}

// A refusedOperation is one whose calls are refused.
type refusedOperation struct {
	before func(*refusedWorld)
	do     func(context.Context, *refusedWorld) error
	helps  []string // calls without which it succeeds, by their methods
}

func errOf[T any](_ T, err error) error          { return err }
func errOf2[T, U any](_ T, _ U, err error) error { return err }

// refusedOperations are all that somebody does to jobs. What is read of a queue, or for a line of
// the log, only helps.
var refusedOperations = map[string]refusedOperation{
	"start": {
		do:    func(ctx context.Context, w *refusedWorld) error { return w.start(ctx, w.operator) },
		helps: []string{"GetQueue"},
	},
	"pause": {
		before: (*refusedWorld).running,
		do:     func(ctx context.Context, w *refusedWorld) error { return w.job.Pause(ctx) },
		helps:  []string{"RunQuery"},
	},
	"resume": {
		before: (*refusedWorld).running,
		do:     func(ctx context.Context, w *refusedWorld) error { return w.job.Resume(ctx) },
	},
	"abort": {
		before: (*refusedWorld).running,
		do:     func(ctx context.Context, w *refusedWorld) error { return w.job.Abort(ctx) },
		helps:  []string{"RunQuery"},
	},
	"retry": {
		before: (*refusedWorld).ran,
		do:     func(ctx context.Context, w *refusedWorld) error { return w.job.Retry(ctx) },
		helps:  []string{"RunQuery"},
	},
	"retry of a cause": {
		before: (*refusedWorld).ran,
		do:     func(ctx context.Context, w *refusedWorld) error { return w.job.RetryCause(ctx, "no") },
		helps:  []string{"RunQuery"},
	},
	"undo": {
		before: (*refusedWorld).ran,
		do:     func(ctx context.Context, w *refusedWorld) error { return errOf(w.job.Undo(ctx, nil)) },
		helps:  []string{"GetQueue"},
	},
	"clean up": {
		before: (*refusedWorld).ran,
		do: func(ctx context.Context, w *refusedWorld) error {
			return w.job.CleanUp(ctx, &mapper.CleanUpOptions{IncludeJob: true})
		},
	},
	"set rate": {
		before: (*refusedWorld).running,
		do: func(ctx context.Context, w *refusedWorld) error {
			return w.job.SetRateFor(ctx, mapper.Rate{EntitiesPerSecond: 100}, time.Hour)
		},
	},
	"status": {
		before: (*refusedWorld).ran,
		do:     func(ctx context.Context, w *refusedWorld) error { return errOf(w.job.Status(ctx)) },
	},
	"status of a job that runs": {
		before: (*refusedWorld).running,
		do:     func(ctx context.Context, w *refusedWorld) error { return errOf(w.job.Status(ctx)) },
		helps:  []string{"GetTask", "GetTask"},
	},
	"history": {
		before: (*refusedWorld).ran,
		do:     func(ctx context.Context, w *refusedWorld) error { return errOf(w.job.History(ctx)) },
	},
	"failures": {
		before: (*refusedWorld).ran,
		do:     func(ctx context.Context, w *refusedWorld) error { return errOf2(w.job.FailuresPage(ctx, "")) },
	},
	"causes": {
		before: (*refusedWorld).ran,
		do:     func(ctx context.Context, w *refusedWorld) error { return errOf(w.job.FailureCauses(ctx)) },
	},
	"left": {
		before: (*refusedWorld).undone,
		do: func(ctx context.Context, w *refusedWorld) error {
			return errOf2(w.operator.Job("undo-j").NotUndonePage(ctx, ""))
		},
	},
	"examples": {
		before: (*refusedWorld).ran,
		do:     func(ctx context.Context, w *refusedWorld) error { return errOf(w.job.Examples(ctx)) },
	},
	"verify": {
		before: (*refusedWorld).ran,
		do:     func(ctx context.Context, w *refusedWorld) error { return errOf(w.job.Verify(ctx)) },
	},
	"verify entities": {
		before: (*refusedWorld).ran,
		do: func(ctx context.Context, w *refusedWorld) error {
			return errOf(w.job.VerifyEntities(ctx, time.Time{}))
		},
	},
	"list jobs": {
		before: (*refusedWorld).ran,
		do:     func(ctx context.Context, w *refusedWorld) error { return errOf2(w.operator.JobsPage(ctx, nil, "")) },
	},
	"tick": {
		do:    func(ctx context.Context, w *refusedWorld) error { return w.tick(ctx, w.operator, 0) },
		helps: []string{"GetQueue"},
	},
	"tick that waits": {
		before: (*refusedWorld).ticked,
		do:     func(ctx context.Context, w *refusedWorld) error { return w.tick(ctx, w.operator, 1) },
		helps:  []string{"GetQueue"},
	},
	"advance": {
		before: (*refusedWorld).waits,
		do:     func(ctx context.Context, w *refusedWorld) error { return w.schedule().Advance(ctx, w.operator) },
		helps:  []string{"Lookup", "Lookup", "GetQueue"}, // whether it has to wait is looked at again
	},
	"revive": {
		before: (*refusedWorld).running,
		do:     func(ctx context.Context, w *refusedWorld) error { return w.operator.ReviveJobs(ctx) },
		helps:  []string{"RunQuery", "GetTask", "GetTask"},
	},
	"ready": {do: func(ctx context.Context, w *refusedWorld) error { return w.operator.CheckReady(ctx) }},
}

// TestRefusedCalls has every call of every operation be refused, one at a time: the operation
// fails, and says why, or succeeds without a call that only helps.
func TestRefusedCalls(t *testing.T) {
	t.Parallel()
	for name, op := range refusedOperations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := func(r *denial) (err error) {
				synctest.Test(t, func(t *testing.T) {
					w := newRefusedWorld(t)
					if op.before != nil {
						op.before(w)
					}
					defer time.Sleep(10 * time.Minute) // until what it has begun has ended
					err = op.do(context.WithValue(t.Context(), denialKey{}, r), w)
				})
				return err
			}
			all := new(denial)
			if err := run(all); err != nil || len(all.calls) == 0 {
				t.Errorf("with no call refused: %v after calls of %v", err, all.calls)
			}
			helps := slices.Clone(op.helps)
			for _, method := range slices.Sorted(maps.Keys(all.calls)) {
				for after := 0; ; after++ {
					r := &denial{method: method, after: after}
					err := run(r)
					if !r.did {
						break
					}
					if err != nil {
						if !strings.Contains(err.Error(), "lacks a role") {
							t.Errorf("%s is refused, and it says %v", method, err)
						}
						continue
					}
					i := slices.Index(helps, method)
					if i < 0 {
						t.Errorf("%s, its call %d, is refused, and it says nothing", method, after+1)
						break
					}
					helps = slices.Delete(helps, i, i+1)
				}
			}
		})
	}
}

package mapper_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
)

// TestReviveOfAllQueues purges the second queue of an engine, with the sweeps of a job: a revival
// brings that back.
func TestReviveOfAllQueues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := severalQueues(t, patient), t.Context()
		door := &door{handler: w.handler}
		w.handler = door
		w.putAccounts(names(200))
		job, err := patient.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, credit{1},
			&mapper.StartOptions{ID: "one", PageSize: 10})
		w.must(err)
		time.Sleep(time.Second)
		door.shut.Store(true)
		_, err = w.tasksClient().PurgeQueue(ctx, &cloudtaskspb.PurgeQueueRequest{Name: otherQueue})
		w.must(err)
		time.Sleep(time.Hour)
		if s := w.status(job); s.State.Ended() {
			t.Fatalf("the job has ended too early to show anything: %+v", s)
		}
		door.shut.Store(false)
		time.Sleep(time.Hour)
		if s := w.status(job); s.State.Ended() {
			t.Fatalf("the job goes on without a revival: %+v", s)
		}
		w.must(w.engine.ReviveJobs(ctx))
		w.wait(job)
	})
}

// TestMoveLeavesNoTasks moves a job to another service while a delivery is under way in the old
// one: that enqueues nothing more there.
func TestMoveLeavesNoTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var moved atomic.Bool
		var late atomic.Int64
		w := newWorld(t,
			setting{queue: few(2),
				emulator: emulator.Options{Interceptor: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo,
					handler grpc.UnaryHandler) (any, error) {
					if c, ok := req.(*cloudtaskspb.CreateTaskRequest); ok && c.Parent == queueName && moved.Load() &&
						strings.HasSuffix(c.Task.GetHttpRequest().GetUrl(), "/range") {
						late.Add(1)
					}
					return handler(ctx, req)
				}}}, steadyCredit)
		other := w.second(steadyCredit)
		w.putAccounts(names(200))
		o := &mapper.StartOptions{ID: "one", PageSize: 10, ExpectedWorkers: 1,
			Splitting: mapper.Splitting{First: 1, FanOut: 1}}
		_, err := steadyCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{1}, o)
		w.must(err)
		time.Sleep(2500 * time.Millisecond)
		b := other.engine.Job("one")
		w.must(b.Move(t.Context()))
		moved.Store(true)
		w.wait(b)
		w.wantBalances(names(200), 1)
		if n := late.Load(); n > 0 {
			t.Errorf("%d tasks were put into the queue that the job was moved away from", n)
		}
	})
}

// TestLateLimit has a delivery find that too many entities have failed, and stand still until the
// job was paused and resumed by somebody: that does not pause it once more.
func TestLateLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		picky := mapper.Update("picky", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			if a.Value.Balance < 8 {
				return mapper.Permanent(errors.New("small"))
			}
			return nil
		})
		var w *world
		var once sync.Once
		w = newWorld(t,
			setting{emulator: emulator.Options{Interceptor: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo,
				handler grpc.UnaryHandler) (any, error) {
				resp, err := handler(ctx, req)
				if q, ok := req.(*datastorepb.RunQueryRequest); ok && strings.Contains(q.String(), `"failed"`) {
					once.Do(func() {
						w.must(w.engine.Job("one").Pause(t.Context()))
						w.must(w.engine.Job("one").Resume(t.Context()))
					})
				}
				return resp, err
			}}}, picky)
		w.putAccounts(names(200))
		job, err := picky.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "one", PageSize: 200, ExpectedWorkers: 1, FailureLimit: 5})
		w.must(err)
		time.Sleep(time.Hour)
		if s := w.status(job); s.State != mapper.StateSucceededWithFailures || s.Failures != 8 {
			t.Errorf("the job is %s: %s", s.State, s.Error)
		}
		wantHistory(t, job, "started running", "paused paused", "resumed running")
	})
}

// TestNoPageBeginsWhileDraining has a process drain while it looks for the entities of a page: the
// function is not called for any of them.
func TestNoPageBeginsWhileDraining(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		m := mapper.Update("counted", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
			calls.Add(1)
			return nil
		})
		var w *world
		var looks atomic.Bool
		var once sync.Once
		drained := make(chan error, 1)
		w = newWorld(t,
			setting{emulator: emulator.Options{Interceptor: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo,
				handler grpc.UnaryHandler) (any, error) {
				if q, ok := req.(*datastorepb.RunQueryRequest); ok && looks.Load() &&
					strings.Contains(q.String(), `"Account"`) {
					once.Do(func() { go func() { drained <- w.engine.Drain(context.Background()) }() })
					time.Sleep(time.Second)
				}
				return handler(ctx, req)
			}}}, m)
		w.putAccounts(names(100))
		door := &door{handler: w.handler}
		w.handler = door
		door.shut.Store(true)
		_, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "one", ExpectedWorkers: 1})
		w.must(err)
		looks.Store(true)
		door.shut.Store(false)
		w.must(<-drained)
		if n := calls.Load(); n > 0 {
			t.Errorf("the function was called for %d entities", n)
		}
	})
}

// A door lets deliveries through to a handler, or is shut.
type door struct {
	handler http.Handler
	shut    atomic.Bool
}

func (d *door) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if d.shut.Load() {
		rw.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	d.handler.ServeHTTP(rw, r)
}

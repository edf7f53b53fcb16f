package protocol_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

// delayed lets each call take 20 ms.
func delayed(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	time.Sleep(20 * time.Millisecond)
	return handler(ctx, req)
}

// clockOff returns an interceptor for the client of a process whose clock differs from the queue's
// clock by off. It is negative if the process' clock is slow.
func clockOff(off time.Duration) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption) error {
		if create, ok := req.(*cloudtaskspb.CreateTaskRequest); ok && create.Task.ScheduleTime != nil {
			create.Task.ScheduleTime = timestamppb.New(create.Task.ScheduleTime.AsTime().Add(off))
		}
		err := invoke(ctx, method, req, reply, conn, opts...)
		if task, ok := reply.(*cloudtaskspb.Task); ok && err == nil {
			task.CreateTime = timestamppb.New(task.CreateTime.AsTime().Add(-off))
		}
		return err
	}
}

// TestSlowClock controls jobs in a process whose clock shows an earlier or a later time than the
// queue's clock. Its calls must succeed as with a right clock.
func TestSlowClock(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{-10, -4, 4, 10} {
		t.Run(fmt.Sprint(int(off), " minutes"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setting{emulator: emulator.Options{Interceptor: delayed}}, steadyCredit)
				ctx := t.Context()
				client, err := w.emulator.TasksClient(ctx,
					option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(clockOff(off*time.Minute))))
				w.must(err)
				t.Cleanup(func() { client.Close() })
				w.queue, err = tasks.NewQueue(client, queueName, target, &tasks.Options{InsecureSkipVerify: true})
				w.must(err)
				w.advancing(t.Output(), []mapper.AnyMapper{steadyCredit})
				w.putAccounts(names(100))
				for n := range 5 {
					job, err := w.byHand(fmt.Sprint("job-", n), "Account")
					w.must(err)
					time.Sleep(100 * time.Millisecond)
					w.must(job.Pause(ctx))
					w.must(job.Resume(ctx))
					w.wait(job)
					w.must(job.CleanUp(ctx, &mapper.CleanUpOptions{IncludeJob: true}))
					time.Sleep(time.Hour)
				}
			})
		})
	}
}

package tasks_test

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/tasks"
)

// TestLook reads the state of a task before its time, during its delivery, after a failed attempt,
// and after it was removed.
func TestLook(t *testing.T) {
	var attempts atomic.Int64
	run := func(context.Context, tasks.Delivery) error {
		time.Sleep(time.Minute)
		if attempts.Add(1) == 1 {
			return errors.New("not yet")
		}
		return nil
	}
	inBubble(t, emulator.Options{}, run, func(t *testing.T, q *tasks.Queue) {
		begun := time.Now()
		if err := q.Enqueue(t.Context(),
			tasks.Task{ID: "abc", Path: "run", ScheduleTime: begun.Add(time.Minute)}); err != nil {
			t.Fatal(err)
		}
		look := func() *tasks.TaskInfo {
			s, err := q.Lookup(t.Context(), tasks.Task{ID: "abc", Path: "run"})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		const url = "http://worker.example/base/run"
		if s := look(); s == nil || s.URL != url || s.Attempts != 0 || s.Ended ||
			!s.ScheduleTime.Equal(begun.Add(time.Minute)) {
			t.Errorf("before its time: %+v", s)
		}
		time.Sleep(90 * time.Second)
		if s := look(); s == nil || s.Attempts != 1 || s.Ended {
			t.Errorf("while it is delivered: %+v", s)
		}
		time.Sleep(30*time.Second + 50*time.Millisecond)
		if s := look(); s == nil || s.Attempts != 1 || !s.Ended || s.Code != codes.Internal ||
			s.Message != "INTERNAL(13): HTTP status code 500" {
			t.Errorf("after an attempt that failed: %+v", s)
		}
		time.Sleep(time.Hour)
		if s := look(); s != nil {
			t.Errorf("once it is done: %+v", s)
		}
		if paused, err := q.Paused(t.Context()); err != nil || paused {
			t.Errorf("a queue that runs is paused: %v, %v", paused, err)
		}
	})
}

// TestScheduleTime enqueues a task from a process whose clock differs from the queue's clock. The
// process must read the task's time in the queue, and at its delivery, as it was given.
func TestScheduleTime(t *testing.T) {
	for _, off := range []time.Duration{-10 * time.Minute, 0, 10 * time.Minute} {
		var delivered atomic.Pointer[time.Time]
		run := func(_ context.Context, d tasks.Delivery) error {
			delivered.Store(&d.ScheduleTime)
			return nil
		}
		inBubble(t, emulator.Options{Interceptor: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo,
			handler grpc.UnaryHandler) (any, error) {
			answer, err := handler(ctx, req)
			if task, ok := answer.(*cloudtaskspb.Task); ok { // the queue's clock is ahead by off
				task = proto.CloneOf(task)
				task.CreateTime = timestamppb.New(task.CreateTime.AsTime().Add(off))
				answer = task
			}
			return answer, err
		}}, run, func(t *testing.T, q *tasks.Queue) {
			at := time.Now().Add(time.Hour)
			for _, task := range []tasks.Task{{ID: "first"}, {ID: "abc", ScheduleTime: at}} {
				if err := q.Enqueue(t.Context(), task); err != nil {
					t.Fatal(err)
				}
			}
			near := func(d time.Duration) bool { return d.Abs() <= time.Second }
			if s, err := q.Lookup(t.Context(), tasks.Task{ID: "abc"}); err != nil || !near(s.ScheduleTime.Sub(at)) {
				t.Errorf("%v: in the queue it is due %v late, %v", off, s.ScheduleTime.Sub(at), err)
			}
			time.Sleep(2 * time.Hour)
			if due := *delivered.Load(); !near(due.Sub(at)) {
				t.Errorf("%v: it is delivered %v late", off, due.Sub(at))
			}
		})
	}
}

// TestElsewhere looks up one task through several queues of the same name, some with another URL,
// account or audience. While its first attempt has not failed, the task exists for all queues.
// After that it exists only for queues with the same URL, account and audience.
func TestElsewhere(t *testing.T) {
	for name, test := range map[string]struct {
		target    string
		options   tasks.Options
		elsewhere bool
	}{
		"the same":     {target: "http://worker.example/base/"},
		"another host": {target: "http://other.example/base/", elsewhere: true},
		"another path": {target: "http://worker.example/", elsewhere: true},
		"another account": {target: "http://worker.example/base/",
			options: tasks.Options{ServiceAccount: "b@example.com"}, elsewhere: true},
		"another audience": {target: "http://worker.example/base/", options: tasks.Options{Audience: "all"},
			elsewhere: true},
		"another deadline": {target: "http://worker.example/base/",
			options: tasks.Options{DispatchDeadline: time.Minute}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				refuse := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					w.WriteHeader(http.StatusForbidden)
				})
				emu := emulator.ForTest(t, &emulator.Options{Transport: emulator.HandlerTransport(refuse)})
				client, err := emu.TasksClient(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer client.Close()
				const queue = "projects/p/locations/l/queues/q"
				if _, err := client.CreateQueue(t.Context(),
					&cloudtaskspb.CreateQueueRequest{Parent: "projects/p/locations/l",
						Queue: &cloudtaskspb.Queue{Name: queue}}); err != nil {
					t.Fatal(err)
				}
				const account = "a@example.com"
				first, err := tasks.NewQueue(client, queue, "http://worker.example/base/",
					&tasks.Options{InsecureSkipVerify: true, ServiceAccount: account})
				if err != nil {
					t.Fatal(err)
				}
				test.options.InsecureSkipVerify, test.options.ServiceAccount = true,
					cmp.Or(test.options.ServiceAccount, account)
				now, err := tasks.NewQueue(client, queue, test.target, &test.options)
				if err != nil {
					t.Fatal(err)
				}
				task := tasks.Task{ID: "abc", Path: "run", ScheduleTime: time.Now().Add(time.Minute)}
				if err := first.Enqueue(t.Context(), task); err != nil {
					t.Fatal(err)
				}
				for _, refused := range []bool{false, true} {
					s, err := now.Lookup(t.Context(), task)
					if err != nil || s == nil || s.TargetChanged != test.elsewhere {
						t.Errorf("refused %v: %+v, %v", refused, s, err)
					}
					if exists, err := now.Exists(t.Context(), task); err != nil ||
						exists == (refused && test.elsewhere) {
						t.Errorf("refused %v: it exists %v, %v", refused, exists, err)
					}
					time.Sleep(2 * time.Minute)
				}
			})
		})
	}
}

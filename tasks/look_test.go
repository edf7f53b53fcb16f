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
	"google.golang.org/grpc/codes"

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

package tasks_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/tasks"
)

// TestLook follows what the queue says of a task: before its time, while it is delivered, after an attempt
// that failed, and once it is gone.
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
		if err := q.Enqueue(t.Context(), tasks.Task{ID: "abc", Path: "run", At: begun.Add(time.Minute)}); err != nil {
			t.Fatal(err)
		}
		look := func() *tasks.Sighting {
			s, err := q.Look(t.Context(), "abc")
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		const url = "http://worker.example/base/run"
		if s := look(); s == nil || s.URL != url || s.Attempts != 0 || s.Ended || !s.Due.Equal(begun.Add(time.Minute)) {
			t.Errorf("before its time: %+v", s)
		}
		time.Sleep(90 * time.Second)
		if s := look(); s == nil || s.Attempts != 1 || s.Ended {
			t.Errorf("while it is delivered: %+v", s)
		}
		time.Sleep(30*time.Second + 50*time.Millisecond)
		if s := look(); s == nil || s.Attempts != 1 || !s.Ended || s.Code != codes.Internal || s.Message != "INTERNAL(13): HTTP status code 500" {
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

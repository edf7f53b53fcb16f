package emulator_test

import (
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// TestBackoff checks the example in Google's documentation: the back-off starts at 10 s, doubles
// three times, and then grows linearly to at most 300 s.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{answer: func(int) int { return 500 }}
		client := tasksIn(t, r, &cloudtaskspb.Queue{RetryConfig: &cloudtaskspb.RetryConfig{
			MaxAttempts: 9, MaxDoublings: 3,
			MinBackoff: durationpb.New(10 * time.Second), MaxBackoff: durationpb.New(300 * time.Second),
		}})
		mustCreate(t, client, task("abc"))
		time.Sleep(24 * time.Hour)
		want := []time.Duration{0}
		for _, seconds := range []int{10, 20, 40, 80, 160, 240, 300, 300} {
			want = append(want, want[len(want)-1]+time.Duration(seconds)*time.Second)
		}
		if diff := cmp.Diff(want, r.times()); diff != "" {
			t.Errorf("times of delivery (-want +got):\n%s", diff)
		}
		if _, err := client.GetTask(t.Context(),
			&cloudtaskspb.GetTaskRequest{Name: queueName + "/tasks/abc"}); status.Code(err) != codes.NotFound {
			t.Errorf("the task after its last attempt: %v, want NotFound", err)
		}
	})
}

// TestRetryDuration checks that retries end only when both the attempts and the time are used up.
func TestRetryDuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{answer: func(int) int { return 500 }}
		client := tasksIn(t, r, &cloudtaskspb.Queue{RetryConfig: &cloudtaskspb.RetryConfig{
			MaxAttempts: 2, MaxRetryDuration: durationpb.New(35 * time.Second),
			MinBackoff: durationpb.New(10 * time.Second), MaxBackoff: durationpb.New(10 * time.Second),
		}})
		mustCreate(t, client, task("abc"))
		time.Sleep(time.Hour)
		if n := len(r.times()); n != 5 { // deliveries at 0, 10, 20, 30 and 40 s
			t.Errorf("%d attempts, want 5", n)
		}
	})
}

// TestTaskRetries checks that a task's own retry settings replace its queue's.
func TestTaskRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{answer: func(int) int { return 500 }}
		client := tasksIn(t, r, &cloudtaskspb.Queue{RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: 50}})
		own := task("own")
		own.RetryConfig = &cloudtaskspb.RetryConfig{MaxAttempts: 3, MinBackoff: durationpb.New(time.Second),
			MaxBackoff: durationpb.New(time.Second)}
		mustCreate(t, client, own)
		time.Sleep(time.Hour)
		if diff := cmp.Diff([]time.Duration{0, time.Second, 2 * time.Second}, r.times()); diff != "" {
			t.Errorf("times of delivery (-want +got):\n%s", diff)
		}
	})
}

// TestRetention checks that a task is deleted after 31 days, if its deliveries fail and if its
// queue is paused.
func TestRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{answer: func(int) int { return 500 }}
		client := tasksIn(t, r, &cloudtaskspb.Queue{RetryConfig: &cloudtaskspb.RetryConfig{
			MaxAttempts: -1, MinBackoff: durationpb.New(24 * time.Hour), MaxBackoff: durationpb.New(24 * time.Hour),
		}})
		mustCreate(t, client, task("fails"))
		time.Sleep(60 * 24 * time.Hour)
		if n := len(r.times()); n != 31 { // one delivery on each of the days 0 to 30
			t.Errorf("%d attempts, want 31", n)
		}
		pause(t, client)
		mustCreate(t, client, task("waits"))
		time.Sleep(31 * 24 * time.Hour)
		if _, err := client.GetTask(t.Context(),
			&cloudtaskspb.GetTaskRequest{Name: queueName + "/tasks/waits"}); status.Code(err) != codes.NotFound {
			t.Errorf("a task of 31 days: %v, want NotFound", err)
		}
		resume(t, client)
		time.Sleep(time.Hour)
		if n := len(r.times()); n != 31 {
			t.Errorf("%d attempts after the pause, want none", n-31)
		}
	})
}

// TestSlowDown checks that answers 429 and 503 slow down the whole queue, that 500 does not, and
// that the queue recovers.
func TestSlowDown(t *testing.T) {
	for _, c := range []struct {
		answer int
		want   time.Duration // time until 100 tasks are delivered, at 10 a second
	}{
		// 10 tasks are delivered at once, and the other 90 at 10 a second.
		{500, 9 * time.Second},
		// The rate is halved to 5 a second. After 10 s, at task 50, it is doubled again, so the
		// rest takes 5 s.
		{503, 15 * time.Second}, {429, 15 * time.Second},
	} {
		t.Run(fmt.Sprint(c.answer), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var failed atomic.Bool
				r := &receiver{answer: func(int) int {
					if failed.CompareAndSwap(false, true) {
						return c.answer
					}
					return 200
				}}
				client := tasksIn(t, r, &cloudtaskspb.Queue{
					RateLimits:  &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 10},
					RetryConfig: &cloudtaskspb.RetryConfig{MinBackoff: durationpb.New(time.Hour)},
				})
				mustCreate(t, client, task("fails"))
				synctest.Wait()
				for range 99 {
					mustCreate(t, client, task(""))
				}
				time.Sleep(time.Minute)
				times := r.times()
				if len(times) != 100 {
					t.Fatalf("%d deliveries in the first minute, want 100", len(times))
				}
				if last := times[99]; last < c.want-time.Second || last > c.want+time.Second {
					t.Errorf("the last after %v, want about %v", last, c.want)
				}
			})
		})
	}
}

// TestRetryAfter checks that the header Retry-After delays the retry of a task, and after 503 all
// tasks of the queue.
func TestRetryAfter(t *testing.T) {
	for _, c := range []struct {
		answer      int
		header      string
		first, next time.Duration // times of the first task's retry, and of the second task's first delivery
	}{
		{500, "20", 20 * time.Second, time.Second},
		{503, "20", 20 * time.Second, 20 * time.Second},
		{503, "99999", time.Minute, time.Minute}, // max_backoff limits the header
		{503, "Sat, 01 Jan 2000 00:00:30 GMT", 30 * time.Second, 30 * time.Second},
		{503, "soon", 100 * time.Millisecond, time.Second},
	} {
		t.Run(fmt.Sprint(c.answer, " ", c.header), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var all atomic.Int64
				r := &receiver{header: http.Header{"Retry-After": {c.header}}, answer: func(int) int {
					if all.Add(1) == 1 {
						return c.answer
					}
					return 200 // the second task may be delivered before the first task's retry
				}}
				client := tasksIn(t, r,
					&cloudtaskspb.Queue{
						RetryConfig: &cloudtaskspb.RetryConfig{MaxBackoff: durationpb.New(time.Minute)}})
				mustCreate(t, client, task("first"))
				time.Sleep(time.Second)
				mustCreate(t, client, task("next"))
				time.Sleep(time.Hour)
				at := make(map[string][]time.Duration)
				for _, d := range r.deliveries() {
					at[d.task] = append(at[d.task], d.at)
				}
				if len(at["first"]) != 2 || at["first"][1] != c.first || at["next"][0] != c.next {
					t.Errorf("deliveries %v, want the retry after %v and the other after %v", at, c.first, c.next)
				}
			})
		})
	}
}

// TestExecutionCount checks that answers with 5XX count as retries, but not as executions, as in
// Cloud Tasks.
func TestExecutionCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := []int{500, 503, 404, 429, 200}
		r := &receiver{answer: func(n int) int { return answers[n-1] }}
		mustCreate(t, tasksIn(t, r, nil), task("t"))
		time.Sleep(time.Hour)
		var got []string
		for _, d := range r.deliveries() {
			got = append(got, d.headers.Get("X-CloudTasks-TaskRetryCount")+" "+
				d.headers.Get("X-CloudTasks-TaskExecutionCount"))
		}
		if want := []string{"0 0", "1 0", "2 0", "3 1", "4 2"}; !slices.Equal(got, want) {
			t.Errorf("retries and executions: %q, want %q", got, want)
		}
	})
}

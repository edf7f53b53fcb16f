package executor

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/testworld"
)

// TestWaitsLetOthersBeAlone has a task ask for the whole process while a page waits: for calls, or
// as part of a background job. The page makes room at once, and goes on later.
func TestWaitsLetOthersBeAlone(t *testing.T) {
	for _, background := range []bool{false, true} {
		begun := 0
		inWorld(t, 3, function.Visit, func(c *testworld.Call) error {
			begun++
			return c.AwaitCalls(c, 1)
		}, func(w *testworld.World, _ *Executor) {
			j := w.NewJob("j", "m")
			if j.Background = background; !background {
				j.Rate = []byte(`{"calls":0.02}`)
			}
			w.Begin(j) // at the start of a minute, where background jobs pause
			time.Sleep(2 * time.Second)
			if background && begun > 0 || !background && begun != 3 { // the second one twice
				w.Fatalf("background %v: %d functions have begun", background, begun)
			}
			for range 2 {
				asked := time.Now()
				place, err := w.Jobs.Gate.Enter(w.Context(), true)
				if took := time.Since(asked); err != nil || took > 100*time.Millisecond {
					w.Errorf("background %v: a task waits for %v: %v", background, took, err)
				}
				time.Sleep(10 * time.Second)
				place.Leave()
				time.Sleep(10 * time.Second)
			}
			time.Sleep(time.Hour)
			if got := said(w, "j"); !strings.HasPrefix(got, "succeeded, 3 processed") {
				w.Errorf("background %v: %s: %s", background, got, w.Job("j").Error)
			}
		})
	}
}

// TestCallsInTransaction has others change what the function has read, so that it runs again in the
// transaction of its page. Its calls don't wait there.
func TestCallsInTransaction(t *testing.T) {
	var w *testworld.World
	runs, other := 0, datastore.IDKey("Other", 1, nil)
	inWorld(t, 5, function.Update, func(c *testworld.Call) error {
		if c.ID == 3 {
			runs++
			_, err := c.Get(c, []*datastore.Key{other}, func(int, *pb.Entity) error { return nil })
			if err != nil {
				return err
			}
		}
		asked := time.Now()
		err := c.AwaitCalls(c, 1)
		if took := time.Since(asked); c.ID == 3 && (runs == 2) != (err != nil) || runs == 2 && took > 0 {
			w.Errorf("run %d waits for %v: %v", runs, took, err)
		}
		if err == nil && runs == 1 && c.ID == 5 {
			_, err = w.Client.Put(context.WithoutCancel(c), other, &testworld.Thing{})
		}
		c.N += 100
		return err
	}, func(world *testworld.World, _ *Executor) {
		w = world
		j := w.NewJob("j", "m")
		j.Rate, j.PageTime = []byte(`{"calls":0.2}`), int64(time.Minute)
		w.Begin(j)
		time.Sleep(time.Hour)
		if got := said(w, "j"); got != "succeeded, 5 processed by 2 pages" || w.N(3) != 103 || runs != 3 {
			w.Errorf("%s, 3 is %d after %d runs; %s", got, w.N(3), runs, w.Job("j").Error)
		}
		calls := int64(0)
		for _, r := range w.Records(j) {
			calls += r.Calls
		}
		if calls != 8 { // 4 and 5 have made calls in both pages
			w.Errorf("%d calls, want 8", calls)
		}
	})
}

// TestTooManyCalls has an entity need more calls than the rate can give, or get too few of them
// since others call. Both end, and nothing else fails.
func TestTooManyCalls(t *testing.T) {
	for _, c := range []struct {
		name  string
		calls int // of entity 3
		busy  bool
		made  int // most calls for it
		want  string
		cause string
	}{
		{"few enough", 290, false, 290, "succeeded, 5 processed", ""},
		{"too many", 310, false, 300, "succeeded with failures, 4 processed",
			"has announced 301 calls, and the rate of 1 calls a second allows 300 in 5m0s"},
		{"in vain", 10, true, 300, "succeeded with failures, 4 processed", "is reserved for some time"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var x *Executor
			var j *record.Job
			made := 0
			inWorld(t, 5, function.Visit, func(a *testworld.Call) error {
				if a.ID != 3 {
					return a.AwaitCalls(a, 1)
				}
				for range c.calls {
					if err := a.AwaitCalls(a, 1); err != nil {
						return err
					}
					if made++; !c.busy {
						continue
					}
					_, _, err := x.Store.ReserveRate(context.WithoutCancel(a), j, record.CallClockKey(j.Ref()),
						func(q pace.Queue) (time.Duration, int64) { return 1000*time.Second - q.Wait, 1 })
					if err != nil {
						return err
					}
				}
				return nil
			}, func(w *testworld.World, executor *Executor) {
				x, j = executor, w.NewJob("j", "m")
				j.Rate = []byte(`{"calls":1}`)
				w.Begin(j)
				time.Sleep(30 * time.Minute)
				if text := w.Job("j").Trouble; c.busy && text != "" {
					w.Errorf("a job that keeps to its rate has trouble: %s", text)
				}
				time.Sleep(12 * time.Hour)
				var failures []string
				for _, r := range w.Records(j) {
					if r.Failed != "" {
						failures = append(failures, fmt.Sprint(r.Start.Key.ID, ": ", r.Error))
					}
				}
				got := fmt.Sprint(failures)
				if said := said(w, "j"); !strings.HasPrefix(said, c.want) || !strings.Contains(got, c.cause) ||
					c.cause != "" && !strings.HasPrefix(got, "[3: ") || made > c.made {
					w.Errorf("%s: %s; %d calls, want at most %d", said, got, made, c.made)
				}
			})
		})
	}
}

package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
)

type thing struct{ N int64 }

// faulty returns a client of an embedded Datastore with the given faults.
func faulty(t *testing.T, f *faults.Faults) *datastore.Client {
	t.Helper()
	return embedded(t, &emulator.Options{Faults: f})
}

// wantCounts checks how often each kind of fault has happened.
func wantCounts(t *testing.T, f *faults.Faults, want map[faults.Kind]int) {
	t.Helper()
	if diff := cmp.Diff(want, f.Counts()); diff != "" {
		t.Errorf("faults that happened (-want +got):\n%s", diff)
	}
}

// putThing puts an entity, once.
func putThing(ctx context.Context, client *datastore.Client, n int64) error {
	_, err := client.Put(ctx, datastore.NameKey("Thing", "a", nil), &thing{n})
	return err
}

func getThing(t *testing.T, client *datastore.Client) int64 {
	t.Helper()
	var got thing
	if err := client.Get(t.Context(), datastore.NameKey("Thing", "a", nil), &got); err != nil &&
		!errors.Is(err, datastore.ErrNoSuchEntity) {
		t.Fatal(err)
	}
	return got.N
}

// TestLostCalls loses the answer of one call that took effect, and one call before its effect.
func TestLostCalls(t *testing.T) {
	for _, c := range []struct {
		kind   faults.Kind
		effect int64
	}{{faults.LoseCall, 0}, {faults.LoseAnswer, 7}} {
		t.Run(c.kind.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// The client does not repeat a call after an error with this code.
				f := faults.New(1, faults.Rule{Kind: c.kind, Methods: []string{"Commit"}, Limit: 1,
					Code: codes.Internal})
				client := faulty(t, f)
				if err := putThing(t.Context(), client, 7); status.Code(err) != codes.Internal {
					t.Errorf("the call that goes wrong: %v, want Internal", err)
				}
				if got := getThing(t, client); got != c.effect {
					t.Errorf("after it: %d, want %d", got, c.effect)
				}
				if err := putThing(t.Context(), client, 8); err != nil {
					t.Errorf("beyond the limit: %v", err)
				}
				wantCounts(t, f, map[faults.Kind]int{c.kind: 1})
			})
		})
	}
}

// TestUnavailable makes the services unavailable from the 10th to the 20th second.
func TestUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faults.New(1, faults.Rule{Kind: faults.LoseCall, After: 10 * time.Second,
			Until: 20 * time.Second})
		client := faulty(t, f)
		begun := time.Now()
		if err := putThing(t.Context(), client, 1); err != nil || !time.Now().Equal(begun) {
			t.Errorf("before: %v after %v", err, time.Since(begun))
		}
		time.Sleep(12 * time.Second)
		// The client repeats the call, and then returns the error.
		if err := putThing(t.Context(), client, 2); status.Code(err) != codes.Unavailable {
			t.Errorf("in the window: %v, want Unavailable", err)
		}
		time.Sleep(time.Until(begun.Add(20 * time.Second)))
		if err := putThing(t.Context(), client, 3); err != nil || getThing(t, client) != 3 {
			t.Errorf("after it: %v", err)
		}
		if f.Counts()[faults.LoseCall] < 2 {
			t.Errorf("faults that happened: %v", f.Counts())
		}
	})
}

// TestSlowCalls checks that half of a latency is before the effect and half
// after, and that a call's deadline ends it.
func TestSlowCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faults.New(1, faults.Rule{Kind: faults.SlowCall, Methods: []string{"Commit"},
			Latency: faults.Constant(10 * time.Second)})
		client := faulty(t, f)
		for _, c := range []struct {
			deadline time.Duration
			want     codes.Code
			took     time.Duration
			effect   int64
		}{
			{3 * time.Second, codes.DeadlineExceeded, 3 * time.Second, 0},
			{7 * time.Second, codes.DeadlineExceeded, 7 * time.Second, 7},
			{11 * time.Second, codes.OK, 10 * time.Second, 11},
		} {
			begun := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), c.deadline)
			err := putThing(ctx, client, int64(c.deadline/time.Second))
			cancel()
			if status.Code(err) != c.want && !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != c.took {
				t.Errorf("deadline %v: %v after %v, want %v after %v", c.deadline, err, time.Since(begun), c.want,
					c.took)
			}
			if got := getThing(t, client); got != c.effect {
				t.Errorf("deadline %v: the entity is %d, want %d", c.deadline, got, c.effect)
			}
		}
	})
}

// TestAbortedCommits checks that an aborted transaction has no effect, that the client retries it,
// and that other commits are not aborted.
func TestAbortedCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faults.New(1, faults.Rule{Kind: faults.AbortCommit, Limit: 2})
		client := faulty(t, f)
		if err := putThing(t.Context(), client, 1); err != nil {
			t.Errorf("a commit without a transaction: %v", err)
		}
		add := func(tx *datastore.Transaction) error {
			var a thing
			key := datastore.NameKey("Thing", "a", nil)
			if err := tx.Get(key, &a); err != nil {
				return err
			}
			a.N++
			_, err := tx.Put(key, &a)
			return err
		}
		if _, err := client.RunInTransaction(t.Context(), add, datastore.MaxAttempts(1)); !errors.Is(err,
			datastore.ErrConcurrentTransaction) {
			t.Errorf("one attempt: %v, want ErrConcurrentTransaction", err)
		}
		if _, err := client.RunInTransaction(t.Context(), add); err != nil {
			t.Errorf("three attempts: %v", err)
		}
		if got := getThing(t, client); got != 2 {
			t.Errorf("the entity is %d, want 2", got)
		}
		wantCounts(t, f, map[faults.Kind]int{faults.AbortCommit: 2})
	})
}

// TestFaultsRepeat checks that the same seed gives the same faults, and that a further rule does
// not change the faults of the others.
func TestFaultsRepeat(t *testing.T) {
	run := func(seed uint64, more ...faults.Rule) (outcomes []codes.Code) {
		synctest.Test(t, func(t *testing.T) {
			f := faults.New(seed, append([]faults.Rule{
				{Kind: faults.LoseCall, Methods: []string{"Commit"}, Share: 0.3, Code: codes.Internal},
			}, more...)...)
			client := faulty(t, f)
			for i := range int64(100) {
				if i == 50 {
					f.Pause()
					if err := putThing(t.Context(), client, i); err != nil {
						t.Errorf("in a pause: %v", err)
					}
					f.Resume()
				}
				outcomes = append(outcomes, status.Code(putThing(t.Context(), client, i)))
				getThing(t, client)
			}
			wantLost := 0
			for _, c := range outcomes {
				if c != codes.OK {
					wantLost++
				}
			}
			if got := f.Counts()[faults.LoseCall]; got != wantLost || got < 15 || got > 45 {
				t.Errorf("%d were lost, the counts say %d, want about 30", wantLost, got)
			}
		})
		return outcomes
	}
	first := run(7)
	if !slices.Equal(first, run(7)) {
		t.Error("the same seed, other faults")
	}
	if !slices.Equal(first,
		run(7, faults.Rule{Kind: faults.SlowCall, Share: 0.5,
			Latency: faults.Exponential{Mean: time.Millisecond}})) {
		t.Error("another rule changed what the first one does")
	}
	if slices.Equal(first, run(8)) {
		t.Error("another seed, the same faults")
	}
}

// TestDeliveryFaults checks when a task is delivered with each kind of fault, and in which order
// deliveries end.
func TestDeliveryFaults(t *testing.T) {
	const retry = 100 * time.Millisecond
	for _, c := range []struct {
		fault  faults.Rule
		want   []time.Duration
		atOnce int
	}{
		{faults.Rule{Kind: faults.DeliverTwice}, []time.Duration{0, time.Minute}, 1},
		{faults.Rule{Kind: faults.DeliverTwice, Latency: faults.Constant(time.Second)},
			[]time.Duration{0, time.Minute + time.Second}, 1},
		{faults.Rule{Kind: faults.DeliverTogether, Latency: faults.Constant(time.Second)},
			[]time.Duration{0, time.Second}, 2},
		{faults.Rule{Kind: faults.DeliverLate, Latency: faults.Constant(time.Hour)}, []time.Duration{time.Hour},
			1},
		{faults.Rule{Kind: faults.LoseReply}, []time.Duration{0, time.Minute + retry}, 1},
		// The request ends, but the handler continues while the retry runs.
		{faults.Rule{Kind: faults.CrashReceiver, Latency: faults.Constant(time.Second)},
			[]time.Duration{0, time.Second + retry}, 2},
		// The handler answers before the end of the request, but the answer is dropped.
		{faults.Rule{Kind: faults.CrashReceiver, Latency: faults.Constant(2 * time.Minute)},
			[]time.Duration{0, time.Minute + retry}, 1},
	} {
		t.Run(fmt.Sprint(c.fault.Kind, c.fault.Latency), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &receiver{work: time.Minute}
				c.fault.Limit = 1
				f := faults.New(1, c.fault)
				_, client := tasksWith(t, r, nil, emulator.Options{Faults: f})
				mustCreate(t, client, task("abc"))
				time.Sleep(24 * time.Hour)
				if diff := cmp.Diff(c.want, r.times()); diff != "" || r.atOnce() != c.atOnce {
					t.Errorf("%d at once, want %d; times of delivery (-want +got):\n%s", r.atOnce(), c.atOnce, diff)
				}
				wantCounts(t, f, map[faults.Kind]int{c.fault.Kind: 1})
			})
		})
	}
}

// TestCrashCancels checks that CrashReceiver cancels the context of the handler's request.
func TestCrashCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var mu sync.Mutex
		var ends []time.Duration
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			mu.Lock()
			defer mu.Unlock()
			ends = append(ends, time.Since(begun))
		})
		f := faults.New(1, faults.Rule{Kind: faults.CrashReceiver})
		e := emulator.ForTest(t, &emulator.Options{Faults: f, Transport: emulator.HandlerTransport(handler)})
		client, err := e.TasksClient(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if _, err := client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
			Queue: &cloudtaskspb.Queue{
				Name: queueName, RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: 3},
			}}); err != nil {
			t.Fatal(err)
		}
		mustCreate(t, client, task("abc"))
		time.Sleep(time.Hour)
		mu.Lock()
		defer mu.Unlock()
		if len(ends) != 3 || ends[0] == 0 || ends[0] >= time.Second {
			t.Errorf("the handler's contexts ended after %v, want 3 and the first within a second", ends)
		}
	})
}

// TestShuffledDeliveries checks that due tasks are delivered in random order, and that no task is
// delivered before its time.
func TestShuffledDeliveries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := new(receiver)
		f := faults.New(1, faults.Rule{Kind: faults.DeliverShuffled})
		_, client := tasksWith(t, r,
			&cloudtaskspb.Queue{RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 1}},
			emulator.Options{Faults: f})
		pause(t, client)
		var created []string
		for i := range 100 {
			task := task(fmt.Sprintf("t%02d", i))
			if i >= 50 {
				task.ScheduleTime = timestamppb.New(r.begun.Add(time.Hour))
			}
			mustCreate(t, client, task)
			created = append(created, fmt.Sprintf("t%02d", i))
		}
		resume(t, client)
		time.Sleep(2 * time.Hour)
		var got []string
		for i, d := range r.deliveries() {
			got = append(got, d.task)
			if early := d.at < time.Hour; early != (i < 50) {
				t.Errorf("%s was delivered after %v", d.task, d.at)
			}
		}
		if slices.Equal(got, created) || f.Counts()[faults.DeliverShuffled] == 0 {
			t.Error("the tasks were delivered in the order of their creation")
		}
		slices.Sort(got)
		if diff := cmp.Diff(created, got); diff != "" {
			t.Errorf("deliveries (-want +got):\n%s", diff)
		}
	})
}

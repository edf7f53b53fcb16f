package protocol_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
)

// TestRefusedTicks calls two ticks of a schedule, one right after the other, and repeats a tick
// after an error. In each run, the database or the queue refuses another call. Each tick must run
// once, and end within a minute: no tick may wait for a sweep, or for a call of ReviveJobs.
func TestRefusedTicks(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	step := testflag.Size(t, 12, 4, 1)
	for overlap, first := range map[mapper.Overlap]mapper.State{
		mapper.OverlapQueue: mapper.StateSucceeded, mapper.OverlapReplace: mapper.StateAborted,
	} {
		t.Run(string(overlap), func(t *testing.T) {
			t.Parallel()
			for at := int(testflag.Seed(t) % uint64(step)); ; at += step {
				f := &failing{at: at, code: codes.PermissionDenied}
				synctest.Test(t, func(t *testing.T) { tickTwice(t, overlap, first, f) })
				if t.Failed() {
					t.Fatalf("this was with a refusal of call %d", at)
				}
				if !f.failed() {
					return
				}
			}
		})
	}
}

// tickTwice runs two ticks, and checks that the first one's run ends in the given state.
func tickTwice(t *testing.T, overlap mapper.Overlap, first mapper.State, f *failing) {
	w := newWorld(t, setting{emulator: emulator.Options{Interceptor: f.intercept}, queue: few(2)})
	schedule := mapper.NewSchedule("refused", slowCredit, overlap)
	w.advancing(t.Output(), mappersOf(slowCredit), schedule)
	bridge.Seed(w.engine, 1)
	keys := names(40)
	w.putAccounts(keys)
	begun := time.Now()
	f.arm(true)
	for n := range 2 {
		for tries := 0; ; tries++ {
			_, err := schedule.Tick(t.Context(), w.engine, minute(n), mapper.Query{Kind: "Account"}, credit{10},
				&mapper.StartOptions{PageSize: 5, ExpectedWorkers: 2})
			if err == nil {
				break
			}
			if tries == 3 {
				t.Fatal(err)
			}
		}
	}
	for n, want := range []mapper.State{first, mapper.StateSucceeded} {
		job := w.engine.Job(schedule.JobID(minute(n)))
		for {
			status, err := job.Status(t.Context())
			if err == nil && status.State == want {
				break
			}
			if time.Since(begun) > time.Minute {
				t.Fatalf("after a minute the run of tick %d has the status %+v, %v, want %q", n, status, err, want)
			}
			if err != nil && !errors.Is(err, mapper.ErrNoSuchJob) {
				t.Log(err)
			}
			time.Sleep(time.Second)
		}
	}
	f.arm(false)
	if first == mapper.StateSucceeded {
		w.wantBalances(keys, 20)
	}
}

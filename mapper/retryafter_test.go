package mapper_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// TestRetryAfter has an entity, and then whole pages, ask for a time to wait.
func TestRetryAfter(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for _, all := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			var tries []time.Time
			busy := time.Now().Add(90 * time.Minute)
			m := mapper.Visit("busy", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
				if time.Now().Before(busy) && (all || a.Key.Name == "user-0000003") {
					if a.Key.Name == "user-0000003" {
						mu.Lock()
						tries = append(tries, time.Now())
						mu.Unlock()
					}
					return mapper.RetryAfter(errors.New("the service is busy"), 25*time.Minute)
				}
				a.Count("seen", 1)
				return nil
			})
			w := newWorld(t, setting{}, m)
			w.handler = repeat(w.engine.Handler())
			w.putAccounts(names(100))
			s := over(w, m, nil)
			if s.State != mapper.StateSucceeded || s.Counters["seen"] != 100 || s.Ended.Before(busy) ||
				s.Ended.After(busy.Add(26*time.Minute)) {
				t.Errorf("status %+v, busy until %v", s, busy)
			}
			// Deliveries of one task at once are one attempt, in which the function that fails is
			// slowed down.
			for i, begun := 1, tries[0]; i < len(tries); i++ {
				d := tries[i].Sub(begun)
				if d > time.Minute && d < 25*time.Minute {
					t.Errorf("call %d came %v after its attempt had begun", i+1, d)
				}
				if d >= 25*time.Minute {
					begun = tries[i]
				}
			}
		})
	}
}

// TestResumeAfterFailure fails a job, and resumes it: its ranges have as many
// attempts as at first, and then their failures are recorded.
func TestResumeAfterFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		attempts := make(map[time.Time]bool)
		m := mapper.Update("broken", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			mu.Lock()
			defer mu.Unlock()
			if a.Key.Name == "user-0000000" {
				attempts[time.Now()] = true
			}
			if a.Key.Name < "user-0000060" {
				return errors.New("broken")
			}
			return nil
		})
		w := newWorld(t, setting{queue: few(1)}, m)
		w.putAccounts(names(100))
		s := over(w, m, &mapper.StartOptions{ID: "j"})
		if s.State != mapper.StateFailed || len(attempts) != mapper.DefaultUpdateAttempts {
			t.Errorf("%d attempts, %+v", len(attempts), s)
		}
		clear(attempts)
		job := w.engine.Job("j")
		if err := job.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		s, err := job.Wait(t.Context())
		if err != nil || s.State != mapper.StateSucceededWithFailures || s.Processed != 40 || s.Failures != 60 ||
			len(attempts) != mapper.DefaultUpdateAttempts {
			t.Errorf("%d attempts, %+v, %v", len(attempts), s, err)
		}
		if failures, _, err := job.FailuresPage(t.Context(), ""); err != nil || len(failures) != 60 ||
			failures[0].Attempts != mapper.DefaultUpdateAttempts {
			t.Errorf("%d failures, %v", len(failures), err)
		}
	})
}

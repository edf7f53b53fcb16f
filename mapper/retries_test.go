package mapper_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// TestOutage has the service that a Visit calls be away for an hour: the job goes on when it is
// back.
func TestOutage(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		back := time.Now().Add(time.Hour)
		m := mapper.Visit("call", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			time.Sleep(5 * time.Millisecond)
			if time.Now().Before(back) {
				return errors.New("connection refused")
			}
			a.Count("called", 1)
			return nil
		})
		w := newWorld(t, setting{queue: few(10)}, m)
		w.putAccounts(names(5000))
		s := over(w, m, nil)
		if s.State != mapper.StateSucceeded || s.Counters["called"] != 5000 || s.Failures > 0 {
			t.Errorf("the job ended as %q, with %d of 5000, %d failures: %s", s.State, s.Counters["called"], s.Failures,
				s.Error)
		}
		if late := s.Ended.Sub(back); late > 20*time.Minute {
			t.Errorf("it ended %v after the service was back", late)
		}
	})
}

// TestRetries has one entity fail in jobs with retries of their own, of their mapper, and of its
// kind.
func TestRetries(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		visit   bool
		mapper  mapper.RetryPolicy
		job     mapper.RetryPolicy
		want    int
		between []time.Duration // the attempts
	}{
		{name: "of an Update", want: 5, between: []time.Duration{1, 4, 16, 64}},
		{name: "of a Visit", visit: true, want: 10, between: []time.Duration{1, 4, 16, 64, 256, 1024, 1024, 1024,
			1024}},
		{name: "of the mapper", visit: true, mapper: mapper.RetryPolicy{MaxAttempts: 3, MinBackoff: 10 * time.Second,
			MaxBackoff: 15 * time.Second}, want: 3, between: []time.Duration{10, 15}},
		{name: "of the job", mapper: mapper.RetryPolicy{MaxAttempts: 9, MinBackoff: time.Minute},
			job:  mapper.RetryPolicy{MaxAttempts: 2},
			want: 2, between: []time.Duration{60}},
		{name: "no second attempt", job: mapper.RetryPolicy{MaxAttempts: 1}, want: 1},
		{name: "a first wait above the usual maximum", job: mapper.RetryPolicy{MaxAttempts: 3, MinBackoff: time.Hour},
			want:    3,
			between: []time.Duration{3600, 3600}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var tries []time.Time
				fn := func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
					if a.Key.Name != "user-0000003" {
						return nil
					}
					mu.Lock()
					defer mu.Unlock()
					tries = append(tries, time.Now())
					return errors.New("broken")
				}
				m := mapper.Update("broken", fn).WithRetryPolicy(test.mapper)
				if test.visit {
					m = mapper.Visit("broken", fn).WithRetryPolicy(test.mapper)
				}
				w := newWorld(t, setting{}, m)
				w.putAccounts(names(100))
				s := over(w, m, &mapper.StartOptions{Retries: test.job})
				if s.State != mapper.StateSucceededWithFailures || s.Failures != 1 || len(tries) != test.want {
					t.Fatalf("%d attempts, want %d; %+v", len(tries), test.want, s)
				}
				for i, want := range test.between {
					if d := tries[i+1].Sub(tries[i]); d < want*time.Second || d > want*time.Second+5*time.Second {
						t.Errorf("attempt %d came %v after the one before, want %ds", i+2, d, want)
					}
				}
			})
		})
	}
}

// TestBadRetries has retries that make no sense be refused by a job, and by an engine.
func TestBadRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Update("m", func(context.Context, *mapper.Entity[account], mapper.NoParams) error { return nil })
		w := newWorld(t, setting{}, m)
		for want, r := range map[string]mapper.RetryPolicy{
			"MaxAttempts has to be in [1, 100], it is 101":     {MaxAttempts: 101},
			"MaxAttempts has to be in [1, 100], it is -1":      {MaxAttempts: -1},
			"MinBackoff has to be in (0, 168h0m0s], it is -1s": {MinBackoff: -time.Second},
			"MinBackoff, 2s, it is 1s": {MinBackoff: 2 * time.Second,
				MaxBackoff: time.Second},
		} {
			_, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
				&mapper.StartOptions{Retries: r})
			if !errors.Is(err, mapper.ErrInvalidArgument) ||
				!strings.Contains(err.Error(), "StartOptions.Retries."+want) {
				t.Errorf("%+v: %v", r, err)
			}
			bad := mapper.Update("bad", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
				return nil
			}).WithRetryPolicy(r)
			if _, err := mapper.NewEngine(w.client, w.queue,
				&mapper.EngineOptions{Mappers: []mapper.AnyMapper{bad}}); err == nil ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v", r, err)
			}
		}
	})
}

// TestServiceLimit has a Visit call a service that refuses what is above 100 calls a second, and no
// Rate: the errors slow the job, so that it ends, and most of its calls are accepted.
func TestServiceLimit(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit, n = 100.0, 10_000
		var mu sync.Mutex
		tokens, at, calls, refused := limit/10, time.Now(), 0, 0
		m := mapper.Visit("call", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			time.Sleep(5 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			calls++
			tokens, at = min(limit/10, tokens+limit*time.Since(at).Seconds()), time.Now()
			if tokens < 1 {
				refused++
				return errors.New("429 too many requests")
			}
			tokens--
			a.Count("called", 1)
			return nil
		})
		w := newWorld(t, setting{queue: few(10), log: io.Discard}, m)
		w.putAccounts(names(n))
		s := over(w, m, nil)
		takes := s.Ended.Sub(s.Created)
		t.Logf("%d calls, %d refused, %v, %d tasks, %d pages", calls, refused, takes, s.Tasks, s.Pages)
		if s.State != mapper.StateSucceeded || s.Counters["called"] != n {
			t.Errorf("%+v", s)
		}
		if takes > 2*n/limit*time.Second {
			t.Errorf("it took %v, at %v calls a second %v would do", takes, limit, n/limit*time.Second)
		}
		if refused > n/5 {
			t.Errorf("%d of %d calls were refused", refused, calls)
		}
	})
}

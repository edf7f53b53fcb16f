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
		m := mapper.Visit("call", func(_ context.Context, a *mapper.Entity[account], _ mapper.None) error {
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
		if s.State != mapper.Succeeded || s.Counters["called"] != 5000 || s.Failures > 0 {
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
		mapper  mapper.Retries
		job     mapper.Retries
		want    int
		between []time.Duration // the attempts
	}{
		{name: "of an Update", want: 5, between: []time.Duration{1, 4, 16, 64}},
		{name: "of a Visit", visit: true, want: 10, between: []time.Duration{1, 4, 16, 64, 256, 1024, 1024, 1024,
			1024}},
		{name: "of the mapper", visit: true, mapper: mapper.Retries{Attempts: 3, First: 10 * time.Second,
			Max: 15 * time.Second}, want: 3, between: []time.Duration{10, 15}},
		{name: "of the job", mapper: mapper.Retries{Attempts: 9, First: time.Minute}, job: mapper.Retries{Attempts: 2},
			want: 2, between: []time.Duration{60}},
		{name: "no second attempt", job: mapper.Retries{Attempts: 1}, want: 1},
		{name: "a first wait above the usual maximum", job: mapper.Retries{Attempts: 3, First: time.Hour}, want: 3,
			between: []time.Duration{3600, 3600}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var tries []time.Time
				fn := func(_ context.Context, a *mapper.Entity[account], _ mapper.None) error {
					if a.Key.Name != "user-0000003" {
						return nil
					}
					mu.Lock()
					defer mu.Unlock()
					tries = append(tries, time.Now())
					return errors.New("broken")
				}
				m := mapper.Update("broken", fn).Retries(test.mapper)
				if test.visit {
					m = mapper.Visit("broken", fn).Retries(test.mapper)
				}
				w := newWorld(t, setting{}, m)
				w.putAccounts(names(100))
				s := over(w, m, &mapper.StartOptions{Retries: test.job})
				if s.State != mapper.SucceededWithFailures || s.Failures != 1 || len(tries) != test.want {
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
		m := mapper.Update("m", func(context.Context, *mapper.Entity[account], mapper.None) error { return nil })
		w := newWorld(t, setting{}, m)
		for want, r := range map[string]mapper.Retries{
			"Retries.Attempts has to be in [1, 100], it is 101":   {Attempts: 101},
			"Retries.Attempts has to be in [1, 100], it is -1":    {Attempts: -1},
			"Retries.First has to be in (0, 168h0m0s], it is -1s": {First: -time.Second},
			"Retries.Max has to be at least First, 2s, it is 1s":  {First: 2 * time.Second, Max: time.Second},
		} {
			_, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.None{},
				&mapper.StartOptions{Retries: r})
			if !errors.Is(err, mapper.ErrArguments) || !strings.Contains(err.Error(), "StartOptions."+want) {
				t.Errorf("%+v: %v", r, err)
			}
			bad := mapper.Update("bad", func(context.Context, *mapper.Entity[account], mapper.None) error {
				return nil
			}).Retries(r)
			if _, err := mapper.New(w.client, w.queue, &mapper.Options{Mappers: mapper.Set(bad)}); err == nil ||
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
		m := mapper.Visit("call", func(_ context.Context, a *mapper.Entity[account], _ mapper.None) error {
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
		if s.State != mapper.Succeeded || s.Counters["called"] != n {
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

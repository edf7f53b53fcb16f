package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

type thing struct{ Points int64 }

// things puts n entities of the kind Thing, with IDs that are spread over their range.
func things(t *testing.T, c *datastore.Client, n int64) {
	t.Helper()
	for i := int64(0); i < n; i += 500 {
		var keys []*datastore.Key
		for j := i; j < min(n, i+500); j++ {
			keys = append(keys, datastore.IDKey("Thing", 1+j*7919%(1<<40), nil))
		}
		if _, err := c.PutMulti(t.Context(), keys, make([]thing, len(keys))); err != nil {
			t.Fatal(err)
		}
	}
}

// A busyService accepts a limited number of calls a second, and takes some time for each. It
// refuses other calls with an error that says when to try again.
type busyService struct {
	limit func(since time.Duration) int // accepted calls a second; 0: the service is unavailable
	takes time.Duration

	mu                  sync.Mutex
	begun               time.Time
	second              int64
	inSecond            int
	accepted, refused   int
	later, laterRefused int           // calls, and refused calls, after the time settled
	settled             time.Duration // the time from which on calls are counted in later and laterRefused
}

func (s *busyService) call() error {
	now := time.Now()
	s.mu.Lock()
	if s.begun.IsZero() {
		s.begun = now
	}
	if now.Unix() != s.second {
		s.second, s.inSecond = now.Unix(), 0
	}
	s.inSecond++
	over, counts := s.inSecond > s.limit(now.Sub(s.begun)), now.Sub(s.begun) > s.settled
	if over {
		s.refused++
	} else {
		s.accepted++
	}
	if counts {
		s.later++
		if over {
			s.laterRefused++
		}
	}
	s.mu.Unlock()
	if over {
		return mapper.RetryAfter(errors.New("429 Too Many Requests"), time.Second)
	}
	time.Sleep(s.takes)
	return nil
}

// callers returns a mapper whose function calls a service for one in a number of entities. The
// argument one is this number; 1 means every entity.
func callers(s *busyService, update bool, one int64) *mapper.Mapper[mapper.NoParams] {
	if update {
		return mapper.Update("call", func(_ context.Context, e *mapper.Entity[thing], _ mapper.NoParams) error {
			if e.Key.ID%one != 0 {
				return mapper.Skip
			}
			e.Value.Points++
			return s.call()
		})
	}
	return mapper.Visit("call", func(_ context.Context, e *mapper.Entity[thing], _ mapper.NoParams) error {
		if e.Key.ID%one != 0 {
			return nil
		}
		return s.call()
	})
}

// TestBusyService runs a job with 100 workers whose service accepts only 50 calls a second. The job
// must take hardly longer than the service needs, whether all entities need a call or only a few.
func TestBusyService(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	const calls = 3000
	for _, one := range []int64{1, 2, 8} {
		for _, update := range []bool{false, true} {
			if (one == 2 || update != (one == 8)) && testflag.Size(t, 0, 0, 1) == 0 {
				continue
			}
			t.Run(fmt.Sprintf("1 in %d, update %v", one, update), func(t *testing.T) {
				s := &busyService{limit: func(time.Duration) int { return 50 }, takes: 300 * time.Millisecond,
					settled: 20 * time.Second}
				m := callers(s, update, one)
				mappertest.Run(t, []mapper.AnyMapper{m}, &mappertest.Options{Workers: 100},
					func(t *testing.T, w *mappertest.Env) {
						things(t, w.Client, calls*one)
						status := runTo(t, w, m, nil)
						took, ideal := status.Ended.Sub(status.Created), calls/50*time.Second
						t.Logf("%v, ideal %v, %d calls refused, %d of the last %d", took, ideal, s.refused,
							s.laterRefused,
							s.later)
						if status.State != mapper.StateSucceeded || took > ideal*5/3 {
							t.Errorf("%s after %v, want %v", status.State, took, ideal)
						}
						if s.laterRefused*14 > s.later { // 5%, with room for chance
							t.Errorf("%d of the last %d calls were refused", s.laterRefused, s.later)
						}
					})
			})
		}
	}
}

// runTo runs a job over all things to its end.
func runTo(
	t *testing.T, w *mappertest.Env, m *mapper.Mapper[mapper.NoParams], o *mapper.StartOptions,
) *mapper.Status {
	t.Helper()
	j, err := m.Start(t.Context(), w.Engine, mapper.Query{Kind: "Thing"}, mapper.NoParams{}, o)
	if err != nil {
		t.Fatal(err)
	}
	letRun(t.Context(), w.Engine, j)
	status, err := j.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return status
}

// TestServiceAway runs a job whose service is unavailable for an hour (a quarter of an hour in a
// usual run), and then accepts half as many calls. The job must continue without anybody's help.
func TestServiceAway(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	away := time.Duration(testflag.Size(t, 15, 15, 60)) * time.Minute
	for _, update := range []bool{true, false}[:testflag.Size(t, 1, 1, 2)] {
		t.Run(fmt.Sprintf("update %v", update), func(t *testing.T) {
			s := &busyService{takes: 100 * time.Millisecond, limit: func(since time.Duration) int {
				switch {
				case since < 20*time.Second:
					return 50
				case since < away:
					return 0
				}
				return 25
			}}
			m := callers(s, update, 2)
			mappertest.Run(t, []mapper.AnyMapper{m}, &mappertest.Options{Workers: 50},
				func(t *testing.T, w *mappertest.Env) {
					things(t, w.Client, 4000)
					status := runTo(t, w, m, nil)
					took := status.Ended.Sub(status.Created)
					t.Logf("%v, %d calls accepted, %d refused", took, s.accepted, s.refused)
					if status.State != mapper.StateSucceeded || status.Processed != 4000 ||
						took > away+5*time.Minute {
						t.Errorf("%s after %v: %+v", status.State, took, status)
					}
				})
		})
	}
}

// TestServiceNeverReady runs functions that always ask for a later retry, for one entity or for
// all. The job must end, with failures.
func TestServiceNeverReady(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for _, all := range []bool{false, true} {
		t.Run(fmt.Sprintf("all %v", all), func(t *testing.T) {
			m := mapper.Visit("call", func(_ context.Context, e *mapper.Entity[thing], _ mapper.NoParams) error {
				if all || e.Key.ID == 1+7919*7 {
					return mapper.RetryAfter(errors.New("503"), time.Second)
				}
				return nil
			})
			mappertest.Run(t, []mapper.AnyMapper{m}, &mappertest.Options{Workers: 4},
				func(t *testing.T, w *mappertest.Env) {
					n := int64(3)
					if !all {
						n = int64(testflag.Size(t, 100, 100, 1000))
					}
					things(t, w.Client, n)
					status := runTo(t, w, m, &mapper.StartOptions{FailureLimit: mapper.Unlimited, FailureShare: 1})
					failed := int64(1)
					if all {
						failed = n
					}
					if status.State != mapper.StateSucceededWithFailures || status.Failures != failed {
						t.Errorf("%s, %d failures, want %d; it took %v", status.State, status.Failures, failed,
							status.Ended.Sub(status.Created))
					}
				})
		})
	}
}

// TestRateHolds checks that jobs keep to their rate, for any number of tasks that the queue
// delivers at once, and any ExpectedWorkers.
func TestRateHolds(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	for _, c := range []struct {
		queue, expected int
		rate            mapper.Rate
		entities        int64
		each            float64 // seconds for each entity at this rate
	}{
		{20, 0, mapper.Rate{EntitiesPerSecond: 2000}, 20_000, 1. / 2000},
		{20, 0, mapper.Rate{EntitiesPerSecond: 500}, 20_000, 1. / 500},
		{100, 20, mapper.Rate{EntitiesPerSecond: 2000}, 20_000, 1. / 2000},
		{1000, 0, mapper.Rate{EntitiesPerSecond: 2000}, 20_000, 1. / 2000},
		{1000, 20, mapper.Rate{EntitiesPerSecond: 500}, 20_000, 1. / 500},
		{10, 0, mapper.Rate{EntitiesPerSecond: 3}, 300, 1. / 3},
		{1, 0, mapper.Rate{EntitiesPerSecond: 100}, 3000, 1. / 100},
	} {
		t.Run(fmt.Sprintf("%+v, queue of %d, %d expected", c.rate, c.queue, c.expected), func(t *testing.T) {
			var mu sync.Mutex
			var times []time.Time
			m := mapper.Visit("look", func(context.Context, *mapper.Entity[thing], mapper.NoParams) error {
				mu.Lock()
				defer mu.Unlock()
				times = append(times, time.Now())
				return nil
			})
			mappertest.Run(t, []mapper.AnyMapper{m}, &mappertest.Options{Workers: c.queue},
				func(t *testing.T, w *mappertest.Env) {
					things(t, w.Client, c.entities)
					status := runTo(t, w, m, &mapper.StartOptions{ExpectedWorkers: c.expected, Rate: c.rate})
					took, ideal := status.Ended.Sub(status.Created).Seconds(), float64(c.entities)*c.each
					if took > 1.05*ideal+2 || took < 0.95*ideal-1 {
						t.Errorf("%.1f s, want %.1f", took, ideal)
					}
					// From the first second on, the number of entities must fit the rate, within 5%
					// and one second's entities.
					for i, at := range times {
						since := at.Sub(status.Created).Seconds()
						if most := (1.05*since+1)/c.each + 1; float64(i) > most {
							t.Fatalf("%d entities after %.2f s, want %.0f at most", i, since, most)
						}
						if least := (0.95*since - 2) / c.each; float64(i) < least {
							t.Fatalf("%d entities after %.2f s, want %.0f at least", i, since, least)
						}
					}
				})
		})
	}
}

// TestWaitReturnsAtOnce checks that Wait returns as soon as the job ends, if the job ends in the
// same process.
func TestWaitReturnsAtOnce(t *testing.T) {
	t.Parallel()
	m := mapper.Visit("look", func(context.Context, *mapper.Entity[thing], mapper.NoParams) error {
		time.Sleep(time.Second)
		return nil
	})
	mappertest.Run(t, []mapper.AnyMapper{m}, &mappertest.Options{Workers: 1}, func(t *testing.T, w *mappertest.Env) {
		things(t, w.Client, 30)
		job, err := m.Start(t.Context(), w.Engine, mapper.Query{Kind: "Thing"}, mapper.NoParams{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		status, err := job.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if late := time.Since(status.Ended); late > 10*time.Millisecond {
			t.Errorf("Wait returned %v after the end", late)
		}
	})
}

// TestRateHoldsAmongProcesses lets 30 processes share the rate of a job. Calls of the database take
// some time, and transactions conflict.
func TestRateHoldsAmongProcesses(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n, rate = 20_000, 500
		m := mapper.Visit("look", func(context.Context, *mapper.Entity[account], mapper.NoParams) error { return nil })
		injected := faults.New(1, faults.Rule{Kind: faults.SlowCall,
			Latency: faults.Exponential{Mean: 20 * time.Millisecond}})
		var log strings.Builder
		w := newWorld(t, setting{queue: few(120), emulator: emulator.Options{Faults: injected}, log: &log}, m)
		newFleet(w, 1, 30, m)
		w.putAccounts(names(n))
		s := over(w, m, &mapper.StartOptions{Rate: mapper.Rate{EntitiesPerSecond: rate}})
		took, ideal := s.Ended.Sub(s.Created).Seconds(), float64(n)/rate
		t.Logf("%.1f s, ideal %.1f, %d tasks, %d pages", took, ideal, s.Tasks, s.Pages)
		if s.State != mapper.StateSucceeded || took > 1.05*ideal+2 || took < 0.95*ideal-1 {
			t.Errorf("%s after %.1f s, want %.1f", s.State, took, ideal)
		}
		if failed := strings.Count(log.String(), "reserve the rate"); failed > 0 {
			t.Errorf("%d deliveries failed as they reserved the rate", failed)
		}
	})
}

// TestOneLater uses a service that refuses the first entity of each page once, before it has
// accepted any call. The page's other entities must not wait for that one, and it must have no
// failed attempt.
func TestOneLater(t *testing.T) {
	t.Parallel()
	for _, update := range []bool{false, true} {
		var mu sync.Mutex
		var begun, last time.Time
		tried := false
		fn := func(_ context.Context, e *mapper.Entity[thing], _ mapper.NoParams) error {
			mu.Lock()
			defer mu.Unlock()
			time.Sleep(10 * time.Millisecond)
			if e.Key.ID == 1 && !tried {
				tried, begun = true, time.Now()
				return mapper.RetryAfter(errors.New("429"), 5*time.Minute)
			}
			if e.Key.ID != 1 {
				last = time.Now()
			}
			return nil
		}
		m := mapper.Visit("call", fn)
		if update {
			m = mapper.Update("call", fn)
		}
		m.WithRetryPolicy(mapper.RetryPolicy{MaxAttempts: 1})
		mappertest.Run(t, []mapper.AnyMapper{m}, &mappertest.Options{Workers: 1},
			func(t *testing.T, w *mappertest.Env) {
				things(t, w.Client, 200)
				status := runTo(t, w, m, nil)
				if took := last.Sub(begun); status.State != mapper.StateSucceeded || took > 10*time.Second {
					t.Errorf("%s; the others took %v", status.State, took)
				}
				if took := status.Ended.Sub(begun); took < 5*time.Minute || took > 10*time.Minute {
					t.Errorf("it took %v", took)
				}
			})
	}
}

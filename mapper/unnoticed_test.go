package mapper_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/mapper"
	kept "github.com/scattermap/scattermap/mapper/internal/record"
)

// TestNoFailureUnnoticed waits for jobs as a program does that looks at errors only: it learns of
// each job that has not done all of its work, and of no other one. What a client reads of the
// status in JSON says the same.
func TestNoFailureUnnoticed(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, s *mapper.Status, want ...string) {
		t.Helper()
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		sent := new(mapper.Status)
		if err := json.Unmarshal(text, sent); err != nil {
			t.Fatal(err)
		}
		for _, s := range []*mapper.Status{s, sent} {
			err := s.Err()
			if (err != nil) != (len(want) > 0) {
				t.Errorf("a job that is %q: %v", s.State, err)
			}
			for _, part := range want {
				if err != nil && !strings.Contains(err.Error(), part) {
					t.Errorf("a job that is %q: %v, want %q", s.State, err, part)
				}
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: few(4)}, slowCredit, addCredit, failing77)
		w.putAccounts(names(500))
		start := func(m, id string, limit int) *mapper.Job {
			job, err := w.engine.StartByName(t.Context(), m, mapper.Query{Kind: "Account"}, json.RawMessage(`{}`),
				&mapper.StartOptions{ID: id, PageSize: 50, FailureLimit: limit})
			if err != nil {
				t.Fatal(err)
			}
			return job
		}
		wait := func(job *mapper.Job) *mapper.Status {
			s, err := job.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		check(t, wait(start(addCredit.Name(), "good", 0)))
		check(t, wait(start(failing77.Name(), "failures", 0)), "job failures", "5 of its entities", "Job.Retry")
		limited := start(failing77.Name(), "limited", 1)
		s := wait(limited)
		if s.State != mapper.StatePaused || !s.Limited {
			t.Errorf("a job that its limit has paused: %+v", s)
		}
		check(t, s, "job limited", "paused by a limit", s.Error)

		slow := start(slowCredit.Name(), "slow", 0)
		check(t, w.status(slow))
		time.Sleep(100 * time.Millisecond)
		if err := slow.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s := w.status(slow); s.State != mapper.StatePaused || s.Limited {
			t.Errorf("a job that somebody has paused: %+v", s)
		}
		check(t, w.status(slow))
		if err := slow.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		check(t, wait(slow), "job slow", "aborted")
	})
	check(t, &mapper.Status{ID: "j", State: mapper.StateFailed, Error: "no attempts are left"}, "job j",
		"no attempts are left")
}

// TestNoProblemUnnoticed has a proof with and without problems say so to who looks at errors only.
func TestNoProblemUnnoticed(t *testing.T) {
	t.Parallel()
	if err := (&mapper.Proof{Ranges: 3, Differences: []string{"other entities"}}).Err(); err != nil {
		t.Errorf("a proof without problems: %v", err)
	}
	err := (&mapper.Proof{Problems: []string{"a gap", "an overlap", "a loss"}}).Err()
	if err == nil || !strings.Contains(err.Error(), "a gap") || !strings.Contains(err.Error(), "2") {
		t.Errorf("a proof with problems: %v", err)
	}
}

// TestPrices tells an engine other prices than those of nam5: a plan, a budget, and what a job and
// the list of jobs say that it has cost, are by these.
func TestPrices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := newWorld(t, setting{}, addCredit), t.Context()
		w.putAccounts(names(500))
		prices := billing.Prices{ReadsPer100K: 1000, WritesPer100K: 2000, TaskOpsPerMillion: 3000}
		dear, err := mapper.NewEngine(w.client, w.queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{addCredit},
			Prices: prices})
		if err != nil {
			t.Fatal(err)
		}
		q := mapper.Query{Kind: "Account"}
		plan, err := addCredit.Plan(ctx, dear, q, nil)
		if err != nil || plan.Dollars != prices.Dollars(plan.Usage) || dear.Prices() != prices ||
			w.engine.Prices() != billing.NAM5 {
			t.Errorf("a plan %+v, %v", plan, err)
		}
		// A budget that is enough for all at the prices of nam5.
		_, err = addCredit.Start(ctx, dear, q, credit{1}, &mapper.StartOptions{Budget: mapper.Budget{Dollars: 1}})
		if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), "Budget") {
			t.Errorf("a start with a budget for no page: %v", err)
		}
		job := w.start(1, &mapper.StartOptions{ID: "j", Budget: mapper.Budget{Dollars: 1}})
		cheap, other := w.wait(job), w.status(dear.Job("j"))
		jobs, _, err := dear.JobsPage(ctx, nil, "")
		if err != nil || cheap.Dollars <= 0 || cheap.Dollars > 0.1 || other.Dollars < 5 ||
			jobs[0].Dollars != other.Dollars {
			t.Errorf("the job costs $%v and $%v, and in the list %+v, %v", cheap.Dollars, other.Dollars, jobs, err)
		}
		for _, price := range []float64{-1, math.NaN(), math.Inf(1)} {
			_, err := mapper.NewEngine(w.client, w.queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{addCredit},
				Prices: billing.Prices{ReadsPer100K: 1, SmallOpsPer100K: price}})
			if !errors.Is(err, mapper.ErrInvalidArgument) {
				t.Errorf("a price of %v: %v", price, err)
			}
		}
	})
}

// TestDocumentedNumbers compares the numbers that the documentation shows with those that the
// records count by.
func TestDocumentedNumbers(t *testing.T) {
	t.Parallel()
	if mapper.DefaultVisitAttempts != kept.VisitAttempts || mapper.MaxDeaths != kept.MaxDeaths {
		t.Errorf("%d attempts and %d deaths are documented, and it is %d and %d", mapper.DefaultVisitAttempts,
			mapper.MaxDeaths,
			kept.VisitAttempts, kept.MaxDeaths)
	}
}

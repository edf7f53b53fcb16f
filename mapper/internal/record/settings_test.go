package record

import (
	"strings"
	"testing"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// TestDamagedSettings checks that, if a part of a job's record can't be decoded, the error names
// this part.
func TestDamagedSettings(t *testing.T) {
	bad := []byte("{")
	j := &Job{ID: "j", Budget: bad, Rate: bad, Splitting: bad, History: bad, Totals: bad}
	_, budget := j.BudgetLimit()
	_, rate := j.RateLimit()
	_, strategy := j.Strategy()
	_, history := j.History.Acts()
	_, totals := j.RecordedTotals()
	_, examples := ExamplesOf([]*Range{{Examples: bad}})
	for what, err := range map[string]error{
		"budget": budget, "rate": rate, "splitting": strategy, "history": history, "totals": totals,
		"examples": examples,
	} {
		if err == nil {
			t.Errorf("the %s can be read", what)
		}
	}
}

// TestSpend checks that no more than the budget is reserved. The job must be paused only if its
// next page needs more than remains.
func TestSpend(t *testing.T) {
	for _, test := range []struct {
		state      JobState
		spent      float64
		need, want float64
		got        float64
		pauses     bool
	}{
		{Running, 0, 0.25, 0.25, 0.25, false},
		{Running, 0, 0.01, 1, 0.9375 / 8, false},       // an eighth of what remains after the job's other cost
		{Running, 0.75, 0.25, 0.25, 0.25, false},       // exactly what remains
		{Running, 0.75, 0.375, 0.375, 0, true},         // more than what remains
		{Running, 0, 0.9375, 0.9375, 0.9375, false},    // all except the job's other cost
		{Running, 0, 0.953125, 0.953125, 0, true},      // more than remains after the job's other cost
		{Paused, 0.75, 0.25, 0.25, 0, false},           // the job does not run
		{Paused, 0.75, 0.375, 0.375, 0, false},         // the job does not run, so it is not paused again
		{Running, 0.5, 0.03125, 0.0625, 0.0625, false}, // as much as wanted
	} {
		j := &Job{State: test.state, Spent: test.spent}
		if got := j.Spend(0.0625, test.need, test.want); got != test.got {
			t.Errorf("%+v: it takes %v", test, got)
		}
		before := test.spent
		if before == 0 && test.got > 0 {
			before = 0.0625
		}
		if j.Spent != before+test.got {
			t.Errorf("%+v: %v is spent", test, j.Spent)
		}
		j = &Job{State: test.state, Spent: test.spent}
		changed := j.PauseByBudget(0.0625, test.need, Budget{Dollars: 1})
		if changed != test.pauses || changed != j.OverBudget || changed && j.State != Paused {
			t.Errorf("%+v: it is %s, %v", test, j.State, changed)
		}
	}
}

// TestSettings checks that a job has the settings in its record, and the defaults for missing ones.
func TestSettings(t *testing.T) {
	j := &Job{}
	budget, err1 := j.BudgetLimit()
	rate, err2 := j.RateLimit()
	strategy, err3 := j.Strategy()
	if budget != (Budget{}) || rate != (pace.Limit{}) || strategy != (split.Strategy{}) || err1 != nil || err2 != nil ||
		err3 != nil {
		t.Errorf("the defaults: %+v, %+v, %+v, %v, %v, %v", budget, rate, strategy, err1, err2, err3)
	}
	j = &Job{Budget: []byte(`{"dollars":2}`), Rate: []byte(`{"writes":3}`), Splitting: []byte(`{"first":4}`)}
	budget, err1 = j.BudgetLimit()
	rate, err2 = j.RateLimit()
	strategy, err3 = j.Strategy()
	if budget.Dollars != 2 || rate.WritesPerSecond != 3 || strategy.First != 4 ||
		err1 != nil || err2 != nil || err3 != nil {
		t.Errorf("%+v, %+v, %+v, %v, %v, %v", budget, rate, strategy, err1, err2, err3)
	}
}

// TestGiveBack checks that a reservation returns only to the budget from which it was taken, and
// only while the job may still use it.
func TestGiveBack(t *testing.T) {
	for _, test := range []struct {
		state     JobState
		allowance int64
		share     float64
		want      float64
		changed   bool
	}{
		{Running, 2, 0.25, 0.5, true},
		{Paused, 2, 0.25, 0.5, true},
		{Failed, 2, 0.25, 0.5, true}, // a failed job may be resumed
		{Running, 2, 0.875, 0, true},
		{Running, 1, 0.25, 0.75, false}, // a reservation of an earlier budget
		{Running, 3, 0.25, 0.75, false},
		{Succeeded, 2, 0.25, 0.75, false},
		{Aborted, 2, 0.25, 0.75, false},
	} {
		j := &Job{State: test.state, Allowance: 2, Spent: 0.75}
		if changed := j.GiveBack(test.allowance, test.share); changed != test.changed || j.Spent != test.want {
			t.Errorf("%+v: changed %v, %v is spent", test, changed, j.Spent)
		}
	}
}

// TestSetBudget checks that a new budget is available as a whole. If a process has reserved a part
// of the old budget, it gives nothing back.
func TestSetBudget(t *testing.T) {
	j := &Job{State: Running, Spent: 0.9, Allowance: 2}
	j.SetBudget([]byte(`{"dollars":1}`))
	if string(j.Budget) != `{"dollars":1}` || j.Spent != 0 || j.GiveBack(2, 0.1) {
		t.Errorf("%+v", j)
	}
}

// TestBudgetTexts checks the texts of budgets, and of shares of them.
func TestBudgetTexts(t *testing.T) {
	for _, test := range []struct {
		b             Budget
		text, quarter string
	}{
		{Budget{Dollars: 1.5}, "$1.5", "$0.3750"},
		{Budget{Dollars: 1e-5}, "$0.00001", "$0.0000"},
		{Budget{Operations: 1000}, "1000 operations", "250 operations"},
		{Budget{Dollars: 1.5, Operations: 1000}, "$1.5 and 1000 operations", "25.00%"},
	} {
		j := &Job{State: Running, Spent: 0.9}
		if !j.PauseByBudget(0, 0.25, test.b) || !strings.HasPrefix(j.Error, PausedByBudget+" of "+test.text+": ") ||
			!strings.Contains(j.Error, "may cost up to "+test.quarter+",") {
			t.Errorf("%+v: %s", test.b, j.Error)
		}
	}
}

// TestSetRate checks that a job returns to its previous rate after a temporary rate.
func TestSetRate(t *testing.T) {
	j := &Job{Rate: []byte("a")}
	is := func(when, rate, then string, until time.Time) {
		t.Helper()
		if string(j.Rate) != rate || string(j.RateThen) != then || !j.RateUntil.Equal(until) {
			t.Errorf("%s: %s until %v, then %s", when, j.Rate, j.RateUntil, j.RateThen)
		}
	}
	if RateEnds(j, rounded) || j.EndRate(rounded) {
		t.Error("a rate without an end ends")
	}
	j.SetRate([]byte("b"), rounded)
	is("for some time", "b", "a", rounded)
	j.SetRate([]byte("c"), rounded.Add(time.Hour))
	is("for some time instead", "c", "a", rounded.Add(time.Hour))
	if early := rounded.Add(time.Hour - 1); RateEnds(j, early) || j.EndRate(early) {
		t.Error("it ends early")
	}
	is("before the end", "c", "a", rounded.Add(time.Hour))
	if at := rounded.Add(time.Hour); !RateEnds(j, at) || !j.EndRate(at) || j.EndRate(at) {
		t.Error("it does not end, or twice")
	}
	is("after the end", "a", "", time.Time{})
	j.SetRate([]byte("d"), time.Time{})
	is("for good", "d", "", time.Time{})
	j.SetRate([]byte("e"), rounded)
	j.SetRate([]byte("f"), time.Time{})
	is("for good, while another one is for some time", "f", "", time.Time{})
}

package record

import "testing"

// TestDamagedSettings checks that the error names the part of a job's record that can't be read.
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

// TestSpend checks that no more than the budget is reserved, and that the job is paused only if
// less remains than its next page needs.
func TestSpend(t *testing.T) {
	for _, test := range []struct {
		state      JobState
		spent      float64
		need, want float64
		got        float64
		pauses     bool
	}{
		{Running, 0, 0.25, 0.25, 0.25, false},
		{Running, 0, 0.01, 1, 0.9375 / 8, false},       // an eighth of the rest, after the cost around the pages
		{Running, 0.75, 0.25, 0.25, 0.25, false},       // all that remains
		{Running, 0.75, 0.375, 0.375, 0, true},         // more than that
		{Running, 0, 0.9375, 0.9375, 0.9375, false},    // all but the cost around the pages
		{Running, 0, 0.953125, 0.953125, 0, true},      // that cost, too
		{Paused, 0.75, 0.25, 0.25, 0, false},           // it does not run
		{Paused, 0.75, 0.375, 0.375, 0, false},         // and is not paused again
		{Running, 0.5, 0.03125, 0.0625, 0.0625, false}, // as much as is wanted
	} {
		j := &Job{State: test.state, Spent: test.spent}
		if got := j.Spend(0.0625, test.need, test.want); got != test.got {
			t.Errorf("%+v: it takes %v", test, got)
		}
		j = &Job{State: test.state, Spent: test.spent}
		changed := j.PauseByBudget(0.0625, test.need, Budget{Dollars: 1})
		if changed != test.pauses || changed != j.Poor || changed && j.State != Paused {
			t.Errorf("%+v: it is %s, %v", test, j.State, changed)
		}
	}
}

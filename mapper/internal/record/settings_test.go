package record

import "testing"

// TestDamagedSettings says which part of a job's record can't be read.
func TestDamagedSettings(t *testing.T) {
	bad := []byte("{")
	j := &Job{ID: "j", Budget: bad, Rate: bad, Splitting: bad, History: bad, Totals: bad}
	_, budget := BudgetOf(j)
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

// TestSpend takes no more out of a budget than there is, and pauses the job only if there is less
// than it needs.
func TestSpend(t *testing.T) {
	for _, test := range []struct {
		state      JobState
		spent      float64
		need, want float64
		got        float64
		pauses     bool
	}{
		{Running, 0, 0.25, 0.25, 0.25, false},
		{Running, 0, 0.01, 1, 0.9375 / 8, false},       // an eighth of what is left besides what is around
		{Running, 0.75, 0.25, 0.25, 0.25, false},       // all that is left
		{Running, 0.75, 0.375, 0.375, 0, true},         // more than that
		{Running, 0, 0.9375, 0.9375, 0.9375, false},    // all but what is around
		{Running, 0, 0.953125, 0.953125, 0, true},      // that, too
		{Paused, 0.75, 0.25, 0.25, 0, false},           // it does not run
		{Paused, 0.75, 0.375, 0.375, 0, false},         // nor would it be paused again
		{Running, 0.5, 0.03125, 0.0625, 0.0625, false}, // what is wanted
	} {
		j := &Job{State: test.state, Spent: test.spent}
		if got := Spend(j, 0.0625, test.need, test.want); got != test.got {
			t.Errorf("%+v: it takes %v", test, got)
		}
		j = &Job{State: test.state, Spent: test.spent}
		changed := PauseByBudget(j, 0.0625, test.need, Budget{Dollars: 1})
		if changed != test.pauses || changed != j.Poor || changed && j.State != Paused {
			t.Errorf("%+v: it is %s, %v", test, j.State, changed)
		}
	}
}

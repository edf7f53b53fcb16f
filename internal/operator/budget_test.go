package operator

import (
	"testing"

	"github.com/scattermap/scattermap/mapper"
)

// TestBudgetOf checks that amounts are written without an exponent.
func TestBudgetOf(t *testing.T) {
	t.Parallel()
	for want, b := range map[string]mapper.Budget{
		"": {}, "$0.00001": {Dollars: 1e-5}, "$2.5 and 1 operation": {Dollars: 2.5, Operations: 1},
		"$12000000 and 2,000 operations": {Dollars: 12e6, Operations: 2000},
	} {
		if got := BudgetOf(b); got != want {
			t.Errorf("%+v is %q, want %q", b, got, want)
		}
	}
}

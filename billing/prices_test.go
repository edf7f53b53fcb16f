package billing_test

import (
	"fmt"

	"github.com/scattermap/scattermap/billing"
)

// ExamplePrices_Dollars prices a job over ten million entities that reads each of
// them once, writes it, and has a task for each page of 500.
func ExamplePrices_Dollars() {
	job := billing.Usage{Reads: 10_000_000, Writes: 10_000_000, TaskOps: 2 * 20_000}
	fmt.Printf("in nam5: %.2f dollars\n", billing.NAM5.Dollars(job))

	agreed := billing.NAM5
	agreed.ReadsPer100K, agreed.WritesPer100K = 0.03, 0.09
	fmt.Printf("at other prices: %.2f dollars\n", agreed.Dollars(job))
	// Output:
	// in nam5: 24.02 dollars
	// at other prices: 12.02 dollars
}

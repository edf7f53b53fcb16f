// Package bank is the mapper that the examples run.
package bank

import (
	"context"

	"github.com/scattermap/scattermap/mapper"
)

// Account is what the mapper knows of an account. What else the entities have
// stays as it is.
type Account struct {
	Balance int64
}

// Credit is the job's parameters.
type Credit struct {
	Amount int64
}

// AddCredit adds an amount to the balance of an account.
var AddCredit = mapper.Update("add-credit", func(_ context.Context, a *mapper.Entity[Account], p Credit) error {
	a.Value.Balance += p.Amount
	a.Count("credited", 1)
	return nil
})

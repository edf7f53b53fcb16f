// Package bank has the mapper that the examples run.
package bank

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/scattermap/scattermap/mapper"
)

// Account has the properties of an account that the mapper uses. All others stay unchanged.
type Account struct {
	Balance int64
}

// Credit has the parameters of the job.
type Credit struct {
	Amount int64
}

// AddCredit adds an amount to the balance of an account.
var AddCredit = mapper.Update("add-credit", func(_ context.Context, a *mapper.Entity[Account], p Credit) error {
	if err := note(a.Key.Encode()); err != nil {
		return err
	}
	a.Value.Balance += p.Amount
	a.Count("credited", 1)
	return nil
})

// CallsVariable is an environment variable. It names a file in which each process notes the keys of
// AddCredit's calls, so that a test can count them. Without it nothing is noted.
const CallsVariable = "BANK_CALLS"

var callsFile = sync.OnceValues(func() (*os.File, error) {
	name := os.Getenv(CallsVariable)
	if name == "" {
		return nil, nil
	}
	return os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
})

// note appends a line to the file of calls at once, as the process may be killed right after it.
func note(key string) error {
	file, err := callsFile()
	if err != nil || file == nil {
		return err
	}
	_, err = fmt.Fprintln(file, key)
	return err
}

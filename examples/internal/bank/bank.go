// Package bank has the mapper that several examples run, and the accounts that it credits.
package bank

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/scattermap/scattermap/mapper"
)

// Account has the properties of an account that the mapper needs. The stored entity has others,
// which stay unchanged.
type Account struct {
	Balance int64
}

// Credit has the parameters of AddCredit.
type Credit struct {
	Amount int64
}

// AddCredit is a mapper that adds an amount to the balance of each account.
var AddCredit = mapper.Update("add-credit", func(_ context.Context, a *mapper.Entity[Account], p Credit) error {
	if err := note(a.Key.Encode()); err != nil {
		return err
	}
	a.Value.Balance += p.Amount
	a.Count("credited", 1)
	return nil
})

// CallsVariable is the name of an environment variable with the name of a file. Each process
// appends a line with the account's key to this file when AddCredit is called, so that a test can
// count the calls. Without the variable nothing is written.
const CallsVariable = "BANK_CALLS"

var callsFile = sync.OnceValues(func() (*os.File, error) {
	name := os.Getenv(CallsVariable)
	if name == "" {
		return nil, nil
	}
	return os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
})

// note appends a line to the file of calls. It does not buffer the line, because the process may be
// killed at once.
func note(key string) error {
	file, err := callsFile()
	if err != nil || file == nil {
		return err
	}
	_, err = fmt.Fprintln(file, key)
	return err
}

package bank

import (
	"context"
	"errors"
	"fmt"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"
	"google.golang.org/api/iterator"
)

// stored is an account with all its properties, as WriteAccounts writes it.
type stored struct {
	Balance int64
	Opening int64 // the balance before the first job
	Owner   string
}

// WriteAccounts writes n accounts, several batches at once. The function key returns the key of
// account i.
func WriteAccounts(ctx context.Context, client *datastore.Client, n int, key func(int) *datastore.Key) error {
	const batch, parallel = 500, 4
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for first := 0; first < n; first += batch {
		group.Go(func() error {
			var keys []*datastore.Key
			var accounts []stored
			for i := first; i < min(first+batch, n); i++ {
				balance := int64(i * 7 % 1000)
				keys = append(keys, key(i))
				accounts = append(accounts, stored{Balance: balance, Opening: balance, Owner: fmt.Sprint("owner ", i)})
			}
			_, err := client.PutMulti(ctx, keys, accounts)
			return err
		})
	}
	return group.Wait()
}

// A Tally has sums over all accounts.
type Tally struct {
	Accounts, Sum int64
	Wrong         int64 // number of accounts whose balance is not the opening balance plus the credit
	Example       *datastore.Key
}

// ReadAccounts reads all accounts, and adds them up. The parameter credited is the amount that each
// account should have been credited; the accounts for which this is not so are counted in
// Tally.Wrong.
func ReadAccounts(ctx context.Context, client *datastore.Client, credited int64) (Tally, error) {
	var t Tally
	it := client.Run(ctx, datastore.NewQuery("Account"))
	for {
		var a stored
		key, err := it.Next(&a)
		if errors.Is(err, iterator.Done) {
			return t, nil
		}
		if err != nil {
			return t, err
		}
		t.Accounts++
		t.Sum += a.Balance
		if a.Balance != a.Opening+credited || a.Owner == "" {
			t.Wrong++
			t.Example = key
		}
	}
}

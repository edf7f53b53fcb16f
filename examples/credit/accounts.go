package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"
	"google.golang.org/api/iterator"
)

// keyings are the ways to key the accounts.
var keyings = []string{"names", "ids", "mixed", "uuid", "ancestors"}

// stored is all that an account has.
type stored struct {
	Balance int64
	Opening int64 // the balance that it was written with
	Owner   string
}

// accountKey returns the key of account i, which is incomplete where Datastore
// chooses the id.
func accountKey(keys string, i int) *datastore.Key {
	name := fmt.Sprintf("user-%07d", i)
	switch {
	case keys == "ids":
		return datastore.IncompleteKey("Account", nil)
	case keys == "mixed" && i < 20: // a few small ids beside a great many names
		return datastore.IDKey("Account", int64(i+1), nil)
	case keys == "uuid":
		var u [16]byte
		rand.Read(u[:])
		u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80 // version 4, RFC 9562
		return datastore.NameKey("Account", fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:]), nil)
	case keys == "ancestors":
		// Regions of very different sizes, customers with a few accounts each.
		region := datastore.NameKey("Region", []string{"asia", "asia", "asia", "europe", "europe", "oceania"}[i%6], nil)
		customer := datastore.NameKey("Customer", fmt.Sprintf("c-%06d", i/4), region)
		return datastore.NameKey("Account", name, customer)
	}
	return datastore.NameKey("Account", name, nil)
}

// writeAccounts writes the accounts, some batches at a time.
func writeAccounts(ctx context.Context, client *datastore.Client, c config) error {
	const batch, parallel = 500, 4
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for first := 0; first < c.entities; first += batch {
		group.Go(func() error {
			var keys []*datastore.Key
			var accounts []stored
			for i := first; i < min(first+batch, c.entities); i++ {
				balance := int64(i * 7 % 1000)
				keys = append(keys, accountKey(c.keys, i))
				accounts = append(accounts, stored{Balance: balance, Opening: balance, Owner: fmt.Sprint("owner ", i)})
			}
			_, err := client.PutMulti(ctx, keys, accounts)
			return err
		})
	}
	return group.Wait()
}

// A tally is what reading all accounts says.
type tally struct {
	accounts, sum int64
	wrong         int64 // accounts whose balance is not the opening one and the credit
	example       *datastore.Key
}

// readAccounts reads all accounts, which should have been credited an amount.
func readAccounts(ctx context.Context, client *datastore.Client, credited int64) (tally, error) {
	var t tally
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
		t.accounts++
		t.sum += a.Balance
		if a.Balance != a.Opening+credited || a.Owner == "" {
			t.wrong++
			t.example = key
		}
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"
	"google.golang.org/api/iterator"
)

// A process sends pending orders: all of them, as the old cron does, or as shard i of a battery of n.
//
// A battery has two forms. In one the database filters: each order has the remainder of its key, and a query finds those
// of one shard. Whoever changes n rewrites all of them. In the other the process filters: it reads the keys of all
// pending orders, which cost little, and looks those up that are its own. So n can be changed at any time, but each of n
// processes goes through all keys. A job of package mapper reads each order once, and has no n.
type process struct {
	name   string
	client *datastore.Client
	send   func(ctx context.Context, order *datastore.Key) error
	turn   int64
	i, n   int
	stored bool // filter by the stored remainder
	sent   *atomic.Int64
}

// pageSize is how many orders a process marks as sent at once.
const pageSize = 50

// run sends the orders of the process until none is left, or others have its work.
func (p process) run(ctx context.Context) error {
	err := p.pages(ctx)
	if errors.Is(err, errRelieved) {
		return nil // as it should be
	}
	return err
}

// pages sends orders page by page.
func (p process) pages(ctx context.Context) error {
	q := datastore.NewQuery("Order").FilterField("Status", "=", pending).KeysOnly()
	if p.stored {
		q = q.FilterField("Remainder", "=", p.i)
	}
	var mine []*datastore.Key
	for it := p.client.Run(ctx, q); ; {
		key, err := it.Next(nil)
		if errors.Is(err, iterator.Done) {
			return p.page(ctx, mine)
		}
		if err != nil {
			return err
		}
		if !p.stored && shardOf(key, p.n) != p.i {
			continue
		}
		if mine = append(mine, key); len(mine) == pageSize {
			if err := p.page(ctx, mine); err != nil {
				return err
			}
			mine = nil
		}
	}
}

// page sends orders, and then marks them. If it dies in between, they are sent again, with the same idempotency key.
func (p process) page(ctx context.Context, keys []*datastore.Key) error {
	if len(keys) == 0 {
		return nil
	}
	for _, key := range keys {
		if err := p.send(ctx, key); err != nil {
			return fmt.Errorf("%v: %w", key, err)
		}
	}
	marked := 0
	_, err := p.client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
		var d duty
		if err := tx.Get(dutyKey, &d); err != nil {
			return err
		}
		if d.Turn != p.turn {
			return errRelieved
		}
		orders := make([]Order, len(keys))
		missing := make([]bool, len(keys)) // orders that were cancelled meanwhile
		if err := tx.GetMulti(keys, orders); err != nil {
			var each datastore.MultiError
			if !errors.As(err, &each) {
				return err
			}
			for i, err := range each {
				if missing[i] = errors.Is(err, datastore.ErrNoSuchEntity); err != nil && !missing[i] {
					return err
				}
			}
		}
		var changed []*datastore.Key
		var now []Order
		for i, o := range orders {
			if o.Status == pending && !missing[i] {
				o.Status, o.By = sent, p.name
				changed, now = append(changed, keys[i]), append(now, o)
			}
		}
		marked = len(changed)
		_, err := tx.PutMulti(changed, now)
		return err
	}, datastore.MaxAttempts(50))
	if err == nil && p.sent != nil {
		p.sent.Add(int64(marked))
	}
	return err
}

// battery runs n processes.
func (p process) battery(ctx context.Context, n int) error {
	group, ctx := errgroup.WithContext(ctx)
	for i := range n {
		one := p
		one.i, one.n = i, n
		group.Go(func() error { return one.run(ctx) })
	}
	return group.Wait()
}

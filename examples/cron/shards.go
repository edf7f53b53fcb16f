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

// A process sends pending orders: all of them, like the old cron, or the orders of shard i, as one
// of n processes of a battery.
//
// A battery can select its orders in two ways. In the first one, each order stores the remainder of
// its key's hash, and a query finds the orders of one shard. If n changes, all orders must be
// rewritten. In the second one, each process reads the keys of all pending orders, which is cheap,
// and keeps its own. So n can change at any time, but each of n processes reads all keys. A job of
// package mapper reads each order once, and has no n.
type process struct {
	name   string
	client *datastore.Client
	send   func(ctx context.Context, order *datastore.Key) error
	turn   int64
	i, n   int
	stored bool // whether to select orders by the stored remainder
	sent   *atomic.Int64
}

// pageSize is the number of orders that a process looks up, sends, and marks as sent together. Up
// to this number of orders may be sent although they were cancelled, or another sender has taken
// over, after the look-up.
const pageSize = 50

// run sends the orders of the process until none is pending, or another sender has taken over.
func (p process) run(ctx context.Context) error {
	err := p.pages(ctx)
	if errors.Is(err, errRelieved) {
		return nil // the normal end: another sender has taken over
	}
	return err
}

// pages sends all pending orders, page by page.
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

// page looks up orders, sends those that are still pending, and marks them as sent. If the process
// dies in between, the orders are sent again with the same idempotency key. If it only stands still
// in between, it sends at most one page after another sender has taken over.
func (p process) page(ctx context.Context, keys []*datastore.Key) error {
	if len(keys) == 0 {
		return nil
	}
	var due []*datastore.Key
	_, err := p.client.RunInTransaction(ctx, func(tx *datastore.Transaction) (err error) {
		due, _, err = p.lookUp(tx, keys)
		return err
	}, datastore.MaxAttempts(50)) // Google's Firestore emulator refuses to commit datastore.ReadOnly
	if err != nil || len(due) == 0 {
		return err
	}
	for _, key := range due {
		if err := p.send(ctx, key); err != nil {
			return fmt.Errorf("%v: %w", key, err)
		}
	}
	marked := 0
	_, err = p.client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
		still, orders, err := p.lookUp(tx, due)
		if err != nil {
			return err
		}
		for i := range orders {
			orders[i].Status, orders[i].By = sent, p.name
		}
		marked = len(orders)
		_, err = tx.PutMulti(still, orders)
		return err
	}, datastore.MaxAttempts(50))
	if err == nil && p.sent != nil {
		p.sent.Add(int64(marked))
	}
	return err
}

// lookUp returns the orders that are still pending. Others may have been sent or cancelled since
// their keys were read. It returns errRelieved if another sender has taken over.
func (p process) lookUp(tx *datastore.Transaction, keys []*datastore.Key) ([]*datastore.Key, []Order, error) {
	var due []*datastore.Key
	var orders []Order
	var d duty
	if err := tx.Get(dutyKey, &d); err != nil {
		return nil, nil, err
	}
	if d.Turn != p.turn {
		return nil, nil, errRelieved
	}
	all, errs := make([]Order, len(keys)), make(datastore.MultiError, len(keys))
	if err := tx.GetMulti(keys, all); err != nil && !errors.As(err, &errs) {
		return nil, nil, err
	}
	for i, o := range all {
		switch {
		case errors.Is(errs[i], datastore.ErrNoSuchEntity): // somebody has deleted the order
		case errs[i] != nil:
			return nil, nil, errs[i]
		case o.Status == pending:
			due, orders = append(due, keys[i]), append(orders, o)
		}
	}
	return due, orders, nil
}

// battery runs n processes concurrently.
func (p process) battery(ctx context.Context, n int) error {
	group, ctx := errgroup.WithContext(ctx)
	for i := range n {
		one := p
		one.i, one.n = i, n
		group.Go(func() error { return one.run(ctx) })
	}
	return group.Wait()
}

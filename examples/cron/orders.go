package main

import (
	"context"
	"errors"
	"hash/fnv"
	"slices"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
)

// An Order is an order that must be sent to a warehouse exactly once.
type Order struct {
	Status    string // one of pending, sent and cancelled
	Remainder int    // the remainder of the key's hash, for the present number of processes
	By        string // the name of the sender
}

const (
	pending   = "pending"
	sent      = "sent"
	cancelled = "cancelled"
)

// shardOf returns to which of n processes an order belongs. This is the remainder of a hash of the
// key, so that keys of every form are spread evenly: consecutive numbers, zip codes, UUIDs.
func shardOf(key *datastore.Key, n int) int {
	h := fnv.New64a()
	h.Write([]byte(key.Encode()))
	return int(h.Sum64() % uint64(n))
}

// sendingKey returns the idempotency key for sending an order. It is the same for every sender and
// attempt. mapper.Entity has an idempotency key, too, but that one differs from job to job, and the
// battery does not know it.
func sendingKey(order *datastore.Key) string { return "send/" + order.Encode() }

// addOrders writes the orders whose numbers are at least from, and less than to. The same
// transaction reads the duty. So while remainders are rewritten, new orders already get their
// remainder for the new number of processes.
func addOrders(ctx context.Context, client *datastore.Client, from, to int) error {
	var ids []int64
	for i := from; i < to; i++ {
		ids = append(ids, int64(i+1))
	}
	for some := range slices.Chunk(ids, 200) {
		_, err := client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
			var d duty
			if err := tx.Get(dutyKey, &d); err != nil && !errors.Is(err, datastore.ErrNoSuchEntity) {
				return err
			}
			var keys []*datastore.Key
			var orders []Order
			for _, id := range some {
				key := datastore.IDKey("Order", id, nil)
				keys, orders = append(keys, key),
					append(orders, Order{Status: pending, Remainder: shardOf(key, max(1, d.Shards))})
			}
			_, err := tx.PutMulti(keys, orders)
			return err
		}, datastore.MaxAttempts(50))
		if err != nil {
			return err
		}
	}
	return nil
}

// rewrite is a mapper that changes the stored remainder of each order for another number of
// processes. It writes only orders whose remainder differs.
var rewrite = mapper.Update("rewrite-remainders", func(_ context.Context, o *mapper.Entity[Order], shards int) error {
	o.Value.Remainder = shardOf(o.Key, shards)
	return nil
})

// newSend returns the mapper of a job that sends all pending orders. The job replaces N cron
// processes. Each of them sends the orders with one remainder of the key.
func newSend(send func(ctx context.Context, order *datastore.Key) error) *mapper.Mapper[mapper.NoParams] {
	return mapper.Update("send-orders", func(ctx context.Context, o *mapper.Entity[Order], _ mapper.NoParams) error {
		if err := send(ctx, o.Key); err != nil {
			return err
		}
		o.Value.Status, o.Value.By = sent, "job"
		return nil
	})
}

// pendingOrders is the query for the orders that a job sends.
var pendingOrders = mapper.Query{Kind: "Order", Filters: []mapper.Filter{mapper.Where("Status", "=", pending)}}

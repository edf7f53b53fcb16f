package main

import (
	"context"
	"errors"
	"hash/fnv"
	"slices"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
)

// An Order is sent to the warehouse once.
type Order struct {
	Status    string // pending, sent, or cancelled
	Remainder int    // of its key's hash by the number of shards
	By        string // who has sent it
}

const (
	pending   = "pending"
	sent      = "sent"
	cancelled = "cancelled"
)

// shardOf returns which of n shards a key belongs to: the remainder of a hash, so that keys of
// every form are spread evenly: numbers that follow each other, zip codes, UUIDs.
func shardOf(key *datastore.Key, n int) int {
	h := fnv.New64a()
	h.Write([]byte(key.Encode()))
	return int(h.Sum64() % uint64(n))
}

// sendingKey is the idempotency key of sending an order: the same whoever sends it, and however
// often. That of mapper.Entity would be another one in the next job, and could not be known to the
// processes of the battery.
func sendingKey(order *datastore.Key) string { return "send/" + order.Encode() }

// addOrders writes orders [from, to). The transaction that does reads the duty, so the remainder of
// an order is one by the number of shards that whoever rewrites the others has begun with.
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

// rewrite rewrites the stored remainders for another number of shards. An order whose remainder
// stays is not written.
var rewrite = mapper.Update("rewrite-remainders", func(_ context.Context, o *mapper.Entity[Order], shards int) error {
	o.Value.Remainder = shardOf(o.Key, shards)
	return nil
})

// newSend returns the mapper that sends the pending orders: what takes the place of a battery.
func newSend(send func(ctx context.Context, order *datastore.Key) error) *mapper.Mapper[mapper.NoParams] {
	return mapper.Update("send-orders", func(ctx context.Context, o *mapper.Entity[Order], _ mapper.NoParams) error {
		if err := send(ctx, o.Key); err != nil {
			return err
		}
		o.Value.Status, o.Value.By = sent, "job"
		return nil
	})
}

// pendingOrders are the orders that a job sends.
var pendingOrders = mapper.Query{Kind: "Order", Filters: []mapper.Filter{mapper.Where("Status", "=", pending)}}

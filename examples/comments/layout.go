package main

import (
	"context"
	"errors"
	"fmt"

	"cloud.google.com/go/datastore"
)

// ordersAShard is how many orders in a row are in the same logical shard.
const ordersAShard = 300_000

// shardOf returns in which of some logical shards an order's comments are.
func shardOf(order int64, shards int) int { return int(order / ordersAShard % int64(shards)) }

// kindOf returns the kind of a logical shard, of so many.
func kindOf(shard, shards int) string { return fmt.Sprintf("Comment%d_%02d", shards, shard) }

func kindsOf(shards int) (kinds []string) {
	for i := range shards {
		kinds = append(kinds, kindOf(i, shards))
	}
	return kinds
}

// A Layout says into how many logical shards a database's comments are cut. Whatever writes one reads the layout in the same
// transaction.
type Layout struct {
	Shards int
	Next   int // while they are moved: into how many; otherwise 0
	Moves  int // how often that was begun
}

var layoutKey = datastore.NameKey("Layout", "comments", nil)

// kind returns where an order's comments are written.
func (l Layout) kind(order int64) string {
	n := l.Shards
	if l.Next != 0 {
		n = l.Next
	}
	return kindOf(shardOf(order, n), n)
}

// kinds returns where an order's comments may be, in the order in which a reader has to look: what is moved meanwhile is in the
// second when it is not in the first any more.
func (l Layout) kinds(order int64) []string {
	old := kindOf(shardOf(order, l.Shards), l.Shards)
	if l.Next == 0 {
		return []string{old}
	}
	return []string{old, l.kind(order)}
}

// all returns all kinds, in generations that have to be read one after the other.
func (l Layout) all() [][]string {
	if l.Next == 0 {
		return [][]string{kindsOf(l.Shards)}
	}
	return [][]string{kindsOf(l.Shards), kindsOf(l.Next)}
}

// get reads the layout, which is the first one if nobody has written another.
func (l *Layout) get(read func(*datastore.Key, any) error, first int) error {
	err := read(layoutKey, l)
	if errors.Is(err, datastore.ErrNoSuchEntity) {
		*l, err = Layout{Shards: first}, nil
	}
	if err != nil {
		return fmt.Errorf("read the layout: %w", err)
	}
	return nil
}

// begin has the comments of a database be moved into so many shards, unless they are, or are on their way.
func begin(ctx context.Context, client *datastore.Client, first, next int) (l Layout, err error) {
	_, err = client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
		l = Layout{}
		if err := l.get(tx.Get, first); err != nil {
			return err
		}
		switch {
		case l.Next == 0 && l.Shards == next, l.Next == next:
			return nil
		case l.Next != 0:
			return fmt.Errorf("the comments are on their way into %d shards: they can't be moved into %d before that is done", l.Next, next)
		}
		l.Next = next
		l.Moves++
		_, err := tx.Put(layoutKey, &l)
		return err
	})
	return l, err
}

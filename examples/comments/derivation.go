package main

import (
	"fmt"
	"io"
	"time"
)

// Numbers from which the design of the store follows. New comments go to one of 20 shards for
// 300,000 rows, and then to the next shard. About 100,000 comments come in 3 days, which is how
// long an order is active.
const (
	commentsInLife = 100_000
	orderLife      = 3 * 24 * time.Hour
	shardsInTurn   = 20
	rowsATurn      = 300_000
)

const day = 24 * time.Hour

// A derivation has the results that derive calculates from the constants of this file. A turn is
// the time, or the comments or orders, for which new comments go to the same shard.
type derivation struct {
	Turn  time.Duration `json:"-"` // how long all new comments go to one shard
	Round time.Duration `json:"-"` // how long it takes until all shards have had a turn
	Days  int           `json:"turn_days"`
	// MostRows is the maximum number of shards with comments of one order, if a turn is a number of
	// comments.
	MostRows int `json:"shards_if_comments_are_counted"`
	// Crossing is the share of orders with comments in two shards, if a turn is a number of
	// comments.
	Crossing float64 `json:"orders_in_two"`
	// Shortest and Longest are the numbers of successive orders in one shard, if a turn is a number
	// of orders.
	Shortest int64 `json:"shortest_turn_orders"`
	Longest  int64 `json:"longest_turn_orders"`
}

// turn returns how long it takes until a number of rows has come. During an order's life, whose
// length is the parameter life, the number of rows that come is inLife.
func turn(rows, inLife int64, life time.Duration) time.Duration {
	return time.Duration(float64(life) * float64(rows) / float64(inLife))
}

// mostShards returns an upper bound for the number of shards with comments of one order, if a turn
// takes the given time. It is one more than the number of ends of turns in the order's life.
func mostShards(turn, life time.Duration) int { return 1 + int((life+turn-1)/turn) }

// derive calculates what follows from the numbers, and checks it with the store's function shardOf.
func derive() (derivation, error) {
	d := derivation{Turn: turn(rowsATurn, commentsInLife, orderLife)}
	d.Round = shardsInTurn * d.Turn
	d.Days = int(d.Turn / day)
	d.followComments()
	d.followOrders()
	if most := mostShards(d.Turn, orderLife); d.MostRows != 2 || d.MostRows > most {
		return d, fmt.Errorf("an order's comments are in up to %d shards if comments are counted, want 2", d.MostRows)
	}
	if d.Shortest != rowsATurn || d.Longest != rowsATurn {
		return d, fmt.Errorf("turns of shards have %d to %d orders, want %d", d.Shortest, d.Longest, rowsATurn)
	}
	return d, nil
}

// followComments counts the shards of each order's comments, if new comments go to the next shard
// after a number of comments. It does so for all orders that start while every shard is used twice.
// Each order has a comment every hour of its life.
func (d *derivation) followComments() {
	orders, crossing := 0, 0
	for begun := time.Duration(0); begun < 2*d.Round; begun += time.Hour {
		shards := make(map[int]bool)
		for at := begun; at < begun+orderLife; at += time.Hour {
			row := int64(float64(at) / float64(orderLife) * commentsInLife) // the row that is written at this time
			shards[shardOf(row, shardsInTurn)] = true
		}
		d.MostRows = max(d.MostRows, len(shards))
		orders++
		if len(shards) > 1 {
			crossing++
		}
	}
	d.Crossing = float64(crossing) / float64(orders)
}

// followOrders counts the successive orders in one shard, if new comments go to the next shard
// after a number of orders. The store works like this.
func (d *derivation) followOrders() {
	begun := int64(0)
	for order := int64(1); order <= 2*shardsInTurn*rowsATurn; order++ {
		if shardOf(order, shardsInTurn) == shardOf(order-1, shardsInTurn) {
			continue
		}
		if begun == 0 || order-begun < d.Shortest {
			d.Shortest = order - begun
		}
		d.Longest = max(d.Longest, order-begun)
		begun = order
	}
}

func (d derivation) print(w io.Writer) {
	fmt.Fprintf(w, `%d shards of %d in turn
  100,000 comments in 3 days fill a shard in %d days. It has its next turn
  after %d days. An order lives for 3 days.
  If comments are counted, its comments are in %d shards at most,
  and %.0f%% of the orders have 2.
  If orders are counted, as this program does, each turn has %d orders.
  An order's comments are in one shard then, as its number stays the same.

`, shardsInTurn, rowsATurn, d.Days, d.Round/day, d.MostRows, 100*d.Crossing, d.Longest)
}

package main

import (
	"fmt"
	"io"
	"time"
)

// Numbers from which the design follows: 20 shards take turns of 300,000 rows. About 100,000
// comments come in 3 days, and an order lives for 3 days.
const (
	commentsInLife = 100_000
	orderLife      = 3 * 24 * time.Hour
	shardsInTurn   = 20
	rowsATurn      = 300_000
)

const day = 24 * time.Hour

// A derivation has what follows from these numbers.
type derivation struct {
	Turn  time.Duration `json:"-"` // how long all new comments go to the same shard
	Round time.Duration `json:"-"` // time until the first shard's next turn
	Days  int           `json:"turn_days"`
	// largest number of shards that have comments of one order
	MostRows int `json:"shards_if_comments_are_counted"`
	// share of orders whose comments are in two shards
	Crossing float64 `json:"orders_in_two"`
	// fewest consecutive orders in one shard, if turns count orders
	Shortest int64 `json:"shortest_turn_orders"`
	Longest  int64 `json:"longest_turn_orders"`
}

// turn returns the length of a shard's turn.
func turn(rows, inLife int64, life time.Duration) time.Duration {
	return time.Duration(float64(life) * float64(rows) / float64(inLife))
}

// mostShards returns the largest number of shards that can have comments of one order, for a length
// of turns. It is one more than the number of borders that the order's life can cross.
func mostShards(turn, life time.Duration) int { return 1 + int((life+turn-1)/turn) }

// derive calculates what follows from the numbers, with the store's own rule.
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

// followComments counts the shards that an order's comments are in, if a turn is a number of
// comments. It follows the orders of two rounds, each with a comment every hour of its life.
func (d *derivation) followComments() {
	orders, crossing := 0, 0
	for begun := time.Duration(0); begun < 2*d.Round; begun += time.Hour {
		shards := make(map[int]bool)
		for at := begun; at < begun+orderLife; at += time.Hour {
			row := int64(float64(at) / float64(orderLife) * commentsInLife) // the comment that comes then
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

// followOrders finds how many consecutive orders are in one shard, if a turn is a number of orders,
// as in the store.
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

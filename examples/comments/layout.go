package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"cloud.google.com/go/datastore"
)

// ordersAShard is the number of consecutive orders whose comments are in one logical shard, before
// the next shard's turn.
const ordersAShard = 300_000

// shardOf returns the logical shard of an order's comments, if there is the given number of shards.
func shardOf(order int64, shards int) int { return int(order / ordersAShard % int64(shards)) }

// kindOf returns the kind in which a logical shard is stored, if there is the given number of
// shards.
func kindOf(shard, shards int) string { return fmt.Sprintf("%s%d_%02d", plainKind, shards, shard) }

func kindsOf(shards int) (kinds []string) {
	for i := range shards {
		kinds = append(kinds, kindOf(i, shards))
	}
	return kinds
}

// A Layout has the number of logical shards of a database's comments, and the number of the
// database. It is stored in each database. The first store that is opened writes it, and later ones
// compare it with their arguments. Each read and write of comments also reads the Layout in the
// same transaction.
type Layout struct {
	Shards int
	Next   int   // number of shards to which comments are being moved; 0: no move is under way
	Moves  int   // number of moves that were started
	Before []int // earlier numbers of shards; IDs were drawn for them, too

	Database  int // the number of this database
	Databases int // number of databases; 0: an older version has written the layout without it
}

var layoutKey = datastore.NameKey("Layout", "comments", nil)

// written returns the number of shards that determines where comments are written.
func (l Layout) written() int { return cmp.Or(l.Next, l.Shards) }

// read returns the numbers of shards for which comments may be stored now: before and after a move.
func (l Layout) read() []int {
	if l.Next == 0 {
		return []int{l.Shards}
	}
	return []int{l.Shards, l.Next}
}

// kind returns the kind into which an order's comments are written.
func (l Layout) kind(order int64) string { return kindOf(shardOf(order, l.written()), l.written()) }

// kinds returns the kinds that may have comments of an order now.
func (l Layout) kinds(order int64) (kinds []string) {
	for _, n := range l.read() {
		kinds = append(kinds, kindOf(shardOf(order, n), n))
	}
	return kinds
}

// all returns all kinds of comments in a database. The arguments are its number and the number of
// databases.
func (l Layout) all(database, databases int) (kinds []string) {
	for _, n := range l.read() {
		for shard := database; shard < n; shard += databases {
			kinds = append(kinds, kindOf(shard, n))
		}
	}
	return kinds
}

// places returns the kinds that may have the comment with an ID. As long as the number of shards
// has not changed, this is only the kind of the shard in the ID. After a change from 20 to 32
// shards, a comment of shard 7 is in one of the new shards whose number is 7 modulo gcd(20, 32). If
// the result is empty, the shard in the ID never existed.
func (l Layout) places(id ID) (kinds []string) {
	named := id.Logical()
	for _, n := range l.read() {
		for shard := range n {
			if slices.ContainsFunc(append(l.read(), l.Before...), func(before int) bool {
				return named < before && (shard-named)%gcd(before, n) == 0
			}) {
				kinds = append(kinds, kindOf(shard, n))
			}
		}
	}
	return kinds
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// agree returns an error if the layout in a database differs from the given numbers of shards and
// databases. If write is set, it writes a missing layout.
func agree(ctx context.Context, d *database, shards, databases int, write bool) error {
	ctx = context.WithValue(ctx, direct{}, true)
	return persist(ctx, func() error {
		_, err := d.client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
			var l Layout
			err := tx.Get(layoutKey, &l)
			switch {
			case errors.Is(err, datastore.ErrNoSuchEntity):
				if !write {
					return nil
				}
				l = Layout{Shards: shards}
			case err != nil:
				return fmt.Errorf("read the layout of database %d: %w", d.number, err)
			case !slices.Contains(append(l.read(), l.Before...), shards):
				return fmt.Errorf("the store is opened with %d logical shards, and the comments of database %d are "+
					"in %d: open "+
					"it with %d, and move them with Reshard", shards, d.number, l.Shards, l.Shards)
			case l.Databases != 0 && (l.Databases != databases || l.Database != d.number):
				return fmt.Errorf("the store is opened with %d databases, of which this is number %d, and its "+
					"comments say that "+
					"it is number %d of %d: open the same databases in the same order", databases, d.number, l.Database,
					l.Databases)
			case l.Databases != 0 || !write:
				return nil
			}
			l.Database, l.Databases = d.number, databases
			_, err = tx.Put(layoutKey, &l)
			return err
		})
		return err
	})
}

// persist repeats an action as long as its outcome is unknown, or an error may be temporary.
func persist(ctx context.Context, do func() error) (err error) {
	for attempt := range tries {
		if err = do(); err == nil || !again(err) {
			return err
		}
		if err := pause(ctx, attempt); err != nil {
			return err
		}
	}
	return err
}

// begin records in a database's layout that its comments are being moved to another number of
// shards, the parameter next. If this move is done or under way, nothing changes. If another move
// is under way, it returns an error.
func begin(ctx context.Context, client *datastore.Client, next int) (l Layout, err error) {
	_, err = client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
		l = Layout{}
		err := tx.Get(layoutKey, &l)
		switch {
		case err != nil:
			return fmt.Errorf("read the layout: %w", err)
		case l.Next == 0 && l.Shards == next, l.Next == next:
			return nil
		case l.Next != 0:
			return fmt.Errorf("the comments are on their way into %d shards: they can be moved into %d after that",
				l.Next, next)
		}
		l.Next = next
		l.Moves++
		_, err = tx.Put(layoutKey, &l)
		return err
	})
	return l, err
}

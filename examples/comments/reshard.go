package main

import (
	"context"
	"fmt"
	"slices"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
)

// A Move is a change of the number of logical shards.
type Move struct {
	From   int   `json:"from"`
	To     int   `json:"to"`
	Moves  int   `json:"moves"`  // number of moves so far, including this one
	Before []int `json:"before"` // the numbers of shards before this move

	Database  int `json:"database"`
	Databases int `json:"databases"`
}

// reshard is a mapper that moves comments to their new shards while others write and read them. One
// commit puts a comment into the new shard and deletes it from the old one, so it is always in
// exactly one. Its key keeps its ID. Writers learn the new shard from the layout.
var reshard = mapper.Update("reshard", func(_ context.Context, c *mapper.Entity[Comment], m Move) error {
	c.PutStored(datastore.IDKey(kindOf(shardOf(c.Value.Order, m.To), m.To), c.Key.ID, nil), c.Stored())
	c.Delete(c.Key)
	return nil
}).WithFinalizer(func(_ context.Context, d *mapper.Completion, m Move) error {
	if d.Status.Failures > 0 {
		return nil // a retry sees this state
	}
	d.Put(layoutKey, &Layout{Shards: m.To, Moves: m.Moves, Before: m.Before, Database: m.Database,
		Databases: m.Databases})
	return nil
})

// count is a mapper that counts the comments of each order, over all logical shards.
var count = mapper.Visit("count", func(_ context.Context, c *mapper.Entity[Comment], _ mapper.NoParams) error {
	c.Count("comments", 1)
	c.Count("edits", c.Value.Edits)
	c.CountMax("edits", c.Value.Edits)
	return nil
})

// Reshard moves a database's comments into another number of logical shards, and waits until that
// is done. After an error another process may continue the move. Several processes may run it at
// once.
func (s *Store) Reshard(ctx context.Context, e *mapper.Engine, shards int) error {
	if err := check(shards, len(s.router.databases)); err != nil {
		return err
	}
	var l Layout
	err := persist(ctx, func() (err error) { // when it returns, every later write reads the new layout
		l, err = begin(ctx, e.Client(), shards)
		return err
	})
	if err != nil || l.Next == 0 {
		return err
	}
	before := append(slices.Clone(l.Before), l.Shards)
	slices.Sort(before)
	job, err := reshard.Start(ctx, e, mapper.Query{Kinds: kindsOf(l.Shards)},
		Move{l.Shards, l.Next, l.Moves, slices.Compact(before), l.Database, l.Databases},
		&mapper.StartOptions{ID: fmt.Sprintf("reshard-%d", l.Moves), AllowEmpty: true})
	if err != nil {
		return err
	}
	status, err := job.Wait(ctx)
	if err != nil {
		return err
	}
	return status.Err()
}

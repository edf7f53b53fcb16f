package main

import (
	"context"
	"fmt"
	"slices"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
)

// A Move has the parameters of a job that moves comments to another number of logical shards.
type Move struct {
	From   int   `json:"from"`
	To     int   `json:"to"`
	Moves  int   `json:"moves"`  // number of moves that were started, including this one
	Before []int `json:"before"` // the earlier numbers of shards

	Database  int `json:"database"`  // the number of this database
	Databases int `json:"databases"` // number of databases
}

// reshard is a mapper that moves comments to their new shards while others write and read them. One
// commit puts a comment into its new shard and deletes it from the old one, so it is always in
// exactly one shard. The comment keeps its ID. Writers know the new shard from the layout.
var reshard = mapper.Update("reshard", func(_ context.Context, c *mapper.Entity[Comment], m Move) error {
	c.PutStored(datastore.IDKey(kindOf(shardOf(c.Value.Order, m.To), m.To), c.Key.ID, nil), c.Stored())
	c.Delete(c.Key)
	return nil
}).WithFinalizer(func(_ context.Context, d *mapper.Completion, m Move) error {
	if d.Status.Failures > 0 {
		return nil // the layout is already as after the move, because this is a retry
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

// Reshard moves the comments of a database to another number of logical shards, and waits until
// this is done. After an error, any process may call it again to continue. Several processes may
// call it at the same time.
func (s *Store) Reshard(ctx context.Context, e *mapper.Engine, shards int) error {
	if err := check(shards, len(s.router.databases)); err != nil {
		return err
	}
	var l Layout
	err := persist(ctx, func() (err error) { // after this call, every write reads the new layout
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

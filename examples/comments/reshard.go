package main

import (
	"context"
	"errors"
	"fmt"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
)

// A Move is from how many logical shards into how many.
type Move struct {
	From  int `json:"from"`
	To    int `json:"to"`
	Moves int `json:"moves"` // with this one
}

// reshard moves comments to their new shards, while others insert, edit and read them. A comment is put in the new shard and deleted
// in the old one by the same commit, so it is in one of them at all times. Those who write know by the layout that the new one is right.
var reshard = mapper.Update("reshard", func(_ context.Context, c *mapper.Entity[Comment], m Move) error {
	e := c.Value
	c.Put(datastore.IDKey(kindOf(shardOf(e.Order, m.To), m.To), c.Key.ID, nil), &e)
	c.Delete(c.Key)
	return nil
}).OnDone(func(_ context.Context, d *mapper.Done, m Move) error {
	if d.Status.Failures > 0 {
		return nil // a retry comes here again
	}
	d.Put(layoutKey, &Layout{Shards: m.To, Moves: m.Moves})
	return nil
})

// count counts the comments of each order, over all logical shards.
var count = mapper.Visit("count", func(_ context.Context, c *mapper.Entity[Comment], _ mapper.None) error {
	c.Count("comments", 1)
	c.Count("edits", c.Value.Edits)
	c.Max("edits", c.Value.Edits)
	return nil
})

// Reshard has a database's comments be in so many logical shards, and waits until they are. Somebody else may go on with it after an
// error, or do the same at the same time.
func (s *Store) Reshard(ctx context.Context, e *mapper.Engine, shards int) error {
	if err := s.check(shards); err != nil {
		return err
	}
	l, err := begin(ctx, e.Client(), s.first, shards)
	if err != nil || l.Next == 0 {
		return err
	}
	job, err := reshard.Start(ctx, e, mapper.Query{Kinds: kindsOf(l.Shards)}, Move{l.Shards, l.Next, l.Moves}, &mapper.StartOptions{
		ID: fmt.Sprintf("reshard-%d", l.Moves), AllowEmpty: true})
	if err != nil {
		return err
	}
	status, err := job.Wait(ctx)
	if err != nil {
		return err
	}
	if status.State != mapper.Succeeded {
		return errors.New("job " + job.ID + " is " + string(status.State) + ": " + status.Error)
	}
	return nil
}

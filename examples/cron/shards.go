package main

import (
	"context"
	"errors"
	"hash/fnv"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"
	"google.golang.org/api/iterator"
)

// The fixed form of nightly work: N processes, each of which is shard i of N, and does what hash(key) mod N says is its own. It
// reads keys only, which cost little, and looks up those that it has chosen. All of them go through all keys, so that N can be
// changed at any time; a job of package mapper does not read what is others'.

// shardOf returns which of n shards a key belongs to.
func shardOf(key *datastore.Key, n int) int {
	h := fnv.New64a()
	h.Write([]byte(key.Encode()))
	return int(h.Sum64() % uint64(n))
}

// A shardsResult says how many subscriptions were visited while there were 4 shards, and then while there were 8.
type shardsResult struct {
	By4 int `json:"by_4"`
	By8 int `json:"by_8"`
}

// visitByShards visits all subscriptions for a night. It begins with 4 shards, and goes on with 8 when they have done a third of the
// work, without waiting for them: those that are under way, and those that come, may meet at a subscription, which each of them
// visits only if nobody has for that night.
func visitByShards(ctx context.Context, client *datastore.Client, night time.Time, total int) error {
	var visited atomic.Int64
	enough := make(chan struct{})
	scale := sync.OnceFunc(func() { close(enough) })
	four, stop := context.WithCancel(ctx)
	defer stop()
	group, _ := errgroup.WithContext(ctx)
	for i := range 4 {
		group.Go(func() error {
			err := shard{client, night, i, 4}.run(four, func(n int) {
				if visited.Add(int64(n)) >= int64(total/3) {
					scale()
				}
			})
			if errors.Is(four.Err(), context.Canceled) {
				return nil // it was told to end
			}
			return err
		})
	}
	go func() {
		_ = group.Wait()
		scale()
	}()
	select {
	case <-enough:
	case <-ctx.Done():
		return ctx.Err()
	}
	eight, ctx := errgroup.WithContext(ctx)
	for i := range 8 {
		eight.Go(func() error {
			return shard{client, night, i, 8}.run(ctx, func(int) {})
		})
	}
	time.Sleep(10 * time.Millisecond) // the old ones are under way beside the new ones,
	stop()                            // and are told to end
	return errors.Join(group.Wait(), eight.Wait())
}

// A shard is shard i of n.
type shard struct {
	client *datastore.Client
	night  time.Time
	i, n   int
}

// run visits the subscriptions of the shard, and says how many, page by page.
func (s shard) run(ctx context.Context, visited func(int)) error {
	var mine []*datastore.Key
	for it := s.client.Run(ctx, datastore.NewQuery("Subscription").KeysOnly()); ; {
		key, err := it.Next(nil)
		end := errors.Is(err, iterator.Done)
		if err != nil && !end {
			return err
		}
		if !end && shardOf(key, s.n) == s.i {
			mine = append(mine, key)
		}
		if len(mine) == 100 || end && len(mine) > 0 {
			if err := s.visit(ctx, mine, visited); err != nil {
				return err
			}
			mine = nil
		}
		if end {
			return nil
		}
	}
}

// visit visits those that nobody has visited for the night. They say themselves who has: the answer to a commit may be lost.
func (s shard) visit(ctx context.Context, keys []*datastore.Key, visited func(int)) error {
	done := 0
	_, err := s.client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
		all := make([]Subscription, len(keys))
		if err := tx.GetMulti(keys, all); err != nil {
			return err
		}
		var due []*datastore.Key
		var changed []Subscription
		for i, one := range all {
			if one.Night.Equal(s.night) {
				continue
			}
			one.Night = s.night
			one.Visitors++
			one.Of = int64(s.n)
			due, changed = append(due, keys[i]), append(changed, one)
		}
		done = len(due)
		_, err := tx.PutMulti(slices.Clip(due), changed)
		return err
	}, datastore.MaxAttempts(50))
	if err == nil {
		visited(done)
	}
	return err
}

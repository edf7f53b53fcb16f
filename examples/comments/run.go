package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/examples/internal/cloud"
	"github.com/scattermap/scattermap/mapper"
)

// runProgram writes comments, moves them under load, and checks what is there then.
func runProgram(ctx context.Context, c config, stdout io.Writer) error {
	var clouds []*cloud.Cloud
	var clients []*datastore.Client
	for i := range c.databases {
		on, err := cloud.Start(ctx, cloud.Options{Datastore: c.Datastore, Database: fmt.Sprintf("comments-%d", i), Workers: c.Workers, Mappers: mapper.Set(reshard, count)})
		if err != nil {
			return err
		}
		defer on.Close()
		clouds, clients = append(clouds, on), append(clients, on.Client)
	}
	s, err := NewStore(c.from, clients...)
	if err != nil {
		return err
	}
	l := newLoad(s)
	if err := l.fill(ctx, c.comments); err != nil {
		return fmt.Errorf("write the comments: %w", err)
	}
	r := result{Databases: c.databases, From: c.from, To: c.to}
	moved := make(chan struct{})
	group, loading := errgroup.WithContext(ctx)
	for range c.writers {
		group.Go(func() error { return l.work(loading, moved) })
	}
	group.Go(func() error {
		defer close(moved)
		moves, ctx := errgroup.WithContext(loading)
		for _, on := range clouds {
			moves.Go(func() error { return s.Reshard(ctx, on.Engine, c.to) })
		}
		return moves.Wait()
	})
	if err := group.Wait(); err != nil {
		return err
	}
	r.Inserted, r.Edited, r.Read = l.inserted, l.edited, l.read
	if r.Comments, err = l.check(ctx); err != nil {
		return err
	}
	for i, client := range clients {
		if err := r.look(ctx, client, clouds[i].Engine); err != nil {
			return err
		}
	}
	return r.print(stdout, c.JSON)
}

// look looks at the shards of a database, and has a job go over all of them.
func (r *result) look(ctx context.Context, client *datastore.Client, e *mapper.Engine) error {
	sum := int64(0)
	for _, shards := range []int{r.From, r.To} {
		for _, kind := range kindsOf(shards) {
			keys, err := client.GetAll(ctx, datastore.NewQuery(kind).KeysOnly(), nil)
			if err != nil {
				return err
			}
			if shards == r.From && len(keys) > 0 {
				return fmt.Errorf("%d comments are left in %s", len(keys), kind)
			}
			r.Largest = max(r.Largest, int64(len(keys)))
			sum += int64(len(keys))
		}
	}
	job, err := count.Start(ctx, e, mapper.Query{Kinds: kindsOf(r.To)}, mapper.None{}, &mapper.StartOptions{AllowEmpty: true})
	if err != nil {
		return err
	}
	status, err := job.Wait(ctx)
	if err != nil {
		return err
	}
	if status.State != mapper.Succeeded || status.Counters["comments"] != sum {
		return fmt.Errorf("job %s is %s and counts %d comments, want %d: %s", job.ID, status.State, status.Counters["comments"], sum, status.Error)
	}
	r.MostEdits = max(r.MostEdits, status.Counters["max(edits)"])
	return nil
}

// A load is those who insert, edit and read comments, and what they know of these.
type load struct {
	store *Store

	mu                     sync.Mutex
	orders                 map[int64]map[ID]int64 // edits of each comment that was inserted
	busy                   map[ID]bool            // somebody edits it
	inserted, edited, read int64
	refused                func(error) bool // an error that is no mistake; nil: none is
}

func newLoad(s *Store) *load {
	return &load{store: s, orders: make(map[int64]map[ID]int64), busy: make(map[ID]bool)}
}

// orderOf returns one of a few orders in each of many shards.
func orderOf(n int) int64 { return int64(n)*ordersAShard/4 + int64(n%3) }

// fill writes comments.
func (l *load) fill(ctx context.Context, n int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range n {
		group.Go(func() error { return l.insert(ctx, orderOf(i%400)) })
	}
	err := group.Wait()
	l.inserted = 0
	return err
}

// work inserts, edits and reads comments until they are moved.
func (l *load) work(ctx context.Context, moved <-chan struct{}) error {
	for {
		select {
		case <-moved:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
		order := orderOf(rand.IntN(400))
		var err error
		switch rand.IntN(3) {
		case 0:
			err = l.insert(ctx, order)
		case 1:
			err = l.edit(ctx, order)
		default:
			err = l.readOrder(ctx, order)
		}
		if err != nil && (l.refused == nil || !l.refused(err)) {
			return err
		}
	}
}

func (l *load) insert(ctx context.Context, order int64) error {
	id, err := l.store.Insert(ctx, order, "well done")
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.orders[order] == nil {
		l.orders[order] = make(map[ID]int64)
	}
	if _, there := l.orders[order][id]; there {
		return fmt.Errorf("two comments of order %d have the ID %d", order, id)
	}
	l.orders[order][id] = 0
	l.inserted++
	return nil
}

// choose returns a comment of an order that nobody edits.
func (l *load) choose(order int64) (ID, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.orders[order] {
		if !l.busy[id] {
			l.busy[id] = true
			return id, true
		}
	}
	return 0, false
}

func (l *load) edit(ctx context.Context, order int64) error {
	id, ok := l.choose(order)
	if !ok {
		return nil
	}
	err := l.store.Edit(ctx, order, id, fmt.Sprint("very well done ", rand.IntN(100)))
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil { // nobody knows
		return err
	}
	l.orders[order][id]++
	l.edited++
	delete(l.busy, id)
	return nil
}

// readOrder reads the comments of an order, and checks that none is missing that was there before, and none twice.
func (l *load) readOrder(ctx context.Context, order int64) error {
	l.mu.Lock()
	before := make([]ID, 0, len(l.orders[order]))
	for id := range l.orders[order] {
		before = append(before, id)
	}
	l.mu.Unlock()
	all, err := l.store.ByOrder(ctx, order)
	if err != nil {
		return err
	}
	seen := make(map[ID]bool, len(all))
	for _, c := range all {
		if seen[c.ID] || c.Order != order {
			return fmt.Errorf("comment %d of order %d is read twice, or as one of order %d", c.ID, c.Order, order)
		}
		seen[c.ID] = true
	}
	for _, id := range before {
		if !seen[id] {
			return fmt.Errorf("comment %d of order %d was there, and is not read", id, order)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.read++
	return nil
}

// errDiffers says that the comments are not those that were written.
var errDiffers = errors.New("the comments are not those that were written")

// check reads all comments, by order and as a list, and compares them with what was written.
func (l *load) check(ctx context.Context) (n int64, err error) {
	for order, want := range l.orders {
		all, err := l.store.ByOrder(ctx, order)
		if err != nil {
			return 0, err
		}
		n += int64(len(all))
		if len(all) != len(want) {
			return 0, fmt.Errorf("%w: order %d has %d, want %d", errDiffers, order, len(all), len(want))
		}
		for _, c := range all {
			edits, there := want[c.ID]
			if !there || !l.busy[c.ID] && c.Edits != edits {
				return 0, fmt.Errorf("%w: comment %d of order %d has %d edits, want %d", errDiffers, c.ID, order, c.Edits, edits)
			}
		}
	}
	listed, last := int64(0), ID(0)
	for offset := 0; offset+100 <= 10_000; offset += 100 {
		some, err := l.store.List(ctx, Range{Offset: offset, Limit: 100})
		if err != nil {
			return 0, err
		}
		for _, c := range some {
			if _, there := l.orders[c.Order][c.ID]; !there || c.ID <= last {
				return 0, fmt.Errorf("%w: %d of order %d comes in the list behind %d", errDiffers, c.ID, c.Order, last)
			}
			last = c.ID
		}
		if listed += int64(len(some)); len(some) < 100 {
			break
		}
	}
	if listed != min(n, 10_000) {
		return 0, fmt.Errorf("%w: the list has %d, want %d", errDiffers, listed, min(n, 10_000))
	}
	return n, nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/iterator"
)

// Verbs are the methods of Google's Datastore client that callers use. Both *datastore.Client and
// the Store have them.
type Verbs interface {
	Get(ctx context.Context, key *datastore.Key, dst any) error
	GetMulti(ctx context.Context, keys []*datastore.Key, dst any) error
	Put(ctx context.Context, key *datastore.Key, src any) (*datastore.Key, error)
	PutMulti(ctx context.Context, keys []*datastore.Key, src any) ([]*datastore.Key, error)
	Delete(ctx context.Context, key *datastore.Key) error
	DeleteMulti(ctx context.Context, keys []*datastore.Key) error
	Mutate(ctx context.Context, mutations ...*datastore.Mutation) ([]*datastore.Key, error)
	GetAll(ctx context.Context, q *datastore.Query, dst any) ([]*datastore.Key, error)
	Run(ctx context.Context, q *datastore.Query) *datastore.Iterator
	Count(ctx context.Context, q *datastore.Query) (int, error)
	RunAggregationQuery(ctx context.Context, q *datastore.AggregationQuery) (datastore.AggregationResult, error)
	RunInTransaction(ctx context.Context, f func(tx *datastore.Transaction) error,
		opts ...datastore.TransactionOption) (*datastore.Commit, error)
}

var (
	_ Verbs = (*datastore.Client)(nil)
	_ Verbs = (*Store)(nil)
)

// A caller is a client that was written for a single kind of comments, and does not know of shards.
// It makes random calls, and notes their results. Callers with the same seed make the same calls.
type caller struct {
	client Verbs
	rand   *rand.Rand
	keys   []*datastore.Key // keys of all comments that this caller has put
	names  map[int64]string // a name for each comment by its ID, for the notes, because two callers get different IDs
	notes  []string
	put    int
	counts bool // whether the caller also counts, and queries several orders in one query
}

// diary runs a caller, and returns its notes of the results. The caller puts 20 comments, and then
// makes random calls; the parameter things is their number. If counts is not set, it leaves out
// counts and the operator "in", which Google's classic emulator does not have.
func diary(ctx context.Context, client Verbs, seed uint64, things int, counts bool) ([]string, error) {
	c := &caller{client: client, rand: rand.New(rand.NewPCG(seed, 0)), names: make(map[int64]string),
		counts: counts}
	if err := c.add(ctx, 20); err != nil {
		return nil, err
	}
	all := []func(context.Context) error{c.addOne, c.edit, c.editInTransaction, c.deleteSome, c.read, c.list, c.list,
		c.pages}
	if counts {
		all = append(all, c.count)
	}
	for range things {
		if err := all[c.rand.IntN(len(all))](ctx); err != nil {
			return nil, err
		}
	}
	return c.notes, nil
}

func (c *caller) note(format string, args ...any) {
	c.notes = append(c.notes, fmt.Sprintf(format, args...))
}

// comment returns a new comment. No two have the same time, so that the order by time is
// unambiguous.
func (c *caller) comment() *Comment {
	c.put++
	minutes := time.Duration(c.rand.IntN(100_000))*time.Minute + time.Duration(c.put)*time.Millisecond
	return &Comment{Order: orders[c.rand.IntN(len(orders))], Status: statuses[c.rand.IntN(3)],
		Author: authors[c.rand.IntN(3)],
		Text:   fmt.Sprintf("comment %d", c.put), Created: time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC).Add(minutes)}
}

var (
	orders   = []int64{0, 7, 299_999, 300_000, 1_234_567, 5_999_999, 6_000_000, 9_000_001}
	statuses = []string{"paid", "sent", "there"}
	authors  = []string{"ann", "bob", "cid"}
)

func (c *caller) add(ctx context.Context, n int) error {
	var all []*Comment
	keys := make([]*datastore.Key, n)
	for i := range keys {
		keys[i] = datastore.IncompleteKey(plainKind, nil)
		all = append(all, c.comment())
	}
	keys, err := c.client.PutMulti(ctx, keys, all)
	for i, key := range keys {
		c.keys, c.names[key.ID] = append(c.keys, key), all[i].Text
	}
	return err
}

func (c *caller) addOne(ctx context.Context) error {
	comment := c.comment()
	key, err := c.client.Put(ctx, datastore.IncompleteKey(plainKind, nil), comment)
	if err == nil {
		c.keys, c.names[key.ID] = append(c.keys, key), comment.Text
	}
	return err
}

func (c *caller) any() *datastore.Key { return c.keys[c.rand.IntN(len(c.keys))] }

// edit changes a random comment, if it still exists.
func (c *caller) edit(ctx context.Context) error {
	key, comment := c.any(), new(Comment)
	err := c.client.Get(ctx, key, comment)
	c.note("get %s: %v", c.names[key.ID], err)
	if errors.Is(err, datastore.ErrNoSuchEntity) {
		return nil
	}
	if err == nil {
		comment.Status = statuses[c.rand.IntN(3)]
		_, err = c.client.Put(ctx, key, comment)
	}
	return err
}

// editInTransaction changes all comments of an order in a transaction. If the order's number is
// even, it deletes one of them. If the order is in the first shard, whose database also has the
// other kinds, it also writes an entity of another kind.
func (c *caller) editInTransaction(ctx context.Context) error {
	key, author := c.any(), authors[c.rand.IntN(3)]
	_, err := c.client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
		comment := new(Comment)
		if err := tx.Get(key, comment); err != nil {
			return err
		}
		var same []Comment
		if _, err := c.client.GetAll(ctx, datastore.NewQuery(plainKind).FilterField("Order", "=",
			comment.Order).Transaction(tx), &same); err != nil {
			return err
		}
		for _, s := range same {
			s.Author = author
			if _, err := tx.Put(s.Key, &s); err != nil {
				return err
			}
		}
		var err error
		if comment.Order < ordersAShard {
			_, err = tx.Put(datastore.IncompleteKey("Audit", nil), &struct{ By string }{author})
		}
		if err != nil || comment.Order%2 != 0 {
			return err
		}
		return tx.Delete(key)
	})
	c.note("transaction on %s: %v", c.names[key.ID], err)
	if errors.Is(err, datastore.ErrNoSuchEntity) {
		return nil
	}
	return err
}

func (c *caller) deleteSome(ctx context.Context) error {
	if c.rand.IntN(2) == 0 {
		return c.client.Delete(ctx, c.any())
	}
	return c.client.DeleteMulti(ctx, []*datastore.Key{c.any(), c.any(), c.any()})
}

// read reads some comments by their keys, including deleted ones.
func (c *caller) read(ctx context.Context) error {
	keys := []*datastore.Key{c.any(), c.any(), c.any(), c.any()}
	all := make([]Comment, len(keys))
	err := c.client.GetMulti(ctx, keys, all)
	var missing datastore.MultiError
	if err != nil && !errors.As(err, &missing) {
		return err
	}
	for i, key := range keys {
		if missing != nil && missing[i] != nil {
			c.note("read %s: %v", c.names[key.ID], missing[i])
			continue
		}
		c.note("read %s", c.describe(&all[i]))
	}
	return nil
}

func (c *caller) describe(k *Comment) string {
	if c.names[k.Key.ID] != k.Text {
		return fmt.Sprintf("%s under the key of %s", k.Text, c.names[k.Key.ID])
	}
	return fmt.Sprintf("%s of %d: %s %s %v", k.Text, k.Order, k.Status, k.Author, k.Created.UTC())
}

// query returns a random one of the queries for which index.yaml has indexes.
func (c *caller) query() *datastore.Query {
	q := datastore.NewQuery(plainKind)
	what := c.rand.IntN(4)
	if what == 1 && !c.counts {
		what = 0
	}
	switch what {
	case 0:
		q = q.FilterField("Order", "=", orders[c.rand.IntN(len(orders))])
	case 1:
		q = q.FilterField("Order", "in", []any{orders[c.rand.IntN(len(orders))], orders[c.rand.IntN(len(orders))]})
	}
	if c.rand.IntN(3) == 0 {
		q = q.FilterField("Status", "=", statuses[c.rand.IntN(3)])
	}
	if c.rand.IntN(3) == 0 {
		q = q.FilterField("Created", "<", time.Date(2024, 1, 30, 0, 0, 0, 0, time.UTC))
	}
	return q.Order([]string{"Created", "-Created"}[c.rand.IntN(2)])
}

func (c *caller) list(ctx context.Context) error {
	q := c.query().Offset(c.rand.IntN(4))
	if c.rand.IntN(2) == 0 {
		q = q.Limit(c.rand.IntN(10))
	}
	var all []Comment
	if _, err := c.client.GetAll(ctx, q, &all); err != nil {
		return err
	}
	var lines []string
	for i := range all {
		lines = append(lines, c.describe(&all[i]))
	}
	c.note("list: %s", strings.Join(lines, "; "))
	return nil
}

// pages reads the comments three at a time, and continues by cursors.
func (c *caller) pages(ctx context.Context) error {
	q := c.query().Limit(3)
	for page := q; ; {
		it := c.client.Run(ctx, page)
		var texts []string
		for {
			k := new(Comment)
			_, err := it.Next(k)
			if errors.Is(err, iterator.Done) {
				break
			}
			if err != nil {
				return err
			}
			texts = append(texts, k.Text)
		}
		c.note("page: %v", texts)
		if len(texts) < 3 {
			return nil
		}
		next, err := it.Cursor()
		if err != nil {
			return err
		}
		page = q.Start(next)
	}
}

// count counts comments in three ways.
func (c *caller) count(ctx context.Context) error {
	q := datastore.NewQuery(plainKind).FilterField("Status", "=", statuses[c.rand.IntN(3)])
	n, err := c.client.Count(ctx, q)
	if err != nil {
		return err
	}
	keys, err := c.client.GetAll(ctx, q.KeysOnly(), nil)
	if err != nil {
		return err
	}
	var names []string
	for _, key := range keys {
		names = append(names, c.names[key.ID])
	}
	slices.Sort(names)
	sums, err := c.client.RunAggregationQuery(ctx, q.NewAggregationQuery().WithCount("n"))
	if err != nil {
		return err
	}
	c.note("count: %d, %v, %d", n, names, sums["n"].(*pb.Value).GetIntegerValue())
	return nil
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A Comment is one of an order.
type Comment struct {
	ID    ID `datastore:"-"`
	Order int64
	Text  string `datastore:",noindex"`

	Edits int64 `datastore:",noindex"`

	// Who has written it: whose answer was lost finds its own call by its token, whatever others have written meanwhile.
	Inserted string   `datastore:",noindex"`
	Edited   []string `datastore:",noindex"` // by the last edits, the newest last
}

// recentEdits is how many edits of others may come between an edit whose answer was lost and its next attempt.
const recentEdits = 32

// A Store has comments in several databases, each of which has its share of the logical shards. How many databases there are divides
// each number of shards that there ever is: so an order stays in its database.
type Store struct {
	databases []*datastore.Client
	first     int // logical shards, until they are moved

	now func() time.Time

	mu         sync.Mutex
	generators map[[2]int]*Generator // by database and shard
}

// NewStore returns a store of comments in so many logical shards.
func NewStore(shards int, databases ...*datastore.Client) (*Store, error) {
	s := &Store{databases: databases, first: shards, now: time.Now, generators: make(map[[2]int]*Generator)}
	return s, s.check(shards)
}

// check returns an error if there can't be so many logical shards.
func (s *Store) check(shards int) error {
	if n := len(s.databases); n == 0 || n > MaxPhysical || shards < 1 || shards > MaxLogical || shards%n != 0 {
		return fmt.Errorf("%d logical shards in %d databases: want a multiple of the databases, up to %d, and up to %d databases", shards, n, MaxLogical, MaxPhysical)
	}
	return nil
}

// checkOrder returns an error for what is no order.
func checkOrder(order int64) error {
	if order < 0 {
		return fmt.Errorf("the order %d is negative", order)
	}
	return nil
}

// database returns which one has an order's comments.
func (s *Store) database(order int64) int { return int(order / ordersAShard % int64(len(s.databases))) }

// generator returns what draws the ids of a shard in this process.
func (s *Store) generator(database, shard int) (*Generator, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	place := [2]int{database, shard}
	if s.generators[place] == nil {
		g, err := NewGenerator(database, shard)
		if err != nil {
			return nil, err
		}
		g.now = s.now
		s.generators[place] = g
	}
	return s.generators[place], nil
}

// ErrNotFound says that there is no such comment.
var ErrNotFound = errors.New("there is no such comment")

// tries is how often a call is made whose outcome is not known. The next one finds out.
const tries = 20

// again reports whether a call may be made again after an error: nobody knows whether it took effect.
func again(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Internal, codes.Unknown:
		return !errors.Is(err, ErrNotFound)
	case codes.InvalidArgument: // the client has made a commit again whose answer was lost
		return strings.Contains(err.Error(), "transaction")
	}
	return false
}

func newToken() string { return strconv.FormatUint(rand.Uint64(), 36) }

// Insert adds a comment to an order, in its shard only, under a key that nobody has.
func (s *Store) Insert(ctx context.Context, order int64, text string) (ID, error) {
	if err := checkOrder(order); err != nil {
		return 0, err
	}
	c, db := Comment{Order: order, Text: text, Inserted: newToken()}, s.database(order)
	client := s.databases[db]
	var err error
	for unknown := 0; unknown < tries; {
		if c.ID == 0 {
			if c.ID, err = s.draw(ctx, client, db, order); err != nil {
				return 0, err
			}
		}
		foreign := false
		_, err = client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
			foreign = false
			l, found, err := s.look(tx, order, c.ID)
			if err != nil {
				return err
			}
			if found != nil {
				foreign = found.Inserted != c.Inserted // otherwise it is ours, and the answer was lost
				return nil
			}
			_, err = tx.Mutate(datastore.NewInsert(datastore.IDKey(l.kind(order), int64(c.ID), nil), &c))
			return err
		})
		switch {
		case foreign || status.Code(err) == codes.AlreadyExists:
			c.ID = 0 // another process has drawn it, too
		case err == nil:
			return c.ID, nil
		case !again(ctx, err):
			return 0, fmt.Errorf("insert a comment of order %d: %w", order, err)
		default:
			unknown++
		}
	}
	return 0, fmt.Errorf("insert a comment of order %d, %d times: %w", order, tries, err)
}

// draw draws an ID for a comment of an order.
func (s *Store) draw(ctx context.Context, client *datastore.Client, db int, order int64) (ID, error) {
	l, err := s.layout(ctx, client)
	if err != nil {
		return 0, err
	}
	g, err := s.generator(db, shardOf(order, cmp.Or(l.Next, l.Shards)))
	if err != nil {
		return 0, err
	}
	return g.Next(ctx)
}

func (s *Store) layout(ctx context.Context, client *datastore.Client) (l Layout, err error) {
	for range tries {
		err = l.get(func(key *datastore.Key, dst any) error { return client.Get(ctx, key, dst) }, s.first)
		if err == nil || !again(ctx, err) {
			break
		}
	}
	return l, err
}

// look reads the layout, and finds a comment, in a transaction; nil: there is none.
func (s *Store) look(tx *datastore.Transaction, order int64, id ID) (l Layout, found *Comment, err error) {
	if err := l.get(tx.Get, s.first); err != nil {
		return l, nil, err
	}
	for _, kind := range l.kinds(order) {
		c := new(Comment)
		err := tx.Get(datastore.IDKey(kind, int64(id), nil), c)
		if errors.Is(err, datastore.ErrNoSuchEntity) {
			continue
		}
		c.ID = id
		return l, c, err
	}
	return l, nil, nil
}

// Edit replaces the text of a comment. One that is still in its old shard is moved along.
func (s *Store) Edit(ctx context.Context, order int64, id ID, text string) error {
	if err := checkOrder(order); err != nil {
		return err
	}
	token := newToken()
	var err error
	for range tries {
		_, err = s.databases[s.database(order)].RunInTransaction(ctx, func(tx *datastore.Transaction) error {
			l, c, err := s.look(tx, order, id)
			switch {
			case err != nil:
				return err
			case c == nil:
				return fmt.Errorf("%w: %d of order %d", ErrNotFound, id, order)
			case slices.Contains(c.Edited, token):
				return nil // the answer was lost
			}
			c.Text, c.Edited = text, append(c.Edited[max(0, len(c.Edited)-recentEdits+1):], token)
			c.Edits++
			all := []*datastore.Mutation{datastore.NewUpsert(datastore.IDKey(l.kind(order), int64(id), nil), c)}
			if l.Next != 0 {
				all = append(all, datastore.NewDelete(datastore.IDKey(kindOf(shardOf(order, l.Shards), l.Shards), int64(id), nil)))
			}
			_, err = tx.Mutate(all...)
			return err
		})
		if err == nil || !again(ctx, err) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("edit comment %d of order %d: %w", id, order, err)
	}
	return nil
}

// ByOrder returns the comments of an order, the oldest first. It reads their shard only.
func (s *Store) ByOrder(ctx context.Context, order int64) ([]Comment, error) {
	if err := checkOrder(order); err != nil {
		return nil, err
	}
	client := s.databases[s.database(order)]
	return s.steady(ctx, client, func(l Layout) ([]Comment, error) {
		var all []Comment
		for _, kind := range l.kinds(order) {
			found, err := run(ctx, client, datastore.NewQuery(kind).FilterField("Order", "=", order))
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		}
		return all, nil
	})
}

// A Range chooses comments of all orders, by time.
type Range struct {
	Newest bool // come first
	Offset int
	Limit  int
}

// List returns comments of all orders. It reads all shards side by side, as much of each as could be asked for.
func (s *Store) List(ctx context.Context, r Range) ([]Comment, error) {
	if r.Limit < 1 || r.Offset < 0 || r.Limit+r.Offset > 10_000 {
		return nil, fmt.Errorf("limit %d and offset %d: want a limit of 1 or more, and both together up to 10000", r.Limit, r.Offset)
	}
	order := "__key__"
	if r.Newest {
		order = "-__key__"
	}
	parts := make([][]Comment, len(s.databases))
	group, ctx := errgroup.WithContext(ctx)
	for i, client := range s.databases {
		group.Go(func() (err error) {
			parts[i], err = s.steady(ctx, client, func(l Layout) ([]Comment, error) {
				var all []Comment
				for _, kinds := range l.all() {
					found, err := side(ctx, client, kinds, func(q *datastore.Query) *datastore.Query { return q.Order(order).Limit(r.Limit + r.Offset) })
					if err != nil {
						return nil, err
					}
					all = append(all, found...)
				}
				return all, nil
			})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	all := slices.Concat(parts...)
	slices.SortFunc(all, func(a, b Comment) int {
		if r.Newest {
			a, b = b, a
		}
		return cmp.Compare(a.ID, b.ID)
	})
	return all[min(r.Offset, len(all)):min(r.Offset+r.Limit, len(all))], nil
}

// side runs a query over several kinds, side by side.
func side(ctx context.Context, client *datastore.Client, kinds []string, q func(*datastore.Query) *datastore.Query) ([]Comment, error) {
	parts := make([][]Comment, len(kinds))
	group, ctx := errgroup.WithContext(ctx)
	for i, kind := range kinds {
		group.Go(func() (err error) {
			parts[i], err = run(ctx, client, q(datastore.NewQuery(kind)))
			return err
		})
	}
	err := group.Wait()
	return slices.Concat(parts...), err
}

// steady reads under a layout, and once more if that was changed meanwhile. What was in an old and in a new shard is there once, as
// it was read last.
func (s *Store) steady(ctx context.Context, client *datastore.Client, read func(Layout) ([]Comment, error)) ([]Comment, error) {
	l, err := s.layout(ctx, client)
	if err != nil {
		return nil, err
	}
	for range tries {
		all, reading := read(l)
		now, err := s.layout(ctx, client)
		switch {
		case err != nil:
			return nil, err
		case reading != nil && !again(ctx, reading):
			return nil, reading
		case reading == nil && now == l:
			return once(all), nil
		}
		l = now
	}
	return nil, fmt.Errorf("the comments could not be read, %d times", tries)
}

// once returns comments in order, each as it comes last.
func once(all []Comment) []Comment {
	byID := make(map[ID]Comment, len(all))
	for _, c := range all {
		byID[c.ID] = c
	}
	unique := make([]Comment, 0, len(byID))
	for _, c := range byID {
		unique = append(unique, c)
	}
	slices.SortFunc(unique, func(a, b Comment) int { return cmp.Compare(a.ID, b.ID) })
	return unique
}

// run runs a query of comments.
func run(ctx context.Context, client *datastore.Client, q *datastore.Query) ([]Comment, error) {
	var all []Comment
	keys, err := client.GetAll(ctx, q, &all)
	for i, key := range keys {
		all[i].ID = ID(key.ID)
	}
	return all, err
}

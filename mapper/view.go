package mapper

import (
	"context"
	"errors"

	"cloud.google.com/go/datastore"
	"google.golang.org/api/iterator"
)

// A view is what a look-ahead saw: the first keys of a range, in order.
type view struct {
	keys []*datastore.Key
	all  bool // the range ends behind them
}

// readKeys reads up to limit keys of a query.
func (e *Engine) readKeys(ctx context.Context, q *datastore.Query, limit int) (view, error) {
	var keys []*datastore.Key
	err := e.eachKey(ctx, q.Limit(limit), func(k *datastore.Key) bool {
		keys = append(keys, k)
		return true
	})
	if err != nil {
		return view{}, err
	}
	return view{keys: keys, all: len(keys) < limit}, nil
}

// sample draws up to n keys of the query by __scatter__, fewer if they take
// more than maxBytes, and sorts them. The first keys in scatter order are a
// random choice of all, however few they are. An empty sample says nothing of
// how many entities there are.
func (e *Engine) sample(ctx context.Context, q Query, n, maxBytes int) ([]*datastore.Key, error) {
	var keys []*datastore.Key
	err := e.eachKey(ctx, q.sample(n), func(k *datastore.Key) bool {
		maxBytes -= keySize(k)
		if maxBytes >= 0 {
			keys = append(keys, k)
		}
		return maxBytes >= 0
	})
	return sortKeys(keys), err
}

// eachKey calls f for the keys of a query, until it returns false.
func (e *Engine) eachKey(ctx context.Context, q *datastore.Query, f func(*datastore.Key) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for it := e.client.Run(ctx, q.KeysOnly()); ; {
		key, err := it.Next(nil)
		if errors.Is(err, iterator.Done) {
			return nil
		}
		if err != nil {
			return err
		}
		if !f(key) {
			return nil
		}
	}
}

package mapper

import (
	"context"
	"errors"

	"cloud.google.com/go/datastore"
	"google.golang.org/api/iterator"
)

// readKeys returns the first keys of a query, at most limit.
func (e *Engine) readKeys(ctx context.Context, q *datastore.Query, limit int) (view, error) {
	keys := make([]*datastore.Key, 0, limit)
	it := e.client.Run(ctx, q.KeysOnly().Limit(limit))
	for {
		key, err := it.Next(nil)
		if errors.Is(err, iterator.Done) {
			return view{keys: keys, all: len(keys) < limit}, nil
		}
		if err != nil {
			return view{}, err
		}
		keys = append(keys, key)
	}
}

// sample draws keys of the query by __scatter__, and sorts them. An empty
// sample says nothing of how many entities there are.
func (e *Engine) sample(ctx context.Context, q Query, n int) ([]*datastore.Key, error) {
	drawn, err := e.readKeys(ctx, q.sample(n), n)
	if err != nil {
		return nil, err
	}
	return sortKeys(drawn.keys), nil
}

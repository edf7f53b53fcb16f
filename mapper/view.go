package mapper

import (
	"context"
	"errors"
	"slices"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/semaphore"
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

// find returns the key of an entity: the n-th of a query, counted from 0, or nil if there
// are fewer.
func (e *Engine) find(ctx context.Context, q *datastore.Query, n int64) (*datastore.Key, error) {
	found, err := e.readKeys(ctx, q.Offset(int(n)), 1)
	if err != nil || len(found.keys) == 0 {
		return nil, err
	}
	return found.keys[0], nil
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

// A stream reads the keys of a range one after the other, or its entities, and can be ahead
// of who uses them.
type stream struct {
	end    *datastore.Key // of the range, when its query was made
	whole  bool           // it reads entities
	it     *datastore.Iterator
	cancel context.CancelFunc

	turn     *semaphore.Weighted // of who uses the rest, and may read
	keys     []*datastore.Key
	entities []datastore.PropertyList // of the keys, if it reads them
	all      bool
}

// stream returns the keys of a query that ends at a key, or its whole entities. It has to
// be closed.
func (e *Engine) stream(ctx context.Context, q *datastore.Query, end *datastore.Key, whole bool) *stream {
	ctx, cancel := context.WithCancel(ctx)
	if !whole {
		q = q.KeysOnly()
	}
	return &stream{end: end, whole: whole, it: e.client.Run(ctx, q), cancel: cancel, turn: semaphore.NewWeighted(1)}
}

// use waits until nothing is read ahead. It is followed by a call of done.
func (s *stream) use() (done func()) {
	_ = s.turn.Acquire(context.Background(), 1) // reading ends with its own context
	return func() { s.turn.Release(1) }
}

// peek returns the next n keys, or those that are left. After an error the stream is
// of no use any more.
func (s *stream) peek(n int) ([]*datastore.Key, error) {
	defer s.use()()
	for len(s.keys) < n && !s.all {
		var entity datastore.PropertyList
		var dst any
		if s.whole {
			dst = &entity
		}
		key, err := s.it.Next(dst)
		if errors.Is(err, iterator.Done) {
			s.all = true
			break
		}
		if err != nil {
			return nil, err
		}
		if s.keys = append(s.keys, key); s.whole {
			s.entities = append(s.entities, entity)
		}
	}
	return s.keys[:min(n, len(s.keys))], nil
}

// peekLater has the next n keys read while something else is done. Whoever asks for the
// result waits for it.
func (s *stream) peekLater(n int) func() ([]*datastore.Key, error) {
	var keys []*datastore.Key
	var err error
	ready := make(chan struct{})
	go func() {
		defer close(ready)
		keys, err = s.peek(n)
	}()
	return func() ([]*datastore.Key, error) {
		<-ready
		return keys, err
	}
}

// readAhead has the next n keys read while something else is done.
func (s *stream) readAhead(n int) { go func() { _, _ = s.peek(n) }() }

// known returns the keys that were read and not passed.
func (s *stream) known() view {
	defer s.use()()
	return view{keys: s.keys, all: s.all}
}

// pass drops the keys before one.
func (s *stream) pass(start *datastore.Key) {
	defer s.use()()
	n, _ := slices.BinarySearchFunc(s.keys, start, compareKeys)
	s.keys = s.keys[n:]
	if s.whole {
		clear(s.entities[:n]) // for the garbage collector
		s.entities = s.entities[n:]
	}
}

// read is a reader of the entities that the stream has read.
func (s *stream) read(keys []*datastore.Key) ([]datastore.PropertyList, []bool, error) {
	if len(keys) == 0 {
		return nil, nil, nil
	}
	defer s.use()()
	n, _ := slices.BinarySearchFunc(s.keys, keys[0], compareKeys)
	return s.entities[n : n+len(keys)], make([]bool, len(keys)), nil
}

// close ends the reading.
func (s *stream) close() {
	s.cancel()
	s.use()()
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

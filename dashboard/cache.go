package dashboard

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// freshness is how long data stays in the cache, at most. The cache drops data when the clock
// reaches the next multiple of freshness. So each piece of data is read at most once in this time,
// for any number of viewers. Pages refresh at the same interval.
const freshness = 2 * time.Second

// loadTime limits the time of one load of data into the cache.
const loadTime = 20 * time.Second

// A cache keeps data for a short time after it was read. So the number of reads does not grow with
// the number of viewers.
type cache struct {
	mu   sync.Mutex
	all  map[string]*cached
	when time.Time // when expired entries were last removed
}

// A cached is an entry of the cache: data that was read, or that is being read now.
type cached struct {
	ready chan struct{} // closed when the other fields are set
	until time.Time
	value any
	err   error
}

// shared returns the cached data of a key, or else loads it. Concurrent callers with the same key
// share one load, which goes on if the first caller's ctx ends. All of them get its error, which is
// not cached.
func shared[T any](ctx context.Context, c *cache, key string, load func(context.Context) (T, error)) (T, error) {
	return kept(ctx, c, key, freshness, load)
}

// kept does the same as shared, but the parameter fresh is how long the data stays in the cache.
func kept[T any](
	ctx context.Context, c *cache, key string, fresh time.Duration, load func(context.Context) (T, error),
) (T, error) {
	return keptBy(ctx, c, key, func(T) time.Duration { return fresh }, load)
}

// keptBy does the same as shared, but the function fresh returns how long the data stays in the
// cache.
func keptBy[T any](
	ctx context.Context, c *cache, key string, fresh func(T) time.Duration, load func(context.Context) (T, error),
) (T, error) {
	e, first := c.entry(key)
	if first {
		since := time.Now().Truncate(freshness)
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTime)
			defer cancel()
			v, err := guarded(ctx, load)
			c.mu.Lock()
			if e.value, e.err = v, err; err == nil {
				e.until = since.Add(fresh(v))
			}
			c.mu.Unlock()
			close(e.ready)
		}()
	}
	var none T
	select {
	case <-ctx.Done():
		return none, ctx.Err()
	case <-e.ready:
	}
	if e.err != nil {
		return none, e.err
	}
	return e.value.(T), nil
}

// guarded calls load, and converts a panic into an error. Loads run in goroutines of their own,
// where a panic would end the process.
func guarded[T any](ctx context.Context, load func(context.Context) (T, error)) (v T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return load(ctx)
}

// entry returns the entry with a key. The result first is true if the entry is new, so that the
// caller must fill it.
func (c *cache) entry(key string) (e *cached, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	old := func(e *cached) bool {
		select {
		case <-e.ready:
			return !now.Before(e.until)
		default:
			return false
		}
	}
	if now.Sub(c.when) > freshness {
		c.when = now
		for key, e := range c.all {
			if old(e) {
				delete(c.all, key)
			}
		}
	}
	if e = c.all[key]; e != nil && !old(e) {
		return e, false
	}
	if c.all == nil {
		c.all = make(map[string]*cached)
	}
	e = &cached{ready: make(chan struct{})}
	c.all[key] = e
	return e, true
}

// forget empties the cache. It is called after a job was changed, so that pages show the change.
func (c *cache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = nil
}

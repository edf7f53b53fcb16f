package bench

import (
	"context"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"
)

// A shards is a program that processes accounts without any guarantee. It knows all keys in
// advance, and each worker has a fixed part of them. Jobs are compared with two forms of it: a loop
// as an engineer would write it by hand, and the limit, the fastest possible program.
type shards struct {
	client          *datastore.Client
	workers, atOnce int  // number of workers, and of concurrent calls of the function in each
	put             bool // whether to write each page, in one commit
	ahead           bool // whether to read the next page while the function runs
}

const shardPage = 500

// aPage is a page that was read, or is being read.
type aPage struct {
	keys []*datastore.Key
	all  []account
	err  error
}

// run calls f for the accounts with the given keys.
func (s shards) run(ctx context.Context, keys []*datastore.Key, f func(*datastore.Key, *account) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for i := range s.workers {
		part := keys[len(keys)*i/s.workers : len(keys)*(i+1)/s.workers]
		group.Go(func() error { return s.runPart(ctx, part, f) })
	}
	return group.Wait()
}

func (s shards) runPart(
	ctx context.Context, part []*datastore.Key, f func(*datastore.Key, *account) error,
) error {
	next := s.read(ctx, part)
	for len(part) > 0 {
		page := next()
		if page.err != nil {
			return page.err
		}
		if part = part[len(page.keys):]; len(part) > 0 {
			if next = s.read(ctx, part); s.ahead {
				read := make(chan aPage, 1)
				get := next
				go func() { read <- get() }()
				next = func() aPage { return <-read }
			}
		}
		var calls errgroup.Group
		calls.SetLimit(s.atOnce)
		for i := range page.all {
			calls.Go(func() error { return f(page.keys[i], &page.all[i]) })
		}
		if err := calls.Wait(); err != nil {
			return err
		}
		if s.put {
			if _, err := s.client.PutMulti(ctx, page.keys, page.all); err != nil {
				return err
			}
		}
	}
	return nil
}

// read starts to read the first page of a part. It returns a function that waits for the page.
func (s shards) read(ctx context.Context, part []*datastore.Key) func() aPage {
	return func() (p aPage) {
		if len(part) == 0 {
			return p
		}
		q := datastore.NewQuery(accounts).Order("__key__").FilterField("__key__", ">=", part[0]).
			FilterField("__key__", "<=", part[len(part)-1]).Limit(shardPage)
		p.keys, p.err = s.client.GetAll(ctx, q, &p.all)
		return p
	}
}

package bench

import (
	"cmp"
	"context"
	"slices"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"
)

// A peer is the program with which BenchmarkPeers compares jobs. It changes every account of a kind
// in a loop that a Go engineer would write by hand. It splits the kind at sampled keys
// (__scatter__), into one part for each worker. Each worker reads the keys of its part page by
// page, and changes each page in a transaction.
type peer struct {
	client        *datastore.Client
	workers, page int
}

func (p peer) run(ctx context.Context, change func(*account)) error {
	splits, err := p.splits(ctx)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for i := range len(splits) + 1 {
		part := datastore.NewQuery(accounts).Order("__key__").KeysOnly().Limit(p.page)
		if i < len(splits) {
			part = part.FilterField("__key__", "<", splits[i])
		}
		var from *datastore.Key
		if i > 0 {
			from = splits[i-1]
		}
		group.Go(func() error { return p.runPart(ctx, part, from, change) })
	}
	return group.Wait()
}

// runPart changes the accounts of a part whose keys are after from.
func (p peer) runPart(ctx context.Context, part *datastore.Query, from *datastore.Key, change func(*account)) error {
	next := part
	if from != nil {
		next = part.FilterField("__key__", ">=", from)
	}
	for {
		keys, err := p.client.GetAll(ctx, next, nil)
		if err != nil || len(keys) == 0 {
			return err
		}
		_, err = p.client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
			page := make([]account, len(keys))
			if err := tx.GetMulti(keys, page); err != nil {
				return err
			}
			for i := range page {
				change(&page[i])
			}
			_, err := tx.PutMulti(keys, page)
			return err
		})
		if err != nil || len(keys) < p.page {
			return err
		}
		next = part.FilterField("__key__", ">", keys[len(keys)-1])
	}
}

// splits returns the keys at which the kind is split, chosen from 32 sampled keys for each part. If
// no entity has __scatter__, as in Google's Firestore emulator, it splits the range of numeric IDs
// evenly.
func (p peer) splits(ctx context.Context) (splits []*datastore.Key, err error) {
	sample, err := p.client.GetAll(ctx,
		datastore.NewQuery(accounts).Order("__scatter__").KeysOnly().Limit(32*p.workers), nil)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(sample, func(a, b *datastore.Key) int { return cmp.Compare(a.ID, b.ID) })
	if len(sample) == 0 {
		for _, order := range []string{"__key__", "-__key__"} {
			end, err := p.client.GetAll(ctx, datastore.NewQuery(accounts).Order(order).KeysOnly().Limit(1), nil)
			if err != nil || len(end) == 0 {
				return nil, err
			}
			sample = append(sample, end[0])
		}
		first, last := sample[0].ID, sample[1].ID
		for i := 1; i < p.workers; i++ {
			splits = append(splits, datastore.IDKey(accounts, first+(last-first)/int64(p.workers)*int64(i), nil))
		}
		return splits, nil
	}
	for i := 1; i < p.workers; i++ {
		splits = append(splits, sample[len(sample)*i/p.workers])
	}
	return splits, nil
}

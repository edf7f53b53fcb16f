package store

import (
	"context"
	"errors"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/api/iterator"

	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Batches returns the query for an undo's batches with names from from on, and less than to. An
// empty to is no limit. A batch is the record of an extra commit of an undo, see [record.Batch].
func Batches(job record.Ref, from, to string) *datastore.Query {
	if to == "" {
		to = "g" // greater than all hexadecimal digits
	}
	return datastore.NewQuery(record.BatchKind).Order("__key__").
		FilterField("__key__", ">=", record.BatchKey(job, from)).FilterField("__key__", "<", record.BatchKey(job, to))
}

// EachBatch calls f for each batch that the query q finds, with the key and the record.
func (st Store) EachBatch(ctx context.Context, q *datastore.Query, f func(*datastore.Key, *record.Batch) error) error {
	for it := st.client.Run(ctx, q); ; {
		b := new(record.Batch)
		key, err := it.Next(b)
		if errors.Is(err, iterator.Done) {
			return nil
		}
		if err := property.IgnoreUndeclared(err); err != nil {
			return err
		}
		if err := f(key, b); err != nil {
			return err
		}
	}
}

// ExpireBatches sets the time at which a time-to-live policy may delete these batches. It skips
// batches that are deleted, or that have such a time already.
func (st Store) ExpireBatches(ctx context.Context, keys []*datastore.Key, at time.Time) error {
	return st.Transact(ctx, func(tx *datastore.Transaction) error {
		var all []*datastore.Mutation
		for _, key := range keys {
			b := new(record.Batch)
			there, err := found(tx.Get, key, b)
			if err != nil {
				return err
			}
			if there && b.Expires.IsZero() {
				b.Expires = at
				all = append(all, datastore.NewUpdate(key, b))
			}
		}
		return Write(tx, all...)
	})
}

package mapper

import (
	"context"
	"log/slog"

	"cloud.google.com/go/datastore"
)

// A source is a database as queries read it: as it is, or as it was at a time.
type source struct {
	client *datastore.Client
	log    *slog.Logger
	at     *snapshot // nil: the database as it is
}

// newSource returns a source that reads the database as it is. A nil logger logs nothing.
func newSource(client *datastore.Client, log *slog.Logger) source {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return source{client: client, log: log}
}

func (e *Engine) source() source { return newSource(e.client, e.log) }

// of returns the source that a query reads, until ctx ends: a snapshot, if the query has a ReadTime.
func (src source) of(ctx context.Context, q Query) source {
	if !q.ReadTime.IsZero() {
		src.at = snapshotAt(ctx, src.client, q.ReadTime)
	}
	return src
}

// get returns a function that looks up entities.
func (src source) get(ctx context.Context) func([]*datastore.Key, any) error {
	return func(keys []*datastore.Key, dst any) error {
		if src.at == nil {
			return src.client.GetMulti(ctx, keys, dst)
		}
		tx, err := src.at.transaction()
		if err != nil {
			return err
		}
		return tx.GetMulti(keys, dst)
	}
}

package dsemu

import (
	"context"

	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator/internal/model"
	"github.com/scattermap/scattermap/emulator/internal/query"
	"github.com/scattermap/scattermap/emulator/internal/store"
)

// fewRecords are indexed without unlocking the database.
const fewRecords = 256

// prepare has the indexes built that a query needs, and keeps them until release. The
// database is locked, but not all the time: whoever asks for other things goes on while
// an index is built, and whoever asks for the same index waits for it.
func (db *database) prepare(ctx context.Context, q *query.Query) (release func(), err error) {
	var held []func()
	release = func() {
		for _, let := range held {
			let()
		}
	}
	if model.Reserved(q.Kind) {
		return release, nil // its kind is made for the query
	}
	for _, k := range db.stored(q) {
		for _, d := range q.Needs() {
			for !k.Indexed(d) {
				if err := db.await(ctx, k, d); err != nil {
					release()
					return nil, err
				}
			}
			held = append(held, k.Hold(d))
		}
	}
	return release, nil
}

// await builds an index, or waits for whoever builds it.
func (db *database) await(ctx context.Context, k *store.Kind, d store.Definition) error {
	if b := k.Building(d); b != nil {
		db.mu.Unlock()
		select {
		case <-b.Done:
		case <-ctx.Done():
		}
		db.mu.Lock()
	} else {
		db.build(k, d)
	}
	switch {
	case db.closed:
		return errClosed
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	}
	return nil
}

// build builds an index, unless the database is reset meanwhile.
func (db *database) build(k *store.Kind, d store.Definition) {
	few := k.Records.Len() <= fewRecords
	b := k.Build(d)
	for b.Next() {
		if few {
			b.Work()
			continue
		}
		db.mu.Unlock()
		b.Work()
		db.mu.Lock()
		if db.closed {
			b.End()
			return
		}
	}
	db.boundIndexes()
}

// boundIndexes drops indexes that nobody has asked for in a while, if all of them take
// too much memory.
func (db *database) boundIndexes() {
	for db.totals.Indexes > db.opts.IndexMemory && store.DropUnused(&db.totals, db.allKinds) {
	}
}

func (db *database) allKinds(yield func(*store.Kind) bool) {
	for _, kinds := range db.namespaces {
		for _, k := range kinds {
			if !yield(k) {
				return
			}
		}
	}
}

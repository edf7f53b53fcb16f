package dsemu

import (
	"context"
	"runtime"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator/internal/metadata"
	"github.com/scattermap/scattermap/emulator/internal/model"
	"github.com/scattermap/scattermap/emulator/internal/query"
	"github.com/scattermap/scattermap/emulator/internal/store"
)

// Sizes up to which an index is built in one go, without unlocking the database in between: the
// number of records, and of their values.
const (
	fewRecords = 256
	fewValues  = 4096
)

// prepare builds the indexes that a query needs. It protects them from being dropped until the
// caller calls release. The caller has locked the database. While an index is built, prepare
// unlocks the database, so that other calls go on. Calls that need the same index wait for it.
func (db *database) prepare(ctx context.Context, q *query.Query) (release func(), err error) {
	var held []func()
	release = func() {
		for _, let := range held {
			let()
		}
	}
	if model.Reserved(q.Kind) {
		return release, nil // the query reads entities that are made only for it, and indexes of them do not last
	}
	for settled := false; !settled; {
		settled = true // set to false after the database was unlocked: indexes found before may have been dropped
		needs := q.Needs()
		if len(needs) == 0 {
			break
		}
		for _, k := range db.stored(q) {
			for _, need := range needs {
				d := need.Definition
				for !k.Indexed(d) {
					settled = false
					if err := db.await(ctx, k, d); err != nil {
						release()
						return nil, err
					}
				}
				let, counts := k.Hold(d)
				held = append(held, let)
				switch {
				case counts == nil:
				case need.Narrow(counts):
					settled = false
				default:
					release()
					return nil, status.Errorf(codes.FailedPrecondition,
						"an entity of kind %q has more than %d combinations "+
							"of the values that this query orders by (%s): Datastore writes no such entity where it "+
							"has "+
							"such an index",
						q.Kind, store.MaxEntries, d.Orders())
				}
			}
		}
	}
	return release, nil
}

// await builds an index, or waits until another call has built it.
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

// build builds an index. If the database is reset meanwhile, it stops.
func (db *database) build(k *store.Kind, d store.Definition) {
	few := k.Few(fewRecords, fewValues)
	b := k.Build(d)
	p := &pace{mu: &db.mu, begun: time.Now()}
	for b.Next() {
		if few {
			b.Work(func() {})
			continue
		}
		db.mu.Unlock()
		b.Work(p.rest)
		p.own++
		db.mu.Lock()
		if db.closed {
			b.End()
			return
		}
	}
	db.boundIndexes()
}

// A pace limits the speed at which an index is built. A build takes seconds of processor time, and
// other calls take microseconds. If no processor is idle, a build without rests would delay other
// calls by milliseconds. So the build rests between short turns while other calls come.
type pace struct {
	mu   *mutex
	own  int64 // number of times that the build has locked the database
	seen int64 // number of times that others had locked the database when rest last looked
	at   time.Time

	begun time.Time
}

const (
	restFor   = 50 * time.Microsecond // the length of a rest
	restWhile = 100 * time.Millisecond
	// after this time the build no longer rests, because most clients give up after a minute
	restUntil = 40 * time.Second
)

func (p *pace) rest() {
	now := time.Now()
	if others := p.mu.locked.Load() - p.own; others != p.seen {
		p.seen, p.at = others, now
	}
	if now.Sub(p.at) < restWhile && now.Sub(p.begun) < restUntil {
		time.Sleep(restFor)
	} else {
		runtime.Gosched()
	}
}

// boundIndexes drops indexes that have not been used for a while, until the rest fits in
// [Options.IndexMemory].
func (db *database) boundIndexes() {
	for db.totals.Indexes > db.opts.IndexMemory && store.DropUnused(&db.totals, db.allKinds) {
	}
}

func (db *database) allKinds(yield func(*store.Kind) bool) {
	db.namespaces.Scan(func(_ string, all *metadata.Kinds) bool {
		more := true
		all.Scan(func(_ string, k *store.Kind) bool {
			more = yield(k)
			return more
		})
		return more
	})
}

package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// Parallel is the largest number of database calls that one caller makes at the same time.
const Parallel = 16

// A Source reads entities from a database, either its present state or its state at a past time.
type Source struct {
	Client *datastore.Client
	log    *slog.Logger
	At     *snapshot // reads the state at a past time; nil: the present state is read
	// uncounted is set to true when the database answers that it does not implement aggregations.
	// All copies of the Source share it.
	uncounted *atomic.Bool
}

// New returns a source that reads the present state of the database. A nil logger logs nothing.
func New(client *datastore.Client, log *slog.Logger) Source {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return Source{Client: client, log: log, uncounted: new(atomic.Bool)}
}

// Counts reports whether the database may be asked to count. It returns false after the database
// has answered that it does not implement counts.
func (src Source) Counts() bool { return !src.uncounted.Load() }

// CantCount records that the database does not implement counts, so that the source sends no more
// of them.
func (src Source) CantCount() { src.uncounted.Store(true) }

// Of returns the source that reads the entities of a query. If the query has a ReadTime, this
// source reads the database's state at that time. It can then be used until ctx ends.
func (src Source) Of(ctx context.Context, q query.Query) Source {
	if !q.ReadTime.IsZero() {
		src.At = snapshotAt(ctx, src.Client, q.ReadTime)
	}
	return src
}

// Get returns a function that looks up entities. It has the arguments of the Go client's GetMulti.
func (src Source) Get(ctx context.Context) func([]*datastore.Key, any) error {
	return func(keys []*datastore.Key, dst any) error {
		if src.At == nil {
			return src.Client.GetMulti(ctx, keys, dst)
		}
		tx, err := src.At.transaction()
		if err != nil {
			return err
		}
		return tx.GetMulti(keys, dst)
	}
}

// Stored returns a [Get], a function that looks up entities as they are stored, with their
// versions.
func (src Source) Stored(ctx context.Context) Get {
	if src.At != nil {
		return taking(src.Get(ctx), src.At.taken)
	}
	ctx, taken := wire.TakenBy(ctx)
	return taking(src.Get(ctx), taken)
}

// Patience limits a call of the database while a person waits for the answer. Without this limit,
// the Go client would retry each call for a minute, and its error would only say that it took too
// long.
const Patience = 20 * time.Second

// Answered calls ask with a context that ends after Patience, because a person waits for the
// result. If the database does not answer in time, the returned error names the database.
func Answered(ctx context.Context, ask func(context.Context) error) error {
	asking, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	return Unanswered(ctx, ask(asking))
}

// Unanswered adds the database's address to err if this is the error of a call that got no answer.
// If the caller has ended ctx, it returns err unchanged.
func Unanswered(ctx context.Context, err error) error {
	code := status.Code(err)
	if ctx.Err() != nil || code != codes.Unavailable && code != codes.DeadlineExceeded &&
		!errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	at := "Datastore itself, as $DATASTORE_EMULATOR_HOST is not set"
	if host := os.Getenv("DATASTORE_EMULATOR_HOST"); host != "" {
		at = fmt.Sprintf("%s, which $DATASTORE_EMULATOR_HOST names", host)
	}
	return fmt.Errorf("the database does not answer (it is %s, unless the client was made for another address): %w", at,
		err)
}

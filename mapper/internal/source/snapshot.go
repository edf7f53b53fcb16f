package source

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// A snapshot reads the database's state at a past time. It reads in read-only transactions, because
// the Go client has no other way to set the time. These transactions lock nothing, and need not be
// ended. A nil snapshot reads the present state.
type snapshot struct {
	ctx    context.Context // the context of the transactions that look entities up
	client *datastore.Client
	at     time.Time
	taken  *wire.Taken // receives the entities that are looked up

	turn        *semaphore.Weighted // guards the fields below
	tx          *datastore.Transaction
	begun, used time.Time
}

// Limits of one transaction of a snapshot. It gets no new calls when it is older than snapshotAge,
// or when its last call was more than snapshotIdle ago. Datastore ends a transaction after 270
// seconds, or after 60 seconds without a call [the limits page of Datastore]. So the limits are
// about half of that.
const (
	snapshotAge  = 2 * time.Minute
	snapshotIdle = 30 * time.Second
)

// certain is how far back Datastore certainly keeps its states: an hour, less a difference between
// clocks. If it refuses a later time as too old, the refusal has another cause, and does not last.
const certain = 50 * time.Minute

// snapshotAt returns a snapshot that reads the database's state at the given time, in whole
// microseconds: Datastore refuses times of a higher precision. The snapshot can be used until ctx
// ends.
func snapshotAt(ctx context.Context, client *datastore.Client, at time.Time) *snapshot {
	ctx, taken := wire.TakenBy(ctx)
	return &snapshot{ctx: ctx, client: client, at: at.Truncate(time.Microsecond), taken: taken,
		turn: semaphore.NewWeighted(1)}
}

// A snapshotError says that the database can't read its state at a past time, for example because
// the time is too long ago.
type snapshotError struct {
	at    time.Time
	cause error
}

func (e snapshotError) Error() string {
	return fmt.Sprintf("the database can't be read as it was at %s: Datastore keeps the last hour. With "+
		"point-in-time recovery it keeps seven days, in whole minutes: %v",
		e.at.Format(time.RFC3339Nano), e.cause)
}

func (e snapshotError) Unwrap() error { return e.cause }

// transaction returns a transaction that reads the state at the snapshot's time. It starts a new
// one if the last one is too old.
func (s *snapshot) transaction() (*datastore.Transaction, error) {
	if err := s.turn.Acquire(s.ctx, 1); err != nil {
		return nil, err
	}
	defer s.turn.Release(1)
	if s.tx == nil || time.Since(s.begun) > snapshotAge || time.Since(s.used) > snapshotIdle {
		begun := time.Now()
		tx, err := s.client.NewTransaction(s.ctx, datastore.ReadOnly, datastore.WithReadTime(s.at))
		switch code := status.Code(err); {
		case code == codes.InvalidArgument, code == codes.FailedPrecondition && time.Since(s.at) > certain:
			return nil, fault.Fatal(snapshotError{s.at, err})
		case err != nil:
			return nil, fmt.Errorf("start to read the snapshot: %w", err)
		}
		s.tx, s.begun = tx, begun
	}
	s.used = time.Now()
	return s.tx, nil
}

// Query returns a copy of q that reads the state at the snapshot's time. For a nil snapshot it
// returns q.
func (s *snapshot) Query(q *datastore.Query) (*datastore.Query, error) {
	if s == nil {
		return q, nil
	}
	tx, err := s.transaction()
	if err != nil {
		return nil, err
	}
	return q.Transaction(tx), nil
}

// ended reports whether err, the error of a scan, may only mean that the database has ended the
// snapshot's transaction. The first argument is when the scan was started. If ended returns true,
// the caller starts the scan again.
func (s *snapshot) ended(begun time.Time, err error) bool {
	return s != nil && status.Code(err) == codes.InvalidArgument && time.Since(begun) > snapshotIdle
}

package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// ReserveRate reserves a part of a job's rate for pages of entities, or for calls of a service. All
// processes share the reservations, which are in a record with the given key, the rate clock.
// ReserveRate returns when the new reservation starts, and which reservations come before it.
//
// If the stored clock is for an earlier rate of the job, reservations start again from now. For a
// job that has ended, ReserveRate makes no new clock, because the job's end has already deleted its
// clocks.
//
// The parameter ahead is how far the clock of the fastest process is known to be ahead of this
// process' clock. ReserveRate sets it if the record shows that this is more. All processes use the
// time of the fastest clock. Otherwise the other processes would wait until the time of their own
// clocks has reached its reservations.
func (st Store) ReserveRate(
	ctx context.Context, job *record.Job, key *datastore.Key, ahead *time.Duration, ask pace.Ask,
) (begin time.Time, q pace.Queue, err error) {
	err = st.Transact(ctx, func(tx *datastore.Transaction) error {
		stored := new(record.RateClock)
		err := property.IgnoreUndeclared(tx.Get(key, stored))
		now := time.Now().Add(*ahead) // after the read: otherwise a reservation during the read would look ahead
		clock := pace.Clock{Until: now, At: now}
		switch {
		case errors.Is(err, datastore.ErrNoSuchEntity):
			if err := mayHaveClock(tx, job.Ref()); err != nil {
				return err
			}
		case err != nil:
			return err
		case bytes.Equal(stored.Rate, job.Rate):
			clock = pace.Clock{Until: stored.Until, At: stored.At, Ahead: stored.Ahead}
			if more := stored.At.Sub(now); more > 0 {
				*ahead, now = *ahead+more, stored.At
			}
		}
		begin, q = clock.Reserve(now, ask)
		begin = begin.Add(-*ahead)
		return Write(tx, datastore.NewUpsert(key, &record.RateClock{Rate: job.Rate,
			Until: micros(clock.Until), At: micros(clock.At), Ahead: clock.Ahead}))
	})
	if err != nil {
		return begin, q, fmt.Errorf("reserve the rate of job %s: %w", job.ID, err)
	}
	return begin, q, nil
}

// mayHaveClock returns an error if the job has ended. Otherwise it notes in the job's record that
// the end of the job must delete its rate clocks.
func mayHaveClock(tx *datastore.Transaction, job record.Ref) error {
	j, err := GetJob(tx, job)
	if err != nil {
		return err
	}
	if j.Over() {
		return fmt.Errorf("%w: it is %q", record.ErrState, j.State)
	}
	if j.Drafted {
		return nil
	}
	j.Drafted = true
	return Write(tx, j.Update())
}

// micros rounds a time down to microseconds, the precision that Datastore stores.
func micros(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

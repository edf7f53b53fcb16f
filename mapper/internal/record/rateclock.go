package record

import (
	"time"

	"cloud.google.com/go/datastore"
)

// A RateClock is a record that all processes of a job share. It says until when they have reserved
// the job's rate. A running job with a rate limit has one clock for its pages. If it has a rate of
// calls, it has another clock for its function's calls. The clocks are deleted when the job ends.
// Their kind is [DraftKind].
type RateClock struct {
	Rate []byte `datastore:"rate,noindex"` // the job's rate for which the reservations were made

	Until time.Time `datastore:"until,noindex"` // the end of the last reservation, see pace.Clock
	At    time.Time `datastore:"at,noindex"`
	Ahead float64   `datastore:"ahead,noindex"`
}

// CallClockKey returns the key of a job's [RateClock] for its function's calls.
func CallClockKey(job Ref) *datastore.Key {
	return datastore.NameKey(DraftKind, RangePrefix(job)+"calls", nil)
}

// RateClockKey returns the key of a job's [RateClock] for its pages.
func RateClockKey(job Ref) *datastore.Key {
	return datastore.NameKey(DraftKind, RangePrefix(job)+"clock", nil)
}

package record

import (
	"time"

	"cloud.google.com/go/datastore"
)

// A RateClock records how much of a job's rate its processes have reserved so far. It is a record
// that they all share. A running job with a rate limit has one clock for its pages. If the limit
// has a rate of calls, it has another one for the calls of its function. The clocks are deleted
// when the job ends. They have the kind of drafts.
type RateClock struct {
	Rate []byte `datastore:"rate,noindex"` // the job's rate for which the reservations were made

	Until time.Time `datastore:"until,noindex"` // the end of the last reservation, see pace.Clock
	At    time.Time `datastore:"at,noindex"`
	Ahead float64   `datastore:"ahead,noindex"`
}

// CallClockKey returns the key of the rate clock of a job's calls.
func CallClockKey(job Ref) *datastore.Key {
	return datastore.NameKey(DraftKind, RangePrefix(job)+"calls", nil)
}

// RateClockKey returns the key of the rate clock of a job's pages.
func RateClockKey(job Ref) *datastore.Key {
	return datastore.NameKey(DraftKind, RangePrefix(job)+"clock", nil)
}

package record

import (
	"time"

	"cloud.google.com/go/datastore"
)

// A RateClock records how much of a job's rate all processes together have reserved. A running job
// has one clock for its pages and one for its function's calls, if the rate limits these. It has
// the kind of drafts, and is deleted with them when the job ends.
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

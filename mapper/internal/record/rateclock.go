package record

import (
	"time"

	"cloud.google.com/go/datastore"
)

// A RateClock says how much of a job's rate all processes together have reserved. A job with a rate
// has one while it runs. It is of the kind of drafts: both go when the job ends.
type RateClock struct {
	Rate []byte `datastore:"rate,noindex"` // the limit that it is about, as the job has it

	Until time.Time `datastore:"until,noindex"` // see pace.Clock
	At    time.Time `datastore:"at,noindex"`
	Ahead float64   `datastore:"ahead,noindex"`
}

// RateClockKey returns the key of the rate clock of a job.
func RateClockKey(job Ref) *datastore.Key {
	return datastore.NameKey(DraftKind, RangePrefix(job)+"rate", nil)
}

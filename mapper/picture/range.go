package picture

import (
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A State is the state of a range in a picture. It may be a guess, because a range's record does
// not say whether a task currently processes the range.
type State string

// The states of ranges.
const (
	// Uncut is the state of a range at a time before it existed. Then it was still a part of
	// another range. Only [Picture.At] returns this state.
	Uncut State = "uncut"
	// Pending is the state of a range that no task seems to have started to process.
	Pending State = "pending"
	// Running is the state of a pending range that a task seems to process, in a running job. The
	// task of the page before has lately continued with the range, or a task has marked its record.
	// Or the range is due, there are workers for all open ranges, and no task is known to wait in
	// the queue.
	Running State = "running"
	// Done is the state of a range whose page is committed. The page may have covered only the
	// start of the range. Then other ranges cover the rest.
	Done State = "done"
	// Slow is the state of a done range that was slow. Its mean time for an entity is more than
	// three times the job's median. And its page took at least 100 ms longer than it would have
	// taken at the median.
	Slow State = "slow"
	// Failed is the state of a range with one entity that has failed all of its attempts.
	Failed State = "failed"
)

// A Place is where a range starts or ends, in the order of keys. It consists of a namespace, a
// kind, a value and a key. A missing part comes before all values of that part.
type Place struct {
	Namespace string `json:"namespace,omitempty"`
	Kind      string `json:"kind,omitempty"`
	// Value is the value of the property in mapper.Query.ShardBy, if there is one.
	Value any `json:"value,omitempty"`
	// Key is the key of the entity at the place. In JSON it is the text of Key.Encode.
	Key *datastore.Key `json:"key,omitempty"`
}

// A Range is one of the job's ranges, as its record describes it.
type Range struct {
	ID    string `json:"id"`
	State State  `json:"state"`
	// Depth is 0 for the root. A range that was cut off another one has the depth of that one plus
	// one, or the same depth if Continues is set.
	Depth int64  `json:"depth"`
	Start *Place `json:"start,omitempty"` // where the range starts; nil: at the start of the query
	End   *Place `json:"end,omitempty"`   // where the range ends; nil: at the end of the query
	Alone bool   `json:"alone,omitempty"` // whether the range has only the entity at Start, which was retried alone

	// Entities is how many entities the range's page processed. For a pending range it is how many
	// are expected in the whole range.
	Entities int64 `json:"entities"`
	Written  int64 `json:"written"`  // how many entities the range's page saved or deleted
	Attempts int64 `json:"attempts"` // number of repeated deliveries of the range's task
	Refusals int64 `json:"refusals"` // number of attempts that failed because of the function or the database
	// Continues says that this range has no task of its own: the task of the page before has
	// continued with it.
	Continues bool `json:"continues"`

	Ran     time.Duration `json:"ran_ns"`          // how long the function ran on the page
	Created time.Time     `json:"created"`         // when the range was cut off another one
	Done    time.Time     `json:"done,omitzero"`   // when the range's page was committed; zero: not yet
	Error   string        `json:"error,omitempty"` // the error of the range's single entity, if that has failed

	// Weight is about how many of the job's ranges this one stands for. It is 1 unless the picture
	// is a sample.
	Weight float64 `json:"weight"`
}

// Pace returns the function's mean time for an entity of the range's page. It is 0 if the page is
// not done or had no entities.
func (r *Range) Pace() time.Duration {
	if r.Entities == 0 || r.Done.IsZero() {
		return 0
	}
	return r.Ran / time.Duration(r.Entities)
}

// FailedAttempts returns the number of failed attempts: the sum of Attempts and Refusals.
func (r *Range) FailedAttempts() int64 { return r.Attempts + r.Refusals }

// entities returns for how many of the job's entities the range stands. In a sample these are more
// than its own.
func (r *Range) entities() float64 { return float64(r.Entities) * r.Weight }

// placeOf converts a position for a picture.
func placeOf(p *keyspace.Position) *Place {
	if p == nil {
		return nil
	}
	space := p.Space()
	return &Place{space.Namespace, space.Kind, p.Value, p.Key}
}

// rangeOf returns the Range for a record. The parameter stands is how many of the job's ranges it
// stands for: in a sample, several. The caller must add whether a task processes the range, and
// whether the range was slow.
func rangeOf(r *record.Range, stands float64) Range {
	v := Range{
		ID: r.ID, State: Pending, Depth: r.Depth, Start: placeOf(r.Start), End: placeOf(r.End), Alone: r.Alone,
		Entities: r.Processed, Written: r.Written,
		Attempts: r.Attempts, Refusals: r.Refusals, Continues: r.Continued, Ran: r.Ran, Created: r.Created,
		Done: r.Done, Error: r.Error, Weight: stands,
	}
	switch {
	case r.Failed != "":
		v.State, v.Entities = Failed, 1
	case r.State == record.Done:
		v.State = Done
	case r.Alone:
		v.Entities = 1
	case r.Estimate > 0 || r.Exact:
		v.Entities = r.Estimate
	default:
		v.Entities = r.PageSize // the size is unknown
	}
	return v
}

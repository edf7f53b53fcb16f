package picture

import (
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A State is how a range stands.
type State string

// The states of ranges.
const (
	// Uncut is the state, at an earlier time, of a range that did not exist yet: what is in it was
	// a part of another one.
	Uncut State = "uncut"
	// Pending is the state of a range whose task has not begun, as far as its record tells.
	Pending State = "pending"
	// Running is the state of a pending range at which a task is, or seems to be: it went on with
	// the range from the page before, has left a mark in the record, or is due while the job has no
	// more open ranges than workers.
	Running State = "running"
	// Done is the state of a range whose page is committed. What lay behind the page is in ranges
	// of its own.
	Done State = "done"
	// Slow is Done, where the function has taken more than three times as long for an entity as it
	// does in half of the pages.
	Slow State = "slow"
	// Failed is the state of a range of one entity that the function could not process.
	Failed State = "failed"
)

// A Place is a bound of a range. What is missing is below everything.
type Place struct {
	Namespace string         `json:"namespace,omitempty"`
	Kind      string         `json:"kind,omitempty"`
	Value     any            `json:"value,omitempty"` // of the property that the job is sharded by
	Key       *datastore.Key `json:"key,omitempty"`   // in JSON the text of Key.Encode
}

// A Range is what the record of a range says.
type Range struct {
	ID    string `json:"id"`
	State State  `json:"state"`
	Depth int64  `json:"depth"`           // the root has 0
	Start *Place `json:"start,omitempty"` // nil: from the beginning
	End   *Place `json:"end,omitempty"`   // nil: to the end; where its page ended, another range begins
	Alone bool   `json:"alone,omitempty"` // only the entity at Start

	// that its page processed; of a pending range, those that are expected in all of it
	Entities  int64 `json:"entities"`
	Written   int64 `json:"written"`   // of these, those that were saved or deleted
	Attempts  int64 `json:"attempts"`  // deliveries after the first one
	Refusals  int64 `json:"refusals"`  // attempts that the function or the database refused
	Continues bool  `json:"continues"` // the task of the page before went on with it

	Ran     time.Duration `json:"ran_ns"`          // that the function took for its page
	Created time.Time     `json:"created"`         // when it was cut off
	Done    time.Time     `json:"done,omitzero"`   // when its page was committed
	Error   string        `json:"error,omitempty"` // of its entity, if that has failed

	// Stands is how many ranges of the job it stands for: 1, unless the picture is of a part of
	// them.
	Stands float64 `json:"stands"`
}

// Pace returns how long the function took for an entity of the range's page; 0 if there was none.
func (r *Range) Pace() time.Duration {
	if r.Entities == 0 || r.Done.IsZero() {
		return 0
	}
	return r.Ran / time.Duration(r.Entities)
}

// InVain returns how many attempts have not done the range's page: deliveries that ended without
// it, and attempts that were refused.
func (r *Range) InVain() int64 { return r.Attempts + r.Refusals }

// weight is how many entities the range stands for.
func (r *Range) weight() float64 { return float64(r.Entities) * r.Stands }

// placeOf returns a position as others see it.
func placeOf(p *keyspace.Position) *Place {
	if p == nil {
		return nil
	}
	space := p.Space()
	return &Place{space.Namespace, space.Kind, p.Value, p.Key}
}

// rangeOf returns what a record says, which stands for so many. Whether a task is at it, and
// whether it was slow, others tell.
func rangeOf(r *record.Range, stands float64) Range {
	v := Range{
		ID: r.ID, State: Pending, Depth: r.Depth, Start: placeOf(r.Start), End: placeOf(r.End), Alone: r.Alone,
		Entities: r.Processed, Written: r.Written,
		Attempts: r.Attempts, Refusals: r.Refusals, Continues: r.Continued, Ran: r.Ran, Created: r.Created,
		Done: r.Done, Error: r.Error, Stands: stands,
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
		v.Entities = r.PageSize // nothing is known
	}
	return v
}

// atWork reports whether a task is at a pending range, as far as its record tells, or seems to be:
// one is if there are workers for all of those that are due.
func atWork(r *record.Range, forAll bool, now time.Time) bool {
	return r.State == record.Pending && (r.Begun != "" || r.Continued || forAll && !now.Before(r.Due()))
}

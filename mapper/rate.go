package mapper

import "github.com/scattermap/scattermap/mapper/internal/pace"

// A Rate limits the speed of a job. The zero value is no limit. The job keeps to its rate from the
// first second to the end, with any number of workers and processes. If the function or the database
// is slower than the rate, up to a second of it may be made up for.
//
// Before each page, a process reserves the page's part of the rate in a record that all processes
// share: a transaction for a page, or for several that wait. A page waits up to 20 seconds, so with
// many workers pages are small.
type Rate struct {
	// EntitiesPerSecond is the most entities that are processed in a second. 0 and [Unlimited] are
	// no limit.
	EntitiesPerSecond float64 `json:"entities,omitempty"`

	// WritesPerSecond is the most writes in a second: puts and deletes of the function, and writes
	// of the job's own records. 0 and [Unlimited] are no limit.
	WritesPerSecond float64 `json:"writes,omitempty"`

	// Ramp starts the job at 500 entities and 500 writes a second, and adds half every five
	// minutes. It starts over when the job is resumed, or when [Job.SetRate] turns it on.
	// Datastore's best practices ask for it on a new kind. The other limits hold as well.
	Ramp bool `json:"ramp,omitempty"`
}

// A Budget limits the cost of a job. The zero value is no limit. The job pauses before a page that
// might exceed the budget, Status.Error says so, and [Job.Resume] allows the same amount again.
//
// The cost of a page is estimated from earlier pages. So a function that suddenly puts much more
// may exceed the budget. The job pauses a little early: some thousand reads are reserved for work
// besides pages, and processes reserve the cost of their next pages. A process that dies keeps its
// reservation. The start of the job does not count. An undo takes no budget.
type Budget struct {
	Dollars    float64 `json:"dollars,omitempty"`    // at the prices of [EngineOptions].Prices
	Operations int64   `json:"operations,omitempty"` // reads, writes, deletes, and operations of tasks
}

// Unlimited means no limit, in settings that have one: failures and [Rate].
const Unlimited = -1

// limit returns what the rate allows.
func (r Rate) limit() pace.Limit {
	for _, n := range []*float64{&r.EntitiesPerSecond, &r.WritesPerSecond} {
		if *n == Unlimited {
			*n = 0 // as records have it
		}
	}
	return pace.Limit(r)
}

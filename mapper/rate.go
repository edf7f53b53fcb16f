package mapper

import "github.com/scattermap/scattermap/mapper/internal/pace"

// A Rate limits the speed of a job. The zero value is no limit. The job keeps to its rate from the
// first second to the end, with any number of workers and processes. If the function or the
// database is slower than the rate, the job may later exceed the rate by what it missed, up to one
// second's work.
//
// Before each page, a process reserves the page's part of the rate in a record that all processes
// share. That takes a transaction for a page, or for several pages of the process that wait. A page
// waits up to 20 seconds, so with many workers pages are small.
//
// Calls that the function announces are reserved in the same way, where the function makes them.
// Calls of a page's first entity wait up to a quarter of the queue's dispatch deadline. An entity,
// or a batch, should need no more calls than the rate allows in that time: otherwise its function
// runs again and again.
type Rate struct {
	// EntitiesPerSecond is how many entities are processed in a second at most. 0 and [Unlimited]
	// are no limit.
	EntitiesPerSecond float64 `json:"entities,omitempty"`

	// WritesPerSecond is how many writes are made in a second at most: puts and deletes of the
	// function, and writes of the job's own records. 0 and [Unlimited] are no limit.
	WritesPerSecond float64 `json:"writes,omitempty"`

	// CallsPerSecond is how many calls of an outside service the function makes in a second at most,
	// if it announces each one by [Entity.AwaitCall]. 0 and [Unlimited] are no limit.
	CallsPerSecond float64 `json:"calls,omitempty"`

	// Ramp starts the job at 500 entities and 500 writes a second, and adds half of that rate every
	// five minutes: 500, 750, 1125 and so on. It restarts when the job is resumed, or when
	// [Job.SetRate] turns it on. Datastore's best practices recommend it for a new kind. The other
	// limits apply as well.
	Ramp bool `json:"ramp,omitempty"`
}

// A Budget limits the cost of a job's pages. A limit that is 0 is no limit; if both are set, the
// first one that is reached counts. The job pauses before a page that might exceed the budget, and
// Status.Error says so. [Job.Resume] then allows the same amount again.
//
// The cost of a page is estimated from earlier pages. So a function that suddenly puts much more
// may exceed the budget. The job also pauses a little early: some thousand reads are reserved for
// work besides pages, and each process reserves the cost of its next pages. If a process dies, its
// reservation is lost. The start of the job does not count. An undo takes no budget.
type Budget struct {
	Dollars    float64 `json:"dollars,omitempty"`    // at the prices of [EngineOptions].Prices
	Operations int64   `json:"operations,omitempty"` // reads, writes, deletes and task operations: [billing.Usage]
}

// Unlimited means no limit, in [StartOptions].FailureLimit and in a [Rate].
const Unlimited = -1

// limit returns the rate as records store it.
func (r Rate) limit() pace.Limit {
	for _, n := range []*float64{&r.EntitiesPerSecond, &r.WritesPerSecond, &r.CallsPerSecond} {
		if *n == Unlimited {
			*n = 0 // as records have it
		}
	}
	return pace.Limit(r)
}

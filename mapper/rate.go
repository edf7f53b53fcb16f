package mapper

import "github.com/scattermap/scattermap/mapper/internal/pace"

// A Rate limits the speed of a job. The zero value is no limit. The rate holds on average over a
// minute.
//
// Each task keeps to an equal share of the rate: before a page it waits as long as the page's
// entities take at that rate. The shares are for StartOptions.ExpectedWorkers tasks, or for as many
// as the queue delivers at once if that is more. So if fewer tasks run, the job is slower than its
// rate. It is faster if more run: because the queue was changed since, or because the caller of
// Start may not read the queue's limit. No task waits more than 20 seconds for a page, so pages may
// be smaller.
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

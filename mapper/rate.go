package mapper

import "github.com/scattermap/scattermap/mapper/internal/pace"

// A Rate limits the speed of a job. The zero value is no limit. The limits hold for all workers and
// processes of the job together, from its first second to its end. After a slow phase, the job may
// exceed its rate to catch up, by up to one second's work.
//
// Before each page, a process reserves time for the page in a record that all processes share. That
// takes one transaction for all pages that wait in this process. A page gets few enough entities
// that it waits at most about 20 s, even if all workers wait. So with a low rate and many workers,
// pages are small.
//
// Calls that the function announces are reserved in the same way, at the moment when the function
// announces them. One run of the function may announce as many calls as the rate allows in half of
// the queue's dispatch deadline: 300 s by default. If it announces more, the entity fails as after
// a [Permanent] error, and the error names the calls and the rate. Before that, the job halves the
// batch, or the page of [VisitPages].
type Rate struct {
	// EntitiesPerSecond limits the entities that are processed per second. 0 and [Unlimited] are no
	// limit.
	EntitiesPerSecond float64 `json:"entities,omitempty"`

	// WritesPerSecond limits the writes per second: puts and deletes of the function, and writes of
	// the job's own records. 0 and [Unlimited] are no limit.
	WritesPerSecond float64 `json:"writes,omitempty"`

	// CallsPerSecond is how many calls of an outside service the function makes in a second at
	// most, if it announces each one by [Entity.AwaitCall]. 0 and [Unlimited] are no limit.
	CallsPerSecond float64 `json:"calls,omitempty"`

	// Ramp starts the job at 500 entities and 500 writes a second, and multiplies the rate by 1.5
	// every five minutes: 500, 750, 1125 and so on. It restarts when the job is resumed, or when
	// [Job.SetRate] turns it on. Datastore's best practices recommend such a ramp for a new kind.
	// The other limits apply as well.
	Ramp bool `json:"ramp,omitempty"`
}

// A Budget limits the cost of a job's pages. The job pauses before a page that might exceed the
// budget, and Status.Error says so. [Job.Resume] then allows the same amount again. A limit of 0 is
// no limit. If both limits are set, the job pauses at the first one that it reaches.
//
// The cost of a page is estimated from earlier pages, and includes reads by [Entity.Get], but not
// what the function does with clients of its own. So a job may exceed the budget if its function
// suddenly puts or reads much more. The job also pauses a little early. It keeps back 1,000 reads,
// and the reads of up to 30 pages, for other work. Each process also reserves the cost of its next
// pages. If a process dies, its reservation is lost. The cost of the job's start does not count. An
// undo has no budget.
type Budget struct {
	// Dollars is the limit in dollars, at the prices of [EngineOptions].Prices.
	Dollars float64 `json:"dollars,omitempty"`
	// Operations is the limit of the number of reads, writes, deletes and task operations, see
	// [billing.Usage].
	Operations int64 `json:"operations,omitempty"`
}

// Unlimited means no limit, in [StartOptions].FailureLimit and in a [Rate].
const Unlimited = -1

// limit returns the rate as records store it: with 0 in place of [Unlimited].
func (r Rate) limit() pace.Limit {
	for _, n := range []*float64{&r.EntitiesPerSecond, &r.WritesPerSecond, &r.CallsPerSecond} {
		if *n == Unlimited {
			*n = 0 // as in records
		}
	}
	return pace.Limit(r)
}

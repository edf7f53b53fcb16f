package mapper

import "github.com/scattermap/scattermap/mapper/internal/pace"

// A Rate is how fast a job goes at most. The zero value is as fast as it can.
//
// Each of the job's StartOptions.ExpectedWorkers tasks, or of as many as the queue delivers at once
// if those are more, keeps to its share of it by itself: it waits before a page for as long
// as the page's entities take at that rate. So nothing is counted in a record that all
// would write, and if fewer tasks run the job is slower than its rate. If more of them run,
// because the caller of Start may not know how many the queue delivers at once, or because
// the queue was changed since, it is faster. Pages are small enough to be waited for in 20
// seconds; with few workers they are larger and cost fewer writes for records. The rate
// holds on average over a minute.
type Rate struct {
	// EntitiesPerSecond is how many entities are processed in a second. 0 and [Unlimited] are no
	// limit.
	EntitiesPerSecond float64 `json:"entities,omitempty"`

	// WritesPerSecond is how many writes are made in a second: puts and deletes of the function,
	// and those of the job's own records. 0 and [Unlimited] are no limit.
	WritesPerSecond float64 `json:"writes,omitempty"`

	// Ramp has the job begin with 500 entities and 500 writes a second, and allows half
	// as many again every five minutes: from its start, or when it was last resumed, or
	// when [Job.SetRate] turned the ramp on. Datastore asks that of traffic to a kind that
	// is new, on its best practices page. Entities and Writes hold besides.
	Ramp bool `json:"ramp,omitempty"`
}

// A Budget is the most that a job may cost: the zero value is no limit. The job pauses before a
// page that might pass it, which Status.Error says, and [Job.Resume] allows as much again. It
// pauses a little early: what processes have set aside for their next pages counts as spent until
// they give it back, which one that dies does not, and some thousand reads are kept for what is
// around pages. What its start takes does not count. A page costs what those before it did, for an
// entity: one whose function suddenly puts much more may pass the budget. An undo takes none.
type Budget struct {
	Dollars    float64 `json:"dollars,omitempty"`    // at the prices of [EngineOptions].Prices
	Operations int64   `json:"operations,omitempty"` // reads, writes, deletes, and operations of tasks
}

// Unlimited is no limit, where a setting has one: of failures, or of a [Rate].
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

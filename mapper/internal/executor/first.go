package executor

import (
	"context"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// firstTime is how long a job's start waits for First.
const firstTime = 2 * time.Second

// First decides where the root, which is the first range of a new job, is cut. So the job's first
// tasks need not wait for the root's task. First makes a few rounds of short calls. It returns the
// zero value if these do not suffice, if the database does not answer in time, or if the job has
// several kinds or namespaces. Then the root's task cuts the root.
func (x *Executor) First(ctx context.Context, job *record.Job) (first record.First) {
	def := x.Mappers[job.Mapper]
	if def == nil || !job.Masks {
		return first
	}
	ctx, cancel := context.WithTimeout(ctx, firstTime)
	defer cancel()
	p, err := x.planner(ctx, job, def)
	if err != nil || p.Query.Many() || !p.Strategy.Adaptive() {
		return first
	}
	p.Starts = true
	defer p.Close()
	plan, _ := p.Plan(ctx, job, job.RootRange()) // after an error, the plan is empty
	switch {
	case plan.First:
		if pieces, _ := plan.Pieces(); len(pieces) > 1 { // after an error, there are no pieces
			first = record.First{Pieces: pieces, EntitySize: p.EntitySize()}
		}
	case plan.Next == nil && len(plan.At) > 0: // the whole query is one page
		first.Pieces = []split.Piece{plan.Rest()}
	}
	return first
}

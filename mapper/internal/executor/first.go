package executor

import (
	"context"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// firstTime is how long a start waits for First to find out where the job's first range is cut.
const firstTime = 2 * time.Second

// First finds out where the root, which is the first range of a new job, is cut. So the job's first
// tasks need not wait for the root's task. First makes a few rounds of short calls. It returns the
// zero value if these don't suffice, if the database does not answer, or if the job has several
// kinds or namespaces. Then the root's task finds out.
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
	plan, _ := p.Plan(ctx, job, job.RootRange()) // an error comes with an empty plan
	switch {
	case plan.First:
		if pieces, _ := plan.Pieces(); len(pieces) > 1 { // with an error, there are none
			first = record.First{Pieces: pieces, EntitySize: p.EntitySize()}
		}
	case plan.Next == nil && len(plan.At) > 0: // a page
		first.Pieces = []split.Piece{plan.Rest()}
	}
	return first
}

package executor

import (
	"context"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// firstTime is how long a start waits for the cut of its root.
const firstTime = 2 * time.Second

// First finds out how the root of a job is cut that is about to start. So its first tasks need not
// wait for the root's task. It makes a few rounds of short calls. If these don't tell, if the
// database does not answer, or if the job is over several spaces, it returns the zero value: the
// root's task finds out.
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
	plan, err := p.Plan(ctx, job, job.RootRange())
	switch {
	case err != nil:
	case plan.First:
		if pieces, err := plan.Pieces(); err == nil && len(pieces) > 1 {
			first = record.First{Pieces: pieces, EntitySize: p.EntitySize()}
		}
	case plan.Next == nil && len(plan.At) > 0: // a page
		first.Pieces = []split.Piece{plan.Rest()}
	}
	return first
}

package mapper

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"cloud.google.com/go/datastore"
)

// A Proof says whether a job's records cover all of its query,
// without a gap and without an overlap: that every entity that was there while
// the job ran has been processed once, is recorded as a failure, or is still to
// be processed.
type Proof struct {
	Ranges   int      `json:"ranges"`             // records of ranges, without those of single entities
	Pending  int      `json:"pending"`            // of them, those that are not done
	Alone    int      `json:"alone"`              // single entities that are, or were, tried again by themselves
	Failures int      `json:"failures"`           // entities that could not be processed
	Problems []string `json:"problems,omitempty"` // what is wrong, at most 20 of it
}

// maxProblems bounds what a proof lists.
const maxProblems = 20

// Verify reads all records of the job, and checks them against each other. It
// costs a read of every range. A job that runs changes its records meanwhile:
// then the proof may name problems that are none.
func (j *Job) Verify(ctx context.Context) (*Proof, error) { return j.engine.verify(ctx, j.ref()) }

// Verify is [Job.Verify] for programs that have no queue and no mappers: the job's
// database suffices.
func Verify(ctx context.Context, client *datastore.Client, job string) (*Proof, error) {
	return (&Engine{client: client}).verify(ctx, jobRef{ID: job})
}

func (e *Engine) verify(ctx context.Context, ref jobRef) (*Proof, error) {
	id := ref.ID
	job, err := e.loadJob(ctx, ref)
	if err != nil {
		return nil, fmt.Errorf("mapper: verify: %w", err)
	}
	p := new(Proof)
	cleaned := fmt.Errorf("mapper: verify %s: %w: its records are cleaned up", id, ErrState)
	if job.Cleaned {
		return nil, cleaned
	}
	var tiles []*rangeRecord
	var sum totals
	query, err := job.query()
	if err != nil {
		return nil, fmt.Errorf("mapper: verify %s: query: %w", id, err)
	}
	alone := make(map[string]bool)
	ids, children := make(map[string]bool), make(map[string]string)
	children[job.root()] = "the job"
	err = e.each(ctx, records(job.ref(), "", ""), func(r *rangeRecord) error {
		p.checkRange(r)
		ids[r.ID] = true
		for i := range r.Children {
			children[rangeID(r.ID, i)] = "range " + r.ID
		}
		if r.Alone {
			switch {
			case r.Start == nil || r.Start.Key == nil || !query.has(r.Start.space()):
				p.problem("range %s is that of the single entity %v, which is not the query's", r.ID, r.Start)
			case alone[r.Start.Key.Encode()]:
				p.problem("there are two ranges of the single entity %v", r.Start)
			default:
				alone[r.Start.Key.Encode()] = true
			}
		} else {
			tiles = append(tiles, &rangeRecord{ID: r.ID, Start: r.Start, End: r.End})
		}
		return sum.add(r)
	})
	if err != nil {
		return nil, fmt.Errorf("mapper: verify %s: %w", id, err)
	}
	sum.close(job)
	for child, parent := range children {
		if !ids[child] {
			p.problem("range %s of %s is missing", child, parent)
		}
	}
	if len(ids) > len(children) {
		p.problem("%d ranges have no parent", len(ids)-len(children))
	}
	p.checkTiles(tiles)
	p.checkJob(job, sum)
	if job, err = e.loadJob(ctx, job.ref()); err != nil {
		return nil, fmt.Errorf("mapper: verify: %w", err)
	}
	if job.Cleaned { // since the beginning
		return nil, cleaned
	}
	return p, nil
}

func (p *Proof) problem(format string, args ...any) {
	if len(p.Problems) < maxProblems {
		p.Problems = append(p.Problems, fmt.Sprintf(format, args...))
	}
}

// checkRange checks a record by itself.
func (p *Proof) checkRange(r *rangeRecord) {
	if r.Failed != "" {
		p.Failures++
	}
	if r.Alone {
		p.Alone++
	} else {
		p.Ranges++
		if r.State == pending {
			p.Pending++
		}
	}
	if r.State == done && (r.Begun != "" || r.Done.IsZero()) {
		p.problem("range %s is done, at %v, and the delivery %q has begun and not ended", r.ID, r.Done, r.Begun)
	}
	if r.State != pending && r.State != done {
		p.problem("range %s is in the state %q", r.ID, r.State)
	}
	if (r.Open == r.Job) != (r.State == pending) || r.Open != "" && r.Open != r.Job {
		p.problem("range %s is %s, and its mark is %q", r.ID, r.State, r.Open)
	}
	if (r.Failed == r.Job) != (r.Error != "") || r.Failed != "" && (r.Failed != r.Job || !r.Alone || r.State != done) {
		p.problem("range %s is %s, its failure is %q, and its mark is %q", r.ID, r.State, r.Error, r.Failed)
	}
}

// checkTiles checks that ranges follow each other from one end of the query to the other.
func (p *Proof) checkTiles(tiles []*rangeRecord) {
	slices.SortFunc(tiles, func(a, b *rangeRecord) int {
		switch {
		case a.Start == nil && b.Start == nil:
			return 0
		case a.Start == nil:
			return -1
		case b.Start == nil:
			return 1
		}
		return comparePositions(a.Start, b.Start)
	})
	if len(tiles) == 0 || tiles[0].Start != nil || tiles[len(tiles)-1].End != nil {
		p.problem("the ranges do not reach both ends of the query")
	}
	for i := 1; i < len(tiles); i++ {
		if end := tiles[i-1].End; end == nil || !end.equal(tiles[i].Start) {
			p.problem("range %s ends at %v, and the next one, %s, begins at %v", tiles[i-1].ID, end, tiles[i].ID, tiles[i].Start)
		}
	}
}

// checkJob compares the job with what its ranges add up to.
func (p *Proof) checkJob(j *jobRecord, sum totals) {
	switch State(j.State) {
	case Succeeded, SucceededWithFailures:
		if j.Replaying {
			p.problem("the job has %s, and failures are being retried", j.State)
		}
		if j.Finalizes && j.Finalized != j.Epoch {
			p.problem("the job has %s in epoch %d, and its finalizer has taken effect in %d", j.State, j.Epoch, j.Finalized)
		}
		if sum.Pending > 0 {
			p.problem("the job has %s, and %d ranges are pending", j.State, sum.Pending)
		}
		if (State(j.State) == SucceededWithFailures) != (sum.Failures > 0) {
			p.problem("the job has %s, and %d failures", j.State, sum.Failures)
		}
		recorded, err := j.totals()
		if err != nil || recorded.Processed != sum.Processed || recorded.Failures != sum.Failures || recorded.Ranges != sum.Ranges || !maps.Equal(recorded.Counters, sum.Counters) || sum.lost != nil {
			p.problem("the totals of the job are %+v, its ranges add up to %+v", recorded, sum)
		}
	}
}

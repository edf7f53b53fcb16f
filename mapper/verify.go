package mapper

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/proof"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A Proof says whether a job's records cover all of its query, without a gap and without an
// overlap: that every entity that was there while the job ran has been processed once, is recorded
// as a failure, or is still to be processed. It rests on what the tasks have recorded, each in the
// transaction that its page took effect in, and on hashes of it. So it finds records that were
// lost, added or changed, by accident or by mistake, but not those that somebody has forged with
// their hashes; and nothing of what a function should have done and has not.
type Proof struct {
	Ranges         int      `json:"ranges"`             // records of ranges, without those of single entities
	Pending        int      `json:"pending"`            // of them, those that are not done
	SingleEntities int      `json:"alone"`              // single entities that are, or were, tried again by themselves
	Failures       int      `json:"failures"`           // entities that could not be processed
	Problems       []string `json:"problems,omitempty"` // what is wrong, at most 20 of it

	// Compared is how many ranges VerifyEntities has compared with their entities, and Different
	// how many of them have other ones than their pages had. Differences says which, at most 20.
	// That is no problem if entities were put or deleted since, or do not satisfy the query any
	// more.
	Compared    int      `json:"compared,omitempty"`
	Different   int      `json:"different,omitempty"`
	Differences []string `json:"differences,omitempty"`
}

// Err returns nil if nothing is wrong, or an error with the first of Problems. Differences are none
// of them.
func (p *Proof) Err() error {
	switch n := len(p.Problems); n {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("mapper: the job's records do not cover its query: %s", p.Problems[0])
	default:
		return fmt.Errorf("mapper: the job's records do not cover its query: %s (and %d problems more)", p.Problems[0],
			n-1)
	}
}

// Verify reads all records of the job, and checks them against each other. It
// costs a read of every range. Its error is about the reading only: [Proof.Err] says whether
// something is wrong. A job that runs changes its records meanwhile:
// then the proof may name problems that are none.
func (j *Job) Verify(ctx context.Context) (*Proof, error) { return j.engine.verify(ctx, j.ref()) }

// VerifyEntities is [Job.Verify], and lists the keys of the query's entities once more, to compare
// them with those that the pages had: as they are now, or were at a time that the database still
// keeps, such as when the job was started. It costs a keys-only query for each range besides.
func (j *Job) VerifyEntities(ctx context.Context, at time.Time) (*Proof, error) {
	return j.engine.verifyEntities(ctx, j.ref(), at)
}

// Verify is [Job.Verify] for programs that have no queue and no mappers: the job's
// database suffices.
func Verify(ctx context.Context, client *datastore.Client, job string) (*Proof, error) {
	return (&Engine{client: client}).verify(ctx, record.Ref{ID: job})
}

// VerifyEntities is [Job.VerifyEntities] for programs that have no queue and no mappers.
func VerifyEntities(ctx context.Context, client *datastore.Client, job string, at time.Time) (*Proof, error) {
	return (&Engine{client: client}).verifyEntities(ctx, record.Ref{ID: job}, at)
}

func (e *Engine) verify(ctx context.Context, ref record.Ref) (*Proof, error) {
	_, found, err := e.prove(ctx, ref)
	if err != nil {
		return nil, fmt.Errorf("mapper: verify %s: %w", ref.ID, err)
	}
	return found, nil
}

func (e *Engine) verifyEntities(ctx context.Context, ref record.Ref, at time.Time) (*Proof, error) {
	job, found, err := e.prove(ctx, ref)
	var c *proof.Comparison
	if err == nil {
		c, err = proof.OfEntities(ctx, e.store(), e.source(), job, at)
	}
	if err != nil {
		return nil, fmt.Errorf("mapper: verify the entities of %s: %w", ref.ID, err)
	}
	found.Compared, found.Different, found.Differences = c.Compared, c.Different, c.Differences
	return found, nil
}

// prove checks the records of a job, which it returns.
func (e *Engine) prove(ctx context.Context, ref record.Ref) (*record.Job, *Proof, error) {
	job, l, err := proof.OfRecords(ctx, e.store(), ref)
	if err != nil {
		return nil, nil, err
	}
	return job, &Proof{
		Ranges: int(l.Tiles), Pending: int(l.PendingTiles), SingleEntities: int(l.Alone), Failures: int(l.Failures),
		Problems: l.Problems,
	}, nil
}

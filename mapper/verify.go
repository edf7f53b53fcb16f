package mapper

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/proof"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A Proof says whether a job's records cover all of its query, without a gap or an overlap. Then
// every entity that existed while the job ran was processed once, is recorded as a failure, or is
// still to be processed.
//
// It checks the records that tasks wrote in the transactions of their pages, and hashes of these
// records. So it finds records that were lost, added or changed by accident. It does not find
// records that were forged together with their hashes, and does not check what the function did.
type Proof struct {
	Ranges         int      `json:"ranges"`             // records of ranges, without records of single entities
	Pending        int      `json:"pending"`            // of them, those that are not done
	SingleEntities int      `json:"alone"`              // entities that are, or were, retried alone
	Failures       int      `json:"failures"`           // entities that could not be processed
	Problems       []string `json:"problems,omitempty"` // what is wrong, at most 20 of it

	// Compared is the number of ranges that VerifyEntities compared with their entities. Different
	// counts the ranges whose entities differ from their page's entities, and Differences describes
	// up to 20 of them. They are no problem if entities were put or deleted since, or no longer
	// satisfy the query.
	Compared    int      `json:"compared,omitempty"`
	Different   int      `json:"different,omitempty"`
	Differences []string `json:"differences,omitempty"`
}

// Err returns nil if there are no Problems, or an error with the first one. Differences are not
// Problems.
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

// Verify reads all records of the job and checks them against each other, at a read for each range.
// Its error is only about the reading: [Proof.Err] says whether something is wrong. A running job
// changes its records meanwhile, so its proof may name problems that do not exist.
func (j *Job) Verify(ctx context.Context) (*Proof, error) { return j.engine.verify(ctx, j.ref()) }

// VerifyEntities is [Job.Verify], and also compares the keys of the query's entities with the keys
// that the pages had. The entities are read as of a time that the database still keeps, such as the
// job's start; the zero time is now. That costs a keys-only query for each range.
func (j *Job) VerifyEntities(ctx context.Context, at time.Time) (*Proof, error) {
	return j.engine.verifyEntities(ctx, j.ref(), at)
}

// Verify is [Job.Verify] for programs that have only the job's database, without queue and mappers.
func Verify(ctx context.Context, client *datastore.Client, job string) (*Proof, error) {
	return (&Engine{client: client}).verify(ctx, record.Ref{ID: job})
}

// VerifyEntities is [Job.VerifyEntities] for programs that have only the job's database, without
// queue and mappers.
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

package mapper

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper/internal/ledger"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// A Proof says whether a job's records cover its query without a gap or an overlap ([Job.Verify]).
// If they do, every entity that existed while the job ran was processed once, is recorded as a
// failure, or is still to be processed.
//
// It checks the records that tasks wrote in the transactions of their pages, and hashes of these
// records. So it finds records that were lost, added or changed by accident. It does not find
// records that were forged together with their hashes. It does not check what the function did.
type Proof struct {
	Ranges         int      `json:"ranges"`             // records of ranges, except single entities
	Pending        int      `json:"pending"`            // ranges that are not done
	SingleEntities int      `json:"alone"`              // records of single entities, which were retried alone
	Failures       int      `json:"failures"`           // of the single entities, those that have failed
	Problems       []string `json:"problems,omitempty"` // up to 20 problems

	// Compared is the number of ranges whose entities were compared, if [VerifyOptions].Entities is
	// set. Different counts the ranges whose keys are not the keys that their page processed, and
	// Differences describes up to 20 of them. A difference is no problem if entities were put or
	// deleted since, or no longer satisfy the query.
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

// VerifyOptions say what [Job.Verify] checks besides the job's records.
type VerifyOptions struct {
	// Entities also compares the query's keys with the keys that the pages processed. It costs a
	// keys-only query for each range. Defaults to false.
	Entities bool

	// ReadTime is the time of the database's state with which the records are compared. It requires
	// Entities, and Datastore must still keep it: see [Query].ReadTime. The job's start is a good
	// choice. Defaults to now.
	ReadTime time.Time
}

// Verify reads all records of the job and checks them against each other, at a read for each range.
// Its error is only about the reading: call [Proof.Err] to see whether something is wrong. The
// records of a running job change while Verify reads them, so its proof may name problems that do
// not exist. A nil o checks only the records.
func (j *Job) Verify(ctx context.Context, o *VerifyOptions) (*Proof, error) {
	return verify(ctx, j.engine.store(), j.engine.source(), j.ref(), o)
}

// VerifyJob is [Job.Verify] for programs that have only the job's database, without queue and
// mappers.
func VerifyJob(ctx context.Context, client *datastore.Client, job string, o *VerifyOptions) (*Proof, error) {
	return verify(ctx, store.New(client).Asked(), source.New(client, nil), record.Ref{ID: job}, o)
}

func verify(
	ctx context.Context, st store.Store, src source.Source, ref record.Ref, o *VerifyOptions,
) (_ *Proof, err error) {
	var opts VerifyOptions
	if o != nil {
		opts = *o
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("mapper: verify %s: %w", ref.ID, err)
		}
	}()
	if !opts.Entities && !opts.ReadTime.IsZero() {
		return nil, setting.Errorf("%w: VerifyOptions.ReadTime is set, and VerifyOptions.Entities is not",
			ErrInvalidArgument)
	}
	job, found, err := prove(ctx, st, ref)
	if err != nil || !opts.Entities {
		return found, err
	}
	c, err := ledger.OfEntities(ctx, st, src, job, opts.ReadTime)
	if err != nil {
		return nil, fmt.Errorf("compare the entities: %w", err)
	}
	found.Compared, found.Different, found.Differences = c.Compared, c.Different, c.Differences
	return found, nil
}

// prove checks the records of a job, which it returns.
func prove(ctx context.Context, st store.Store, ref record.Ref) (*record.Job, *Proof, error) {
	job, l, err := ledger.OfRecords(ctx, st, ref)
	if err != nil {
		return nil, nil, err
	}
	return job, &Proof{
		Ranges: int(l.Tiles), Pending: int(l.PendingTiles), SingleEntities: int(l.Alone), Failures: int(l.Failures),
		Problems: l.Problems,
	}, nil
}

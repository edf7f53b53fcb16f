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

// A Proof is the result of [Job.Verify]. It says whether the job's records cover its query without
// a gap or an overlap. If they do, every entity that existed while the job ran was processed once,
// is recorded as a failure, or will still be processed.
//
// Verify checks the records that the pages' transactions wrote, and hashes of these records. So it
// finds records that were lost, added or changed by accident. It does not find records that were
// forged together with their hashes, and does not check what the function did.
type Proof struct {
	Ranges  int `json:"ranges"`  // the number of records of ranges, except single entities
	Pending int `json:"pending"` // the number of ranges that are not done
	// SingleEntities is the number of records of single entities, which were retried alone.
	SingleEntities int `json:"alone"`
	// Failures is the number of single entities that have failed all attempts.
	Failures int      `json:"failures"`
	Problems []string `json:"problems,omitempty"` // descriptions of up to 20 problems

	// With [VerifyOptions].Entities, Compared is the number of ranges whose keys were compared with
	// the keys that their page processed. Different is the number of ranges for which the two
	// differ, and Differences describes up to 20 of them. Differences are normal if entities were
	// put or deleted since, or no longer satisfy the query.
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
	// Entities makes Verify also compare the query's keys with the keys that the pages processed.
	// That costs a keys-only query for each range. Defaults to false.
	Entities bool

	// ReadTime is the time for which the keys are read, if Entities is set. Datastore must still
	// keep that time: see [Query].ReadTime. The job's start is a good choice. Defaults to now.
	ReadTime time.Time
}

// Verify reads all records of the job and checks that they fit together, at one read for each
// range. Its error says only that reading failed: call [Proof.Err] to see whether the proof has
// problems. If the job still runs, its records change while Verify reads them, so the proof may
// name problems that do not exist. A nil o checks only the records.
func (j *Job) Verify(ctx context.Context, o *VerifyOptions) (*Proof, error) {
	return verify(ctx, j.engine.store(), j.engine.source(), j.ref(), o)
}

// VerifyJob is [Job.Verify] for a program that has only the job's database, and no engine.
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
	if !opts.ReadTime.IsZero() {
		if err := src.CheckTime(ctx, opts.ReadTime); err != nil {
			return nil, err
		}
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

// prove reads and checks the records of a job. It returns the job's record and the proof.
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

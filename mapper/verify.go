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

	// Compared is how many ranges were compared with their entities, see [VerifyOptions], and
	// Different how many of them have other ones than their pages had. Differences says which, at
	// most 20. That is no problem if entities were put or deleted since, or do not satisfy the
	// query any more.
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

// VerifyOptions say what a [Job.Verify] looks at besides the job's records.
type VerifyOptions struct {
	// Entities has the keys of the query's entities listed once more, and compared with those that
	// the pages had. It costs a keys-only query for each range.
	Entities bool

	// ReadTime is when the entities were there that are compared: a time that the database still
	// keeps, such as when the job was started. Defaults to now. It is for Entities.
	ReadTime time.Time
}

// Verify reads all records of the job, and checks them against each other, which costs a read of
// every range. Its error is about the reading only: [Proof.Err] says whether something is wrong. A
// job that runs changes its records meanwhile: then the proof may name problems that are none. Nil
// options are the defaults.
func (j *Job) Verify(ctx context.Context, o *VerifyOptions) (*Proof, error) {
	return verify(ctx, j.engine.store(), j.engine.source(), j.ref(), o)
}

// VerifyJob is [Job.Verify] for programs that have no queue and no mappers: the job's database
// suffices.
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

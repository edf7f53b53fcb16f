package ledger

import (
	"context"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Records reads the records of jobs. Package store implements it.
type Records interface {
	LoadJob(ctx context.Context, job record.Ref) (*record.Job, error)
	Fold(ctx context.Context, job *record.Job) (*Ledger, error)
	// EachRecord calls f for all records of a job, concurrently.
	EachRecord(ctx context.Context, job record.Ref, f func(*record.Range) error) error
}

// OfRecords reads all records of a job, and returns the job's record and its ledger, which lists
// the problems. It returns an error if the records were deleted by a clean-up.
func OfRecords(ctx context.Context, st Records, ref record.Ref) (*record.Job, *Ledger, error) {
	job, err := st.LoadJob(ctx, ref)
	if err != nil {
		return nil, nil, err
	}
	if job.Cleaned {
		return nil, nil, job.CleanedUp()
	}
	l, err := st.Fold(ctx, job)
	if err != nil {
		return nil, nil, err
	}
	l.CheckEnd(job)
	if len(l.Problems) > 0 {
		if err := diagnose(ctx, st, job, l); err != nil {
			return nil, nil, err
		}
	}
	switch now, err := st.LoadJob(ctx, job.Ref()); {
	case err != nil:
		return nil, nil, err
	case now.Cleaned: // a clean-up ran during the read
		return nil, nil, now.CleanedUp()
	}
	return job, l, nil
}

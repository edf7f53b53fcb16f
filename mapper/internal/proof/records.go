package proof

import (
	"context"

	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// OfRecords reads all records of a job, and returns the job with the ledger of them, which says
// what is wrong. A job whose records are cleaned up has no proof.
func OfRecords(ctx context.Context, st store.Store, ref record.Ref) (*record.Job, *record.Ledger, error) {
	job, err := st.LoadJob(ctx, ref)
	if err != nil {
		return nil, nil, err
	}
	if job.Cleaned {
		return nil, nil, record.CleanedUp(job)
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
	case now.Cleaned: // since the beginning
		return nil, nil, record.CleanedUp(now)
	}
	return job, l, nil
}

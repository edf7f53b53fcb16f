package undo

import (
	"context"
	"fmt"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
	"github.com/scattermap/scattermap/mapper/internal/undolog"
)

// leftPage is the number of records of an undo's pages that Left reads at once. Each may list up to
// 80 KiB of entities.
const leftPage = 10

// Left returns some of the entities that an undo did not restore, and the cursor from which the
// next call continues.
func Left(
	ctx context.Context, st store.Store, ref record.Ref, cursor string,
) (left []undolog.Left, next string, err error) {
	job, err := st.LoadJob(ctx, ref)
	switch {
	case err != nil:
		return nil, "", err
	case !Is(job.Mapper):
		return nil, "", fmt.Errorf("%w: it is no undo, but a job of mapper %q: give the ID of the undo",
			fault.ErrArguments, job.Mapper)
	case job.Cleaned || job.Cleaning != "":
		return nil, "", job.CleanedUp()
	}
	ranges, next, err := st.Page(ctx, job.Ref(), "left_of", cursor, leftPage)
	for i := 0; err == nil && i < len(ranges); i++ {
		var all []undolog.Left
		var lost int64
		all, lost, err = undolog.DecodeLeft(ranges[i].Left)
		if left = append(left, all...); lost > 0 {
			left = append(left,
				undolog.Left{Why: fmt.Sprintf("%d more are not listed: the job's records have no room for them", lost)})
		}
	}
	return left, next, err
}

package mapper

import (
	"context"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// A Failure is an entity that the function could not process.
type Failure struct {
	Key      *datastore.Key
	Error    string    // of the last attempt
	Attempts int       // that were made
	Time     time.Time // of the last one
}

// Failures returns some failures of the job, and where to go on: an empty cursor
// is the beginning, and the end. A page has up to 100 failures, and costs as many
// reads.
func (j *Job) Failures(ctx context.Context, cursor string) (failures []Failure, next string, err error) {
	job, err := j.engine.store().LoadJob(ctx, j.ref())
	if err != nil {
		return nil, "", fmt.Errorf("mapper: failures: %w", err)
	}
	after, ok := strings.CutPrefix(cursor, job.Incarnation)
	if cursor != "" && (!ok || !record.ValidRangeID(after)) {
		return nil, "", fmt.Errorf("mapper: failures of %s: %w: the cursor %.80q is not one of the job's Failures", j.ID, ErrArguments, cursor)
	}
	ranges, err := j.engine.store().FirstMarked(ctx, "failed", job.Ref(), after, store.FailurePage)
	if err != nil {
		return nil, "", fmt.Errorf("mapper: failures of %s: %w", j.ID, err)
	}
	for _, r := range ranges {
		failures = append(failures, Failure{Key: r.Start.Key, Error: r.Error, Attempts: int(r.Refusals), Time: r.Done})
	}
	if len(ranges) == store.FailurePage {
		next = job.Incarnation + ranges[store.FailurePage-1].ID
	}
	return failures, next, nil
}

package store

import (
	"context"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Due loads jobs of a queue whose retention has come to its end, the one that waits longest first.
func Due(ctx context.Context, st Store, queue record.Owner, now time.Time, limit int) ([]*record.Job, error) {
	from, to := record.RetiringBounds(queue, now)
	q := datastore.NewQuery(record.JobKind).FilterField("retires", ">=", from).FilterField("retires", "<", to)
	return st.jobs(ctx, q.Order("retires").Limit(limit))
}

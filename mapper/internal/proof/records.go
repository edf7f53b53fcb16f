package proof

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// OfRecords reads all records of a job, and returns the job with the ledger of them, which says what is
// wrong. A job whose records are cleaned up has no proof.
func OfRecords(ctx context.Context, st store.Store, ref record.Ref) (*record.Job, *record.Ledger, error) {
	job, err := st.LoadJob(ctx, ref)
	if err != nil {
		return nil, nil, err
	}
	cleaned := fmt.Errorf("%w: its records are cleaned up", record.ErrState)
	if job.Cleaned {
		return nil, nil, cleaned
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
		return nil, nil, cleaned
	}
	return job, l, nil
}

// diagnose says which records are missing or do not fit, of a job for which that is known. It takes
// memory for each of them.
func diagnose(ctx context.Context, st store.Store, job *record.Job, l *record.Ledger) error {
	var turn sync.Mutex
	var tiles []*record.Range
	found, made := make(map[string]bool), map[string]string{job.Root(): "the job"}
	err := st.EachRecord(ctx, job.Ref(), func(r *record.Range) error {
		turn.Lock()
		defer turn.Unlock()
		found[r.ID] = true
		for i := range r.Countable() {
			made[record.RangeID(r.ID, i)] = "range " + r.ID
		}
		if !r.Alone {
			tiles = append(tiles, &record.Range{ID: r.ID, Start: r.Start, End: r.End})
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(made)) {
		if !found[id] {
			l.Problem("range %s of %s is missing", id, made[id])
		}
	}
	for _, id := range slices.Sorted(maps.Keys(found)) {
		if made[id] == "" {
			l.Problem("range %s has no parent", id)
		}
	}
	slices.SortFunc(tiles, func(a, b *record.Range) int {
		if a.Start == nil || b.Start == nil {
			return keyspace.Present(a.Start != nil) - keyspace.Present(b.Start != nil)
		}
		return keyspace.Compare(a.Start, b.Start)
	})
	for i := 1; i < len(tiles); i++ {
		if end := tiles[i-1].End; end == nil || !end.Equal(tiles[i].Start) {
			l.Problem("range %s ends at %v, and the next one, %s, begins at %v", tiles[i-1].ID, end, tiles[i].ID, tiles[i].Start)
		}
	}
	return nil
}

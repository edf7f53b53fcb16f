package proof

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// A Comparison says which ranges have other entities than their pages had.
type Comparison struct {
	Compared, Different int      // ranges
	Differences         []string // which, at most record.MaxProblems
}

// OfEntities compares the entities of a job's ranges that are done with those that their pages had:
// as they are now, or were at a time.
func OfEntities(
	ctx context.Context, st store.Store, src source.Source, job *record.Job, at time.Time,
) (*Comparison, error) {
	q, err := query.Of(job)
	if err != nil {
		return nil, err
	}
	if !at.IsZero() {
		q.ReadTime = at
	}
	var turn sync.Mutex
	found := new(Comparison)
	return found, st.EachRecord(ctx, job.Ref(), func(r *record.Range) error {
		if r.Alone || r.State != record.Done { // one alone is of a page that is done, too
			return nil
		}
		n, keys, err := keysNow(ctx, src, q, r)
		if err != nil {
			return fmt.Errorf("read the keys of range %s: %w", r.ID, err)
		}
		turn.Lock()
		defer turn.Unlock()
		found.Compared++
		if n != r.Entities || !bytes.Equal(keys, r.Keys) {
			if found.Different++; len(found.Differences) < record.MaxProblems {
				found.Differences = append(found.Differences,
					fmt.Sprintf("range %s, from %v to %v: its page had %d entities, and there are %d, not all the same",
						r.ID, r.Start, r.End, r.Entities, n))
			}
		}
		return nil
	})
}

// keysNow returns how many entities a range has, and the digest of their keys.
func keysNow(ctx context.Context, src source.Source, q query.Query, r *record.Range) (n int64, keys []byte, err error) {
	// A call may end a snapshot: it is for one range.
	s := source.NewStream(ctx, src.Of(ctx, q), q, r.Start, r.End, false)
	defer s.Close()
	d := record.NewDigest(record.PageDigest)
	for {
		at, err := s.Peek(query.Batch)
		if err != nil {
			return 0, nil, err
		}
		if len(at) == 0 {
			return n, d.Sum(), nil
		}
		for _, p := range at {
			d.Key(p.Key)
		}
		n += int64(len(at))
		s.Drop(len(at))
	}
}

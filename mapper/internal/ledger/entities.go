package ledger

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Entities reads the database's entities. Package source implements it.
type Entities interface {
	// KeysDigest returns how many entities of a query are in a range, and a hash over their keys.
	KeysDigest(ctx context.Context, q query.Query, start, end *keyspace.Position) (int64, []byte, error)
}

// A Comparison says in how many ranges the database now has other entities than their pages had.
type Comparison struct {
	Compared, Different int      // numbers of ranges that were compared, and that differ
	Differences         []string // descriptions of the first MaxProblems ranges that differ
}

// OfEntities compares, for each range that is done, the entities that its page had with the
// entities in the database. It reads the database as of the time at; a zero time means now.
func OfEntities(
	ctx context.Context, st Records, src Entities, job *record.Job, at time.Time,
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
		// The entity of an Alone range (of one retried entity) is already compared in the range of
		// its page.
		if r.Alone || r.State != record.Done {
			return nil
		}
		n, keys, err := src.KeysDigest(ctx, q, r.Start, r.End)
		if err != nil {
			return fmt.Errorf("read the keys of range %s: %w", r.ID, err)
		}
		turn.Lock()
		defer turn.Unlock()
		found.Compared++
		if n != r.Entities || !bytes.Equal(keys, r.Keys) {
			if found.Different++; len(found.Differences) < MaxProblems {
				found.Differences = append(found.Differences,
					fmt.Sprintf("range %s, %s: its page had %d entities, and there are %d, not all the same",
						r.ID, keyspace.FromTo(r.Start, r.End), r.Entities, n))
			}
		}
		return nil
	})
}

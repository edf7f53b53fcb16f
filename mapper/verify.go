package mapper

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
)

// A Proof says whether a job's records cover all of its query, without a gap and without an
// overlap: that every entity that was there while the job ran has been processed once, is recorded
// as a failure, or is still to be processed. It rests on what the tasks have recorded, each in the
// transaction that its page took effect in, and on hashes of it. So it finds records that were
// lost, added or changed, by accident or by mistake, but not those that somebody has forged with
// their hashes; and nothing of what a function should have done and has not.
type Proof struct {
	Ranges   int      `json:"ranges"`             // records of ranges, without those of single entities
	Pending  int      `json:"pending"`            // of them, those that are not done
	Alone    int      `json:"alone"`              // single entities that are, or were, tried again by themselves
	Failures int      `json:"failures"`           // entities that could not be processed
	Problems []string `json:"problems,omitempty"` // what is wrong, at most 20 of it

	// Compared is how many ranges VerifyEntities has compared with their entities, and Different how
	// many of them have other ones than their pages had. Differences says which, at most 20. That
	// is no problem if entities were put or deleted since, or do not satisfy the query any more.
	Compared    int      `json:"compared,omitempty"`
	Different   int      `json:"different,omitempty"`
	Differences []string `json:"differences,omitempty"`
}

// Verify reads all records of the job, and checks them against each other. It
// costs a read of every range. A job that runs changes its records meanwhile:
// then the proof may name problems that are none.
func (j *Job) Verify(ctx context.Context) (*Proof, error) { return j.engine.verify(ctx, j.ref()) }

// VerifyEntities is [Job.Verify], and lists the keys of the query's entities once more, to compare
// them with those that the pages had: as they are now, or were at a time that the database still
// keeps, such as when the job was started. It costs a keys-only query for each range besides.
func (j *Job) VerifyEntities(ctx context.Context, at time.Time) (*Proof, error) {
	return j.engine.verifyEntities(ctx, j.ref(), at)
}

// Verify is [Job.Verify] for programs that have no queue and no mappers: the job's
// database suffices.
func Verify(ctx context.Context, client *datastore.Client, job string) (*Proof, error) {
	return (&Engine{client: client}).verify(ctx, record.Ref{ID: job})
}

// VerifyEntities is [Job.VerifyEntities] for programs that have no queue and no mappers.
func VerifyEntities(ctx context.Context, client *datastore.Client, job string, at time.Time) (*Proof, error) {
	return (&Engine{client: client}).verifyEntities(ctx, record.Ref{ID: job}, at)
}

func (e *Engine) verify(ctx context.Context, ref record.Ref) (*Proof, error) {
	_, proof, err := e.prove(ctx, ref)
	if err != nil {
		return nil, fmt.Errorf("mapper: verify %s: %w", ref.ID, err)
	}
	return proof, nil
}

// prove checks the records of a job, which it returns.
func (e *Engine) prove(ctx context.Context, ref record.Ref) (*record.Job, *Proof, error) {
	job, err := e.store().LoadJob(ctx, ref)
	if err != nil {
		return nil, nil, err
	}
	cleaned := fmt.Errorf("%w: its records are cleaned up", ErrState)
	if job.Cleaned {
		return nil, nil, cleaned
	}
	l, err := e.store().Fold(ctx, job)
	if err != nil {
		return nil, nil, err
	}
	l.CheckEnd(job)
	if len(l.Problems) > 0 {
		if err := e.diagnose(ctx, job, l); err != nil {
			return nil, nil, err
		}
	}
	switch now, err := e.store().LoadJob(ctx, job.Ref()); {
	case err != nil:
		return nil, nil, err
	case now.Cleaned: // since the beginning
		return nil, nil, cleaned
	}
	return job, &Proof{
		Ranges: int(l.Tiles), Pending: int(l.PendingTiles), Alone: int(l.Alone), Failures: int(l.Failures), Problems: l.Problems,
	}, nil
}

// diagnose says which records are missing or do not fit, of a job for which that is known. It
// takes memory for each of them.
func (e *Engine) diagnose(ctx context.Context, job *record.Job, l *record.Ledger) error {
	var turn sync.Mutex
	var tiles []*record.Range
	found, made := make(map[string]bool), map[string]string{job.Root(): "the job"}
	err := e.store().EachRecord(ctx, job.Ref(), func(r *record.Range) error {
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

func (e *Engine) verifyEntities(ctx context.Context, ref record.Ref, at time.Time) (*Proof, error) {
	fail := func(err error) (*Proof, error) {
		return nil, fmt.Errorf("mapper: verify the entities of %s: %w", ref.ID, err)
	}
	job, proof, err := e.prove(ctx, ref)
	if err != nil {
		return fail(err)
	}
	q, err := query.Of(job)
	if err != nil {
		return fail(err)
	}
	if !at.IsZero() {
		q.ReadTime = at
	}
	var turn sync.Mutex
	err = e.store().EachRecord(ctx, job.Ref(), func(r *record.Range) error {
		if r.Alone || r.State != record.Done { // one alone is of a page that is done, too
			return nil
		}
		n, keys, err := e.keysNow(ctx, q, r)
		if err != nil {
			return fmt.Errorf("read the keys of range %s: %w", r.ID, err)
		}
		turn.Lock()
		defer turn.Unlock()
		proof.Compared++
		if n != r.Entities || !bytes.Equal(keys, r.Keys) {
			if proof.Different++; len(proof.Differences) < record.MaxProblems {
				proof.Differences = append(proof.Differences, fmt.Sprintf("range %s, from %v to %v: its page had %d entities, and there are %d, not all the same", r.ID, r.Start, r.End, r.Entities, n))
			}
		}
		return nil
	})
	if err != nil {
		return fail(err)
	}
	return proof, nil
}

// keysNow returns how many entities a range has, and the digest of their keys.
func (e *Engine) keysNow(ctx context.Context, q query.Query, r *record.Range) (n int64, keys []byte, err error) {
	// A call may end a snapshot: it is for one range.
	s := source.NewStream(ctx, e.source().Of(ctx, q), q, r.Start, r.End, false)
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

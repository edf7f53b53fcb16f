package store

import (
	"context"
	"fmt"
	"sync"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// SampleSize is how many records a sample of a job has, for a status or a picture. Those of one
// call of Datastore are 300.
const SampleSize = 250

// firstRecords reads a sample.
func firstRecords(
	ctx context.Context, st Store, job record.Ref, mark string, most int,
) (some []*record.Range, scale float64, err error) {
	q := Records(job, "", "")
	if mark != "" {
		q = Marked(mark, job, "")
	}
	err = st.Each(ctx, q.Limit(most), func(r *record.Range) error {
		some = append(some, r)
		return nil
	})
	if err != nil || len(some) < most {
		return some, 1, err
	}
	last := some[most-1].ID
	position, err := record.Hash(last)
	if err != nil {
		return nil, 1, fmt.Errorf("job %s: range %q: %w", job.ID, last, err)
	}
	const space = 1 << 64
	return some, space / (float64(position) + 1), nil
}

// Sharing returns a context with which a sample is read once: who asks for it again gets the same
// records.
func Sharing(ctx context.Context) context.Context {
	return context.WithValue(ctx, sharedKey{}, new(shared))
}

type sharedKey struct{}

// A sampled is what a sample is of.
type sampled struct {
	job  record.Ref
	mark string
	most int
}

// A sample is what was read.
type sample struct {
	once    sync.Once
	records []*record.Range
	scale   float64
	err     error
}

// A shared has the samples of a context.
type shared struct {
	mu  sync.Mutex
	all map[sampled]*sample
}

// sample returns what was read, or reads it. Who asks for it meanwhile waits.
func (s *shared) sample(of sampled, read func() ([]*record.Range, float64, error)) ([]*record.Range, float64, error) {
	s.mu.Lock()
	have := s.all[of]
	if have == nil {
		if s.all == nil {
			s.all = make(map[sampled]*sample)
		}
		have = new(sample)
		s.all[of] = have
	}
	s.mu.Unlock()
	have.once.Do(func() { have.records, have.scale, have.err = read() })
	return have.records, have.scale, have.err
}

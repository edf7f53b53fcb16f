package lifecycle_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/split"
	"github.com/scattermap/scattermap/tasks"
)

// TestParallelCalls counts the calls that run at the same time. There must be several, but not so
// many that they block others on the same connection.
func TestParallelCalls(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(w *trialWorld) *record.Job
		do     func(ctx context.Context, w *trialWorld, j *record.Job) error
		method string
		most   int
	}{
		{"abandon open ranges", func(w *trialWorld) *record.Job {
			j := w.aborted("j")
			w.ranges(j, 40, nil)
			return j
		}, func(ctx context.Context, w *trialWorld, j *record.Job) error { return w.Undo(ctx, j, "u") },
			"BeginTransaction", source.Parallel},
		{"delete records", func(w *trialWorld) *record.Job {
			j := w.endedJob("j", "m")
			w.ranges(j, 40*perCommit, func(r *record.Range) { r.State, r.Open = record.Done, "" })
			return w.cleaning(j, lifecycle.CleanUp{})
		}, delivers("sweep", body.Job{Tick: 1}), "Commit", source.Parallel},
		{"retry failures", func(w *trialWorld) *record.Job {
			j := w.stored(w.allDone("j"), func(j *record.Job) { j.Retrying = true })
			w.failures(j, 40)
			return j
		}, delivers("replay", body.Job{}), "BeginTransaction", source.Parallel},
		{"look for lost tasks", func(w *trialWorld) *record.Job {
			j := w.running("j", nil)
			w.ranges(j, 40, nil)
			time.Sleep(time.Hour)
			return j
		}, delivers("sweep", body.Job{Tick: 1}), "CreateTask", source.Parallel},
		{"look for the first tasks", func(w *trialWorld) *record.Job {
			j := w.NewJob("j", "m")
			w.must(w.Store.Create(w.Context(), j, record.First{Pieces: make([]split.Piece, 80)}, nil))
			return w.Job("j")
		}, func(ctx context.Context, w *trialWorld, j *record.Job) error {
			_, err := w.Start(ctx, w.NewJob("j", "m"), j, record.First{}, nil)
			return err
		}, "Lookup", tasks.Parallel},
	} {
		inTrial(t, new(function.Definition), func(w *trialWorld) {
			j := c.before(w)
			var mu sync.Mutex
			now, most := 0, 0
			w.must(c.do(under(w.Context(), func(method string, call func() error) error {
				if method != c.method {
					return call()
				}
				mu.Lock()
				now++
				most = max(most, now)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				now--
				mu.Unlock()
				return call()
			}), w, j))
			if most > c.most || most < c.most/2 {
				w.Errorf("%s: %d calls of %s at once, want %d", c.name, most, c.method, c.most)
			}
			w.must(w.Client.Delete(w.Context(), record.JobKey(j.ID)))
			w.purge()
		})
	}
}

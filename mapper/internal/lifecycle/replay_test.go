package lifecycle_test

import (
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"

	"github.com/scattermap/scattermap/mapper/internal/body"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/tasks"
)

// TestLateReplay delays a delivery of a retry after it has read the failures. Meanwhile the job is
// paused, or another delivery reopens the failures and they are processed. Each failure must be
// processed once.
func TestLateReplay(t *testing.T) {
	for _, c := range []struct {
		name    string
		between func(w *world, j *record.Job, failed []*record.Range)
	}{
		{"paused", func(w *world, j *record.Job, _ []*record.Range) { w.must(w.Pause(w.Context(), j.Ref())) }},
		{"done", func(w *world, j *record.Job, failed []*record.Range) {
			for _, r := range failed {
				r := *r
				w.must(w.World.Jobs.Reopen(w.Context(), j, &r))
				w.must(w.work(w.Context(), tasks.Delivery{Body: body.TaskOf(w.Records(j)[r.ID], j).Body}))
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, new(function.Definition), func(w *world) {
				w.fails[2], w.fails[3] = errBad, errBad
				j := w.NewJob("j", "m")
				w.Begin(j)
				time.Sleep(time.Minute)
				synctest.Wait()
				w.want(record.SucceededWithFailures, "two entities fail", w.done.Load() == 1)
				clear(w.fails)

				// The retry's own tasks are delayed.
				queue := w.Queue.Name()
				_, err := w.Tasks.PauseQueue(w.Context(), &cloudtaskspb.PauseQueueRequest{Name: queue})
				w.must(err)
				w.must(w.Retry(w.Context(), j.Ref(), ""))
				seen := w.Job("j")
				failed, err := w.Store.FirstMarked(w.Context(), "failed", seen.Ref(), "", 10)
				if w.must(err); len(failed) != 2 {
					t.Fatalf("%d failures", len(failed))
				}
				c.between(w, w.Job("j"), failed)
				rt := w.World.Jobs
				for _, r := range failed {
					w.must(rt.Reopen(w.Context(), seen, r))
				}
				_, err = rt.ReopenPage(w.Context(), seen, "")
				w.must(err)
				_, err = w.Tasks.ResumeQueue(w.Context(), &cloudtaskspb.ResumeQueueRequest{Name: queue})
				w.must(err)
				if w.Job("j").State == record.Paused {
					w.must(w.Resume(w.Context(), j.Ref()))
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				sum, err := w.Job("j").RecordedTotals()
				w.must(err)
				w.want(record.Succeeded, c.name, w.done.Load() == 3, sum.Processed == 4, sum.Failures == 0)
			})
		})
	}
}

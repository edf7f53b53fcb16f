package export_test

import (
	"context"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/internal/testbucket"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

// TestDeadlineOfQueue runs exports in a queue whose deadline is not the one of the engine's first
// queue. Each file of such an export may take half of its own queue's deadline.
func TestDeadlineOfQueue(t *testing.T) {
	for _, deadline := range []time.Duration{2 * time.Minute, 30 * time.Minute} {
		x := newExport(testbucket.New().Open(), &export.Options{Files: 2})
		runAsked(t, x.Mappers(), once, func(t *testing.T, client *datastore.Client, d *deployed) {
			putFew(t, client, 40)
			const location, name = "projects/test/locations/here", "projects/test/locations/here/queues/exports"
			_, err := d.tasks.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
				Queue: &cloudtaskspb.Queue{Name: name}})
			if err != nil {
				t.Fatal(err)
			}
			queue, err := tasks.NewQueue(d.tasks, name, "http://worker/mapper/",
				&tasks.Options{InsecureSkipVerify: true, DispatchDeadline: deadline})
			if err != nil {
				t.Fatal(err)
			}
			d.deploy(x.Mappers(), queue)
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			run, err := x.Start(ctx, d.Engine, mapper.Query{Kind: "Order"}, mapper.NoParams{},
				&export.StartOptions{StartOptions: mapper.StartOptions{ID: "n", Queue: "exports"}})
			if err == nil {
				_, err = run.Wait(ctx)
			}
			if err != nil {
				t.Fatalf("in a queue with a deadline of %v: %v", deadline, err)
			}
			jobs := run.Jobs()
			for _, job := range jobs[1:] {
				s, err := job.Status(t.Context())
				if err != nil || s.Queue != name || s.Settings.EntityTimeout != deadline/2 {
					t.Errorf("job %s in %s has the timeout %v, %v; want %v", job.ID, s.Queue, s.Settings.EntityTimeout,
						err, deadline/2)
				}
			}
		})
	}
}

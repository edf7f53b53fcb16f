package main

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/split"
	"github.com/scattermap/scattermap/tasks"
)

// touch writes each comment.
var touch = mapper.Update("touch", func(_ context.Context, c *mapper.Entity[Comment], _ mapper.NoParams) error {
	c.Value.Edits++
	return nil
})

// TestJobs uses an engine with the store's client. Jobs and splits over the kind of comments must
// be refused, with an error that names the alternative. Jobs over other kinds must run.
func TestJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var handler http.Handler
		e := emulator.ForTest(t, &emulator.Options{Transport: emulator.HandlerTransport(
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.ServeHTTP(w, r) }))})
		s := openStore(t, func(opts ...option.ClientOption) (*datastore.Client, error) {
			return e.DatastoreClient(t.Context(), "test", append(opts, mapper.ClientOption())...)
		})
		s.router.now = func() time.Time { return time.Now().AddDate(30, 0, 0) }
		engine := engineOn(t, e, s.Client)
		handler = engine.Handler()

		for i := range 3 {
			if _, err := s.Put(t.Context(), plain(0), &Comment{Order: someOrder(i)}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Put(t.Context(), datastore.IDKey("Note", int64(i+1), nil), &Comment{Order: 1}); err != nil {
				t.Fatal(err)
			}
		}
		for _, q := range []mapper.Query{{Kind: plainKind}, {Kind: plainKind,
			Filters: []mapper.Filter{{Property: "Status", Op: "=", Value: ""}}}} {
			const want = "can't be ordered by __scatter__"
			job, err := touch.Start(t.Context(), engine, q, mapper.NoParams{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if s, err := job.Wait(t.Context()); err != nil || s.State != mapper.StateFailed ||
				!strings.Contains(s.Error, want) {
				t.Errorf("a job over comments: %+v, %v, want it to fail with %q", s, err, want)
			}
			if _, err := split.Query(t.Context(), s.Client, q, 4, nil); status.Code(err) != codes.InvalidArgument ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("splits of comments: %v, want InvalidArgument with %q", err, want)
			}
		}
		job, err := touch.Start(t.Context(), engine, mapper.Query{Kind: "Note"}, mapper.NoParams{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if s, err := job.Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded {
			t.Errorf("a job over another kind: %+v, %v", s, err)
		}
		e.Reset()
		time.Sleep(24 * time.Hour)
	})
}

// engineOn returns an engine that uses the client of a store.
func engineOn(t *testing.T, e *emulator.Emulator, client *datastore.Client) *mapper.Engine {
	t.Helper()
	taskClient, err := e.TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taskClient.Close() })
	const location = "projects/test/locations/here"
	if _, err := taskClient.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: location + "/queues/jobs"}}); err != nil {
		t.Fatal(err)
	}
	queue, err := tasks.NewQueue(taskClient, location+"/queues/jobs", "http://worker/mapper/",
		&tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	engine, err := mapper.NewEngine(client, queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{touch},
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	return engine
}

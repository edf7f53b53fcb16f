package export_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// newEngine returns an engine with an emulated database and queue. The database has three teams.
func newEngine(ctx context.Context, mappers []mapper.AnyMapper) (_ *mapper.Engine, stop func()) {
	var handler http.Handler
	e, err := emulator.Start(&emulator.Options{
		Transport: emulator.HandlerTransport(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			handler.ServeHTTP(w, r)
		}))})
	check(err)
	client, err := e.DatastoreClient(ctx, "test", mapper.ClientOption())
	check(err)
	queues, err := e.TasksClient(ctx)
	check(err)
	_, err = queues.CreateQueue(ctx, &cloudtaskspb.CreateQueueRequest{Parent: "projects/test/locations/here",
		Queue: &cloudtaskspb.Queue{Name: queueName}})
	check(err)
	queue, err := tasks.NewQueue(queues, queueName, "http://worker/mapper/", &tasks.Options{InsecureSkipVerify: true})
	check(err)
	engine, err := mapper.NewEngine(client, queue,
		&mapper.EngineOptions{Mappers: mappers, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	check(err)
	handler = engine.Handler()
	for i, t := range []Team{{"Red", 3}, {"Blue", 0}, {"Green", 12}} {
		_, err := client.Put(ctx, datastore.IDKey("Team", int64(i+1), nil), &t)
		check(err)
	}
	return engine, func() { client.Close(); queues.Close(); e.Close() }
}

package observe_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	_ "github.com/scattermap/scattermap/internal/testflag" // every test package below mapper/ must know its flags
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/observe"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/tasks"
)

type account struct{ Balance int64 }

var raise = mapper.Update("raise", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
	a.Value.Balance++
	return nil
})

// BenchmarkTelemetry reports the time of telemetry without a provider, as a share of the time of an
// Update on the embedded Datastore. It assumes one page per task.
func BenchmarkTelemetry(b *testing.B) {
	const n, page = 20_000, 500
	each := updateOf(b, n)
	t, err := observe.New(nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	job, r := &record.Job{ID: "a", Mapper: "raise"}, new(record.Range)
	for b.Loop() {
		ctx, ended := t.Delivery(b.Context(), "range", tasks.Delivery{})
		left := t.Range(ctx, job, r, tasks.Delivery{ScheduleTime: time.Now()}, time.Now())
		t.CutOff(ctx, job.Mapper, map[string]int64{observe.BeforePage: 3})
		t.Committed(ctx, observe.Page{Mapper: job.Mapper, Job: "a.1", Entities: page, Took: time.Second,
			CutOff: map[string]int64{observe.Late: 1, observe.Failed: 1}})
		left()
		ended(nil)
	}
	perPage := b.Elapsed() / time.Duration(b.N)
	b.ReportMetric(100*perPage.Seconds()/(page*each.Seconds()), "%-of-update")
	b.ReportMetric(float64(each.Nanoseconds()), "ns/entity-of-update")
}

// updateOf runs a job over n entities, and returns its time per entity.
func updateOf(b *testing.B, n int) time.Duration {
	b.Helper()
	var handler http.Handler
	e := emulator.ForTest(b,
		&emulator.Options{
			Transport: emulator.HandlerTransport(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				handler.ServeHTTP(w, r)
			}))})
	client, err := e.DatastoreClient(b.Context(), "test", mapper.ClientOption())
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	for first := 0; first < n; first += 500 {
		keys := make([]*datastore.Key, 500)
		for i := range keys {
			keys[i] = datastore.NameKey("Account", fmt.Sprintf("user-%06d", first+i), nil)
		}
		if _, err := client.PutMulti(b.Context(), keys, make([]account, 500)); err != nil {
			b.Fatal(err)
		}
	}
	taskClient, err := e.TasksClient(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer taskClient.Close()
	const location, name = "projects/test/locations/here", "projects/test/locations/here/queues/q"
	if _, err := taskClient.CreateQueue(b.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: name}}); err != nil {
		b.Fatal(err)
	}
	queue, err := tasks.NewQueue(taskClient, name, "http://worker/mapper/", &tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		b.Fatal(err)
	}
	engine, err := mapper.NewEngine(client, queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{raise}})
	if err != nil {
		b.Fatal(err)
	}
	handler = engine.Handler()
	begun := time.Now()
	job, err := raise.Start(b.Context(), engine, mapper.Query{Kind: "Account"}, mapper.NoParams{}, nil)
	if err != nil {
		b.Fatal(err)
	}
	if s, err := job.Wait(b.Context()); err != nil || s.State != mapper.StateSucceeded {
		b.Fatalf("%+v, %v", s, err)
	}
	return time.Since(begun) / time.Duration(n)
}

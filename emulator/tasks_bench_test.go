package emulator_test

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"

	"github.com/scattermap/scattermap/emulator"
)

// BenchmarkTasks creates tasks with the official client, from 32 goroutines, and waits until all
// are delivered to an empty handler. It runs inside the process, over loopback HTTP, and in batches
// of 100. The goal is 5,000 tasks a second on two cores.
func BenchmarkTasks(b *testing.B) {
	single := func(ctx context.Context, client *cloudtasks.Client, requests []*cloudtaskspb.CreateTaskRequest) error {
		for _, r := range requests {
			if _, err := client.CreateTask(ctx, r); err != nil {
				return err
			}
		}
		return nil
	}
	batch := func(ctx context.Context, client *cloudtasks.Client, requests []*cloudtaskspb.CreateTaskRequest) error {
		op, err := client.BatchCreateTasks(ctx, &cloudtaskspb.BatchCreateTasksRequest{Parent: queueName,
			Requests: requests})
		if err != nil {
			return err
		}
		_, err = op.Wait(ctx)
		return err
	}
	for _, c := range []struct {
		name   string
		http   bool
		create func(context.Context, *cloudtasks.Client, []*cloudtaskspb.CreateTaskRequest) error
	}{{"memory", false, single}, {"http", true, single}, {"batch", false, batch}} {
		b.Run(c.name, func(b *testing.B) { benchmarkTasks(b, c.http, c.create) })
	}
}

func benchmarkTasks(
	b *testing.B, overHTTP bool,
	create func(context.Context, *cloudtasks.Client, []*cloudtaskspb.CreateTaskRequest) error,
) {
	var delivered atomic.Int64
	done := make(chan struct{})
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if delivered.Add(1) == int64(b.N) {
			close(done)
		}
	})
	o := &emulator.Options{UnlimitedRate: true}
	url := "http://worker.example/run"
	if overHTTP {
		url = serve(b, &http.Server{Handler: handler})
	} else {
		o.Transport = emulator.HandlerTransport(handler)
	}
	client, err := emulator.ForTest(b, o).TasksClient(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	if _, err := client.CreateQueue(b.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{
			Name: queueName, RateLimits: &cloudtaskspb.RateLimits{MaxDispatchesPerSecond: 1e6},
		}}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	var left atomic.Int64
	left.Store(int64(b.N))
	var creators sync.WaitGroup
	for range 32 {
		creators.Go(func() {
			const batch = 100
			for {
				n := min(batch, left.Add(-batch)+batch)
				if n <= 0 {
					return
				}
				requests := make([]*cloudtaskspb.CreateTaskRequest, n)
				for i := range requests {
					task := task("")
					task.GetHttpRequest().Url = url
					requests[i] = &cloudtaskspb.CreateTaskRequest{Parent: queueName, Task: task}
				}
				if err := create(b.Context(), client, requests); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	creators.Wait()
	<-done
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
}

package main

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/examples/internal/bank"
	"github.com/scattermap/scattermap/mapper"
)

// TestLateCleanUp stops a process just after it has read the record of a job to clean it up. Other
// processes end the clean-up, and a new job with the same ID starts. When the process continues, it
// must not change the new job.
func TestLateCleanUp(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves stopped processes out")
	}
	t.Parallel()
	const n = 3000
	latency := faults.New(1,
		faults.Rule{Kind: faults.SlowCall, Latency: faults.Uniform{Min: 20 * time.Millisecond,
			Max: 120 * time.Millisecond}})
	latency.Pause()
	var cleaning, stopped atomic.Bool
	stop := make(chan func())
	interceptor := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		resp, err := handler(ctx, req)
		if lookup, ok := req.(*datastorepb.LookupRequest); ok && cleaning.Load() &&
			lookup.Keys[0].Path[0].Kind == "ScattermapJob" && !stopped.Swap(true) {
			stopping := make(chan struct{})
			stop <- func() { close(stopping) }
			<-stopping // the process gets the answer when it continues
		}
		return resp, err
	}
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0", TasksAddr: "127.0.0.1:0", Faults: latency,
		Interceptor: interceptor})
	f, client, engine := newCloud(t, e, e.DatastoreAddr(), n, 60, bank.AddCredit)
	f.route = func(r *http.Request) int {
		if strings.HasSuffix(r.URL.Path, "/cleanup") && !stopped.Load() {
			cleaning.Store(true)
			return 0
		}
		return 1
	}
	start := func() *mapper.Job {
		job, err := bank.AddCredit.Start(t.Context(), engine, mapper.Query{Kind: "Account"}, bank.Credit{Amount: 10},
			&mapper.StartOptions{ID: "nightly", PageSize: 10})
		if err != nil {
			t.Fatal(err)
		}
		return job
	}
	first := start()
	if s, err := first.Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded {
		t.Fatalf("%+v, %v", s, err)
	}
	if err := first.CleanUp(t.Context(), &mapper.CleanUpOptions{IncludeJob: true}); err != nil {
		t.Fatal(err)
	}
	answer := <-stop
	f.signal(0, syscall.SIGSTOP)
	answer()
	f.endCleanUp(e, engine.Job("nightly"))

	latency.Resume()
	second := start()
	for ranges := 0; ranges < 100; {
		var err error
		if ranges, err = client.Count(t.Context(), datastore.NewQuery("ScattermapRange")); err != nil {
			t.Fatal(err)
		}
	}
	f.signal(0, syscall.SIGCONT)
	s, err := second.Wait(t.Context())
	if err != nil || s.State != mapper.StateSucceeded || s.Processed != n || s.Counters["credited"] != n {
		t.Errorf("%+v, %v", s, err)
	}
	latency.Pause()
	if proof, err := second.Verify(t.Context(), nil); err != nil || len(proof.Problems) > 0 {
		t.Errorf("proof %+v, %v", proof, err)
	}
	if right, err := client.Count(t.Context(), datastore.NewQuery("Account").FilterField("Balance", "=",
		20)); err != nil || right != n {
		t.Errorf("%d of %d accounts were credited twice, by two jobs; %v", right, n, err)
	}
}

// endCleanUp runs the waiting sweeps of a job that is being cleaned up, until the job is gone.
func (f *fleet) endCleanUp(e *emulator.Emulator, job *mapper.Job) {
	f.Helper()
	client, err := e.TasksClient(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	defer client.Close()
	for {
		if _, err := job.Status(f.Context()); errors.Is(err, mapper.ErrNoSuchJob) {
			return
		}
		for task, err := range client.ListTasks(f.Context(), &cloudtaskspb.ListTasksRequest{Parent: queue}).All() {
			if err != nil {
				f.Fatal(err)
			}
			if strings.HasSuffix(task.GetHttpRequest().GetUrl(), "/sweep") && task.DispatchCount == 0 {
				// an error means that the task already runs
				_, _ = client.RunTask(f.Context(), &cloudtaskspb.RunTaskRequest{Name: task.Name})
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
}

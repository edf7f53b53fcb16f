package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/examples/internal/bank"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// closing is a mapper that changes nothing. It has a finalizer, so even a small job ends in a task
// of its own.
var closing = mapper.Update("closing", func(context.Context, *mapper.Entity[bank.Account], mapper.NoParams) error {
	return mapper.Skip
}).WithFinalizer(func(context.Context, *mapper.Completion, mapper.NoParams) error { return nil })

// TestTelemetry runs two jobs in the service, in this process. When the service shuts down, a
// collector must receive its metrics and traces.
func TestTelemetry(t *testing.T) {
	var mu sync.Mutex
	received := make(map[string]string)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		received[r.URL.Path] += string(body)
		mu.Unlock()
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	defer collector.Close()
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0", TasksAddr: "127.0.0.1:0"})
	client, err := e.DatastoreClient(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Put(t.Context(), datastore.NameKey("Account", "a", nil), &bank.Account{}); err != nil {
		t.Fatal(err)
	}
	tasks, err := e.TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tasks.Close()
	if _, err := tasks.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: queue}}); err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	url := "http://127.0.0.1:" + port
	for name, value := range map[string]string{
		"GOOGLE_CLOUD_PROJECT": "test", "TASKS_QUEUE": queue, "SERVICE_URL": url, "PORT": port, "AUTH": "off",
		"K_REVISION":              "credit-7",
		"DATASTORE_EMULATOR_HOST": e.DatastoreAddr(), "CLOUD_TASKS_EMULATOR_HOST": e.TasksAddr(),
		"OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL,
	} {
		t.Setenv(name, value)
	}
	own := mappers
	mappers = append(slices.Clone(own), closing)
	defer func() { mappers = own }()
	c, err := configFrom(os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, c, slog.New(slog.NewTextHandler(t.Output(), nil))) }()
	runJob(t, url, `{"mapper": "add-credit", "id": "spring", "query": {"kind": "Account"}, "params": {"Amount": 10}}`)
	runJob(t, url, `{"mapper": "closing", "id": "closed", "query": {"kind": "Account"}, "params": {}}`)
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for path, want := range map[string][]string{
		"/v1/traces":  {"scattermap start", "scattermap range", "scattermap finalize", "service.version", "credit-7"},
		"/v1/metrics": {"scattermap.entities", "scattermap.page.duration", "scattermap.mapper", "add-credit"},
	} {
		for _, text := range want {
			if !strings.Contains(received[path], text) {
				t.Errorf("%s has not received %q", path, text)
			}
		}
		if strings.Contains(received[path], "Account") {
			t.Errorf("%s has received something of an entity", path)
		}
	}
}

// runJob posts the start of a job, and repeats this until the answer says that the job has
// succeeded.
func runJob(t *testing.T, url, body string) {
	t.Helper()
	var text []byte
	for deadline := time.Now().Add(testflag.Patience); ; time.Sleep(10 * time.Millisecond) {
		answer, err := http.Post(url+"/jobs", "application/json", strings.NewReader(body))
		if err == nil {
			text, _ = io.ReadAll(answer.Body)
			answer.Body.Close()
			if strings.Contains(string(text), `"succeeded"`) {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("the job does not end: %s: %s, %v", body, text, err)
		}
	}
}

package main

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/prebuilt"
	"github.com/scattermap/scattermap/tasks"
)

// TestStraight controls jobs on their database and queue directly, with the flag --straight,
// without a request to the service. The service still runs the tasks.
func TestStraight(t *testing.T) {
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0", TasksAddr: "127.0.0.1:0"})
	t.Setenv("DATASTORE_EMULATOR_HOST", e.DatastoreAddr())
	t.Setenv("CLOUD_TASKS_EMULATOR_HOST", e.TasksAddr())
	for _, unset := range []string{"SCATTERMAP_SERVICE", "DATASTORE_PROJECT_ID", "GOOGLE_CLOUD_PROJECT"} {
		t.Setenv(unset, "")
	}
	const location, name = "projects/test/locations/here", "projects/test/locations/here/queues/q"
	client, err := e.DatastoreClient(t.Context(), "test", mapper.ClientOption())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	taskClient, err := e.TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taskClient.Close() })
	if _, err := taskClient.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: name}}); err != nil {
		t.Fatal(err)
	}
	var handler http.Handler
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	queue, err := tasks.NewQueue(taskClient, name, server.URL+"/mapper/", &tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	engine, err := mapper.NewEngine(client, queue,
		&mapper.EngineOptions{Mappers: prebuilt.Mappers(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	handler = engine.Handler()
	for _, id := range []string{"a", "b", "c"} {
		if _, err := client.Put(t.Context(), datastore.NameKey("Account", id, nil), &account{}); err != nil {
			t.Fatal(err)
		}
	}
	straight := " --project test --straight " + name
	target := straight + " --target " + server.URL + "/mapper/"
	for _, test := range []struct {
		line string
		code int
		says string
	}{
		{"jobs" + straight, 0, "No jobs yet."},
		{"plan count --kind Account" + straight, 0, "Entities:"},
		{"start count --kind Account --id counted" + straight, exitUsage, "set --target"},
		{"start count --kind Account --id counted --watch" + target, 0, "counted: succeeded, 3 entities processed"},
		{"start set --kind Account --id set --params '{\"property\": \"n\", \"value\": 1}' --execute --yes --watch" +
			target, 0, "set: succeeded, 3 entities"},
		{"undo set --yes --watch" + target, 0, "3 entities restored"},
		{"jobs" + straight, 0, "undo-set"},
		{"jobs --straight " + name, 0, "undo-set"}, // the project is the one in the queue's name
		{"describe counted" + straight, 0, "Counter:      entities = 3"},
		{"pause counted" + straight, exitError, "the job's state does not allow that"},
		{"retry counted" + straight, exitUsage, "set --target"},
		{"describe nobody" + straight, exitError, "no such job: nobody"},
		{"jobs --project test --straight q", exitUsage, "projects/PROJECT/locations/LOCATION/queues/QUEUE"},
		{"retry counted --target elsewhere" + straight, exitUsage, "http or https URL"},
		{"describe set --project other --straight " + name, exitError, "no such job: set"},
		{"jobs", exitUsage, "--service or $SCATTERMAP_SERVICE"},
	} {
		out, errs, code := command(t, "", words(test.line)...)
		if code != test.code || !strings.Contains(errs+out, test.says) {
			t.Errorf("%s: code %d, want %d and %q:\n%s%s", test.line, code, test.code, test.says, errs, out)
		}
	}
	t.Setenv("DATASTORE_EMULATOR_HOST", "127.0.0.1:1")
	defer func(was time.Duration) { longest = was }(longest)
	longest = time.Second
	if out, errs, code := command(t, "", words("jobs"+straight)...); code != exitError ||
		!strings.Contains(errs, "127.0.0.1:1") || !strings.Contains(errs, "does not answer within 1s") {
		t.Errorf("a database that does not answer: code %d: %s%s", code, errs, out)
	}
}

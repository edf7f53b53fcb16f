package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

var count = mapper.Visit("count", func(_ context.Context, e *mapper.Entity[struct{ N int }], _ mapper.NoParams) error {
	e.Count("seen", 1)
	return nil
})

// TestVerify runs a job, and the command verify proves from its records that it processed
// everything. Then the test deletes a record, and verify must name the gap.
func TestVerify(t *testing.T) {
	var handler http.Handler
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0", Transport: emulator.HandlerTransport(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.ServeHTTP(w, r) }))})
	t.Setenv("DATASTORE_EMULATOR_HOST", e.DatastoreAddr())
	client, err := mapper.NewClient(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	taskClient, err := e.TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taskClient.Close() })
	const location = "projects/test/locations/here"
	if _, err := taskClient.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: location + "/queues/q"}}); err != nil {
		t.Fatal(err)
	}
	queue, err := tasks.NewQueue(taskClient, location+"/queues/q", "http://worker/mapper/",
		&tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	engine, err := mapper.NewEngine(client, queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{count}})
	if err != nil {
		t.Fatal(err)
	}
	handler = engine.Handler()
	var keys []*datastore.Key
	for i := range 300 {
		keys = append(keys, datastore.IDKey("Account", int64(i+1), nil))
	}
	if _, err := client.PutMulti(t.Context(), keys, make([]struct{ N int }, len(keys))); err != nil {
		t.Fatal(err)
	}
	job, err := count.Start(t.Context(), engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
		&mapper.StartOptions{ID: "j", PageSize: 50})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := job.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	verify := func(flags ...string) (string, error) {
		var out strings.Builder
		err := run(t.Context(), append(append([]string{"verify", "--project", "test"}, flags...), "j"), nil, &out,
			io.Discard)
		return out.String(), err
	}
	if out, err := verify(); err != nil || !strings.Contains(out, "6 ranges, 0 of them pending") ||
		!strings.Contains(out, "proven") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := verify("--entities"); err != nil ||
		!strings.Contains(out, "6 ranges compared with their entities: 6 have the same, and 0 others") {
		t.Errorf("%v\n%s", err, out)
	}
	if err := client.Delete(t.Context(), keys[7]); err != nil {
		t.Fatal(err)
	}
	if out, err := verify("--entities"); err != nil || !strings.Contains(out, "different: range") ||
		!strings.Contains(out, ", from the start to /Account,51: its page had 50 entities, and there are 49") ||
		!strings.Contains(out, "also differs if entities were put or deleted") || !strings.Contains(out, "proven") {
		t.Errorf("%v\n%s", err, out)
	}
	ranges, err := client.GetAll(t.Context(), datastore.NewQuery("ScattermapRange").KeysOnly(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Delete(t.Context(), ranges[3]); err != nil {
		t.Fatal(err)
	}
	if out, err := verify(); err == nil || !strings.Contains(out, "problem:") || strings.Contains(out, "proven") {
		t.Errorf("with a gap: %v\n%s", err, out)
	}
}

// TestVerifyByService verifies jobs by the jobs API of a service. An older service says that it is
// older.
func TestVerifyByService(t *testing.T) {
	newService(t, 1000)
	if _, errs, code := command(t, "", words("start count --kind Account --id spring --watch")...); code != 0 {
		t.Fatal(errs)
	}
	at := time.Now().UTC().Add(-time.Second).Format(time.RFC3339)
	older := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"error": "there is no such path: docs/jobs-api.md lists them"}`)
	}))
	t.Cleanup(older.Close)
	for line, want := range map[string]string{
		"verify spring":            "proven: the ranges cover",
		"verify spring --entities": "the same, and 0 others",
		"verify spring --at " + at: "ranges compared with their entities",
		"verify spring -o json":    `"pending": 0`,
		"verify none":              "no such job: none; \"scattermap jobs --all\"",
		"verify spring --at now":   "--at",
		"verify spring --at 2999-01-01T00:00:00Z": "scattermap: verify spring: bad arguments: the database can't be " +
			"read as it was at 2999-01-01T00:00:00Z",
		"verify --service x spring":            "it has to be an http or https URL",
		"verify spring --service " + older.URL: "deploy it with a newer scattermap",
	} {
		out, errs, _ := command(t, "", words(line)...)
		if !strings.Contains(out+errs, want) {
			t.Errorf("%s: %s%s, want %q", line, out, errs, want)
		}
	}
}

// TestVerifyArguments checks the errors for wrong arguments.
func TestVerifyArguments(t *testing.T) {
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0"})
	t.Setenv("DATASTORE_EMULATOR_HOST", e.DatastoreAddr())
	for args, want := range map[string]string{
		"verify":                     "name one job",
		"verify --project test none": "no such job",
		"verify --project test a/b":  "not the ID of a job",
		"verify -nope j":             "-nope",
		"verify --at yesterday j":    "--at",
	} {
		if err := run(t.Context(), strings.Fields(args), nil, io.Discard, io.Discard); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", args, err, want)
		}
	}
}

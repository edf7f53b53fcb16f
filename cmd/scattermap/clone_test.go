package main

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/jobsapi"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/prebuilt"
	"github.com/scattermap/scattermap/tasks"
)

// TestCloneQueue clones a job into its own queue, and into another one. Two services share a
// database, and one of them lacks the job's queue.
func TestCloneQueue(t *testing.T) {
	var handler http.Handler
	e := emulator.ForTest(t, &emulator.Options{
		Transport: emulator.HandlerTransport(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			handler.ServeHTTP(w, r)
		}))})
	client, err := e.DatastoreClient(t.Context(), "test", mapper.ClientOption())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	if _, err := client.Put(t.Context(), datastore.NameKey("Account", "a", nil), &account{}); err != nil {
		t.Fatal(err)
	}
	taskClient, err := e.TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taskClient.Close() })
	day, night := newQueue(t, taskClient, "day"), newQueue(t, taskClient, "night")
	log := slog.New(slog.DiscardHandler)
	serve := func(others ...*tasks.Queue) (*mapper.Engine, string) {
		engine, err := mapper.NewEngine(client, day, &mapper.EngineOptions{Mappers: prebuilt.Mappers(), Logger: log,
			OtherQueues: others})
		if err != nil {
			t.Fatal(err)
		}
		api, err := jobsapi.NewHandler(engine, &jobsapi.Options{Logger: log, Allow: auth.Anybody})
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(api)
		t.Cleanup(server.Close)
		return engine, " --service " + server.URL
	}
	engine, both := serve(night)
	handler = engine.Handler()
	_, one := serve()
	t.Setenv("XDG_CONFIG_HOME", t.TempDir()) // the test's user has not logged in
	const in = `"queue": "projects/test/locations/here/queues/`
	for _, c := range []struct {
		line string
		code int
		want string // a part of the output
	}{
		{"start touch --kind Account --id j --queue night --watch" + both, 0, "j: succeeded"},
		{"clone j --id no" + both, 1, "has processed 1 entity. [y/N]"},
		{"clone j -y -w -o json --id same" + both, 0, in + "night"},
		{"clone j -y -w -o json --id other --queue day" + both, 0, in + "day"},
		{"clone j -y --id none --queue noon" + both, 1, `the engine has no queue "noon": have`},
		{"clone j -y --id lost" + one, 1, "--queue names another queue for the new job"},
		{"clone j -y --id moved --queue day --watch" + one, 0, "moved: succeeded"},
	} {
		out, errs, code := command(t, "", words(c.line)...)
		if code != c.code || !strings.Contains(out+errs, c.want) {
			t.Errorf("%s: exit code %d: %s%s", c.line, code, out, errs)
		}
	}
}

// TestCloneAllows clones a job whose kind is empty by now, and a job that still runs. A refusal names
// the flag that allows it.
func TestCloneAllows(t *testing.T) {
	newService(t, 10)
	for _, c := range []struct {
		line string
		code int
		want string // a part of the output
	}{
		{"start count --kind Nothing --allow-empty --id empty --watch", 0, "empty: succeeded, 0 entities"},
		{"clone empty -y --id no", 1, "if there may be none, set --allow-empty"},
		{"clone empty -y --id again --allow-empty --watch", 0, "again: succeeded, 0 entities"},
		{"start count --kind Account --id slow --rate 1", 0, "slow: running"},
		{"clone slow -y --id no", 1, "or let this one run beside it (--allow-overlap)"},
		{"clone slow -y --id beside --allow-overlap", 0, "beside: running"},
		{"abort slow -y", 0, "slow: aborted"},
		{"abort beside -y", 0, "beside: aborted"},
	} {
		out, errs, code := command(t, "", words(c.line)...)
		if code != c.code || !strings.Contains(out+errs, c.want) {
			t.Errorf("%s: exit code %d: %s%s", c.line, code, out, errs)
		}
	}
}

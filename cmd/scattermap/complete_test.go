package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"github.com/spf13/cobra"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
)

// completions returns the words that the shell offers at the end of a command line.
func completions(t *testing.T, line string) string {
	t.Helper()
	out, errs, code := command(t, "", append([]string{"__complete"}, strings.Split(line, " ")...)...)
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if directive := lines[len(lines)-1]; code != 0 || !strings.HasPrefix(directive, ":") {
		t.Fatalf("%s: exit code %d: %s%s", line, code, out, errs)
	}
	var words []string
	for _, l := range lines[:len(lines)-1] {
		word, _, _ := strings.Cut(l, "\t")
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// TestCompletions completes arguments and flags that name jobs, mappers, states, kinds, queues and
// formats.
func TestCompletions(t *testing.T) {
	url := newService(t, 10)
	command(t, "", words("start count --kind Account --id spring-credit --watch")...)
	tests := []struct{ line, want string }{
		{"describe ", "spring-credit"}, {"describe x", ""}, {"describe spring-credit ", ""},
		{"rate ", "spring-credit"}, {"rate spring-credit ", ""}, {"budget s", "spring-credit"},
		{"start ", "add-credit check copy count delete drop export rename set touch"},
		{"start d", "delete drop"}, {"start d ", ""}, {"plan re", "rename"}, {"mappers t", "touch"},
		{"jobs --mapper c", "check copy count"}, {"stop-all --mapper set", "set"},
		{"jobs --state s", "succeeded succeeded with failures"}, {"jobs --state r", "running"},
		{"start set --kind ", "Account"}, {"start set --kind Acc", "Account"}, {"start set --kind x", ""},
		{"start set --kinds ", "Account"}, {"start set --kinds User,A", "User,Account"},
		{"plan set --kind=A", "Account"},
		{"start set --queue ", "q"}, {"jobs -o ", "table json yaml"}, {"version -o y", "yaml"},
		{"splits --output j", "json"},
	}
	for _, test := range tests {
		if got := completions(t, test.line); got != test.want {
			t.Errorf("%s offers %q, want %q", test.line, got, test.want)
		}
	}
	list := func(context.Context, *cobra.Command) ([]suggestion, error) {
		return []suggestion{{"a,b", ""}, {`say "hi"`, ""}, {"plain", ""}, {"two words", ""}}, nil
	}
	if got, _ := last(offer(list))(nil, nil, "x,"); !slices.Equal(got, []string{"x,plain\t", "x,two words\t"}) {
		t.Errorf("names in a list: %q", got)
	}
	out, _, _ := command(t, "", "__complete", "start", "dele")
	if !strings.HasPrefix(out, "delete\tDeletes entities.\n") {
		t.Errorf("no description: %s", out)
	}
	// a service that does not answer, or is older
	stopped := httptest.NewServer(http.NotFoundHandler())
	stopped.Close()
	t.Setenv("SCATTERMAP_SERVICE", stopped.URL)
	for _, line := range []string{"describe ", "start ", "start set --kind ", "start set --queue ", "jobs --mapper "} {
		if got := completions(t, line); got != "" {
			t.Errorf("%s offers %q", line, got)
		}
		if got := completions(t, "describe --service "+url+" "); got != "spring-credit" {
			t.Errorf("--service: %q", got)
		}
	}
	between(t, url, func(r *http.Request, body string) string {
		r.URL.Path = strings.Replace(r.URL.Path, "mappers", "none", 1)
		return body
	}, same)
	for _, line := range []string{"start ", "start set --kind "} {
		if got := completions(t, line); got != "" {
			t.Errorf("an older service: %s offers %q", line, got)
		}
	}
}

// TestCompletionPatience asks a service that never answers. Nothing is offered, after 3 s.
func TestCompletionPatience(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: it takes 3 s")
	}
	newService(t, 0)
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
	}))
	t.Cleanup(silent.Close)
	t.Setenv("SCATTERMAP_SERVICE", silent.URL)
	if got := completions(t, "start set --kind "); got != "" {
		t.Errorf("%q", got)
	}
}

// TestCompletionsOfDatabase completes kinds without a service.
func TestCompletionsOfDatabase(t *testing.T) {
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0", TasksAddr: "127.0.0.1:0"})
	t.Setenv("DATASTORE_EMULATOR_HOST", e.DatastoreAddr())
	t.Setenv("CLOUD_TASKS_EMULATOR_HOST", e.TasksAddr())
	for _, unset := range []string{"SCATTERMAP_SERVICE", "DATASTORE_PROJECT_ID", "GOOGLE_CLOUD_PROJECT"} {
		t.Setenv(unset, "")
	}
	client, err := e.DatastoreClient(t.Context(), "test", mapper.ClientOption())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	for _, kind := range []string{"Account", "Invoice", "ScattermapJob", "two\nlines"} {
		if _, err := client.Put(t.Context(), datastore.IDKey(kind, 1, nil), &account{}); err != nil {
			t.Fatal(err)
		}
	}
	taskClient, err := e.TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taskClient.Close() })
	const location, queue = "projects/test/locations/here", "projects/test/locations/here/queues/q"
	if _, err := taskClient.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: queue}}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ line, want string }{
		{"splits --project test --kind ", "Account Invoice"}, {"splits --project test --kind I", "Invoice"},
		{"splits --project other --kind ", ""},
		{"start --straight " + queue + " count --kind A", "Account"},
		{"start --straight " + queue + " co", "copy count"},
		{"jobs --straight " + queue + " --state f", "failed"},
	} {
		if got := completions(t, test.line); got != test.want {
			t.Errorf("%s offers %q, want %q", test.line, got, test.want)
		}
	}
}

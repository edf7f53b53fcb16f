package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/examples/internal/bank"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// get sends a request, checks the status code of the answer, and decodes the answer into v.
func (s *site) get(method, path, token, body string, code int, v any) {
	s.Helper()
	got, answer := s.send(method, path, token, body)
	if got != code {
		s.Fatalf("%s %s: %d %s, want %d", method, path, got, answer, code)
	}
	if v != nil {
		if err := json.Unmarshal([]byte(answer), v); err != nil {
			s.Fatalf("%s %s: %v: %s", method, path, err, answer)
		}
	}
}

// await waits until a job is in the given state, and returns its status.
func (s *site) await(id, token string, want mapper.State) (status mapper.Status) {
	s.Helper()
	for deadline := time.Now().Add(testflag.Patience); ; {
		s.get("GET", "/jobs/"+id, token, "", 200, &status)
		if status.State == want {
			return status
		}
		if time.Now().After(deadline) {
			s.Fatalf("the job %s: %+v, want the state %q", id, status, want)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestOperate makes all calls of an operator over HTTP.
func TestOperate(t *testing.T) {
	s := newSite(t)
	admin := s.token(operator, s.url)
	if code, _ := s.send("GET", "/dashboard/", "", ""); code != 401 {
		t.Errorf("a stranger sees the dashboard: %d", code)
	}
	if code, page := s.send("GET", "/dashboard/", admin, ""); code != 200 ||
		!strings.Contains(page, "No jobs yet.") {
		t.Errorf("%d %s", code, page)
	}
	const n = 60
	keys, accounts := make([]*datastore.Key, n), make([]any, n)
	for i := range keys {
		keys[i], accounts[i] = datastore.NameKey("Account", fmt.Sprintf("user-%04d", i), nil), &bank.Account{}
	}
	for i := range 3 { // balances of the wrong type, so that these accounts fail
		accounts[i*20] = &struct{ Balance string }{"much"}
	}
	if _, err := s.client.PutMulti(t.Context(), keys, accounts); err != nil {
		t.Fatal(err)
	}
	// Requests about an unknown job, or with a wrong method, get an error.
	paths := map[string]string{"/jobs": "GET", "/jobs/a/failures": "GET"}
	for do := range strings.FieldsSeq("pause resume abort retry move rate budget") {
		paths["/jobs/a/"+do] = "POST"
	}
	for path, method := range paths {
		if want := map[bool]int{true: 200, false: 404}[path == "/jobs"]; true {
			body := "{}"
			switch { // these two actions need a body: an empty rate or budget is always refused
			case strings.HasSuffix(path, "/rate"):
				body = `{"entities": 5}`
			case strings.HasSuffix(path, "/budget"):
				body = `{"dollars": 5}`
			}
			s.get(method, path, admin, body, want, nil)
		}
		other := map[string]string{"GET": "DELETE", "POST": "GET"}[method]
		s.get(other, path, admin, "", 405, nil)
	}

	start := func(id string) {
		t.Helper()
		s.get("POST", "/jobs", admin,
			fmt.Sprintf(`{"mapper": "add-credit", "id": %q, "query": {"kind": "Account"}, "params": {"Amount": 10}}`,
				id), 200, nil)
	}
	start("first")
	status := s.await("first", admin, mapper.StateSucceededWithFailures)
	if status.Failures != 3 || status.Queue != queue {
		t.Errorf("status %+v", status)
	}
	var failures struct {
		Failures []mapper.Failure
		Next     string
	}
	s.get("GET", "/jobs/first/failures", admin, "", 200, &failures)
	if len(failures.Failures) != 3 || failures.Next != "" || failures.Failures[0].Error == "" ||
		failures.Failures[0].Key.Kind != "Account" {
		t.Errorf("failures %+v", failures)
	}
	// Repair the accounts that have failed, and retry them.
	for i := range 3 {
		if _, err := s.client.Put(t.Context(), keys[i*20], &bank.Account{}); err != nil {
			t.Fatal(err)
		}
	}
	s.get("POST", "/jobs/first/retry", admin, "", 200, nil)
	if status = s.await("first", admin, mapper.StateSucceeded); status.Processed != n {
		t.Errorf("status %+v", status)
	}
	s.get("GET", "/jobs/first/failures", admin, "", 200, &failures)
	if code, answer := s.send("GET", "/jobs/first/failures", admin, ""); code != 200 ||
		!strings.Contains(answer, "[]") {
		t.Errorf("no failures: %d %s", code, answer)
	}

	// A job is paused, listed, slowed down and resumed, and it ends. Another job is aborted.
	// Meanwhile the queue delivers no tasks.
	if _, err := s.tasks.PauseQueue(t.Context(), &cloudtaskspb.PauseQueueRequest{Name: queue}); err != nil {
		t.Fatal(err)
	}
	start("second")
	for range 2 {
		if s.get("POST", "/jobs/second/pause", admin, "", 200, &status); status.State != mapper.StatePaused {
			t.Errorf("paused: %+v", status)
		}
	}
	start("third")
	if s.get("POST", "/jobs/third/abort", admin, "", 200, &status); status.State != mapper.StateAborted {
		t.Errorf("aborted: %+v", status)
	}
	s.get("POST", "/jobs/second/rate", admin, `{"entities": 1e6}`, 200, nil)
	s.get("POST", "/jobs/second/move", admin, "", 200, nil) // the job already belongs to this queue
	for query, want := range map[string]string{"?state=paused&mapper=add-credit&all=true": "second",
		"?state=aborted": "third"} {
		var listed struct {
			Jobs []mapper.JobInfo
			Next string
		}
		s.get("GET", "/jobs"+query, admin, "", 200, &listed)
		if len(listed.Jobs) != 1 || listed.Jobs[0].ID != want || listed.Next != "" {
			t.Errorf("%s: %+v", query, listed)
		}
	}
	if s.get("POST", "/jobs/second/resume", admin, "", 200, &status); status.State != mapper.StateRunning {
		t.Errorf("resumed: %+v", status)
	}
	if _, err := s.tasks.ResumeQueue(t.Context(), &cloudtaskspb.ResumeQueueRequest{Name: queue}); err != nil {
		t.Fatal(err)
	}
	s.await("second", admin, mapper.StateSucceeded)
	var listed struct{ Jobs []mapper.JobInfo }
	s.get("GET", "/jobs?state="+url.QueryEscape(string(mapper.StateSucceeded)), admin, "", 200, &listed)
	if len(listed.Jobs) != 2 || listed.Jobs[0].ID != "second" || listed.Jobs[1].ID != "first" ||
		listed.Jobs[1].Processed != n {
		t.Errorf("jobs: %+v", listed)
	}
	if code, answer := s.send("GET", "/jobs?mapper=none", admin, ""); code != 200 ||
		!strings.Contains(answer, `"jobs":[]`) {
		t.Errorf("no jobs: %d %s", code, answer)
	}

	// The log must name the operator. A line may come a moment after the answer.
	for _, line := range [][]string{
		{`"job running"`, `"job":"first"`, `"cause":"started"`},
		{`"job running"`, `"job":"first"`, `"cause":"its failures are retried"`},
		{`"job paused"`, `"job":"second"`}, {`"job running"`, `"job":"second"`, `"cause":"resumed"`},
		{`"job aborted"`, `"job":"third"`},
	} {
		line = append(line, `"by":"`+operator+`"`)
		for deadline := time.Now().Add(testflag.Patience); !s.logged(line...); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("no line of the log has %q", line)
			}
		}
	}

	// An action that is impossible gets an error that says why.
	for _, c := range []struct {
		method, path, body string
		code               int
		want               string
	}{
		{"POST", "/jobs/second/resume", "", 409, "succeeded"},
		{"POST", "/jobs/second/abort", "", 409, "succeeded"},
		{"POST", "/jobs/second/rate", `{"entities": 1e6}`, 409, "succeeded"},
		{"POST", "/jobs/second/rate", `{"entity": 1000}`, 400, `unknown field "entity"`},
		{"POST", "/jobs/second/rate", ``, 400, "the body is not a rate"},
		{"POST", "/jobs/second/rate", `{"entities": -2}`, 400, "rate"},
		{"POST", "/jobs/none/pause", "", 404, "no such job"},
		{"GET", "/jobs/none/failures", "", 404, "no such job"},
		{"GET", "/jobs?status=failed", "", 400, `unknown parameter "status"`},
		{"GET", "/jobs?state=done", "", 400, `no state "done"`},
		{"GET", "/jobs?cursor=x", "", 400, "cursor"},
		{"GET", "/jobs?all=1", "", 400, "true or false"},
		{"GET", "/jobs?state=failed&state=paused", "", 400, "several values"},
		{"GET", "/jobs/first/failures?cursor=x", "", 400, "cursor"},
	} {
		var answer struct{ Error string }
		if s.get(c.method, c.path, admin, c.body, c.code, &answer); !strings.Contains(answer.Error, c.want) {
			t.Errorf("%s %s: %q, want %q in it", c.method, c.path, answer.Error, c.want)
		}
	}
}

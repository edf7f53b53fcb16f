package jobsapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/jobsapi"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

const location = "projects/test/locations/here"

type account struct{ Balance int64 }

type credit struct{ Amount int64 }

var addCredit = mapper.Update("add-credit", func(_ context.Context, a *mapper.Entity[account], p credit) error {
	a.Value.Balance += p.Amount
	return nil
})

// An office is an engine on an emulator, with some accounts in its database. It has two queues, day
// and night, which deliver no tasks.
type office struct {
	*testing.T
	engine *mapper.Engine
	log    bytes.Buffer
}

func newOffice(t *testing.T) *office {
	t.Helper()
	e := emulator.ForTest(t, nil)
	client, err := e.DatastoreClient(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	taskClient, err := e.TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taskClient.Close() })
	o := &office{T: t}
	var queues []*tasks.Queue
	for _, name := range []string{"day", "night"} {
		name = location + "/queues/" + name
		if _, err := taskClient.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
			Queue: &cloudtaskspb.Queue{Name: name}}); err != nil {
			t.Fatal(err)
		}
		if _, err := taskClient.PauseQueue(t.Context(), &cloudtaskspb.PauseQueueRequest{Name: name}); err != nil {
			t.Fatal(err)
		}
		q, err := tasks.NewQueue(taskClient, name, "http://worker/mapper/", &tasks.Options{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		queues = append(queues, q)
	}
	if o.engine, err = mapper.NewEngine(client, queues[0], &mapper.EngineOptions{Mappers: []mapper.AnyMapper{addCredit},
		OtherQueues: queues[1:],
		Logger:      slog.New(slog.NewTextHandler(&o.log, nil))}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if _, err := client.Put(t.Context(), datastore.NameKey("Account", fmt.Sprint("a", i), nil),
			&account{}); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

// handler returns a handler of the office's jobs.
func (o *office) handler(opts *jobsapi.Options) http.Handler {
	o.Helper()
	opts.Logger = slog.New(slog.NewTextHandler(&o.log, nil))
	h, err := jobsapi.NewHandler(o.engine, opts)
	if err != nil {
		o.Fatal(err)
	}
	return h
}

// ask sends a request to the handler h, checks that the code of the answer is want, and returns the
// answer's body. If v is not nil, it also decodes the body into v.
func (o *office) ask(h http.Handler, method, path, body string, want int, v any, headers ...string) string {
	o.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != want {
		o.Fatalf("%s %s: %d %s, want %d", method, path, w.Code, w.Body, want)
	}
	text := w.Body.String()
	if _, below, ok := strings.Cut(path, "/jobs"); ok && strings.HasPrefix(text, "{") {
		conforms(o.T, method, "/jobs"+below, w.Code, w.Body.Bytes())
	}
	if v != nil {
		if err := json.Unmarshal([]byte(text), v); err != nil {
			o.Fatalf("%s %s: %v: %s", method, path, err, text)
		}
	}
	return text
}

const start = `{"mapper": "add-credit", "id": "spring", "query": {"kind": "Account"}, "params": {"Amount": 10},
	"page_size": 2, "workers": 3, "queue": "night", "rate": {"entities": 100}, "failure_limit": 7}`

// TestAllow checks that requests that are not allowed are refused on every path, and have no
// effect. Without Options.Allow all requests are refused.
func TestAllow(t *testing.T) {
	o := newOffice(t)
	for name, c := range map[string]struct {
		allow func(*http.Request) (string, error)
		want  int
	}{
		"closed by default": {nil, 403},
		"no token": {func(*http.Request) (string, error) {
			return "", fmt.Errorf("%w: secret cause", auth.ErrUnauthenticated)
		}, 401},
		"another account":  {func(*http.Request) (string, error) { return "", auth.ErrForbidden }, 403},
		"a deployer's own": {func(*http.Request) (string, error) { return "", errors.New("secret cause") }, 403},
	} {
		h := o.handler(&jobsapi.Options{Allow: c.allow})
		o.log.Reset()
		for _, path := range []string{"GET /jobs", "POST /jobs", "GET /jobs/a", "GET /jobs/a/failures",
			"GET /jobs/a/history", "GET /jobs/a/causes", "POST /jobs/a/pause", "POST /jobs/a/resume",
			"POST /jobs/a/abort", "POST /jobs/a/retry", "POST /jobs/a/move", "POST /jobs/a/rate",
			"POST /jobs/a/clean-up", "GET /jobs/a/none"} {
			method, path, _ := strings.Cut(path, " ")
			if text := o.ask(h, method, path, start, c.want, nil); strings.Contains(text, "secret") {
				t.Errorf("%s: %s %s tells %s", name, method, path, text)
			}
		}
		if lines := strings.Count(o.log.String(), "request refused"); lines != 14 {
			t.Errorf("%s: %d lines in the log", name, lines)
		}
	}
	if jobs, _, err := o.engine.JobsPage(t.Context(), nil, ""); len(jobs) > 0 || err != nil {
		t.Errorf("there are jobs: %+v, %v", jobs, err)
	}
}

// TestControl sends a request for each action of an operator, with a reason, to a handler with
// another prefix than the default.
func TestControl(t *testing.T) {
	o := newOffice(t)
	h := o.handler(&jobsapi.Options{Prefix: "/api/v1/jobs", Allow: func(r *http.Request) (string, error) {
		return r.Header.Get("Who"), nil
	}})
	var s mapper.Status
	ask := func(method, path, body string, v any) {
		t.Helper()
		o.ask(h, method, "/api/v1/jobs"+path, body, 200, v, "Who", "ann")
	}
	ask("POST", "?reason=the+spring+credit", start, &s)
	if s.State != mapper.StateRunning || s.Queue != location+"/queues/night" || s.Settings.PageSize != 2 ||
		s.Settings.ExpectedWorkers != 3 || s.Settings.FailureLimit != 7 || s.Settings.Rate.EntitiesPerSecond != 100 {
		t.Errorf("started: %+v", s)
	}
	if ask("POST", "/spring/pause?reason=lunch", "", &s); s.State != mapper.StatePaused ||
		!strings.HasPrefix(s.Bottleneck, "paused by ann") ||
		s.Phase != mapper.PhaseDraining {
		t.Errorf("paused: %+v", s)
	}
	if ask("POST", "/spring/rate", `{"entities": 50}`, &s); s.Settings.Rate.EntitiesPerSecond != 50 {
		t.Errorf("rate: %+v", s)
	}
	var lifted mapper.Status
	if ask("POST", "/spring/rate", `{"entities": -1, "for_ns": 60000000000}`, &lifted); lifted.Settings.Rate !=
		(mapper.Rate{}) {
		t.Errorf("without a rate: %+v", lifted)
	}
	if ask("POST", "/spring/rate", `{"entities": 50}`, &s); s.Settings.Rate.EntitiesPerSecond != 50 {
		t.Errorf("rate: %+v", s)
	}
	if ask("POST", "/spring/resume", "", &s); s.State != mapper.StateRunning {
		t.Errorf("resumed: %+v", s)
	}
	if ask("POST", "/spring/move", "", &s); s.Queue != location+"/queues/day" { // the queue of its mapper
		t.Errorf("moved: %+v", s)
	}
	if ask("POST", "/spring/abort?reason=a+mistake", "", &s); s.State != mapper.StateAborted {
		t.Errorf("aborted: %+v", s)
	}
	if ask("POST", "/spring/clean-up", "", &s); !s.CleaningUp {
		t.Errorf("cleaned up: %+v", s)
	}
	var h1 struct{ History []mapper.HistoryEntry }
	ask("GET", "/spring/history", "", &h1)
	var got []string
	for _, a := range h1.History {
		got = append(got, a.Action+" by "+a.By+": "+a.Reason)
	}
	want := []string{"started by ann: the spring credit", "paused by ann: lunch",
		"its rate is set to 50 entities a second by ann: ", "its rate is not limited any more, for 1m0s by ann: ",
		"its rate is set to 50 entities a second by ann: ", "resumed by ann: ", "moved by ann: ",
		"aborted by ann: a mistake", "cleaned up by ann: "}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the history is %q, want %q", got, want)
	}
	checkMistakes(o, h)
}

// TestVerify verifies a job that no task has processed.
func TestVerify(t *testing.T) {
	o := newOffice(t)
	h := o.handler(&jobsapi.Options{Allow: auth.Anybody})
	o.ask(h, "POST", "/jobs", start, 200, nil)
	var p mapper.Proof
	o.ask(h, "POST", "/jobs/spring/verify?entities=true", "", 200, &p)
	if p.Ranges == 0 || p.Pending != p.Ranges || p.Err() != nil {
		t.Errorf("%+v", p)
	}
}

// checkMistakes checks the answers to wrong requests. TestControl calls it after it has cleaned up
// its job.
func checkMistakes(o *office, h http.Handler) {
	o.Helper()
	for _, c := range []struct {
		method, path, body string
		code               int
		want               string
	}{
		{"POST", "",
			`{"mapper": "add-credit", "id": "x", "query": {"kind": "Account"}, "params": {"Amount": 1}, "queue": ` +
				`"noon"}`, 400, `no queue \"noon\"`},
		{"POST", "", `{"mapper": "add-credit", "query": {"kind": "Account"}, "params": {"Amount": 1}}`, 400,
			`\"id\" is empty`},
		{"POST", "", `{"mapper": "add-credit", "id": "x", "pagesize": 2}`, 400, `unknown field \"pagesize\"`},
		{"POST", "", `{"mapper": "none", "id": "x", "query": {"kind": "Account"}}`, 400, "add-credit"},
		{"POST", "/none/pause?why=x", "", 400, `unknown parameter \"why\"`},
		{"POST", "/none/pause", "", 404, "no such job"},
		{"POST", "/spring/pause", `{"reason": "lunch"}`, 400, `unknown field \"reason\": the URL has all parameters`},
		{"POST", "/spring/retry", `{"cause": "balance is #"}`, 400, `unknown field \"cause\"`},
		{"POST", "/spring/abort", `[]`, 400, "the value is an array"},
		{"POST", "/none/resume", `{}`, 404, "no such job"},
		{"POST", "/none/retry", `null`, 404, "no such job"},
		{"PUT", "/spring", "", 405, `{"error":"this path has only the methods GET, HEAD"}`},
		{"GET", "/spring/pages", "", 404, `{"error":"there is no such path`},
		{"GET", "/none/history", "", 404, "no such job"},
		{"POST", "/none/clean-up", `{"jobs": true}`, 400, `unknown field \"jobs\"`},
		{"POST", "/spring/clean-up", `{"job": true}`, 409, "in another way"},
		{"POST", "/none/verify", "", 404, "no such job"},
		{"POST", "/none/verify?entities=maybe", "", 400, `\"entities\" is \"maybe\", it has to be true or false`},
		{"POST", "/none/verify?read_time=now&entities=true", "", 400, `\"read_time\" is \"now\": it has to be like`},
		{"POST", "/none/verify?read_time=0001-01-01T00:00:00Z&entities=true", "", 400, `it has to be like`},
		{"GET", "/none?x=1", "", 400, `unknown parameter \"x\"`},
		{"POST", "/spring/rate", `{}`, 400, `{\"entities\": -1} for no limit`},
		{"POST", "/spring/rate", `{"for_ns": 60000000000}`, 400, `for no limit`},
	} {
		if text := o.ask(h, c.method, "/api/v1/jobs"+c.path, c.body, c.code, nil); !strings.Contains(text, c.want) {
			o.Errorf("%s %s: %s, want %q in it", c.method, c.path, text, c.want)
		}
	}
}

// TestOtherSites sends POSTs with the headers that a browser sends when a page of another site
// makes the request. It checks that they are refused.
func TestOtherSites(t *testing.T) {
	o := newOffice(t)
	h := o.handler(&jobsapi.Options{Allow: auth.Anybody})
	o.ask(h, "POST", "/jobs", start, 403, nil, "Sec-Fetch-Site", "cross-site")
	var answer struct{ Error string }
	if o.ask(h, "POST", "/jobs", start, 403, &answer, "Origin", "https://evil.example"); answer.Error == "" {
		t.Error("the refusal has no error in JSON")
	}
	o.ask(h, "GET", "/jobs/spring", "", 404, nil)
	o.ask(h, "POST", "/jobs", start, 200, nil, "Sec-Fetch-Site", "same-origin")
	o.ask(h, "POST", "/jobs/spring/abort", "", 403, nil, "Sec-Fetch-Site", "cross-site")
	var s mapper.Status
	if o.ask(h, "GET", "/jobs/spring", "", 200, &s, "Sec-Fetch-Site", "cross-site"); s.State != mapper.StateRunning {
		t.Errorf("%+v", s)
	}
}

func TestOptions(t *testing.T) {
	o := newOffice(t)
	for _, prefix := range []string{"jobs", "/", "/jobs/", "/{x}"} {
		if _, err := jobsapi.NewHandler(o.engine, &jobsapi.Options{Prefix: prefix}); err == nil {
			t.Errorf("the prefix %q is taken", prefix)
		}
	}
	if _, err := jobsapi.NewHandler(nil, nil); err == nil {
		t.Error("an engine that is nil is taken")
	}
}

// TestBodies checks that ambiguous bodies are refused, that the error names the field, and that no
// job starts.
func TestBodies(t *testing.T) {
	o := newOffice(t)
	h := o.handler(&jobsapi.Options{Allow: auth.Anybody})
	const end = `"id": "j", "query": {"kind": "Account"}, "params": {"Amount": 10}}`
	const begun = `{"mapper": "add-credit", "id": "j", `
	const account = `"query": {"kind": "Account"}, `
	for body, want := range map[string]string{
		`{"mapper": "add-credit", "mapper": "other", ` +
			end: `\"mapper\" comes twice`,
		`{"mapper": "add-credit", "Mapper": "other", ` +
			end: `\"mapper\" and \"Mapper\"`,
		`{"mapper": "add-credit", "page_size": 2, "page_size": 500, ` +
			end: `\"page_size\" comes twice`,
		begun + `"query": {"kind": "Account", "kind": "User"}, "params": {"Amount": 10}}`: `\"query.kind\" comes twice`,
		begun + account + `"params": {"Amount": 10, "Amount": 1000}}`: `\"params.Amount\" comes ` +
			`twice`,
		begun + account + `"params": {"Amount": 10, "amount": 1000}}`: `\"Amount\" and \"amount\"`,
		begun + account + `"params": {"Amount": null}}`:               `\"Amount\" is null`,
		begun + `"query": {"kind": "Account", "filters": [{"property": "p", "op": "=", "value": 1, "value": 2}]}, ` +
			`"params": {"Amount": 10}}`: `value\" comes twice`,
		`{"mapper": "add-credit", "limit": 2, ` +
			end: `unknown field \"limit\": have \"mapper\", \"query\", `,
		begun + `"query": {"kind": "Account", "filter": []}}`:           `field \"query.filter\": have \"kind\", `,
		begun + account + `"params": {"Amount": 10}, "page_size": "2"}`: `: \"page_size\" is a string`,
		begun + account + `"params": {"Amount": 10}, "rate": 5}`:        `\"rate\" is a number, and has to`,
		begun + account + `"params": [10]}`:                             `params: the value is an array`,
		begun + `"query": {"kind": "Account", "start": "a1"}}`:          `start\" is \"a1\", and has to be a key`,
		begun + `"query": {"kind": "Account", "read_time": "now"}}`:     `read_time\" is \"now\", and has to be a time`,
		begun + `"query": {"kind": "Account", "filters": [{"property": "p", "op": "=", "value": [1]}]}}`: `\"query.` +
			`filters[0]\" can't be read: the filter on \"p\": it is a list`,
		`{"mapper": "add-credit", ` + end +
			`{}`: "more than one",
	} {
		for _, path := range []string{"/jobs", "/jobs/plan"} {
			if path == "/jobs/plan" && !strings.Contains(body, `"query"`) {
				continue
			}
			if text := o.ask(h, "POST", path, body, 400, nil); !strings.Contains(text, want) {
				t.Errorf("%s %s: %s, want %s", path, body, text, want)
			} else if strings.Contains(text, "rehearse") || strings.Contains(text, `per_entity\"`) {
				t.Errorf("%s %s: %s has old names", path, body, text)
			}
		}
	}
	for _, path := range []string{"/jobs/j", "/jobs/j/failures"} {
		o.ask(h, "GET", path, "", 404, nil)
	}
}

// TestOldNames sends requests as older clients do. In them, the names of durations do not end with
// the unit. The handler must accept these names.
func TestOldNames(t *testing.T) {
	o := newOffice(t)
	h := o.handler(&jobsapi.Options{Allow: auth.Anybody})
	var plans [3]mapper.Estimate
	for i, body := range []string{`"per_entity_ns": 1000000000`, `"per_entity": 1000000000`, `"writes": 1`} {
		o.ask(h, "POST", "/jobs/plan", `{"mapper": "add-credit", "query": {"kind": "Account"}, `+body+"}", 200,
			&plans[i])
	}
	if plans[0].Duration != plans[1].Duration || plans[0].Duration <= plans[2].Duration {
		t.Errorf("with a second for each entity the plans take %v and %v, and without %v", plans[0].Duration,
			plans[1].Duration,
			plans[2].Duration)
	}
	for _, body := range []string{`{"expire_ns": -1}`, `{"expire": -1}`} {
		if text := o.ask(h, "POST", "/jobs/none/clean-up", body, 400, nil); !strings.Contains(text,
			`\"expire_ns\" has to be at least 0, it is -1ns`) {
			t.Errorf("%s: %s", body, text)
		}
	}
	const one = `{"mapper": "add-credit", "query": {"kind": "Account"}, "params": {"Amount": 10}, "page_size": 2, `
	for id, settings := range map[string]string{
		"now":    `"expected_workers": 3, "allow_overlap": true, "entity_timeout_ns": 5000000000`,
		"before": `"workers": 3, "beside": true, "timeout_ns": 5000000000`,
	} {
		var s mapper.Status
		o.ask(h, "POST", "/jobs", one+`"id": "`+id+`", `+settings+"}", 200, &s)
		if got := s.Settings; got.ExpectedWorkers != 3 || !got.AllowOverlap || got.EntityTimeout != 5*time.Second {
			t.Errorf("the settings of the job %s are %+v", id, got)
		}
	}
	for id, settings := range map[string]string{"tried-now": `"dry_run": true`, "tried-before": `"rehearse": true`} {
		var s mapper.Status
		o.ask(h, "POST", "/jobs", one+`"allow_overlap": true, "id": "`+id+`", `+settings+"}", 200, &s)
		if s.Mapper != "rehearsal:add-credit" {
			t.Errorf("the job %s is one of %s", id, s.Mapper)
		}
	}
}

// TestFailedRequest sends requests to a service whose database is down. The answer must have only a
// cause that callers may see, and the ID of the line in the log.
func TestFailedRequest(t *testing.T) {
	o := newOffice(t)
	h := o.handler(&jobsapi.Options{Allow: auth.Anybody})
	if err := o.engine.Client().Close(); err != nil {
		t.Fatal(err)
	}
	var answer struct{ Error, Request string }
	o.ask(h, "GET", "/jobs/spring", "", 500, &answer)
	if answer.Request == "" || !strings.Contains(answer.Error, "request "+answer.Request) ||
		!strings.Contains(answer.Error, "the request failed: it was cancelled") ||
		!strings.Contains(o.log.String(), "request="+answer.Request+" path=/jobs/spring") {
		t.Errorf("%+v, and the log\n%s", answer, o.log.String())
	}
}

// TestClientGone sends a request whose client has gone. That is no error of the service.
func TestClientGone(t *testing.T) {
	o := newOffice(t)
	h := o.handler(&jobsapi.Options{Allow: auth.Anybody})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/jobs/spring", nil))
	if log := o.log.String(); strings.Contains(log, "ERROR") || !strings.Contains(log, "INFO") {
		t.Errorf("the log has %q", log)
	}
}

// TestUnknownNumbers lists a running job. Its record does not have all numbers, and the list must
// show unknown numbers as -1.
func TestUnknownNumbers(t *testing.T) {
	o := newOffice(t)
	h := o.handler(&jobsapi.Options{Allow: auth.Anybody})
	o.ask(h, "POST", "/jobs", start, 200, nil)
	var list struct{ Jobs []mapper.JobInfo }
	o.ask(h, "GET", "/jobs", "", 200, &list)
	if j := list.Jobs[0]; len(list.Jobs) != 1 || j.Counted || j.Processed != -1 || j.Failures != -1 || j.Dollars != -1 {
		t.Errorf("%+v", list.Jobs)
	}
	var s mapper.Status
	o.ask(h, "GET", "/jobs/spring", "", 200, &s)
	if s.Total != 3 || s.Remaining != 3 || s.Progress.TimeLeft != -1 || s.Phase != mapper.PhaseStarting {
		t.Errorf("%+v", s)
	}
}

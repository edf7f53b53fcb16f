package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/examples/internal/bank"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
	"github.com/scattermap/scattermap/webhook"
)

const (
	robot    = "tasks@test.iam.gserviceaccount.com"
	operator = "operator@test.iam.gserviceaccount.com"
	location = "projects/test/locations/here"
	queue    = location + "/queues/credit"
)

// A site is the service in its own process, with the emulators that it uses.
type site struct {
	*testing.T
	emulator *emulator.Emulator
	client   *datastore.Client
	tasks    *cloudtasks.Client
	process  *exec.Cmd
	url      string

	hook *httptest.Server // the receiver of the service's webhook
	told chan webhook.Message

	mu  sync.Mutex
	log strings.Builder // the process's log
}

// hookSecret signs the messages of the service's webhook.
const hookSecret = "c2NhdHRlcm1hcCBzaWducyBtZXNzYWdlcyBieSB0aGlz"

// receive is the receiver of the service's webhook.
func (s *site) receive(_ http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = webhook.Verify(hookSecret, r.Header, body)
	}
	var m webhook.Message
	if err == nil {
		err = json.Unmarshal(body, &m)
	}
	if err != nil || r.URL.Path != "/T0KEN" {
		s.Errorf("the webhook: %s: %v", body, err)
	}
	s.told <- m
}

// logged reports whether the process has logged a line that contains all texts.
func (s *site) logged(texts ...string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(strings.Split(s.log.String(), "\n"), func(line string) bool {
		return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) })
	})
}

// newSite starts the service in a process of its own.
func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{T: t, told: make(chan webhook.Message, 100)}
	s.hook = httptest.NewServer(http.HandlerFunc(s.receive))
	t.Cleanup(s.hook.Close)
	s.emulator = emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0", TasksAddr: "127.0.0.1:0",
		KeysAddr: "127.0.0.1:0"})
	var err error
	if s.client, err = s.emulator.DatastoreClient(t.Context(), "data"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.client.Close() })
	if s.tasks, err = s.emulator.TasksClient(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.tasks.Close() })
	if _, err := s.tasks.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: queue}}); err != nil {
		t.Fatal(err)
	}
	// The service must know its URL before it listens. So choose a port that is free now.
	port := freePort(t)
	s.url = "http://127.0.0.1:" + port
	s.process = exec.Command(os.Args[0])
	s.process.Env = append(os.Environ(), asService+"="+asItIs,
		"GOOGLE_CLOUD_PROJECT=test", "DATASTORE_PROJECT=data", "TASKS_QUEUE="+queue+","+queue+"-night",
		"CREATE_QUEUES=true", "MAX_INSTANCES=10", "CONCURRENCY=80", "SERVICE_URL="+s.url, "PORT="+port,
		"TASKS_SERVICE_ACCOUNT="+robot, "OPERATORS="+operator, "OIDC_KEYS_URL="+s.emulator.KeysURL(),
		"WEBHOOK_URL="+s.hook.URL+"/T0KEN", "WEBHOOK_SECRET="+hookSecret,
		"DATASTORE_EMULATOR_HOST="+s.emulator.DatastoreAddr(), "CLOUD_TASKS_EMULATOR_HOST="+s.emulator.TasksAddr())
	stderr, err := s.process.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.process.Process.Kill() })
	serving := make(chan struct{})
	go func() {
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			fmt.Fprintln(t.Output(), lines.Text())
			s.mu.Lock()
			s.log.WriteString(lines.Text() + "\n")
			s.mu.Unlock()
			if strings.Contains(lines.Text(), `"serving"`) {
				close(serving)
			}
		}
	}()
	select {
	case <-serving:
	case <-time.After(testflag.Patience):
		t.Fatal("the service does not serve")
	}
	return s
}

// freePort returns a port that a process may listen on a moment later. The system gives ports above
// 32767 to outgoing connections, so another test could take such a port meanwhile.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		port := strconv.Itoa(10_000 + rand.IntN(20_000))
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return ""
}

// send sends a request to the service. If token is not empty, the request has this token.
func (s *site) send(method, path, token, body string) (int, string) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Fatal(err)
	}
	return resp.StatusCode, string(answer)
}

func (s *site) token(email, audience string) string {
	s.Helper()
	token, err := s.emulator.Token(email, audience)
	if err != nil {
		s.Fatal(err)
	}
	return token
}

func TestService(t *testing.T) {
	s := newSite(t)
	const n = 1200
	var keys []*datastore.Key
	for i := range n {
		keys = append(keys, datastore.NameKey("Account", fmt.Sprintf("user-%04d", i), nil))
	}
	for first := 0; first < n; first += 400 {
		if _, err := s.client.PutMulti(t.Context(), keys[first:first+400], make([]bank.Account, 400)); err != nil {
			t.Fatal(err)
		}
	}
	balances := func() map[int64]int {
		var accounts []bank.Account
		if _, err := s.client.GetAll(t.Context(), datastore.NewQuery("Account"), &accounts); err != nil {
			t.Fatal(err)
		}
		count := make(map[int64]int)
		for _, a := range accounts {
			count[a.Balance]++
		}
		return count
	}
	const start = `{"mapper": "add-credit", "id": "spring", "query": {"kind": "Account"}, "params": {"Amount": 10}}`
	admin := s.token(operator, s.url)

	// The service has created the missing queue. The two queues share nine tenths of the requests
	// that the service accepts at once, so each gets half of that. The log must name the wrong
	// settings of the existing queue, and say that both queues together deliver too much.
	night, err := s.tasks.GetQueue(t.Context(), &cloudtaskspb.GetQueueRequest{Name: queue + "-night"})
	if err != nil || night.RateLimits.MaxConcurrentDispatches != 360 {
		t.Errorf("the other queue: %v, %v", night, err)
	}
	said := func() bool {
		return s.logged(`"WARNING"`, queue+":", "max-backoff") && s.logged(`"WARNING"`, "together they deliver")
	}
	for deadline := time.Now().Add(testflag.Patience); !said(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing in the log about the back-off of the queue that was there, or about both queues together")
		}
	}
	if s.logged(`"WARNING"`, queue+"-night:") {
		t.Error("the log complains about the queue that the service has made")
	}

	for _, path := range []string{"/health", "/ready"} { // requests that need no token
		if code, _ := s.send("GET", path, "", ""); code != 200 {
			t.Errorf("GET %s: %d", path, code)
		}
	}

	// Bad requests get an error that names the fault.
	for body, want := range map[string]string{
		"":                                    "the body is not a job",
		`{"mapper": "add-credit"}`:            `"id" is empty`,
		`{"id": "a", "mapper": "none"}`:       `unknown mapper "none"`,
		`{"id": "a", "mapper": "add-credit"}`: `"kind" is empty`,
		`{"id": "a b", "mapper": "add-credit", "query": {"kind": "A"}}`:                     `"id"`,
		`{"id": "a", "mapper": "add-credit", "query": {"kind": "A"}, "params": {"Sum": 1}}`: `unknown field "Sum"`,
		`{"id": "a", "page": 5}`: `unknown field "page"`,
		start + start:            "more than one JSON value",
		`{"id": "a", "mapper": "add-credit", "query": {"kind": "A"}, "params": null}`: "params",
		`{"id": "a", "mapper": "add-credit", "query": {"kind": "A"}}`:                 "params",
	} {
		if code, answer := s.send("POST", "/jobs", admin, body); code != 400 ||
			!strings.Contains(strings.ReplaceAll(answer, `\"`, `"`), want) {
			t.Errorf("start with %s: %d %s, want 400 and %q", body, code, answer, want)
		}
	}
	// The schedule that calls /mapper/revive sends the same kind of token as a task.
	if code, _ := s.send("POST", "/mapper/revive", s.token(robot, s.url), ""); code != 200 {
		t.Errorf("revive: %d, want 200", code)
	}
	if code, _ := s.send("GET", "/jobs/none", admin, ""); code != 404 {
		t.Errorf("status of no job: %d, want 404", code)
	}
	if code, _ := s.send("GET", "/jobs/"+strings.Repeat("x", 2000), admin, ""); code != 404 {
		t.Errorf("status of what can't be a job: %d, want 404", code)
	}
	if code, _ := s.send("GET", "/health", "", ""); code != 200 {
		t.Errorf("health: %d, want 200", code)
	}
	if got := balances(); got[0] != n {
		t.Fatalf("balances before the job: %v", got)
	}

	// Start a job, and follow it to its end.
	code, answer := s.send("POST", "/jobs", admin, start)
	if code != 200 {
		t.Fatalf("start: %d %s", code, answer)
	}
	var status mapper.Status
	for deadline := time.Now().Add(testflag.Patience); status.State != mapper.StateSucceeded; {
		if code, answer = s.send("GET", "/jobs/spring", admin, ""); code != 200 {
			t.Fatalf("status: %d %s", code, answer)
		}
		if err := json.Unmarshal([]byte(answer), &status); err != nil {
			t.Fatal(err)
		}
		if status.State.Ended() && status.State != mapper.StateSucceeded || time.Now().After(deadline) {
			t.Fatalf("status %s", answer)
		}
	}
	if got := balances(); got[10] != n || status.Processed != n {
		t.Errorf("balances after the job: %v; status %s", got, answer)
	}
	// The webhook learns of the end, and not of the start.
	if m := <-s.told; m.ID != "spring" || m.To != mapper.StateSucceeded || m.Processed != n ||
		m.Text != "job succeeded: spring (add-credit). 1,200 entities processed, 0 failures" {
		t.Errorf("the webhook was told %+v", m)
	}
	if s.logged("T0KEN") || s.logged(hookSecret) {
		t.Error("the log has the webhook's URL or secret")
	}
	if code, _ := s.send("POST", "/jobs", admin, start); code != 200 {
		t.Errorf("the same start again: %d, want 200", code)
	}
	if code, answer := s.send("POST", "/jobs", admin, strings.Replace(start, "10", "11", 1)); code != 409 {
		t.Errorf("another start of that ID: %d %s, want 409", code, answer)
	}

	// SIGTERM must end the service without an error.
	if err := s.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := s.process.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}

// required are the environment variables that the service requires.
var required = map[string]string{
	"GOOGLE_CLOUD_PROJECT": "p", "TASKS_QUEUE": "projects/p/locations/l/queues/q",
	"SERVICE_URL":           "https://x.run.app/",
	"TASKS_SERVICE_ACCOUNT": "a@b", "OPERATORS": "c@d, e@f",
}

// getenv returns a function like os.Getenv. Its environment has the required variables, with the
// given changes.
func getenv(changes ...string) func(string) string {
	env := maps.Clone(required)
	for i := 0; i < len(changes); i += 2 {
		env[changes[i]] = changes[i+1]
	}
	return func(name string) string { return env[name] }
}

func TestConfig(t *testing.T) {
	c, err := configFrom(getenv())
	if err != nil || c.url != "https://x.run.app" || c.addr != "127.0.0.1:8080" || len(c.operators) != 2 ||
		!c.verified {
		t.Errorf("%+v, %v", c, err)
	}
	noAccounts := []string{"TASKS_SERVICE_ACCOUNT", "", "OPERATORS", ""}
	for name, c := range map[string]struct {
		changes []string
		ok      func(config) bool
	}{
		"two queues": {[]string{"TASKS_QUEUE", "projects/p/locations/l/queues/q, projects/p/locations/l/queues/night",
			"CREATE_QUEUES", "true", "MAX_INSTANCES", "5", "CONCURRENCY", "8", "REQUEST_TIMEOUT", "600"},
			func(c config) bool {
				return len(c.queues) == 2 && c.createQueues && c.service == tasks.ServiceLimits{MaxInstances: 5,
					Concurrency: 8,
					Timeout:     10 * time.Minute, Queues: 2}
			}},
		"the database elsewhere": {[]string{"DATASTORE_PROJECT", "data"}, func(c config) bool {
			return c.project == "p" && c.databaseProject == "data"
		}},
		"the database here": {nil, func(c config) bool { return c.project == "p" && c.databaseProject == "p" }},
		"an address": {[]string{"HOST", "::1", "PORT", "9"}, func(c config) bool {
			return c.addr == "[::1]:9"
		}},
		"on Cloud Run": {[]string{"K_SERVICE", "credit", "PORT", "9"}, func(c config) bool {
			return c.addr == ":9"
		}},
		"off": {append([]string{"AUTH", "off"}, noAccounts...), func(c config) bool {
			return !c.verified && c.serviceAccount == "" && c.audience() == ""
		}},
		"iam": {[]string{"AUTH", "iam", "OPERATORS", ""}, func(c config) bool {
			return !c.verified && c.serviceAccount == "a@b" && c.audience() == c.url
		}},
		"iap": {[]string{"IAP_AUDIENCE", "/projects/12/locations/europe-west1/services/credit", "OPERATORS", ""},
			func(c config) bool {
				return c.verified && c.operators[0] == auth.AnyAccount && c.iapAudience != ""
			}},
		"iap, a region": {[]string{"IAP_AUDIENCE", "/projects/12/regions/europe-west1/backendServices/34", "OPERATORS",
			""}, func(c config) bool {
			return c.iapAudience != ""
		}},
		"iap of some": {[]string{"IAP_AUDIENCE", "/projects/12/global/backendServices/34", "OPERATORS",
			"ann@example.com", "IAP_KEYS_URL", "http://127.0.0.1:5/keys"}, func(c config) bool {
			return len(c.operators) == 1 && c.iapKeysURL != ""
		}},
		"keys": {[]string{"OIDC_KEYS_URL", "http://127.0.0.1:5/keys"}, func(c config) bool {
			return c.keysURL != ""
		}},
	} {
		if got, err := configFrom(getenv(c.changes...)); err != nil || !c.ok(got) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// TestConfigRefused checks the errors for missing and wrong variables. They must name the variable.
// TestConfigOfWebhook checks the variables of the webhook. Nothing may print them.
func TestConfigOfWebhook(t *testing.T) {
	const url = "https://hooks.example.com/T0KEN"
	for _, changes := range [][]string{{"WEBHOOK_URL", url, "WEBHOOK_SECRET", hookSecret}, {"WEBHOOK_URL", url}, nil} {
		c, err := configFrom(getenv(changes...))
		if err != nil || (c.newHook != nil) != (changes != nil) ||
			strings.Contains(fmt.Sprintf("%+v %#v", c, c), "T0KEN") {
			t.Errorf("%q: %+v, %v", changes, c, err)
		}
	}
}

func TestConfigRefused(t *testing.T) {
	for name := range required {
		if _, err := configFrom(getenv(name, "")); err == nil || !strings.Contains(err.Error(), name+" is not set") {
			t.Errorf("without %s: %v", name, err)
		}
	}
	for _, bad := range [][]string{
		{"AUTH", "maybe"}, {"SERVICE_URL", "x.run.app"}, {"SERVICE_URL", "https://x.run.app/mapper"},
		{"SERVICE_URL", "https://x.run.app?a=b"},
		{"TASKS_QUEUE", "mapper"}, {"TASKS_QUEUE", " , "}, {"TASKS_QUEUE", "projects/p/locations/l/queues/q,night"},
		{"TASKS_QUEUE", "projects/p/locations/l/queues/q,projects/p/locations/l/queues/q"},
		{"WEBHOOK_URL", "hooks.example.com/T0KEN"}, {"WEBHOOK_URL", "http://hooks.example.com/T0KEN"},
		{"WEBHOOK_SECRET", hookSecret}, {"WEBHOOK_SECRET", "T0KEN", "WEBHOOK_URL", "https://hooks.example.com/T0KEN"},
		{"CREATE_QUEUES", "yes"}, {"IAP_AUDIENCE", "credit"},
		{"IAP_AUDIENCE", "/projects/name/global/backendServices/34"},
		{"IAP_AUDIENCE", "/projects/12/global/backendServices/34 "},
		{"IAP_AUDIENCE", "projects/12/global/backendServices/34"},
		{"IAP_AUDIENCE", "/projects/12/locations/here/services/"},
		{"IAP_KEYS_URL", "http://127.0.0.1:5/keys"},
		{"IAP_KEYS_URL", "keys", "IAP_AUDIENCE", "/projects/12/global/backendServices/34"},
		{"IAP_AUDIENCE", "/projects/12/global/backendServices/34", "AUTH", "iam", "OPERATORS", ""},
		{"IAP_AUDIENCE", "/projects/12/global/backendServices/34", "AUTH", "off", "OPERATORS", "",
			"TASKS_SERVICE_ACCOUNT", ""}, {"IAP_KEYS_URL", "http://127.0.0.1:5/keys", "AUTH", "off", "OPERATORS", "",
			"TASKS_SERVICE_ACCOUNT", ""},
		{"OPERATORS", "everybody", "IAP_AUDIENCE", "/projects/12/global/backendServices/34"}, {"MAX_INSTANCES", "0"},
		{"CONCURRENCY", "1001"}, {"REQUEST_TIMEOUT", "10m"}, {"PORT", "http"}, {"PORT", "0"},
		{"OPERATORS", "everybody"}, {"OPERATORS", " , "},
		{"TASKS_SERVICE_ACCOUNT", "x"}, {"TASKS_SERVICE_ACCOUNT", "a@b,c@d"}, {"OIDC_KEYS_URL", "keys"},
		{"OPERATORS", "c@d", "AUTH", "iam"}, {"OPERATORS", "c@d", "AUTH", "off"},
		{"OIDC_KEYS_URL", "https://x", "AUTH", "iam", "OPERATORS", ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"}, {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "collector"},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318"},
		{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318"},
		{"OTEL_TRACES_EXPORTER", "zipkin", "OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318"},
	} {
		if _, err := configFrom(getenv(bad...)); err == nil || !strings.Contains(err.Error(), bad[0]) ||
			strings.Contains(err.Error(), "T0KEN") {
			t.Errorf("%s: %v, want an error that names %s", bad, err, bad[0])
		}
	}
	_, err := configFrom(func(string) string { return "" })
	if err == nil || strings.Count(err.Error(), "is not set") != len(required) || strings.Contains(err.Error(), "\n") {
		t.Errorf("an empty environment: %v, want all that is missing in a line", err)
	}
}

// TestRunReportsBadConfiguration checks mistakes in the configuration that are found only when the
// service starts.
func TestRunReportsBadConfiguration(t *testing.T) {
	t.Setenv("DATASTORE_EMULATOR_HOST", "127.0.0.1:1")
	t.Setenv("CLOUD_TASKS_EMULATOR_HOST", "127.0.0.1:1")
	log := slog.New(slog.NewTextHandler(new(bytes.Buffer), nil))
	err := run(context.Background(), config{project: "p", databaseProject: "p", queues: []string{"q"}, url: "http://x"},
		log)
	if err == nil || !strings.Contains(err.Error(), `the queue's name is "q"`) {
		t.Errorf("error %v", err)
	}
}

package main

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/api/iterator"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/examples/internal/bank"
	"github.com/scattermap/scattermap/internal/forge"
)

// A gate is the service in this process. The test signs tokens as Google does. The service's queue
// is paused, so that only the test's requests have effects.
type gate struct {
	*testing.T
	emulator      *emulator.Emulator
	client        *datastore.Client
	google, proxy *forge.Forger
	handler       http.Handler
}

const (
	serviceURL  = "https://credit.run.app"
	theAudience = "/projects/12/locations/europe-west1/services/credit" // an audience of Identity-Aware Proxy
)

// newGate starts the service. If iap is set, operators come through Identity-Aware Proxy; otherwise
// they send OIDC tokens.
func newGate(t *testing.T, iap bool) *gate {
	t.Helper()
	g := &gate{T: t, google: forge.OIDC(t), proxy: forge.IAP(t)}
	g.emulator = emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0", TasksAddr: "127.0.0.1:0"})
	var err error
	if g.client, err = g.emulator.DatastoreClient(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.client.Close() })
	env := map[string]string{
		"GOOGLE_CLOUD_PROJECT": "test", "TASKS_QUEUE": queue, "CREATE_QUEUES": "true", "SERVICE_URL": serviceURL,
		"TASKS_SERVICE_ACCOUNT": robot,
		"OPERATORS":             operator, "OIDC_KEYS_URL": g.google.Keys(g.proxy), "K_SERVICE": "",
		"DATASTORE_EMULATOR_HOST": g.emulator.DatastoreAddr(), "CLOUD_TASKS_EMULATOR_HOST": g.emulator.TasksAddr(),
	}
	if iap {
		env["IAP_AUDIENCE"], env["IAP_KEYS_URL"] = theAudience, g.proxy.Keys(g.google)
	}
	for name, value := range env {
		t.Setenv(name, value)
	}
	c, err := configFrom(os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	_, handler, open, err := newService(t.Context(), c, nil, slog.New(slog.DiscardHandler))
	t.Cleanup(open.close)
	if err != nil {
		t.Fatal(err)
	}
	g.handler = handler
	tasks, err := g.emulator.TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tasks.Close()
	if _, err := tasks.PauseQueue(t.Context(), &cloudtaskspb.PauseQueueRequest{Name: queue}); err != nil {
		t.Fatal(err)
	}
	return g
}

// send sends a request, and returns the status code and the answer.
func (g *gate) send(method, path, body string, header http.Header) (int, string) {
	g.Helper()
	r := httptest.NewRequestWithContext(g.Context(), method, serviceURL+path, strings.NewReader(body))
	r.Header = maps.Clone(header)
	w := httptest.NewRecorder()
	g.handler.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// A state is everything that a request can change: the tasks in the queue, and the entities in the
// database.
type state struct {
	Tasks    []*cloudtaskspb.Task
	Entities map[string]map[string]any // the properties of each entity, by key
}

func (g *gate) state() (s state) {
	g.Helper()
	tasks, err := g.emulator.TasksClient(g.Context())
	if err != nil {
		g.Fatal(err)
	}
	defer tasks.Close()
	for it := tasks.ListTasks(g.Context(), &cloudtaskspb.ListTasksRequest{Parent: queue,
		ResponseView: cloudtaskspb.Task_FULL}); ; {
		task, err := it.Next()
		if errors.Is(err, iterator.Done) {
			break
		}
		if err != nil {
			g.Fatal(err)
		}
		s.Tasks = append(s.Tasks, task)
	}
	s.Entities = make(map[string]map[string]any)
	for it := g.client.Run(g.Context(), datastore.NewQuery("")); ; {
		var entity datastore.PropertyList
		key, err := it.Next(&entity)
		if errors.Is(err, iterator.Done) {
			return s
		}
		if err != nil {
			g.Fatal(err)
		}
		properties := make(map[string]any)
		for _, p := range entity {
			properties[p.Name] = p.Value
		}
		s.Entities[key.String()] = properties
	}
}

// TestProofs sends requests with every kind of invalid token to each endpoint that changes
// something. None may start, change, enqueue or run anything. Then it sends each request with a
// valid token, and the request must take effect.
func TestProofs(t *testing.T) {
	for name, iap := range map[string]bool{"OIDC": false, "Identity-Aware Proxy": true} {
		t.Run(name, func(t *testing.T) {
			g := newGate(t, iap)
			keys, accounts := make([]*datastore.Key, 20), make([]bank.Account, 20)
			for i := range keys {
				keys[i] = datastore.IDKey("Account", int64(i+1), nil)
			}
			if _, err := g.client.PutMulti(t.Context(), keys, accounts); err != nil {
				t.Fatal(err)
			}
			operators, others, audience := g.google, g.proxy, serviceURL
			if iap {
				operators, others, audience = g.proxy, g.google, theAudience
			}
			ofOperators, ofTasks := operators.Proofs(others, operator, audience),
				g.google.Proofs(g.proxy, robot, serviceURL)
			admin, queue := ofOperators[0].Header, ofTasks[0].Header
			// The service must treat a valid token of an account with another role like the token
			// of a foreign account.
			asTask, asOperator := g.google.Token(robot, serviceURL, nil), operators.Token(operator, audience, nil)
			ofOperators = append(ofOperators,
				forge.Proof{Name: "the tasks' account", Header: operators.Header(operators.Token(robot, audience, nil)),
					Code: 403},
				forge.Proof{Name: "a task's token", Header: g.google.Header(asTask),
					Code: map[bool]int{false: 403, true: 401}[iap]})
			ofTasks = append(ofTasks,
				forge.Proof{Name: "an operator's account",
					Header: g.google.Header(g.google.Token(operator, serviceURL, nil)), Code: 403},
				forge.Proof{Name: "an operator's proof", Header: operators.Header(asOperator),
					Code: map[bool]int{false: 403, true: 401}[iap]})

			const spring = `{"mapper": "add-credit", "id": "spring", "query": {"kind": "Account"}, "params": ` +
				`{"Amount": 10}}`
			if code, answer := g.send("POST", "/jobs", spring, admin); code != 200 {
				t.Fatalf("start: %d %s", code, answer)
			}
			before := g.state()
			if len(before.Tasks) == 0 {
				t.Fatal("the job has no task, so nothing of it can be run")
			}
			refused := func(method, path, body string, p forge.Proof) {
				t.Helper()
				code, answer := g.send(method, path, body, p.Header)
				if code != p.Code {
					t.Errorf("%s: %s %s: %d, want %d", p.Name, method, path, code, p.Code)
				}
				if strings.Contains(answer, "spring") || p.Token != "" && strings.Contains(answer, p.Token) {
					t.Errorf("%s: %s %s tells %q", p.Name, method, path, answer)
				}
			}
			unchanged := func(name string) {
				t.Helper()
				if d := cmp.Diff(before, g.state(), protocmp.Transform()); d != "" {
					t.Fatalf("%s has an effect (-before +after):\n%s", name, d)
				}
			}
			for _, p := range ofOperators {
				if p.Code == 200 {
					if code, answer := g.send("GET", "/jobs/spring", "", p.Header); code != 200 ||
						!strings.Contains(answer, "spring") {
						t.Errorf("%s: %d %s", p.Name, code, answer)
					}
					continue
				}
				refused("POST", "/jobs", strings.Replace(spring, "spring", "summer", 1), p)
				for _, path := range []string{"/jobs", "/jobs/spring", "/jobs/spring/failures", "/jobs/spring/causes",
					"/jobs/spring/history"} {
					refused("GET", path, "", p)
				}
				for act := range strings.FieldsSeq("pause resume abort retry move rate clean-up") {
					refused("POST", "/jobs/spring/"+act, "{}", p)
				}
				unchanged(p.Name)
			}
			for _, p := range ofTasks {
				if p.Code == 200 {
					continue
				}
				refused("POST", "/mapper/revive", "", p)
				for _, task := range before.Tasks {
					refused("POST", pathOf(t, task), string(task.GetHttpRequest().GetBody()), p)
				}
				unchanged(p.Name)
			}

			// These requests have no other fault than their token.
			if code, answer := g.send("POST", "/jobs/spring/pause", "{}", admin); code != 200 {
				t.Errorf("pause: %d %s", code, answer)
			}
			if code, answer := g.send("POST", "/jobs/spring/resume", "{}", admin); code != 200 {
				t.Errorf("resume: %d %s", code, answer)
			}
			if code, answer := g.send("POST", "/jobs",
				strings.Replace(spring, `"id": "spring"`, `"id": "summer", "allow_overlap": true`, 1),
				admin); code != 200 {
				t.Errorf("start: %d %s", code, answer)
			}
			if code, _ := g.send("POST", "/mapper/revive", "", queue); code != 200 {
				t.Errorf("revive: %d", code)
			}
			after := g.state()
			if len(after.Tasks) <= len(before.Tasks) || len(after.Entities) <= len(before.Entities) {
				t.Errorf("%d tasks and %d entities after another start; there were %d and %d", len(after.Tasks),
					len(after.Entities), len(before.Tasks), len(before.Entities))
			}
			for _, task := range before.Tasks {
				if code, _ := g.send("POST", pathOf(t, task), string(task.GetHttpRequest().GetBody()),
					queue); code != 200 {
					t.Errorf("a task: %d", code)
				}
			}
			if err := g.client.GetMulti(t.Context(), keys, accounts); err != nil {
				t.Fatal(err)
			}
			for i, a := range accounts {
				if a.Balance != 10 {
					t.Errorf("account %d has %d after the job's tasks", i, a.Balance)
				}
			}
			if g.google.Fetched() > 2 || g.proxy.Fetched() > 1 {
				t.Errorf("the keys were fetched %d and %d times", g.google.Fetched(), g.proxy.Fetched())
			}
		})
	}
}

func pathOf(t *testing.T, task *cloudtaskspb.Task) string {
	t.Helper()
	u, err := url.Parse(task.GetHttpRequest().GetUrl())
	if err != nil {
		t.Fatal(err)
	}
	return u.Path
}

// TestEverybodyBehindProxy checks the service without a list of operators: everybody whom
// Identity-Aware Proxy lets through is an operator.
func TestEverybodyBehindProxy(t *testing.T) {
	proxy := forge.IAP(t)
	allow, err := operators(config{verified: true, serviceAccount: robot, iapAudience: theAudience,
		operators: []string{auth.AnyAccount}, iapKeysURL: proxy.Keys()}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "/jobs", nil)
	r.Header = proxy.Header(proxy.Token("ann@example.com", theAudience, nil))
	if who, err := allow(r); who != "ann@example.com" || err != nil {
		t.Errorf("allow returned %q, %v", who, err)
	}
}

// TestOffIsSaid checks that a service with AUTH=off logs that it accepts every request. Other
// services must not log this.
func TestOffIsSaid(t *testing.T) {
	for name, c := range map[string]struct {
		config config
		says   bool
	}{
		"off": {config{}, true},
		"iam": {config{serviceAccount: robot, url: serviceURL}, false},
		"on":  {config{verified: true, serviceAccount: robot, url: serviceURL, operators: []string{operator}}, false},
	} {
		var log bytes.Buffer
		allow, err := operators(c.config, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		if said := strings.Contains(log.String(), "level=WARN") &&
			strings.Contains(log.String(), "AUTH=off"); said != c.says {
			t.Errorf("%s: the log says %q", name, log.String())
		}
		if _, err := allow(httptest.NewRequest(http.MethodGet, "/jobs", nil)); (err == nil) != c.says {
			t.Errorf("%s: a request without a token: %v", name, err)
		}
	}
}

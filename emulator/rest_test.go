package emulator_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/scattermap/scattermap/emulator"
)

// A restClient calls the REST API of Cloud Tasks, on the port of the gRPC API.
type restClient struct {
	*testing.T
	emulator  *emulator.Emulator
	target    string      // the URL of the client's tasks
	delivered chan string // receives the queue and body of each delivered task
}

func newREST(t *testing.T) *restClient {
	r := &restClient{T: t, delivered: make(chan string, 10)}
	target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.delivered <- req.Header.Get("X-CloudTasks-QueueName") + " " + string(body)
	}))
	t.Cleanup(target.Close)
	r.target, r.emulator = target.URL, emulator.ForTest(t, &emulator.Options{TasksAddr: "127.0.0.1:0"})
	r.want("POST", restLocation+"/queues", `{"name":"projects/p/locations/l/queues/q"}`, 200)
	return r
}

const restLocation = "/v2/projects/p/locations/l"

// want makes a call, checks the code of the answer, and returns the answer.
func (r *restClient) want(method, path, body string, code int) map[string]any {
	r.Helper()
	req, err := http.NewRequestWithContext(r.Context(), method, "http://"+r.emulator.TasksAddr()+path,
		strings.NewReader(body))
	if err != nil {
		r.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer resp.Body.Close()
	var answer map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != code {
		r.Fatalf("%s %s: %s, %v, %v, want %d", method, path, resp.Status, answer, err, code)
	}
	return answer
}

func (r *restClient) wantDelivered(want string) {
	r.Helper()
	if got := <-r.delivered; got != want {
		r.Errorf("delivered: %q, want %q", got, want)
	}
}

// task returns the JSON of a task with a body.
func (r *restClient) task(text string) string {
	return fmt.Sprintf(`{"task":{"httpRequest":{"url":%q,"body":%q}}}`, r.target,
		base64.StdEncoding.EncodeToString([]byte(text)))
}

// TestRESTTasks calls methods by the paths of the REST API.
func TestRESTTasks(t *testing.T) {
	r := newREST(t)
	if answer := r.want("POST", restLocation+"/queues/q:pause", "{}", 200); answer["state"] != "PAUSED" {
		t.Errorf("the queue is paused: %v", answer)
	}
	task := r.want("POST", restLocation+"/queues/q/tasks", r.task("one"), 200)
	name, _ := task["name"].(string)
	if !strings.HasPrefix(name, "projects/p/locations/l/queues/q/tasks/") {
		t.Fatalf("a task is created: %v", task)
	}
	if answer := r.want("GET", restLocation+"/queues/q/tasks", "", 200); len(answer["tasks"].([]any)) != 1 {
		t.Errorf("tasks are listed: %v", answer)
	}
	r.want("POST", "/v2/"+name+":run", "", 200)
	r.wantDelivered("q one")
	for path, want := range map[string]int{
		// unlike Firebase's paths, the REST API does not create missing queues
		restLocation + "/queues/none/tasks":      http.StatusNotFound,
		restLocation + "/queues/q/tasks/x:break": http.StatusNotFound,
		"/nothing":                               http.StatusNotFound,
	} {
		answer := r.want("POST", path, r.task("three"), want)
		if answer["error"].(map[string]any)["status"] != "NOT_FOUND" {
			t.Errorf("%s: %v", path, answer)
		}
	}
	r.want("POST", restLocation+"/queues/q/tasks", `{"task":{"httpRequest":{"uri":"x"}}}`, http.StatusBadRequest)
}

// TestRESTFirebase calls methods by the paths of Firebase's Admin SDK. These create missing queues.
func TestRESTFirebase(t *testing.T) {
	r := newREST(t)
	r.want("POST", "/projects/p/locations/us-central1/queues/fn/tasks", r.task("two"), 200)
	r.wantDelivered("fn two")
	// The SDK sends this if the option uri is not set.
	answer := r.want("POST", "/projects/p/locations/us-central1/queues/fn/tasks",
		`{"task":{"httpRequest":{"url":"","body":"e30="}}}`, http.StatusBadRequest)
	if !strings.Contains(fmt.Sprint(answer), "the option uri") {
		t.Errorf("without an URL: %v", answer)
	}
}

// TestRESTProjectOfADomain uses a project with a colon in its ID, and reads a list page by page.
func TestRESTProjectOfADomain(t *testing.T) {
	r := newREST(t)
	inAnHour := fmt.Sprintf(`"scheduleTime":%q,"httpRequest"`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	later := strings.Replace(r.task("four"), `"httpRequest"`, inAnHour, 1)
	for range 3 {
		r.want("POST", "/projects/example.com:p/locations/l/queues/q/tasks", later, 200)
	}
	const domain = "/v2/projects/example.com:p/locations/l/queues/q"
	answer := r.want("GET", domain+"/tasks?pageSize=2", "", 200)
	if list, _ := answer["tasks"].([]any); len(list) != 2 || answer["nextPageToken"] == nil {
		t.Errorf("a page of two: %v", answer)
	}
	r.want("GET", "/v2/projects/example.com:p/locations/l/queues?pageSize=many", "", http.StatusBadRequest)
	if answer = r.want("POST", domain+":pause", "{}", 200); answer["name"] != strings.TrimPrefix(domain, "/v2/") {
		t.Errorf("its queue is paused: %v", answer)
	}
}

// TestRESTBesideGRPC calls the REST API and the gRPC API on one port. A third connection sends
// nothing, and must not block the others.
func TestRESTBesideGRPC(t *testing.T) {
	r := newREST(t)
	silent, err := net.Dial("tcp", r.emulator.TasksAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	conn, err := grpc.NewClient("passthrough:///"+r.emulator.TasksAddr(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	queue, err := cloudtaskspb.NewCloudTasksClient(conn).GetQueue(t.Context(),
		&cloudtaskspb.GetQueueRequest{Name: "projects/p/locations/l/queues/q"})
	if err != nil || queue.State != cloudtaskspb.Queue_RUNNING {
		t.Errorf("gRPC at the same address: %v, %v", queue, err)
	}
}

// TestReady checks the answer to GET / on both ports. Scripts that wait for Google's emulators ask
// in this way.
func TestReady(t *testing.T) {
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0", TasksAddr: "127.0.0.1:0"})
	for _, addr := range []string{e.DatastoreAddr(), e.TasksAddr()} {
		for path, want := range map[string]string{"/": "200 Ok\n", "/v1/projects": "404"} {
			resp, err := http.Get("http://" + addr + path)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if got := fmt.Sprint(resp.StatusCode, " ", string(text)); !strings.HasPrefix(got, want) {
				t.Errorf("GET %s: %q, want %q", path, got, want)
			}
		}
		resp, err := http.Post("http://"+addr+"/", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("POST /: %s", resp.Status)
		}
	}
}

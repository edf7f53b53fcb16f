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

// TestRESTTasks uses Cloud Tasks as JSON, at the address at which it is served as gRPC:
// by the paths of the REST API, and by those of Firebase's Admin SDK.
func TestRESTTasks(t *testing.T) {
	delivered := make(chan string, 10)
	target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		delivered <- r.Header.Get("X-CloudTasks-QueueName") + " " + string(body)
	}))
	defer target.Close()
	e := emulator.ForTest(t, &emulator.Options{TasksAddr: "127.0.0.1:0"})
	call := func(method, path, body string) (int, map[string]any) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+e.TasksAddr()+path,
			strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var answer map[string]any
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
			t.Fatalf("%s %s: %v", method, path, err)
		}
		return resp.StatusCode, answer
	}
	const location = "/v2/projects/p/locations/l"
	body := func(text string) string {
		return fmt.Sprintf(`{"task":{"httpRequest":{"url":%q,"body":%q}}}`, target.URL,
			base64.StdEncoding.EncodeToString([]byte(text)))
	}
	if code, answer := call("POST", location+"/queues", `{"name":"projects/p/locations/l/queues/q"}`); code != 200 ||
		answer["state"] != "RUNNING" {
		t.Errorf("a queue is created: %d %v", code, answer)
	}
	if code, answer := call("POST", location+"/queues/q:pause", "{}"); code != 200 || answer["state"] != "PAUSED" {
		t.Errorf("it is paused: %d %v", code, answer)
	}
	code, task := call("POST", location+"/queues/q/tasks", body("one"))
	name, _ := task["name"].(string)
	if code != 200 || !strings.HasPrefix(name, "projects/p/locations/l/queues/q/tasks/") {
		t.Fatalf("a task is created: %d %v", code, task)
	}
	if code, answer := call("GET", location+"/queues/q/tasks", ""); code != 200 || len(answer["tasks"].([]any)) != 1 {
		t.Errorf("tasks are listed: %d %v", code, answer)
	}
	if code, _ := call("POST", "/v2/"+name+":run", ""); code != 200 {
		t.Errorf("it is run: %d", code)
	}
	if got := <-delivered; got != "q one" {
		t.Errorf("delivered: %q", got)
	}
	// As Firebase's Admin SDK asks.
	if code, answer := call("POST", "/projects/p/locations/us-central1/queues/fn/tasks", body("two")); code != 200 {
		t.Errorf("Firebase enqueues: %d %v", code, answer)
	}
	if got := <-delivered; got != "fn two" {
		t.Errorf("delivered: %q", got)
	}
	for path, want := range map[string]int{
		location + "/queues/none/tasks":      http.StatusNotFound, // the REST API makes no queue
		location + "/queues/q/tasks/x:break": http.StatusNotFound,
		"/nothing":                           http.StatusNotFound,
	} {
		if code, answer := call("POST", path, body("three")); code != want ||
			answer["error"].(map[string]any)["status"] != "NOT_FOUND" {
			t.Errorf("%s: %d %v", path, code, answer)
		}
	}
	if code, answer := call("POST", location+"/queues/q/tasks",
		`{"task":{"httpRequest":{"uri":"x"}}}`); code != http.StatusBadRequest {
		t.Errorf("an unknown field: %d %v", code, answer)
	}
	inAnHour := fmt.Sprintf(`"scheduleTime":%q,"httpRequest"`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	later := strings.Replace(body("four"), `"httpRequest"`, inAnHour, 1)
	for range 3 {
		if code, answer := call("POST", "/projects/example.com:p/locations/l/queues/q/tasks", later); code != 200 {
			t.Errorf("a project of a domain: %d %v", code, answer)
		}
	}
	const domain = "/v2/projects/example.com:p/locations/l/queues/q"
	code, answer := call("GET", domain+"/tasks?pageSize=2", "")
	if list, _ := answer["tasks"].([]any); code != 200 || len(list) != 2 || answer["nextPageToken"] == nil {
		t.Errorf("a page of two: %d %v", code, answer)
	}
	code, answer = call("GET", "/v2/projects/example.com:p/locations/l/queues?pageSize=many", "")
	if code != http.StatusBadRequest {
		t.Errorf("a page of many: %d %v", code, answer)
	}
	code, answer = call("POST", domain+":pause", "{}")
	if code != 200 || answer["name"] != strings.TrimPrefix(domain, "/v2/") {
		t.Errorf("its queue is paused: %d %v", code, answer)
	}
	// What Firebase's Admin SDK sends without the option uri.
	code, answer = call("POST", "/projects/p/locations/us-central1/queues/fn/tasks",
		`{"task":{"httpRequest":{"url":"","body":"e30="}}}`)
	if code != http.StatusBadRequest || !strings.Contains(fmt.Sprint(answer), "the option uri") {
		t.Errorf("without an URL: %d %v", code, answer)
	}
	// Beside a connection that sends nothing.
	silent, err := net.Dial("tcp", e.TasksAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	conn, err := grpc.NewClient("passthrough:///"+e.TasksAddr(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	queue, err := cloudtaskspb.NewCloudTasksClient(conn).GetQueue(t.Context(),
		&cloudtaskspb.GetQueueRequest{Name: "projects/p/locations/us-central1/queues/fn"})
	if err != nil || queue.State != cloudtaskspb.Queue_RUNNING {
		t.Errorf("gRPC at the same address: %v, %v", queue, err)
	}
}

// TestReady asks both ports whether they are there, as scripts that wait for Google's emulators do.
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

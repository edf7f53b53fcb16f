package emulator_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/emulator"
)

// requestOf returns the request that a queue sends for a task.
func requestOf(t *testing.T, queue *cloudtaskspb.Queue, task *cloudtaskspb.Task) *http.Request {
	t.Helper()
	var got *http.Request
	synctest.Test(t, func(t *testing.T) {
		e := emulator.ForTest(t,
			&emulator.Options{
				Transport: emulator.HandlerTransport(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					got = r
				}))})
		client, err := e.TasksClient(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		queue.Name = queueName
		if _, err := client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
			Queue: queue}); err != nil {
			t.Fatal(err)
		}
		mustCreate(t, client, task)
		synctest.Wait()
	})
	if got == nil {
		t.Fatal("the task was not delivered")
	}
	return got
}

// TestURIOverride checks the examples in the documentation of uri_override, and more.
func TestURIOverride(t *testing.T) {
	ifNotExists := cloudtaskspb.UriOverride_IF_NOT_EXISTS
	for _, c := range []struct {
		url, want string
		override  *cloudtaskspb.UriOverride
	}{
		{"https://www.google.com/a?b=c", "https://example.net/a?b=c",
			&cloudtaskspb.UriOverride{Host: new("example.net")}},
		{"https://www.example.com/example", "https://www.example.com:123/example",
			&cloudtaskspb.UriOverride{Port: proto.Int64(123)}},
		{"https://www.example.com:5/example", "https://www.example.com/example",
			&cloudtaskspb.UriOverride{Port: proto.Int64(0)}},
		{"https://www.example.com/", "http://www.example.com/",
			&cloudtaskspb.UriOverride{Scheme: cloudtaskspb.UriOverride_HTTP.Enum()}},
		{"http://a.example/x?y=z", "http://a.example",
			&cloudtaskspb.UriOverride{PathOverride: &cloudtaskspb.PathOverride{},
				QueryOverride: &cloudtaskspb.QueryOverride{}}},
		{"http://a.example/x?y=z", "http://a.example/users/1?p=q", &cloudtaskspb.UriOverride{
			PathOverride:  &cloudtaskspb.PathOverride{Path: "/users/1"},
			QueryOverride: &cloudtaskspb.QueryOverride{QueryParams: "p=q"}}},
		{"http://a.example/x", "http://a.example:7/x?p=q",
			&cloudtaskspb.UriOverride{UriOverrideEnforceMode: ifNotExists,
				Host: new("b.example"), Port: proto.Int64(7), Scheme: cloudtaskspb.UriOverride_HTTPS.Enum(),
				PathOverride:  &cloudtaskspb.PathOverride{Path: "/users/1"},
				QueryOverride: &cloudtaskspb.QueryOverride{QueryParams: "p=q"}}},
		{"http://[::1]:5/x", "http://[::1]:7/x", &cloudtaskspb.UriOverride{Port: proto.Int64(7)}},
	} {
		task := task("")
		task.GetHttpRequest().Url = c.url
		got := requestOf(t, &cloudtaskspb.Queue{HttpTarget: &cloudtaskspb.HttpTarget{UriOverride: c.override}}, task)
		if got.URL.String() != c.want {
			t.Errorf("%s with %v: %s, want %s", c.url, c.override, got.URL, c.want)
		}
	}
}

// TestHTTPTarget checks that a queue's method, headers and token replace its tasks' own. It also
// checks which headers clients can't set.
func TestHTTPTarget(t *testing.T) {
	header := func(k, v string) *cloudtaskspb.HttpTarget_HeaderOverride {
		return &cloudtaskspb.HttpTarget_HeaderOverride{Header: &cloudtaskspb.HttpTarget_Header{Key: k, Value: v}}
	}
	task := task("abc")
	task.GetHttpRequest().Headers = map[string]string{
		"a": "task", "b": "task", "Authorization": "task", "Host": "x", "user-agent": "x", "x-google-a": "x",
		"X-AppEngine-A": "x", "X-CloudTasks-A": "x", "Content-Length": "99",
	}
	got := requestOf(t, &cloudtaskspb.Queue{HttpTarget: &cloudtaskspb.HttpTarget{
		HttpMethod: cloudtaskspb.HttpMethod_PUT,
		HeaderOverrides: []*cloudtaskspb.HttpTarget_HeaderOverride{header("A", "queue"), header("c", "queue"),
			header("X-CloudTasks-QueueName", "forged")},
		AuthorizationHeader: &cloudtaskspb.HttpTarget_OauthToken{OauthToken: &cloudtaskspb.OAuthToken{
			ServiceAccountEmail: "a@b.example", Scope: "https://www.googleapis.com/auth/datastore"}},
	}}, task)
	token, ok := strings.CutPrefix(got.Header.Get("Authorization"), "Bearer ya29.")
	if !ok || len(token) < 20 || got.Method != http.MethodPut {
		t.Errorf("%s with the token %q", got.Method, got.Header.Get("Authorization"))
	}
	got.Header.Del("Authorization")
	got.Header.Del("X-CloudTasks-TaskETA") // TestDelivery checks this header
	want := http.Header{
		"A": {"queue"}, "B": {"task"}, "C": {"queue"}, "User-Agent": {"Google-Cloud-Tasks"},
		"X-Cloudtasks-Queuename": {"q"}, "X-Cloudtasks-Taskname": {"abc"},
		"X-Cloudtasks-Taskretrycount": {"0"}, "X-Cloudtasks-Taskexecutioncount": {"0"},
	}
	if diff := cmp.Diff(want, got.Header); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}

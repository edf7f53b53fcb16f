package lifecycle

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/tasks"
)

// TestComplaints checks what a job's status says about failed deliveries.
func TestComplaints(t *testing.T) {
	e := emulator.ForTest(t, nil)
	client, err := e.TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	queue, err := tasks.NewQueue(client, "projects/p/locations/l/queues/q", "http://worker/",
		&tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	js := &Jobs{Queue: queue}
	with := func(code codes.Code) func(*tasks.TaskInfo) { return func(s *tasks.TaskInfo) { s.Code = code } }
	for _, c := range []struct {
		name   string
		change func(s *tasks.TaskInfo)
		wants  string // a part of the text; empty: there is no text
	}{
		{"three attempts have failed", func(*tasks.TaskInfo) {}, "the queue has tried 3 times to deliver a task to " +
			"http://old/, and the last attempt ended with UNKNOWN(2): the service's log says why"},
		{"two attempts have failed", func(s *tasks.TaskInfo) { s.Attempts = 2 }, ""},
		{"the last attempt goes on", func(s *tasks.TaskInfo) { s.Ended = false }, ""},
		{"the last attempt has succeeded", with(codes.OK), ""},
		{"a long message", func(s *tasks.TaskInfo) { s.Message = strings.Repeat("x", 300) },
			"ended with " + strings.Repeat("x", 200) + ":"},
		{"a drained process", func(s *tasks.TaskInfo) { s.Message = "UNKNOWN(2): HTTP status code 421" },
			"has drained"},
		{"another target", func(s *tasks.TaskInfo) { s.TargetChanged = true },
			"older tasks keep the old target until the job is resumed"},
		{"not found", with(codes.NotFound), "is this the URL that the handler is mounted at?"},
		{"not allowed", with(codes.PermissionDenied), "may the account of the tasks call"},
		{"no token", with(codes.Unauthenticated), "may the account of the tasks call"},
		{"not there", with(codes.Unavailable), "is the service there"},
		{"no instance", with(codes.ResourceExhausted), "it had no instance free"},
		{"too slow", with(codes.DeadlineExceeded), "it took too long"},
	} {
		s := &tasks.TaskInfo{URL: "http://old/", Attempts: 3, Ended: true, Code: codes.Unknown, Message: "UNKNOWN(2)\n"}
		c.change(s)
		says := js.complaintOf(s)
		if (says == "") != (c.wants == "") || !strings.Contains(says, c.wants) {
			t.Errorf("%s: %q, want %q", c.name, says, c.wants)
		}
	}
}

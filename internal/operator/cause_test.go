package operator_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/tasks"
)

// TestSafeCause checks that an operator reads which service refused a call, and nothing that a
// message of the database may quote.
func TestSafeCause(t *testing.T) {
	t.Parallel()
	client, err := emulator.ForTest(t, nil).TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	const name = "projects/test/locations/here/queues/mappr"
	queue, err := tasks.NewQueue(client, name, "http://worker/", &tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	_, missing := queue.MaxConcurrent(t.Context())
	_, deleted := client.GetQueue(t.Context(), &cloudtaskspb.GetQueueRequest{Name: name})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, cancelled := queue.MaxConcurrent(ended)
	no, lost := status.Error(codes.PermissionDenied, "secret"), status.Error(codes.Unavailable, "secret")
	for want, err := range map[string]error{
		"there is no queue " + name:                                           fmt.Errorf("start: %w", missing),
		"the database answered NotFound":                                      deleted, // not by package tasks
		"the database answered Unavailable":                                   lost,
		"Cloud Tasks answered Unavailable about the queue q":                  of{lost},
		"the service's account may not do this (PermissionDenied) in queue q": of{no},
		"the service's account may not do this (PermissionDenied)":            no,
		"it was cancelled":                                                    cancelled,
		"its cause may quote data, and is not shown":                          errors.New("secret"),
		"the database or the queue did not answer in time":                    context.DeadlineExceeded,
	} {
		if got := operator.SafeCause(err); got != want {
			t.Errorf("%v is %q, want %q", err, got, want)
		}
	}
}

// of is an error about the queue q.
type of struct{ error }

func (o of) Unwrap() error { return o.error }
func (of) Queue() string   { return "q" }
